//! `shmccl plan`: execution plans of MSCCL++, checked, run, shown, drawn, compared and imported.
//!
//! Tried by `command plan:: plan_refusals::`.

pub(crate) mod device;
mod flags;
mod verify;

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use shmccl_plan::check::{CheckReport, ClassReport};
use shmccl_plan::lower::smallest;
use shmccl_plan::{
    ExecutionPlan, Lowered, Problem, RefusedPlan, check, diff, draw, escaped, import, lower, show, write,
};

use crate::execution_plan::{read, refused, try_read};
use crate::failure::{DONE, FAILED, USAGE, UsageError};
use crate::{failure, file, output};
pub(crate) use flags::PlanArgs;
use flags::{CheckArgs, DiffArgs, DrawArgs, ImportArgs, PlanCommand, ShowArgs};

/// Runs the command.
///
/// # Errors
/// Files that cannot be read, are no plans, or cannot be written.
pub(crate) fn run(args: &PlanArgs) -> Result<u8> {
    match &args.command {
        PlanCommand::Check(args) => run_check(args).map_err(no_verdict),
        PlanCommand::Run(args) => verify::run(args),
        PlanCommand::Show(args) => run_show(args).map_err(no_verdict),
        PlanCommand::Draw(args) => run_draw(args).map_err(no_verdict),
        PlanCommand::Diff(args) => run_diff(args).map_err(no_verdict),
        PlanCommand::Import(args) => run_import(args).map_err(no_verdict),
    }
}

/// Keeps a failure apart from findings, whose exit code is that of failures elsewhere.
fn no_verdict(error: anyhow::Error) -> anyhow::Error {
    match failure::exit_code(&error) {
        FAILED if !failure::is_closed_pipe(&error) => UsageError::new(failure::chain(&error)).into(),
        _ => error,
    }
}

fn refusal(path: &Path, problems: Vec<Problem>) -> RefusedPlan {
    RefusedPlan { file: path.display().to_string(), problems }
}

/// Compiles a plan for a size, or for the smallest in which everything has data.
fn lowered(path: &Path, plan: &ExecutionPlan, size: Option<u64>) -> Result<Lowered> {
    let size = size.or_else(|| smallest(plan)).unwrap_or(plan.min_message);
    Ok(lower(plan, size).map_err(|problems| refused(&refusal(path, problems)))?)
}

fn run_check(args: &CheckArgs) -> Result<u8> {
    if let Some(path) = &args.json {
        file::check_writable(path)?;
    }
    let (plan, report) = match checked(args) {
        Ok(checked) => checked,
        Err(refusal) => {
            args.json.iter().try_for_each(|path| file::write_json(path, &refusal.to_json()))?;
            return Err(refused(&refusal).into());
        }
    };
    let gpu = if args.gpu { check::gpu::differences(&plan) } else { Vec::new() };
    let duties = if args.gpu { check::gpu::duties(&plan) } else { None };
    let redundant = if args.redundant { check::redundant(&plan) } else { Vec::new() };
    let redundant: Vec<_> = redundant.iter().map(ToString::to_string).collect();
    if let Some(path) = &args.json {
        let mut json = report.to_json();
        json["file"] = args.file.display().to_string().into();
        json["gpu"] = gpu.clone().into();
        json["gpu_duties"] = duties.clone().into();
        json["redundant"] = redundant.clone().into();
        file::write_json(path, &json)?;
    }
    let mut text = told(&args.file, &report);
    gpu.iter().for_each(|difference| {
        let _ = writeln!(text, "  on a GPU: {difference}");
    });
    duties.iter().for_each(|duty| {
        let _ = writeln!(text, "  note: on a GPU {duty}");
    });
    redundant.iter().for_each(|needless| {
        let _ = writeln!(text, "  note: the plan is right without {needless}");
    });
    output::print(&text)?;
    Ok(match code(&report) {
        DONE if !gpu.is_empty() => FAILED,
        code => code,
    })
}

/// Returns the exit code of a report: what is undecided is no verdict.
fn code(report: &CheckReport) -> u8 {
    match report.is_clean() {
        true => DONE,
        false if report.is_undecided() => USAGE,
        false => FAILED,
    }
}

/// Reads and checks a plan, as far as it is one.
fn checked(args: &CheckArgs) -> Result<(ExecutionPlan, CheckReport), RefusedPlan> {
    let plan = try_read(&args.file)?;
    let report = check(&plan, args.size).map_err(|problems| refusal(&args.file, problems))?;
    Ok((plan, report))
}

/// The most findings of a class that are printed.
const MAX_PRINTED: usize = 20;

/// The most classes of sizes that are named on one line.
const MAX_SIZES: usize = 4;

/// Tells a report: a line for the plan, then one for each finding.
fn told(path: &Path, report: &CheckReport) -> String {
    let mut text = format!(
        "{}: {} ({} of {} ranks, four launches in a row)\n",
        path.display(),
        report.verdict(),
        escaped(&report.collective),
        report.ranks
    );
    let mut alike: Vec<Vec<&ClassReport>> = Vec::new();
    for class in &report.classes {
        match alike.iter_mut().find(|classes| classes[0].findings == class.findings) {
            Some(classes) => classes.push(class),
            None => alike.push(vec![class]),
        }
    }
    if let Some(most) = report.right_up_to() {
        let _ = writeln!(text, "  right up to messages of {most} bytes, and no longer ones:");
    }
    for classes in alike {
        let class = classes[0];
        let _ = writeln!(text, "  {}: {}", sizes(&classes), class.verdict());
        for finding in class.findings.iter().take(MAX_PRINTED) {
            let note = if finding.kind.is_error() { "" } else { "note: " };
            let _ = writeln!(text, "    {note}{finding}");
        }
        if class.findings.len() > MAX_PRINTED {
            let _ =
                writeln!(text, "    and {} more; --json has them all", class.findings.len() - MAX_PRINTED);
        }
    }
    text
}

/// Names classes of sizes in which the same was found.
fn sizes(classes: &[&ClassReport]) -> String {
    let named = classes.iter().take(MAX_SIZES).map(|class| class.about.as_str());
    let named = named.collect::<Vec<_>>().join("; ");
    match classes.len().saturating_sub(MAX_SIZES) {
        0 => named,
        more => format!("{named}; {more} more, which --json names"),
    }
}

fn run_show(args: &ShowArgs) -> Result<u8> {
    let plan = read(&args.file)?;
    let lowered = lowered(&args.file, &plan, args.size)?;
    let mut text = show::show(&plan, &lowered).map_err(UsageError::new)?;
    if args.operations {
        text.push_str(&show::listing(&plan));
    }
    output::print(&text)?;
    Ok(DONE)
}

fn run_draw(args: &DrawArgs) -> Result<u8> {
    file::check_writable(&args.output)?;
    let plan = read(&args.file)?;
    let lowered = lowered(&args.file, &plan, args.size)?;
    let svg = draw::draw(&plan, &lowered).map_err(UsageError::new)?;
    file::write(&args.output, svg.as_bytes())?;
    Ok(DONE)
}

fn run_diff(args: &DiffArgs) -> Result<u8> {
    let [one, other] = [read(&args.one)?, read(&args.other)?];
    let differences = diff::diff(&one, &other);
    let text: String = differences.iter().map(|difference| format!("{difference}\n")).collect();
    output::print(&text)?;
    Ok(if differences.is_empty() { DONE } else { FAILED })
}

fn run_import(args: &ImportArgs) -> Result<u8> {
    file::check_writable(&args.output)?;
    let imported = import::import_file(&args.file).map_err(|refusal| UsageError::new(refusal.to_string()))?;
    output::note(told(&args.file, &imported.report).trim_end());
    if !imported.report.is_clean() && !args.unproved {
        output::note("not written, as it is not proved right; --unproved writes it");
        return Ok(code(&imported.report));
    }
    file::write(&args.output, write::write(&imported.plan).as_bytes()).context("the plan is not kept")?;
    Ok(code(&imported.report))
}
