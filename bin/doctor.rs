//! `shmccl doctor`: checks whether the machine can carry a job, by trying what a job needs, with
//! one line of advice for each finding.
//!
//! Tried by its unit tests and `environments doctor::`.

mod cores;
mod limits;
mod memory;
mod trial;

use std::path::PathBuf;

use anstyle::AnsiColor;
use anyhow::Result;
use clap::Args;
use comfy_table::{Attribute, Cell, Color};
use serde::Serialize;

use crate::flags::{ProxyPlace, n_ranks};
use crate::host::{HostFiles, MachineInfo};
use crate::output::{self, TableLook};
use crate::units::parse_size;
use crate::{failure, file, table};

/// Flags of `shmccl doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Device processes that the machine has to carry
    #[arg(short = 'g', long, value_name = "N", value_parser = n_ranks(1), default_value_t = 2)]
    pub(crate) ranks: u32,
    /// Where the proxies would run
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = ProxyPlace::Thread)]
    pub(crate) proxy: ProxyPlace,
    /// Symmetric heap of every device process
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    pub(crate) heap: u64,
    /// Write the findings to a file as well; - is standard output, and sends the table to standard
    /// error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Nothing to do.
    Ok,
    /// A job works, but slower or within narrower limits than it could.
    Warn,
    /// A job of this size does not work.
    Bad,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostFinding {
    /// What was checked.
    pub(crate) topic: &'static str,
    /// What was found.
    pub(crate) found: String,
    /// How serious it is.
    pub(crate) verdict: Severity,
    /// The remedy, if there is something to do.
    pub(crate) advice: Option<String>,
}

/// The job that the machine has to carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobSize {
    /// Device processes.
    pub(crate) ranks: u32,
    /// Where the proxies run.
    pub(crate) proxy: ProxyPlace,
    /// Symmetric heap of each device process, in bytes.
    pub(crate) heap: u64,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    machine: MachineInfo,
    ranks: u32,
    verdict: Severity,
    findings: Vec<HostFinding>,
}

impl HostFinding {
    /// Makes a finding with nothing to do.
    pub(crate) fn ok(topic: &'static str, found: impl Into<String>) -> Self {
        Self { topic, found: found.into(), verdict: Severity::Ok, advice: None }
    }

    /// Makes a finding that costs speed or room.
    pub(crate) fn warn(topic: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { topic, found: found.into(), verdict: Severity::Warn, advice: Some(advice.into()) }
    }

    /// Makes a finding that stops a job.
    pub(crate) fn bad(topic: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { topic, found: found.into(), verdict: Severity::Bad, advice: Some(advice.into()) }
    }
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }

    fn cell(self) -> Cell {
        let cell = Cell::new(self.word());
        match self {
            Self::Ok => cell.fg(Color::Green),
            Self::Warn => cell.fg(Color::Yellow),
            Self::Bad => cell.fg(Color::Red).add_attribute(Attribute::Bold),
        }
    }

    fn colour(self) -> AnsiColor {
        match self {
            Self::Ok => AnsiColor::Green,
            Self::Warn => AnsiColor::Yellow,
            Self::Bad => AnsiColor::Red,
        }
    }
}

/// Runs the command. The exit code is 1 if a finding is bad.
///
/// # Errors
/// Returns the errors of writing the report, and an interrupt.
pub(crate) fn run(args: &DoctorArgs) -> Result<u8> {
    if let Some(path) = &args.json {
        file::check_writable(path)?;
    }
    let job = JobSize { ranks: args.ranks, proxy: args.proxy, heap: args.heap };
    let mut findings = examine(&HostFiles::new(), job);
    findings.extend(trial::examine(job)?);
    let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Severity::Ok);
    let diagnosis = Diagnosis { machine: MachineInfo::detect(), ranks: args.ranks, verdict, findings };
    if let Some(path) = &args.json {
        file::write_json(path, &diagnosis)?;
    }
    output::print(&present(TableLook::of_tables(), &diagnosis))?;
    Ok(if verdict == Severity::Bad { failure::FAILED } else { failure::DONE })
}

fn examine(host: &HostFiles, job: JobSize) -> Vec<HostFinding> {
    let mut findings = cores::examine(host, job);
    findings.extend(memory::examine(host, job));
    findings.extend(limits::examine(job));
    findings
}

fn present(look: TableLook, diagnosis: &Diagnosis) -> String {
    let row = |finding: &HostFinding| {
        vec![finding.verdict.cell(), Cell::new(finding.topic), Cell::new(&finding.found)]
    };
    let mut text = format!("{}\n\n", diagnosis.machine.line());
    text.push_str(&table::lay_out(look, &["", "looked at", "found"], 3, diagnosis.findings.iter().map(row)));
    text.push('\n');
    for finding in &diagnosis.findings {
        if let Some(advice) = &finding.advice {
            let word = look.paint(finding.verdict.word(), finding.verdict.colour());
            text.push_str(&format!("{word} {}: {advice}\n", finding.topic));
        }
    }
    text.push_str(&conclusion(diagnosis));
    text
}

fn conclusion(diagnosis: &Diagnosis) -> String {
    let ranks = diagnosis.ranks;
    let devices =
        if ranks == 1 { "1 device process".to_owned() } else { format!("{ranks} device processes") };
    match diagnosis.verdict {
        Severity::Ok => format!("This machine carries {devices} well.\n"),
        Severity::Warn => format!("This machine carries {devices}; the advice above makes it better.\n"),
        Severity::Bad => {
            format!("This machine does not carry {devices} before the bad findings are mended.\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis(findings: Vec<HostFinding>, verdict: Severity) -> Diagnosis {
        Diagnosis { machine: MachineInfo::detect(), ranks: 2, verdict, findings }
    }

    #[test]
    fn every_finding_that_is_not_ok_comes_with_advice() {
        let job = JobSize { ranks: 64, proxy: ProxyPlace::Thread, heap: 1 << 50 };
        for finding in examine(&HostFiles::new(), job) {
            assert_eq!(finding.verdict != Severity::Ok, finding.advice.is_some(), "{finding:?}");
            let lines =
                finding.found.lines().count() + finding.advice.as_deref().unwrap_or("").lines().count();
            assert!(lines <= 2 && !finding.found.is_empty(), "{finding:?}");
        }
    }

    #[test]
    fn a_machine_that_tells_nothing_is_still_examined() {
        let job = JobSize { ranks: 2, proxy: ProxyPlace::Process, heap: 1 << 20 };
        assert!(!examine(&HostFiles::at("/nonexistent"), job).is_empty());
    }

    #[test]
    fn advice_follows_the_table_and_the_conclusion_follows_the_worst() {
        let findings = vec![HostFinding::ok("cores", "2"), HostFinding::warn("clock", "hpet", "use tsc")];
        let text = present(TableLook::plain(), &diagnosis(findings, Severity::Warn));
        assert!(text.contains("warn  clock      hpet\n\nwarn clock: use tsc\n"), "{text}");
        assert!(text.ends_with("the advice above makes it better.\n"));
        assert!(!text.contains('\u{1b}'));
    }
}
