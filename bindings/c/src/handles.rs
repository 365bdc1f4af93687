//! Handles: numbers in the guise of pointers, which are looked up and never followed.
//!
//! A handle holds the index of a slot, the generation of that slot, and the kind of the table. So a
//! handle that was freed, that is of another kind or that was never given is told from a living
//! one, up to 2^24 handles later in the same slot.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;
use crate::types::shmcclResult_t;

/// Bits of a handle above its index: first those of the generation, then those of the kind.
const INDEX_BITS: u32 = 32;
const GENERATION_BITS: u32 = 24;

/// A table of up to `N` objects of one kind.
pub(crate) struct Handles<T, const N: usize> {
    kind: u8,
    name: &'static str,
    slots: [Mutex<Slot<T>>; N],
    free: Mutex<FreeSlots>,
}

/// A slot of a table that waits for its object. It is free again when it is dropped.
pub(crate) struct Reserved<'a, T, const N: usize> {
    table: &'a Handles<T, N>,
    index: usize,
}

struct Slot<T> {
    generation: u32,
    object: Option<Arc<T>>,
}

struct FreeSlots {
    /// Slots that were used and are free again.
    reusable: Vec<usize>,
    /// All slots from this one on were never used.
    fresh: usize,
}

impl<T, const N: usize> Handles<T, N> {
    /// Makes an empty table. Each has a `kind` of its own; errors call its objects by `name`.
    pub(crate) const fn new(kind: u8, name: &'static str) -> Self {
        let slots = [const { Mutex::new(Slot { generation: 0, object: None }) }; N];
        Self { kind, name, slots, free: Mutex::new(FreeSlots { reusable: Vec::new(), fresh: 0 }) }
    }

    /// Keeps a slot free for an object. What cannot be undone is done after that: it gets its
    /// handle for certain.
    pub(crate) fn reserve(&self) -> Result<Reserved<'_, T, N>, Failure> {
        let mut free = lock(&self.free);
        let index = match free.reusable.pop() {
            Some(index) => index,
            None if free.fresh < N => {
                free.fresh += 1;
                free.fresh - 1
            }
            None => return Err(self.exhausted()),
        };
        Ok(Reserved { table: self, index })
    }

    /// Takes `object`, and returns its handle.
    pub(crate) fn insert<H>(&self, object: Arc<T>) -> Result<*mut H, Failure> {
        Ok(self.reserve()?.fill(object))
    }

    /// Returns the object of a handle.
    pub(crate) fn get<H>(&self, handle: *mut H) -> Result<Arc<T>, Failure> {
        let (index, generation) = self.parse(handle).ok_or_else(|| self.unknown(handle))?;
        let slot = lock(&self.slots[index]);
        let object = slot.object.as_ref().filter(|_| slot.generation == generation);
        object.map(Arc::clone).ok_or_else(|| self.unknown(handle))
    }

    /// Returns the object of a handle, which is none from now on.
    pub(crate) fn take<H>(&self, handle: *mut H) -> Result<Arc<T>, Failure> {
        let (index, generation) = self.parse(handle).ok_or_else(|| self.unknown(handle))?;
        let taken = {
            let mut slot = lock(&self.slots[index]);
            if slot.generation != generation {
                return Err(self.unknown(handle));
            }
            let taken = slot.object.take().ok_or_else(|| self.unknown(handle))?;
            slot.generation = (slot.generation + 1) % (1 << GENERATION_BITS);
            taken
        };
        lock(&self.free).reusable.push(index);
        Ok(taken)
    }

    fn handle(&self, index: usize, generation: u32) -> usize {
        let high = (usize::from(self.kind) << GENERATION_BITS) | generation as usize;
        (high << INDEX_BITS) | (index + 1)
    }

    fn parse<H>(&self, handle: *mut H) -> Option<(usize, u32)> {
        let (high, low) = (handle.addr() >> INDEX_BITS, handle.addr() & ((1 << INDEX_BITS) - 1));
        let is_known = high >> GENERATION_BITS == usize::from(self.kind) && (1..=N).contains(&low);
        let generation = u32::try_from(high & ((1 << GENERATION_BITS) - 1)).ok()?;
        is_known.then(|| (low - 1, generation))
    }

    fn unknown<H>(&self, handle: *mut H) -> Failure {
        if handle.is_null() {
            return Failure::null(self.name);
        }
        let text = format!("{handle:p} is no {}: it was freed, or never made", self.name);
        Failure::new(shmcclResult_t::shmcclInvalidArgument, text)
    }

    fn exhausted(&self) -> Failure {
        let text = format!("no handle of a {} left: all {N} are in use; free some", self.name);
        Failure::new(shmcclResult_t::shmcclExhausted, text)
    }
}

impl<T, const N: usize> Reserved<'_, T, N> {
    /// Takes `object`, and returns its handle.
    pub(crate) fn fill<H>(self, object: Arc<T>) -> *mut H {
        let reserved = ManuallyDrop::new(self);
        let (table, index) = (reserved.table, reserved.index);
        let mut slot = lock(&table.slots[index]);
        slot.object = Some(object);
        std::ptr::without_provenance_mut(table.handle(index, slot.generation))
    }
}

impl<T, const N: usize> Drop for Reserved<'_, T, N> {
    fn drop(&mut self) {
        lock(&self.table.free).reusable.push(self.index);
    }
}

/// Locks what no panic leaves half changed.
pub(crate) fn lock<T: ?Sized>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_leads_to_its_object_until_it_is_taken_and_never_after() {
        let table = Handles::<u32, 2>::new(1, "number");
        let first: *mut () = table.insert(Arc::new(7)).unwrap();
        assert_eq!(*table.get(first).unwrap(), 7);
        assert_eq!(*table.take(first).unwrap(), 7);
        assert!(table.get(first).is_err() && table.take(first).is_err());
        let second: *mut () = table.insert(Arc::new(8)).unwrap();
        assert!(table.get(first).is_err(), "the slot is the same, the handle is not");
        assert_eq!(*table.get(second).unwrap(), 8);
    }

    #[test]
    fn no_number_is_taken_for_a_handle_that_was_not_given() {
        let (table, other) = (Handles::<u32, 2>::new(1, "number"), Handles::<u32, 2>::new(2, "digit"));
        let given: *mut () = table.insert(Arc::new(7)).unwrap();
        assert!(other.get(given).is_err());
        for wrong in [0, 1, 2, usize::MAX, given.addr() + 1, given.addr() - 1] {
            let handle: *mut () = std::ptr::without_provenance_mut(wrong);
            assert!(table.get(handle).is_err(), "{wrong:#x}");
        }
    }

    #[test]
    fn a_full_table_says_so_and_has_room_again_when_one_is_freed() {
        let table = Handles::<u32, 2>::new(1, "number");
        let first: *mut () = table.insert(Arc::new(1)).unwrap();
        let _second: *mut () = table.insert(Arc::new(2)).unwrap();
        assert_eq!(table.insert::<()>(Arc::new(3)).unwrap_err().code(), shmcclResult_t::shmcclExhausted);
        table.take(first).unwrap();
        assert!(table.insert::<()>(Arc::new(3)).is_ok());
    }

    #[test]
    fn a_slot_that_was_reserved_is_taken_until_it_is_dropped_or_its_object_is() {
        let table = Handles::<u32, 1>::new(1, "number");
        let reserved = table.reserve().unwrap();
        assert_eq!(table.insert::<()>(Arc::new(1)).unwrap_err().code(), shmcclResult_t::shmcclExhausted);
        drop(reserved);
        let given: *mut () = table.reserve().unwrap().fill(Arc::new(2));
        assert_eq!(*table.get(given).unwrap(), 2);
        assert!(table.reserve().is_err());
        table.take(given).unwrap();
        assert!(table.reserve().is_ok());
    }
}
