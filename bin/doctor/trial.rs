//! Starts a job that does an all_reduce, as `shmccl run` would, and looks for the tuning table that
//! its ranks would find.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use shmccl::Error;
use shmccl::collective::tuning::{Table, VARIABLE, usual_file};
use shmccl_harness::jobs::LAST_WORDS;

use super::{HostFinding, JobSize};
use crate::device_job::{DeviceCommand, carry_out};
use crate::failure;
use crate::flags::JobArgs;
use crate::perf::jobs::DEVICE_COMMAND;
use crate::perf::spec::{self, PerfSpec};
use crate::units::format_ns;

/// The longest time for ranks to meet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts a job and looks at the tuning table.
///
/// # Errors
/// [`Error::Interrupted`].
pub(super) fn examine(job: JobSize) -> Result<Vec<HostFinding>> {
    let table = tuning_table(std::env::var_os(VARIABLE));
    Ok(vec![table, start(job)?])
}

fn start(job: JobSize) -> Result<HostFinding> {
    let topic = "a job";
    let args =
        JobArgs { proxy: job.proxy, heap: Some(job.heap), timeout: PATIENCE, no_pin: false, plans: None };
    let environment = vec![(spec::VARIABLE, serde_json::to_string(&PerfSpec::of_nothing())?)];
    // A trace of this job must not take the place of one that the user has.
    let is_traced = std::env::var_os("SHMCCL_TRACE").is_some();
    let (heap_len, heap_of) = (job.heap, "--heap");
    let (command, grace) = (DEVICE_COMMAND, LAST_WORDS);
    let order = DeviceCommand { command, environment, heap_len, heap_of, is_traced, grace };
    Ok(match carry_out(order, job.ranks, &args, &mut |_| Ok(())) {
        Ok(ready_after) => {
            let after = ready_after.map_or(f64::NAN, |after| after.as_secs_f64() * 1e9);
            HostFinding::ok(topic, format!("works: all ranks were ready after {}", format_ns(after)))
        }
        Err(error) if matches!(error.downcast_ref(), Some(Error::Interrupted { .. })) => return Err(error),
        Err(error) => HostFinding::bad(topic, "does not work", failure::chain(&error)),
    })
}

/// Says which table programs find, where the variable has it `named` or at the usual place.
fn tuning_table(named: Option<OsString>) -> HostFinding {
    let topic = "tuning table";
    let usual = if named.is_none() { usual_file() } else { None };
    if let Err(error) = Table::load() {
        return HostFinding::bad(topic, "cannot be used", error.to_string());
    }
    match (named.filter(|named| !named.is_empty()), usual) {
        (Some(named), _) => HostFinding::ok(topic, named.to_string_lossy()),
        (None, Some(usual)) => match (Table::passed_over(), Table::read(&usual)) {
            (Some(error), _) => HostFinding::warn(topic, "built in", error.to_string()),
            (None, Ok(_)) => HostFinding::ok(topic, usual.to_string_lossy()),
            (None, Err(_)) => HostFinding::ok(topic, "built in"),
        },
        (None, None) => HostFinding::ok(topic, "built in"),
    }
}
