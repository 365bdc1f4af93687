//! The collective operations, typed.
//!
//! Each is called by all ranks of the communicator, in the same order and with the same arguments, buffers apart: those may
//! be anywhere, in the symmetric heap or not, on each rank as it likes. Counts are elements. A call returns when its input
//! may be written again and its output is there. A call that fails while data move ends the epoch: what other
//! ranks have of it cannot be told.

use super::Communicator;
use super::operand::{RecvBuffer, SendBuffer};
use super::workspace::Workspace;
use crate::collective::{Algorithm, Call, ChannelKind, Engine, Input, Operation, Output, RegionLayout};
use crate::error::{Error, Result};
use crate::heap::Region;
use crate::rank::Rank;
use crate::reduce::{Element, ReduceOp, Reducer};

impl Communicator {
    /// Has collective operations done by `algorithm` from now on; by `None`, as suits each call. All ranks have to choose the same.
    ///
    /// A call of an operation that the algorithm cannot do ([`Algorithm::supports`]) returns [`Error::InvalidArgument`] at once, and
    /// one in which ranks have chosen differently [`Error::CallMismatch`].
    pub fn set_algorithm(&mut self, algorithm: Option<Algorithm>) {
        self.manner.algorithm = algorithm;
    }

    /// Has the data of collective operations moved by channels of `kind` from now on: by each rank's own core, as at the
    /// start, or by its proxy. All ranks have to choose the same.
    ///
    /// The first operation over proxied channels opens one to each other rank, which takes a producer of this rank's fifo and the
    /// highest free channel between the two; it returns [`Error::Exhausted`], or [`Error::FailedElsewhere`] on the others,
    /// where there are none left. So with a proxy service process, which serves one fifo of 32 producers for each rank, there
    /// can be at most 33 ranks.
    pub fn set_channel_kind(&mut self, kind: ChannelKind) {
        self.manner.channel = kind;
    }

    /// Returns when all ranks have called it. Acquires everything that any of them did before.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming a rank that is missing, [`Error::PeerLost`], [`Error::Revoked`].
    #[inline]
    pub fn barrier(&mut self) -> Result<()> {
        match &mut self.meeting {
            Some(meeting) => meeting.meet("barrier"),
            None => self.engine()?.barrier(),
        }
    }

    /// Combines the inputs of all ranks, element by element, into the output of each.
    ///
    /// The two buffers may be the very same or lie apart. If they overlap otherwise, the call may fail or leave wrong data.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the buffers have different counts; [`Error::CallMismatch`] when the ranks are in different
    /// calls; [`Error::OutOfRange`]; [`Error::OutOfMemory`] when the heap is too small for the communicator's own use;
    /// [`Error::Timeout`], [`Error::PeerLost`], [`Error::ProxyLost`], [`Error::Revoked`].
    pub fn all_reduce<'a, T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let count = same("elements received", recv.count(), send.count())?;
        self.run::<T>(Operation::AllReduce, count, 0, Some(op), send.input(), recv.output())
    }

    /// Combines the contents of `buffer` on all ranks, element by element, and leaves the result in it on each.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`].
    pub fn all_reduce_in_place<'a, T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffer = buffer.into();
        let (count, input) = (buffer.count(), buffer.as_input(0));
        self.run::<T>(Operation::AllReduce, count, 0, Some(op), input, buffer.output())
    }

    /// Combines the inputs of all ranks, element by element, into the output of `root`; on other ranks `recv` is not touched
    /// and may be empty.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`]; [`Error::InvalidRank`].
    pub fn reduce<'a, T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let count = send.count();
        let output = self.output_at(root, recv, count)?;
        self.run::<T>(Operation::Reduce, count, root.index(), Some(op), send.input(), output)
    }

    /// Copies the root's `send` to `recv` on every rank; on other ranks `send` is not touched and may be empty.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`]; [`Error::InvalidRank`].
    pub fn broadcast<'a, T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let count = recv.count();
        let input = self.input_at(root, send, count)?;
        self.run::<T>(Operation::Broadcast, count, root.index(), None, input, recv.output())
    }

    /// Collects the inputs of all ranks, one after the other in the order of the ranks, in the output of each. The output has
    /// `n_ranks` times the count of the input.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`].
    pub fn all_gather<'a, T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let count = send.count();
        same("elements received", recv.count(), count.saturating_mul(self.n_ranks().into()))?;
        self.run::<T>(Operation::AllGather, count, 0, None, send.input(), recv.output())
    }

    /// Combines the inputs of all ranks, element by element, and leaves block r of the result to rank r. The input has
    /// `n_ranks` times the count of the output.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`].
    pub fn reduce_scatter<'a, T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let count = recv.count();
        same("elements sent", send.count(), count.saturating_mul(self.n_ranks().into()))?;
        self.run::<T>(Operation::ReduceScatter, count, 0, Some(op), send.input(), recv.output())
    }

    /// Sends block r of the input to rank r, and collects the blocks that all ranks send here in the order of the ranks.
    /// Input and output have `n_ranks` blocks of one length.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`]; [`Error::InvalidArgument`] for a count that is not a multiple of the number of ranks.
    pub fn all_to_all<'a, T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let total = same("elements received", recv.count(), send.count())?;
        let count = self.block_of(total)?;
        self.run::<T>(Operation::AllToAll, count, 0, None, send.input(), recv.output())
    }

    /// Collects the inputs of all ranks, one after the other in the order of the ranks, in the output of `root`; on other ranks
    /// `recv` is not touched and may be empty.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`]; [`Error::InvalidRank`].
    pub fn gather<'a, T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let count = send.count();
        let all = count.saturating_mul(self.n_ranks().into());
        let output = self.output_at(root, recv, all)?;
        self.run::<T>(Operation::Gather, count, root.index(), None, send.input(), output)
    }

    /// Sends block r of the root's input to rank r; on other ranks `send` is not touched and may be empty.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`]; [`Error::InvalidRank`].
    pub fn scatter<'a, T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let count = recv.count();
        let all = count.saturating_mul(self.n_ranks().into());
        let input = self.input_at(root, send, all)?;
        self.run::<T>(Operation::Scatter, count, root.index(), None, input, recv.output())
    }

    fn run<T: Element>(
        &mut self,
        operation: Operation,
        count: u64,
        root: usize,
        op: Option<&ReduceOp>,
        input: Input<'_>,
        output: Output<'_>,
    ) -> Result<()> {
        let n_ranks = self.n_ranks();
        let reducer = op.map(|op| Reducer::new(T::DATA_TYPE, op, n_ranks)).transpose()?;
        let reducer = reducer.as_ref();
        let mut call = Call { operation, data_type: T::DATA_TYPE, count, root, reducer, input, output };
        let manner = self.manner;
        self.engine()?.run(&mut call, manner)
    }

    /// The input that only `root` has, of `count` elements.
    fn input_at<'a, T: Element>(&self, root: Rank, send: SendBuffer<'a, T>, count: u64) -> Result<Input<'a>> {
        if !self.is_root(root)? {
            return Ok(Input::None);
        }
        same("elements sent", send.count(), count)?;
        Ok(send.input())
    }

    /// The output that only `root` has, of `count` elements.
    fn output_at<'a, T: Element>(
        &self,
        root: Rank,
        recv: RecvBuffer<'a, T>,
        count: u64,
    ) -> Result<Output<'a>> {
        if !self.is_root(root)? {
            return Ok(Output::None);
        }
        same("elements received", recv.count(), count)?;
        Ok(recv.output())
    }

    fn is_root(&self, root: Rank) -> Result<bool> {
        Rank::new(root.get(), self.n_ranks())?;
        Ok(self.rank == root)
    }

    /// The block of which `total` elements are one for each rank.
    fn block_of(&self, total: u64) -> Result<u64> {
        let n_ranks = u64::from(self.n_ranks());
        if !total.is_multiple_of(n_ranks) {
            let expected = "a multiple of the number of ranks";
            return Err(Error::InvalidArgument { name: "elements sent", value: total, expected });
        }
        Ok(total / n_ranks)
    }

    /// What runs the collectives of this communicator, made by the first of them.
    #[inline]
    fn engine(&mut self) -> Result<&mut Engine> {
        if self.engine.is_none() {
            self.engine = Some(Box::new(self.first_engine()?));
        }
        Ok(self.engine.as_mut().expect("just made"))
    }

    /// Allocates the workspace, of which the first communicator takes its part.
    #[cold]
    fn first_engine(&mut self) -> Result<Engine> {
        let region = self.alloc_region(Workspace::len(self.heap().view().shape()), 4096)?;
        let workspace = Workspace::new(region)?;
        let mine = workspace.take(self.members.len() as u64)?;
        clear(self, mine)?;
        self.barrier()?;
        let bases = vec![mine.offset; self.members.len()];
        let engine = Engine::new(self.fabric(), self.members.clone(), bases, self.membership.clone())?;
        // Only the first communicator comes here, and only once: nothing can be there.
        let _ = self.membership.workspace.set(workspace);
        Ok(engine)
    }
}

/// Zeroes the control structures of a region of this rank's, which may have been used for something else.
fn clear(comm: &Communicator, region: Region) -> Result<()> {
    let heap = comm.heap().view();
    let len = RegionLayout::new(comm.members.len() as u64).mail(0);
    heap.span(heap.rank(), region.part(0, len)?)?.fill(0, len, 0)
}

/// `count`, if it is what is `expected`.
#[inline]
fn same(name: &'static str, count: u64, expected: u64) -> Result<u64> {
    if count == expected {
        Ok(count)
    } else {
        Err(Error::InvalidArgument {
            name,
            value: count,
            expected: "as many as the other buffer and the ranks make",
        })
    }
}
