//! What all devices of a pool that are in a communicator are doing, as SIGQUIT asks.

use std::time::Duration;

use shmccl::coordinator::{Client, CoordinatorError, RuntimeDirectory};

use crate::{jobs, output};

/// How long the coordinator may take to say which devices it has.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints it, from a thread of its own: it asks the coordinator, which goes on serving.
pub(super) fn tell(directory: RuntimeDirectory) {
    let tell = move || match reports(&directory) {
        Ok(reports) if reports.is_empty() => output::note("no device of the pool is in a communicator"),
        Ok(reports) => reports.iter().for_each(|report| output::note(report)),
        Err(error) => output::note(&format!("nothing can be told of the devices: {error}")),
    };
    // Whoever asks again may be luckier.
    let _ = std::thread::Builder::new().name("shmccl report".to_owned()).spawn(tell);
}

fn reports(directory: &RuntimeDirectory) -> Result<Vec<String>, CoordinatorError> {
    let devices = Client::connect(directory, PATIENCE)?.devices()?;
    let is_its = |process: &u32| devices.iter().any(|device| device.device.get() == *process);
    let seen = jobs::all().into_iter().filter(|seen| seen.job.processes().iter().any(is_its));
    Ok(seen.map(|seen| seen.report.to_string()).collect())
}
