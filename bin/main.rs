//! The command `shmccl`. The only place in the project that prints.
#![forbid(unsafe_code)]

mod args;
mod clean;
mod compare;
mod ctl;
mod doctor;
mod failure;
mod file;
mod fit;
mod host;
mod jobs;
mod log;
mod machine;
mod output;
mod perf;
mod plot;
mod pool;
mod pools;
mod ps;
mod report;
mod row;
mod run;
mod sizes;
mod top;
mod tune;
mod units;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap::error::ErrorKind;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return conclude(explain(&error)),
    };
    conclude(execute(&cli))
}

fn execute(cli: &Cli) -> anyhow::Result<u8> {
    log::start()?;
    match &cli.command {
        Command::Perf(args) => perf::run(args),
        Command::Run(args) => run::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Coordinator(args) => pool::coordinate(args),
        Command::Device(args) => pool::be_device(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Ps(args) => ps::run(args),
        Command::Report(args) => report::run(args),
        Command::Top(args) => top::run(args),
        Command::Clean(args) => clean::run(args),
        Command::ProxyService => run::serve(),
        Command::Become(args) => run::become_program(args),
        Command::TuneDevice => tune::device::run().map(|()| failure::DONE),
        Command::PerfDevice => perf::device::run().map(|()| failure::DONE),
    }
}

/// The exit code, after the one line about what went wrong.
fn conclude(outcome: anyhow::Result<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::from(failure::DONE),
        Err(error) => {
            output::error(&failure::chain(&error));
            ExitCode::from(failure::exit_code(&error))
        }
    }
}

/// The command that the words on the command line name, with those within it: `shmccl ctl status`.
fn named_command(words: impl IntoIterator<Item = OsString>) -> String {
    let (mut command, mut name) = (Cli::command(), "shmccl".to_owned());
    for word in words {
        // A flag between them, and what it takes, is passed over.
        let within = command.get_subcommands().find(|command| command.get_name() == word).cloned();
        if let Some(within) = within {
            name = format!("{name} {}", within.get_name());
            command = within;
        }
    }
    name
}

/// Prints help and version as clap lays them out, and anything else as one line.
fn explain(error: &clap::Error) -> anyhow::Result<u8> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            error.print().context(output::CANNOT_WRITE)?;
            Ok(failure::DONE)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Goes to stderr, where nobody can be told that it could not be written.
            let _ = error.print();
            Ok(failure::USAGE)
        }
        _ => {
            output::error(&failure::one_line(error, &named_command(std::env::args_os().skip(1))));
            Ok(failure::USAGE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_whose_help_is_named_is_the_innermost_one() {
        for (words, name) in [
            (&[][..], "shmccl"),
            (&["nonsense"], "shmccl"),
            (&["doctor", "--jsn"], "shmccl doctor"),
            (&["ctl", "--timeout", "5s", "put-h2d", "status"], "shmccl ctl put-h2d"),
            (&["ctl", "group", "end", "1"], "shmccl ctl group end"),
        ] {
            assert_eq!(named_command(words.iter().map(OsString::from)), name, "{words:?}");
        }
    }
}
