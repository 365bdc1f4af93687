//! How the survivors of an epoch agree on who they are, and on whether all of them have come over
//! into the next one.
//!
//! Going on is tried in *rounds*, one [`RoundCell`] each; a round that a death spoils is followed
//! by another one.
//!
//! ```text
//! come ──► all candidates came, or are gone: chosen = came and not gone    (first verdict stands)
//! offer ─► all chosen offered: each maps what the others have made
//! ready ─► all chosen are ready: together                                  (first verdict stands)
//!          at either step one of them is gone, whatever it did before: repeated, among the chosen
//! ```
//!
//! Every poll may decide, so no rank is needed in particular. Two ranks that see different deaths
//! may want different verdicts. A compare-exchange lets one of the verdicts stand, and all members
//! read that one. So all that go on know the same survivors, and either all of them are in the new
//! epoch or none is. A rank that dies after `together` is lost to the new epoch.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | G1 roll | `RollWords::sign` | `RollWords::read` | all the rank did before, offers included |
//! | G2 verdict | `VerdictWord::settle` | `VerdictWord::read` | all that the settling rank knew |
//!
//! G2 lets a rank that reads `together` use what the others have prepared, although it has not read
//! that they are ready.
//!
//! Ranks that meet to begin a job settle by the last two steps of a round alone whether they begin
//! (`poll_start`). There is no other round then: a rank that is gone is the reason why the meeting
//! has failed.

use std::array::from_fn;

use super::{
    atomic::{AtomicU64, Ordering, Reserved},
    kernel::Kernel,
    park::ParkCell,
};
#[cfg(not(loom))]
use crate::rank::MAX_RANKS;
use crate::rank::{Rank, RankSet};

/// What came of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundOutcome {
    /// All that were chosen are in the new epoch.
    Together,
    /// One of them is gone, or took too long: there has to be another round. A meeting was called
    /// off.
    Repeated,
    /// This one could not do its part, for want of memory or the like.
    Failed(Rank),
    /// This one is gone, and there is no other round: they do not begin.
    Lost(Rank),
    /// The ranks that are waited for besides will not come: going on in this way is in vain.
    Vain,
}

const TOGETHER: u64 = 1;
const REPEATED: u64 = 2;
const FAILED: u64 = 3;
const LOST: u64 = 1 << 16;
const VAIN: u64 = 1 << 32;

impl RoundOutcome {
    fn to_word(self) -> u64 {
        match self {
            Self::Together => TOGETHER,
            Self::Repeated => REPEATED,
            Self::Failed(rank) => FAILED + u64::from(rank.get()),
            Self::Lost(rank) => LOST + u64::from(rank.get()),
            Self::Vain => VAIN,
        }
    }

    /// Reads any word: one that no rank wrote is a round to be repeated.
    fn from_word(word: u64) -> Self {
        let above = |base| {
            let rank = word.checked_sub(base).and_then(|rank| u32::try_from(rank).ok());
            rank.and_then(|rank| Rank::new(rank, u32::MAX).ok())
        };
        match (word, above(FAILED), above(LOST)) {
            (TOGETHER, ..) => Self::Together,
            (VAIN, ..) => Self::Vain,
            (_, Some(rank), _) => Self::Failed(rank),
            (.., Some(rank)) => Self::Lost(rank),
            _ => Self::Repeated,
        }
    }
}

/// How many ranks sign in one word.
#[cfg(not(loom))]
const ROLL_RANKS: u32 = 64;
/// How many ranks sign in one word, in a model: one of three is in another word than the others.
#[cfg(loom)]
const ROLL_RANKS: u32 = 2;

/// How many ranks one word decides about, below [`DECIDED`].
#[cfg(not(loom))]
const CHOICE_RANKS: u32 = 32;
/// How many ranks one word decides about, in a model.
#[cfg(loom)]
const CHOICE_RANKS: u32 = 2;

/// For how many ranks there is room in a model.
#[cfg(loom)]
const MAX_RANKS: u32 = 4;

const ROLL_WORDS: usize = (MAX_RANKS / ROLL_RANKS) as usize;
const CHOICE_WORDS: usize = (MAX_RANKS / CHOICE_RANKS) as usize;

/// Says of a part of a choice that it is decided, also if nobody is in it.
const DECIDED: u64 = 1 << 63;

/// One bit for each rank, which it sets itself. No bit is ever cleared.
///
/// To read takes one load for each word. A bit that was found set stays so, and thus all bits that
/// were found are set when the last word has been read: a set that is complete was complete then.
/// Of a bit that was not found nothing is known.
#[repr(transparent)]
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
struct RollWords([AtomicU64; ROLL_WORDS]);

impl RollWords {
    fn sign(&self, rank: Rank) {
        let (word, bit) = (rank.get() / ROLL_RANKS, rank.get() % ROLL_RANKS);
        self.0[word as usize].fetch_or(1 << bit, Ordering::Release); // G1 roll
    }

    fn read(&self) -> RankSet {
        let words = from_fn(|word| self.0[word].load(Ordering::Acquire)); // G1 roll
        RankSet::from_parts::<ROLL_WORDS>(words, ROLL_RANKS)
    }
}

/// The ranks that go on, decided part by part: the first verdict on each part stands.
///
/// Whoever decides has found a verdict on all ranks, and settles each part of it. Two of them may
/// have seen different deaths, and the choice be one's here and the other's there. Each rank of it
/// has come, and was not gone for the one whose verdict on it stands: what holds of one verdict
/// holds of a mixture. A rank that dies in the middle leaves the rest to the others.
#[repr(transparent)]
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
struct ChoiceWords([VerdictWord; CHOICE_WORDS]);

impl ChoiceWords {
    /// Decides for `choice` where nothing has been decided. Returns what stands.
    fn settle(&self, choice: RankSet) -> RankSet {
        let part = |index| choice.part(index, CHOICE_RANKS) | DECIDED;
        let stands = from_fn(|index| self.0[index].settle(part(index)));
        RankSet::from_parts::<CHOICE_WORDS>(stands, CHOICE_RANKS)
    }

    fn read(&self) -> Option<RankSet> {
        let mut words = [0; CHOICE_WORDS];
        for (word, cell) in words.iter_mut().zip(&self.0) {
            *word = cell.read()?;
        }
        Some(RankSet::from_parts(words, CHOICE_RANKS))
    }
}

/// A word that is decided once; 0 until then.
#[repr(transparent)]
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
struct VerdictWord(AtomicU64);

impl VerdictWord {
    /// Decides for `word`, unless something else has been decided. Returns what stands.
    fn settle(&self, word: u64) -> u64 {
        let (ok, failed) = (
            Ordering::Release, // G2 verdict
            Ordering::Relaxed, // what stands is read below
        );
        let _ = self.0.compare_exchange(0, word, ok, failed);
        self.read().unwrap_or(word)
    }

    fn read(&self) -> Option<u64> {
        let word = self.0.load(Ordering::Acquire); // G2 verdict
        (word != 0).then_some(word)
    }
}

/// One round.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | came | 0..32 | each candidate its bit | all |
/// | chosen | 32..96 | the first who decides, of each word | all |
/// | offered | 96..128 | each that was chosen its bit | all |
/// | ready | 128..160 | each that was chosen its bit | all |
/// | outcome | 160..168 | the first who decides | all |
/// | reserved | 168..256 | nobody | nobody |
#[repr(C, align(128))]
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct RoundCell {
    came: RollWords,
    chosen: ChoiceWords,
    offered: RollWords,
    ready: RollWords,
    outcome: VerdictWord,
    reserved: Reserved<22>,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<RoundCell>() == 256 && align_of::<RoundCell>() == 128);
    assert!(offset_of!(RoundCell, chosen) == 32 && offset_of!(RoundCell, offered) == 96);
    assert!(offset_of!(RoundCell, ready) == 128 && offset_of!(RoundCell, outcome) == 160);
};

impl RoundCell {
    /// Returns which of `candidates` go on by this round, when that is decided.
    pub(crate) fn chosen(&self, candidates: RankSet) -> Option<RankSet> {
        self.chosen.read().map(|chosen| candidates.and(chosen))
    }

    /// Returns what came of the round, when that is decided.
    pub(crate) fn outcome(&self) -> Option<RoundOutcome> {
        self.outcome.read().map(RoundOutcome::from_word)
    }
}

/// One member's side of a round.
#[derive(Debug)]
pub(crate) struct Round<'a, K: ?Sized, G> {
    /// The shared side.
    pub(crate) cell: &'a RoundCell,
    /// This member.
    pub(crate) rank: Rank,
    /// The operating system, and where waiters for a step sleep.
    pub(crate) kernel: &'a K,
    pub(crate) park: &'a ParkCell,
    /// Whether a rank is known to have left, or to be lost, for good.
    pub(crate) gone: G,
}

impl<K: Kernel + ?Sized, G: Fn(Rank) -> bool> Round<'_, K, G> {
    /// Says that this member wants to go on. To say it again changes nothing.
    ///
    /// # Ordering
    /// Publishes everything before it (G1).
    pub(crate) fn come(&self) {
        self.sign(&self.cell.came);
    }

    /// Returns the ranks that go on, once all `candidates` have come or are gone; decides it then.
    ///
    /// # Ordering
    /// Acquires everything that those did before they came (G1, G2).
    pub(crate) fn choose(&self, candidates: RankSet) -> Option<RankSet> {
        if let Some(chosen) = self.cell.chosen(candidates) {
            return Some(chosen);
        }
        // The lives are read after the roll: a rank that one of the comers had given up before is
        // not chosen.
        let came = self.cell.came.read();
        let gone = self.gone_of(candidates);
        if !candidates.without(came).without(gone).is_empty() {
            return None;
        }
        let stands = self.cell.chosen.settle(candidates.without(gone));
        self.park.wake(self.kernel);
        Some(candidates.and(stands))
    }

    /// Returns one of `candidates` that has neither come nor gone.
    pub(crate) fn missing(&self, candidates: RankSet) -> Option<Rank> {
        candidates.without(self.cell.came.read()).iter().find(|rank| !(self.gone)(*rank))
    }

    /// Says that the others can have what this member has made for the new epoch.
    ///
    /// # Ordering
    /// Publishes everything before it (G1).
    pub(crate) fn offer(&self) {
        self.sign(&self.cell.offered);
    }

    /// Returns `None` inside once all `chosen` have offered; otherwise, if the round is over, its
    /// outcome.
    ///
    /// # Ordering
    /// Acquires everything that those did before they offered (G1).
    pub(crate) fn poll_offers(&self, chosen: RankSet) -> Option<Option<RoundOutcome>> {
        let over = self.cell.outcome();
        if over.is_some() || lacks_none(&self.cell.offered, chosen) {
            return Some(over);
        }
        self.repeat_if_one_is_gone(chosen).map(Some)
    }

    /// Says that this member is in the new epoch.
    ///
    /// # Ordering
    /// Publishes everything before it (G1).
    pub(crate) fn ready(&self) {
        self.sign(&self.cell.ready);
    }

    /// Returns what came of the round, once that is decided; decides it when all `chosen` are
    /// ready, or one of them is gone.
    ///
    /// # Ordering
    /// Acquires, when it is `Together`, everything that those did before they were ready (G1, G2).
    pub(crate) fn poll_outcome(&self, chosen: RankSet) -> Option<RoundOutcome> {
        self.cell.outcome().or_else(|| {
            let all_ready = lacks_none(&self.cell.ready, chosen);
            // The lives are read after the roll: a rank that one of the ready ones had given up
            // before does not go on.
            self.repeat_if_one_is_gone(chosen)
                .or_else(|| all_ready.then(|| self.conclude(RoundOutcome::Together)))
        })
    }

    /// Returns the outcome of the round, as [`Round::poll_outcome`] finds it, where there is no
    /// other round: a rank that is gone is named, the same one for all.
    ///
    /// # Ordering
    /// That of [`Round::poll_outcome`].
    pub(crate) fn poll_start(&self, all: RankSet) -> Option<RoundOutcome> {
        self.cell.outcome().or_else(|| {
            let all_ready = lacks_none(&self.cell.ready, all);
            let gone = self.gone_of(all).iter().next();
            match gone {
                Some(rank) => Some(self.conclude(RoundOutcome::Lost(rank))),
                None => all_ready.then(|| self.conclude(RoundOutcome::Together)),
            }
        })
    }

    /// Returns one of `all` that is not ready.
    pub(crate) fn unready(&self, all: RankSet) -> Option<Rank> {
        all.without(self.cell.ready.read()).iter().next()
    }

    /// Ends the round with `outcome`, unless it has ended. Returns the outcome that stands.
    pub(crate) fn conclude(&self, outcome: RoundOutcome) -> RoundOutcome {
        let stands = self.cell.outcome.settle(outcome.to_word());
        self.park.wake(self.kernel);
        RoundOutcome::from_word(stands)
    }

    /// Returns one of `chosen` that has not done its part of the round.
    pub(crate) fn first_incomplete(&self, chosen: RankSet) -> Option<Rank> {
        let missing = |roll: &RollWords| chosen.without(roll.read()).iter().next();
        missing(&self.cell.offered).or_else(|| missing(&self.cell.ready))
    }

    /// Ends the round when one of `chosen` is gone.
    pub(crate) fn repeat_if_one_is_gone(&self, chosen: RankSet) -> Option<RoundOutcome> {
        (!self.gone_of(chosen).is_empty()).then(|| self.conclude(RoundOutcome::Repeated))
    }

    fn gone_of(&self, ranks: RankSet) -> RankSet {
        ranks.iter().filter(|rank| (self.gone)(*rank)).collect()
    }

    fn sign(&self, roll: &RollWords) {
        roll.sign(self.rank);
        self.park.wake(self.kernel);
    }
}

fn lacks_none(roll: &RollWords, chosen: RankSet) -> bool {
    chosen.without(roll.read()).is_empty()
}

/// How many numbers a member offers: where it hosts a meeting, if it does.
pub(crate) const OFFER_WORDS: usize = 4;

/// What one member offers to the others of its round.
///
/// The words are `Relaxed`: G1 orders them. A member writes them again in the next round only, when
/// this one is over. A reader that is late may read a mixture; the seal tells.
#[repr(C, align(128))]
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct OfferCell {
    words: [AtomicU64; OFFER_WORDS],
    reserved: Reserved<24>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<OfferCell>() == 128 && align_of::<OfferCell>() == 128);

impl OfferCell {
    pub(crate) fn write(&self, words: [u64; OFFER_WORDS]) {
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(word, Ordering::Relaxed); // published by G1
        }
    }

    pub(crate) fn read(&self) -> [u64; OFFER_WORDS] {
        std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed)) // ordered by G1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::kernel::mock::MockKernel;
    use super::*;

    fn round<'a>(
        cell: &'a RoundCell,
        park: &'a ParkCell,
        kernel: &'a MockKernel,
        rank: u32,
        gone: &'a RankSet,
    ) -> Round<'a, MockKernel, impl Fn(Rank) -> bool> {
        Round { cell, rank: Rank::known(rank), kernel, park, gone: |rank| gone.contains(rank) }
    }

    fn ranks(ranks: &[u32]) -> RankSet {
        ranks.iter().copied().map(Rank::known).collect()
    }

    #[test]
    fn those_who_came_and_live_are_chosen_once_nobody_is_missing() {
        let (cell, park, kernel) = (RoundCell::default(), ParkCell::default(), MockKernel::new());
        let (nobody, one) = (RankSet::default(), ranks(&[1]));
        let before = round(&cell, &park, &kernel, 0, &nobody);
        before.come();
        round(&cell, &park, &kernel, 2, &nobody).come();
        assert_eq!(
            (before.choose(RankSet::all(3)), before.missing(RankSet::all(3))),
            (None, Some(Rank::known(1)))
        );
        let after = round(&cell, &park, &kernel, 2, &one);
        assert_eq!(after.missing(RankSet::all(3)), None);
        assert_eq!(after.choose(RankSet::all(3)), Some(ranks(&[0, 2])));
        // A rank that comes when it is decided finds that it is.
        let late = round(&cell, &park, &kernel, 1, &nobody);
        late.come();
        assert_eq!(late.choose(RankSet::all(3)), Some(ranks(&[0, 2])));
    }

    #[test]
    fn a_round_ends_when_one_who_was_chosen_is_gone_before_its_part_is_done() {
        let (cell, park, kernel) = (RoundCell::default(), ParkCell::default(), MockKernel::new());
        let (nobody, one, both) = (RankSet::default(), ranks(&[1]), ranks(&[0, 1]));
        let here = round(&cell, &park, &kernel, 0, &nobody);
        here.offer();
        assert_eq!((here.poll_offers(both), here.first_incomplete(both)), (None, Some(Rank::known(1))));
        let peer = round(&cell, &park, &kernel, 1, &nobody);
        peer.offer();
        assert_eq!(here.poll_offers(both), Some(None));
        here.ready();
        assert_eq!((here.poll_outcome(both), here.first_incomplete(both)), (None, Some(Rank::known(1))));
        // It has done its part, and is gone all the same.
        peer.ready();
        let left_alone = round(&cell, &park, &kernel, 0, &one);
        assert_eq!(left_alone.poll_outcome(both), Some(RoundOutcome::Repeated));
        assert_eq!(left_alone.poll_offers(both), Some(Some(RoundOutcome::Repeated)), "the round is over");
    }

    #[test]
    fn the_first_outcome_stands() {
        let (cell, park, kernel) = (RoundCell::default(), ParkCell::default(), MockKernel::new());
        let nobody = RankSet::default();
        let here = round(&cell, &park, &kernel, 0, &nobody);
        let failed = RoundOutcome::Failed(Rank::known(255));
        assert_eq!([here.conclude(failed), here.conclude(RoundOutcome::Together)], [failed; 2]);
        assert_eq!(cell.outcome(), Some(failed));
    }

    #[test]
    fn every_word_is_some_outcome() {
        let of_ranks = [0, 255].map(Rank::known);
        let of_ranks =
            of_ranks.into_iter().flat_map(|rank| [RoundOutcome::Failed(rank), RoundOutcome::Lost(rank)]);
        for outcome in of_ranks.chain([RoundOutcome::Together, RoundOutcome::Repeated, RoundOutcome::Vain]) {
            assert_eq!(RoundOutcome::from_word(outcome.to_word()), outcome);
        }
        for forged in [FAILED + 256, LOST + 256, u64::MAX, 1 << 32 | FAILED] {
            assert_eq!(RoundOutcome::from_word(forged), RoundOutcome::Repeated);
        }
    }
}
