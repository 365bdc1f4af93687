//! Contexts: streams of operations with their own order. Every operation is done when it returns,
//! so a context is the team whose numbers it goes by.

use std::ffi::{c_int, c_long};

use crate::fail::fatal;
use crate::sync::StridedRanks;
use crate::teams::{Team, rank_in};
use crate::world::{lock, world};

/// `SHMEM_CTX_PRIVATE`, `SHMEM_CTX_SERIALIZED` and `SHMEM_CTX_NOSTORE`, one bit each.
const OPTIONS: c_long = 0b111;
const PRIVATE: c_long = 0b001;

/// `shmem_ctx_t`: none, the default one, or the address of a context.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ctx(usize);

struct ContextState {
    ranks: StridedRanks,
    team: Team,
}

/// `shmem_ctx_session_config_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SessionConfig {
    _total_ops: usize,
}

impl Ctx {
    const INVALID: Self = Self(0);
    pub(crate) const DEFAULT: Self = Self(1);

    fn made(&self) -> Option<&ContextState> {
        let is_made = self.0 > Self::DEFAULT.0;
        // SAFETY: it is the address of a context that was not destroyed, or the program is wrong.
        is_made.then(|| unsafe { &*std::ptr::with_exposed_provenance::<ContextState>(self.0) })
    }

    /// Returns the rank in the job of a member of its team.
    #[inline]
    pub(crate) fn rank(self, pe: c_int) -> usize {
        if self == Self::DEFAULT {
            return world().rank(pe);
        }
        let Some(made) = self.made() else { fatal("the context is SHMEM_CTX_INVALID") };
        let missing = || fatal(format_args!("PE {pe} of {} does not exist", made.ranks.size));
        rank_in(made.ranks, pe).unwrap_or_else(missing)
    }

    fn free(self) {
        if self.made().is_some() {
            let state = std::ptr::with_exposed_provenance_mut::<ContextState>(self.0);
            // SAFETY: `create_of_team` has made it, and the program has no such context any more.
            drop(unsafe { Box::from_raw(state) });
        }
    }

    /// Ends it as its team is destroyed.
    pub(crate) fn end_with_team(self) {
        self.free();
    }
}

/// # Safety
/// `ctx` can be written.
pub(crate) unsafe fn create(options: c_long, ctx: *mut Ctx) -> c_int {
    // SAFETY: the caller's duties are the same.
    unsafe { create_of_team(Team::WORLD, options, ctx) }
}

/// # Safety
/// `ctx` can be written.
pub(crate) unsafe fn create_of_team(team: Team, options: c_long, ctx: *mut Ctx) -> c_int {
    let group = team.group().filter(|_| options & !OPTIONS == 0);
    let made = group.map(|group| {
        let state = Box::new(ContextState { ranks: group.ranks, team });
        Ctx(Box::into_raw(state).expose_provenance())
    });
    if let (Some(made), Some(team)) = (made, team.made())
        && options & PRIVATE == 0
    {
        lock(&team.contexts).push(made);
    }
    // SAFETY: the caller answers for it.
    unsafe { ctx.write(made.unwrap_or(Ctx::INVALID)) };
    if made.is_some() { 0 } else { -1 }
}

/// Destroys a context. `SHMEM_CTX_INVALID` is legal.
pub(crate) fn destroy(ctx: Ctx) {
    if ctx == Ctx::DEFAULT {
        fatal("shmem_ctx_destroy: the default context cannot be destroyed");
    }
    if let Some(team) = ctx.made().and_then(|made| made.team.made()) {
        lock(&team.contexts).retain(|other| *other != ctx);
    }
    ctx.free();
}

/// # Safety
/// `team` can be written.
pub(crate) unsafe fn get_team(ctx: Ctx, team: *mut Team) -> c_int {
    let found = if ctx == Ctx::DEFAULT { Some(Team::WORLD) } else { ctx.made().map(|made| made.team) };
    // SAFETY: the caller answers for it.
    unsafe { team.write(found.unwrap_or(Team::INVALID)) };
    if found.is_some() { 0 } else { -1 }
}

/// Takes a hint that many operations follow, which changes nothing here.
pub(crate) fn session_start(ctx: Ctx, _options: c_long, _config: *const SessionConfig, _mask: c_long) {
    check(ctx, "shmem_ctx_session_start");
}

pub(crate) fn session_stop(ctx: Ctx) {
    check(ctx, "shmem_ctx_session_stop");
}

fn check(ctx: Ctx, call: &str) {
    if ctx == Ctx::INVALID {
        fatal(format_args!("{call}: the context is SHMEM_CTX_INVALID"));
    }
}
