//! All ranks at once: each puts a block to every other.

use std::cell::RefCell;
use std::rc::Rc;

use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::Span;
use shmccl::{Communicator, Rank, Result};

use crate::perf::clock::now_ns;
use crate::perf::collective::gathering::Gathering;
use crate::perf::lane::Lane;
use crate::perf::payload::Payload;
use crate::perf::transfer::Mover;

/// A message's number tells its turn, its sender and its receiver, each of which is below this.
const RANKS: u64 = shmccl::rank::MAX_RANKS as u64;

/// A block for each rank and one from each, in every heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    out: Region,
    into: Region,
    block: u64,
    check: bool,
}

impl Ground {
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
pub(crate) struct Exchange<M> {
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
    (1..n_ranks).map(|step| Ok(Rank::new((me + step) % n_ranks, n_ranks)?)).collect()
}

impl<M: Mover> Exchange<M> {
    /// Moves a block to each other rank by a mover of its own, in the order of [`others`].
    ///
    /// # Errors
    /// None for this ground.
    pub(crate) fn new(
        comm: &Communicator,
        ground: Ground,
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

impl<M: Mover> Lane for Exchange<M> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        // The first settles the caches after another lane.
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
