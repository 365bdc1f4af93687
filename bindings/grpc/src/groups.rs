//! Groups: from their calls to the moment when they have been executed.
//!
//! On a listener that restarts, the coordinator has a group in which a device died executed again
//! by those that are left, and answers when that is over.

use std::time::Duration;

use shmccl::coordinator::{
    CommId, CommState, CommStatus, CoordinatorError, DeviceId, GroupId, RequestError, StartedGroup,
};
use tonic::Status;

use crate::comms::{AllReduce, ClientGroup};
use crate::connections::{Connections, Pace};
use crate::refusal::Refusal;

/// Returns how a communicator is doing that has not ended.
///
/// # Errors
/// [`RequestError::Ended`], [`RequestError::NoSuchComm`]; those of the connection.
pub(crate) async fn living(coordinator: &Connections, comm: CommId) -> Result<CommStatus, Refusal> {
    unended(status_of(coordinator, comm, false).await?)
}

/// # Errors
/// [`RequestError::Ended`] for a communicator that has.
pub(crate) fn unended(status: CommStatus) -> Result<CommStatus, Refusal> {
    match status.state.has_ended() {
        true => Err(RequestError::Ended { comm: status.comm, why: status.why }.into()),
        false => Ok(status),
    }
}

/// Returns how a communicator is doing; if `settled` once nothing is in progress, however long that
/// takes.
///
/// # Errors
/// [`RequestError::NoSuchComm`]; those of the connection.
pub(crate) async fn status_of(
    coordinator: &Connections,
    comm: CommId,
    settled: bool,
) -> Result<CommStatus, Refusal> {
    let pace = if settled { Pace::Slow } else { Pace::Quick };
    Ok(coordinator.sent(pace, |client| client.send_status(comm, settled)).await?)
}

/// Checks that a communicator takes calls.
///
/// # Errors
/// Fails as [`living`] does, or with [`RequestError::Failed`], [`RequestError::WrongState`].
pub(crate) async fn takes_calls(coordinator: &Connections, comm: CommId) -> Result<(), Refusal> {
    let CommStatus { state, why, .. } = living(coordinator, comm).await?;
    let refused = match state {
        CommState::Ready | CommState::InProgress => return Ok(()),
        CommState::Failed => {
            RequestError::Failed { comm, why: why.unwrap_or_else(|| "a group has failed".to_owned()) }
        }
        state => RequestError::WrongState { comm, state, needs: "ready or in progress".to_owned() },
    };
    Err(refused.into())
}

/// Returns whether a request was refused since the group before was in progress, which is over now.
async fn was_too_early<T>(
    coordinator: &Connections,
    comm: CommId,
    outcome: &Result<T, CoordinatorError>,
) -> Result<bool, Refusal> {
    let is_early = matches!(
        outcome,
        Err(CoordinatorError::Refused(RequestError::WrongState { state: CommState::InProgress, .. }))
    );
    if is_early {
        status_of(coordinator, comm, true).await?;
    }
    Ok(is_early)
}

/// Starts a group, which `repeats` after a loss or does not.
///
/// # Errors
/// Fails as [`Client::start_group`](shmccl::coordinator::Client::start_group) does.
pub(crate) async fn start(
    coordinator: &Connections,
    comm: CommId,
    repeats: bool,
) -> Result<StartedGroup, Refusal> {
    Ok(coordinator.sent(Pace::Quick, |client| client.send_start_group(comm, repeats)).await?)
}

/// Puts `call` into `group` or the open one. Executes it where none is open, again after a loss if
/// it `repeats`, and returns whether it has.
///
/// # Errors
/// Fails as [`Client::call`](shmccl::coordinator::Client::call) or [`succeeded`] does.
pub(crate) async fn call(
    coordinator: &Connections,
    comm: CommId,
    devices: &[DeviceId],
    call: &AllReduce,
    group: Option<GroupId>,
    repeats: bool,
) -> Result<bool, Refusal> {
    let pace = if group.is_some() { Pace::Quick } else { Pace::Slow };
    let status = loop {
        let (call, named) = (call.on(devices), repeats.then(|| devices.to_vec()));
        let status = coordinator.sent(pace, |client| client.send_execute(comm, group, call, named)).await;
        if !was_too_early(coordinator, comm, &status).await? {
            break status?;
        }
    };
    status.map_or(Ok(false), |status| succeeded(&status).map(|()| true))
}

/// Ends the group that `open` tells of, or whichever is open at the coordinator, and waits until it
/// has been executed.
///
/// # Errors
/// Fails as [`Client::end_group`](shmccl::coordinator::Client::end_group) or [`succeeded`] does.
pub(crate) async fn end(
    coordinator: &Connections,
    comm: CommId,
    open: Option<ClientGroup>,
) -> Result<(), Refusal> {
    let group = open.and_then(|open| Some(open.started?.group));
    loop {
        let status = coordinator.sent(Pace::Slow, |client| client.send_execute_group(comm, group)).await;
        if !was_too_early(coordinator, comm, &status).await? {
            return succeeded(&status?);
        }
    }
}

/// Checks that the last group of a status, which is the answer to it, has been executed.
///
/// # Errors
/// `Aborted` when it has failed.
fn succeeded(status: &CommStatus) -> Result<(), Refusal> {
    let comm = status.comm;
    let Some(last) = &status.last else {
        let why = status.why.as_deref().unwrap_or("it has ended");
        return Err(Status::aborted(format!("a group of communicator {comm} was not executed: {why}")).into());
    };
    let failed = |why| format!("group {} of communicator {comm} has failed: {why}", last.group);
    last.failure.as_ref().map_or(Ok(()), |why| Err(Status::aborted(failed(why)).into()))
}

/// How long a change may go unnoticed by those who watch.
pub(crate) const GLANCE: Duration = Duration::from_millis(50);
