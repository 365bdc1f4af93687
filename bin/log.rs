//! Logs on stderr, of the subsystems and levels that `SHMCCL_LOG` names.

use std::str::FromStr;

use shmccl::logs::TARGETS;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::failure::UsageError;
use crate::output::StderrWriter;

/// The variable that says what is printed.
const VARIABLE: &str = "SHMCCL_LOG";

/// The targets of which only the ranks of `shmccl run` tell, and they to their own subscriber.
const OF_RANKS: [&str; 2] = ["meeting", "epoch"];

/// The beginning of all target names.
const PREFIX: &str = "shmccl::";

/// Prints logs from now on, if the environment asks for them.
///
/// # Errors
/// A variable that cannot be read.
pub(crate) fn start() -> Result<(), UsageError> {
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(()) };
    let targets = read(&text.to_string_lossy())?;
    let printer = fmt::layer().with_writer(|| StderrWriter).with_ansi(false);
    registry().with(printer).with(targets).init();
    Ok(())
}

/// Reads a filter such as `launch=debug,info`.
fn read(text: &str) -> Result<Targets, UsageError> {
    let mut targets = Targets::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        targets = match word.split_once('=') {
            Some((name, level)) => {
                let known = TARGETS.into_iter().find(|target| target.strip_prefix(PREFIX) == Some(name));
                targets.with_target(known.ok_or_else(|| refusal(word))?, level_of(word, level)?)
            }
            None => targets.with_default(level_of(word, word)?),
        };
    }
    Ok(targets)
}

/// Returns a hint about targets in the environment of which `shmccl run` itself says nothing.
pub(crate) fn hint_of_ranks() -> Option<String> {
    hint(&std::env::var(VARIABLE).ok()?)
}

fn hint(text: &str) -> Option<String> {
    let named = |name: &&str| {
        let levels = text.split(',').filter_map(|word| word.trim().split_once('='));
        levels.into_iter().any(|(target, level)| target == *name && !level.eq_ignore_ascii_case("off"))
    };
    let names: Vec<_> = OF_RANKS.into_iter().filter(named).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{VARIABLE} names {}: of that the ranks tell, and a program prints it that installs a subscriber of `tracing`",
            names.join(" and ")
        )
    })
}

fn level_of(word: &str, level: &str) -> Result<LevelFilter, UsageError> {
    // A number would be read as a level, too.
    let is_word = level.bytes().all(|byte| byte.is_ascii_alphabetic());
    LevelFilter::from_str(level).ok().filter(|_| is_word && !level.is_empty()).ok_or_else(|| refusal(word))
}

fn refusal(word: &str) -> UsageError {
    let names: Vec<_> = TARGETS.iter().filter_map(|target| target.strip_prefix(PREFIX)).collect();
    UsageError::new(format!(
        "{VARIABLE} has {word:?}; expected LEVEL or NAME=LEVEL, with commas between, such as launch=debug,info; the names are {}, \
         the levels error, warn, info, debug, trace, off",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_names_what_only_ranks_tell_of_is_told_that() {
        assert_eq!(hint("info,launch=debug,proxy=trace,epoch=off"), None);
        let told = hint("launch=debug, epoch=trace").unwrap();
        assert!(told.starts_with("SHMCCL_LOG names epoch: of that the ranks tell"), "{told}");
        assert!(hint("meeting=info,epoch=info").unwrap().contains("names meeting and epoch: "));
    }

    #[test]
    fn what_is_no_filter_is_refused_with_the_names_that_there_are() {
        for text in ["launch=debug,info", "info", "proxy=off, epoch=TRACE", ""] {
            assert!(read(text).is_ok(), "{text}");
        }
        for (text, word) in
            [("lunch=debug", "lunch=debug"), ("info,launch=", "launch="), ("3", "3"), ("loud", "loud")]
        {
            let told = read(text).unwrap_err().to_string();
            assert!(told.contains(&format!("{word:?}")) && told.contains("launch, meeting, epoch"), "{told}");
        }
    }
}
