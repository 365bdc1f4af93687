//! `Memcpy`: bytes to or from a device in one message.
//!
//! A reply with bytes of a device goes out while they come. The length of a message stands ahead of
//! it, and is known. So nobody waits for the last byte before the first one is sent, and the
//! message is not put together first.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body, Frame};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use shmccl::coordinator::{Client, DeviceId};
use tokio::sync::mpsc::Receiver;
use tonic::{Code, Response, Status};

use crate::connections::Pace;
use crate::copies::{Cursor, get};
use crate::front::{Front, device_of};
use crate::wire::gpu_sim::{self, memcpy_request, memcpy_response};

/// The most bytes of a reply that are handed on at a time.
const PIECE: usize = 256 << 10;

/// The fields of a reply with bytes: `MemcpyResponse.deviceToHost`, and `dstData` in it.
const DEVICE_TO_HOST: u32 = 2;
const DST_DATA: u32 = 1;

/// A message whose bytes are on their way.
#[derive(Debug)]
struct MemcpyReply {
    /// What is to go out at once: what stands ahead of the bytes, and the first of them.
    ahead: [Option<Bytes>; 2],
    coming: Receiver<Result<Bytes, Status>>,
    is_over: bool,
}

/// Takes the place of a response's body, once the service has answered.
#[derive(Clone, Debug)]
struct InPlaceOfBody(Arc<Mutex<Option<MemcpyReply>>>);

/// Copies to or from a device, behind groups of its communicator that have begun. At the listener
/// of a device, that is the `only` one.
///
/// # Errors
/// Returns the errors of copies, and `ResourceExhausted` for bytes that a device has, but a message
/// has no room for.
pub(crate) async fn memcpy(
    front: &Arc<Front>,
    request: memcpy_request::Either,
    only: Option<DeviceId>,
) -> Result<Response<gpu_sim::MemcpyResponse>, Status> {
    let device = |given: Option<gpu_sim::DeviceId>| match (given, only) {
        (None, Some(only)) => Ok(only),
        (given, _) => device_of(given.map_or(0, |it| it.value)),
    };
    match request {
        memcpy_request::Either::HostToDevice(copy) => {
            let device = device(copy.dst_device_id)?;
            let address = copy.dst_mem_addr.map_or(0, |it| it.value);
            let put = move |client: &mut Client| {
                Ok(client.copy_host_to_device(device, address, &copy.host_src_data)?)
            };
            front.connections.ask(Pace::Slow, put).await?;
            let done = gpu_sim::MemcpyHostToDeviceResponse { success: true };
            let either = Some(memcpy_response::Either::HostToDevice(done));
            Ok(Response::new(gpu_sim::MemcpyResponse { either }))
        }
        memcpy_request::Either::DeviceToHost(copy) => {
            let device = device(copy.src_device_id)?;
            let address = copy.src_mem_addr.map_or(0, |it| it.value);
            check_reply(front, device, copy.num_bytes).await?;
            let mut coming = get(front, Cursor::new(device, address), copy.num_bytes, PIECE);
            // A copy that fails from the start is refused without a message.
            let first = coming.recv().await.transpose()?;
            let reply = MemcpyReply { ahead: [Some(head(copy.num_bytes)), first], coming, is_over: false };
            let mut response = Response::new(gpu_sim::MemcpyResponse::default());
            response.extensions_mut().insert(InPlaceOfBody(Arc::new(Mutex::new(Some(reply)))));
            Ok(response)
        }
    }
}

/// Returns the refusal of a copy that says neither where from nor where to.
pub(crate) fn no_branch() -> Status {
    Status::invalid_argument("the copy has neither hostToDevice nor deviceToHost; set one of them")
}

/// Gives the response of a copy from a device its bytes.
pub(crate) fn with_bytes(
    mut response: http::Response<tonic::body::Body>,
) -> http::Response<tonic::body::Body> {
    let reply = response.extensions_mut().remove::<InPlaceOfBody>();
    match reply.and_then(|reply| reply.0.lock().unwrap_or_else(PoisonError::into_inner).take()) {
        Some(reply) => response.map(|_| tonic::body::Body::new(reply)),
        None => response,
    }
}

async fn check_reply(front: &Front, device: DeviceId, len: u64) -> Result<(), Status> {
    // A message has its length as 32 bits.
    let most = (front.max_message as u64).min(u64::from(u32::MAX)) - 1024;
    if len <= most {
        return Ok(());
    }
    let range = move |client: &mut Client| Ok(client.address_range(device)?);
    let range = front.connections.ask(Pace::Quick, range).await?;
    if len > range.max - range.min {
        // The copy itself tells that the device has no such bytes.
        return Ok(());
    }
    let text = format!("{len} bytes are more than a message may have, which is {most}; copy less at a time");
    Err(Status::resource_exhausted(text))
}

/// Returns what stands ahead of `len` bytes of a device: the length of the message, which is not
/// compressed, and its fields.
fn head(len: u64) -> Bytes {
    let inner = key_len(DST_DATA) as u64 + encoded_len_varint(len) as u64 + len;
    let mut fields = BytesMut::new();
    encode_key(DEVICE_TO_HOST, WireType::LengthDelimited, &mut fields);
    encode_varint(inner, &mut fields);
    encode_key(DST_DATA, WireType::LengthDelimited, &mut fields);
    encode_varint(len, &mut fields);
    let mut head = BytesMut::new();
    head.put_u8(0);
    // A longer message was refused.
    head.put_u32(u32::try_from(fields.len() as u64 + len).unwrap_or(u32::MAX));
    head.put(fields);
    head.freeze()
}

impl Body for MemcpyReply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(data) = self.ahead.iter_mut().find_map(Option::take) {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let status = match ready!(self.coming.poll_recv(context)) {
            Some(Ok(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
            Some(Err(status)) => status,
            None => Status::new(Code::Ok, ""),
        };
        self.is_over = true;
        let mut trailers = HeaderMap::new();
        // Its sentence is written as characters that a header may have.
        let _ = status.add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn what_stands_ahead_of_the_bytes_makes_a_message_of_them() {
        for len in [0, 1, 127, 128, 70_000] {
            let data = Bytes::from(vec![7; len]);
            let mut whole = BytesMut::from(&head(len as u64)[..]);
            whole.put(data.clone());
            assert_eq!(
                u32::from_be_bytes(whole[1..5].try_into().unwrap()),
                u32::try_from(whole.len() - 5).unwrap()
            );
            let reply = gpu_sim::MemcpyResponse::decode(&whole[5..]).unwrap();
            let wanted = gpu_sim::MemcpyDeviceToHostResponse { dst_data: data };
            assert_eq!(reply.either, Some(memcpy_response::Either::DeviceToHost(wanted)), "{len}");
        }
    }

    #[tokio::test]
    async fn a_copy_that_fails_in_the_middle_ends_with_its_refusal() {
        use http_body_util::BodyExt;
        let (sender, coming) = tokio::sync::mpsc::channel(1);
        sender.try_send(Err(Status::aborted("the device is gone"))).unwrap();
        let mut reply =
            MemcpyReply { ahead: [Some(head(2)), Some(Bytes::from_static(b"a"))], coming, is_over: false };
        let mut data = Vec::new();
        let trailers = loop {
            match reply.frame().await.unwrap().unwrap().into_data() {
                Ok(next) => data.extend_from_slice(&next),
                Err(frame) => break frame.into_trailers().unwrap(),
            }
        };
        assert_eq!(data, [&head(2)[..], b"a"].concat());
        assert_eq!(Status::from_header_map(&trailers).unwrap().code(), Code::Aborted);
        assert!(reply.frame().await.is_none());
    }
}
