//! How the members of a call that is not small come together: who can stages what it will have to, all tell where their buffers are, and wait
//! until the others have.

use super::{Engine, Way};
use crate::collective::algorithm::{Algorithm, ChannelKind, Manner};
use crate::collective::call::Call;
use crate::collective::detour::Route;
use crate::collective::operation::Summary;
use crate::collective::pipeline::{Ahead, stage_ahead};
use crate::collective::{direct, scalars};
use crate::error::Result;

/// What all members know of a call before anything is posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outset {
    pub(super) way: Way,
    /// The most that a member contributes, in bytes.
    pub(super) len: u64,
    /// The route that it takes if it is left to measurement ([`detour`](crate::collective::detour)).
    pub(super) route: Option<Route>,
}

impl Engine {
    /// Stages what it can foresee that it will have to; tells the other members which call this is, where its buffers are, the balance of
    /// this member's pipes, what its input is multiplied by, and how long calls took; waits until they have told the same call, and looks
    /// whether it still counts.
    ///
    /// Returns how it is done, as far as this member knows.
    pub(super) fn meet(&mut self, call: &Call<'_>, summary: Summary, outset: Outset) -> Result<Manner> {
        let Outset { way, len, .. } = outset;
        let stages = self.stages_ahead(call, outset, direct::places(call));
        if stages || !self.team.board.has_room() {
            // It works or waits before it posts, and tells in what.
            let presumed = self.presumed(call, len, way);
            self.team.board.tell_operation(summary.in_manner(presumed));
        }
        let begun = self.team.board.begin(call.operation);
        self.team.board.or_revoke(begun)?;
        if stages {
            let staged = self.stage_ahead(call, outset);
            self.team.board.or_revoke(staged)?;
        }
        let Self { team, pipework, detours, shorts, .. } = self;
        let is_watched = team.is_watched();
        let short = shorts.told(is_watched);
        let words = [pipework.balance(), scalars::own(call), detours.told(is_watched), short];
        team.board.post_first(summary, direct::places(call), &words);
        // What the others do not wait for.
        let presumed = self.presumed(call, len, way);
        let board = &mut self.team.board;
        board.tell_posted(summary.in_manner(presumed), len);
        // Who comes last has waited for nobody, and is about to write where others may have given up.
        let met = board.await_posts(call.operation).and_then(|()| board.check_epoch(call.operation));
        board.or_revoke(met)?;
        if way == Way::Short {
            self.hear_of_shorts(short, words.len() - 1);
        }
        Ok(presumed)
    }

    /// Whether a member whose buffers are at these `places` stages ahead: all members know it of each other.
    fn stages_ahead(&self, call: &Call<'_>, outset: Outset, places: [u64; 2]) -> bool {
        let in_heap = direct::is_in_heap(places, call.operation);
        let is_worked_on = in_heap && direct::is_in_place(places);
        let takes_scratch = !in_heap || outset.route == Some(Route::Second) && !is_worked_on;
        match outset.way {
            Way::Small | Way::Piped(..) | Way::Custom(_) => false,
            Way::Short => !is_worked_on,
            Way::Direct => takes_scratch,
            Way::AsTabled => takes_scratch && self.by_table(call, outset.len, in_heap) == Algorithm::TwoShot,
        }
    }

    fn stage_ahead(&mut self, call: &Call<'_>, outset: Outset) -> Result<()> {
        let Self { team, detours, tuning, .. } = self;
        let stage = || stage_ahead(call, team, tuning.crowded);
        match outset.route {
            Some(Route::Second) => detours.time_ahead(team.board.fabric().sharing(), stage),
            _ => stage(),
        }
    }

    /// Which members have staged ahead, now that all have told where their buffers are.
    pub(super) fn who_is_ahead(&self, call: &Call<'_>, outset: Outset) -> Ahead {
        let has = |member| self.stages_ahead(call, outset, self.team.board.post_of(member).places());
        if (0..self.team.n_members()).all(has) {
            return Ahead::All;
        }
        if has(self.team.me()) { Ahead::Some } else { Ahead::None }
    }

    /// How `call` is done as far as this member knows by itself, for whoever looks on while it waits for the others: unless some of them
    /// have their buffers elsewhere.
    fn presumed(&self, call: &Call<'_>, len: u64, way: Way) -> Manner {
        if way != Way::AsTabled {
            return way.manner();
        }
        let in_heap = direct::is_in_heap(direct::places(call), call.operation);
        Manner { algorithm: Some(self.by_table(call, len, in_heap)), channel: ChannelKind::Memory }
    }
}
