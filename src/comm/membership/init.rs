//! Communicators without a launcher: by a unique id among processes, or all at once in one process.

use std::sync::Arc;

use super::attach::{JoinParams, LiveRank, Overrides, join_assembled, name_hang_up};
use super::unique_id::UniqueId;
use crate::bootstrap::{
    CancelToken, MeetingHost, MeetingPoint, Options, ProcessMark, ProxyMode, RankClaim, WaitGuard,
    explain_hang_up, meet, meet_by_name, watch_processes,
};
use crate::channel::{Control, EpochMapping};
use crate::collective::CALL_NAMES;
use crate::comm::Communicator;
use crate::epoch_id::{EpochId, FIRST_EPOCH, fresh_job_id};
use crate::error::{Error, Result};
use crate::heap::layout::HeapShape;
use crate::rank::{Rank, check_n_ranks};
use crate::trace::{Recorder, recorders};

/// The longest name of a meeting.
const MAX_NAME: usize = 100;

impl Communicator {
    /// Meets the other ranks under `id` and joins them as `rank` of `n_ranks`, with the default
    /// [`Options`]. Returns when all have called it, in any order.
    ///
    /// # Errors
    /// Fails as [`Communicator::init_rank_with`] does.
    pub fn init_rank(n_ranks: u32, id: &UniqueId, rank: u32) -> Result<Self> {
        Self::init_rank_with(n_ranks, id, rank, &Options::default())
    }

    /// Meets the other ranks like [`Communicator::init_rank`], with options. All ranks need the
    /// same length of the heap and kind of backing. Each has its own timeout, in the meeting and
    /// afterwards.
    ///
    /// Proxies are threads, because a service process needs a launcher. Ranks are not pinned: they
    /// count how many share a core from the affinity masks of all, unless options say so. The named
    /// segment of a killed rank keeps its name.
    ///
    /// A failure concerns everybody who has come, within the shortest timeout, and uses `id` up. A
    /// rank that comes later within that time gets the same error.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`], [`Error::InvalidRank`], and [`Error::Unavailable`] for
    ///   [`ProxyMode::Process`]: wrong arguments, of which no other rank learns.
    /// - [`Error::NoMeeting`]: the id is not one, is used up, or its host has ended. Or a process
    ///   has that had connected, and it is not known which rank it was.
    /// - [`Error::RankTaken`], [`Error::Mismatch`]: the ranks do not fit together; all learn of it.
    /// - [`Error::Timeout`] names a missing rank, unless the host was held up and did not say
    ///   which.
    /// - [`Error::PeerLost`]: a rank came, and died or got stuck before all were ready.
    /// - [`Error::Layout`]: the host is another version of this library, or runs as another user.
    /// - [`Error::ResourceLimit`], [`Error::Os`]: here, or at the host.
    pub fn init_rank_with(n_ranks: u32, id: &UniqueId, rank: u32, options: &Options) -> Result<Self> {
        Self::init_rank_until(n_ranks, id, rank, options, None)
    }

    /// Meets the other ranks like [`Communicator::init_rank_with`], and watches `processes`, those
    /// of the ranks in order. The meeting fails for all within a moment of the end of one, also of
    /// one that has not come yet.
    ///
    /// # Errors
    /// Fails as [`Communicator::init_rank_with`] does, or with [`Error::WrongCount`] unless there
    /// is a mark for each rank.
    pub fn init_rank_among(
        n_ranks: u32,
        id: &UniqueId,
        rank: u32,
        options: &Options,
        processes: Vec<ProcessMark>,
    ) -> Result<Self> {
        let own = Rank::new(rank, n_ranks)?;
        if processes.len() != n_ranks as usize {
            let (count, expected) = (processes.len() as u64, n_ranks.into());
            return Err(Error::WrongCount { name: "marks of processes", count, expected });
        }
        let processes: Arc<[_]> = processes.into();
        let guard = watch_processes(own, Arc::clone(&processes));
        Self::init_guarded(n_ranks, id, rank, options, Some(guard))
            .map_err(|error| explain_hang_up(error, own, &processes))
    }

    /// Meets the other ranks like [`Communicator::init_rank_with`], unless `off` ends that first.
    ///
    /// # Errors
    /// Fails as [`Communicator::init_rank_with`] does, or with [`Error::NoMeeting`] when it was
    /// cancelled.
    pub(crate) fn init_rank_until(
        n_ranks: u32,
        id: &UniqueId,
        rank: u32,
        options: &Options,
        off: Option<CancelToken>,
    ) -> Result<Self> {
        Self::init_guarded(n_ranks, id, rank, options, off.map(WaitGuard::until))
    }

    /// Meets the other ranks like [`Communicator::init_rank_with`], under a `name` that all know
    /// without an id. The rank that comes first hosts the meeting. The name is free again as it is
    /// over, and two jobs that meet by one name at the same time disturb each other.
    ///
    /// # Errors
    /// Fails as [`Communicator::init_rank_with`] does, or with [`Error::InvalidArgument`] for a
    /// name of more than 100 bytes, or none.
    pub fn init_by_name(n_ranks: u32, name: &str, rank: u32, options: &Options) -> Result<Self> {
        check_n_ranks(n_ranks)?;
        let rank = Rank::new(rank, n_ranks)?;
        check("init_by_name", options)?;
        HeapShape::new(n_ranks, options.heap_len)?;
        if name.is_empty() || name.len() > MAX_NAME {
            let expected = "1 to 100 bytes";
            return Err(Error::invalid("length of the name of a meeting", name.len() as u64, expected));
        }
        let part = RankClaim { rank, n_ranks, n_members: n_ranks };
        let overrides = Overrides::of(options)?;
        let recorders = recorders(rank.get()..rank.get() + 1, n_ranks == 1, CALL_NAMES)?;
        let host = |point: MeetingPoint| {
            let epoch_id = EpochId { job: point.job_id, epoch: point.epoch };
            MeetingHost::open(point)?
                .of_rank(rank)
                .for_at_most(options.timeout)
                .start(move |n_ranks| Control::create(n_ranks, epoch_id).map(|(_, segment)| segment))
        };
        let comm = meet_by_name(name, part, options, host)
            .and_then(|joining| join_assembled(joining, overrides.cores))
            .map_err(name_hang_up)?;
        comm.apply(&overrides, false);
        record(std::slice::from_ref(&comm), recorders);
        Ok(comm)
    }

    fn init_guarded(
        n_ranks: u32,
        id: &UniqueId,
        rank: u32,
        options: &Options,
        guard: Option<WaitGuard>,
    ) -> Result<Self> {
        check_n_ranks(n_ranks)?;
        let rank = Rank::new(rank, n_ranks)?;
        check("init_rank", options)?;
        HeapShape::new(n_ranks, options.heap_len)?;
        let part = RankClaim { rank, n_ranks, n_members: n_ranks };
        let overrides = Overrides::of(options)?;
        let recorders = recorders(rank.get()..rank.get() + 1, n_ranks == 1, CALL_NAMES)?;
        let met = meet(&id.meeting_point(), part, options, guard)
            .and_then(|joining| join_assembled(joining, overrides.cores))
            .map_err(name_hang_up);
        met.inspect(|comm| {
            comm.apply(&overrides, false);
            record(std::slice::from_ref(comm), recorders);
        })
    }

    /// Makes all communicators of a job of `n_ranks` in this process, in order of rank, with the
    /// default [`Options`]. One process drives all devices, each from a thread of its own.
    ///
    /// # Errors
    /// Fails as [`Communicator::init_all_with`] does.
    pub fn init_all(n_ranks: u32) -> Result<Vec<Self>> {
        Self::init_all_with(n_ranks, &Options::default())
    }

    /// Makes all communicators like [`Communicator::init_all`], with options.
    ///
    /// Move each to a thread of its own. Collective calls, [`Communicator::finalize`] included,
    /// wait for the others, so one thread cannot call them for two.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; [`Error::Unavailable`] for [`ProxyMode::Process`]; those of
    /// creating and mapping segments.
    pub fn init_all_with(n_ranks: u32, options: &Options) -> Result<Vec<Self>> {
        check("init_all", options)?;
        init_threads(fresh_job_id(), n_ranks, options)
    }
}

/// Makes the communicators of job number `job` for device threads of this process, which share its
/// window and its mappings. Proxies are threads.
///
/// # Errors
/// Returns the errors of creating and mapping segments.
pub(crate) fn init_threads(job: u64, n_ranks: u32, options: &Options) -> Result<Vec<Communicator>> {
    options.check_faults(n_ranks)?;
    let shape = HeapShape::new(n_ranks, options.heap_len)?;
    let epoch_id = EpochId { job, epoch: FIRST_EPOCH };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spinners = u32::try_from((n_ranks as usize).div_ceil(cores)).unwrap_or(u32::MAX);
    let overrides = Overrides::of(options)?;
    let params = JoinParams::with_proxy_threads(spinners, overrides.cores, options.timeout);
    let recorders = recorders(0..n_ranks, true, CALL_NAMES)?;
    let (control, _segment) = Control::create(n_ranks, epoch_id)?;
    let ranks = || (0..n_ranks).map(Rank::known);
    let create = |rank| EpochMapping::create_segment(epoch_id, rank, shape, &options.backing);
    let segments = ranks().map(|rank| create(rank).map(Arc::new)).collect::<Result<_>>()?;
    let mapped = Arc::new(EpochMapping::over(shape, control, segments)?);
    let all_live = ranks().map(|rank| LiveRank::announce(&mapped, rank)).collect::<Result<Vec<_>>>()?;
    let join = |live: LiveRank| live.join(&mapped, &params).inspect(|comm| comm.apply(&overrides, true));
    let comms = all_live.into_iter().map(join).collect::<Result<Vec<_>>>()?;
    record(&comms, recorders);
    Ok(comms)
}

fn record(comms: &[Communicator], recorders: Vec<Recorder>) {
    comms.iter().zip(recorders).for_each(|(comm, recorder)| comm.context().set_recorder(recorder));
}

/// Refuses what takes a launcher.
fn check(operation: &'static str, options: &Options) -> Result<()> {
    options.backing.check()?;
    match options.proxy {
        ProxyMode::Thread => Ok(()),
        ProxyMode::Process => {
            Err(Error::Unavailable { operation, needs: "a launcher, for proxies that are processes" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;

    #[test]
    fn communicators_of_one_process_move_to_threads_of_the_callers_own() {
        let options = Options { heap_len: 4 << 20, ..Options::default() };
        let comms = Communicator::init_all_with(3, &options).unwrap();
        let pass_on = |mut comm: Communicator| -> Result<u64> {
            let cells = comm.alloc::<u64>(2)?;
            let (mut left, mut right) =
                (comm.memory_channel(comm.left())?, comm.memory_channel(comm.right())?);
            cells.set(0, comm.rank().get().into())?;
            right.put_with_signal(cells.part(1, 1)?.offset, cells.part(0, 1)?.offset, 8)?;
            left.wait()?;
            let received = cells.get(1)?;
            comm.finalize()?;
            Ok(received)
        };
        let threads: Vec<_> =
            comms.into_iter().map(|comm| std::thread::spawn(move || pass_on(comm))).collect();
        let received: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        assert_eq!(received, [2, 0, 1]);
    }

    #[test]
    fn a_service_process_is_refused_where_there_is_no_launcher() {
        let options = Options { proxy: ProxyMode::Process, ..Options::default() };
        let id: UniqueId = "shmccl-00000000000000000000000000000000".parse().unwrap();
        let refused = [
            Communicator::init_all_with(2, &options).err(),
            Communicator::init_rank_with(2, &id, 0, &options).err(),
        ];
        for error in refused {
            assert!(matches!(error, Some(Error::Unavailable { .. })), "{error:?}");
        }
    }

    /// The marks of this process and of one that has ended.
    fn with_a_dead_one() -> Vec<ProcessMark> {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mark = ProcessMark::of(child.id()).unwrap();
        child.wait().unwrap();
        vec![ProcessMark::own(), mark]
    }

    #[test]
    fn a_rank_whose_process_has_ended_is_named_to_who_waits_and_to_who_finds_nobody() {
        let timeout = std::time::Duration::from_secs(20);
        let options = Options { heap_len: 4 << 20, timeout, ..Options::default() };
        let of_nobody = "shmccl-0123456789abcdef0123456789abcdef".parse().unwrap();
        for id in [UniqueId::new().unwrap(), of_nobody] {
            let lost = Communicator::init_rank_among(2, &id, 0, &options, with_a_dead_one()).unwrap_err();
            assert!(matches!(lost, Error::PeerLost { rank } if rank.get() == 1), "{lost}");
        }
    }

    #[test]
    fn a_rank_that_cannot_be_is_refused_before_anybody_is_asked() {
        let id: UniqueId = "shmccl-00000000000000000000000000000000".parse().unwrap();
        let refused = Communicator::init_rank(2, &id, 2).unwrap_err();
        assert!(matches!(refused, Error::InvalidRank { rank: 2, n_ranks: 2 }), "{refused}");
        for n_ranks in [0, 257] {
            let refused = Communicator::init_rank(n_ranks, &id, 0).unwrap_err();
            assert!(matches!(refused, Error::InvalidArgument { name: "n_ranks", .. }), "{refused}");
        }
        assert!(Communicator::init_all(0).is_err());
    }

    #[test]
    fn an_id_that_nobody_hosts_is_told_from_one_that_has_no_guests_yet() {
        let id: UniqueId = "shmccl-0123456789abcdef0123456789abcdef".parse().unwrap();
        let error = Communicator::init_rank(2, &id, 0).unwrap_err();
        assert!(matches!(error, Error::NoMeeting { .. }), "{error:?}");
    }
}
