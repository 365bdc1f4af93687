//! `gpu_sim.GPUDevice`: one device, at a listener of its own.

use std::io;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use shmccl::coordinator::{Bytes as Place, Client, CommId, CommStatus, DeviceId, DeviceStatus, RequestError};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming, async_trait};

use crate::connections::Pace;
use crate::coordinator::metadata_of;
use crate::copies::{CHUNK, Cursor, check, get, put_stream};
use crate::dialect::Dialect;
use crate::front::{Front, device_of, owner, owner_among};
use crate::groups::unended;
use crate::memcpy::{memcpy, no_branch};
use crate::refusal::Refusal;
use crate::streams::{StreamProgress, StreamSide, Streams, carry};
use crate::wire::gpu_sim::{self, gpu_device_server::GpuDevice, memcpy_request};

/// The service of a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceService {
    pub(crate) front: Arc<Front>,
    pub(crate) dialect: Dialect,
    pub(crate) device: DeviceId,
    /// Where it listens, if that is told.
    pub(crate) address: Option<(String, u16)>,
}

/// A stream whose bytes come from outside. It has failed if the call ends before they are there.
struct Feeding<'a> {
    front: &'a Front,
    comm: CommId,
    number: u64,
    is_done: bool,
}

impl Drop for Feeding<'_> {
    fn drop(&mut self) {
        let Self { front, comm, number, is_done } = *self;
        front.comms.with_known(comm, |record| record.streams.finish(number, is_done));
    }
}

/// Chunks that go out.
type ChunkStream = std::pin::Pin<Box<dyn Stream<Item = Result<gpu_sim::DataChunk, Status>> + Send>>;

impl DeviceService {
    async fn ask<T: Send + 'static>(
        &self,
        pace: Pace,
        action: impl FnOnce(&Front, &mut Client, DeviceId) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        let (front, device) = (Arc::clone(&self.front), self.device);
        self.front.connections.ask(pace, move |client| action(&front, client, device)).await
    }

    /// # Errors
    /// `InvalidArgument` for a copy that names another device than this one.
    fn check_named(&self, named: Option<gpu_sim::DeviceId>) -> Result<(), Status> {
        match named {
            Some(named) if device_of(named.value).map_err(Status::from)? != self.device => {
                let text = format!("this is device {}, and the copy names {}", self.device, named.value);
                Err(Status::invalid_argument(text))
            }
            _ => Ok(()),
        }
    }

    /// Makes the side of a stream that is on this device.
    async fn side(&self, address: u64, len: u64, peer: Option<u64>) -> Result<StreamSide, Status> {
        self.ask(Pace::Quick, move |_, client, device| {
            let comm = owner(client, device)?;
            let status = unended(client.status(comm, false)?)?;
            check(device, Place { address, len }, client.address_range(device)?)?;
            let peer = peer.map(|peer| peer_of(&status, peer)).transpose()?;
            Ok(StreamSide { device, comm, address, len, peer })
        })
        .await
    }

    /// Has `action` look at the streams of the communicator that this device belongs to.
    ///
    /// # Errors
    /// Fails as `action` does, or with `NotFound` for a device of no communicator.
    async fn streams<T>(
        &self,
        action: impl FnOnce(&mut Streams) -> Result<T, Status>,
    ) -> Result<(CommId, T), Status> {
        let comm = self.ask(Pace::Quick, |_, client, device| owner(client, device)).await?;
        Ok((comm, self.front.comms.with(comm, |record| action(&mut record.streams))?))
    }

    /// Has the bytes of stream `number` move, behind the groups of both devices that have begun.
    fn carry(&self, number: u64, source: StreamSide, target: StreamSide) {
        let front = Arc::clone(&self.front);
        let connections = front.connections.clone();
        tokio::spawn(async move {
            let moved = connections.ask(Pace::Slow, move |client| carry(client, source, target));
            let is_done = moved.await.is_ok();
            front.comms.with_known(source.comm, |record| record.streams.finish(number, is_done));
        });
    }

    /// Copies chunks from outside to `target`, and returns whether it were as many bytes as are
    /// awaited.
    async fn fill(
        &self,
        target: StreamSide,
        first: Bytes,
        chunks: Streaming<gpu_sim::DataChunk>,
    ) -> Result<bool, Status> {
        let mut left = target.len;
        let all = tokio_stream::once(Ok(first)).chain(chunks.map(|chunk| chunk.map(|chunk| chunk.data)));
        let checked = all.map(move |data| {
            let data: Bytes = data?;
            left = left.checked_sub(data.len() as u64).ok_or_else(|| too_many(target.len))?;
            Ok(data)
        });
        let copied =
            put_stream(&self.front, Cursor::new(target.device, target.address).within(target.comm), checked)
                .await?;
        Ok(copied == target.len)
    }
}

/// # Errors
/// `Unimplemented` unless the metadata of a stream's call have its bytes written as they are.
fn check_written(metadata: &tonic::metadata::MetadataMap) -> Result<(), Status> {
    match metadata.get("reduceop") {
        Some(op) if op != "WRITE" => {
            let text = format!("a stream is written as it is, and reduceop is {op:?}; send WRITE or none");
            Err(Status::unimplemented(text))
        }
        _ => Ok(()),
    }
}

fn too_many(len: u64) -> Status {
    Status::invalid_argument(format!("more bytes came than the {len} that the stream is to have"))
}

/// Returns the device that a message calls `peer`: a rank, or the number of a member.
fn peer_of(status: &CommStatus, peer: u64) -> Result<DeviceId, Refusal> {
    let by_rank = usize::try_from(peer).ok().and_then(|rank| status.devices.get(rank));
    let by_number = || status.devices.iter().find(|device| u64::from(device.get()) == peer);
    by_rank.or_else(by_number).copied().ok_or_else(|| {
        let (comm, n) = (status.comm, status.devices.len());
        Status::invalid_argument(format!("communicator {comm} has no rank {peer}: it has {n} devices")).into()
    })
}

/// Returns the entry of a device in the list of all, and its rank, if it is in a communicator.
fn look_up(client: &mut Client, device: DeviceId) -> Result<(DeviceStatus, u32), Refusal> {
    let all = client.devices()?;
    let found = *all.iter().find(|it| it.device == device).ok_or(RequestError::NoSuchDevice { device })?;
    let members = match found.comm {
        Some(comm) => client.status(comm, false)?.devices,
        None => Vec::new(),
    };
    let rank = (0..).zip(members).find(|(_, member)| *member == device).map_or(0, |(rank, _)| rank);
    Ok((found, rank))
}

/// Returns the number of a stream that stands in the metadata of its call, or in its first chunk.
fn number_of(
    metadata: &tonic::metadata::MetadataMap,
    first: &mut gpu_sim::DataChunk,
    is_prefixed: bool,
) -> Result<Option<u64>, Status> {
    if let Some(text) = metadata.get("streamid") {
        let number = text.to_str().ok().and_then(|text| text.parse().ok());
        return number.map(Some).ok_or_else(|| Status::invalid_argument("streamid is no decimal number"));
    }
    if let Some(id) = first.stream_id {
        return Ok(Some(id.value));
    }
    if !is_prefixed {
        return Ok(None);
    }
    if first.data.len() < 16 {
        let text =
            "the first chunk of a stream begins with its number and an address, 16 bytes, at this listener";
        return Err(Status::invalid_argument(text));
    }
    let number = first.data.get_u64_le();
    // The address is the receiver's to say.
    first.data.advance(8);
    Ok(Some(number))
}

#[async_trait]
impl GpuDevice for DeviceService {
    type MemcpyDeviceToHostStream = ChunkStream;
    type StreamReceiveStream = ChunkStream;

    async fn get_device_metadata(
        &self,
        _: Request<gpu_sim::GetDeviceMetadataRequest>,
    ) -> Result<Response<gpu_sim::GetDeviceMetadataResponse>, Status> {
        let (found, rank) = self.ask(Pace::Quick, |_, client, device| look_up(client, device)).await?;
        let metadata = Some(metadata_of(&found, rank, self.address.clone()));
        Ok(Response::new(gpu_sim::GetDeviceMetadataResponse { metadata }))
    }

    async fn begin_send(
        &self,
        request: Request<gpu_sim::BeginSendRequest>,
    ) -> Result<Response<gpu_sim::BeginSendResponse>, Status> {
        let gpu_sim::BeginSendRequest { send_buff_addr, num_bytes, dst_rank, receive_op } =
            request.into_inner();
        check_plain(receive_op)?;
        let (address, peer) = (send_buff_addr.map_or(0, |it| it.value), dst_rank.map_or(0, |it| it.value));
        let source = self.side(address, num_bytes, Some(u64::from(peer))).await?;
        let (number, both) = self.front.comms.with(source.comm, |record| record.streams.send(source))?;
        both.into_iter().for_each(|(source, target)| self.carry(number, source, target));
        let stream_id = Some(gpu_sim::StreamId { value: number });
        Ok(Response::new(gpu_sim::BeginSendResponse { initiated: true, stream_id }))
    }

    async fn begin_receive(
        &self,
        request: Request<gpu_sim::BeginReceiveRequest>,
    ) -> Result<Response<gpu_sim::BeginReceiveResponse>, Status> {
        let gpu_sim::BeginReceiveRequest { stream_id, recv_buff_addr, num_bytes, src_rank, op } =
            request.into_inner();
        check_plain(op)?;
        let number = stream_id.map_or(0, |it| it.value);
        let address = recv_buff_addr.map_or(0, |it| it.value);
        let peer = src_rank.map_or(0, |it| it.value);
        let target = self.side(address, num_bytes, Some(u64::from(peer))).await?;
        let both = self.front.comms.with(target.comm, |record| record.streams.receive(number, target))?;
        both.into_iter().for_each(|(source, target)| self.carry(number, source, target));
        Ok(Response::new(gpu_sim::BeginReceiveResponse { initiated: true }))
    }

    async fn stream_send(
        &self,
        request: Request<Streaming<gpu_sim::DataChunk>>,
    ) -> Result<Response<gpu_sim::StreamSendResponse>, Status> {
        let metadata = request.metadata().clone();
        check_written(&metadata)?;
        let mut chunks = request.into_inner();
        let mut first = chunks.message().await?.unwrap_or_default();
        let number = number_of(&metadata, &mut first, self.dialect.prefixed)?;
        let (comm, fed) = self.streams(|streams| streams.feed(number, self.device)).await?;
        let Some((number, target)) = fed else {
            // The device at the other side sends these bytes itself.
            while chunks.message().await?.is_some() {}
            return Ok(Response::new(gpu_sim::StreamSendResponse { success: true }));
        };
        let mut feeding = Feeding { front: &self.front, comm, number, is_done: false };
        feeding.is_done = self.fill(target, first.data, chunks).await?;
        match feeding.is_done {
            true => Ok(Response::new(gpu_sim::StreamSendResponse { success: true })),
            false => {
                Err(Status::invalid_argument(format!("fewer bytes came than the {} awaited", target.len)))
            }
        }
    }

    async fn get_stream_status(
        &self,
        request: Request<gpu_sim::GetStreamStatusRequest>,
    ) -> Result<Response<gpu_sim::GetStreamStatusResponse>, Status> {
        let number = request.into_inner().stream_id.map_or(0, |it| it.value);
        let look = |_: &Front, client: &mut Client, device| {
            let all = client.devices()?;
            Ok((owner_among(&all, device)?, all.iter().map(|it| it.device).collect::<Vec<_>>()))
        };
        let (comm, living) = self.ask(Pace::Quick, look).await?;
        let progress = self.front.comms.with(comm, |record| record.streams.look(number, &living));
        let status = match progress? {
            StreamProgress::Waiting | StreamProgress::Moving => gpu_sim::Status::InProgress,
            StreamProgress::Done => gpu_sim::Status::Success,
            StreamProgress::Failed => gpu_sim::Status::Failed,
        };
        Ok(Response::new(gpu_sim::GetStreamStatusResponse { status: self.dialect.status(status) }))
    }

    async fn setup_communication(
        &self,
        request: Request<gpu_sim::SetupCommunicationRequest>,
    ) -> Result<Response<gpu_sim::SetupCommunicationResponse>, Status> {
        let rank = request.into_inner().rank.map_or(0, |rank| rank.value);
        let (found, has) = self.ask(Pace::Quick, |_, client, device| look_up(client, device)).await?;
        if found.comm.is_some() && has != rank {
            let text = format!("device {} has rank {has}, and not {rank}", self.device);
            return Err(Status::failed_precondition(text));
        }
        Ok(Response::new(gpu_sim::SetupCommunicationResponse { success: true }))
    }

    async fn memcpy(
        &self,
        request: Request<gpu_sim::MemcpyRequest>,
    ) -> Result<Response<gpu_sim::MemcpyResponse>, Status> {
        let either = request.into_inner().either.ok_or_else(no_branch)?;
        let named = match &either {
            memcpy_request::Either::HostToDevice(copy) => copy.dst_device_id,
            memcpy_request::Either::DeviceToHost(copy) => copy.src_device_id,
        };
        self.check_named(named)?;
        memcpy(&self.front, either, Some(self.device)).await
    }

    async fn reset_gpu(
        &self,
        _: Request<gpu_sim::ResetGpuRequest>,
    ) -> Result<Response<gpu_sim::ResetGpuResponse>, Status> {
        self.ask(Pace::Slow, |_, client, device| {
            let range = client.address_range(device)?;
            Ok(client.write_device(device, range.min, range.max - range.min, io::repeat(0))?)
        })
        .await?;
        Ok(Response::new(gpu_sim::ResetGpuResponse { success: true }))
    }

    async fn memcpy_host_to_device(
        &self,
        request: Request<Streaming<gpu_sim::DataChunk>>,
    ) -> Result<Response<gpu_sim::MemcpyHostToDeviceResponse>, Status> {
        let address = request.metadata().get("dstmemaddr").and_then(|text| text.to_str().ok()?.parse().ok());
        let address = address.ok_or_else(|| {
            Status::invalid_argument("the metadata dstmemaddr is to say where to, as a decimal number")
        })?;
        let chunks = request.into_inner().map(|chunk| chunk.map(|chunk| chunk.data));
        put_stream(&self.front, Cursor::new(self.device, address), chunks).await?;
        Ok(Response::new(gpu_sim::MemcpyHostToDeviceResponse { success: true }))
    }

    async fn memcpy_device_to_host(
        &self,
        request: Request<gpu_sim::MemcpyDeviceToHostRequest>,
    ) -> Result<Response<ChunkStream>, Status> {
        let gpu_sim::MemcpyDeviceToHostRequest { src_device_id, src_mem_addr, num_bytes } =
            request.into_inner();
        self.check_named(src_device_id)?;
        let address = src_mem_addr.map_or(0, |it| it.value);
        let coming =
            ReceiverStream::new(get(&self.front, Cursor::new(self.device, address), num_bytes, CHUNK));
        let chunks = coming.map(|data| data.map(|data| gpu_sim::DataChunk { data, ..Default::default() }));
        Ok(Response::new(Box::pin(chunks)))
    }

    async fn stream_receive(
        &self,
        request: Request<gpu_sim::StreamReceiveRequest>,
    ) -> Result<Response<ChunkStream>, Status> {
        let gpu_sim::StreamReceiveRequest { stream_id, recv_buff_addr, num_bytes } = request.into_inner();
        let number = stream_id.map_or(0, |it| it.value);
        let (comm, ()) = self.streams(|streams| streams.check(number)).await?;
        let address = recv_buff_addr.map_or(0, |it| it.value);
        let coming = ReceiverStream::new(get(
            &self.front,
            Cursor::new(self.device, address).within(comm),
            num_bytes,
            CHUNK,
        ));
        let chunks =
            coming.map(move |data| data.map(|data| gpu_sim::DataChunk { data, stream_id, src_rank: None }));
        Ok(Response::new(Box::pin(chunks)))
    }
}

/// # Errors
/// `Unimplemented` unless bytes are to be written as they are. A client that says nothing says 0,
/// which cannot be told from the handout's SUM.
fn check_plain(op: i32) -> Result<(), Status> {
    match op {
        0 | 63 => Ok(()),
        _ => Err(Status::unimplemented(format!("a stream is written as it is, and operator {op} is not"))),
    }
}
