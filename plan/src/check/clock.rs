//! Vector clocks, shared until they differ.

use std::cell::Cell;
use std::rc::Rc;

/// How far each actor has come, as one of them knows.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    parts: Rc<ClockParts>,
}

impl Clock {
    /// Makes the clock that knows nothing, of so many actors.
    pub(super) fn zero(actors: usize) -> Self {
        let live = Rc::new(Cell::new(1));
        Self { parts: Rc::new(ClockParts { known: vec![0; actors].into(), live }) }
    }

    /// Returns how many components there are in memory, of this clock and all that came of it.
    pub(super) fn live(&self) -> usize {
        self.parts.live.get().saturating_mul(self.parts.known.len())
    }

    /// Returns how far an actor is known to have come.
    pub(super) fn of(&self, actor: usize) -> u32 {
        self.parts.known[actor]
    }

    /// Learns that an actor has come so far.
    pub(super) fn reach(&mut self, actor: usize, position: u32) {
        if self.of(actor) < position {
            Rc::make_mut(&mut self.parts).known[actor] = position;
        }
    }

    /// Learns all that another clock knows.
    pub(super) fn join(&mut self, other: &Self) {
        if self.is_same(other) {
            return;
        }
        let (mut adds, mut lacks) = (false, false);
        for (own, of) in self.parts.known.iter().zip(&other.parts.known) {
            adds |= of > own;
            lacks |= of < own;
        }
        if adds && !lacks {
            self.parts = Rc::clone(&other.parts);
        } else if adds {
            let own = &mut Rc::make_mut(&mut self.parts).known;
            own.iter_mut().zip(&other.parts.known).for_each(|(own, of)| *own = (*own).max(*of));
        }
    }

    /// Returns what both know together.
    pub(super) fn joined(&self, other: Option<&Self>) -> Self {
        let mut both = self.clone();
        if let Some(other) = other {
            both.join(other);
        }
        both
    }

    /// Returns whether both share their memory, so that they need not be compared.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.parts, &other.parts)
    }
}

impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || self.parts.known == other.parts.known
    }
}

/// The components of a clock, which count how many like them there are.
#[derive(Debug)]
struct ClockParts {
    known: Box<[u32]>,
    live: Rc<Cell<usize>>,
}

impl Clone for ClockParts {
    fn clone(&self) -> Self {
        self.live.set(self.live.get() + 1);
        Self { known: self.known.clone(), live: Rc::clone(&self.live) }
    }
}

impl Drop for ClockParts {
    fn drop(&mut self) {
        self.live.set(self.live.get() - 1);
    }
}

/// Joins into a clock that may not be there yet.
pub(super) fn join_into(clock: &mut Option<Clock>, other: &Clock) {
    match clock {
        Some(clock) => clock.join(other),
        None => *clock = Some(other.clone()),
    }
}
