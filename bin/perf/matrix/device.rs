//! All ranks at once: each puts a block to every other.
//!
//! MERGED:
//! Every pair of ranks in turn, and then all at once.

use std::cell::RefCell;
use std::rc::Rc;
use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::Span;
use shmccl::{Communicator, Rank, Result};
use crate::perf::clock::now_ns;
use crate::perf::collective::gathering::Gathering;
use crate::perf::contender::Contender;
use crate::perf::payload::Payload;
use crate::perf::transfer::Mover;
use anyhow::{Context, Result};
use shmccl::Rank;
use shmccl::shm::CopyKernel;
use super::DeviceBench;
use crate::perf::barrier::AllSync;
use crate::perf::collective::settings::RankAverage;
use crate::perf::interleave::{Participants, Measured, interleave};
use crate::perf::pair_sync::PairSync;
use crate::perf::figures::best_of;
use crate::perf::matrix::exchange::{AllPairsExchange, ExchangeBuffers, others};
use crate::perf::matrix::figure::MatrixFigure;
use crate::perf::matrix::settings::MatrixSettings;
use crate::perf::test::TestChannel;
use crate::perf::transfer::{Mover, PlainCopy, Put};

/// A message's number tells its turn, its sender and its receiver, each of which is below this.
const RANKS: u64 = shmccl::rank::MAX_RANKS as u64;

/// A block for each rank and one from each, in every heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeBuffers {
    out: Region,
    into: Region,
    block: u64,
    check: bool,
}

impl ExchangeBuffers {
    /// Allocates for blocks of `block` bytes. Collective.
    ///
    /// # Errors
    /// No memory; ranks that do not come.
    pub(crate) fn new(comm: &mut Communicator, block: u64, check: bool) -> Result<Self> {
        let len = block * u64::from(comm.n_ranks());
        Ok(Self { out: comm.alloc_region(len, 4096)?, into: comm.alloc_region(len, 4096)?, block, check })
    }

    /// Bytes of a block.
    pub(crate) fn block(self) -> u64 {
        self.block
    }

    /// Where this rank's block for `to` is.
    pub(crate) fn source(self, to: Rank) -> HeapOffset {
        HeapOffset::new(self.out.offset.get() + u64::from(to.get()) * self.block)
    }

    /// Where the block from `from` goes.
    pub(crate) fn target(self, from: Rank) -> HeapOffset {
        HeapOffset::new(self.into.offset.get() + u64::from(from.get()) * self.block)
    }

    /// The memory of `owner` at `offset`.
    ///
    /// # Errors
    /// None for offsets of this ground.
    pub(crate) fn span(self, comm: &Communicator, owner: Rank, offset: HeapOffset) -> Result<Span> {
        comm.span(owner, Region::new(offset, self.block))
    }
}

/// What one rank does.
#[derive(Debug)]
pub(crate) struct AllPairsExchange<M> {
    /// One for each other rank.
    movers: Vec<M>,
    /// What goes to whom.
    outgoing: Vec<(Rank, Payload)>,
    /// What comes from whom.
    incoming: Vec<(Rank, Payload)>,
    rank: Rank,
    gathering: Rc<RefCell<Gathering>>,
    turn: u64,
    wrong: u64,
}

/// All other ranks, from the next one on, so that no two ranks begin with the same.
///
/// # Errors
/// None: all are ranks.
pub(crate) fn others(comm: &Communicator) -> Result<Vec<Rank>> {
    let (me, n_ranks) = (comm.rank().get(), comm.n_ranks());
    (1..n_ranks).map(|step| Rank::new((me + step) % n_ranks, n_ranks)).collect()
}

impl<M: Mover> AllPairsExchange<M> {
    /// Moves a block to each other rank by a mover of its own, in the order of [`others`].
    ///
    /// # Errors
    /// None for this ground.
    pub(crate) fn new(
        comm: &Communicator,
        ground: ExchangeBuffers,
        movers: Vec<M>,
        gathering: &Rc<RefCell<Gathering>>,
    ) -> Result<Self> {
        let (rank, others) = (comm.rank(), others(comm)?);
        let payload =
            |other: &Rank, offset| Ok((*other, Payload::new(ground.span(comm, rank, offset)?, ground.check)));
        let outgoing = others.iter().map(|to| payload(to, ground.source(*to))).collect::<Result<_>>()?;
        let incoming =
            others.iter().map(|from| payload(from, ground.target(*from))).collect::<Result<_>>()?;
        Ok(Self { movers, outgoing, incoming, rank, gathering: Rc::clone(gathering), turn: 0, wrong: 0 })
    }

    fn number(&self, from: Rank, to: Rank) -> u64 {
        (self.turn * RANKS + u64::from(from.get())) * RANKS + u64::from(to.get())
    }

    /// One exchange of fresh data: nanoseconds from when all were ready until all were done.
    fn exchange(&mut self) -> Result<f64> {
        self.turn += 1;
        for (to, payload) in &self.outgoing {
            payload.rewrite(self.number(self.rank, *to));
        }
        self.gathering.borrow_mut().meet()?;
        let start = now_ns();
        self.movers.iter_mut().try_for_each(Mover::start)?;
        self.movers.iter_mut().try_for_each(Mover::finish)?;
        self.gathering.borrow_mut().meet()?;
        let took = (now_ns() - start) as f64;
        let wrong =
            |(from, payload): &(Rank, Payload)| payload.read(self.number(*from, self.rank), false).wrong;
        self.wrong += self.incoming.iter().map(wrong).sum::<u64>();
        Ok(took)
    }
}

impl<M: Mover> Contender for AllPairsExchange<M> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        // The first settles the caches after another contender.
        self.exchange()?;
        for _ in 0..ops {
            samples.push(self.exchange()?);
        }
        Ok(())
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl DeviceBench<'_> {
    pub(crate) fn matrix(&mut self) -> Result<()> {
        let settings = self.plan.matrix.as_ref().context("the plan does not say what to measure")?;
        let n_ranks = self.comm.n_ranks();
        for leader in 0..n_ranks {
            for other in (0..n_ranks).filter(|other| *other != leader) {
                self.pair = settings.pair(leader, other)?;
                let mut pair_sync = PairSync::new(self.comm, self.pair)?;
                for figure in MatrixFigure::OF_PAIRS {
                    self.figure = Some(figure);
                    self.of_pair(figure, pair_sync.as_mut(), settings)?;
                }
            }
        }
        self.figure = Some(MatrixFigure::AllToAll);
        let ground = ExchangeBuffers::new(self.comm, settings.block(), self.plan.check)?;
        match self.channel {
            Some(TestChannel::Port) => {
                let puts = self.to_all(ground, |bench, peer| Ok(bench.comm.port_channel(peer)?));
                self.all_at_once(ground, puts?)
            }
            _ => {
                let puts = self.to_all(ground, |bench, peer| Ok(bench.comm.memory_channel(peer)?));
                self.all_at_once(ground, puts?)
            }
        }
    }

    fn of_pair(&mut self, figure: MatrixFigure, pair_sync: Option<&mut PairSync>, settings: &MatrixSettings) -> Result<()> {
        match figure {
            MatrixFigure::Latency => self.two(pair_sync, &[settings.latency_bytes], Self::put_latency),
            MatrixFigure::Bidirectional => self.two(pair_sync, &[settings.bandwidth_bytes], Self::put_bidirectional),
            _ => self.two(pair_sync, &[settings.bandwidth_bytes], Self::put_bandwidth),
        }
    }

    /// A put to each other rank.
    fn to_all<C>(&self, ground: ExchangeBuffers, open: impl Fn(&Self, Rank) -> Result<C>) -> Result<Vec<Put<C>>> {
        let put = |peer| {
            let (source, target) = (ground.source(peer), ground.target(self.comm.rank()));
            Ok(Put { channel: open(self, peer)?, source, target, len: ground.block() })
        };
        others(self.comm)?.into_iter().map(put).collect()
    }

    /// A plain copy by `kernel` to each other rank.
    fn copies(&self, ground: ExchangeBuffers, kernel: CopyKernel) -> Result<Vec<PlainCopy>> {
        let me = self.comm.rank();
        let copy = |peer| {
            let source = ground.span(self.comm, me, ground.source(peer))?;
            let target = ground.span(self.comm, peer, ground.target(me))?;
            Ok(PlainCopy { source, target, kernel })
        };
        others(self.comm)?.into_iter().map(copy).collect()
    }

    /// The puts of all ranks at the same time, against plain copies by every kernel that this processor has.
    fn all_at_once<M: Mover>(&mut self, ground: ExchangeBuffers, puts: Vec<M>) -> Result<()> {
        let kernels: Vec<_> = CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()).collect();
        let gathering = Gathering::new(self.comm, RankAverage::Most, self.plan.one_core)?;
        let gathering = Rc::new(RefCell::new(gathering));
        let mut test = AllPairsExchange::new(self.comm, ground, puts, &gathering)?;
        let mut plain = Vec::new();
        for &kernel in &kernels {
            let copies = self.copies(ground, kernel)?;
            plain.push(AllPairsExchange::new(self.comm, ground, copies, &gathering)?);
        }
        let mut all_sync = AllSync::new(self.comm)?;
        let mut contenders: Vec<&mut dyn Contender> = vec![&mut test];
        contenders.extend(plain.iter_mut().map(|contender| contender as &mut dyn Contender));
        let effort = self.plan.effort(self.test, self.channel);
        let outcome = interleave(Participants::All(&mut all_sync), &mut contenders, &best_of(kernels.len()), effort)?;
        let wrong = gathering.borrow_mut().total(outcome.wrong)?;
        let leads = all_sync.leads();
        let Some((best, outcome)) = (Measured { wrong, ..outcome }).with_lowest_limit() else { return Ok(()) };
        let limit = format!("plain copies ({})", kernels[best]);
        let n_ranks = u64::from(self.comm.n_ranks());
        self.report(leads, &outcome, Some(ground.block()), &limit, |row| {
            row.set_bandwidth(n_ranks * (n_ranks - 1) * ground.block());
        })
    }
}
