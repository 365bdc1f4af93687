//! All ranks meet.
//!
//! Each rank has a cell of its own and stores there the number of its latest arrival, the
//! *generation*. It then waits until every other cell has come as far. Nothing is shared between
//! writers, and nothing is reset. A rank that rushes into the next generation does not disturb
//! those still leaving this one.
//!
//! The lowest bit of a cell says what the rank has arrived for ([`BarrierPurpose`]). Ranks that
//! arrive for different things do not pass, none of them. A rank compares the word of each other
//! with its own, bit included, so that costs nothing. A rank that is in the next generation already
//! has found all words of this one like its own.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | B1 arrive | `arrive`: own cell | `poll`, `wait`, `shows`: each cell | all it did before |
//!
//! Sleepers share one [`ParkCell`] and sleep until *all* have arrived. An arrival that completes
//! nothing should not wake them. So `arrive`, once it has found the sleeping bit, wakes only if it
//! sees everyone arrived. Two ranks that arrive at the same moment must not each take the other for
//! missing and leave the waking to it; hence the heavy barrier before that look. Say S sleeps,
//! having missed Y, and Y was the last whose cell S missed:
//! - Y stored after S announced, so Y finds the bit (P1), makes its heavy barrier, and looks.
//! - A rank X that found the bit as well made its own heavy barrier between its store and its look.
//!   One of the two barriers came first, and the rank of the other sees that one's store: the later
//!   looker sees both, and wakes.
//! - A rank X that found no bit stored before S announced, or S was woken meanwhile and looks
//!   again. Its store may still be on its way, but Y's heavy barrier forces it out, so Y sees it.

use std::ops::Deref;

use super::{
    atomic::{AtomicU64, Ordering, Reserved},
    kernel::Kernel,
    park::ParkCell,
    semaphore::reached,
    wait::{Stop, Waiting, Watch, wait_until},
};

/// Where one rank says how often it has arrived, alone in its two cache lines.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | arrived: generation x 2 + purpose | 0..8 | its rank | all ranks |
/// | reserved | 8..128 | nobody | nobody |
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct BarrierCell {
    arrived: AtomicU64,
    reserved: Reserved<30>,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<BarrierCell>() == 128 && align_of::<BarrierCell>() == 128);
    assert!(std::mem::offset_of!(BarrierCell, arrived) == 0);
};

/// What a member comes to a barrier for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierPurpose {
    /// It comes to meet the others.
    Meet,
    /// It comes to hear what the others have put up for it.
    Hear,
}

impl BarrierPurpose {
    /// Returns what a member stores that arrives in `generation`.
    #[inline]
    const fn word(self, generation: u64) -> u64 {
        generation << 1 | self as u64
    }
}

impl BarrierCell {
    /// Returns the cell of a rank that has arrived `generation` times; at 0 the same as all zero
    /// bytes.
    #[must_use]
    pub fn new(generation: u64) -> Self {
        Self { arrived: AtomicU64::new(BarrierPurpose::Meet.word(generation)), ..Self::default() }
    }
}

impl BarrierCell {
    /// Returns how often this member has arrived, modulo 2^63, as it reads it itself.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed) >> 1 // Relaxed: its own store
    }

    /// Returns what this member has arrived for in `generation`; `None` when it has not, or has
    /// passed and arrived in the next.
    ///
    /// # Ordering
    /// When it has, acquires everything the member did before it arrived (B1).
    #[must_use]
    pub fn purpose(&self, generation: u64) -> Option<BarrierPurpose> {
        let arrived = self.shows(generation).then(|| self.arrived.load(Ordering::Relaxed))?; // Relaxed: just acquired
        [BarrierPurpose::Meet, BarrierPurpose::Hear]
            .into_iter()
            .find(|purpose| purpose.word(generation) == arrived)
    }

    /// Returns whether this member has arrived in `generation`, or a later one.
    ///
    /// # Ordering
    /// When true, acquires everything the member did before it arrived (B1).
    #[must_use]
    pub fn shows(&self, generation: u64) -> bool {
        reached(self.arrived.load(Ordering::Acquire), BarrierPurpose::Meet.word(generation)) // B1 arrive
    }

    /// Returns whether this member has arrived in `generation`, or a later one.
    #[must_use]
    pub fn has_reached(&self, generation: u64) -> bool {
        // Relaxed: only compared. A caller that asks after a member that has left acquired its
        // arrival with the life word (L1).
        reached(self.arrived.load(Ordering::Relaxed), BarrierPurpose::Meet.word(generation))
    }
}

/// One member's side of a barrier.
///
/// `S` holds the cells of all members, in the order of their numbers; `P` the cell they sleep on.
#[derive(Debug)]
pub struct Barrier<S, P> {
    cells: S,
    park: P,
    member: usize,
    generation: u64,
    arrived: bool,
    /// What this member has stored, or stored last.
    word: u64,
    /// All members below have arrived in this generation.
    seen: usize,
}

impl<S: Deref<Target = [BarrierCell]>, P: Deref<Target = ParkCell>> Barrier<S, P> {
    /// Takes member `member`'s side of a barrier that all members have passed `generation` times.
    ///
    /// # Panics
    /// When there is no cell for `member`.
    pub fn new(cells: S, park: P, member: usize, generation: u64) -> Self {
        assert!(member < cells.len(), "member {member} of a barrier of {}", cells.len());
        let word = BarrierPurpose::Meet.word(generation);
        Self { cells, park, member, generation, arrived: false, word, seen: 0 }
    }

    /// Returns how often this member has passed.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether this member has arrived and not yet passed: a wait was given up.
    pub fn has_arrived(&self) -> bool {
        self.arrived
    }

    /// Arrives to meet the others, and does not wait. Does nothing when this member has arrived and
    /// not yet passed.
    ///
    /// # Ordering
    /// Publishes everything before it to every member that passes (B1).
    #[inline]
    pub fn arrive<K: Kernel + ?Sized>(&mut self, kernel: &K) {
        self.arrive_to(BarrierPurpose::Meet, kernel);
    }

    /// Arrives for a `purpose`: no member passes until all have arrived for the same.
    #[inline]
    pub fn arrive_to<K: Kernel + ?Sized>(&mut self, purpose: BarrierPurpose, kernel: &K) {
        if self.arrived {
            return;
        }
        self.arrived = true;
        self.seen = 0;
        self.word = purpose.word(self.generation.wrapping_add(1));
        self.cells[self.member].arrived.store(self.word, Ordering::Release); // B1 arrive
        if self.park.has_sleepers(kernel) {
            self.wake_if_last(kernel);
        }
    }

    #[cold]
    fn wake_if_last<K: Kernel + ?Sized>(&mut self, kernel: &K) {
        kernel.heavy_barrier(); // B1 arrive: of two that look, the later one sees both
        if self.all_arrived() {
            self.park.wake_sleepers(kernel);
        }
    }

    /// Returns whether all have arrived; if so, this member passes. False when it has not arrived
    /// itself.
    ///
    /// # Ordering
    /// When true, acquires everything each member did before it arrived (B1).
    #[inline]
    pub fn poll(&mut self) -> bool {
        let passed = self.arrived && self.all_arrived();
        if passed {
            self.pass();
        }
        passed
    }

    /// Waits until all have arrived, this member included.
    ///
    /// # Errors
    /// Why the wait was given up: the member has arrived and not passed, and the wait can be
    /// repeated.
    ///
    /// # Ordering
    /// Acquires everything each member did before it arrived (B1).
    #[inline]
    pub fn wait<K, W>(&mut self, context: &Waiting<'_, K, W>) -> Result<(), Stop>
    where
        K: Kernel + ?Sized,
        W: Watch + ?Sized,
    {
        let (cells, park, word, seen) = (&*self.cells, &*self.park, self.word, &mut self.seen);
        wait_until(context, park, || all_alike(cells, seen, word).then_some(()))?;
        self.pass();
        Ok(())
    }

    /// Arrives and waits.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait). Repeating the call waits on; it does not arrive twice.
    #[inline]
    pub fn barrier<K, W>(&mut self, context: &Waiting<'_, K, W>) -> Result<(), Stop>
    where
        K: Kernel + ?Sized,
        W: Watch + ?Sized,
    {
        self.arrive(context.kernel);
        self.wait(context)
    }

    /// Returns the first member that has not arrived in the generation this one waits for.
    pub fn missing(&self) -> Option<usize> {
        let target = BarrierPurpose::Meet.word(self.generation.wrapping_add(1));
        // Relaxed: a number to report; nothing is read on the strength of it.
        self.cells.iter().position(|cell| !reached(cell.arrived.load(Ordering::Relaxed), target))
    }

    fn all_arrived(&mut self) -> bool {
        all_alike(&self.cells, &mut self.seen, self.word)
    }

    fn pass(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.arrived = false;
    }
}

/// Returns whether all cells show `word`, or a later generation; looks on from the first that did
/// not, and remembers it in `seen`.
#[inline]
fn all_alike(cells: &[BarrierCell], seen: &mut usize, word: u64) -> bool {
    let next = (word | 1).wrapping_add(1);
    while let Some(cell) = cells.get(*seen) {
        let arrived = cell.arrived.load(Ordering::Acquire); // B1 arrive
        if arrived != word && !reached(arrived, next) {
            return false;
        }
        *seen += 1;
    }
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{WaitPolicy, kernel::mock::MockKernel, revoke::RevokeCell};
    use super::*;
    use std::time::Duration;

    fn cells(n: usize, generation: u64) -> Vec<BarrierCell> {
        (0..n).map(|_| BarrierCell::new(generation)).collect()
    }

    #[test]
    fn a_lone_member_passes_at_once() {
        let (kernel, park, cells) = (MockKernel::new(), ParkCell::default(), cells(1, 0));
        let mut barrier = Barrier::new(&cells[..], &park, 0, 0);
        assert!(!barrier.poll());
        barrier.arrive(&kernel);
        assert!(barrier.poll());
        assert!(!barrier.poll());
        assert_eq!(barrier.generation(), 1);
    }

    #[test]
    fn a_barrier_names_the_first_member_that_is_missing() {
        let (kernel, park, cells) = (MockKernel::new(), ParkCell::default(), cells(3, 0));
        let mut members: Vec<_> = (0..3).map(|m| Barrier::new(&cells[..], &park, m, 0)).collect();
        assert_eq!(members[1].missing(), Some(0));
        members[0].arrive(&kernel);
        members[1].arrive(&kernel);
        assert_eq!(members[1].missing(), Some(2));
        members[2].arrive(&kernel);
        assert_eq!(members[1].missing(), None);
    }

    #[test]
    fn a_member_that_gave_up_waiting_has_arrived_once() {
        let (kernel, revoke, park, cells) =
            (MockKernel::new(), RevokeCell::default(), ParkCell::default(), cells(2, 0));
        let context = Waiting::new(&kernel, &revoke, WaitPolicy::OVERSUBSCRIBED, Duration::from_millis(3));
        let mut early = Barrier::new(&cells[..], &park, 0, 0);
        let mut late = Barrier::new(&cells[..], &park, 1, 0);
        assert_eq!(early.barrier(&context), Err(Stop::Timeout));
        assert_eq!(early.barrier(&context), Err(Stop::Timeout));
        assert_eq!(late.barrier(&context), Ok(()));
        assert_eq!(early.barrier(&context), Ok(()));
        assert_eq!(late.barrier(&context), Err(Stop::Timeout), "the second passage needs both again");
    }

    #[test]
    fn members_that_arrive_for_different_things_do_not_pass_and_all_can_tell() {
        for start in [0, u64::MAX >> 1, u64::MAX] {
            let (kernel, park, cells) = (MockKernel::new(), ParkCell::default(), cells(3, start));
            let mut members: Vec<_> = (0..3).map(|m| Barrier::new(&cells[..], &park, m, start)).collect();
            let next = start.wrapping_add(1);
            members[0].arrive(&kernel);
            members[1].arrive_to(BarrierPurpose::Hear, &kernel);
            assert_eq!((cells[0].purpose(next), cells[2].purpose(next)), (Some(BarrierPurpose::Meet), None));
            members[2].arrive(&kernel);
            assert!(members.iter_mut().all(|member| !member.poll()));
            assert_eq!(cells[1].purpose(next), Some(BarrierPurpose::Hear));
            assert_eq!(cells[1].purpose(next.wrapping_add(1)), None);
            assert_eq!(members[0].missing(), None, "nobody is missing");
        }
    }

    #[test]
    fn a_member_that_has_gone_on_to_something_else_leaves_the_others_to_pass() {
        let (kernel, park, cells) = (MockKernel::new(), ParkCell::default(), cells(2, 6));
        let mut quick = Barrier::new(&cells[..], &park, 0, 6);
        let mut slow = Barrier::new(&cells[..], &park, 1, 6);
        for purpose in [BarrierPurpose::Hear, BarrierPurpose::Meet] {
            slow.arrive_to(purpose, &kernel);
            quick.arrive_to(purpose, &kernel);
            assert!(quick.poll());
            let other =
                if purpose == BarrierPurpose::Hear { BarrierPurpose::Meet } else { BarrierPurpose::Hear };
            quick.arrive_to(other, &kernel);
            assert!(slow.poll());
            slow.arrive_to(other, &kernel);
            assert!(slow.poll() && quick.poll());
        }
    }

    #[test]
    fn eight_members_meet_a_thousand_times_and_generations_pass_through_the_end_of_u64() {
        let start = u64::MAX - 500;
        let (kernel, revoke, park, cells) =
            (MockKernel::new(), RevokeCell::default(), ParkCell::default(), cells(8, start));
        let counters: Vec<_> = (0..8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for member in 0..8 {
                let (kernel, revoke, park, cells, counters) = (&kernel, &revoke, &park, &cells, &counters);
                scope.spawn(move || {
                    let context =
                        Waiting::new(kernel, revoke, WaitPolicy::OVERSUBSCRIBED, Duration::from_secs(60));
                    let mut barrier = Barrier::new(&cells[..], park, member, start);
                    for passage in 1..=1000 {
                        counters[member].store(passage, Ordering::Relaxed); // Relaxed: B1 carries it
                        barrier.barrier(&context).unwrap();
                        // Relaxed: B1 carries it.
                        assert!(counters.iter().all(|counter| counter.load(Ordering::Relaxed) >= passage));
                    }
                });
            }
        });
    }
}
