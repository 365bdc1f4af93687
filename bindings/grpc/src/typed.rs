//! `shmccl.v1.Pool`: all that the coordinator can be asked for.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use shmccl::collective::Operation;
use shmccl::coordinator::{
    CallProgress, Changes, Client, CommId, CommState, CommStatus, DeviceCall, GroupId,
};
use shmccl::heap::MIN_ADDRESS;
use shmccl::reduce::{DataType, ReduceOp};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming, async_trait};

use crate::connections::Pace;
use crate::copies::{CHUNK, Cursor, get, put_stream};
use crate::front::{Front, device_of};
use crate::groups::{self, GLANCE};
use crate::refusal::Refusal;
use crate::wire::pool::{self, pool_server::Pool};

/// The service, which every listener of the coordinator has.
#[derive(Clone, Debug)]
pub(crate) struct PoolService(pub(crate) Arc<Front>);

type Outgoing<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl PoolService {
    async fn ask<T: Send + 'static>(
        &self,
        pace: Pace,
        action: impl FnOnce(&mut Client) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        self.0.connections.ask(pace, action).await.map(Response::new)
    }
}

fn state_of(state: CommState) -> pool::State {
    match state {
        CommState::Init => pool::State::Init,
        CommState::Ready => pool::State::Ready,
        CommState::InProgress => pool::State::InProgress,
        CommState::Growing => pool::State::Growing,
        CommState::Failed => pool::State::Failed,
        CommState::Finalizing => pool::State::Finalizing,
        CommState::Finalized => pool::State::Finalized,
        CommState::Destroyed => pool::State::Destroyed,
    }
}

fn told(status: CommStatus) -> pool::CommStatus {
    let last = status.last.unwrap_or_default();
    let number = |device: shmccl::coordinator::DeviceId| u64::from(device.get());
    pool::CommStatus {
        comm: status.comm.get(),
        state: state_of(status.state).into(),
        epoch: status.epoch,
        devices: status.devices.into_iter().map(number).collect(),
        lost: status.lost.into_iter().map(number).collect(),
        last_group: last.group,
        failure: last.failure.unwrap_or_default(),
        culprit: last.culprit.map_or(0, number),
        why: status.why.unwrap_or_default(),
    }
}

/// Reads the name of a group; an empty one stands for the open group.
fn group_of(text: &str) -> Result<Option<GroupId>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let refused = |error| Status::invalid_argument(format!("{text:?} names no group: {error}"));
    text.parse().map(Some).map_err(refused)
}

/// Reads a number of the .proto file, whose name there is that of the library, in capitals.
fn named<T: FromStr>(field: &str, number: i32, name: Option<&str>) -> Result<T, Status> {
    let known = name.and_then(|name| name.to_ascii_lowercase().parse().ok());
    known.ok_or_else(|| unknown(field, number))
}

fn operation_of(number: i32) -> Result<Operation, Status> {
    named("collective", number, pool::Collective::try_from(number).ok().map(|it| it.as_str_name()))
}

fn operator_of(number: i32) -> Result<ReduceOp, Status> {
    named("op", number, pool::Operator::try_from(number).ok().map(|it| it.as_str_name()))
}

fn type_of(number: i32) -> Result<DataType, Status> {
    named("data_type", number, pool::DataType::try_from(number).ok().map(|it| it.as_str_name()))
}

fn unknown(field: &str, number: i32) -> Status {
    Status::invalid_argument(format!("{field} {number} is not known; the .proto file lists those that are"))
}

/// Makes the call for a communicator of `n` devices.
fn call_of(request: &pool::CallRequest, n: usize) -> Result<DeviceCall, Status> {
    let addresses = |given: &[u64]| -> Vec<u64> {
        // Beyond all addresses it stays: nothing is there.
        let from =
            |address: &u64| if request.relative { address.saturating_add(MIN_ADDRESS) } else { *address };
        match given {
            [one] => vec![from(one); n],
            all => all.iter().map(from).collect(),
        }
    };
    let send = addresses(&request.send);
    let recv = if request.recv.is_empty() { send.clone() } else { addresses(&request.recv) };
    Ok(DeviceCall {
        operation: operation_of(request.collective)?,
        data_type: type_of(request.data_type)?,
        op: operator_of(request.op)?,
        root: request.root,
        count: request.count,
        send,
        recv,
    })
}

/// Returns the communicators that are watched: one, also when it has ended, or all that have not.
fn watched(client: &mut Client, comm: u64) -> Result<Vec<CommStatus>, Refusal> {
    match comm {
        0 => Ok(client.list()?),
        comm => Ok(vec![client.status(CommId::new(comm), false)?]),
    }
}

/// What a look at communicators has found.
struct Look {
    /// How they are doing, or were after each change, in order.
    all: Vec<CommStatus>,
    /// The number of the last change among these.
    last: u64,
}

/// Looks at the communicators that are watched: how they have changed since the change `after`, or
/// how they are doing where that is not known any more.
fn look(client: &mut Client, comm: u64, after: Option<u64>) -> Result<Look, Refusal> {
    let is_watched = |status: &CommStatus| comm == 0 || status.comm == CommId::new(comm);
    if let Some(after) = after {
        let Changes { mut changes, last, is_torn, .. } = client.changes(after)?;
        if !is_torn {
            changes.retain(is_watched);
            return Ok(Look { all: changes, last });
        }
    }
    let before = client.changes(u64::MAX)?.last;
    let mut all = watched(client, comm)?;
    // What has changed meanwhile is told in full.
    let Changes { mut changes, last, .. } = client.changes(before)?;
    changes.retain(is_watched);
    all.retain(|status| !changes.iter().any(|change| change.comm == status.comm));
    all.extend(changes);
    Ok(Look { all, last })
}

/// Sends how communicators are doing whenever that changes, until nobody listens, or the only one
/// has ended. Every state is sent, however soon the next one follows.
async fn watch(front: Arc<Front>, comm: u64, out: mpsc::Sender<Result<pool::CommStatus, Status>>) {
    let (mut known, mut after) = (BTreeMap::<CommId, CommStatus>::new(), None);
    while !out.is_closed() {
        let looked = front.connections.ask(Pace::Quick, move |client| look(client, comm, after)).await;
        let Look { all, last } = match looked {
            Ok(look) => look,
            Err(refusal) => return drop(out.send(Err(refusal)).await),
        };
        after = Some(last);
        for status in all {
            let (id, has_ended) = (status.comm, status.state.has_ended());
            if known.get(&id) != Some(&status) && out.send(Ok(told(status.clone()))).await.is_err() {
                return;
            }
            if has_ended {
                known.remove(&id);
                if comm != 0 {
                    return;
                }
            } else {
                known.insert(id, status);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(GLANCE) => {}
            () = out.closed() => {}
        }
    }
}

#[async_trait]
impl Pool for PoolService {
    type WatchStream = ReceiverStream<Result<pool::CommStatus, Status>>;
    type ReadStream = Outgoing<pool::ReadResponse>;

    async fn init(&self, request: Request<pool::InitRequest>) -> Result<Response<pool::CommStatus>, Status> {
        let pool::InitRequest { devices, keep_going } = request.into_inner();
        let make = move |client: &mut Client| client.init(devices, keep_going).map_err(Refusal::unanswered);
        let unmake = |client: &mut Client, made: CommStatus| drop(client.destroy(made.comm));
        let made = self.0.connections.ask_or_undo(Pace::Slow, make, unmake).await?;
        Ok(Response::new(told(made)))
    }

    async fn status(
        &self,
        request: Request<pool::StatusRequest>,
    ) -> Result<Response<pool::CommStatus>, Status> {
        let pool::StatusRequest { comm, settled } = request.into_inner();
        let status = groups::status_of(&self.0.connections, CommId::new(comm), settled).await;
        Ok(Response::new(told(status.map_err(Status::from)?)))
    }

    async fn watch(
        &self,
        request: Request<pool::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (out, changes) = mpsc::channel(16);
        tokio::spawn(watch(Arc::clone(&self.0), request.into_inner().comm, out));
        Ok(Response::new(ReceiverStream::new(changes)))
    }

    async fn devices(
        &self,
        _: Request<pool::DevicesRequest>,
    ) -> Result<Response<pool::DevicesResponse>, Status> {
        self.ask(Pace::Quick, |client| {
            let told = |device: shmccl::coordinator::DeviceStatus| pool::Device {
                id: u64::from(device.device.get()),
                min: device.range.min,
                max: device.range.max,
                comm: device.comm.map_or(0, |comm| comm.get()),
                pid: device.device.get(),
            };
            Ok(pool::DevicesResponse { devices: client.devices()?.into_iter().map(told).collect() })
        })
        .await
    }

    async fn call(
        &self,
        request: Request<pool::CallRequest>,
    ) -> Result<Response<pool::CallResponse>, Status> {
        let request = request.into_inner();
        let group = group_of(&request.group)?;
        self.ask(Pace::Quick, move |client| {
            let comm = CommId::new(request.comm);
            let n = client.status(comm, false)?.devices.len();
            let call = call_of(&request, n)?;
            let progress = client.call(comm, group, call).map_err(Refusal::unanswered)?;
            Ok(match progress {
                CallProgress::Queued { .. } => pool::CallResponse { group: 0, queued: true },
                CallProgress::InProgress(group) => pool::CallResponse { group, queued: false },
            })
        })
        .await
    }

    async fn group_start(
        &self,
        request: Request<pool::GroupRequest>,
    ) -> Result<Response<pool::GroupResponse>, Status> {
        let comm = CommId::new(request.into_inner().comm);
        let start = move |client: &mut Client| {
            Ok(pool::GroupResponse { group: client.start_group(comm)?.to_string() })
        };
        self.ask(Pace::Quick, start).await
    }

    async fn group_end(
        &self,
        request: Request<pool::GroupRequest>,
    ) -> Result<Response<pool::NumberResponse>, Status> {
        let pool::GroupRequest { comm, group } = request.into_inner();
        let (comm, group) = (CommId::new(comm), group_of(&group)?);
        self.ask(Pace::Quick, move |client| {
            let number = client.end_group(comm, group).map_err(Refusal::unanswered)?;
            Ok(pool::NumberResponse { number })
        })
        .await
    }

    async fn group_cancel(
        &self,
        request: Request<pool::GroupRequest>,
    ) -> Result<Response<pool::GroupResponse>, Status> {
        let pool::GroupRequest { comm, group: name } = request.into_inner();
        let (comm, group) = (CommId::new(comm), group_of(&name)?);
        self.ask(Pace::Quick, move |client| {
            client.cancel_group(comm, group)?;
            Ok(pool::GroupResponse { group: name })
        })
        .await
    }

    async fn go_on(&self, request: Request<pool::CommRequest>) -> Result<Response<pool::CommStatus>, Status> {
        let comm = CommId::new(request.into_inner().comm);
        self.ask(Pace::Slow, move |client| Ok(told(client.go_on(comm)?))).await
    }

    async fn grow(&self, request: Request<pool::GrowRequest>) -> Result<Response<pool::CommStatus>, Status> {
        let pool::GrowRequest { comm, devices } = request.into_inner();
        let grow = move |client: &mut Client| client.grow(CommId::new(comm), devices);
        self.ask(Pace::Slow, move |client| Ok(told(grow(client).map_err(Refusal::unanswered)?))).await
    }

    async fn finalize(
        &self,
        request: Request<pool::CommRequest>,
    ) -> Result<Response<pool::CommStatus>, Status> {
        let comm = CommId::new(request.into_inner().comm);
        self.ask(Pace::Slow, move |client| {
            client.finalize(comm)?;
            Ok(told(client.status(comm, false)?))
        })
        .await
    }

    async fn destroy(
        &self,
        request: Request<pool::CommRequest>,
    ) -> Result<Response<pool::CommStatus>, Status> {
        let comm = CommId::new(request.into_inner().comm);
        self.ask(Pace::Slow, move |client| {
            client.destroy(comm)?;
            Ok(told(client.status(comm, false)?))
        })
        .await
    }

    async fn checkpoint(
        &self,
        request: Request<pool::CheckpointRequest>,
    ) -> Result<Response<pool::NumberResponse>, Status> {
        let pool::CheckpointRequest { comm, directory } = request.into_inner();
        self.ask(Pace::Slow, move |client| {
            let number = client.checkpoint(CommId::new(comm), absolute(&directory)?);
            Ok(pool::NumberResponse { number: number.map_err(Refusal::unanswered)? })
        })
        .await
    }

    async fn restore(
        &self,
        request: Request<pool::CheckpointRequest>,
    ) -> Result<Response<pool::NumberResponse>, Status> {
        let pool::CheckpointRequest { comm, directory } = request.into_inner();
        self.ask(Pace::Slow, move |client| {
            let number = client.restore(CommId::new(comm), absolute(&directory)?);
            Ok(pool::NumberResponse { number: number.map_err(Refusal::unanswered)? })
        })
        .await
    }

    async fn write(
        &self,
        request: Request<Streaming<pool::WriteRequest>>,
    ) -> Result<Response<pool::WriteResponse>, Status> {
        let mut chunks = request.into_inner();
        let Some(first) = chunks.message().await? else {
            return Err(Status::invalid_argument("no device is named"));
        };
        let device = device_of(first.device).map_err(Status::from)?;
        let address = first.address;
        let all = tokio_stream::once(Ok(first)).chain(chunks).map(|chunk| bounded(chunk?.data));
        let len = put_stream(&self.0, Cursor::new(device, address), all).await?;
        Ok(Response::new(pool::WriteResponse { len }))
    }

    async fn read(&self, request: Request<pool::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let pool::ReadRequest { device, address, len } = request.into_inner();
        let device = device_of(device).map_err(Status::from)?;
        let coming = ReceiverStream::new(get(&self.0, Cursor::new(device, address), len, CHUNK));
        Ok(Response::new(Box::pin(coming.map(|data| data.map(|data| pool::ReadResponse { data })))))
    }
}

/// # Errors
/// `ResourceExhausted` for a chunk that is too long.
fn bounded(data: Bytes) -> Result<Bytes, Status> {
    if data.len() <= CHUNK {
        return Ok(data);
    }
    Err(Status::resource_exhausted(format!("a chunk has {} bytes, and {CHUNK} is the most", data.len())))
}

/// Returns the name of a directory that means the same wherever this front was started.
fn absolute(directory: &str) -> Result<&str, Status> {
    if directory.starts_with('/') {
        return Ok(directory);
    }
    Err(Status::invalid_argument(format!("the directory {directory:?} does not begin with a slash")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_number_of_the_protocol_means_what_the_library_has_of_that_name() {
        let operations: Vec<_> = (1..).map_while(|number| operation_of(number).ok()).collect();
        assert_eq!(operations, DeviceCall::OPERATIONS);
        let operators: Vec<_> = (0..8).map(|number| operator_of(number).unwrap()).collect();
        assert_eq!(operators, ReduceOp::PLAIN);
        let types: BTreeSet<_> = (0..17).map(|number| type_of(number).unwrap().code()).collect();
        assert_eq!(types.len(), DataType::ALL.len());
        assert!(operation_of(0).is_err());
        assert!(operator_of(8).is_err() && type_of(17).is_err() && type_of(-1).is_err());
    }

    #[test]
    fn one_address_stands_for_all_ranks_and_no_output_for_the_input() {
        let request = pool::CallRequest {
            collective: pool::Collective::Broadcast.into(),
            send: vec![0x10],
            relative: true,
            ..Default::default()
        };
        let call = call_of(&request, 3).unwrap();
        assert_eq!((call.send, call.recv), (vec![0x1010; 3], vec![0x1010; 3]));
        let apart = pool::CallRequest { send: vec![1, 2], recv: vec![3], relative: false, ..request };
        let call = call_of(&apart, 2).unwrap();
        assert_eq!((call.send, call.recv), (vec![1, 2], vec![3, 3]));
    }

    #[test]
    fn a_group_has_the_name_that_it_was_started_by() {
        assert!(group_of("nonsense").is_err() && group_of("").unwrap().is_none());
    }
}
