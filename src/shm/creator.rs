//! The process that created a segment: which one it is, and whether it is still there.

use crate::sync::header::Creator;

impl Creator {
    /// Returns this process.
    #[must_use]
    pub fn this_process() -> Self {
        let pid = u64::from(std::process::id());
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self { pid, start: start_time(&stat).unwrap_or(0) }
    }

    /// Returns whether that process is still there. An entry that waits for the parent to ask does
    /// not count. A process without a known start time is taken to be there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match std::fs::read_to_string(format!("/proc/{}/stat", self.pid)) {
            Ok(stat) if has_ended(&stat) => false,
            Ok(stat) => self.start == 0 || start_time(&stat).is_none_or(|start| start == self.start),
            Err(_) => false,
        }
    }
}

/// Returns field 22 of `/proc/PID/stat`.
fn start_time(stat: &str) -> Option<u64> {
    fields_after_name(stat)?.nth(19)?.parse().ok()
}

/// Returns whether `/proc/PID/stat` is that of a process that has ended, by its third field.
fn has_ended(stat: &str) -> bool {
    matches!(state_of_process(stat), Some("Z" | "X"))
}

/// Returns field 3 of `/proc/PID/stat`: a letter for what the process does.
pub(crate) fn state_of_process(stat: &str) -> Option<&str> {
    fields_after_name(stat)?.next()
}

/// Returns what follows the second field of `/proc/PID/stat`: a name in parentheses that may itself
/// hold anything.
fn fields_after_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat[stat.rfind(')')? + 1..].split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_its_successor_by_its_start_time() {
        let me = Creator::this_process();
        assert!(me.start > 0);
        assert!(me.is_alive());
        assert!(!Creator { start: me.start + 1, ..me }.is_alive());
        assert!(!Creator { pid: u64::from(u32::MAX), start: 1 }.is_alive());
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_yet_is_not_alive() {
        assert!(has_ended("7 (a) Z) Z 1 7 7 0") && has_ended("7 (sh) X 1"));
        assert!(!has_ended("7 (Z) S 1 7 7 0") && !has_ended(""));
        let mut child =
            std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn().unwrap();
        // Its end of the pipe is closed as it ends, a moment before.
        std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
        let entry = Creator { pid: child.id().into(), start: 0 };
        crate::testing::wait_until("it has ended", || !entry.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_time(stat), Some(4242));
        assert_eq!(start_time("12 (a"), None);
        assert_eq!(start_time(""), None);
    }
}
