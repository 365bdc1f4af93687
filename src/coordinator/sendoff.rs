//! Ending processes of which one has descriptors, be they children or not: they are told to end, and killed where that takes too long.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;

use crate::bootstrap::poll_timeout;
use crate::shm::system::pidfd_signal;

/// How long processes that are told to end may take for it.
const GRACE: Duration = Duration::from_secs(2);

/// Ends all of them, and waits for that: as long as they may take, and as long again for the kernel to end those that were killed.
/// Children are yet to be waited for.
pub(super) fn end(processes: &[impl AsFd]) {
    end_within(processes, GRACE);
}

fn end_within(processes: &[impl AsFd], grace: Duration) {
    let mut living: Vec<_> = processes.iter().map(AsFd::as_fd).collect();
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        living.iter().for_each(|process| pidfd_signal(*process, signal));
        await_ends(&mut living, Instant::now() + grace);
    }
}

/// Takes out those who have ended, until all have or it is `until`. Where it cannot be waited any more it is taken for that.
fn await_ends(living: &mut Vec<BorrowedFd<'_>>, until: Instant) {
    while !living.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled: Vec<_> =
            living.iter().map(|process| PollFd::new(*process, PollFlags::POLLIN)).collect();
        match poll(&mut polled, poll_timeout(Some(left))) {
            Ok(0) => return,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
        let mut ended = polled.iter().map(|it| it.any().unwrap_or(true));
        living.retain(|_| !ended.next().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use nix::sys::signal::kill;
    use nix::unistd::Pid;

    use super::*;
    use crate::process::is_stopped;
    use crate::shm::system::pidfd_open;
    use crate::testing::wait_until;

    fn pid(child: &Child) -> Pid {
        Pid::from_raw(child.id().cast_signed())
    }

    #[test]
    fn processes_are_told_to_end_and_whoever_does_not_hear_it_is_killed() {
        let mut children = [(); 3].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
        let [_, deaf, dead] = &mut children;
        kill(pid(deaf), Signal::SIGSTOP).unwrap();
        // Until then it may hear of its end first.
        wait_until("it is stopped", || is_stopped(deaf.id()));
        dead.kill().unwrap();
        let processes = children.each_ref().map(|child| pidfd_open(pid(child)).unwrap());
        // Nobody who is slow to hear it is killed for that.
        end_within(&processes[..1], Duration::from_secs(60));
        end_within(&processes, Duration::from_millis(20));
        let ends = children.each_mut().map(|child| child.wait().unwrap().signal());
        assert_eq!(ends, [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGKILL].map(|it| Some(it as i32)));
        end(&[] as &[BorrowedFd<'_>; 0]);
    }
}
