//! Groups: from their calls to the moment when they have been executed, also after a loss.
//!
//! On a listener that restarts, a group in which a device died is executed again by those that are
//! left. Their operands are what they were: devices that had executed it already have taken it back
//! as they went on.

use std::time::Duration;

use shmccl::coordinator::{
    CallProgress, CommId, CommState, CommStatus, CoordinatorError, DeviceId, GroupId, RequestError,
    StartedGroup,
};
use tonic::{Code, Status};

use crate::comms::{AllReduce, OpenGroup};
use crate::connections::{Connections, Pace};
use crate::refusal::Refusal;

/// How often a group is tried that loses a device each time: no communicator has more.
const MOST_TRIES: usize = 64;

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

/// Returns how a communicator is doing, after it has gone on if it had failed and `restarts`.
///
/// # Errors
/// Fails as [`living`] or [`Client::go_on`](shmccl::coordinator::Client::go_on) does.
pub(crate) async fn usable(
    coordinator: &Connections,
    comm: CommId,
    restarts: bool,
) -> Result<CommStatus, Refusal> {
    let status = living(coordinator, comm).await?;
    if !restarts || status.state != CommState::Failed {
        return Ok(status);
    }
    match coordinator.sent(Pace::Slow, |client| client.send_go_on(comm)).await {
        // It goes on by itself.
        Err(CoordinatorError::Refused(RequestError::WrongState { .. })) => {
            unended(status_of(coordinator, comm, true).await?)
        }
        status => Ok(status?),
    }
}

/// Checks that a communicator takes calls, after it has gone on if it had failed and `restarts`.
///
/// # Errors
/// Fails as [`usable`] does, or with [`RequestError::Failed`], [`RequestError::WrongState`].
pub(crate) async fn takes_calls(
    coordinator: &Connections,
    comm: CommId,
    restarts: bool,
) -> Result<(), Refusal> {
    let CommStatus { state, why, .. } = usable(coordinator, comm, restarts).await?;
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

/// Starts a group.
///
/// # Errors
/// Fails as [`Client::start_group`](shmccl::coordinator::Client::start_group) does.
pub(crate) async fn start(
    coordinator: &Connections,
    comm: CommId,
    restarts: bool,
) -> Result<StartedGroup, Refusal> {
    let start = || coordinator.sent(Pace::Quick, |client| client.send_start_group(comm));
    match start().await {
        Err(CoordinatorError::Refused(RequestError::Failed { .. })) if restarts => {
            usable(coordinator, comm, restarts).await?;
            Ok(start().await?)
        }
        started => Ok(started?),
    }
}

/// Puts `call` into `group` or the open one. Executes it where none is open, and returns whether it
/// has.
///
/// # Errors
/// Fails as [`Client::call`](shmccl::coordinator::Client::call) does, or as [`executed`] does.
pub(crate) async fn call(
    coordinator: &Connections,
    comm: CommId,
    devices: &[DeviceId],
    call: &AllReduce,
    group: Option<GroupId>,
    restarts: bool,
) -> Result<bool, Refusal> {
    let progress = loop {
        let on_devices = call.on(devices);
        let sent = coordinator.sent(Pace::Quick, |client| client.send_call(comm, group, on_devices));
        let progress = sent.await;
        if !was_too_early(coordinator, comm, &progress).await? {
            break progress?;
        }
    };
    match progress {
        CallProgress::Queued { .. } => Ok(false),
        CallProgress::InProgress(number) => {
            let status = status_of(coordinator, comm, true).await?;
            let again = restarts.then_some(std::slice::from_ref(call));
            executed(coordinator, &status, number, again).await.map(|()| true)
        }
    }
}

/// Ends the group that `open` tells of, or whichever is open at the coordinator, and waits until it
/// has been executed. Its calls are executed again after a loss, if it `restarts` and they are
/// known.
///
/// # Errors
/// Fails as [`Client::end_group`](shmccl::coordinator::Client::end_group) or [`executed`] does.
pub(crate) async fn end(
    coordinator: &Connections,
    comm: CommId,
    open: Option<OpenGroup>,
    restarts: bool,
) -> Result<(), Refusal> {
    let known = open.and_then(|open| Some((open.started?, open.calls)));
    let group = known.as_ref().map(|(started, _)| started.group);
    let again_after_a_loss = known.filter(|_| restarts);
    let refused = match finish(coordinator, comm, group).await {
        Ok((number, status)) => {
            let calls = again_after_a_loss.as_ref().map(|(_, calls)| &calls[..]);
            return executed(coordinator, &status, number, calls).await;
        }
        Err(refusal) => refusal,
    };
    match again_after_a_loss {
        // A device was lost while the group was open, which has gone with it.
        Some((started, calls))
            if refused.0.code() == Code::FailedPrecondition
                && has_lost(coordinator, comm, &started.devices).await? =>
        {
            again(coordinator, comm, &calls).await
        }
        _ => Err(refused),
    }
}

/// Ends a group. Returns its number, and how the communicator is doing when the group is over.
async fn finish(
    coordinator: &Connections,
    comm: CommId,
    group: Option<GroupId>,
) -> Result<(u64, CommStatus), Refusal> {
    loop {
        let status = coordinator.sent(Pace::Slow, |client| client.send_execute_group(comm, group)).await;
        if !was_too_early(coordinator, comm, &status).await? {
            let status = status?;
            return Ok((status.last.as_ref().map_or(0, |last| last.group), status));
        }
    }
}

/// Returns whether a communicator has failed, or has gone on, since it had these `devices`.
async fn has_lost(coordinator: &Connections, comm: CommId, devices: &[DeviceId]) -> Result<bool, Refusal> {
    let status = living(coordinator, comm).await?;
    let is_lost = |device: &DeviceId| !status.devices.contains(device) || status.lost.contains(device);
    Ok(status.state == CommState::Failed || devices.iter().any(is_lost))
}

/// [Checks](check) that group `number` has been executed. If its `calls` are given it is executed
/// again where it has failed.
///
/// # Errors
/// `Aborted` when it has failed, and is not executed again.
async fn executed(
    coordinator: &Connections,
    status: &CommStatus,
    number: u64,
    calls: Option<&[AllReduce]>,
) -> Result<(), Refusal> {
    match (check(status, number), calls) {
        (Err(_), Some(calls)) if !status.state.has_ended() => again(coordinator, status.comm, calls).await,
        (checked, _) => checked,
    }
}

/// Checks by a status of later that group `number` has been executed.
///
/// # Errors
/// `Aborted` when it has failed.
fn check(status: &CommStatus, number: u64) -> Result<(), Refusal> {
    failure(status, number).map_or(Ok(()), |why| Err(Status::aborted(why).into()))
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
async fn again(coordinator: &Connections, comm: CommId, calls: &[AllReduce]) -> Result<(), Refusal> {
    let mut last = None;
    for _ in 0..MOST_TRIES {
        match once_more(coordinator, comm, calls).await {
            Ok(()) => return Ok(()),
            Err(refusal) => {
                // A group that was under way when the coordinator ended may go on.
                let is_untold = refusal.0.code() == Code::Unavailable;
                if is_untold || living(coordinator, comm).await.is_err() {
                    return Err(refusal);
                }
                last = Some(refusal);
            }
        }
    }
    Err(last.unwrap_or_else(|| Status::aborted("the group loses a device each time").into()))
}

async fn once_more(coordinator: &Connections, comm: CommId, calls: &[AllReduce]) -> Result<(), Refusal> {
    let started = start(coordinator, comm, true).await?;
    let group = Some(started.group);
    for call in calls {
        let call = call.on(&started.devices);
        coordinator.sent(Pace::Quick, |client| client.send_call(comm, group, call)).await?;
    }
    let (number, status) = finish(coordinator, comm, group).await?;
    check(&status, number)
}

/// How long a change may go unnoticed by those who watch.
pub(crate) const GLANCE: Duration = Duration::from_millis(50);
