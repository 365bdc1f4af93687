//! Copies to and from a device in chunks, so that no message has to have all of it.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use shmccl::coordinator::{AddressRange, Bytes as Place, Client, DeviceId, RequestError};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::connections::Pace;
use crate::front::Front;
use crate::refusal::Refusal;

/// The longest chunk.
pub(crate) const CHUNK: usize = 1 << 20;

/// The most bytes that are copied from or to a device at a time.
const PIECE: usize = 4 << 20;

/// How many chunks may wait for a device.
const WAITING: usize = 8;

/// Chunks that have come, as a source.
struct Chunks(Vec<Bytes>);

impl Read for Chunks {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        while self.0.first().is_some_and(Bytes::is_empty) {
            self.0.remove(0);
        }
        let Some(first) = self.0.first_mut() else { return Ok(0) };
        let len = first.len().min(target.len());
        first.copy_to_slice(&mut target[..len]);
        Ok(len)
    }
}

/// Copies the chunks that come through the returned channel to a device, one behind the other, once
/// groups before are over. Returns as well what becomes of it: how many bytes were copied.
pub(crate) fn put(
    front: &Arc<Front>,
    device: DeviceId,
    address: u64,
) -> (Sender<Bytes>, impl Future<Output = Result<u64, Status>> + use<>) {
    let (chunks, coming) = mpsc::channel(WAITING);
    let connections = front.connections.clone();
    let copied = async move {
        let copy = move |client: &mut Client| put_all(client, (device, address), coming);
        connections.ask(Pace::Slow, copy).await
    };
    (chunks, copied)
}

/// Copies a stream of chunks to a device. Returns how many bytes were copied.
///
/// # Errors
/// Those of the stream, of copies and of the connection.
pub(crate) async fn put_stream(
    front: &Arc<Front>,
    device: DeviceId,
    address: u64,
    mut chunks: impl Stream<Item = Result<Bytes, Status>> + Unpin,
) -> Result<u64, Status> {
    let (sender, copied) = put(front, device, address);
    let feed = async move {
        while let Some(data) = chunks.next().await {
            // The copy tells why it takes no more.
            if sender.send(data?).await.is_err() {
                break;
            }
        }
        Ok::<_, Status>(())
    };
    let (fed, copied) = tokio::join!(feed, copied);
    let copied = copied?;
    fed.map(|()| copied)
}

fn put_all(
    client: &mut Client,
    (device, address): (DeviceId, u64),
    mut coming: Receiver<Bytes>,
) -> Result<u64, Refusal> {
    let mut at = address;
    while let Some(first) = coming.blocking_recv() {
        let (mut len, mut chunks) = (first.len() as u64, vec![first]);
        while len < PIECE as u64
            && let Ok(next) = coming.try_recv()
        {
            len += next.len() as u64;
            chunks.push(next);
        }
        match &chunks[..] {
            [one] => client.copy_host_to_device(device, at, one)?,
            _ => client.write_device(device, at, len, Chunks(chunks))?,
        }
        // Past the end of all addresses nothing is copied.
        at = at.saturating_add(len);
    }
    Ok(at - address)
}

/// Copies from a device, once groups before are over, into chunks of at most `chunk` bytes that
/// come through the channel.
///
/// A device is asked for as much at a time as has room in the channel. So it does not wait for a
/// client that takes nothing.
pub(crate) fn get(
    front: &Arc<Front>,
    device: DeviceId,
    address: u64,
    len: u64,
    chunk: usize,
) -> Receiver<Result<Bytes, Status>> {
    let (chunks, coming) = mpsc::channel(2 * PIECE.div_ceil(chunk));
    let connections = front.connections.clone();
    tokio::spawn(async move {
        let mut bytes = Place { address, len: len.min(PIECE as u64) };
        loop {
            if chunks.reserve_many(PIECE.div_ceil(chunk)).await.is_err() {
                return;
            }
            let out = chunks.clone();
            let copy = move |client: &mut Client| {
                if len > bytes.len && bytes.address == address {
                    check(device, Place { address, len }, client.address_range(device)?)?;
                }
                let hand_on = |piece: Vec<u8>| match out.try_send(Ok(piece.into())) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                };
                Ok(client.read_device_in_pieces(device, bytes.address, bytes.len, chunk as u64, hand_on)?)
            };
            if let Err(refusal) = connections.ask(Pace::Slow, copy).await {
                // Nobody may be there any more to be told.
                let _ = chunks.send(Err(refusal)).await;
                return;
            }
            bytes.address += bytes.len;
            bytes.len = (len - (bytes.address - address)).min(PIECE as u64);
            if bytes.len == 0 {
                return;
            }
        }
    });
    coming
}

/// # Errors
/// [`RequestError::OutOfRange`] unless a device has all of these bytes.
pub(crate) fn check(device: DeviceId, bytes: Place, range: AddressRange) -> Result<(), Refusal> {
    let end = bytes.address.checked_add(bytes.len);
    if bytes.address >= range.min && end.is_some_and(|end| end <= range.max) {
        Ok(())
    } else {
        Err(RequestError::OutOfRange { device, bytes, range }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_read_one_behind_the_other_also_empty_ones() {
        let chunks = [&b"ab"[..], b"", b"cde"].map(Bytes::from_static).to_vec();
        let mut all = Vec::new();
        Chunks(chunks).read_to_end(&mut all).unwrap();
        assert_eq!(all, b"abcde");
    }

    #[test]
    fn bytes_beyond_all_numbers_are_out_of_range() {
        let range = AddressRange { min: 0x1000, max: 0x2000 };
        for (address, len, fits) in [
            (0x1000, 0x1000, true),
            (0x1fff, 2, false),
            (0xfff, 0, false),
            (u64::MAX, 2, false),
            (0x2000, 0, true),
        ] {
            assert_eq!(check(DeviceId::new(7), Place { address, len }, range).is_ok(), fits, "{address:#x}");
        }
    }
}
