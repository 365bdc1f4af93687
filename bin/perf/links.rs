//! How messages travel between two ranks (by bare flags, over channels, in packets), and their
//! data, which the receiver can check.
//!
//! A [`MessageLink`] is one way to travel. [`SignalEnd`] sends a link's signal and nothing else;
//! [`PayloadEnd`] sends data that are rewritten before each message and read after it.

use std::cell::RefCell;

use shmccl::Result;
use shmccl::channel::{Channel, MemoryChannel};
use shmccl::heap::HeapOffset;
use shmccl::shm::packet::{PacketFlag, PacketKind};
use shmccl::shm::{CopyKernel, Span};
use shmccl_harness::clock::now_ns;
use shmccl_harness::sync::FlagEnd;

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
    /// The time when the last byte of a stamped message had been read.
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
pub(crate) struct PayloadEnd<L> {
    /// How messages travel.
    pub(crate) link: L,
    /// The message to send.
    pub(crate) outgoing: Payload,
    /// The message that arrives.
    pub(crate) incoming: Payload,
    /// Whether messages carry stamps.
    pub(crate) stamped: bool,
}

impl<L: MessageLink> PingPongEnd for PayloadEnd<L> {
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

impl MessageLink for FlagEnd {
    #[inline]
    fn send(&mut self, seq: u64) -> Result<()> {
        self.set(seq);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<()> {
        self.wait(seq);
        Ok(())
    }
}

/// The limit of a put with signal: a plain copy and a bare flag.
#[derive(Debug)]
pub(crate) struct CopyFlagLink {
    /// The flags.
    pub(crate) flags: FlagEnd,
    /// The source of the transfer.
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

/// The limit of a put that adds to a word behind it.
#[derive(Debug)]
pub(crate) struct CopyAddLink(pub(crate) CopyFlagLink);

impl MessageLink for CopyAddLink {
    #[inline]
    fn send(&mut self, _seq: u64) -> Result<()> {
        self.0.source.copy_with(self.0.kernel, &self.0.remote)?;
        self.0.flags.theirs.add(1);
        Ok(())
    }

    #[inline]
    fn receive(&mut self, seq: u64) -> Result<()> {
        self.0.flags.receive(seq)
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
    /// The source in this rank's heap.
    pub(crate) source: HeapOffset,
    /// The target in the peer's heap.
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
    /// The source in this rank's heap.
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

/// Words that are generated or checked at a time, in cache.
const CHUNK: usize = 512;

/// A message of fixed length that is rewritten for every sending and read after every arrival.
#[derive(Debug)]
pub(crate) struct Payload {
    span: Span,
    check: bool,
    /// Room for a part of the message as it is, and as it should be.
    parts: RefCell<[Vec<u64>; 2]>,
}

impl Payload {
    /// Makes a message of all of `span`. With `check` every word is compared on arrival, not only
    /// read.
    pub(crate) fn new(span: Span, check: bool) -> Self {
        let words = usize::try_from(span.len().div_ceil(8)).map_or(CHUNK, |words| words.min(CHUNK));
        Self { span, check, parts: RefCell::new([vec![0; words], vec![0; words]]) }
    }

    /// Returns the memory that holds the message.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Returns the beginning of the message, as soon as that is there.
    #[inline]
    pub(crate) fn first(&self) -> Result<usize> {
        Ok(if self.span.len() >= 8 { self.span.read(0)? } else { usize::from(self.span.read::<u8>(0)?) })
    }

    /// Rewrites the memory as message `seq`.
    #[inline]
    pub(crate) fn rewrite(&self, seq: u64) {
        if self.span.len() == 8 {
            self.span.write(0, pattern(seq, 0)).expect("in range");
        } else {
            self.rewrite_long(seq).expect("in range");
        }
    }

    fn rewrite_long(&self, seq: u64) -> Result<()> {
        let [part, _] = &mut *self.parts.borrow_mut();
        for (start, len) in chunks(self.span.len()) {
            generate(part, seq, start / 8);
            self.span.copy_in(start, &bytemuck::cast_slice(part)[..len])?;
        }
        Ok(())
    }

    /// Replaces the first word by a stamp.
    pub(crate) fn stamp(&self, stamp: u64) {
        self.span.write(0, stamp).expect("a stamped message has a first word");
    }

    /// Reads all of the message, and counts the words that are not those of message `seq`.
    ///
    /// A stamp is not counted. Of a stamped message it also returns when the last byte had been
    /// read, before any was compared.
    #[inline]
    pub(crate) fn read(&self, seq: u64, stamped: bool) -> MessageRead {
        if self.span.len() == 8 {
            let word: u64 = self.span.read(0).expect("in range");
            let wrong = u64::from(self.check && word != pattern(seq, 0));
            return MessageRead { first: word, read_at: 0, wrong };
        }
        self.read_long(seq, stamped).expect("in range")
    }

    fn read_long(&self, seq: u64, stamped: bool) -> Result<MessageRead> {
        let [found, expected] = &mut *self.parts.borrow_mut();
        let mut received = MessageRead::default();
        if stamped {
            for (start, len) in chunks(self.span.len()) {
                self.span.copy_out(start, &mut bytemuck::cast_slice_mut(found)[..len])?;
                std::hint::black_box(&mut *found);
            }
            received.read_at = now_ns();
        }
        for (start, len) in chunks(self.span.len()) {
            self.span.copy_out(start, &mut bytemuck::cast_slice_mut(found)[..len])?;
            std::hint::black_box(&mut *found);
            let first = if start == 0 { found.first().copied() } else { None };
            received.first = first.unwrap_or(received.first);
            if self.check {
                generate(expected, seq, start / 8);
                if stamped {
                    expected[0] = first.unwrap_or(expected[0]);
                }
                received.wrong +=
                    differing(&bytemuck::cast_slice(found)[..len], bytemuck::cast_slice(expected));
            }
        }
        Ok(received)
    }
}

/// Counts the words of `found` that differ from `expected`. The last one may be cut off.
fn differing(found: &[u8], expected: &[u8]) -> u64 {
    let expected = &expected[..found.len()];
    if found == expected {
        return 0;
    }
    let differs = |(one, other): (&[u8], &[u8])| u64::from(one != other);
    found.chunks(8).zip(expected.chunks(8)).map(differs).sum()
}

/// Returns word `index` of message `seq`.
#[inline]
fn pattern(seq: u64, index: u64) -> u64 {
    seq.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index)
}

fn generate(part: &mut [u64], seq: u64, first: u64) {
    let base = pattern(seq, first);
    for (index, word) in (0..).zip(part) {
        *word = base.wrapping_add(index);
    }
}

/// Returns where parts of a message of `len` bytes begin, and their lengths.
fn chunks(len: u64) -> impl Iterator<Item = (u64, usize)> {
    const BYTES: usize = 8 * CHUNK;
    (0..len)
        .step_by(BYTES)
        .map(move |start| (start, usize::try_from(len - start).map_or(BYTES, |rest| rest.min(BYTES))))
}
