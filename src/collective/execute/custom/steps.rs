//! The steps that a custom algorithm can take in a call.
//!
//! Everything is checked here, since whoever calls it may be wrong: peers exist and are others,
//! messages fit into a slot and are given back once, places lie in memory. When the algorithm has
//! returned, all that it has sent is awaited, so that nothing is left in a pipe for the next call
//! to find.

use super::{CustomAlgorithm, Place};
use crate::collective::call::{Call, Input, Operation, Output};
use crate::collective::execute::algorithms::worker::{self, Operand, PipeWorker};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Transport;
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, Region};
use crate::rank::{MAX_RANKS, Rank, RankSet};
use crate::reduce::DataType;

/// Executes the worker's call by `algorithm`, among two members or more.
///
/// # Errors
/// Whatever the algorithm returns; those of [`Transport`]. These are of no further use then.
pub(in crate::collective) fn run<L: Link>(
    worker: &mut PipeWorker<'_, L>,
    algorithm: &dyn CustomAlgorithm,
) -> Result<()> {
    if worker.call.count == 0 {
        return Ok(());
    }
    let (members, call) = (worker.pipes.members, worker.call);
    let mut steps = Steps {
        pipes: &mut worker.pipes,
        members,
        call,
        held: RankSet::default(),
        sent_to: RankSet::default(),
    };
    // Unwinding past here would leave messages for the next call to find.
    let guard = EndsEpoch(members);
    let done = algorithm.run(&mut steps);
    std::mem::forget(guard);
    done?;
    steps.finish()
}

/// Ends the epoch when it is dropped.
struct EndsEpoch<'a>(&'a Members);

impl Drop for EndsEpoch<'_> {
    fn drop(&mut self) {
        self.0.board.revoke();
    }
}

/// What a [`CustomAlgorithm`] does its part of a call with.
///
/// Between two ranks there is a pipe each way. A message has at most [`Steps::longest_message`]
/// bytes. A pipe holds four of them: the next one waits until the receiver has given one back. So
/// an algorithm that sends without receiving needs an argument why nobody waits in a circle; ranks
/// that all send one message before they receive one do not.
pub struct Steps<'a> {
    pipes: &'a mut dyn Transport,
    members: &'a Members,
    call: &'a Call<'a>,
    /// Members whose last message was not given back.
    held: RankSet,
    /// Members that something was sent to.
    sent_to: RankSet,
}

impl Steps<'_> {
    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank::known(u32::try_from(self.members.me()).expect("at most 256 members"))
    }

    /// Returns how many ranks there are: at least two.
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        u32::try_from(self.members.n_members()).expect("at most 256 members")
    }

    /// Returns the rank after this one, in a ring.
    #[must_use]
    pub fn right(&self) -> Rank {
        self.rank().right(self.n_ranks())
    }

    /// Returns the rank before this one, in a ring.
    #[must_use]
    pub fn left(&self) -> Rank {
        self.rank().left(self.n_ranks())
    }

    /// Returns what is to be done.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.call.operation
    }

    /// Returns the rank at the root, where the operation has one.
    #[must_use]
    pub fn root(&self) -> Option<Rank> {
        let root = Rank::known(u32::try_from(self.call.root).expect("at most 256 members"));
        self.operation().has_root().then_some(root)
    }

    /// Returns the type of the elements: `f32` where shorter floats are reduced by a built-in
    /// operator, since every [`Steps::combine`] rounds.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.call.data_type
    }

    /// Elements of a block: what a rank contributes to an all-gather, or gets of a reduce-scatter
    /// ([`Operation::blocks`]).
    #[must_use]
    pub fn count(&self) -> u64 {
        self.call.count
    }

    /// Returns the longest message in bytes: at least 8 KiB, and a multiple of every element's
    /// size.
    #[must_use]
    pub fn longest_message(&self) -> u64 {
        self.members.layout().slot_len()
    }

    /// Returns the input of this rank; empty where it has none.
    #[must_use]
    pub fn input(&self) -> Place {
        let (blocks, _) = self.operation().blocks(self.n_ranks().into());
        match self.call.input {
            Input::Heap(offset) => Place { region: self.blocks(offset, blocks), fresh: true },
            _ => Place { region: Region::new(HeapOffset::new(0), 0), fresh: true },
        }
    }

    /// Returns the output of this rank; empty where it has none. It may be the input as well, or a
    /// part of it, or have it for a part.
    #[must_use]
    pub fn output(&self) -> Place {
        let (_, blocks) = self.operation().blocks(self.n_ranks().into());
        match self.call.output {
            Output::Heap(offset) => Place::made(self.blocks(offset, blocks)),
            _ => Place::made(Region::new(HeapOffset::new(0), 0)),
        }
    }

    fn blocks(&self, offset: HeapOffset, blocks: u64) -> Region {
        let elements = self.call.count.saturating_mul(blocks);
        Region::new(offset, elements.saturating_mul(self.data_type().size() as u64))
    }

    /// Sends `message` to rank `to`, once there is room in the pipe. It may be overwritten after
    /// [`Steps::flush`], or when something has come back that `to` has made of it. Nothing is sent
    /// of no bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a message that is too long; [`Error::InvalidRank`] and
    /// [`Error::InvalidArgument`] for a rank that is none, or this one; [`Error::Timeout`],
    /// [`Error::PeerLost`], [`Error::ProxyLost`], [`Error::Revoked`].
    pub fn send(&mut self, to: Rank, message: Place) -> Result<()> {
        let peer = self.peer(to)?;
        self.check_message(message.len())?;
        if message.is_empty() {
            return Ok(());
        }
        self.sent_to.insert(to);
        self.pipes.send(peer, message.region.offset, message.len())
    }

    /// Waits for the next message of rank `from`, which is `len` bytes long. It lies where it is
    /// until the next one of that rank is received, or [`Steps::release`]. One of no bytes is not
    /// waited for.
    ///
    /// # Errors
    /// Fails as [`Steps::send`] does.
    pub fn receive(&mut self, from: Rank, len: u64) -> Result<Place> {
        let peer = self.peer(from)?;
        self.check_message(len)?;
        if len == 0 {
            return Ok(Place::made(Region::new(HeapOffset::new(0), 0)));
        }
        self.release(from)?;
        let start = self.pipes.receive(peer)?;
        self.held.insert(from);
        Ok(Place::made(Region::new(start, len)))
    }

    /// Gives the last message of rank `from` back, so that its room is there for another. Without
    /// it that happens when the next one is received, and at the end.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] and [`Error::InvalidArgument`] for a rank that is none, or this one.
    pub fn release(&mut self, from: Rank) -> Result<()> {
        let peer = self.peer(from)?;
        if self.held.remove(from) {
            self.pipes.release(peer);
        }
        Ok(())
    }

    /// Returns room to make a message of `len` bytes in, which is to be the next one to rank `to`.
    ///
    /// # Errors
    /// Fails as [`Steps::send`] does.
    pub fn send_staging(&mut self, to: Rank, len: u64) -> Result<Place> {
        let peer = self.peer(to)?;
        self.check_message(len)?;
        // A message for another rank may lie in the same place, and be on its way by a proxy.
        for other in self.sent_to.iter().filter(|other| *other != to) {
            self.pipes.flush(other.index())?;
        }
        Ok(Place::made(Region::new(self.pipes.reserve(peer)?, len)))
    }

    /// Returns when all that was sent to rank `to` may be overwritten.
    ///
    /// # Errors
    /// Fails as [`Steps::send`] does.
    pub fn flush(&mut self, to: Rank) -> Result<()> {
        let peer = self.peer(to)?;
        self.pipes.flush(peer)
    }

    /// Combines the elements of `operands`, 1 to 256 of them, in this order, and leaves the result
    /// in `target`, which may be one of them. Whoever makes the result that is nobody's operand any
    /// more says `finish`: an average is divided then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for operands that are not as long as the target, overlap it in
    /// part or are too many, for a length that is not one of whole elements, and in an operation
    /// that does not reduce; [`Error::OutOfRange`] for places that are not memory.
    pub fn combine(&self, operands: &[Place], target: Place, finish: bool) -> Result<()> {
        let invalid = |name, value, expected| Err(Error::InvalidArgument { name, value, expected });
        let size = self.data_type().size() as u64;
        if self.call.reducer.is_none() {
            let code = self.operation() as u64;
            return invalid(
                "the code of the operation",
                code,
                "one that reduces, for elements to be combined",
            );
        }
        if operands.len() > MAX_RANKS as usize {
            return invalid("places to combine", operands.len() as u64, "at most 256");
        }
        if !target.len().is_multiple_of(size) {
            return invalid("bytes of a place", target.len(), "a multiple of the size of an element");
        }
        operands.iter().try_for_each(|operand| target.check_len(*operand))?;
        if target.is_empty() {
            return Ok(());
        }
        let operands = operands.iter().map(|place| Operand { at: place.region.offset, fresh: place.fresh });
        worker::combine(self.members, self.call, operands, target.region, finish)
    }

    /// Copies `source` to `target`, which is as long, unless it is there already.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for different lengths; [`Error::OutOfRange`] for places that are
    /// not memory.
    pub fn copy(&self, source: Place, target: Place) -> Result<()> {
        target.check_len(source)?;
        if source.is_empty() {
            Ok(())
        } else {
            worker::copy(self.members, source.region.offset, target.region)
        }
    }

    /// Returns the number of another rank.
    fn peer(&self, rank: Rank) -> Result<usize> {
        if rank == self.rank() {
            let (name, value) = ("the peer of a message", u64::from(rank.get()));
            return Err(Error::InvalidArgument { name, value, expected: "another rank" });
        }
        Ok(Rank::new(rank.get(), self.n_ranks())?.index())
    }

    fn check_message(&self, len: u64) -> Result<()> {
        let limit = self.longest_message();
        if len <= limit {
            return Ok(());
        }
        Err(Error::OutOfRange { what: "bytes of a message", offset: 0, len, limit })
    }

    /// Gives all messages back, and waits until others have done so with this rank's.
    fn finish(&mut self) -> Result<()> {
        for peer in self.held.iter() {
            self.pipes.release(peer.index());
        }
        for peer in self.sent_to.iter() {
            self.pipes.flush(peer.index())?;
            self.pipes.await_taken(peer.index())?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").field("rank", &self.rank()).field("call", &self.call).finish_non_exhaustive()
    }
}
