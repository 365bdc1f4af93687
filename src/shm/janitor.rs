//! A process that outlives a killed launcher for as long as it takes to remove the names of its job
//! from `/dev/shm`. The janitor of a coordinator removes its socket (`socket.rs`).
//!
//! A launcher that is killed can remove nothing, nor can its ranks, which go with it. So a launcher
//! starts a janitor before it claims names. The janitor has a session of its own, so that no signal
//! to the launcher's process group reaches it. It blocks all signals, and it keeps two descriptors,
//! of everything that it inherits:
//!
//! | descriptor | held by | until |
//! |---|---|---|
//! | read end of a pipe | janitor | it ends |
//! | write end, the *hold* | launcher; each rank | dismissal; the rank's segment is gone |
//! | the locked file of the claim | launcher, janitor | both are gone: then others can claim it |
//!
//! At end of file the janitor sweeps: if the file of the claim still has its name and is not empty,
//! it removes the segments' names, and in any case that of the file. A launcher that ends otherwise
//! than by a kill sweeps itself, and then kills and reaps its janitor ([`Janitor`]'s drop), which
//! it can do without looking: everything is gone by then.
//!
//! **At end of file no process is left that can make a name.** Only a rank makes one, after it was
//! told the prefix, and the message that tells it carries the hold. As long as the message is under
//! way the kernel counts its descriptors as open. From then on the rank has the hold until its
//! segment is dropped, name first. Of a rank that is killed the kernel closes descriptors when its
//! last thread has left whatever system call it was in. No process id is involved, so none can be
//! mistaken, and it does not matter which process is whose parent. (A process that forks without
//! exec while it has the hold passes it on: the sweep then waits for that process too.)
//!
//! **Why it forks without exec.** The launching program is anybody's: there is no program to
//! execute of which it is known that it would do this and nothing else. A fork costs this: memory
//! that the launcher writes to while the job runs is copied page by page, once, and memory that it
//! unmaps meanwhile is given back when the job is over. The child takes no lock and allocates
//! nothing (`serve`), because another thread may have held any lock at the moment of the fork.
//! Where the system refuses the process, or somebody kills it, the names of a killed launcher stay
//! until the next job claims them.
#![allow(unsafe_code, reason = "src/shm is where the crate keeps its unsafe code")]

#[cfg(feature = "coordinator")]
pub(super) mod socket;

use std::ffi::{CStr, CString, c_long, c_uint};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_name;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::stat::{Mode, fstat};
use nix::sys::uio::pread;
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{Pid, chdir, pipe2, read, setsid, unlink, write};

use super::system::{pidfd_kill, pidfd_open};
use crate::sync::header::SegmentHeader;

/// How long a janitor may take to get ready: as long as it takes to be scheduled. A janitor that
/// takes longer has been stopped.
const PATIENCE_MS: u16 = 60_000;

/// The names of one job, and what it takes to remove them. Everything here is async-signal-safe.
#[derive(Debug)]
pub(crate) struct Sweep {
    job: u64,
    segments: Vec<CString>,
    claim: CString,
}

impl Sweep {
    /// Names the segments of `job` and the file of its claim, all by their paths.
    pub(crate) fn new(job: u64, segments: Vec<CString>, claim: CString) -> Self {
        Self { job, segments, claim }
    }

    /// Removes the names of segments, except those that are of another job.
    pub(crate) fn segments(&self) {
        for path in &self.segments {
            if !self.is_foreign(path) {
                // Nearly always gone already.
                let _ = unlink(path.as_c_str());
            }
        }
    }

    /// Returns whether a name is of another job that did not ask for the lock. A rank that died
    /// before it had written a header leaves zeros.
    fn is_foreign(&self, path: &CStr) -> bool {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        let mut bytes = [0; size_of::<SegmentHeader>()];
        let read = open(path, flags, Mode::empty()).and_then(|file| pread(file, &mut bytes, 0));
        read.is_ok() && SegmentHeader::origin_in(&bytes).is_some_and(|(job, _)| job != self.job)
    }

    /// Sweeps when all holders of the hold are gone.
    fn after_a_kill(&self, lock: BorrowedFd<'_>) {
        let Ok(stat) = fstat(lock) else { return };
        // Without its name the claim was given up, or not made yet.
        if stat.st_nlink > 0 {
            // While it is empty the owner of the names is not known.
            if stat.st_size > 0 {
                self.segments();
            }
            let _ = unlink(self.claim.as_c_str());
        }
    }
}

/// A running janitor. Dropping it ends it: what it would sweep is then the caller's to sweep,
/// before.
#[derive(Debug)]
pub(crate) struct Janitor {
    process: OwnedFd,
    hold: OwnedFd,
}

impl Janitor {
    /// Starts a janitor that will do `sweep`, under the lock of `lock`, when this process and all
    /// holders of the [`hold`](Self::hold) are gone.
    pub(crate) fn start(sweep: &Sweep, lock: BorrowedFd<'_>) -> io::Result<Self> {
        let (end, hold) = pipe2(OFlag::O_CLOEXEC)?;
        let mut wait_and_sweep = || {
            if has_ended(end.as_fd()) {
                sweep.after_a_kill(lock);
            }
        };
        Self::spawn(&mut wait_and_sweep, [lock, end.as_fd()], hold)
    }

    /// Starts a janitor that does `duty`, which is async-signal-safe, with descriptors that it
    /// keeps. The other end of one of them is `hold`.
    fn spawn(duty: &mut dyn FnMut(), kept: [BorrowedFd<'_>; 2], hold: OwnedFd) -> io::Result<Self> {
        let (ready, tell_ready) = pipe2(OFlag::O_CLOEXEC)?;
        let process = fork(&mut JanitorDuty { duty, kept, tell_ready: tell_ready.as_fd() })?;
        drop(tell_ready);
        let janitor = Self { process, hold };
        // From then on no signal to a process group reaches it: there is no name before. A janitor
        // that was killed leaves no less than if it were killed later.
        let news = [ready.as_fd(), janitor.process.as_fd()].map(|it| PollFd::new(it, PollFlags::POLLIN));
        loop {
            match poll(&mut news.clone(), PollTimeout::from(PATIENCE_MS)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(janitor),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns the descriptor that keeps the janitor waiting while any process has a duplicate of
    /// it.
    pub(crate) fn hold(&self) -> BorrowedFd<'_> {
        self.hold.as_fd()
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        pidfd_kill(self.process.as_fd());
        // A child without an exit signal is waited for only by calls that ask for such children.
        let any = WaitPidFlag::WEXITED | WaitPidFlag::__WALL;
        while waitid(Id::PIDFd(self.process.as_fd()), any) == Err(Errno::EINTR) {}
    }
}

/// What a janitor has and knows.
struct JanitorDuty<'p> {
    duty: &'p mut dyn FnMut(),
    kept: [BorrowedFd<'p>; 2],
    tell_ready: BorrowedFd<'p>,
}

/// Starts the process, with all signals blocked from its first instruction on: the handlers that it
/// inherits are not for it.
fn fork(post: &mut JanitorDuty<'_>) -> io::Result<OwnedFd> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let none: c_long = 0;
    // SAFETY: without flags `clone` is `fork`: the child has a copy of the memory and this thread's
    // stack, and shares nothing. The exit signal is none, so that neither the caller's handlers nor
    // its waits see the child. The child calls `serve`, which never returns and, as argued there,
    // does only what is safe while other threads' locks may be held.
    let pid = unsafe { libc::syscall(libc::SYS_clone, none, none, none, none, none) };
    if pid == 0 {
        serve(post);
    }
    let failure = io::Error::last_os_error();
    // It cannot fail with a mask that the system has given.
    let _ = before.thread_set_mask();
    let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 0).map(Pid::from_raw) else {
        return Err(failure);
    };
    pidfd_open(pid).inspect_err(|_| {
        // Not waited for yet, so the number is its own.
        let _ = kill(pid, Signal::SIGKILL);
        let _ = waitpid(pid, Some(WaitPidFlag::__WALL));
    })
}

/// Runs the janitor: system calls on what was made ready before the fork, and nothing else. `nix`
/// passes paths that are `CStr` and buffers that are slices on as they are. A panic aborts, since
/// this cannot unwind.
extern "C" fn serve(post: &mut JanitorDuty<'_>) -> ! {
    let _ = setsid();
    let _ = set_name(c"shmccl janitor");
    let _ = chdir(c"/");
    // Another end of a pipe in here would keep its reader waiting; then rather no janitor.
    let [one, other] = post.kept;
    if close_all_but([one, other, post.tell_ready]).is_ok() {
        let _ = write(post.tell_ready, &[0]);
        let told = post.tell_ready.as_raw_fd().cast_unsigned();
        let _ = close_range(told, told);
        (post.duty)();
    }
    // SAFETY: ends the process without running anything of the copied program.
    unsafe { libc::_exit(0) }
}

/// Waits until the other end of the pipe is closed everywhere.
fn has_ended(pipe: BorrowedFd<'_>) -> bool {
    let mut byte = [0];
    loop {
        match read(pipe, &mut byte) {
            Ok(0) => return true,
            // Nobody writes.
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

fn close_all_but(kept: [BorrowedFd<'_>; 3]) -> Result<(), Errno> {
    let mut kept = kept.map(|descriptor| descriptor.as_raw_fd().cast_unsigned());
    kept.sort_unstable();
    let mut first = 0;
    for descriptor in kept {
        if first < descriptor {
            close_range(first, descriptor - 1)?;
        }
        first = descriptor + 1;
    }
    close_range(first, c_uint::MAX)
}

fn close_range(first: c_uint, last: c_uint) -> Result<(), Errno> {
    let flags: c_uint = 0;
    // SAFETY: called in a process of which no code goes on to use the descriptors that are closed:
    // `serve` never returns, and uses those that `close_all_but` has left out.
    let status = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    Errno::result(status).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Backing, Identity, Segment};

    /// The claim of job 1 to two names, as a killed launcher leaves it.
    struct Left {
        sweep: Sweep,
        names: [String; 3],
        claim: std::fs::File,
    }

    impl Left {
        fn new(test: &str, signed: &str) -> Self {
            let prefix = format!("shmccl-sweep-{test}-{}", std::process::id());
            let names = ["0", "1", "lock"].map(|name| format!("{prefix}.{name}"));
            let [first, second, lock] =
                names.each_ref().map(|name| CString::new(format!("/dev/shm/{name}")).unwrap());
            let mut claim = std::fs::File::create_new(lock.to_str().unwrap()).unwrap();
            io::Write::write_all(&mut claim, signed.as_bytes()).unwrap();
            Self { sweep: Sweep::new(1, vec![first, second], lock), names, claim }
        }

        fn segment(&self, index: usize, job: u64) -> Segment {
            let identity = Identity { job, epoch: 1, owner: 1 };
            Segment::create(&Backing::Named(self.names[index].clone()), 4096, identity).unwrap()
        }

        /// Sweeps, and says which of the names are there then.
        fn sweep(&self) -> [bool; 3] {
            self.sweep.after_a_kill(self.claim.as_fd());
            self.names.each_ref().map(|name| std::path::Path::new("/dev/shm").join(name).exists())
        }
    }

    #[test]
    fn segments_of_another_job_stay_and_half_made_ones_go() {
        let left = Left::new("foreign", "7");
        let foreign = left.segment(0, 2);
        std::fs::write(left.sweep.segments[1].to_str().unwrap(), [0; 100]).unwrap();
        assert_eq!(left.sweep(), [true, false, false]);
        drop(foreign);
    }

    #[test]
    fn before_the_claim_is_signed_the_names_are_nobodys_to_remove() {
        let left = Left::new("unsigned", "");
        let segment = left.segment(0, 1);
        assert_eq!(left.sweep(), [true, false, false]);
        drop(segment);
    }

    #[test]
    fn a_claim_that_was_given_up_is_not_swept() {
        let left = Left::new("given-up", "7");
        let segment = left.segment(1, 1);
        unlink(left.sweep.claim.as_c_str()).unwrap();
        // Somebody else's by now.
        std::fs::write(left.sweep.claim.to_str().unwrap(), "8").unwrap();
        assert_eq!(left.sweep(), [false, true, true]);
        unlink(left.sweep.claim.as_c_str()).unwrap();
        drop(segment);
    }

    #[test]
    fn the_hold_keeps_a_janitor_waiting_and_its_end_makes_it_sweep() {
        let left = Left::new("hold", "7");
        std::mem::forget(left.segment(0, 1));
        let mut janitor = Janitor::start(&left.sweep, left.claim.as_fd()).unwrap();
        let of_a_rank = janitor.hold().try_clone_to_owned().unwrap();
        // The launcher's own end goes as it would if it were killed.
        let (_, other) = pipe2(OFlag::O_CLOEXEC).unwrap();
        drop(std::mem::replace(&mut janitor.hold, other));
        let ended = |timeout: PollTimeout| {
            poll(&mut [PollFd::new(janitor.process.as_fd(), PollFlags::POLLIN)], timeout).unwrap() > 0
        };
        assert!(!ended(PollTimeout::from(20_u8)), "it waits for the rank");
        drop(of_a_rank);
        assert!(ended(PollTimeout::NONE));
        assert!(left.names.iter().all(|name| !std::path::Path::new("/dev/shm").join(name).exists()));
    }
}
