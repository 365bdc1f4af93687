//! One call on one rank: where its buffers are, and the look at all that may have changed.

use std::ops::Range;

use shmccl::collective::Operation;
use shmccl::{Communicator, Error, Stream};

use crate::oracle::answer::Question;
use crate::oracle::call::{Ready, Sides, ready};
use crate::oracle::memory::{Laid, Zone};
use crate::oracle::reduction::Mistake;
use crate::oracle::table::{Combination, Memory};

/// What a rank does in a call.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    question: &'a Question<'a>,
    sends: bool,
    gets: bool,
    in_place: bool,
}

/// A call whose buffers are laid out.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    plan: Plan<'a>,
    buffers: Buffers<'a>,
}

/// What is wrong with a call.
pub(crate) type Wrong = String;

/// What a rank leaves to chance, as [`Combination::chance`] takes it; each rank has numbers of its
/// own.
#[derive(Clone, Copy)]
enum Chance {
    SendHome = 1,
    RecvHome,
    SendStart,
    RecvStart,
    Unused,
    InPlace,
    Way,
    Lasts,
}

/// The buffers of a call.
#[derive(Debug)]
enum Buffers<'a> {
    Apart {
        sent: Laid<'a>,
        received: Laid<'a>,
    },
    /// In place.
    One {
        buffer: Laid<'a>,
        sent: Range<usize>,
        received: Range<usize>,
        /// Whether it is named as two where it lies in the heap.
        may_be_two: bool,
    },
}

impl<'a> Plan<'a> {
    pub(crate) fn of(question: &'a Question<'a>) -> Self {
        let (operation, is_root) = (question.call.operation, question.call.root == question.me);
        let sends = is_root || !matches!(operation, Operation::Broadcast | Operation::Scatter);
        let is_left_out = operation == Operation::ExScan && question.me == 0;
        let gets = is_root || !matches!(operation, Operation::Reduce | Operation::Gather);
        let gets = gets && !is_left_out;
        let mut plan = Self { question, sends, gets, in_place: false };
        let would = plan.call().memory != Memory::Mixed || plan.flips(Chance::InPlace);
        plan.in_place = plan.call().in_place && would;
        plan
    }

    fn call(&self) -> &'a Combination {
        self.question.call
    }

    fn scalar(&self) -> Vec<u8> {
        self.question.scalar(self.question.me)
    }

    fn chance(&self, what: Chance) -> u64 {
        self.call().chance((self.question.me as u64 + 1) << 8 | what as u64)
    }

    fn flips(&self, what: Chance) -> bool {
        self.chance(what).is_multiple_of(2)
    }

    fn in_heap(&self, what: Chance) -> bool {
        match self.call().memory {
            Memory::Heap => true,
            Memory::Ordinary => false,
            Memory::Mixed => self.flips(what),
        }
    }

    fn lay<'z>(&self, zone: &'z mut Zone, home: Chance, start: Chance, len: usize) -> Laid<'z> {
        // In a third of all calls buffers begin at one place on all ranks: only then may their
        // lines be alike.
        let is_alike = self.call().chance(0).is_multiple_of(3);
        let start = if is_alike { self.call().chance(start as u64) } else { self.chance(start) };
        zone.lay(start, self.in_heap(home), self.call().dtype.size(), len)
    }

    /// Lays its buffers out in `zones`, for a call on a stream or not.
    pub(crate) fn lay_out<'z>(self, zones: &'z mut (Zone, Zone), on_stream: bool) -> Task<'z>
    where
        'a: 'z,
    {
        let (send_blocks, recv_blocks) = self.question.blocks();
        let block = self.question.block_len();
        let (send_len, recv_len) = (send_blocks * block, recv_blocks * block);
        let buffers = if self.in_place {
            self.lay_in_place(&mut zones.0, send_len, recv_len)
        } else {
            self.lay_apart(zones, send_len, recv_len)
        };
        let mut task = Task { plan: self, buffers };
        if on_stream {
            task.go_to_stream();
        }
        task
    }

    fn lay_apart<'z>(
        &self,
        (send_zone, recv_zone): &'z mut (Zone, Zone),
        send_len: usize,
        recv_len: usize,
    ) -> Buffers<'z> {
        // A buffer that is not used may be there or not.
        let len = |used: bool, len| if used || self.flips(Chance::Unused) { len } else { 0 };
        let (send_len, recv_len) = (len(self.sends, send_len), len(self.gets, recv_len));
        let mut sent = self.lay(send_zone, Chance::SendHome, Chance::SendStart, send_len);
        let received = self.lay(recv_zone, Chance::RecvHome, Chance::RecvStart, recv_len);
        if self.sends {
            sent.expect(0, &self.question.input(self.question.me));
        }
        Buffers::Apart { sent, received }
    }

    fn lay_in_place<'z>(&self, zone: &'z mut Zone, send_len: usize, recv_len: usize) -> Buffers<'z> {
        // The shorter side is this rank's block of the longer one, where it has both.
        let both = self.sends && self.gets;
        let own = |len: usize, other: usize| if both && len < other { self.question.me * len } else { 0 };
        let (send_at, recv_at) = (own(send_len, recv_len), own(recv_len, send_len));
        let len = match (self.sends, self.gets) {
            (true, false) => send_len,
            (false, _) => recv_len,
            _ => send_len.max(recv_len),
        };
        let mut buffer = self.lay(zone, Chance::SendHome, Chance::SendStart, len);
        if self.sends {
            buffer.expect(send_at, &self.question.input(self.question.me));
        }
        let (sent, received) = (send_at..send_at + send_len, recv_at..recv_at + recv_len);
        Buffers::One { buffer, sent, received, may_be_two: both && !self.flips(Chance::Way) }
    }

    /// Compares the `len` bytes at `at` of `buffer` with what they have to be, and expects them
    /// from now on.
    fn check(&self, buffer: &mut Laid<'_>, at: usize, len: usize) -> Result<(), Wrong> {
        let contents = buffer.contents().map_err(told)?;
        let result = &contents[at..at + len];
        buffer.expect(at, result);
        match self.question.first_mistake(result) {
            Some(Mistake { index, got, right }) => {
                Err(format!("element {index} is {got:02x?} and not {right:02x?}"))
            }
            None => Ok(()),
        }
    }
}

impl<'a> Task<'a> {
    pub(crate) fn call(&self) -> &Combination {
        self.plan.call()
    }

    /// Has its buffers be where a stream takes them.
    fn go_to_stream(&mut self) {
        match &mut self.buffers {
            Buffers::Apart { sent, received } => {
                sent.for_stream(self.plan.chance(Chance::Lasts).is_multiple_of(3));
                received.for_stream(false);
            }
            Buffers::One { buffer, .. } => buffer.for_stream(false),
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Laid<'a>> {
        match &mut self.buffers {
            Buffers::Apart { sent, received } => [Some(sent), Some(received)],
            Buffers::One { buffer, .. } => [Some(buffer), None],
        }
        .into_iter()
        .flatten()
    }

    /// Puts into its buffers what is to be there before the call.
    pub(crate) fn put(&mut self) -> shmccl::Result<()> {
        self.all().try_for_each(|buffer| buffer.put())
    }

    /// Like [`Task::put`], but for a call on `stream`.
    pub(crate) fn put_by(&mut self, comm: &Communicator, stream: &Stream) -> shmccl::Result<()> {
        self.all().try_for_each(|buffer| buffer.put_by(comm, stream))
    }

    /// Has `stream` copy to ordinary memory what is not looked at in the heap, behind the call.
    pub(crate) fn fetch_by(&mut self, comm: &Communicator, stream: &Stream) -> shmccl::Result<()> {
        self.all().try_for_each(|buffer| buffer.fetch_by(comm, stream))
    }

    /// Its call, for whatever takes it.
    pub(crate) fn ready(&mut self, comm: &Communicator) -> shmccl::Result<Ready<'_>> {
        let (call, scalar) = (*self.plan.call(), self.plan.scalar());
        ready(comm, &call, &scalar, self.buffers.sides()?)
    }

    /// Like [`Task::ready`], but for a stream.
    pub(crate) fn ready_for_stream(&mut self, comm: &Communicator) -> shmccl::Result<Ready<'static>> {
        let (call, scalar) = (*self.plan.call(), self.plan.scalar());
        ready(comm, &call, &scalar, self.buffers.sides()?.lasting())
    }

    /// Looks at all that may have changed, when the call is done.
    pub(crate) fn check(&mut self) -> Result<(), Wrong> {
        let Self { plan, buffers } = self;
        match buffers {
            Buffers::Apart { sent, received } => {
                if plan.gets {
                    plan.check(received, 0, received.len())?;
                }
                untouched(sent, "the input")?;
                untouched(received, "the output")
            }
            Buffers::One { buffer, received, .. } => {
                if plan.gets {
                    plan.check(buffer, received.start, received.len())?;
                }
                untouched(buffer, "the buffer")
            }
        }
    }
}

impl Buffers<'_> {
    /// All of them, for the call.
    fn sides(&mut self) -> shmccl::Result<Sides<'_>> {
        Ok(match self {
            Self::Apart { sent, received } => {
                let (send_len, recv_len) = (sent.len(), received.len());
                Sides::Two(sent.side(0, send_len)?, received.side(0, recv_len)?)
            }
            Self::One { buffer, sent, received, may_be_two: true } if buffer.is_in_heap() => {
                let side = |range: &Range<usize>| buffer.heap_side(range.start, range.len());
                Sides::Two(side(sent)?, side(received)?)
            }
            Self::One { buffer, .. } => {
                let len = buffer.len();
                Sides::One(buffer.side(0, len)?)
            }
        })
    }
}

pub(crate) fn told(error: Error) -> Wrong {
    error.to_string()
}

fn untouched(buffer: &Laid<'_>, what: &str) -> Result<(), Wrong> {
    match buffer.first_change().map_err(told)? {
        Some(at) => Err(format!("byte {at} of {what} was changed")),
        None => Ok(()),
    }
}
