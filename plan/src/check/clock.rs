//! Vector clocks, shared until they differ.

use std::rc::Rc;

/// How far each actor has come, as one of them knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    parts: Rc<[u32]>,
}

impl Clock {
    /// Makes the clock that knows nothing, of so many actors.
    pub(super) fn zero(actors: usize) -> Self {
        Self { parts: vec![0; actors].into() }
    }

    /// Returns how far an actor is known to have come.
    pub(super) fn of(&self, actor: usize) -> u32 {
        self.parts[actor]
    }

    /// Learns that an actor has come so far.
    pub(super) fn reach(&mut self, actor: usize, position: u32) {
        if self.parts[actor] < position {
            Rc::make_mut(&mut self.parts)[actor] = position;
        }
    }

    /// Learns all that another clock knows.
    pub(super) fn join(&mut self, other: &Self) {
        if self.is_same(other) {
            return;
        }
        let (mut adds, mut lacks) = (false, false);
        for (own, of) in self.parts.iter().zip(&*other.parts) {
            adds |= of > own;
            lacks |= of < own;
        }
        if adds && !lacks {
            self.parts = Rc::clone(&other.parts);
        } else if adds {
            let parts = Rc::make_mut(&mut self.parts);
            parts.iter_mut().zip(&*other.parts).for_each(|(own, of)| *own = (*own).max(*of));
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

    /// Whether both share their memory, so that they need not be compared.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.parts, &other.parts)
    }
}

/// Joins into a clock that may not be there yet.
pub(super) fn join_into(clock: &mut Option<Clock>, other: &Clock) {
    match clock {
        Some(clock) => clock.join(other),
        None => *clock = Some(other.clone()),
    }
}
