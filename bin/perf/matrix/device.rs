//! The device side of a matrix: every pair of ranks in turn, and then all at once, when each rank
//! puts a block to every other.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result};
use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::{CopyKernel, Span};
use shmccl::{Communicator, Rank};
use shmccl_harness::clock::now_ns;
use shmccl_harness::interleave::{Contender, LimitRule, Measured, Participants, interleave};
use shmccl_harness::sync::{AllSync, Gathering, PairSync, RankAverage};
use shmccl_harness::test::TestChannel;

use crate::perf::bench::{TestBench, copy_kernels, lineup};
use crate::perf::links::Payload;
use crate::perf::spec::{MatrixFigure, MatrixSettings};
use crate::perf::transfer::{MessageMover, PlainCopy, Put};

/// More than any rank. A message's number tells its turn, its sender and its receiver.
const RANKS: u64 = shmccl::rank::MAX_RANKS as u64;

/// A block for each rank and one from each, in every heap.
#[derive(Clone, Copy, Debug)]
struct ExchangeBuffers {
    out: Region,
    into: Region,
    block: u64,
    check: bool,
}

impl ExchangeBuffers {
    /// Allocates for blocks of `block` bytes. Collective.
    fn alloc(comm: &mut Communicator, block: u64, check: bool) -> shmccl::Result<Self> {
        let len = block * u64::from(comm.n_ranks());
        Ok(Self { out: comm.alloc_region(len, 4096)?, into: comm.alloc_region(len, 4096)?, block, check })
    }

    /// Returns where this rank's block for `to` is.
    fn source(self, to: Rank) -> HeapOffset {
        HeapOffset::new(self.out.offset.get() + u64::from(to.get()) * self.block)
    }

    /// Returns where the block from `from` goes.
    fn target(self, from: Rank) -> HeapOffset {
        HeapOffset::new(self.into.offset.get() + u64::from(from.get()) * self.block)
    }

    /// Returns the block of `owner` at `offset`.
    fn span(self, comm: &Communicator, owner: Rank, offset: HeapOffset) -> shmccl::Result<Span> {
        comm.span(owner, Region::new(offset, self.block))
    }
}

/// The part of one rank in exchanges between all.
#[derive(Debug)]
struct AllPairsExchange<M> {
    /// One for each other rank.
    movers: Vec<M>,
    /// The receivers and their blocks.
    outgoing: Vec<(Rank, Payload)>,
    /// The senders and their blocks.
    incoming: Vec<(Rank, Payload)>,
    rank: Rank,
    gathering: Rc<RefCell<Gathering>>,
    turn: u64,
    wrong: u64,
}

/// Returns all other ranks from the next one on, so that no two ranks begin with the same.
fn others(comm: &Communicator) -> shmccl::Result<Vec<Rank>> {
    let (me, n_ranks) = (comm.rank().get(), comm.n_ranks());
    (1..n_ranks).map(|step| Ok(Rank::new((me + step) % n_ranks, n_ranks)?)).collect()
}

impl<M: MessageMover> AllPairsExchange<M> {
    /// Moves a block to each other rank by a mover of its own, in the order of [`others`].
    fn new(
        comm: &Communicator,
        buffers: ExchangeBuffers,
        movers: Vec<M>,
        gathering: &Rc<RefCell<Gathering>>,
    ) -> shmccl::Result<Self> {
        let (rank, others) = (comm.rank(), others(comm)?);
        let payload = |other: &Rank, offset| {
            Ok((*other, Payload::new(buffers.span(comm, rank, offset)?, buffers.check)))
        };
        let outgoing =
            others.iter().map(|to| payload(to, buffers.source(*to))).collect::<shmccl::Result<_>>()?;
        let incoming =
            others.iter().map(|from| payload(from, buffers.target(*from))).collect::<shmccl::Result<_>>()?;
        Ok(Self { movers, outgoing, incoming, rank, gathering: Rc::clone(gathering), turn: 0, wrong: 0 })
    }

    fn number(&self, from: Rank, to: Rank) -> u64 {
        (self.turn * RANKS + u64::from(from.get())) * RANKS + u64::from(to.get())
    }

    /// Exchanges fresh data once. Returns the nanoseconds from when all were ready until all were
    /// done.
    fn exchange(&mut self) -> shmccl::Result<f64> {
        self.turn += 1;
        for (to, payload) in &self.outgoing {
            payload.rewrite(self.number(self.rank, *to));
        }
        self.gathering.borrow_mut().meet()?;
        let start = now_ns();
        self.movers.iter_mut().try_for_each(MessageMover::start)?;
        self.movers.iter_mut().try_for_each(MessageMover::finish)?;
        self.gathering.borrow_mut().meet()?;
        let took = (now_ns() - start) as f64;
        let wrong =
            |(from, payload): &(Rank, Payload)| payload.read(self.number(*from, self.rank), false).wrong;
        self.wrong += self.incoming.iter().map(wrong).sum::<u64>();
        Ok(took)
    }
}

impl<M: MessageMover> Contender for AllPairsExchange<M> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
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

impl TestBench<'_> {
    /// Measures each pair of ranks, and then all at once.
    pub(crate) fn matrix(&mut self) -> Result<()> {
        let settings = self.spec.matrix.as_ref().context("the spec does not say what to measure")?;
        let n_ranks = self.comm.n_ranks();
        for leader in 0..n_ranks {
            for other in (0..n_ranks).filter(|other| *other != leader) {
                self.pair = settings.pair(leader, other)?;
                let mut sync = PairSync::new(self.comm, self.pair)?;
                for figure in MatrixFigure::OF_PAIRS {
                    self.figure = Some(figure);
                    self.of_pair(figure, sync.as_mut(), settings)?;
                }
            }
        }
        self.figure = Some(MatrixFigure::AllToAll);
        let buffers = ExchangeBuffers::alloc(self.comm, settings.block(), self.spec.check)?;
        match self.channel {
            Some(TestChannel::Port) => {
                let puts = self.to_all(buffers, |bench, peer| Ok(bench.comm.port_channel(peer)?))?;
                self.all_at_once(buffers, puts)
            }
            _ => {
                let puts = self.to_all(buffers, |bench, peer| Ok(bench.comm.memory_channel(peer)?))?;
                self.all_at_once(buffers, puts)
            }
        }
    }

    fn of_pair(
        &mut self,
        figure: MatrixFigure,
        sync: Option<&mut PairSync>,
        settings: &MatrixSettings,
    ) -> Result<()> {
        let long = [settings.bandwidth_bytes];
        match figure {
            MatrixFigure::Latency => self.pair_measures(sync, &[settings.latency_bytes], Self::put_latency),
            MatrixFigure::Bidirectional => self.pair_measures(sync, &long, Self::put_bidirectional),
            _ => self.pair_measures(sync, &long, Self::put_bandwidth),
        }
    }

    /// Returns a put to each other rank.
    fn to_all<C>(
        &self,
        buffers: ExchangeBuffers,
        open: impl Fn(&Self, Rank) -> Result<C>,
    ) -> Result<Vec<Put<C>>> {
        let put = |peer| {
            let (source, target) = (buffers.source(peer), buffers.target(self.comm.rank()));
            Ok(Put { channel: open(self, peer)?, source, target, len: buffers.block })
        };
        others(self.comm)?.into_iter().map(put).collect()
    }

    /// Returns a plain copy by `kernel` to each other rank.
    fn copies(&self, buffers: ExchangeBuffers, kernel: CopyKernel) -> Result<Vec<PlainCopy>> {
        let me = self.comm.rank();
        let copy = |peer| {
            let source = buffers.span(self.comm, me, buffers.source(peer))?;
            let target = buffers.span(self.comm, peer, buffers.target(me))?;
            Ok(PlainCopy { source, target, kernel })
        };
        others(self.comm)?.into_iter().map(copy).collect()
    }

    /// Measures the puts of all ranks at once against plain copies by every kernel.
    fn all_at_once<M: MessageMover>(&mut self, buffers: ExchangeBuffers, puts: Vec<M>) -> Result<()> {
        let kernels = copy_kernels();
        let gathering = Gathering::new(self.comm, RankAverage::Most, self.spec.one_core)?;
        let gathering = Rc::new(RefCell::new(gathering));
        let mut test = AllPairsExchange::new(self.comm, buffers, puts, &gathering)?;
        let mut limits = Vec::new();
        for &kernel in &kernels {
            let copies = self.copies(buffers, kernel)?;
            limits.push(AllPairsExchange::new(self.comm, buffers, copies, &gathering)?);
        }
        let mut all = AllSync::new(self.comm)?;
        let leads = all.leads();
        let effort = self.spec.effort(self.test, self.channel);
        let mut contenders = lineup(&mut test, &mut limits);
        let rules = LimitRule::each(kernels.len());
        let measured = interleave(Participants::All(&mut all), &mut contenders, &rules, effort)?;
        let wrong = gathering.borrow_mut().total(measured.wrong)?;
        let (best, measured) = Measured { wrong, ..measured }.with_lowest_limit();
        let limit = format!("plain copies ({})", kernels[best]);
        let n_ranks = u64::from(self.comm.n_ranks());
        self.report(leads, &measured, Some(buffers.block), &limit, |row| {
            row.set_bandwidth(n_ranks * (n_ranks - 1) * buffers.block);
        })
    }
}
