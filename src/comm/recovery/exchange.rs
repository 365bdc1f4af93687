//! The exchange of ranks when one of them was restarted: how far they have come, and the memory of
//! its predecessor.

use std::os::fd::{AsFd, OwnedFd};

use crate::bootstrap::{
    CONTRIBUTION_LEN, Joining, MemberHeartbeat, Options, RankClaim, cores_from_env, meet,
};
use crate::channel::{Control, EpochMapping};
use crate::comm::Communicator;
use crate::comm::membership::attach::{duplicate, join_assembled, name_hang_up, rings_of};
use crate::comm::membership::launcher_link::{Incarnation, LauncherLink};
use crate::comm::membership::recovery_callbacks::{Callback, Recovery};
use crate::comm::membership::unique_id::UniqueId;
use crate::error::{Error, Result};
use crate::heap::layout::{HEAP, HeapShape};
use crate::logs::{EPOCH, step};
use crate::rank::Rank;
use crate::shm::segment::AttachAs;
use crate::shm::{Expected, Mapping, Segment};

impl Communicator {
    /// Calls `callback` once for every recovery from now on. A survivor's [`Communicator::recover`]
    /// calls it before it returns. In a restarted process, which has come back as it
    /// [joined](crate::comm::join_job), this method calls it at once. So one program learns in both
    /// where to go on:
    ///
    /// ```no_run
    /// # fn step(_: &mut shmccl::Communicator, _: u64) -> shmccl::Result<()> { Ok(()) }
    /// fn work(comm: &mut shmccl::Communicator) -> shmccl::Result<()> {
    ///     let (tell, told) = std::sync::mpsc::channel();
    ///     comm.on_recovery(move |recovery| _ = tell.send(recovery.sequence));
    ///     let mut completed = 0;
    ///     while completed < 1000 {
    ///         completed = told.try_iter().last().unwrap_or(completed);
    ///         match step(comm, completed + 1) {
    ///             Ok(()) => completed += 1,
    ///             Err(shmccl::Error::PeerLost { .. }) => *comm = comm.recover(completed)?,
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// The communicator that `recover` returns keeps the callback; a new one replaces it. A
    /// recovery without a callback is reported to the next one that is given. A communicator that
    /// has shrunk or grown cannot be recovered.
    ///
    /// The callback runs on the calling thread, under no lock. The others wait for it only where
    /// they need this rank. It does not get the new communicator: collective work, such as handing
    /// state to a restarted rank, belongs behind `recover`, where another death can be recovered
    /// from. It may read the heaps of the old communicator, where all else fails.
    ///
    /// # Panics
    /// If the callback does, which is not called again then. In `recover` that drops the new
    /// communicator, and the others lose this rank, as by any panic.
    ///
    /// # Ordering
    /// When it is called, all ranks are in the new epoch. Everything that the survivors did before
    /// `recover` has happened.
    pub fn on_recovery(&mut self, callback: impl FnMut(&Recovery) + Send + 'static) {
        self.set_recovery_callback(Box::new(callback));
    }

    pub(super) fn set_recovery_callback(&mut self, mut callback: Callback) {
        // No lock is held while it is called, or another one dropped.
        let untold = self.membership.recovery_callbacks().untold.take();
        untold.into_iter().for_each(|recovery| callback(&recovery));
        let replaced = self.membership.recovery_callbacks().callback.replace(callback);
        drop(replaced);
    }

    /// Returns whether this process replaces one that has died, and has come back in this epoch.
    #[must_use]
    pub fn was_restarted(&self) -> bool {
        self.membership.was_restarted
    }
}

/// The past of a rank, which it tells the others as it comes to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankProgress {
    /// The last completed step; `None` for a restarted rank.
    pub(super) completed: Option<u64>,
    pub(super) restarts: u32,
}

impl RankProgress {
    fn bytes(self) -> [u8; 24] {
        bytemuck::cast([self.completed.unwrap_or(0), self.completed.is_some().into(), self.restarts.into()])
    }

    fn read(bytes: &[u8; CONTRIBUTION_LEN]) -> Self {
        let [completed, is_known, restarts, ..]: [u64; CONTRIBUTION_LEN / 8] = bytemuck::cast(*bytes);
        let restarts = u32::try_from(restarts).unwrap_or(u32::MAX);
        Self { completed: (is_known != 0).then_some(completed), restarts }
    }
}

/// Comes together with all ranks that `joining` has met. `old` is the epoch that a survivor comes
/// from. Returns the launcher's name for each rank as well.
pub(super) fn assemble(
    mut joining: Joining,
    mine: RankProgress,
    old: Option<&EpochMapping>,
) -> Result<(Communicator, Vec<Option<Incarnation>>)> {
    let contributions = joining.all_gather(&mine.bytes(), None)?;
    let pasts: Vec<_> =
        contributions.iter().map(|contribution| RankProgress::read(&contribution.bytes)).collect();
    let own = joining.rank().expect("only ranks meet");
    let (fresh, surviving): (Vec<_>, Vec<_>) =
        Rank::of_each(&pasts).partition(|(_, past)| past.completed.is_none());
    let restarted: Vec<_> = fresh.into_iter().map(|(rank, _)| rank).collect();
    let survivor = surviving.first().map(|(rank, _)| *rank);
    let mut inherited = None;
    for &rank in &restarted {
        let left = old.filter(|_| survivor == Some(own)).map(|mapped| mapped.segment(rank));
        let is_sealed = left.is_some_and(|segment| segment.attach_as() == AttachAs::Sealed);
        let contributions = joining.all_gather(&[is_sealed.into()], left.map(|segment| segment.as_fd()))?;
        let contribution =
            survivor.and_then(|from| contributions.into_iter().nth(from.index())).filter(|_| rank == own);
        if let Some((kind, descriptor)) =
            contribution.and_then(|contribution| Some((contribution.bytes[0], contribution.descriptor?)))
        {
            let shape = HeapShape::new(joining.n_ranks(), joining.options.heap_len)?;
            // To be back without it is better than not to be back.
            inherited = map_heap(descriptor, kind == 1, shape)
                .inspect_err(|error| tracing::warn!(target: EPOCH, %rank, %error, "a heap is not kept"))
                .ok();
        }
    }
    let sequence = pasts.iter().filter_map(|past| past.completed).min().unwrap_or(0);
    let incarnations = Rank::of_each(&pasts)
        .map(|(rank, past)| Some(Incarnation { rank, restarts: past.restarts }))
        .collect();
    step("told each other the past");
    let mut comm = join_assembled(joining, cores_from_env()?)?;
    let (epoch, was_restarted) = (comm.context().mapped().epoch_id().epoch, mine.completed.is_none());
    let recovery = Recovery { epoch, restarted, was_restarted, sequence, inherited };
    let membership = comm.alone();
    membership.was_restarted = was_restarted;
    membership.recovery_callbacks().untold = Some(recovery);
    Ok((comm, incarnations))
}

/// Maps the heap in the segment that a process has left.
fn map_heap(descriptor: OwnedFd, is_sealed: bool, shape: HeapShape) -> Result<Mapping> {
    let attach_as = if is_sealed { AttachAs::Sealed } else { AttachAs::Unsealed };
    let expected = Expected { len: Some(shape.segment_len()), identity: None };
    Segment::attach(descriptor, attach_as, &expected)?.map()?.part(HEAP, shape.len())
}

/// Comes back to the others as a restarted rank. It waits for their invitation, and for the next
/// one when they do not come together because of another death.
///
/// # Errors
/// - [`Error::Timeout`] when nobody takes it back.
/// - [`Error::Unavailable`] when nobody can, because no restart is left for another lost rank.
/// - [`Error::Revoked`] when the launcher is gone; those of [`crate::comm::join_job`].
pub(in crate::comm) fn rejoin(joining: Joining) -> Result<Communicator> {
    let rank = joining.rank().expect("a service process is not started again");
    let mine = RankProgress { completed: None, restarts: joining.restarts };
    let shape = HeapShape::new(joining.n_ranks(), joining.options.heap_len)?;
    let timeout = joining.options.timeout;
    let options = Options { heap_len: shape.len(), timeout, ..Options::default() };
    let part = RankClaim { rank, n_ranks: joining.n_ranks(), n_members: joining.n_ranks() };
    let (mut comm, incarnations) = loop {
        let point = UniqueId::from_words(joining.await_invite()?).meeting_point();
        let met = meet(&point, part, &options, Some(joining.launcher_guard()?))
            .and_then(|joining| assemble(joining, mine, None));
        match met.map_err(name_hang_up) {
            Ok(met) => break met,
            Err(error) if is_worth_another_try(&error) => {}
            Err(error) => return Err(error),
        }
    };
    step("taken back");
    let (restarting, mapped) = (joining.is_restarting, comm.context().mapped().clone());
    let heartbeat = first_heartbeat(&joining)?;
    comm.record_in(rings_of(&joining)?.as_ref(), rank);
    let line = LauncherLink::begin(joining.rejoin()?, heartbeat, restarting, &mapped, incarnations.clone())?;
    let membership = comm.alone();
    membership.incarnations = incarnations;
    membership.launcher = Some(line.into());
    Ok(comm)
}

/// Returns the heartbeat of this member for the launcher. It lies in the first epoch, in which this
/// process never was.
fn first_heartbeat(joining: &Joining) -> Result<Option<MemberHeartbeat>> {
    let Some(every) = joining.beat else { return Ok(None) };
    let control = duplicate(&joining.control)?;
    let first = Control::attach(control, joining.n_ranks(), joining.epoch_id)?;
    Ok(Some(MemberHeartbeat::new(first.beat(joining.device), every)))
}

/// Returns whether a meeting has failed by a death, without which another meeting may succeed.
pub(super) fn is_worth_another_try(error: &Error) -> bool {
    matches!(error, Error::PeerLost { .. } | Error::NoMeeting { .. } | Error::FailedElsewhere { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_tells_of_its_past_is_what_the_others_read() {
        for completed in [None, Some(0), Some(u64::MAX), Some(1 << 40 | 7)] {
            for restarts in [0, 1, u32::MAX] {
                let past = RankProgress { completed, restarts };
                let mut bytes = [0; CONTRIBUTION_LEN];
                bytes[..24].copy_from_slice(&past.bytes());
                assert_eq!(RankProgress::read(&bytes), past);
            }
        }
    }
}
