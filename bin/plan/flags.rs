//! Flags of `shmccl plan`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::units::{parse_size, parse_timeout};

/// Flags of `shmccl plan`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    /// What to do with a plan.
    #[command(subcommand)]
    pub(crate) command: PlanCommand,
}

/// What to do with a plan.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Prove a plan right, or say where it hangs, races or computes the wrong thing
    ///
    /// Exit code: 0 clean, 1 findings, 2 no verdict: undecided, wrong usage, no plan, or nowhere to
    /// write.
    Check(CheckArgs),
    /// Run a plan in processes, and hold what comes out against its collective
    ///
    /// Exit code: 0 all is right, 1 wrong data, a plan that hangs, or a job that fails, 2 no plan,
    /// or sizes that it does not do.
    Run(VerifyArgs),
    /// Print who sends what to whom in which step
    Show(ShowArgs),
    /// Draw who sends what to whom, and what each block does when, as SVG
    Draw(DrawArgs),
    /// Print what differs between two plans
    ///
    /// Exit code: 0 nothing, 1 something, 2 no plans.
    Diff(DiffArgs),
    /// Write a program in MSCCL's XML as a plan, once it is proved right
    ///
    /// Exit code: 0 written and right, 1 findings, 2 undecided, no program, or nowhere to write.
    Import(ImportArgs),
}

/// Flags of `shmccl plan check`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArgs {
    /// The plan
    pub(crate) file: PathBuf,
    /// Check this message size [default: all sizes that the plan allows]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// Also find what MSCCL++'s executor refuses or runs otherwise
    #[arg(long)]
    pub(crate) gpu: bool,
    /// Also find each nop, flush, signal with its wait, or meeting that the plan is right without
    #[arg(long)]
    pub(crate) redundant: bool,
    /// Write all findings, or why there are none, to a file as well; - is standard output, and
    /// sends the text to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Flags of `shmccl plan run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The plan
    pub(crate) file: PathBuf,
    /// Run messages of these sizes [default: the smallest in which every operation has data, three
    /// times that, and about 1 MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) sizes: Vec<u64>,
    /// Give up where nothing comes for so long
    #[arg(short = 'T', long, value_name = "TIME", value_parser = parse_timeout, default_value = "10s")]
    pub(crate) timeout: Duration,
}

/// Flags of `shmccl plan show`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShowArgs {
    /// The plan
    pub(crate) file: PathBuf,
    /// Show this message size [default: the smallest in which every operation has data]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// List the operations of every block as well
    #[arg(long)]
    pub(crate) operations: bool,
}

/// Flags of `shmccl plan draw`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DrawArgs {
    /// The plan
    pub(crate) file: PathBuf,
    /// Draw this message size [default: the smallest in which every operation has data]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// The picture; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "plan.svg")]
    pub(crate) output: PathBuf,
}

/// Flags of `shmccl plan diff`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DiffArgs {
    /// A plan
    pub(crate) one: PathBuf,
    /// The plan that it is compared with
    pub(crate) other: PathBuf,
}

/// Flags of `shmccl plan import`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ImportArgs {
    /// The program in XML
    pub(crate) file: PathBuf,
    /// The plan; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "plan.json")]
    pub(crate) output: PathBuf,
    /// Write the plan even if it is not proved right
    #[arg(long)]
    pub(crate) unproved: bool,
}
