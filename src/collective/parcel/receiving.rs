//! The receiving end of a parcel: its elements come out of messages, or are copied from where they are lent.

use super::course::{Course, Stage};
use super::replaced::{Kept, Replaced};
use super::slot::{HEADER_LEN, HERE, body_at, capacity};
use crate::channel::Channel;
use crate::collective::call::{Output, shifted};
use crate::collective::checks;
use crate::collective::pipe::{Arrival, Pipes};
use crate::collective::team::Team;
use crate::error::Result;
use crate::faults::MESSAGE;
use crate::heap::{HeapOffset, HeapPlace, Region};

impl Course {
    /// Takes what has come into `output`.
    ///
    /// # Errors
    /// Those of [`super::Parcel::advance`].
    #[inline]
    pub(super) fn receive<C: Channel>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &mut Pipes<'_, C>,
    ) -> Result<()> {
        while self.stage != Stage::Done {
            pipes.look_for_signal(self.peer);
            if self.take_card(output, pipes)? {
                return Ok(());
            }
            let Some((number, at)) = pipes.take_signal(self.peer) else { return Ok(()) };
            if pipes.team.checksums {
                pipes.check(self.arrival(number), at)?;
                self.open_checked(output, pipes, number, at)?;
            } else {
                self.open(output, pipes.team, number, at)?;
            }
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// Takes what has come over a block, as far as that was given.
    ///
    /// # Errors
    /// Those of [`super::Parcel::advance`].
    #[inline(never)]
    pub(super) fn take<C: Channel>(
        &mut self,
        replaced: &Replaced<'_>,
        pipes: &mut Pipes<'_, C>,
    ) -> Result<()> {
        while self.stage != Stage::Done {
            pipes.look_for_signal(self.peer);
            if self.take_card_over(replaced, pipes)? {
                return Ok(());
            }
            let Some((number, at)) = self.take_signal_over(replaced, pipes)? else { return Ok(()) };
            let block = &mut *replaced.block().borrow_mut();
            if pipes.team.checksums {
                self.open_checked(block, pipes, number, at)?;
            } else {
                self.open(block, pipes.team, number, at)?;
            }
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// The next message, if its signal was found and what it is copied over was given.
    fn take_signal_over<C: Channel>(
        &self,
        replaced: &Replaced<'_>,
        pipes: &mut Pipes<'_, C>,
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
    fn look_at<C: Channel>(&self, pipes: &Pipes<'_, C>, number: u64, at: HeapOffset) -> Result<Kept> {
        let team = pipes.team;
        if team.checksums {
            pipes.check(self.arrival(number), at)?;
        }
        let needed = match self.place(team, number, at)? {
            HERE => self.len.min(self.moved + capacity(team)),
            _ => self.len,
        };
        Ok(Kept { number, at, needed })
    }

    fn arrival(&self, number: u64) -> Arrival {
        Arrival { operation: self.operation, member: self.peer, number }
    }

    /// The same as [`Course::open`], of a message that is what was sent.
    #[cold]
    fn open_checked<C: Channel>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &Pipes<'_, C>,
        number: u64,
        at: HeapOffset,
    ) -> Result<()> {
        if !self.open(output, pipes.team, number, at)? {
            return Ok(());
        }
        let arrival = self.arrival(number);
        checks::check_lent(pipes.team, pipes.checks_of(arrival), output, self.len, arrival)
    }

    /// Takes what is in the message numbered `number`, at `at` of this member's heap; whether that was lent.
    #[inline]
    fn open(&mut self, output: &mut Output<'_>, team: &Team, number: u64, at: HeapOffset) -> Result<bool> {
        let place = self.place(team, number, at)?;
        if place == HERE {
            let len = (self.len - self.moved).min(capacity(team));
            let source = Region::new(shifted(at, body_at(self.len)), len);
            let heap = team.heap_of(team.me(), source)?;
            output.copy(team.view(), self.moved, heap, source.offset.get(), len)?;
            self.moved += len;
        } else {
            self.take_lent(output, team, HeapOffset::new(place))?;
        }
        self.stage = if self.moved == self.len { Stage::Done } else { Stage::Begun };
        Ok(place != HERE)
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
        if let (&mut Output::Heap(offset), true) = (output, team.board.context().is_faulty()) {
            let place = HeapPlace { rank: team.members()[team.me()], offset };
            team.board.context().damage(MESSAGE, place, self.len);
        }
        Ok(())
    }
}
