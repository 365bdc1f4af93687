//! Copies to and from a device in chunks, so that no message has to have all of it.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use shmccl::coordinator::{AddressRange, Bytes as Place, Client, CommId, DeviceId, RequestError};
use tokio::sync::mpsc::{self, Receiver};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use crate::connections::Pace;
use crate::front::{Front, owner};
use crate::refusal::Refusal;

/// The longest chunk.
pub(crate) const CHUNK: usize = 1 << 20;

/// The most bytes that are copied from or to a device at a time.
const PIECE: usize = 4 << 20;

/// How many chunks may wait for a device.
const WAITING: usize = 8;

/// Chunks that have come, as a source.
struct ChunkSource(Vec<Bytes>);

impl Read for ChunkSource {
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

/// A place in a device's memory, from which on a copy goes on.
///
/// All of a copy is within one communicator: where the device is given to another one meanwhile,
/// the copy ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    device: DeviceId,
    address: u64,
    /// `None` until the first bytes are copied.
    comm: Option<CommId>,
}

impl Cursor {
    /// Begins in whichever communicator the device belongs to.
    pub(crate) fn new(device: DeviceId, address: u64) -> Self {
        Self { device, address, comm: None }
    }

    /// Has it be in `comm`.
    pub(crate) fn within(self, comm: CommId) -> Self {
        Self { comm: Some(comm), ..self }
    }

    /// Has `client` copy within the communicator of this copy only.
    fn keep(&mut self, client: &mut Client) -> Result<(), Refusal> {
        if self.comm.is_none() {
            self.comm = Some(owner(client, self.device)?);
        }
        client.keep_to(self.comm);
        Ok(())
    }

    /// Copies chunks to the device. Returns where the next ones come.
    fn put(mut self, client: &mut Client, chunks: Vec<Bytes>) -> Result<Self, Refusal> {
        self.keep(client)?;
        let len = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        match &chunks[..] {
            [one] => client.copy_host_to_device(self.device, self.address, one)?,
            _ => client.write_device(self.device, self.address, len, ChunkSource(chunks))?,
        }
        // Past the end of all addresses nothing is copied.
        self.address = self.address.saturating_add(len);
        Ok(self)
    }
}

/// Copies a stream of chunks to a device, one behind the other, once groups before are over.
/// Returns how many bytes were copied.
///
/// A stream that brings nothing takes no place among those that wait for devices.
///
/// # Errors
/// Returns the errors of the stream, of copies and of the connection.
pub(crate) async fn put_stream(
    front: &Arc<Front>,
    from: Cursor,
    mut chunks: impl Stream<Item = Result<Bytes, Status>> + Unpin,
) -> Result<u64, Status> {
    let (sender, coming) = mpsc::channel(WAITING);
    let feed = async move {
        while let Some(data) = chunks.next().await {
            // The copy tells why it takes no more.
            if sender.send(data?).await.is_err() {
                break;
            }
        }
        Ok::<_, Status>(())
    };
    let (fed, copied) = tokio::join!(feed, put_all(front, from, coming));
    let copied = copied?;
    fed.map(|()| copied)
}

async fn put_all(front: &Front, from: Cursor, mut coming: Receiver<Bytes>) -> Result<u64, Status> {
    let mut at = from;
    while let Some(first) = coming.recv().await {
        let (mut len, mut chunks) = (first.len(), vec![first]);
        while len < PIECE
            && let Ok(next) = coming.try_recv()
        {
            len += next.len();
            chunks.push(next);
        }
        at = front.connections.ask(Pace::Slow, move |client| at.put(client, chunks)).await?;
    }
    Ok(at.address - from.address)
}

/// Copies from a device, once groups before are over, into chunks of at most `chunk` bytes that
/// come through the channel.
///
/// A device is asked for as much at a time as has room in the channel. So it does not wait for a
/// client that takes nothing.
pub(crate) fn get(
    front: &Arc<Front>,
    from: Cursor,
    len: u64,
    chunk: usize,
) -> Receiver<Result<Bytes, Status>> {
    let (chunks, coming) = mpsc::channel(2 * PIECE.div_ceil(chunk));
    let connections = front.connections.clone();
    tokio::spawn(async move {
        let (mut at, mut left) = (from, len);
        loop {
            if chunks.reserve_many(PIECE.div_ceil(chunk)).await.is_err() {
                return;
            }
            let out = chunks.clone();
            let copy = move |client: &mut Client| {
                let next = left.min(PIECE as u64);
                if next < len || at.comm.is_some() {
                    at.keep(client)?;
                }
                if next < len && left == len {
                    check(at.device, Place { address: at.address, len }, client.address_range(at.device)?)?;
                }
                let hand_on = |piece: Vec<u8>| match out.try_send(Ok(piece.into())) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                };
                client.read_device_in_pieces(at.device, at.address, next, chunk as u64, hand_on)?;
                at.address += next;
                Ok((at, left - next))
            };
            (at, left) = match connections.ask(Pace::Slow, copy).await {
                Ok(gone_on) => gone_on,
                // Nobody may be there any more to be told.
                Err(refusal) => return drop(chunks.send(Err(refusal)).await),
            };
            if left == 0 {
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
        ChunkSource(chunks).read_to_end(&mut all).unwrap();
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
