//! A mark by which others tell whether a process has ended, be it before it has met them.

use std::fmt;
use std::io::ErrorKind;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};

use super::control_channel::WaitGuard;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::system::{namespace, start_time, state_of_process};

/// For how long a meeting is left alone: most are over by then.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// The time between two looks at all processes.
const NEXT_LOOK: Duration = Duration::from_millis(50);

/// How long the system may take to tell that a process has ended whose sockets are closed.
pub(super) const CLOSING: Duration = Duration::from_secs(1);

/// A process of this machine: its number, when it was started, and its PID namespace.
///
/// It prints as at most [`ProcessMark::TEXT_LEN`] ASCII characters without blanks, and parses from
/// them. A process of another namespace, or that could not find out its own, is never known to have
/// ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessMark {
    pid: u32,
    /// In ticks since the machine was started.
    start: u64,
    /// 0 where it is not known.
    namespace: u64,
}

impl ProcessMark {
    /// The longest text of a mark.
    pub const TEXT_LEN: usize = 10 + 20 + 20 + 2;

    /// Returns the mark of this process.
    #[must_use]
    pub fn own() -> Self {
        let start = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| start_time(&stat));
        // Where `/proc` is another namespace's, numbers of this one mean other processes there.
        let namespace = if start.is_some() { namespace_of_proc() } else { 0 };
        Self { pid: std::process::id(), start: start.unwrap_or(0), namespace }
    }

    /// Returns the mark of the process of this number; `None` where numbers mean nothing here.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let start = stat.and_then(|stat| start_time(&stat)).unwrap_or(0);
        let mark = Self { pid, start, namespace: namespace_of_proc() };
        (pid != 0 && mark.namespace != 0).then_some(mark)
    }

    /// Returns the number of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the process is known to have ended. One that waits for its parent to ask has
    /// ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.namespace != 0
            && self.namespace == namespace_of_proc()
            && match std::fs::read_to_string(format!("/proc/{}/stat", self.pid)) {
                Ok(stat) => {
                    matches!(state_of_process(&stat), Some("Z" | "X"))
                        || start_time(&stat).is_some_and(|start| start != self.start)
                }
                Err(error) => {
                    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ESRCH)
                }
            }
    }

    /// Waits for a moment, and returns whether the process has ended by then. The system closes
    /// sockets of a dead process first.
    pub(super) fn ends_in_a_moment(&self) -> bool {
        let until = Instant::now() + CLOSING;
        loop {
            if self.has_ended() || self.pid == std::process::id() || Instant::now() >= until {
                return self.has_ended();
            }
            // It waits for nobody in particular.
            let _ = poll(&mut [], PollTimeout::from(1_u8));
        }
    }

    /// Returns when the process was started, in ticks since the machine was; 0 where that is not
    /// known.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }
}

/// Returns the PID namespace of this process if the numbers in `/proc` are of it, or else 0.
fn namespace_of_proc() -> u64 {
    let own = std::fs::read_link("/proc/self").ok();
    let is_own = own.and_then(|own| own.to_str()?.parse().ok()) == Some(std::process::id());
    if is_own { namespace("pid") } else { 0 }
}

impl fmt::Display for ProcessMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.pid, self.start, self.namespace)
    }
}

impl FromStr for ProcessMark {
    type Err = Error;

    /// Reads what its `Display` has written.
    fn from_str(text: &str) -> Result<Self> {
        let mut numbers = text.split('.').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        let read = || {
            let mark = Self { pid: u32::try_from(number()?).ok()?, start: number()?, namespace: number()? };
            number().is_none().then_some(mark)
        };
        let mark: Option<Self> = { read }();
        mark.ok_or(Error::invalid(
            "length of the mark of a process",
            text.len() as u64,
            "three numbers with points between, as the mark prints",
        ))
    }
}

/// Makes a guard that finds the first rank whose process has ended. It looks rarely: a meeting of
/// ranks that are all there takes less time than its first look.
pub(crate) fn watch_processes(own: Rank, processes: Arc<[ProcessMark]>) -> WaitGuard {
    let next = Mutex::new(Instant::now() + FIRST_LOOK);
    WaitGuard::new(move || {
        let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
        if Instant::now() < *next {
            return None;
        }
        let ended = first_ended(own, &processes);
        *next = Instant::now() + NEXT_LOOK;
        ended
    })
}

/// Names the rank whose process has ended after a host has hung up, if there is one.
pub(crate) fn explain_hang_up(error: Error, own: Rank, processes: &[ProcessMark]) -> Error {
    if processes.is_empty() || !matches!(error, Error::NoMeeting { .. }) {
        return error;
    }
    let until = Instant::now() + CLOSING;
    loop {
        if let Some(rank) = first_ended(own, processes) {
            return Error::PeerLost { rank };
        }
        if Instant::now() >= until {
            return error;
        }
        // It waits for nobody in particular.
        let _ = poll(&mut [], PollTimeout::from(1_u8));
    }
}

fn first_ended(own: Rank, processes: &[ProcessMark]) -> Option<Rank> {
    let mut all = (0..).zip(processes).filter(|(rank, _)| *rank != own.get());
    all.find(|(_, process)| process.has_ended()).map(|(rank, _)| Rank::known(rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_its_text_and_no_other_text_is_one() {
        let own = ProcessMark::own();
        assert!(own.start > 0 && own.namespace > 0);
        let most = ProcessMark { pid: u32::MAX, start: u64::MAX, namespace: u64::MAX };
        for mark in [own, most] {
            assert!(mark.to_string().len() <= ProcessMark::TEXT_LEN);
            assert_eq!(mark.to_string().parse::<ProcessMark>().unwrap(), mark);
        }
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "5000000000.1.1", "-1.2.3"] {
            assert!(text.parse::<ProcessMark>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_process_has_ended_as_soon_as_it_is_gone_also_where_nobody_has_waited_for_it() {
        let own = ProcessMark::own();
        assert!(!own.has_ended());
        assert!(ProcessMark { start: own.start + 1, ..own }.has_ended(), "another one has its number");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let mark = ProcessMark { pid: child.id(), start: start_time(&stat).unwrap(), ..own };
        crate::testing::wait_until("it has ended", || mark.has_ended());
        child.wait().unwrap();
        assert!(mark.has_ended());
    }

    #[test]
    fn a_process_of_which_something_is_not_known_is_never_said_to_have_ended() {
        let gone = ProcessMark { pid: u32::MAX, ..ProcessMark::own() };
        assert!(gone.has_ended());
        assert!(!ProcessMark { namespace: gone.namespace + 1, ..gone }.has_ended(), "of another namespace");
        assert!(!ProcessMark { namespace: 0, ..gone }.has_ended(), "of no known one");
    }
}
