//! Verbs of a pair of ranks by rank and offset, beside the bare instructions.
//!
//! What a verb costs besides its instruction shows best on words that stay in the caches of the
//! rank that uses them, one operation after the other. What a word costs on its way to the other
//! rank shows in ping-pongs.

use shmccl::channel::MemoryChannel;
use shmccl::heap::HeapOffset;
use shmccl::shm::{CellRef, CopyKernel, Span};
use shmccl::symmetric::{Comparison, SignalOp, WordSignal};
use shmccl::sync::atomic::AtomicU64;
use shmccl::sync::word::full_fence;
use shmccl::{Rank, Result, Symmetric};
use shmccl_harness::clock::now_ns;
use shmccl_harness::interleave::{Contender, LimitRule, Measured};
use shmccl_harness::sync::PairSync;
use shmccl_limits::words::{self, RING, WordRing};

use super::bench::{TestBench, TestResult};
use super::buffers::PairBuffers;
use super::links::{CopyAddLink, MessageLink, SignalEnd};
use super::ping_pong::PingPong;

/// Operations that are timed together: the clock takes a hundredth of the shortest.
const TOGETHER: u64 = 1024;

/// Where each number of a chain leads after so many operations.
type Chain = fn(u64) -> u64;

/// What the leader does again and again while the other rank waits. Each operation takes what the
/// one before has returned, so that neither compiler nor processor does several at a time.
struct Repeated<F> {
    once: F,
    leads: bool,
    chain: Chain,
    /// The word that holds the last number, too.
    word: Option<CellRef<AtomicU64>>,
    last: u64,
    done: u64,
}

impl<F: FnMut(u64) -> Result<u64>> Contender for Repeated<F> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        let samples_of_leader = if self.leads { ops / TOGETHER } else { 0 };
        for _ in 0..samples_of_leader {
            let start = now_ns();
            for _ in 0..TOGETHER {
                self.last = (self.once)(self.last)?;
            }
            samples.push((now_ns() - start) as f64 / TOGETHER as f64);
            self.done += TOGETHER;
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        TOGETHER
    }

    fn per_sample(&self) -> u64 {
        TOGETHER
    }

    fn wrong(&self) -> u64 {
        let is_lost = self.word.as_ref().is_some_and(|word| words::load(word) != self.last);
        u64::from(self.leads && (is_lost || self.last != (self.chain)(self.done)))
    }
}

/// A verb on a word, and its bare loop.
struct VerbRow<V, B> {
    name: &'static str,
    limit: &'static str,
    verb: V,
    bare: B,
}

/// A word of each contender in the peer's heap.
struct PeerWords {
    verb: HeapOffset,
    cells: [CellRef<AtomicU64>; 2],
}

impl PeerWords {
    fn new(bench: &TestBench<'_>, buffers: &PairBuffers) -> Result<Self> {
        let [verb, bare] = [buffers.word(bench.comm, 0)?, buffers.word(bench.comm, 1)?];
        let cell = |offset| bench.comm.cell(buffers.peer(), offset);
        Ok(Self { verb, cells: [cell(verb)?, cell(bare)?] })
    }
}

/// A word that is set, and waited for, by rank and offset.
#[derive(Debug)]
struct WordLink {
    all: Symmetric,
    peer: Rank,
    word: HeapOffset,
}

impl MessageLink for WordLink {
    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        self.all.set(self.peer, self.word, seq)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<()> {
        self.all.wait_until(self.word, Comparison::GreaterOrEqual, seq).map(drop)
    }
}

/// A put of 8 bytes that raises a word behind it.
#[derive(Debug)]
struct PutSignalLink {
    signals: WordLink,
    op: SignalOp,
    source: Span,
    target: HeapOffset,
}

impl MessageLink for PutSignalLink {
    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        let word: u64 = self.source.read(0)?;
        let WordLink { all, peer, word: signal } = &self.signals;
        let signal = match self.op {
            SignalOp::Set => WordSignal::set(*signal, seq),
            SignalOp::Add => WordSignal::add(*signal, 1),
        };
        all.put_signal(*peer, self.target, &[word], signal)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<()> {
        self.signals.receive(seq)
    }
}

impl TestBench<'_> {
    /// Measures writing an element, alone and with a quiet behind each.
    pub(crate) fn element_put(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let (all, peer) = (self.comm.symmetric(), buffers.peer());
        let words = PeerWords::new(self, buffers)?;
        let (at, bare_word) = (words.verb, &*words.cells[1]);
        let writing = all.clone();
        let write = move |last: u64| writing.write(peer, at, last + 1).map(|()| last + 1);
        let store = move |last: u64| {
            words::store(bare_word, last + 1);
            Ok(last + 1)
        };
        let row = VerbRow { name: "write", limit: "bare store", verb: write.clone(), bare: store };
        self.on_words(sync, buffers, row)?;
        let verb = move |last| write(last).inspect(|_| all.quiet());
        let bare = move |last| store(last).inspect(|_| full_fence());
        let row = VerbRow { name: "write and quiet", limit: "bare store and fence", verb, bare };
        self.on_words(sync, buffers, row)
    }

    /// Measures atomic operations. Each verb has a `Symmetric` of its own, as a program has that
    /// keeps one in a variable.
    pub(crate) fn atomic_latency(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let peer = buffers.peer();
        let words = PeerWords::new(self, buffers)?;
        let (at, bare_word) = (words.verb, &*words.cells[1]);
        let all = self.comm.symmetric();
        let verb = move |_| all.fetch_add(peer, at, 1_u64).map(|was| was + 1);
        let bare = move |_| Ok(words::fetch_add(bare_word, 1) + 1);
        self.on_words(sync, buffers, VerbRow { name: "fetch_add", limit: "bare lock xadd", verb, bare })?;
        let all = self.comm.symmetric();
        let verb = move |last| all.compare_swap(peer, at, last, last + 1).map(|was| was + 1);
        let bare = move |last| Ok(words::compare_swap(bare_word, last, last + 1) + 1);
        let row = VerbRow { name: "compare_swap", limit: "bare lock cmpxchg", verb, bare };
        self.on_words(sync, buffers, row)?;
        let all = self.comm.symmetric();
        let verb = move |last| all.swap(peer, at, last + 1).map(|was| was + 1);
        let bare = move |last| Ok(words::swap(bare_word, last + 1) + 1);
        self.on_words(sync, buffers, VerbRow { name: "swap", limit: "bare xchg", verb, bare })?;
        let all = self.comm.symmetric();
        let verb = move |_| all.fetch_add(peer, at, 1.0_f64).map(|was| (was + 1.0).to_bits());
        let bare = move |_| Ok((words::fetch_add_f64(bare_word, 1.0) + 1.0).to_bits());
        let row = VerbRow { name: "fetch_add of f64", limit: "bare lock cmpxchg, retried", verb, bare };
        self.repeated(sync, buffers, row, |done| (done as f64).to_bits())
    }

    /// Measures a verb that leaves the number of operations in its word.
    fn on_words<V, B>(&self, sync: &mut PairSync, buffers: &PairBuffers, row: VerbRow<V, B>) -> TestResult
    where
        V: FnMut(u64) -> Result<u64>,
        B: FnMut(u64) -> Result<u64>,
    {
        self.repeated(sync, buffers, row, |done| done)
    }

    fn repeated<V, B>(
        &self,
        sync: &mut PairSync,
        buffers: &PairBuffers,
        row: VerbRow<V, B>,
        chain: Chain,
    ) -> TestResult
    where
        V: FnMut(u64) -> Result<u64>,
        B: FnMut(u64) -> Result<u64>,
    {
        sync.meet();
        let [verb_word, bare_word] = PeerWords::new(self, buffers)?.cells.map(Some);
        sync.meet();
        let leads = buffers.leads();
        let mut test = Repeated { once: row.verb, leads, chain, word: verb_word, last: 0, done: 0 };
        let mut limit = Repeated { once: row.bare, leads, chain, word: bare_word, last: 0, done: 0 };
        let measured = self.interleave(sync, &mut [&mut test, &mut limit], &[LimitRule::Of(1)])?;
        self.report(leads, &measured, Some(8), row.limit, |told| told.variant = Some(row.name.to_owned()))
    }

    /// Measures reading an element, from a ring of words of which each names the next.
    pub(crate) fn element_get(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let (all, peer) = (self.comm.symmetric(), buffers.peer());
        let at = buffers.source();
        self.comm.cell::<WordRing>(self.comm.rank(), at)?.link();
        let ring = self.comm.cell::<WordRing>(peer, at)?;
        sync.meet();
        let read = move |number: u64| all.read(peer, HeapOffset::new(at.get() + 8 * number));
        let (leads, chain): (_, Chain) = (buffers.leads(), |done| done % RING as u64);
        let mut test = Repeated { once: read, leads, chain, word: None, last: 0, done: 0 };
        let load = move |number| Ok(ring.next(number));
        let mut limit = Repeated { once: load, leads, chain, word: None, last: 0, done: 0 };
        let measured = self.interleave(sync, &mut [&mut test, &mut limit], &[LimitRule::Of(1)])?;
        self.report(leads, &measured, Some(8), "bare load", |row| row.variant = Some("read".to_owned()))
    }

    /// Measures a word that is set and waited for against bare flags.
    pub(crate) fn wait_until_latency(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let word = buffers.word(self.comm, 1)?;
        let flags = buffers.flags(self.comm, 0)?;
        let link = WordLink { all: self.comm.symmetric(), peer: buffers.peer(), word };
        sync.meet();
        let mut test = PingPong::new(SignalEnd(link), buffers.leads());
        let mut limit = PingPong::new(SignalEnd(flags), buffers.leads());
        let measured = self.interleave(sync, &mut [&mut test, &mut limit], &[LimitRule::Of(1)])?;
        let name = self.flag_limit("raw flag ping-pong");
        self.report(buffers.leads(), &measured, None, &name, |row| row.wrong = None)
    }

    /// Measures puts of 8 bytes that set a word behind them, and such that add to it. A row each is
    /// against bare loops that do the same, and against a channel's put with signal.
    pub(crate) fn put_signal_latency(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let (leads, len) = (buffers.leads(), buffers.len());
        let bare = || buffers.copy_and_flag(self.comm, 0, CopyKernel::Memcpy);
        for (op, name, limit) in
            [(SignalOp::Set, "SET", "raw copy + flag"), (SignalOp::Add, "ADD", "raw copy + add")]
        {
            sync.meet();
            let mut limits: Vec<Box<dyn Contender>> = vec![match op {
                SignalOp::Set => Box::new(PingPong::of_messages(bare()?, leads, len)),
                SignalOp::Add => {
                    let adding = buffers.over(self.comm, CopyAddLink(bare()?.link))?;
                    Box::new(PingPong::of_messages(adding, leads, len))
                }
            }];
            let word = buffers.word(self.comm, 1)?;
            let signals = WordLink { all: self.comm.symmetric(), peer: buffers.peer(), word };
            let (source, target) = (buffers.outgoing(self.comm)?, buffers.target());
            let put = buffers.over(self.comm, PutSignalLink { signals, op, source, target })?;
            let channel: MemoryChannel = self.comm.memory_channel(buffers.peer())?;
            limits.push(Box::new(PingPong::of_messages(buffers.put(self.comm, channel)?, leads, len)));
            sync.meet();
            let mut test = PingPong::of_messages(put, leads, len);
            let [bare, channel] = &mut limits[..] else { unreachable!("there are two") };
            let contenders: &mut [&mut dyn Contender] = &mut [&mut test, &mut **bare, &mut **channel];
            let measured = self.interleave(sync, contenders, &LimitRule::each(2))?;
            let Measured { comparisons, operations, wrong } = measured;
            let names = [self.flag_limit(limit), "put_with_signal".to_owned()];
            for (comparison, limit) in comparisons.into_iter().zip(names) {
                let one = Measured { comparisons: vec![comparison], operations, wrong };
                self.report(leads, &one, Some(len), &limit, |row| row.variant = Some(name.to_owned()))?;
            }
        }
        Ok(())
    }
}
