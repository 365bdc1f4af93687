//! Whole jobs in one call: as processes of the running executable, or as threads of this process.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use super::names::ClaimedNames;
use super::{JobOutcome, Launch, Observer, supervise};
use crate::bootstrap::{
    Options, ProxyMode, checksums_from_env, cores_from_env, dump_heap_from_env, resource_error,
};
use crate::channel::Control;
use crate::collective::CALL_NAMES;
use crate::comm::{Communicator, JoinedAs, init_threads, join_job};
use crate::epoch_id::{EpochId, FIRST_EPOCH, fresh_job_id};
use crate::error::{DeviceName, Error, ExitCause, Result};
use crate::logs::LAUNCH;
use crate::rank::{Rank, check_n_ranks};
use crate::shm::undivided::undivided;
use crate::trace::{TraceFile, from_environment};

/// The part that the process returning from [`launch`] had in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchedAs {
    /// The launcher. All devices have ended well.
    Launcher(JobOutcome),
    /// A device: its body has returned.
    Device,
    /// The proxy service. The job is over.
    Proxy,
}

/// Runs `body` in `n_ranks` device processes of the running executable.
///
/// The executable is started again once per rank, with its own arguments. The call returns in every
/// process and says which one it was. Under `shmccl run` the process is a device already, and the
/// number of ranks given to `run` counts.
///
/// # Errors
/// In a device, those of the body and of joining and leaving the job. In the launcher, those of
/// [`Launch::supervise`].
pub fn launch<E: From<Error>>(
    n_ranks: u32,
    body: impl FnOnce(&mut Communicator) -> Result<(), E>,
) -> Result<LaunchedAs, E> {
    Launch::new(n_ranks)?.run(body)
}

/// Runs `body` in `n_ranks` threads of this process, each with a heap of its own. Returns the
/// results in the order of the ranks.
///
/// # Errors
/// - The first cause of those that fail: see [`spawn_threads`].
/// - [`Error::Unavailable`] for [`ProxyMode::Process`]: the proxies of threads are threads.
/// - [`Error::NameInUse`], and those of creating segments.
pub fn launch_threads<R: Send>(
    n_ranks: u32,
    options: &Options,
    body: impl Fn(&mut Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if options.proxy == ProxyMode::Process {
        return Err(Error::Unavailable { operation: "launch_threads", needs: "proxies that are threads" });
    }
    check_n_ranks(n_ranks)?;
    let job = fresh_job_id();
    let _names = ClaimedNames::claim(&options.backing, n_ranks, job, &mut |_, _| {})?;
    spawn_threads(init_threads(job, n_ranks, options)?, |_, mut comm| {
        let result = body(&mut comm)?;
        comm.finalize()?;
        Ok(result)
    })
}

impl Launch {
    /// Runs `body` in the device processes of this job; see [`launch`].
    ///
    /// # Errors
    /// Fails as [`launch`] does.
    pub fn run<E: From<Error>>(
        &self,
        body: impl FnOnce(&mut Communicator) -> Result<(), E>,
    ) -> Result<LaunchedAs, E> {
        match join_job()? {
            Some(JoinedAs::Device(mut comm)) => {
                body(&mut comm)?;
                comm.finalize()?;
                Ok(LaunchedAs::Device)
            }
            Some(JoinedAs::Proxy) => Ok(LaunchedAs::Proxy),
            None => Ok(LaunchedAs::Launcher(self.supervise(&mut |_| {})?)),
        }
    }

    /// Starts the job's processes as the launcher, tells `observer` about them, and returns when
    /// the last one has ended.
    ///
    /// Call it from a thread that stays: the kernel binds the processes to the life of the thread
    /// that starts them. Meanwhile SIGINT, SIGTERM and SIGHUP are caught and passed on; a second
    /// one kills at once.
    ///
    /// # Errors
    /// - [`Error::DeviceFailed`] names the first cause.
    /// - [`Error::Interrupted`].
    /// - [`Error::ResourceLimit`] or [`Error::Os`] when a process cannot be started.
    /// - Those of creating the control segment.
    pub fn supervise(&self, observer: &mut dyn Observer) -> Result<JobOutcome> {
        self.options.check_faults(self.n_ranks)?;
        checksums_from_env()?;
        cores_from_env()?;
        dump_heap_from_env()?;
        let epoch_id = EpochId { job: self.job_id, epoch: FIRST_EPOCH };
        let (control, _) = Control::create(self.n_ranks, epoch_id)?;
        let mut on_stale = |name: &str, creator| observer.on_stale_name(name, creator);
        let names = ClaimedNames::claim(&self.options.backing, self.n_ranks, self.job_id, &mut on_stale)?;
        self.run_traced(epoch_id, |rings| supervise::run(self, &control, names.hold(), rings, observer))
    }

    /// Calls `run` with the trace rings of the job, and writes the trace afterwards. Passes `None`
    /// where no trace is asked for.
    fn run_traced(
        &self,
        epoch_id: EpochId,
        run: impl FnOnce(Option<BorrowedFd<'_>>) -> Result<JobOutcome>,
    ) -> Result<JobOutcome> {
        if let Some(path) = self.trace.clone().or_else(from_environment) {
            let trace = TraceFile::create(&path, epoch_id, 0..self.n_ranks, self.trace_records)?;
            let outcome = run(Some(trace.descriptor()));
            // A failed job is the one whose trace matters most.
            let written = trace
                .write(CALL_NAMES)
                .inspect_err(|error| tracing::warn!(target: LAUNCH, %error, "a trace is lost"));
            return outcome.and_then(|outcome| written.map(|()| outcome));
        }
        run(None)
    }
}

/// Runs `body` in one thread per argument; the argument's index is the rank. Returns the results in
/// the order of the ranks.
///
/// # Errors
/// All threads have ended when it returns one of these:
/// - The first cause when some threads fail. A panic ([`Error::DeviceFailed`]) comes before any
///   error, and a rank's own failure before one that only reports the loss or failure of another
///   rank.
/// - [`Error::InvalidArgument`] for a number of arguments out of range.
/// - [`Error::ResourceLimit`] when a thread cannot be started.
pub fn spawn_threads<A: Send, R: Send>(
    arguments: Vec<A>,
    body: impl Fn(Rank, A) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let n_ranks = u32::try_from(arguments.len()).unwrap_or(u32::MAX);
    check_n_ranks(n_ranks)?;
    let failures = Mutex::new(Vec::new());
    let note = |error| failures.lock().unwrap_or_else(PoisonError::into_inner).push(error);
    let run = |rank: Rank, argument: A| {
        let result = catch_unwind(AssertUnwindSafe(|| body(rank, argument))).unwrap_or_else(|_| {
            Err(Error::DeviceFailed { device: DeviceName::Rank(rank), cause: ExitCause::Panicked })
        });
        result.map_err(note).ok()
    };
    let results: Vec<Option<R>> = std::thread::scope(|scope| {
        let run = &run;
        let mut threads = Vec::new();
        for (rank, argument) in (0..n_ranks).map(Rank::known).zip(arguments) {
            let builder = std::thread::Builder::new().name(format!("rank {rank}"));
            match undivided(|| builder.spawn_scoped(scope, move || run(rank, argument))) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    note(resource_error("starting a thread", error));
                    break;
                }
            }
        }
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failures.into_iter().min_by_key(remoteness) {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

/// Returns how far an error is from the cause. Of equal ones the earlier counts.
fn remoteness(error: &Error) -> u8 {
    match error.origin() {
        Error::DeviceFailed { cause: ExitCause::Panicked, .. } => 0,
        Error::PeerLost { .. } | Error::ProxyLost | Error::Revoked { .. } | Error::FailedElsewhere { .. } => {
            2
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::SegmentBacking;

    fn names_of_ranks(options: &Options) -> Result<Vec<bool>> {
        let SegmentBacking::Named(prefix) = &options.backing else { panic!("{options:?}") };
        launch_threads(2, options, |comm| {
            comm.barrier()?;
            let name = format!("{prefix}.{}", comm.rank());
            Ok(std::path::Path::new("/dev/shm").join(name).exists())
        })
    }

    #[test]
    fn device_threads_get_segments_of_the_kind_that_was_asked_for() {
        let prefix = format!("shmccl-threads-{}", std::process::id());
        let named = Options {
            heap_len: 2 << 20,
            backing: SegmentBacking::Named(prefix.clone()),
            ..Options::default()
        };
        assert_eq!(names_of_ranks(&named).unwrap(), [true, true]);
        let left: Vec<_> =
            std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(&prefix)), "{left:?}");

        let directory = std::env::temp_dir().join(&prefix);
        std::fs::create_dir_all(&directory).unwrap();
        let files = SegmentBacking::Files(directory.to_str().unwrap().to_owned());
        launch_threads(2, &Options { backing: files, ..named }, Communicator::barrier).unwrap();
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn device_threads_with_a_service_process_are_refused() {
        let options = Options { proxy: ProxyMode::Process, ..Options::default() };
        let refused = launch_threads(2, &options, |_| Ok(())).unwrap_err();
        assert_eq!(refused.to_string(), "launch_threads needs proxies that are threads");
    }

    #[test]
    fn threads_return_in_order_of_rank() {
        let doubled = spawn_threads(vec![3, 4, 5], |rank, value| Ok((rank.get(), value * 2))).unwrap();
        assert_eq!(doubled, [(0, 6), (1, 8), (2, 10)]);
    }

    #[test]
    fn a_panic_counts_before_the_errors_it_causes() {
        let barrier = std::sync::Barrier::new(2);
        let error = spawn_threads(vec![(), ()], |rank, ()| {
            if rank.get() == 1 {
                // The error is recorded first or last; the panic is named in both cases.
                barrier.wait();
                panic!("on purpose");
            }
            barrier.wait();
            Err::<(), _>(Error::PeerLost { rank: Rank::known(1) })
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "rank 1 panicked");
    }

    #[test]
    fn no_ranks_or_too_many_are_refused() {
        assert!(spawn_threads(Vec::<()>::new(), |_, ()| Ok(())).is_err());
        assert!(spawn_threads(vec![(); 257], |_, ()| Ok(())).is_err());
    }
}
