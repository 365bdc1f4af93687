//! Groups: from their calls to the moment when they have been executed, also after a loss.
//!
//! On a listener that restarts, a group in which a device died is executed again by those that are
//! left. Their operands are what they were: devices that had executed it already have taken it back
//! as they went on.

use std::time::Duration;

use shmccl::Error;
use shmccl::coordinator::{
    CallProgress, Client, CommId, CommState, CommStatus, CoordinatorError, DeviceId, GroupId, RequestError,
};
use tonic::Status;

use crate::comms::AllReduce;
use crate::refusal::Refusal;

/// How often a group is tried that loses a device each time: no communicator has more.
const MOST_TRIES: usize = 64;

/// Returns how a communicator is doing that has not ended.
///
/// # Errors
/// [`RequestError::Ended`], [`RequestError::NoSuchComm`]; those of the connection.
pub(crate) fn living(client: &mut Client, comm: CommId) -> Result<CommStatus, Refusal> {
    unended(client.status(comm, false)?)
}

fn unended(status: CommStatus) -> Result<CommStatus, Refusal> {
    match status.state.has_ended() {
        true => Err(RequestError::Ended { comm: status.comm, why: status.why }.into()),
        false => Ok(status),
    }
}

/// Waits until nothing is in progress.
///
/// # Errors
/// Those of [`Client::status`], but for its timeout.
pub(crate) fn settled(client: &mut Client, comm: CommId) -> Result<CommStatus, Refusal> {
    loop {
        match client.status(comm, true) {
            Err(CoordinatorError::Engine(Error::Timeout { .. })) => {}
            status => return Ok(status?),
        }
    }
}

/// Returns how a communicator is doing, after it has gone on if it had failed and `restarts`.
///
/// # Errors
/// Those of [`living`] and [`Client::go_on`].
pub(crate) fn usable(client: &mut Client, comm: CommId, restarts: bool) -> Result<CommStatus, Refusal> {
    let status = living(client, comm)?;
    if !restarts || status.state != CommState::Failed {
        return Ok(status);
    }
    match client.go_on(comm) {
        // It goes on by itself.
        Err(CoordinatorError::Refused(RequestError::WrongState { .. })) => unended(settled(client, comm)?),
        status => Ok(status?),
    }
}

/// Has `action` done once the group before is over.
fn in_turn<T>(
    client: &mut Client,
    comm: CommId,
    mut action: impl FnMut(&mut Client) -> Result<T, CoordinatorError>,
) -> Result<T, Refusal> {
    loop {
        match action(client) {
            Err(CoordinatorError::Refused(RequestError::WrongState {
                state: CommState::InProgress, ..
            })) => drop(settled(client, comm)?),
            outcome => return Ok(outcome?),
        }
    }
}

/// Starts a group.
///
/// # Errors
/// Those of [`Client::start_group`].
pub(crate) fn start(client: &mut Client, comm: CommId, restarts: bool) -> Result<GroupId, Refusal> {
    if restarts {
        usable(client, comm, restarts)?;
    }
    Ok(client.start_group(comm)?)
}

/// Puts `call` into `group` or the open one. Executes it where none is open.
///
/// # Errors
/// Those of [`Client::call`]; those of [`executed`].
pub(crate) fn call(
    client: &mut Client,
    comm: CommId,
    devices: &[DeviceId],
    call: &AllReduce,
    group: Option<GroupId>,
    restarts: bool,
) -> Result<(), Refusal> {
    match in_turn(client, comm, |client| client.call(comm, group, call.on(devices)))? {
        CallProgress::Queued { .. } => Ok(()),
        CallProgress::InProgress(number) => {
            executed(client, comm, number, restarts.then_some(std::slice::from_ref(call)))
        }
    }
}

/// Ends `group` or the open one, and waits until it has been executed. Its `calls` are executed
/// again after a loss, if they are given.
///
/// # Errors
/// Those of [`Client::end_group`] and [`executed`].
pub(crate) fn end(
    client: &mut Client,
    comm: CommId,
    group: Option<GroupId>,
    calls: Option<&[AllReduce]>,
) -> Result<(), Refusal> {
    let ended = in_turn(client, comm, |client| client.end_group(comm, group));
    match (ended, calls) {
        (Ok(number), calls) => executed(client, comm, number, calls),
        // A device was lost while the group was open, which has gone with it.
        (Err(_), Some(calls)) if has_lost(client, comm)? => again(client, comm, calls),
        (Err(refusal), _) => Err(refusal),
    }
}

/// Whether a communicator has lost a device since its last group began.
fn has_lost(client: &mut Client, comm: CommId) -> Result<bool, Refusal> {
    let status = living(client, comm)?;
    Ok(status.state == CommState::Failed || status.epoch > 1)
}

/// Waits until group `number` has been executed.
///
/// # Errors
/// `Aborted` when it has failed, and is not executed again.
fn executed(
    client: &mut Client,
    comm: CommId,
    number: u64,
    calls: Option<&[AllReduce]>,
) -> Result<(), Refusal> {
    let status = settled(client, comm)?;
    match (failure(&status, number), calls) {
        (None, _) => Ok(()),
        (Some(_), Some(calls)) if !status.state.has_ended() => again(client, comm, calls),
        (Some(why), _) => Err(Status::aborted(why).into()),
    }
}

/// Returns why group `number` has failed, if it has.
fn failure(status: &CommStatus, number: u64) -> Option<String> {
    let comm = status.comm;
    match &status.last {
        Some(last) if last.group > number => None,
        Some(last) if last.group == number => {
            let why = last.failure.as_ref()?;
            Some(format!("group {number} of communicator {comm} has failed: {why}"))
        }
        _ => {
            let why = status.why.as_deref().unwrap_or("it has ended");
            Some(format!("group {number} of communicator {comm} was not executed: {why}"))
        }
    }
}

/// Executes `calls` once more, on the devices that are left, until no device dies meanwhile.
fn again(client: &mut Client, comm: CommId, calls: &[AllReduce]) -> Result<(), Refusal> {
    let mut last = None;
    for _ in 0..MOST_TRIES {
        match once_more(client, comm, calls) {
            Ok(()) => return Ok(()),
            Err(refusal) if unended(client.status(comm, false)?).is_err() => return Err(refusal),
            Err(refusal) => last = Some(refusal),
        }
    }
    Err(last.unwrap_or_else(|| Status::aborted("the group loses a device each time").into()))
}

fn once_more(client: &mut Client, comm: CommId, calls: &[AllReduce]) -> Result<(), Refusal> {
    let status = usable(client, comm, true)?;
    let group = client.start_group(comm)?;
    for call in calls {
        client.call(comm, Some(group), call.on(&status.devices))?;
    }
    let number = client.end_group(comm, Some(group))?;
    executed(client, comm, number, None)
}

/// How long a change may go unnoticed by those who watch.
pub(crate) const GLANCE: Duration = Duration::from_millis(50);
