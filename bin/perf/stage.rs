//! The memory that two ranks play on: what goes out, what comes in, and bare flags.

use shmccl::channel::{Channel, MemoryChannel};
use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::packet::PacketKind;
use shmccl::shm::{CopyKernel, Span};
use shmccl::{Communicator, Rank, Result};

use super::ends::{CopyFlagLink, FlagEnd, Link, Messages, PacketLink, PutLink, RawPacketLink};
use super::pair::Pair;
use super::payload::Payload;
use super::plan::Plan;
use super::transfer::{BURST_BYTES, MOST_IN_BURST};
use crate::perf::test::Test;

/// From this size on messages carry stamps: the clock takes a few per cent of what it times at most.
const STAMPED_FROM: u64 = 1024;

/// Whether messages of `len` bytes carry stamps.
pub(crate) const fn is_stamped(len: u64) -> bool {
    len >= STAMPED_FROM
}

/// Pairs of bare flags.
const FLAGS: u64 = 8;

/// Alignment of message buffers, in bytes.
const ALIGN: u64 = 4096;

/// How far places of messages of `len` bytes lie apart: they share no pair of lines, which the prefetcher would bring together.
fn stride(len: u64) -> u64 {
    len.max(1).next_multiple_of(128)
}

/// Two buffers of one size and two flags on every rank.
#[derive(Debug)]
pub(crate) struct Stage {
    rank: Rank,
    pair: Pair,
    len: u64,
    /// Room for messages that go out, each in lines of its own.
    out: Region,
    /// The same for those that come in.
    into: Region,
    flags: Region,
    packets: Region,
    check: bool,
}

impl Stage {
    /// Allocates for messages of `len` bytes of `test` between `pair`. Collective; other ranks get a stage too and have
    /// nothing to do on it.
    pub(crate) fn set(
        comm: &mut Communicator,
        pair: Pair,
        len: u64,
        test: Test,
        plan: &Plan,
    ) -> Result<Self> {
        let packed = if test == Test::PacketLatency { 4 * len.next_multiple_of(16) } else { 0 };
        let places =
            if test == Test::GetLatency { (BURST_BYTES / len.max(1)).clamp(1, MOST_IN_BURST) } else { 1 };
        let room = (places - 1) * stride(len) + len;
        Ok(Self {
            rank: comm.rank(),
            pair,
            len,
            out: comm.alloc_region(room, ALIGN)?,
            into: comm.alloc_region(room, ALIGN)?,
            flags: comm.alloc_region(FLAGS * 128, 128)?,
            packets: comm.alloc_region(packed, ALIGN)?,
            check: plan.check,
        })
    }

    /// Frees it all. Collective.
    pub(crate) fn strike(self, comm: &mut Communicator) -> Result<()> {
        for region in [self.out, self.into, self.flags, self.packets] {
            comm.free_region(region)?;
        }
        Ok(())
    }

    /// Whether this rank keeps the time.
    pub(crate) fn leads(&self) -> bool {
        self.rank == self.pair.leader
    }

    /// The other rank.
    pub(crate) fn peer(&self) -> Rank {
        self.pair.peer_of(self.rank)
    }

    /// Where what goes out is, in this rank's heap.
    pub(crate) fn source(&self) -> HeapOffset {
        self.out.offset
    }

    /// Where what comes in is, in either heap.
    pub(crate) fn target(&self) -> HeapOffset {
        self.into.offset
    }

    /// The length of a message in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Where messages are in the room for them, each in lines of its own: one, or as many as gets are timed together.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Region, Region)> + '_ {
        let at = |room: Region, start| Region::new(HeapOffset::new(room.offset.get() + start), self.len);
        let starts = (0..=(self.out.len - self.len) / stride(self.len)).map(|place| place * stride(self.len));
        starts.map(move |start| (at(self.out, start), at(self.into, start)))
    }

    /// The messages of all places: what goes out, and what comes in.
    pub(crate) fn payloads(&self, comm: &Communicator) -> Result<(Vec<Payload>, Vec<Payload>)> {
        let payload = |region| Ok(Payload::new(comm.span(self.rank, region)?, self.check));
        let both = self.places().map(|(out, into)| Ok((payload(out)?, payload(into)?)));
        Ok(both.collect::<Result<Vec<_>>>()?.into_iter().unzip())
    }

    /// Whether messages of this length carry stamps.
    pub(crate) fn stamped(&self) -> bool {
        is_stamped(self.len())
    }

    /// What goes out.
    pub(crate) fn outgoing(&self, comm: &Communicator) -> Result<Payload> {
        Ok(Payload::new(comm.span(self.rank, self.first(self.out))?, self.check))
    }

    /// What comes in.
    pub(crate) fn incoming(&self, comm: &Communicator) -> Result<Payload> {
        Ok(Payload::new(comm.span(self.rank, self.first(self.into))?, self.check))
    }

    /// The peer's memory for what this rank sends.
    pub(crate) fn remote(&self, comm: &Communicator) -> Result<Span> {
        comm.span(self.peer(), self.first(self.into))
    }

    /// The first place of a room.
    fn first(&self, room: Region) -> Region {
        Region::new(room.offset, self.len)
    }

    /// One bare flag each way. They start at zero with every stage: pairs of ends that are in use at the same time
    /// take different `pair`s, from 0 to 7.
    pub(crate) fn flags(&self, comm: &Communicator, pair: u64) -> Result<FlagEnd> {
        let offset = HeapOffset::new(self.flags.offset.get() + 128 * pair);
        let flags = FlagEnd {
            mine: comm.cell(self.rank, offset)?,
            theirs: comm.cell(self.peer(), offset)?,
            yields: self.pair.one_core,
        };
        flags.mine.set(0);
        Ok(flags)
    }

    /// Where packets go, in either heap: two halves.
    fn packets(&self) -> [HeapOffset; 2] {
        let start = self.packets.offset.get();
        [HeapOffset::new(start), HeapOffset::new(start + self.packets.len / 2)]
    }

    /// The limit of a put with signal, with bare flags of its own `pair`.
    pub(crate) fn copy_and_flag(
        &self,
        comm: &Communicator,
        pair: u64,
        kernel: CopyKernel,
    ) -> Result<Messages<CopyFlagLink>> {
        let (flags, source) = (self.flags(comm, pair)?, comm.span(self.rank, self.first(self.out))?);
        self.messages(comm, CopyFlagLink { flags, source, remote: self.remote(comm)?, kernel })
    }

    /// A put with signal over `channel`.
    pub(crate) fn put<C: Channel>(&self, comm: &Communicator, channel: C) -> Result<Messages<PutLink<C>>> {
        let (source, target) = (self.source(), self.target());
        self.messages(comm, PutLink { channel, source, target, len: self.len() })
    }

    /// A put in packets of one kind over `channel`.
    pub(crate) fn put_packets(
        &self,
        comm: &Communicator,
        channel: MemoryChannel,
        kind: PacketKind,
    ) -> Result<Messages<PacketLink>> {
        let (source, unpacked, packets) = (self.source(), self.target(), self.packets());
        self.messages(comm, PacketLink { channel, kind, source, packets, unpacked, len: self.len() })
    }

    /// The limit of that: the same packets, with flags of their own, without a channel.
    pub(crate) fn raw_packets(
        &self,
        comm: &Communicator,
        kind: PacketKind,
    ) -> Result<Messages<RawPacketLink>> {
        let half = |rank, start| comm.span(rank, Region::new(start, self.packets.len / 2));
        let [first, second] = self.packets();
        let halves = |rank| -> Result<[Span; 2]> { Ok([half(rank, first)?, half(rank, second)?]) };
        let link = RawPacketLink {
            kind,
            source: self.outgoing(comm)?.span().clone(),
            remote: halves(self.peer())?,
            packets: halves(self.rank)?,
            unpacked: self.incoming(comm)?.span().clone(),
            yields: self.pair.one_core,
        };
        self.messages(comm, link)
    }

    fn messages<L: Link>(&self, comm: &Communicator, link: L) -> Result<Messages<L>> {
        let (outgoing, incoming) = (self.outgoing(comm)?, self.incoming(comm)?);
        Ok(Messages { link, outgoing, incoming, stamped: self.stamped() })
    }
}
