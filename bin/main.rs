//! The command `shmccl`. The only place in the project that prints.
#![forbid(unsafe_code)]

mod args;
mod compare;
mod doctor;
mod failure;
mod file;
mod host;
mod machine;
mod output;
mod perf;
mod row;
mod run;
mod sizes;
mod units;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(explain(&error)),
    };
    let outcome = match &cli.command {
        Command::Perf(args) => perf::run(args),
        Command::Run(args) => run::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::ProxyService => run::serve(),
        Command::Become(args) => run::become_program(args),
        Command::PerfDevice => perf::device::run().map(|()| failure::DONE),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::from(failure::DONE),
        Err(error) => {
            output::error(&failure::chain(&error));
            ExitCode::from(failure::exit_code(&error))
        }
    }
}

/// The command that the first word on the command line names, or else the command itself.
fn named_command() -> String {
    let word = std::env::args_os().nth(1).unwrap_or_default();
    match Cli::command().get_subcommands().find(|command| command.get_name() == word) {
        Some(command) => format!("shmccl {}", command.get_name()),
        None => "shmccl".to_owned(),
    }
}

/// Prints help and version as clap lays them out, and anything else as one line.
fn explain(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is the only way to fail here, and nobody is left to be told.
            let _ = error.print();
            failure::DONE
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            failure::USAGE
        }
        _ => {
            output::error(&failure::one_line(error, &named_command()));
            failure::USAGE
        }
    }
}
