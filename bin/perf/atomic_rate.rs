//! Atomic operations of all ranks on one word, beside bare ones.

use std::hint::black_box;

use shmccl::heap::HeapOffset;
use shmccl::shm::CellRef;
use shmccl::sync::atomic::AtomicU64;
use shmccl::{Communicator, Rank, Result};
use shmccl_harness::clock::now_ns;
use shmccl_harness::interleave::{Contender, LimitRule, Participants, interleave};
use shmccl_harness::sync::{AllSync, zeroed};
use shmccl_limits::flags::{BareBarrier, BareFlag};
use shmccl_limits::words;

use super::bench::{TestBench, TestResult};

/// Operations of the leader in one sample.
const OPERATIONS: u64 = 4096;

/// Operations of another rank between two looks at whether the leader has done its own.
const BETWEEN_LOOKS: u64 = 16;

/// Bytes from one word to the next: a pair of cache lines.
const APART: u64 = 128;

/// The words of a contender, of which all but the counts are on rank 0.
struct CrowdWords {
    at: HeapOffset,
    word: CellRef<AtomicU64>,
    meeting: BareBarrier<CellRef<BareFlag>>,
    over: CellRef<BareFlag>,
    /// How many operations each rank has done.
    counts: Vec<CellRef<AtomicU64>>,
}

impl CrowdWords {
    /// Sets all ranks up. Collective.
    fn new(comm: &mut Communicator) -> Result<Self> {
        let first = zeroed(comm, 4 * APART)?.offset.get();
        let at = |index: u64| HeapOffset::new(first + index * APART);
        let ranks = || (0..comm.n_ranks()).map(|rank| Rank::new(rank, comm.n_ranks()));
        let home = Rank::new(0, comm.n_ranks())?;
        Ok(Self {
            at: at(0),
            word: comm.cell(home, at(0))?,
            meeting: BareBarrier::new(comm.cell(home, at(1))?, comm.n_ranks()),
            over: comm.cell(home, at(2))?,
            counts: ranks().map(|rank| comm.cell(rank?, at(3))).collect::<Result<_>>()?,
        })
    }

    fn total(&self) -> u64 {
        self.counts.iter().map(|count| words::load(count)).sum()
    }
}

/// All ranks change one word until the leader has done its operations. A sample is the time of the
/// leader for one operation of any rank.
struct Crowd<F> {
    once: F,
    words: CrowdWords,
    rank: usize,
    samples: u64,
    /// The word after so many operations.
    result: fn(u64) -> u64,
    wrong: u64,
}

impl<F: FnMut(&CrowdWords) -> Result<()>> Crowd<F> {
    /// Sets all ranks up. Collective.
    fn new(comm: &mut Communicator, once: F, result: fn(u64) -> u64) -> Result<Self> {
        let words = CrowdWords::new(comm)?;
        Ok(Self { once, words, rank: comm.rank().index(), samples: 0, result, wrong: 0 })
    }

    fn sample(&mut self) -> Result<f64> {
        self.samples += 1;
        let before = self.words.total();
        self.words.meeting.meet();
        let (start, mut done) = (now_ns(), 0);
        while if self.rank == 0 { done < OPERATIONS } else { !self.words.over.shows(self.samples) } {
            (0..BETWEEN_LOOKS).try_for_each(|_| (self.once)(&self.words))?;
            done += BETWEEN_LOOKS;
        }
        let took = now_ns() - start;
        if self.rank == 0 {
            self.words.over.set(self.samples);
        }
        let own = &self.words.counts[self.rank];
        words::store(own, words::load(own) + done);
        self.words.meeting.meet();
        let total = self.words.total();
        self.wrong += u64::from(words::load(&self.words.word) != (self.result)(total));
        // Nobody goes on while another one adds up.
        self.words.meeting.meet();
        Ok(took as f64 / (total - before) as f64)
    }

    /// Returns how many operations the busiest rank has done for one of the least busy.
    fn share_ratio(&self) -> Option<f64> {
        let counts = || self.words.counts.iter().map(|count| words::load(count));
        let (least, most) = (counts().min()?, counts().max()?);
        (least > 0).then(|| most as f64 / least as f64)
    }
}

impl<F: FnMut(&CrowdWords) -> Result<()>> Contender for Crowd<F> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..ops / OPERATIONS {
            samples.push(self.sample()?);
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        OPERATIONS
    }

    fn per_sample(&self) -> u64 {
        OPERATIONS
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl TestBench<'_> {
    /// Measures atomic operations of all ranks on a word of rank 0.
    pub(crate) fn atomic_rate(&mut self) -> TestResult {
        let home = Rank::new(0, self.comm.n_ranks())?;
        let all = self.comm.symmetric();
        let verb = |words: &CrowdWords| all.fetch_add(home, words.at, 1_u64).map(drop);
        let bare = |words: &CrowdWords| {
            black_box(words::fetch_add(&words.word, 1));
            Ok(())
        };
        self.crowds(["fetch_add", "bare lock xadd"], verb, bare, |done| done)?;
        let verb = |words: &CrowdWords| all.fetch_add(home, words.at, 1.0_f64).map(drop);
        let bare = |words: &CrowdWords| {
            words::fetch_add_f64(&words.word, 1.0);
            Ok(())
        };
        let limit = "bare lock cmpxchg, retried";
        self.crowds(["fetch_add of f64", limit], verb, bare, |done| (done as f64).to_bits())
    }

    fn crowds<V, B>(
        &mut self,
        [name, limit]: [&str; 2],
        verb: V,
        bare: B,
        result: fn(u64) -> u64,
    ) -> TestResult
    where
        V: FnMut(&CrowdWords) -> Result<()>,
        B: FnMut(&CrowdWords) -> Result<()>,
    {
        let mut sync = AllSync::new(self.comm)?;
        let mut test = Crowd::new(self.comm, verb, result)?;
        let mut bare = Crowd::new(self.comm, bare, result)?;
        let effort = self.spec.effort(self.test, None);
        let contenders: &mut [&mut dyn Contender] = &mut [&mut test, &mut bare];
        let measured = interleave(Participants::All(&mut sync), contenders, &[LimitRule::Of(1)], effort)?;
        let share_ratio = test.share_ratio();
        self.report(sync.leads(), &measured, Some(8), limit, |row| {
            row.variant = Some(name.to_owned());
            row.share_ratio = share_ratio;
            row.set_rate();
        })
    }
}
