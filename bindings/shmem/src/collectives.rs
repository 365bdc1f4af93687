//! Collective copies. Sources are symmetric, so each member reads what it needs where it is,
//! between two synchronisations. Behind the first all sources are ready, behind the second all are
//! read.

use std::ffi::c_int;

use crate::control::ROUNDS;
use crate::rma::copy;
use crate::sync::TeamGroup;
use crate::teams::{Team, rank_in};

/// The word in which a member shows how many elements it has.
const COUNT_WORD: usize = ROUNDS;

/// Where a call has its elements.
#[derive(Clone, Copy)]
pub(crate) struct TeamOperands<T> {
    pub(crate) dest: *mut T,
    pub(crate) source: *const T,
    pub(crate) count: usize,
}

impl<T> TeamOperands<T> {
    pub(crate) const fn new(dest: *mut T, source: *const T, count: usize) -> Self {
        Self { dest, source, count }
    }
}

/// Does `run` with the group of a team. A team that is none fails.
pub(crate) fn of_team(team: Team, run: impl FnOnce(&TeamGroup)) -> c_int {
    team.group().map_or(-1, |group| {
        run(&group);
        0
    })
}

impl TeamGroup {
    /// Copies from the root to all. The root has it already, unless it `is_told`, too.
    ///
    /// # Safety
    /// All members have the elements at both ends.
    pub(crate) unsafe fn broadcast<T: Copy>(&self, ends: TeamOperands<T>, root: usize, is_told: bool) {
        const CALL: &str = "shmem_broadcast";
        self.sync(CALL);
        if ends.count > 0 && (self.me != root || is_told && !std::ptr::eq(ends.dest, ends.source)) {
            // SAFETY: the caller answers for both ends.
            unsafe { copy(self.at(ends.source, root).cast_const(), ends.dest, ends.count) };
        }
        self.sync(CALL);
    }

    /// Puts what the members have in a row, each of which may have another number.
    ///
    /// # Safety
    /// As for [`TeamGroup::broadcast`]; `dest` has room for all.
    pub(crate) unsafe fn collect<T: Copy>(&self, ends: TeamOperands<T>) {
        const CALL: &str = "shmem_collect";
        self.show(COUNT_WORD, ends.count as u64);
        self.sync(CALL);
        let mut target = ends.dest;
        for member in 0..self.ranks.size {
            let count = usize::try_from(self.shown(COUNT_WORD, member)).expect("addresses have 64 bits");
            if count > 0 {
                // SAFETY: the caller answers for the elements of each member.
                unsafe { copy(self.at(ends.source, member).cast_const(), target, count) };
            }
            target = target.wrapping_add(count);
        }
        self.sync(CALL);
        self.show(COUNT_WORD, 0);
    }

    /// Puts what the members have in a row.
    ///
    /// # Safety
    /// As for [`TeamGroup::collect`].
    pub(crate) unsafe fn fcollect<T: Copy>(&self, ends: TeamOperands<T>) {
        const CALL: &str = "shmem_fcollect";
        self.sync(CALL);
        for member in (0..self.ranks.size).filter(|_| ends.count > 0) {
            let target = ends.dest.wrapping_add(member * ends.count);
            // SAFETY: the caller answers for the elements of each member.
            unsafe { copy(self.at(ends.source, member).cast_const(), target, ends.count) };
        }
        self.sync(CALL);
    }

    /// Exchanges blocks whose elements are so many apart.
    ///
    /// # Safety
    /// All members have as many elements as there are members, at both ends.
    pub(crate) unsafe fn alltoalls<T: Copy>(&self, ends: TeamOperands<T>, dst: isize, sst: isize) {
        const CALL: &str = "shmem_alltoall";
        self.sync(CALL);
        let (pieces, len) = if dst == 1 && sst == 1 { (1, ends.count) } else { (ends.count, 1) };
        for member in (0..self.ranks.size).filter(|_| ends.count > 0) {
            let source = self.at(ends.source, member).cast_const();
            for piece in 0..pieces {
                let (from, to) = (self.me * ends.count + piece, member * ends.count + piece);
                let from = source.wrapping_offset(from.cast_signed() * sst);
                let to = ends.dest.wrapping_offset(to.cast_signed() * dst);
                // SAFETY: the caller answers for these elements.
                unsafe { copy(from, to, len) };
            }
        }
        self.sync(CALL);
    }
}

/// # Safety
/// All members have the elements at both ends.
pub(crate) unsafe fn broadcast<T: Copy>(
    team: Team,
    dest: *mut T,
    source: *const T,
    count: usize,
    root: c_int,
) -> c_int {
    let Some(group) = team.group().filter(|group| rank_in(group.ranks, root).is_some()) else { return -1 };
    // SAFETY: the caller's duties are the same.
    unsafe { group.broadcast(TeamOperands::new(dest, source, count), root.cast_unsigned() as usize, true) };
    0
}

/// # Safety
/// As for [`broadcast`]; `dest` has room for all.
pub(crate) unsafe fn collect<T: Copy>(team: Team, dest: *mut T, source: *const T, count: usize) -> c_int {
    // SAFETY: the caller's duties are the same.
    of_team(team, |group| unsafe { group.collect(TeamOperands::new(dest, source, count)) })
}

/// # Safety
/// As for [`collect`].
pub(crate) unsafe fn fcollect<T: Copy>(team: Team, dest: *mut T, source: *const T, count: usize) -> c_int {
    // SAFETY: the caller's duties are the same.
    of_team(team, |group| unsafe { group.fcollect(TeamOperands::new(dest, source, count)) })
}

/// # Safety
/// As for [`collect`], at both ends.
pub(crate) unsafe fn alltoall<T: Copy>(team: Team, dest: *mut T, source: *const T, count: usize) -> c_int {
    // SAFETY: the caller's duties are the same.
    unsafe { alltoalls(team, dest, source, 1, 1, count) }
}

/// # Safety
/// As for [`alltoall`], with the strides.
pub(crate) unsafe fn alltoalls<T: Copy>(
    team: Team,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    count: usize,
) -> c_int {
    // SAFETY: the caller's duties are the same.
    of_team(team, |group| unsafe { group.alltoalls(TeamOperands::new(dest, source, count), dst, sst) })
}
