//! Failures of the command: one line on stderr, and an exit code that says whose fault it was.

use std::io;

use shmccl::coordinator::CoordinatorError;

use crate::output::CANNOT_WRITE;

/// The exit code of success.
pub(crate) const DONE: u8 = 0;
/// The exit code of a failure, or of wrong data.
pub(crate) const FAILED: u8 = 1;
/// The exit code of wrong usage: a flag or a value that does not exist, or contradicts another.
pub(crate) const USAGE: u8 = 2;

/// A command line that clap accepts and that has no meaning. The message has the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct UsageError {
    message: String,
}

impl UsageError {
    /// Makes a usage error with this message.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    /// Makes a usage error about a flag that changes nothing.
    pub(crate) fn no_effect(flag: &str, with: &str) -> Self {
        Self::new(format!("{flag} has no effect with {with}; leave it out"))
    }
}

/// The exit code for a process that a signal has ended, less the number of the signal.
pub(crate) const BY_SIGNAL: i32 = 128;

/// Returns the exit code of an error. An interrupt has that of a shell.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    // Only the job may notice a wrong list of faults, or a wrong variable.
    let of_coordinator = match error.downcast_ref() {
        Some(CoordinatorError::Engine(error)) => Some(error),
        _ => None,
    };
    match error.downcast_ref().or(of_coordinator) {
        Some(shmccl::Error::Interrupted { signal }) => u8::try_from(BY_SIGNAL + signal).unwrap_or(FAILED),
        Some(shmccl::Error::FaultSpec { .. } | shmccl::Error::Setting { .. }) => USAGE,
        _ if error.downcast_ref::<UsageError>().is_some() => USAGE,
        _ => FAILED,
    }
}

/// Whether an error only says that stdout was closed, as in `shmccl doctor | head -1`. Any other
/// broken pipe is a failure.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.to_string() == CANNOT_WRITE)
        && error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(broken))
}

/// Writes an error and its causes in one line. A cause that the error already names is left out.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        let cause = cause.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.as_str() {
            "" => line = cause,
            told if told.ends_with(&cause) => {}
            _ => {
                line.push_str(": ");
                line.push_str(&cause);
            }
        }
    }
    let is_too_large = |cause: &io::Error| cause.kind() == io::ErrorKind::FileTooLarge;
    if !line.contains("ulimit -f") && error.chain().any(|it| it.downcast_ref().is_some_and(is_too_large)) {
        line.push_str("; raise `ulimit -f`");
    }
    line
}

/// Writes an error of clap about `command` in one line: the error, the tips, and where to read
/// more.
pub(crate) fn one_line(error: &clap::Error, command: &str) -> String {
    let text = error.render().to_string();
    let mut line = String::new();
    for paragraph in text.split("\n\n") {
        let words = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(message) = words.strip_prefix("error: ") {
            line.push_str(message);
        } else if !words.is_empty() && !words.starts_with("Usage: ") && !is_left_out(&words, command) {
            line.push_str("; ");
            line.push_str(words.trim_start_matches("tip: "));
        }
    }
    format!("{line}; try '{command} --help'")
}

/// Whether `words` of clap about `command` help nobody. Only the program of `run` may have
/// arguments that look like flags.
fn is_left_out(words: &str, command: &str) -> bool {
    let is_about_values = words.starts_with("tip: to pass '") && !command.ends_with(" run");
    is_about_values || words.starts_with("For more information")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_chain_of_causes_is_one_line() {
        let cause = io::Error::other("disk on\nfire");
        let error = Err::<(), _>(cause).context("cannot write report.json").unwrap_err();
        assert_eq!(chain(&error), "cannot write report.json: disk on fire");
        assert_eq!(exit_code(&error), FAILED);
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let error = anyhow::Error::new(io::Error::other("no")).context("cannot: no");
        assert_eq!(chain(&error), "cannot: no");
    }

    #[test]
    fn a_usage_error_keeps_its_exit_code_below_a_context() {
        let error = Err::<(), _>(UsageError::new("wrong")).context("in perf").unwrap_err();
        assert_eq!(exit_code(&error), USAGE);
    }

    #[test]
    fn a_variable_that_the_user_has_set_wrongly_is_a_usage_error_whose_remedy_is_to_set_it_rightly() {
        let error = shmccl::Error::Setting { variable: "SHMCCL_CHECKSUMS", expected: "1, or 0 for none" };
        let error = anyhow::Error::new(error);
        assert_eq!(exit_code(&error), USAGE);
        assert_eq!(
            chain(&error),
            "SHMCCL_CHECKSUMS: expected 1, or 0 for none; set it to that, or not at all"
        );
    }

    #[test]
    fn an_interrupt_has_the_exit_code_of_a_shell_below_a_context() {
        let interrupted = Err::<(), _>(shmccl::Error::Interrupted { signal: 15 });
        assert_eq!(exit_code(&interrupted.context("with 2 ranks").unwrap_err()), 143);
    }

    #[test]
    fn a_closed_stdout_is_recognised_below_a_context_and_no_other_pipe_is() {
        let broken = || Err::<(), _>(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_closed_pipe(&broken().context(CANNOT_WRITE).context("in perf").unwrap_err()));
        assert!(!is_closed_pipe(&broken().context("cannot write report.json").unwrap_err()));
        assert!(!is_closed_pipe(&anyhow::anyhow!("other")));
    }
}
