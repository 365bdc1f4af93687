//! Communicators that are derived from others.
//!
//! The members of the parent meet twice on its board:
//! 1. Each tells its colour and its key, so all know which members come together.
//! 2. Each takes and clears its part of the workspace, and tells where it is, or that there is no
//!    room. This is also the barrier between clearing and the first access of another member.
//!
//! If a member had no room, a parent of all ranks enlarges the workspace, and all tell once more.
//! Then all ranks have confirmed the added part, and it is opened to other threads. Otherwise no
//! member gets anything. Where data move over proxied channels, each new communicator opens its
//! own, and the members meet a third time to tell how that went.
//!
//! By the first meeting every member has left whatever it left before. So the others know that
//! those regions can be reused.

use std::sync::Arc;

use super::Communicator;
use super::calls::call_queue::EngineLoan;
use super::membership::workspace::{ALIGN, Workspace};
use crate::collective::Selector;
use crate::collective::tuning::{Table, Tuning};
use crate::collective::{
    CallSignature, ChannelKind, CommLayout, Engine, LAP, Operation, plans_from_environment,
};
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, Region};
use crate::rank::Rank;

/// The word of a member that is ready: with its region, or with its proxied channels.
const READY: u64 = 1;

/// The word of a member where something failed that was not its own fault.
const FAILED_ELSEWHERE: u64 = 2;

impl Communicator {
    /// Divides the communicator. Members that name the same `color` come together in a new one.
    /// They are ordered by their keys, and by their ranks here where keys are equal. A member
    /// without a colour takes part, and gets `None`. Collective.
    ///
    /// The new communicator keeps the algorithms and channels of this one, and does not depend on
    /// it: either may be dropped first. Both can be used at once, also from different threads. It
    /// needs 1.6 to 3.2 MiB of each member's heap, which come back when all members have finalized
    /// or dropped it.
    ///
    /// Where there is no more room, a communicator of all ranks allocates some, in the order of
    /// allocations ([`Communicator::alloc`]). A communicator of some ranks cannot.
    ///
    /// # Errors
    /// - [`Error::Exhausted`] or [`Error::OutOfMemory`] when the heap has no room, or a proxied
    ///   channel cannot be opened. Other members get [`Error::FailedElsewhere`]. No member gets
    ///   anything, and this communicator can be used further.
    /// - [`Error::CallMismatch`] when the members are in different calls.
    /// - Otherwise those of [`Communicator::barrier`], which end the epoch.
    pub fn split(&mut self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        self.derive(Operation::Split, color, key)
    }

    /// Makes another communicator of the same members, with operations independent of this one's.
    /// Collective.
    ///
    /// # Errors
    /// Fails as [`Communicator::split`] does.
    pub fn duplicate(&mut self) -> Result<Self> {
        let whole = self.derive(Operation::Duplicate, Some(0), 0)?;
        Ok(whole.expect("this member has named a colour"))
    }

    fn derive(&mut self, operation: Operation, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let chosen = color.map_or(0, |color| u64::from(color) + 1);
        self.as_one(operation, |comm| {
            let told = comm.exchange(operation, &[chosen, key.cast_unsigned()])?;
            let mut group: Vec<usize> = Vec::new();
            if chosen != 0 {
                group.extend((0..told.len()).filter(|&member| told[member][0] == chosen));
                // Stable, so that ranks decide between equal keys.
                group.sort_by_key(|&member| told[member][1].cast_signed());
            }
            let bases = comm.take_regions(operation, group.len() as u64)?;
            let derived = comm.make_derived(&group, &bases).inspect_err(|_| comm.revoke())?;
            match comm.choice.channel {
                ChannelKind::Memory => Ok(derived),
                ChannelKind::Port => comm.open_ports(operation, derived),
            }
        })
    }

    /// Makes the communicator of the members in `group`, if this is one of them. The regions of all
    /// start at `bases`.
    fn make_derived(&mut self, group: &[usize], bases: &[HeapOffset]) -> Result<Option<Self>> {
        let Some(rank) = group.iter().position(|&member| member == self.rank.index()) else {
            return Ok(None);
        };
        let members: Arc<[Rank]> = group.iter().map(|&member| self.members[member]).collect();
        let bases = group.iter().map(|&member| bases[member]).collect();
        let selector = self.engine()?.selector.derived(members.len());
        let owner = self.membership.clone();
        let engine = Engine::new(self.context(), members.clone(), bases, owner, selector)?;
        Ok(Some(Self {
            rank: Rank::known(u32::try_from(rank).expect("at most 256 members")),
            members,
            job_barrier: None,
            engine: Some(Box::new(engine)),
            loan: EngineLoan::default(),
            choice: self.choice,
            membership: self.membership.clone(),
        }))
    }

    /// Opens the proxied channels of all communicators `derived` by members of this one, or gives
    /// nothing to anybody.
    fn open_ports(&mut self, operation: Operation, mut derived: Option<Self>) -> Result<Option<Self>> {
        let opened = match derived.as_mut().and_then(|derived| derived.engine.as_mut()) {
            Some(engine) => {
                engine.choose_channels(ChannelKind::Port).map(|()| engine.members.board.report_none())
            }
            None => Ok(()),
        };
        // A member that failed returns at once when the epoch has ended, which the others learn by
        // themselves. Its own failure says more than the end of the epoch, and that more than a
        // failure elsewhere.
        let opened = match (opened, self.context().check(operation.name())) {
            (Err(Error::FailedElsewhere { .. }), Err(end)) => return Err(end),
            (Err(error), Err(_)) => return Err(error),
            (opened, _) => opened,
        };
        let outcome = match &opened {
            Ok(()) => READY,
            Err(Error::FailedElsewhere { .. }) => FAILED_ELSEWHERE,
            Err(_) => 0,
        };
        let told = self.engine()?.exchange(operation, &[outcome]);
        if outcome == 0 {
            return opened.map(|()| derived);
        }
        // A member's own failure is behind those that were not. A communicator without open
        // channels is never handed out.
        match told?.iter().position(|words| words[0] == 0) {
            Some(failed) => Err(self.context().failed_elsewhere(operation.name(), self.members[failed])),
            None => opened.map(|()| derived),
        }
    }

    /// Takes a region for each member that gets a communicator, this one's being of `n_members`, or
    /// none for anybody. Returns the offsets of all members' regions.
    fn take_regions(&mut self, operation: Operation, n_members: u64) -> Result<Vec<HeapOffset>> {
        let mut taken = self.take_region(None, n_members);
        let mut told = self.engine()?.exchange(operation, &offer(&taken))?;
        let all_ready = |told: &[Vec<u64>]| told.iter().all(|words| words[0] == READY);
        if !all_ready(&told) && self.has_all_ranks() {
            let call = CallSignature::new(operation);
            let grown = self.within_another(call, |comm| comm.grow_workspace(operation));
            let part = grown.inspect_err(|_| self.give_back(&taken))?;
            if taken.is_err() {
                taken = self.take_region(Some(part), n_members);
            }
            told = self.engine()?.exchange(operation, &offer(&taken))?;
            // All ranks have come here, and each had confirmed it by then.
            self.membership.workspace.open(part);
        }
        if all_ready(&told) {
            return Ok(told.iter().map(|words| HeapOffset::new(words[1])).collect());
        }
        self.give_back(&taken);
        taken?;
        let failed = told.iter().position(|words| words[0] != READY).expect("not all are ready");
        Err(self.context().failed_elsewhere(operation.name(), self.members[failed]))
    }

    /// Takes and clears a region for this rank, if it gets a communicator: in the `part` that it
    /// has added, or in any open one.
    fn take_region(&self, part: Option<Region>, n_members: u64) -> Result<Option<Region>> {
        if n_members == 0 {
            return Ok(None);
        }
        let workspace = &self.membership.workspace;
        let region = match part {
            Some(part) => workspace.take_from(part, n_members)?,
            None => workspace.take(n_members)?,
        };
        self.clear(region, n_members).inspect_err(|_| workspace.give_back(region))?;
        Ok(Some(region))
    }

    /// Gives back what was taken, if anything was, and nobody has touched.
    fn give_back(&self, taken: &Result<Option<Region>>) {
        if let Ok(Some(region)) = taken {
            self.membership.workspace.give_back(*region);
        }
    }

    /// Makes the engine of the job's first communicator, for the first operation that needs it.
    ///
    /// # Errors
    /// Fails as [`Communicator::alloc`] does. A later failure ends the epoch.
    #[cold]
    pub(super) fn first_engine(&mut self, call: CallSignature, table: Result<Table>) -> Result<Engine> {
        let operation = call.operation().unwrap_or(Operation::Prepare);
        self.context().here(operation.name())?;
        self.context().activity().begin_operation(call.words(), 1);
        let made = self.within_another(call.as_first(), |comm| {
            let part = comm.grow_workspace(operation)?;
            let made =
                comm.make_first_engine(call, table, part).map_err(|error| error.within(operation.name()));
            made.inspect_err(|_| comm.revoke())
        });
        // Observers still see the call of a wait that was given up.
        if made.is_err() && self.revoked().is_none() {
            self.context().activity().drop_operation();
        }
        made
    }

    fn make_first_engine(
        &mut self,
        call: CallSignature,
        table: Result<Table>,
        part: Region,
    ) -> Result<Engine> {
        let n_members = self.members.len() as u64;
        // The place is the same on all ranks, as nobody else takes from the workspace.
        let mine = self.membership.workspace.take_from(part, n_members)?;
        self.clear(mine, n_members)?;
        self.reclaim_engine();
        self.barrier_within()?;
        self.membership.workspace.open(part);
        let bases = vec![mine.offset; self.members.len()];
        let (host, selector) = (self.membership.clone(), Selector::new(Tuning::default(), bases.len()));
        let mut engine = Engine::new(self.context(), self.members.clone(), bases, host, selector)?;
        if let Some(job_barrier) = &mut self.job_barrier {
            job_barrier.departures = Some(engine.departures().clone());
            engine.members.board.watch_barrier();
        }
        engine.members.board.report_call(call);
        engine.tune(table, self.context().oversubscribed())?;
        if let Some(plans) = plans_from_environment() {
            engine.adopt_plans(plans)?;
        }
        engine.members.board.report_none();
        Ok(engine)
    }

    /// Does `run` within a call that observers see already. Meetings of all ranks within it do not
    /// count.
    fn within_another<R>(&mut self, call: CallSignature, run: impl FnOnce(&mut Self) -> R) -> R {
        if let Some(job_barrier) = &mut self.job_barrier {
            job_barrier.begin_within(call);
        }
        let done = run(self);
        if let Some(job_barrier) = &mut self.job_barrier {
            job_barrier.end_within();
        }
        done
    }

    /// Adds a part to the workspace, within `operation`. It is opened when all ranks have met
    /// afterwards. All ranks take part, whichever of them needs it.
    fn grow_workspace(&mut self, operation: Operation) -> Result<Region> {
        self.check_all_ranks()?;
        let region = self.take_memory(Workspace::part_len(self.heap().view().shape()), ALIGN);
        let region = region.map_err(|error| error.within(operation.name()))?;
        self.membership.workspace.add(region)?;
        Ok(region)
    }

    /// Zeroes the control structures of this rank's region, which may have been used otherwise.
    /// Also zeroes the mailboxes: the first calls would wait for their pages, and be measured as
    /// slow.
    fn clear(&self, region: Region, n_members: u64) -> Result<()> {
        let heap = self.heap().view();
        let len = CommLayout::new(n_members).eager_slot(LAP);
        heap.span(heap.rank(), region.part(0, len)?)?.fill(0, len, 0)
    }
}

/// Returns the words about the region that a member has taken.
fn offer(taken: &Result<Option<Region>>) -> [u64; 2] {
    match taken {
        Ok(region) => [READY, region.map_or(0, |region| region.offset.get())],
        Err(_) => [0; 2],
    }
}
