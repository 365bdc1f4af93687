//! Copies to and from a device in chunks, so that no message has to have all of it.

use std::io::{self, Read};
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
const PIECE: u64 = 4 << 20;

/// How many chunks may wait between a device and a client.
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
        while len < PIECE
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

/// Copies from a device, once groups before are over, into chunks that come through the channel.
pub(crate) fn get(
    front: &Arc<Front>,
    device: DeviceId,
    address: u64,
    len: u64,
) -> Receiver<Result<Bytes, Status>> {
    let (chunks, coming) = mpsc::channel(WAITING);
    let connections = front.connections.clone();
    tokio::spawn(async move {
        let out = chunks.clone();
        let copy = move |client: &mut Client| get_all(client, device, Place { address, len }, &out);
        if let Err(refusal) = connections.ask(Pace::Slow, copy).await {
            // Nobody may be there any more to be told.
            let _ = chunks.send(Err(refusal)).await;
        }
    });
    coming
}

fn get_all(
    client: &mut Client,
    device: DeviceId,
    bytes: Place,
    out: &Sender<Result<Bytes, Status>>,
) -> Result<(), Refusal> {
    check(device, bytes, client.address_range(device)?)?;
    let (mut at, end) = (bytes.address, bytes.address + bytes.len);
    while at < end {
        let len = (end - at).min(PIECE);
        let mut piece = Bytes::from(client.read_device(device, at, len)?);
        while !piece.is_empty() {
            let chunk = piece.split_to(piece.len().min(CHUNK));
            if out.blocking_send(Ok(chunk)).is_err() {
                return Ok(());
            }
        }
        at += len;
    }
    Ok(())
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
