//! The receiving end of a parcel: its elements come out of messages, or are copied from where they are lent.

use super::in_place::{Kept, Replaced};
use super::state::{Course, HEADER_LEN, HERE, Stage, body_at, capacity};
use crate::collective::call::{Output, shifted};
use crate::collective::rendezvous::members::Team;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::{Arrival, Pipes};
use crate::error::Result;
use crate::heap::{HeapOffset, Region};

impl Course {
    /// Takes what has come into `output`.
    ///
    /// # Errors
    /// Those of [`super::Parcel::advance`].
    #[inline]
    pub(super) fn receive<L: Link>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<()> {
        while self.stage != Stage::Done {
            pipes.look_for_signal(self.peer);
            if self.take_card(output, pipes)? {
                return Ok(());
            }
            let Some((number, at)) = pipes.take_signal(self.peer) else { return Ok(()) };
            L::arrived(pipes, self.arrival(number), at)?;
            self.open(output, pipes, number, at)?;
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// Takes what has come over a block, as far as that was given.
    ///
    /// # Errors
    /// Those of [`super::Parcel::advance`].
    #[inline(never)]
    pub(super) fn take<L: Link>(&mut self, replaced: &Replaced<'_>, pipes: &mut Pipes<'_, L>) -> Result<()> {
        while self.stage != Stage::Done {
            pipes.look_for_signal(self.peer);
            if self.take_card_over(replaced, pipes)? {
                return Ok(());
            }
            let Some((number, at)) = self.take_signal_over(replaced, pipes)? else { return Ok(()) };
            let block = &mut *replaced.block().borrow_mut();
            self.open(block, pipes, number, at)?;
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// The next message, if its signal was found and what it is copied over was given.
    fn take_signal_over<L: Link>(
        &self,
        replaced: &Replaced<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<Option<(u64, HeapOffset)>> {
        let message = match replaced.kept() {
            Some(kept) => kept,
            None => match pipes.take_signal(self.peer) {
                Some((number, at)) => self.look_at(pipes, number, at)?,
                None => return Ok(None),
            },
        };
        Ok(replaced.admits(message).then_some((message.number, message.at)))
    }

    /// What has to be given before the message numbered `number` may be opened, which is what was sent and called for.
    fn look_at<L: Link>(&self, pipes: &Pipes<'_, L>, number: u64, at: HeapOffset) -> Result<Kept> {
        let team = pipes.team;
        L::arrived(pipes, self.arrival(number), at)?;
        let needed = match self.place(team, number, at)? {
            HERE => self.len.min(self.moved + capacity(team)),
            _ => self.len,
        };
        Ok(Kept { number, at, needed })
    }

    fn arrival(&self, number: u64) -> Arrival {
        Arrival { operation: self.operation, member: self.peer, number }
    }

    /// Takes what is in the message numbered `number`, at `at` of this member's heap.
    #[inline]
    fn open<L: Link>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &Pipes<'_, L>,
        number: u64,
        at: HeapOffset,
    ) -> Result<()> {
        let team = pipes.team;
        let place = self.place(team, number, at)?;
        if place == HERE {
            let len = (self.len - self.moved).min(capacity(team));
            let source = Region::new(shifted(at, body_at(self.len)), len);
            let heap = team.heap_of(team.me(), source)?;
            output.copy(team.view(), self.moved, heap, source.offset.get(), len)?;
            self.moved += len;
        } else {
            self.take_lent(output, team, HeapOffset::new(place))?;
            L::fetched(pipes, self.arrival(number), output, self.len)?;
        }
        self.stage = if self.moved == self.len { Stage::Done } else { Stage::Begun };
        Ok(())
    }

    /// Where the elements are that come by message `number` at `at`, or [`HERE`].
    #[inline]
    fn place(&self, team: &Team, number: u64, at: HeapOffset) -> Result<u64> {
        if self.stage != Stage::Fresh {
            return Ok(HERE);
        }
        let mine = team.heap_of(team.me(), Region::new(at, HEADER_LEN))?;
        self.check(team, mine.read(at.get())?, number)
    }

    /// Copies all of the parcel from `place` of the heap of its sender.
    #[inline]
    fn take_lent(&mut self, output: &mut Output<'_>, team: &Team, place: HeapOffset) -> Result<()> {
        let heap = team.heap_of(self.peer, Region::new(place, self.len))?;
        output.copy(team.view(), 0, heap, place.get(), self.len)?;
        self.moved = self.len;
        Ok(())
    }
}
