//! A mark by which others tell whether a process has ended, be it before it has met them.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollTimeout, poll};

use super::control_channel::WaitGuard;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::system::{has_ended, is_numbered, namespace, start_time};

/// How long a meeting is left alone: most are over by then.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// The time between two looks at all processes.
const NEXT_LOOK: Duration = Duration::from_millis(50);

/// How long the system may take to tell that a process has ended whose sockets are closed.
pub(super) const CLOSING: Duration = Duration::from_secs(1);

/// A process: its number, when it was started, its PID namespace, and its machine.
///
/// It prints as at most [`ProcessMark::TEXT_LEN`] ASCII characters without blanks, and parses from
/// them. A process of another namespace or machine, or that could not find out its own, is never
/// known to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessMark {
    pid: u32,
    /// The start of the process, in ticks since the machine was started.
    start: u64,
    /// 0 where it is not known. The first one has the same number on every machine.
    namespace: u32,
    /// Which start of which machine counts the time, as the process sees it; 0 where that is not
    /// known.
    clock: u64,
}

impl ProcessMark {
    /// The longest text of a mark.
    pub const TEXT_LEN: usize = 10 + 20 + 10 + 16 + 3;

    /// Returns the mark of this process.
    #[must_use]
    pub fn own() -> Self {
        let start = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| start_time(&stat));
        // Where `/proc` is another namespace's, numbers of this one mean other processes there.
        let namespace = if start.is_some() { namespace_of_proc() } else { 0 };
        Self { pid: std::process::id(), start: start.unwrap_or(0), namespace, clock: clock() }
    }

    /// Returns the mark of the process of this number; `None` where numbers mean nothing here.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let start = stat.and_then(|stat| start_time(&stat)).unwrap_or(0);
        let mark = Self { pid, start, namespace: namespace_of_proc(), clock: clock() };
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
        self.is_of(namespace_of_proc(), clock())
            && self.is_gone(std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok())
    }

    /// Returns whether the process is known to be of this namespace and this machine.
    fn is_of(&self, namespace: u32, clock: u64) -> bool {
        namespace != 0 && clock != 0 && (self.namespace, self.clock) == (namespace, clock)
    }

    /// Returns whether it has ended, by what `/proc` shows of its number.
    fn is_gone(&self, stat: Option<String>) -> bool {
        match stat {
            Some(stat) => has_ended(&stat) || start_time(&stat).is_some_and(|start| start != self.start),
            // `/proc` may hide processes of other users.
            None => !is_numbered(self.pid.into()),
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
fn namespace_of_proc() -> u32 {
    let own = std::fs::read_link("/proc/self").ok();
    let is_own = own.and_then(|own| own.to_str()?.parse().ok()) == Some(std::process::id());
    if is_own { u32::try_from(namespace("pid")).unwrap_or(0) } else { 0 }
}

/// Returns a number of this start of this machine and of this process's time namespace, in which
/// the system tells when processes were started, or else 0.
fn clock() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    let boot = *BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        folded(id.trim()).unwrap_or(0)
    });
    if boot == 0 { 0 } else { boot ^ namespace("time") }
}

/// Returns both halves of an id of random hexadecimal digits in one.
fn folded(id: &str) -> Option<u64> {
    let id = u128::from_str_radix(&id.replace('-', ""), 16).ok()?;
    let halves = id.to_be_bytes();
    let half = |at: usize| Some(u64::from_be_bytes(halves[at..at + 8].try_into().ok()?));
    Some(half(0)? ^ half(8)?)
}

impl fmt::Display for ProcessMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{:x}", self.pid, self.start, self.namespace, self.clock)
    }
}

impl FromStr for ProcessMark {
    type Err = Error;

    /// Reads what its `Display` has written.
    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split('.');
        let read = || {
            let mark = Self {
                pid: words.next()?.parse().ok()?,
                start: words.next()?.parse().ok()?,
                namespace: words.next()?.parse().ok()?,
                clock: u64::from_str_radix(words.next()?, 16).ok()?,
            };
            words.next().is_none().then_some(mark)
        };
        let mark: Option<Self> = { read }();
        mark.ok_or(Error::invalid(
            "length of the mark of a process",
            text.len() as u64,
            "four numbers with points between, as the mark prints",
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
        assert!(own.start > 0 && own.namespace > 0 && own.clock > 0);
        let most = ProcessMark { pid: u32::MAX, start: u64::MAX, namespace: u32::MAX, clock: u64::MAX };
        for mark in [own, most] {
            assert!(mark.to_string().len() <= ProcessMark::TEXT_LEN);
            assert_eq!(mark.to_string().parse::<ProcessMark>().unwrap(), mark);
        }
        for text in ["", "1", "1.2.3", "1.2.3.4.5", "1.2.3.x", "5000000000.1.1.1", "-1.2.3.4"] {
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
    fn machines_are_told_apart_by_all_digits_of_their_ids() {
        assert_eq!(folded("00000000-0000-0001-0000-000000000010"), Some(0x11));
        assert_eq!([folded(""), folded("no id"), folded(&"f".repeat(40))], [None; 3]);
    }

    #[test]
    fn a_process_of_which_something_is_not_known_is_never_said_to_have_ended() {
        let gone = ProcessMark { pid: u32::MAX, ..ProcessMark::own() };
        assert!(gone.has_ended());
        assert!(!ProcessMark { namespace: gone.namespace + 1, ..gone }.has_ended(), "of another namespace");
        assert!(!ProcessMark { namespace: 0, ..gone }.has_ended(), "of no known one");
        assert!(!ProcessMark { clock: gone.clock ^ 1, ..gone }.has_ended(), "of another machine");
        assert!(!ProcessMark { clock: 0, ..gone }.has_ended(), "of no known one");
    }

    #[test]
    fn a_process_that_cannot_tell_where_it_is_knows_of_nobody_else_who_cannot() {
        let own = ProcessMark::own();
        let (namespace, clock) = (own.namespace, own.clock);
        assert!(own.is_of(namespace, clock));
        assert!(!ProcessMark { namespace: 0, ..own }.is_of(0, clock), "of no known namespace");
        assert!(!ProcessMark { clock: 0, ..own }.is_of(namespace, 0), "of no known machine");
    }

    #[test]
    fn a_process_that_proc_hides_has_not_ended_while_its_number_is_there() {
        let own = ProcessMark::own();
        assert!(!own.is_gone(None));
        assert!(ProcessMark { pid: u32::MAX, ..own }.is_gone(None));
    }
}
