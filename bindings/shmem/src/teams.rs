//! Teams: some of the ranks, with numbers of their own. Each is made from another one.
//!
//! A team has a slot of [control words](crate::control) on each of its ranks, the same on all. The
//! members of the parent find one that is free on all of them.

use std::ffi::{c_int, c_long};
use std::sync::Mutex;

use crate::contexts::Ctx;
use crate::control::{ROUNDS, SLOTS, WORLD_SLOT};
use crate::sync::{StridedRanks, TeamGroup};
use crate::world::{self, lock, signed, world};

/// The slot of those that share memory, which are all.
const SHARED_SLOT: usize = 1;

/// Words of the map of slots.
const MAP_WORDS: usize = SLOTS / 64;

/// The word of a slot in which a member says whether it has taken the slot that was found.
const TAKEN_WORD: usize = ROUNDS + MAP_WORDS;

const _: () = assert!(TAKEN_WORD < 32, "a slot has as many words");

/// `SHMEM_TEAM_NUM_CONTEXTS`.
const NUM_CONTEXTS: c_long = 1;

/// `shmem_team_config_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TeamConfig {
    num_contexts: c_int,
}

/// `shmem_team_t`: none, one of the two that always exist, or the address of a team.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Team(usize);

/// A team that was made.
pub(crate) struct TeamState {
    ranks: StridedRanks,
    me: usize,
    slot: usize,
    config: TeamConfig,
    /// Its contexts, which end with it.
    pub(crate) contexts: Mutex<Vec<Ctx>>,
}

/// Which slots are free: bits that are set.
static FREE: Mutex<[u64; MAP_WORDS]> = Mutex::new(ALL_FREE);

const ALL_FREE: [u64; MAP_WORDS] = {
    let mut free = [u64::MAX; MAP_WORDS];
    free[0] = !(1 << WORLD_SLOT | 1 << SHARED_SLOT);
    free
};

impl Team {
    pub(crate) const INVALID: Self = Self(0);
    pub(crate) const WORLD: Self = Self(1);
    const SHARED: Self = Self(2);

    /// Returns a team that was made.
    pub(crate) fn made(&self) -> Option<&TeamState> {
        let is_made = self.0 > Self::SHARED.0;
        // SAFETY: it is the address of a team that was not destroyed, or the program is wrong.
        is_made.then(|| unsafe { &*std::ptr::with_exposed_provenance::<TeamState>(self.0) })
    }

    /// Returns what its members need to come together.
    pub(crate) fn group(self) -> Option<TeamGroup> {
        let world = world();
        let all = StridedRanks { start: 0, stride: 1, size: world.n };
        match (self, self.made()) {
            (Self::INVALID, _) => None,
            (Self::WORLD, _) => {
                Some(TeamGroup { ranks: all, me: world.me, words: world.control.slot(WORLD_SLOT) })
            }
            (Self::SHARED, _) => {
                Some(TeamGroup { ranks: all, me: world.me, words: world.control.slot(SHARED_SLOT) })
            }
            (_, made) => made.map(|team| TeamGroup {
                ranks: team.ranks,
                me: team.me,
                words: world.control.slot(team.slot),
            }),
        }
    }

    fn config(self) -> TeamConfig {
        self.made().map_or(TeamConfig { num_contexts: 0 }, |team| team.config)
    }
}

/// Returns when all members have called it.
pub(crate) fn sync(team: Team) -> c_int {
    team.group().map_or(-1, |group| {
        group.sync("shmem_team_sync");
        0
    })
}

pub(crate) fn my_pe(team: Team) -> c_int {
    team.group().map_or(-1, |group| signed(group.me))
}

pub(crate) fn n_pes(team: Team) -> c_int {
    team.group().map_or(-1, |group| signed(group.ranks.size))
}

/// # Safety
/// `config` can be written, if the mask has a bit.
pub(crate) unsafe fn get_config(team: Team, mask: c_long, config: *mut TeamConfig) -> c_int {
    if team == Team::INVALID {
        return -1;
    }
    if mask & NUM_CONTEXTS != 0 {
        // SAFETY: the caller answers for it.
        unsafe { config.write(team.config()) };
    }
    0
}

/// Returns the rank in the job of a member, if there is such a member.
pub(crate) fn rank_in(ranks: StridedRanks, pe: c_int) -> Option<usize> {
    usize::try_from(pe).ok().filter(|pe| *pe < ranks.size).map(|pe| ranks.member(pe))
}

pub(crate) fn translate_pe(team: Team, pe: c_int, other: Team) -> c_int {
    let (Some(group), Some(other)) = (team.group(), other.group()) else { return -1 };
    let rank = rank_in(group.ranks, pe);
    rank.and_then(|rank| other.ranks.index_of(rank)).map_or(-1, signed)
}

/// Returns the address of an object of a member, as `shmem_ptr` does.
pub(crate) fn ptr<T>(team: Team, address: *const T, pe: c_int) -> *mut T {
    let rank = team.group().and_then(|group| rank_in(group.ranks, pe));
    rank.map_or(std::ptr::null_mut(), |rank| world::ptr(address, signed(rank)))
}

/// Returns the ranks in the job of so many members of a team, if all exist.
fn chosen(parent: StridedRanks, start: c_int, stride: c_int, size: c_int) -> Option<StridedRanks> {
    let count = usize::try_from(size).ok().filter(|size| *size > 0)?;
    let last = i64::from(start) + (i64::from(size) - 1) * i64::from(stride);
    let exists = |index: i64| usize::try_from(index).is_ok_and(|index| index < parent.size);
    let is_whole = exists(start.into()) && exists(last) && (stride != 0 || size == 1);
    is_whole.then(|| {
        let (start, stride) = (start as isize, stride as isize);
        StridedRanks {
            start: parent.start + start * parent.stride,
            stride: stride * parent.stride,
            size: count,
        }
    })
}

/// # Safety
/// `config` can be read if the mask has a bit, and `new` can be written.
pub(crate) unsafe fn split_strided(
    parent: Team,
    start: c_int,
    stride: c_int,
    size: c_int,
    config: *const TeamConfig,
    mask: c_long,
    new: *mut Team,
) -> c_int {
    let made = parent.group().and_then(|group| {
        let ranks = chosen(group.ranks, start, stride, size)?;
        let [slot] = take_slots(&group)?;
        // SAFETY: the caller answers for it.
        Some(make(&group, ranks, slot, unsafe { config_of(config, mask) }))
    });
    // SAFETY: as above.
    unsafe { new.write(made.unwrap_or(Team::INVALID)) };
    if made.is_some() { 0 } else { -1 }
}

/// # Safety
/// As for [`split_strided`].
pub(crate) unsafe fn split_2d(
    parent: Team,
    xrange: c_int,
    xaxis_config: *const TeamConfig,
    xaxis_mask: c_long,
    xaxis_team: *mut Team,
    yaxis_config: *const TeamConfig,
    yaxis_mask: c_long,
    yaxis_team: *mut Team,
) -> c_int {
    let axes = parent.group().filter(|_| xrange > 0).and_then(|group| {
        let [row, column] = axes_of(&group, xrange)?;
        // Both or none, on all members alike.
        let [of_row, of_column] = take_slots(&group)?;
        // SAFETY: the caller answers for it.
        let row = make(&group, row, of_row, unsafe { config_of(xaxis_config, xaxis_mask) });
        // SAFETY: as above.
        let column = make(&group, column, of_column, unsafe { config_of(yaxis_config, yaxis_mask) });
        Some([row, column])
    });
    let [row, column] = axes.unwrap_or([Team::INVALID; 2]);
    // SAFETY: as above.
    unsafe { xaxis_team.write(row) };
    // SAFETY: as above.
    unsafe { yaxis_team.write(column) };
    if axes.is_some() { 0 } else { -1 }
}

/// Returns the row and the column of this rank in a team that is cut into rows of so many members.
fn axes_of(parent: &TeamGroup, range: c_int) -> Option<[StridedRanks; 2]> {
    let (me, size) = (signed(parent.me), signed(parent.ranks.size));
    let range = range.min(size);
    let (x, y) = (me % range, me / range);
    let row = chosen(parent.ranks, y * range, 1, range.min(size - y * range))?;
    let column = chosen(parent.ranks, x, range, (size - x + range - 1) / range)?;
    Some([row, column])
}

/// # Safety
/// `config` can be read if the mask has a bit.
unsafe fn config_of(config: *const TeamConfig, mask: c_long) -> TeamConfig {
    if mask & NUM_CONTEXTS == 0 || config.is_null() {
        return TeamConfig { num_contexts: 0 };
    }
    // SAFETY: the caller answers for it.
    unsafe { config.read() }
}

/// Makes a team with a slot that was taken for it. Members of the parent that are not in it get
/// none.
fn make(parent: &TeamGroup, ranks: StridedRanks, slot: usize, config: TeamConfig) -> Team {
    let Some(me) = ranks.index_of(parent.ranks.member(parent.me)) else {
        free_slot(slot);
        return Team::INVALID;
    };
    let team = Box::new(TeamState { ranks, me, slot, config, contexts: Mutex::new(Vec::new()) });
    Team(Box::into_raw(team).expose_provenance())
}

/// Takes slots that are free on all members of a group. Where there are fewer, none is taken.
fn take_slots<const N: usize>(parent: &TeamGroup) -> Option<[usize; N]> {
    const CALL: &str = "shmem_team_split";
    loop {
        let mut free = *lock(&FREE);
        free.iter().enumerate().for_each(|(index, word)| parent.show(ROUNDS + index, *word));
        parent.sync(CALL);
        for member in 0..parent.ranks.size {
            let both = |(index, word): (usize, &mut u64)| *word &= parent.shown(ROUNDS + index, member);
            free.iter_mut().enumerate().for_each(both);
        }
        let found = first_slots(&free);
        // Another thread may have taken one for another team meanwhile.
        let is_taken = found.is_some_and(take);
        parent.show(TAKEN_WORD, u64::from(is_taken));
        parent.sync(CALL);
        let is_taken_by_all = (0..parent.ranks.size).all(|member| parent.shown(TAKEN_WORD, member) == 1);
        // Only then may somebody use these words again.
        parent.sync(CALL);
        if is_taken_by_all || found.is_none() {
            return found;
        }
        found.into_iter().filter(|_| is_taken).flatten().for_each(free_slot);
    }
}

/// Returns the first slots of a map, if there are as many.
fn first_slots<const N: usize>(free: &[u64; MAP_WORDS]) -> Option<[usize; N]> {
    let mut slots = (0..SLOTS).filter(|slot| is_set(free, *slot));
    let mut found = [WORLD_SLOT; N];
    for place in &mut found {
        *place = slots.next()?;
    }
    Some(found)
}

fn is_set(map: &[u64; MAP_WORDS], slot: usize) -> bool {
    map[slot / 64] >> (slot % 64) & 1 == 1
}

/// Takes slots of this rank if all of them are free.
fn take<const N: usize>(slots: [usize; N]) -> bool {
    let mut free = lock(&FREE);
    let are_free = slots.iter().all(|slot| is_set(&free, *slot));
    for slot in slots.into_iter().filter(|_| are_free) {
        free[slot / 64] &= !(1 << (slot % 64));
    }
    are_free
}

fn free_slot(slot: usize) {
    lock(&FREE)[slot / 64] |= 1 << (slot % 64);
}

/// Destroys a team, and those of its contexts that others may use, too.
pub(crate) fn destroy(team: Team) {
    let Some(made) = team.made() else { return };
    free_slot(made.slot);
    std::mem::take(&mut *lock(&made.contexts)).into_iter().for_each(Ctx::end_with_team);
    let state = std::ptr::with_exposed_provenance_mut::<TeamState>(team.0);
    // SAFETY: `make` has made it, and the program has no team of that name any more.
    drop(unsafe { Box::from_raw(state) });
}

/// Frees all slots, when all teams have ended.
pub(crate) fn forget_all() {
    *lock(&FREE) = ALL_FREE;
}
