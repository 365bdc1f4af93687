//! Streams of bytes from one device to another: begun on either side, in whatever order.
//!
//! | state | until |
//! |---|---|
//! | waiting | both sides have begun, or chunks come from outside |
//! | moving | all bytes are there, or a device is lost |
//! | done, failed | it is forgotten, the oldest ones first |
//!
//! Each communicator has its own, with numbers of their own, and they end with it. So no number
//! that a client makes up leads to the stream of another one.

use std::collections::BTreeMap;

use shmccl::coordinator::{Client, CommId, DeviceId};
use tonic::Status;

use crate::refusal::Refusal;

/// The most streams of a communicator that are known at a time.
const MAX_STREAMS: usize = 4096;

/// How far ahead of the numbers that were given a receiver may be.
const AHEAD: u64 = 1024;

/// The most bytes that are moved at a time.
const PIECE: u64 = 4 << 20;

/// One side of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSide {
    pub(crate) device: DeviceId,
    pub(crate) comm: CommId,
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// The device at the other side, where it was named.
    pub(crate) peer: Option<DeviceId>,
}

/// How far a stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StreamProgress {
    #[default]
    Waiting,
    Moving,
    Done,
    Failed,
}

/// A stream of bytes.
#[derive(Clone, Copy, Debug, Default)]
struct StreamTransfer {
    source: Option<StreamSide>,
    target: Option<StreamSide>,
    progress: StreamProgress,
}

/// The streams of a communicator, by number.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// The newest number that was given.
    newest: u64,
    all: BTreeMap<u64, StreamTransfer>,
}

impl StreamTransfer {
    /// Returns both sides, if they are there and nothing moves yet. It fails where they do not fit.
    fn begin(&mut self) -> Option<(StreamSide, StreamSide)> {
        let (source, target) = (self.source?, self.target?);
        if self.progress != StreamProgress::Waiting {
            return None;
        }
        let fits = source.len == target.len
            && source.peer.is_none_or(|peer| peer == target.device)
            && target.peer.is_none_or(|peer| peer == source.device);
        self.progress = if fits { StreamProgress::Moving } else { StreamProgress::Failed };
        fits.then_some((source, target))
    }
}

impl Streams {
    /// Begins a stream at its source. Returns its number, and both sides if it can move.
    ///
    /// # Errors
    /// `ResourceExhausted` where there are too many.
    pub(crate) fn send(
        &mut self,
        source: StreamSide,
    ) -> Result<(u64, Option<(StreamSide, StreamSide)>), Status> {
        self.make_room()?;
        self.newest += 1;
        let number = self.newest;
        let transfer = self.all.entry(number).or_default();
        transfer.source = Some(source);
        Ok((number, transfer.begin()))
    }

    /// Begins a stream at its target. Returns both sides if it can move.
    ///
    /// # Errors
    /// `NotFound` for a number that is far from all that were given, or was forgotten;
    /// `FailedPrecondition` where it has been received; `ResourceExhausted`.
    pub(crate) fn receive(
        &mut self,
        number: u64,
        target: StreamSide,
    ) -> Result<Option<(StreamSide, StreamSide)>, Status> {
        let is_near = number > self.newest && number <= self.newest.saturating_add(AHEAD);
        if !self.all.contains_key(&number) {
            if !is_near {
                return Err(missing(number));
            }
            self.make_room()?;
        }
        let transfer = self.all.entry(number).or_default();
        if transfer.target.is_some() {
            return Err(Status::failed_precondition(format!(
                "stream {number} has a receiver; begin another one"
            )));
        }
        transfer.target = Some(target);
        Ok(transfer.begin())
    }

    /// Takes the target of a stream for chunks from outside: of stream `number`, or of the only one
    /// that waits for them on `device`. `None` where a device sends the bytes.
    ///
    /// # Errors
    /// `NotFound` where no stream waits there, or more than one.
    pub(crate) fn feed(
        &mut self,
        number: Option<u64>,
        device: DeviceId,
    ) -> Result<Option<(u64, StreamSide)>, Status> {
        let waits = |transfer: &StreamTransfer| {
            let is_here = transfer.target.is_some_and(|target| target.device == device);
            is_here && transfer.source.is_none() && transfer.progress == StreamProgress::Waiting
        };
        let number = match number {
            Some(number) => number,
            None => {
                let mut waiting = self.all.iter().filter(|(_, transfer)| waits(transfer));
                match (waiting.next(), waiting.next()) {
                    (Some((number, _)), None) => *number,
                    _ => {
                        let text = format!(
                            "chunks without a number came for device {device}, and not one stream waits there"
                        );
                        return Err(Status::not_found(text));
                    }
                }
            }
        };
        let transfer = self.all.get_mut(&number).ok_or_else(|| missing(number))?;
        if transfer.source.is_some() {
            return Ok(None);
        }
        if !waits(transfer) {
            return Err(Status::not_found(format!("stream {number} does not wait on device {device}")));
        }
        transfer.progress = StreamProgress::Moving;
        Ok(transfer.target.map(|target| (number, target)))
    }

    /// Notes how a stream has ended.
    pub(crate) fn finish(&mut self, number: u64, is_done: bool) {
        if let Some(transfer) = self.all.get_mut(&number) {
            transfer.progress = if is_done { StreamProgress::Done } else { StreamProgress::Failed };
        }
    }

    /// Returns how far a stream is. One that waits fails if a device that it names is not among
    /// the `living` ones.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn look(&mut self, number: u64, living: &[DeviceId]) -> Result<StreamProgress, Status> {
        let transfer = self.all.get_mut(&number).ok_or_else(|| missing(number))?;
        let sides = [transfer.source, transfer.target].into_iter().flatten();
        let mut named = sides.flat_map(|side| [Some(side.device), side.peer]).flatten();
        if transfer.progress == StreamProgress::Waiting && !named.all(|device| living.contains(&device)) {
            transfer.progress = StreamProgress::Failed;
        }
        Ok(transfer.progress)
    }

    /// # Errors
    /// `NotFound` for a number that no stream has.
    pub(crate) fn check(&self, number: u64) -> Result<(), Status> {
        self.all.contains_key(&number).then_some(()).ok_or_else(|| missing(number))
    }

    fn make_room(&mut self) -> Result<(), Status> {
        if self.all.len() < MAX_STREAMS {
            return Ok(());
        }
        let is_over = |transfer: &StreamTransfer| {
            matches!(transfer.progress, StreamProgress::Done | StreamProgress::Failed)
        };
        let oldest = self.all.iter().find(|(_, transfer)| is_over(transfer)).map(|(number, _)| *number);
        let oldest = oldest.ok_or_else(|| {
            Status::resource_exhausted(format!(
                "{MAX_STREAMS} streams wait for their other side; end some first"
            ))
        })?;
        self.all.remove(&oldest);
        Ok(())
    }
}

fn missing(number: u64) -> Status {
    Status::not_found(format!("there is no stream {number}; BeginSend names one"))
}

/// Moves the bytes of a stream from device to device, within their communicator.
///
/// # Errors
/// Returns the errors of copies.
pub(crate) fn carry(client: &mut Client, source: StreamSide, target: StreamSide) -> Result<(), Refusal> {
    let mut done = 0;
    client.keep_to(Some(source.comm));
    while done < source.len {
        let len = (source.len - done).min(PIECE);
        let piece = client.read_device(source.device, source.address + done, len)?;
        client.copy_host_to_device(target.device, target.address + done, &piece)?;
        done += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(device: u32, len: u64, peer: u32) -> StreamSide {
        let (device, peer) = (DeviceId::new(device), Some(DeviceId::new(peer)));
        StreamSide { device, comm: CommId::new(1), address: 0x1000, len, peer }
    }

    #[test]
    fn bytes_move_as_soon_as_both_sides_are_there_in_either_order() {
        let mut streams = Streams::default();
        let (number, both) = streams.send(side(1, 8, 2)).unwrap();
        assert!(both.is_none());
        assert_eq!(streams.receive(number, side(2, 8, 1)).unwrap(), Some((side(1, 8, 2), side(2, 8, 1))));
        assert_eq!(streams.receive(number + 1, side(2, 8, 1)).unwrap(), None);
        assert_eq!(streams.send(side(1, 8, 2)).unwrap(), (number + 1, Some((side(1, 8, 2), side(2, 8, 1)))));
    }

    #[test]
    fn sides_that_do_not_fit_fail() {
        for wrong in [side(2, 9, 1), side(3, 8, 1), side(2, 8, 3)] {
            let mut streams = Streams::default();
            let (number, _) = streams.send(side(1, 8, 2)).unwrap();
            assert_eq!(streams.receive(number, wrong).unwrap(), None);
            assert_eq!(streams.look(number, &[]).unwrap(), StreamProgress::Failed, "{wrong:?}");
        }
    }

    #[test]
    fn a_stream_that_waits_for_a_device_that_is_gone_fails() {
        let mut streams = Streams::default();
        let (number, _) = streams.send(side(1, 8, 2)).unwrap();
        let [source, target] = [1, 2].map(DeviceId::new);
        assert_eq!(streams.look(number, &[source, target]).unwrap(), StreamProgress::Waiting);
        assert_eq!(streams.look(number, &[source]).unwrap(), StreamProgress::Failed);
        assert_eq!(streams.look(number + 1, &[]).unwrap_err().code(), tonic::Code::NotFound);
    }

    #[test]
    fn chunks_from_outside_find_the_only_stream_that_waits_for_them() {
        let mut streams = Streams::default();
        streams.receive(1, side(2, 8, 1)).unwrap();
        assert!(streams.feed(None, DeviceId::new(3)).is_err());
        assert_eq!(streams.feed(None, DeviceId::new(2)).unwrap(), Some((1, side(2, 8, 1))));
        assert!(streams.feed(Some(1), DeviceId::new(2)).is_err(), "they are on their way");
        let (sent, _) = streams.send(side(1, 8, 2)).unwrap();
        assert_eq!(sent, 1, "the receiver was there before");
        assert_eq!(streams.feed(Some(1), DeviceId::new(2)).unwrap(), None);
    }

    #[test]
    fn the_oldest_stream_that_is_over_makes_room_and_one_that_waits_does_not() {
        let mut streams = Streams::default();
        for number in 1..=MAX_STREAMS as u64 {
            assert_eq!(streams.send(side(1, 8, 2)).unwrap().0, number);
        }
        assert_eq!(streams.send(side(1, 8, 2)).unwrap_err().code(), tonic::Code::ResourceExhausted);
        streams.finish(7, true);
        assert!(streams.send(side(1, 8, 2)).is_ok() && streams.check(7).is_err() && streams.check(6).is_ok());
        assert!(streams.receive(u64::MAX, side(2, 8, 1)).is_err());
    }
}
