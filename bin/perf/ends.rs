//! The ends between which two ranks throw: bare, direct, proxied, in packets.

use shmccl::Result;
use shmccl::channel::{Channel, MemoryChannel};
use shmccl::heap::HeapOffset;
use shmccl::shm::packet::{Flag, PacketKind};
use shmccl::shm::{CellRef, CopyKernel, Span};
use shmccl::sync::bare::BareFlag;

use super::lane::{End, Received};
use super::payload::Payload;

/// The limit of a signal: one bare flag each way.
#[derive(Debug)]
pub(crate) struct FlagEnd {
    /// The flag that the peer sets.
    pub(crate) mine: CellRef<BareFlag>,
    /// The flag that the peer waits for.
    pub(crate) theirs: CellRef<BareFlag>,
}

impl End for FlagEnd {
    #[inline]
    fn prepare(&mut self, _seq: u64) {}

    fn stamp(&mut self, _now: u64) {}

    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        self.theirs.set(seq);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<Received> {
        self.mine.spin(seq);
        Ok(Received::default())
    }
}

/// The limit of a put with signal: a plain copy and a bare flag.
#[derive(Debug)]
pub(crate) struct CopyFlagEnd {
    /// The flags.
    pub(crate) flags: FlagEnd,
    /// What is sent.
    pub(crate) outgoing: Payload,
    /// Where the peer finds it.
    pub(crate) remote: Span,
    /// What arrives.
    pub(crate) incoming: Payload,
    /// How to copy.
    pub(crate) kernel: CopyKernel,
    /// Whether messages carry stamps.
    pub(crate) stamped: bool,
}

impl End for CopyFlagEnd {
    #[inline]
    fn prepare(&mut self, seq: u64) {
        self.outgoing.rewrite(seq);
    }

    fn stamp(&mut self, now: u64) {
        self.outgoing.stamp(now);
    }

    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        self.outgoing.span().copy_with(self.kernel, &self.remote)?;
        self.flags.send(seq)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<Received> {
        self.flags.receive(seq)?;
        Ok(self.incoming.read(seq, self.stamped))
    }
}

/// A signal and nothing else, over any channel.
#[derive(Debug)]
pub(crate) struct SignalEnd<C> {
    /// The channel.
    pub(crate) channel: C,
}

impl<C: Channel> End for SignalEnd<C> {
    #[inline]
    fn prepare(&mut self, _seq: u64) {}

    fn stamp(&mut self, _now: u64) {}

    #[inline]
    fn send(&mut self, _seq: u64) -> Result<()> {
        self.channel.signal()
    }

    #[inline]
    fn receive(&mut self, _seq: u64) -> Result<Received> {
        self.channel.wait()?;
        Ok(Received::default())
    }
}

/// A put with signal over any channel.
#[derive(Debug)]
pub(crate) struct PutEnd<C> {
    /// The channel.
    pub(crate) channel: C,
    /// What is sent.
    pub(crate) outgoing: Payload,
    /// Where that is in this rank's heap.
    pub(crate) source: HeapOffset,
    /// Where it goes in the peer's.
    pub(crate) target: HeapOffset,
    /// What arrives.
    pub(crate) incoming: Payload,
    /// Whether messages carry stamps.
    pub(crate) stamped: bool,
}

impl<C: Channel> End for PutEnd<C> {
    #[inline]
    fn prepare(&mut self, seq: u64) {
        self.outgoing.rewrite(seq);
    }

    fn stamp(&mut self, now: u64) {
        self.outgoing.stamp(now);
    }

    #[inline]
    fn send(&mut self, _seq: u64) -> Result<()> {
        self.channel.put_with_signal(self.target, self.source, self.outgoing.span().len())
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<Received> {
        self.channel.wait()?;
        Ok(self.incoming.read(seq, self.stamped))
    }
}

/// A put in packets: the flag travels with the data.
#[derive(Debug)]
pub(crate) struct PacketEnd {
    /// The channel.
    pub(crate) channel: MemoryChannel,
    /// The kind of packet.
    pub(crate) kind: PacketKind,
    /// What is sent.
    pub(crate) outgoing: Payload,
    /// Where that is in this rank's heap.
    pub(crate) source: HeapOffset,
    /// Where packets go, in either heap: two halves that alternate, since a packet may be overwritten only after it was read.
    pub(crate) packets: [HeapOffset; 2],
    /// Where the unpacked message goes in this rank's heap.
    pub(crate) unpacked: HeapOffset,
    /// The same, to be read.
    pub(crate) incoming: Payload,
    /// Whether messages carry stamps.
    pub(crate) stamped: bool,
}

impl PacketEnd {
    /// A flag that is never zero and differs from the last two in the same half.
    fn flag(seq: u64) -> (usize, Flag) {
        let flag = u32::try_from(seq % u64::from(u32::MAX)).unwrap_or(0) + 1;
        (usize::from(seq % 2 == 1), Flag::new(flag).expect("one is added"))
    }
}

impl End for PacketEnd {
    #[inline]
    fn prepare(&mut self, seq: u64) {
        self.outgoing.rewrite(seq);
    }

    fn stamp(&mut self, now: u64) {
        self.outgoing.stamp(now);
    }

    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        let (half, flag) = Self::flag(seq);
        let len = self.outgoing.span().len();
        self.channel.put_packets(self.kind, self.packets[half], self.source, len, flag)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<Received> {
        let (half, flag) = Self::flag(seq);
        let len = self.incoming.span().len();
        self.channel.unpack_packets(self.kind, self.unpacked, self.packets[half], len, flag)?;
        Ok(self.incoming.read(seq, self.stamped))
    }
}
