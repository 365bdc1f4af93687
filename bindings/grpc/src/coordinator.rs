//! `gpu_sim.GPUCoordinator`: communicators, groups, copies, in the dialect of a listener.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use shmccl::coordinator::{
    Client, CommId, CommState, CommStatus, CoordinatorError, DeviceId, DeviceStatus, RequestError,
};
use tonic::{Request, Response, Status, async_trait};

use crate::comms::{AllReduce, ClientGroup, ConnectionId};
use crate::connections::Pace;
use crate::dialect::Dialect;
use crate::front::{Front, device_of};
use crate::groups::{self, living};
use crate::listen::AddressBook;
use crate::memcpy::{memcpy, no_branch};
use crate::refusal::Refusal;
use crate::removal;
use crate::wire::gpu_sim::{self, gpu_coordinator_server::GpuCoordinator};

/// The service of one listener.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorService {
    pub(crate) front: Arc<Front>,
    pub(crate) dialect: Dialect,
    /// Where the devices of this listener listen.
    pub(crate) book: AddressBook,
}

/// Returns the connection over which a call has come.
fn connection_of<T>(request: &Request<T>) -> ConnectionId {
    request.extensions().get().copied().unwrap_or_default()
}

impl CoordinatorService {
    /// Has `action` ask the coordinator about a communicator in a thread.
    async fn ask_about<T: Send + 'static>(
        &self,
        comm: u64,
        action: impl FnOnce(&Front, &mut Client, CommId) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        let (front, comm) = (Arc::clone(&self.front), CommId::new(comm));
        let asked = self.front.connections.ask(Pace::Slow, move |client| action(&front, client, comm));
        self.known(comm, asked.await)
    }

    /// Has `action` done with a communicator. It goes on if nobody waits for it any more.
    async fn carry_out<T: Send + 'static, F>(
        &self,
        comm: u64,
        action: impl FnOnce(Arc<Front>, CommId) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        let comm = CommId::new(comm);
        let action = action(Arc::clone(&self.front), comm);
        self.known(comm, self.front.connections.carry_out(action).await)
    }

    /// Forgets a communicator where the coordinator has none of this number.
    fn known<T>(&self, comm: CommId, outcome: Result<T, Status>) -> Result<T, Status> {
        if outcome.as_ref().is_err_and(|refusal| refusal.code() == tonic::Code::NotFound) {
            self.front.comms.forget(comm);
        }
        outcome
    }

    async fn living(&self, comm: u64) -> Result<CommStatus, Status> {
        let comm = CommId::new(comm);
        self.known(comm, living(&self.front.connections, comm).await.map_err(Status::from))
    }

    async fn all_reduce_of(
        &self,
        comm: u64,
        count: u64,
        op: i32,
        addresses: HashMap<u32, gpu_sim::MemAddr>,
    ) -> Result<bool, Status> {
        let (count, op) = (self.dialect.elements(count)?, self.dialect.operator(op)?);
        let dialect = self.dialect;
        self.carry_out(comm, move |front, comm| async move {
            let coordinator = &front.connections;
            let (open, marked) = front.comms.with(comm, |record| {
                (record.open.as_ref().and_then(|open| open.started.clone()), record.marked.clone())
            });
            let (group, devices, after) = match open {
                Some(started) => (Some(started.group), started.devices, None),
                None => {
                    let status = living(coordinator, comm).await?;
                    (None, status.devices, Some(status.last.map_or(0, |last| last.group)))
                }
            };
            let addresses = addresses_of(&front, comm, &devices, &addresses, dialect)?;
            let call = AllReduce { count, op, addresses };
            let is_at_once = dialect.is_eager() || !marked.is_empty();
            let outcome = if marked.is_empty() {
                groups::call(coordinator, comm, &devices, &call, group, dialect.restarts()).await
            } else if group.is_none() {
                removal::call(coordinator, comm, &devices, marked, &call).await
            } else {
                return Err(removal::in_a_group());
            };
            // In a group nothing was executed: it has gone with its coordinator.
            let is_executed = if group.is_none() { told(&front, comm, after, outcome)? } else { outcome? };
            if is_at_once && !is_executed {
                return Err(in_the_group_of_another(comm));
            }
            Ok(true)
        })
        .await
    }

    fn metadata(&self, devices: &[DeviceStatus]) -> Vec<gpu_sim::DeviceMetadata> {
        (0..)
            .zip(devices)
            .map(|(rank, device)| {
                let told = self.dialect.addresses.then(|| self.book.address(device.device)).flatten();
                metadata_of(device, rank, told)
            })
            .collect()
    }
}

/// Returns the metadata of a device, which listens at `address` if that is to be told.
pub(crate) fn metadata_of(
    device: &DeviceStatus,
    rank: u32,
    address: Option<(String, u16)>,
) -> gpu_sim::DeviceMetadata {
    let rank = address.is_some().then_some(gpu_sim::Rank { value: rank });
    let (ip, port) = address.unwrap_or_default();
    gpu_sim::DeviceMetadata {
        device_id: Some(gpu_sim::DeviceId { value: u64::from(device.device.get()) }),
        min_mem_addr: Some(gpu_sim::MemAddr { value: device.range.min }),
        max_mem_addr: Some(gpu_sim::MemAddr { value: device.range.max }),
        ip,
        port: u32::from(port),
        rank,
    }
}

/// Returns the address of each device that a map from ranks names.
///
/// On a listener that restarts, ranks stay what they were when the communicator was made, and those
/// of devices that are gone are passed over. Devices that have joined are behind them.
fn addresses_of(
    front: &Front,
    comm: CommId,
    devices: &[DeviceId],
    given: &HashMap<u32, gpu_sim::MemAddr>,
    dialect: Dialect,
) -> Result<BTreeMap<DeviceId, u64>, Refusal> {
    let ranks = match dialect.restarts() {
        true => front.comms.with(comm, |record| record.ranks_of(devices)),
        false => devices.to_vec(),
    };
    let device = |rank: u32| {
        let missing = || {
            let n = ranks.len();
            let text =
                format!("communicator {comm} has no rank {rank}: it has {n} devices, and ranks begin at 0");
            Refusal(Status::invalid_argument(text))
        };
        ranks.get(rank as usize).copied().ok_or_else(missing)
    };
    given.iter().map(|(rank, address)| Ok((device(*rank)?, address.value))).collect()
}

/// Returns the outcome of a group behind group `after`, if it is known. It is untold where the
/// coordinator has ended meanwhile: statuses of the next one tell it.
fn told<T>(
    front: &Front,
    comm: CommId,
    after: Option<u64>,
    outcome: Result<T, Refusal>,
) -> Result<T, Refusal> {
    outcome.map_err(|refusal| {
        if refusal.0.code() != tonic::Code::Unavailable {
            return refusal;
        }
        front.comms.with(comm, |record| record.untold_after = after);
        Refusal::untold()
    })
}

/// Makes a communicator. Where the pool has too few free devices and it is shared, communicators
/// are ended that are idle.
fn init(
    front: &Front,
    client: &mut Client,
    devices: u32,
    dialect: Dialect,
    maker: ConnectionId,
) -> Result<CommStatus, Refusal> {
    let made = loop {
        let refused = match client.init(devices, dialect.restarts()) {
            Err(CoordinatorError::Refused(refused)) => refused,
            made => break made.map_err(Refusal::unanswered)?,
        };
        let wanting = match &refused {
            RequestError::NotEnoughDevices { asked, free, .. } if dialect.shares_devices() => {
                (*asked as usize).saturating_sub(*free)
            }
            _ => return Err(refused.into()),
        };
        if !recycle(front, client, wanting, maker)? {
            return Err(refused.into());
        }
    };
    front.comms.made(made.comm, maker, &made.devices);
    Ok(made)
}

/// Ends the idle communicator that was used longest ago, if enough devices come free with all that
/// are idle. Returns whether some may have come free.
fn recycle(
    front: &Front,
    client: &mut Client,
    wanting: usize,
    connection: ConnectionId,
) -> Result<bool, Refusal> {
    let mut idle = Vec::new();
    for comm in front.comms.idle(connection) {
        match client.status(comm, false) {
            Ok(status) if matches!(status.state, CommState::Ready | CommState::Failed) => idle.push(status),
            Ok(status) if !status.state.has_ended() => {}
            Ok(_) | Err(CoordinatorError::Refused(_)) => front.comms.forget(comm),
            Err(error) => return Err(error.into()),
        }
    }
    // No communicator ends for one that cannot be made all the same.
    let coming: usize = idle.iter().map(|it| it.devices.len().saturating_sub(it.lost.len())).sum();
    let Some(CommStatus { comm, .. }) = idle.first().filter(|_| coming >= wanting) else { return Ok(false) };
    let abandoned =
        front.comms.with_known(*comm, |record| Some(record.open.as_ref()?.started.as_ref()?.group));
    // Another call may have begun something in it since, so the coordinator looks once more.
    let ended = client.destroy_idle(*comm, abandoned.flatten());
    if let Err(CoordinatorError::Refused(RequestError::WrongState { .. })) = ended {
        return Ok(true);
    }
    front.comms.forget(*comm);
    match ended {
        // Another call has ended it meanwhile, for a communicator of its own.
        Err(CoordinatorError::Refused(RequestError::Ended { .. } | RequestError::NoSuchComm { .. })) => {
            Ok(true)
        }
        ended => Ok(ended.map(|()| true)?),
    }
}

/// Returns the devices of a communicator that was just made, by rank.
///
/// # Errors
/// [`RequestError::NotFormed`] where one of them is not among `all` any more.
fn members_of(made: &CommStatus, all: &[DeviceStatus]) -> Result<Vec<DeviceStatus>, Refusal> {
    let found = |device: &DeviceId| {
        let lost = || RequestError::NotFormed { why: format!("device {device} was lost") };
        all.iter().find(|it| it.device == *device).copied().ok_or_else(|| lost().into())
    };
    made.devices.iter().map(found).collect()
}

/// Returns the refusal of a call that was to be executed at once, and has come into a group
/// instead.
fn in_the_group_of_another(comm: CommId) -> Refusal {
    let text = format!(
        "communicator {comm} has a group that another client has started; the call is executed when that \
         ends, so end it there"
    );
    Status::failed_precondition(text).into()
}

/// Returns how the newest group has ended, as the handout names it: one behind group
/// `untold_after`, if that is given. Where there is none, it has gone with its coordinator.
fn status_of(status: &CommStatus, untold_after: Option<u64>) -> gpu_sim::Status {
    let last = status.last.as_ref().filter(|last| untold_after.is_none_or(|after| last.group > after));
    match (status.state, last) {
        (CommState::Failed, _) => gpu_sim::Status::Failed,
        (CommState::Ready, Some(last)) if last.failure.is_none() => gpu_sim::Status::Success,
        (CommState::Ready, Some(_)) => gpu_sim::Status::Failed,
        (CommState::Ready, None) if untold_after.is_some() => gpu_sim::Status::Failed,
        _ => gpu_sim::Status::InProgress,
    }
}

/// Returns the refusal of a method that only a variant has.
pub(crate) fn not_here(method: &str, presets: &str) -> Status {
    Status::unimplemented(format!(
        "{method} is not in the dialect of this listener; a listener of {presets} has it"
    ))
}

#[async_trait]
impl GpuCoordinator for CoordinatorService {
    async fn comm_init(
        &self,
        request: Request<gpu_sim::CommInitRequest>,
    ) -> Result<Response<gpu_sim::CommInitResponse>, Status> {
        let (maker, dialect) = (connection_of(&request), self.dialect);
        let (front, devices) = (Arc::clone(&self.front), request.into_inner().num_devices);
        let make = move |client: &mut Client| {
            let made = init(&front, client, devices, dialect, maker)?;
            let members = members_of(&made, &client.devices()?);
            if members.is_err() {
                front.comms.forget(made.comm);
                // Where it has ended already, so much the better.
                drop(client.destroy(made.comm));
            }
            Ok((made.comm, members?))
        };
        let unmake = |client: &mut Client, (comm, _): (CommId, _)| drop(client.destroy(comm));
        let (comm, members) = self.front.connections.ask_or_undo(Pace::Slow, make, unmake).await?;
        if self.dialect.addresses {
            self.book.add(&members);
        }
        let devices = self.metadata(&members);
        Ok(Response::new(gpu_sim::CommInitResponse { success: true, comm_id: comm.get(), devices }))
    }

    async fn get_comm_status(
        &self,
        request: Request<gpu_sim::GetCommStatusRequest>,
    ) -> Result<Response<gpu_sim::GetCommStatusResponse>, Status> {
        let comm = request.into_inner().comm_id;
        let living = self.living(comm).await?;
        let untold_after = self.front.comms.with_known(CommId::new(comm), |record| record.untold_after);
        let status = self.dialect.status(status_of(&living, untold_after.flatten()));
        Ok(Response::new(gpu_sim::GetCommStatusResponse { status }))
    }

    async fn group_start(
        &self,
        request: Request<gpu_sim::GroupStartRequest>,
    ) -> Result<Response<gpu_sim::GroupStartResponse>, Status> {
        let (starter, dialect) = (connection_of(&request), self.dialect);
        self.carry_out(request.into_inner().comm_id, move |front, comm| async move {
            let started = if dialect.is_eager() {
                groups::takes_calls(&front.connections, comm).await?;
                None
            } else {
                Some(groups::start(&front.connections, comm, dialect.restarts()).await?)
            };
            front.comms.with(comm, |record| match &record.open {
                Some(_) if started.is_none() => Err(RequestError::GroupOpen { comm, open: true }.into()),
                _ => {
                    record.open = Some(ClientGroup { starter, started });
                    Ok(())
                }
            })
        })
        .await?;
        Ok(Response::new(gpu_sim::GroupStartResponse { success: true }))
    }

    async fn group_end(
        &self,
        request: Request<gpu_sim::GroupEndRequest>,
    ) -> Result<Response<gpu_sim::GroupEndResponse>, Status> {
        let (comm, dialect) = (request.into_inner().comm_id, self.dialect);
        self.carry_out(comm, move |front, comm| async move {
            let coordinator = &front.connections;
            // Where there is none nothing changes, and the group can be ended later.
            coordinator.reach().await?;
            let open = front.comms.with(comm, |record| record.open.take());
            match open {
                Some(ClientGroup { started: None, .. }) => living(coordinator, comm).await.map(drop),
                None if dialect.is_eager() => {
                    living(coordinator, comm).await?;
                    Err(RequestError::GroupOpen { comm, open: false }.into())
                }
                open => {
                    let after = open.as_ref().and_then(|open| Some(open.started.as_ref()?.after));
                    let outcome = groups::end(coordinator, comm, open).await;
                    told(&front, comm, after, outcome)
                }
            }
        })
        .await?;
        Ok(Response::new(gpu_sim::GroupEndResponse { success: true }))
    }

    async fn all_reduce_ring(
        &self,
        request: Request<gpu_sim::AllReduceRingRequest>,
    ) -> Result<Response<gpu_sim::AllReduceRingResponse>, Status> {
        let gpu_sim::AllReduceRingRequest { comm_id, count, op, mem_addrs } = request.into_inner();
        let success = self.all_reduce_of(comm_id, count, op, mem_addrs).await?;
        Ok(Response::new(gpu_sim::AllReduceRingResponse { success }))
    }

    async fn memcpy(
        &self,
        request: Request<gpu_sim::MemcpyRequest>,
    ) -> Result<Response<gpu_sim::MemcpyResponse>, Status> {
        let either = request.into_inner().either.ok_or_else(no_branch)?;
        memcpy(&self.front, either, None).await
    }

    async fn comm_finalize(
        &self,
        request: Request<gpu_sim::CommFinalizeRequest>,
    ) -> Result<Response<gpu_sim::CommFinalizeResponse>, Status> {
        let comm = request.into_inner().comm_id;
        self.ask_about(comm, |front, client, comm| {
            client.finalize(comm)?;
            front.comms.forget(comm);
            Ok(())
        })
        .await?;
        Ok(Response::new(gpu_sim::CommFinalizeResponse { success: true }))
    }

    async fn comm_destroy(
        &self,
        request: Request<gpu_sim::CommDestroyRequest>,
    ) -> Result<Response<gpu_sim::CommDestroyResponse>, Status> {
        let comm = request.into_inner().comm_id;
        self.ask_about(comm, |front, client, comm| {
            client.destroy(comm)?;
            front.comms.forget(comm);
            Ok(())
        })
        .await?;
        Ok(Response::new(gpu_sim::CommDestroyResponse { success: true }))
    }

    async fn naive_all_reduce(
        &self,
        request: Request<gpu_sim::NaiveAllReduceRequest>,
    ) -> Result<Response<gpu_sim::NaiveAllReduceResponse>, Status> {
        let gpu_sim::NaiveAllReduceRequest { comm_id, count, op, mem_addrs } = request.into_inner();
        let success = self.all_reduce_of(comm_id, count, op, mem_addrs).await?;
        Ok(Response::new(gpu_sim::NaiveAllReduceResponse { success }))
    }

    async fn all_reduce(
        &self,
        request: Request<gpu_sim::AllReduceRingRequest>,
    ) -> Result<Response<gpu_sim::AllReduceRingResponse>, Status> {
        self.all_reduce_ring(request).await
    }

    async fn comm_remove_device(
        &self,
        request: Request<gpu_sim::CommRemoveDeviceRequest>,
    ) -> Result<Response<gpu_sim::CommRemoveDeviceResponse>, Status> {
        if !self.dialect.lets_remove() {
            return Err(not_here("CommRemoveDevice", "bytes or shifted"));
        }
        let gpu_sim::CommRemoveDeviceRequest { comm_id, rank } = request.into_inner();
        let rank = rank.map_or(0, |rank| rank.value);
        removal::mark(&self.front, &self.living(comm_id).await?, rank).map_err(Status::from)?;
        Ok(Response::new(gpu_sim::CommRemoveDeviceResponse { success: true }))
    }

    async fn heartbeat(
        &self,
        request: Request<gpu_sim::HeartbeatRequest>,
    ) -> Result<Response<gpu_sim::HeartbeatResponse>, Status> {
        let number = request.into_inner().device_id;
        let lives = move |client: &mut Client| {
            let device = device_of(number)?;
            let is_there = client.devices()?.iter().any(|it| it.device == device);
            is_there.then_some(()).ok_or_else(|| RequestError::NoSuchDevice { device }.into())
        };
        self.front.connections.ask(Pace::Quick, lives).await?;
        Ok(Response::new(gpu_sim::HeartbeatResponse { success: true }))
    }
}

#[cfg(test)]
mod tests {
    use shmccl::coordinator::{AddressRange, GroupOutcome};

    use super::*;

    #[test]
    fn a_group_that_has_gone_with_its_coordinator_has_failed_and_the_one_before_says_nothing_of_it() {
        let after = |last: Option<(u64, Option<&str>)>, untold_after| {
            let outcome = |(group, failure): (u64, Option<&str>)| GroupOutcome {
                group,
                failure: failure.map(str::to_owned),
                ..GroupOutcome::default()
            };
            status_of(&CommStatus { last: last.map(outcome), ..ready() }, untold_after)
        };
        assert_eq!(after(None, None), gpu_sim::Status::InProgress);
        assert_eq!(after(Some((7, None)), None), gpu_sim::Status::Success);
        assert_eq!(after(None, Some(0)), gpu_sim::Status::Failed);
        assert_eq!(after(Some((7, None)), Some(7)), gpu_sim::Status::Failed);
        assert_eq!(after(Some((8, None)), Some(7)), gpu_sim::Status::Success);
        assert_eq!(after(Some((8, Some("a device was lost"))), Some(7)), gpu_sim::Status::Failed);
        let running = CommStatus { state: CommState::InProgress, ..ready() };
        assert_eq!(status_of(&running, Some(0)), gpu_sim::Status::InProgress);
    }

    fn ready() -> CommStatus {
        let devices = [7, 9].map(DeviceId::new).to_vec();
        let (comm, state, epoch) = (CommId::new(1), CommState::Ready, 1);
        CommStatus { comm, state, epoch, devices, lost: Vec::new(), last: None, why: None }
    }

    #[test]
    fn a_communicator_that_has_lost_a_device_while_it_was_made_is_refused() {
        let (made, devices) = (ready(), [7, 9].map(DeviceId::new));
        let range = AddressRange { min: 0x1000, max: 0x2000 };
        let all = [9, 8, 7].map(|number| DeviceStatus { device: DeviceId::new(number), range, comm: None });
        let members = members_of(&made, &all).unwrap();
        assert_eq!(members.iter().map(|it| it.device).collect::<Vec<_>>(), devices);
        let Refusal(refused) = members_of(&made, &all[..2]).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Aborted);
        assert!(refused.message().contains("device 7"), "{}", refused.message());
    }
}
