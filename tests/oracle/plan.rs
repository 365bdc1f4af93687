//! One call on one rank: where its buffers are, and the look at all that may have changed.

use shmccl::collective::Operation;
use shmccl::{Communicator, Error};

use crate::answer::Question;
use crate::call::{Sides, run};
use crate::memory::{Laid, Zone};
use crate::reduction::Mistake;
use crate::table::{Combination, Memory};

/// What a rank does in a call.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    question: &'a Question<'a>,
    sends: bool,
    gets: bool,
    in_place: bool,
}

/// What is wrong with a call.
type Wrong = String;

/// What a rank leaves to chance, as [`Combination::chance`] takes it; each rank has numbers of its own.
#[derive(Clone, Copy)]
enum Chance {
    SendHome = 1,
    RecvHome,
    SendStart,
    RecvStart,
    Unused,
    InPlace,
    Way,
}

impl<'a> Plan<'a> {
    pub(crate) fn of(question: &'a Question<'a>) -> Self {
        let (operation, is_root) = (question.call.operation, question.call.root == question.me);
        let sends = is_root || !matches!(operation, Operation::Broadcast | Operation::Scatter);
        let gets = is_root || !matches!(operation, Operation::Reduce | Operation::Gather);
        let mut plan = Self { question, sends, gets, in_place: false };
        let would = plan.call().memory != Memory::Mixed || plan.flips(Chance::InPlace);
        plan.in_place = plan.call().in_place && would;
        plan
    }

    fn call(&self) -> &'a Combination {
        self.question.call
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
        // In a third of all calls buffers begin at one place on all ranks: only then may their lines be alike.
        let is_alike = self.call().chance(0).is_multiple_of(3);
        let start = if is_alike { self.call().chance(start as u64) } else { self.chance(start) };
        zone.lay(start, self.in_heap(home), self.call().dtype.size(), len)
    }

    /// Executes the call, in buffers of `zones`.
    pub(crate) fn run(&self, comm: &mut Communicator, zones: &mut (Zone, Zone)) -> Result<(), Wrong> {
        let (send_blocks, recv_blocks) = self.question.blocks();
        let block = self.question.block_len();
        let (send_len, recv_len) = (send_blocks * block, recv_blocks * block);
        if self.in_place {
            self.run_in_place(comm, &mut zones.0, send_len, recv_len)
        } else {
            self.run_apart(comm, zones, send_len, recv_len)
        }
    }

    fn run_apart(
        &self,
        comm: &mut Communicator,
        (send_zone, recv_zone): &mut (Zone, Zone),
        send_len: usize,
        recv_len: usize,
    ) -> Result<(), Wrong> {
        // A buffer that is not used may be there or not.
        let len = |used: bool, len| if used || self.flips(Chance::Unused) { len } else { 0 };
        let (send_len, recv_len) = (len(self.sends, send_len), len(self.gets, recv_len));
        let mut sent = self.lay(send_zone, Chance::SendHome, Chance::SendStart, send_len);
        let mut received = self.lay(recv_zone, Chance::RecvHome, Chance::RecvStart, recv_len);
        if self.sends {
            sent.expect(0, &self.question.input(self.question.me));
        }
        sent.put().map_err(told)?;
        received.put().map_err(told)?;
        let sides =
            Sides::Two(sent.side(0, send_len).map_err(told)?, received.side(0, recv_len).map_err(told)?);
        run(comm, self.call(), &self.question.scalar(self.question.me), sides).map_err(told)?;
        if self.gets {
            self.check(&mut received, 0, recv_len)?;
        }
        untouched(&sent, "the input")?;
        untouched(&received, "the output")
    }

    fn run_in_place(
        &self,
        comm: &mut Communicator,
        zone: &mut Zone,
        send_len: usize,
        recv_len: usize,
    ) -> Result<(), Wrong> {
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
        buffer.put().map_err(told)?;
        let is_one = !both || !self.in_heap(Chance::SendHome) || self.flips(Chance::Way);
        let sides = if is_one {
            Sides::One(buffer.side(0, len).map_err(told)?)
        } else {
            let side = |at, len| buffer.heap_side(at, len).map_err(told);
            Sides::Two(side(send_at, send_len)?, side(recv_at, recv_len)?)
        };
        run(comm, self.call(), &self.question.scalar(self.question.me), sides).map_err(told)?;
        if self.gets {
            self.check(&mut buffer, recv_at, recv_len)?;
        }
        untouched(&buffer, "the buffer")
    }

    /// Compares the `len` bytes at `at` of `buffer` with what they have to be, and expects them from now on.
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

fn told(error: Error) -> Wrong {
    error.to_string()
}

fn untouched(buffer: &Laid<'_>, what: &str) -> Result<(), Wrong> {
    match buffer.first_change().map_err(told)? {
        Some(at) => Err(format!("byte {at} of {what} was changed")),
        None => Ok(()),
    }
}
