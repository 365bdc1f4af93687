//! How messages travel between two ranks: by bare flags, over channels, in packets.
//!
//! A [`MessageLink`] is one way to travel. [`SignalEnd`] sends a link's signal and nothing else;
//! [`MessageEnd`] sends data that are rewritten before each message and read after it.

use shmccl::Result;
use shmccl::channel::{Channel, MemoryChannel};
use shmccl::heap::HeapOffset;
use shmccl::shm::packet::{PacketFlag, PacketKind};
use shmccl::shm::{CellRef, CopyKernel, Span};
use shmccl_limits::flags::BareFlag;

use super::buffers::Payload;

/// One end of what two ranks send back and forth.
pub(crate) trait PingPongEnd {
    /// Rewrites what is to be sent as message number `seq`. Not part of a stamped sample.
    fn prepare(&mut self, seq: u64);

    /// Notes the time in what is to be sent, where it has room.
    fn stamp(&mut self, now: u64);

    /// Sends message number `seq`.
    fn send(&mut self, seq: u64) -> Result<()>;

    /// Waits for message number `seq` and reads all of it.
    fn receive(&mut self, seq: u64) -> Result<MessageRead>;
}

/// The result of reading a message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessageRead {
    /// The first word, where there is one: the sender's stamp, if the message is stamped.
    pub(crate) first: u64,
    /// When the last byte of a stamped message had been read.
    pub(crate) read_at: u64,
    /// Words that were not what the sender wrote.
    pub(crate) wrong: u64,
}

/// A way for messages from one rank to the other.
pub(crate) trait MessageLink {
    /// Sends message number `seq`.
    fn send(&mut self, seq: u64) -> Result<()>;

    /// Returns when message number `seq` is there.
    fn receive(&mut self, seq: u64) -> Result<()>;
}

/// Messages that carry nothing.
#[derive(Debug)]
pub(crate) struct SignalEnd<L>(pub(crate) L);

impl<L: MessageLink> PingPongEnd for SignalEnd<L> {
    #[inline]
    fn prepare(&mut self, _seq: u64) {}

    fn stamp(&mut self, _now: u64) {}

    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        self.0.send(seq)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<MessageRead> {
        self.0.receive(seq)?;
        Ok(MessageRead::default())
    }
}

/// Messages with data.
#[derive(Debug)]
pub(crate) struct MessageEnd<L> {
    /// How messages travel.
    pub(crate) link: L,
    /// The message to send.
    pub(crate) outgoing: Payload,
    /// The message that arrives.
    pub(crate) incoming: Payload,
    /// Whether messages carry stamps.
    pub(crate) stamped: bool,
}

impl<L: MessageLink> PingPongEnd for MessageEnd<L> {
    #[inline]
    fn prepare(&mut self, seq: u64) {
        self.outgoing.rewrite(seq);
    }

    fn stamp(&mut self, now: u64) {
        self.outgoing.stamp(now);
    }

    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        self.link.send(seq)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<MessageRead> {
        self.link.receive(seq)?;
        Ok(self.incoming.read(seq, self.stamped))
    }
}

/// The limit of a signal: one bare flag each way.
#[derive(Debug)]
pub(crate) struct FlagEnd {
    /// The flag that the peer sets.
    pub(crate) mine: CellRef<BareFlag>,
    /// The flag that the peer waits for.
    pub(crate) theirs: CellRef<BareFlag>,
    /// Whether a wait gives way between two looks, since both ranks share a core.
    pub(crate) yields: bool,
}

impl FlagEnd {
    /// Waits until the other rank has come to turn number `turn`, too.
    pub(crate) fn meet(&self, turn: u64) {
        self.theirs.set(turn);
        self.mine.spin_yielding(turn);
    }
}

impl MessageLink for FlagEnd {
    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        self.theirs.set(seq);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<()> {
        if self.yields {
            self.mine.spin_yielding(seq);
        } else {
            self.mine.spin(seq);
        }
        Ok(())
    }
}

/// The limit of a put with signal: a plain copy and a bare flag.
#[derive(Debug)]
pub(crate) struct CopyFlagLink {
    /// The flags.
    pub(crate) flags: FlagEnd,
    /// From where.
    pub(crate) source: Span,
    /// Where the peer finds it.
    pub(crate) remote: Span,
    /// How to copy.
    pub(crate) kernel: CopyKernel,
}

impl MessageLink for CopyFlagLink {
    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        self.source.copy_with(self.kernel, &self.remote)?;
        self.flags.send(seq)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<()> {
        self.flags.receive(seq)
    }
}

/// A signal over any channel.
#[derive(Debug)]
pub(crate) struct SignalLink<C> {
    /// The channel.
    pub(crate) channel: C,
}

impl<C: Channel> MessageLink for SignalLink<C> {
    #[inline]
    fn send(&mut self, _seq: u64) -> Result<()> {
        self.channel.signal()
    }

    #[inline]
    fn receive(&mut self, _seq: u64) -> Result<()> {
        self.channel.wait()
    }
}

/// A put with signal over any channel.
#[derive(Debug)]
pub(crate) struct PutLink<C> {
    /// The channel.
    pub(crate) channel: C,
    /// From where in this rank's heap.
    pub(crate) source: HeapOffset,
    /// To where in the peer's.
    pub(crate) target: HeapOffset,
    /// How much.
    pub(crate) len: u64,
}

impl<C: Channel> MessageLink for PutLink<C> {
    #[inline]
    fn send(&mut self, _seq: u64) -> Result<()> {
        self.channel.put_with_signal(self.target, self.source, self.len)
    }

    #[inline]
    fn receive(&mut self, _seq: u64) -> Result<()> {
        self.channel.wait()
    }
}

/// A put in packets: the flag travels with the data.
#[derive(Debug)]
pub(crate) struct PacketLink {
    /// The channel.
    pub(crate) channel: MemoryChannel,
    /// The kind of packet.
    pub(crate) kind: PacketKind,
    /// From where in this rank's heap.
    pub(crate) source: HeapOffset,
    /// Where packets go, in either heap. Two halves alternate, since a packet may be overwritten
    /// only after it was read.
    pub(crate) packets: [HeapOffset; 2],
    /// Where the unpacked message goes in this rank's heap.
    pub(crate) unpacked: HeapOffset,
    /// How much.
    pub(crate) len: u64,
}

/// The limit of a put in packets: such packets without a channel.
#[derive(Debug)]
pub(crate) struct RawPacketLink {
    /// The kind of packet.
    pub(crate) kind: PacketKind,
    /// The message to send.
    pub(crate) source: Span,
    /// Where packets go, in two halves.
    pub(crate) remote: [Span; 2],
    /// Where they come from.
    pub(crate) packets: [Span; 2],
    /// Where the unpacked message goes.
    pub(crate) unpacked: Span,
    /// Whether a wait gives way, since both ranks share a core.
    pub(crate) yields: bool,
}

/// The flags of raw packets. They differ from those of the library's packets in the same memory.
const OTHER_FLAGS: u64 = 1 << 31;

impl MessageLink for RawPacketLink {
    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        let (half, flag) = PacketLink::flag(OTHER_FLAGS + seq);
        self.remote[half].pack_from(self.kind, 0, &self.source, 0, self.source.len(), flag)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<()> {
        let (half, flag) = PacketLink::flag(OTHER_FLAGS + seq);
        let (packets, len, mut done) = (&self.packets[half], self.unpacked.len(), 0);
        while !packets.unpack_to(self.kind, 0, &self.unpacked, 0, len, flag, &mut done)? {
            if self.yields { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        Ok(())
    }
}

impl PacketLink {
    /// Returns the half for message `seq`, and a flag that is never zero and differs from the last
    /// two in that half.
    fn flag(seq: u64) -> (usize, PacketFlag) {
        let flag = u32::try_from(seq % u64::from(u32::MAX)).unwrap_or(0) + 1;
        (usize::from(seq % 2 == 1), PacketFlag::new(flag).expect("one is added"))
    }
}

impl MessageLink for PacketLink {
    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        let (half, flag) = Self::flag(seq);
        self.channel.put_packets(self.kind, self.packets[half], self.source, self.len, flag)
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<()> {
        let (half, flag) = Self::flag(seq);
        self.channel.unpack_packets(self.kind, self.unpacked, self.packets[half], self.len, flag)
    }
}
