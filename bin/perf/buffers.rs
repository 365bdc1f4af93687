//! The memory that two ranks measure on, and the ends of links over it.

use shmccl::channel::{Channel, MemoryChannel};
use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::packet::PacketKind;
use shmccl::shm::{CopyKernel, Span};
use shmccl::{Communicator, Rank, Result};
use shmccl_harness::sync::{FlagEnd, RankPair};
use shmccl_harness::test::Test;

use super::links::{CopyFlagLink, MessageLink, PacketLink, Payload, PayloadEnd, PutLink, RawPacketLink};
use super::spec::PerfSpec;

/// From this size on messages carry stamps: reading the clock then takes a few per cent at most.
const STAMPED_FROM: u64 = 1024;

/// Returns whether messages of `len` bytes carry stamps.
pub(crate) const fn is_stamped(len: u64) -> bool {
    len >= STAMPED_FROM
}

/// Small messages are moved several times in a row, up to about so many bytes,
pub(crate) const BURST_BYTES: u64 = 64 << 10;

/// or so many times.
pub(crate) const MOST_IN_BURST: u64 = 64;

/// Pairs of bare flags.
const FLAGS: u64 = 8;

/// Alignment of message buffers, in bytes.
const ALIGN: u64 = 4096;

/// Returns the bytes from one slot for messages of `len` bytes to the next. Slots share no pair of
/// cache lines, which the prefetcher would fetch together.
fn stride(len: u64) -> u64 {
    len.max(1).next_multiple_of(128)
}

/// Two message buffers and bare flags on every rank.
#[derive(Debug)]
pub(crate) struct PairBuffers {
    rank: Rank,
    pair: RankPair,
    len: u64,
    /// Slots for messages that go out.
    out: Region,
    /// Slots for messages that come in.
    into: Region,
    flags: Region,
    packets: Region,
    check: bool,
}

/// The messages and flags of one rank of a pair.
#[derive(Debug)]
pub(crate) struct PairEnds {
    /// Whether this rank keeps the time.
    pub(crate) leads: bool,
    /// The message that this rank sends.
    pub(crate) outgoing: Payload,
    /// The message that this rank receives.
    pub(crate) incoming: Payload,
    /// Flags that no other contender uses.
    pub(crate) flags: FlagEnd,
}

impl PairBuffers {
    /// Allocates for messages of `len` bytes of `test` between `pair`. Collective; ranks outside of
    /// the pair get buffers too, and do not use them.
    pub(crate) fn alloc(
        comm: &mut Communicator,
        pair: RankPair,
        len: u64,
        test: Test,
        spec: &PerfSpec,
    ) -> Result<Self> {
        let packed = if test == Test::PacketLatency { 4 * len.next_multiple_of(16) } else { 0 };
        let gets = (BURST_BYTES / len.max(1)).clamp(1, MOST_IN_BURST);
        let slots = if test == Test::GetLatency { gets } else { 1 };
        let room = (slots - 1) * stride(len) + len;
        Ok(Self {
            rank: comm.rank(),
            pair,
            len,
            out: comm.alloc_region(room, ALIGN)?,
            into: comm.alloc_region(room, ALIGN)?,
            flags: comm.alloc_region(FLAGS * 128, 128)?,
            packets: comm.alloc_region(packed, ALIGN)?,
            check: spec.check,
        })
    }

    /// Frees it all. Collective.
    pub(crate) fn free(self, comm: &mut Communicator) -> Result<()> {
        for region in [self.out, self.into, self.flags, self.packets] {
            comm.free_region(region)?;
        }
        Ok(())
    }

    /// Returns whether this rank keeps the time.
    pub(crate) fn leads(&self) -> bool {
        self.rank == self.pair.leader
    }

    /// Returns the other rank.
    pub(crate) fn peer(&self) -> Rank {
        self.pair.peer_of(self.rank)
    }

    /// Returns where outgoing messages are in this rank's heap.
    pub(crate) fn source(&self) -> HeapOffset {
        self.out.offset
    }

    /// Returns where incoming messages are in either heap.
    pub(crate) fn target(&self) -> HeapOffset {
        self.into.offset
    }

    /// Returns the length of a message in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the slots, outgoing and incoming: one, or as many as gets are timed together.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (Region, Region)> + '_ {
        let at = |room: Region, start| Region::new(HeapOffset::new(room.offset.get() + start), self.len);
        let starts = (0..=(self.out.len - self.len) / stride(self.len)).map(|slot| slot * stride(self.len));
        starts.map(move |start| (at(self.out, start), at(self.into, start)))
    }

    /// Returns the messages of all slots, outgoing and incoming.
    pub(crate) fn payloads(&self, comm: &Communicator) -> Result<(Vec<Payload>, Vec<Payload>)> {
        let both = self.slots().map(|(out, into)| Ok((self.payload(comm, out)?, self.payload(comm, into)?)));
        Ok(both.collect::<Result<Vec<_>>>()?.into_iter().unzip())
    }

    /// Returns whether messages of this length carry stamps.
    pub(crate) fn stamped(&self) -> bool {
        is_stamped(self.len())
    }

    /// Returns both messages, and flags number `pair`.
    pub(crate) fn ends(&self, comm: &Communicator, pair: u64) -> Result<PairEnds> {
        let [outgoing, incoming] = self.messages(comm)?;
        Ok(PairEnds { leads: self.leads(), outgoing, incoming, flags: self.flags(comm, pair)? })
    }

    /// Returns the memory of the outgoing message.
    pub(crate) fn outgoing(&self, comm: &Communicator) -> Result<Span> {
        comm.span(self.rank, self.first(self.out))
    }

    /// Returns the peer's memory for the message that this rank sends.
    pub(crate) fn remote(&self, comm: &Communicator) -> Result<Span> {
        comm.span(self.peer(), self.first(self.into))
    }

    /// Returns one bare flag each way, showing zero. Contenders that take turns use different
    /// `pair`s, from 0 to 7.
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

    /// Returns where word number `index` is in either heap, after this rank has made its own zero.
    /// Words are those of the bare flags.
    pub(crate) fn word(&self, comm: &Communicator, index: u64) -> Result<HeapOffset> {
        self.flags(comm, index)?;
        Ok(HeapOffset::new(self.flags.offset.get() + 128 * index))
    }

    /// Returns the limit of a put with signal: a copy by `kernel` and bare flags number `pair`.
    pub(crate) fn copy_and_flag(
        &self,
        comm: &Communicator,
        pair: u64,
        kernel: CopyKernel,
    ) -> Result<PayloadEnd<CopyFlagLink>> {
        let (flags, source) = (self.flags(comm, pair)?, self.outgoing(comm)?);
        self.over(comm, CopyFlagLink { flags, source, remote: self.remote(comm)?, kernel })
    }

    /// Returns puts with signal over `channel`.
    pub(crate) fn put<C: Channel>(&self, comm: &Communicator, channel: C) -> Result<PayloadEnd<PutLink<C>>> {
        let (source, target) = (self.source(), self.target());
        self.over(comm, PutLink { channel, source, target, len: self.len() })
    }

    /// Returns puts in packets of one kind over `channel`.
    pub(crate) fn put_packets(
        &self,
        comm: &Communicator,
        channel: MemoryChannel,
        kind: PacketKind,
    ) -> Result<PayloadEnd<PacketLink>> {
        let (source, unpacked, packets) = (self.source(), self.target(), self.packets());
        self.over(comm, PacketLink { channel, kind, source, packets, unpacked, len: self.len() })
    }

    /// Returns the limit of puts in packets: such packets without a channel.
    pub(crate) fn raw_packets(
        &self,
        comm: &Communicator,
        kind: PacketKind,
    ) -> Result<PayloadEnd<RawPacketLink>> {
        let half = |rank, start| comm.span(rank, Region::new(start, self.packets.len / 2));
        let [first, second] = self.packets();
        let halves = |rank| -> Result<[Span; 2]> { Ok([half(rank, first)?, half(rank, second)?]) };
        let link = RawPacketLink {
            kind,
            source: self.outgoing(comm)?,
            remote: halves(self.peer())?,
            packets: halves(self.rank)?,
            unpacked: comm.span(self.rank, self.first(self.into))?,
            yields: self.pair.one_core,
        };
        self.over(comm, link)
    }

    /// Returns where packets go, in either heap: two halves.
    fn packets(&self) -> [HeapOffset; 2] {
        let start = self.packets.offset.get();
        [HeapOffset::new(start), HeapOffset::new(start + self.packets.len / 2)]
    }

    /// Returns the first slot of `room`.
    fn first(&self, room: Region) -> Region {
        Region::new(room.offset, self.len)
    }

    fn payload(&self, comm: &Communicator, region: Region) -> Result<Payload> {
        Ok(Payload::new(comm.span(self.rank, region)?, self.check))
    }

    /// Returns the outgoing and the incoming message.
    fn messages(&self, comm: &Communicator) -> Result<[Payload; 2]> {
        Ok([self.payload(comm, self.first(self.out))?, self.payload(comm, self.first(self.into))?])
    }

    /// Returns messages over `link`.
    pub(crate) fn over<L: MessageLink>(&self, comm: &Communicator, link: L) -> Result<PayloadEnd<L>> {
        let [outgoing, incoming] = self.messages(comm)?;
        Ok(PayloadEnd { link, outgoing, incoming, stamped: self.stamped() })
    }
}
