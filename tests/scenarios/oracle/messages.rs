//! What goes from rank to rank, in groups of messages and in exchanges of blocks of any length:
//! what is received is what was sent, of every type, and nothing else is written. Of an exchange in
//! place, some ranks do their part in two buffers.

use shmccl::comm::{RecvBuffer, SendBuffer};
use shmccl::heap::Region;
use shmccl::reduce::{DataType, Element};
use shmccl::{Blocks, Collectives, Communicator, Group, Rank, Result};

use crate::harness::{Random, rank};
use crate::oracle::call::{Sides, of_type, recv_buffer, send_buffer};
use crate::oracle::memory::{Side, Zone};
use crate::oracle::table::{Memory, one_of};

/// The most bytes of a block that is not one of the longest.
const SHORT: u64 = 3000;

/// More than has room between two ranks before it is received.
const LONG: u64 = 70_000;

/// Blocks from every rank to every one.
#[derive(Debug)]
pub(crate) struct Exchange {
    dtype: DataType,
    memory: Memory,
    way: Way,
    /// Elements, by who sends them and who receives them.
    counts: Vec<Vec<usize>>,
    salt: u64,
}

/// How blocks are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By one call of all ranks.
    Apart,
    /// By one call of all ranks, in which blocks take each other's places.
    InPlace,
    /// By messages.
    Messages,
}

/// Where the blocks of one buffer are, by rank, in elements.
struct Layout {
    counts: Vec<usize>,
    displacements: Vec<usize>,
    total: usize,
}

impl Layout {
    fn blocks(&self) -> Blocks<'_> {
        Blocks::new(&self.counts, &self.displacements)
    }

    /// The bytes of the block for `rank`, or from it.
    fn bytes(&self, rank: usize, size: usize) -> std::ops::Range<usize> {
        let start = self.displacements[rank] * size;
        start..start + self.counts[rank] * size
    }
}

impl Exchange {
    /// Number `number` of those among `n` ranks.
    pub(crate) fn draw(random: &mut Random, n: usize, number: usize) -> Self {
        let dtype = DataType::ALL[number % DataType::ALL.len()];
        let size = dtype.size() as u64;
        let mut count = || {
            let limit = match random.below(40) {
                0 => LONG,
                1..=9 => size, // none
                10..=25 => 20 * size,
                _ => SHORT,
            };
            usize::try_from(random.below(limit / size)).unwrap()
        };
        let mut counts: Vec<Vec<_>> = (0..n).map(|_| (0..n).map(|_| count()).collect()).collect();
        let way = one_of(random, &[Way::Apart, Way::InPlace, Way::Messages]);
        if way == Way::InPlace {
            for (one, other) in (0..n).flat_map(|one| (0..one).map(move |other| (one, other))) {
                counts[one][other] = counts[other][one];
            }
        }
        let memory = one_of(random, &[Memory::Heap, Memory::Ordinary, Memory::Mixed]);
        Self { dtype, memory, way, counts, salt: random.next() }
    }

    /// Numbers that only this rank has, for `what`.
    fn chance(&self, rank: usize, what: u64) -> Random {
        Random(self.salt ^ (rank as u64) << 8 ^ what << 40)
    }

    fn in_heap(&self, rank: usize, what: u64) -> bool {
        match self.memory {
            Memory::Heap => true,
            Memory::Ordinary => false,
            Memory::Mixed => self.chance(rank, what + 4).below(2) == 0,
        }
    }

    /// The blocks that `rank` sends, or those that it receives: in any order, with gaps between
    /// them.
    fn layout(&self, rank: usize, received: bool) -> Layout {
        let n = self.counts.len();
        let counts: Vec<_> = (0..n)
            .map(|peer| if received { self.counts[peer][rank] } else { self.counts[rank][peer] })
            .collect();
        let (mut random, mut displacements, mut total) = (self.chance(rank, received.into()), vec![0; n], 0);
        let first = usize::try_from(random.below(n as u64)).unwrap();
        for peer in (first..n).chain(0..first) {
            total += usize::try_from(random.below(3)).unwrap();
            displacements[peer] = total;
            total += counts[peer];
        }
        Layout { counts, displacements, total }
    }

    /// What `rank` sends, gaps included.
    fn contents(&self, rank: usize) -> Vec<u8> {
        self.chance(rank, 2).bytes(self.layout(rank, false).total * self.dtype.size())
    }

    /// Whether `rank` does its part in one buffer.
    fn is_in_place(&self, rank: usize) -> bool {
        self.way == Way::InPlace && self.chance(rank, 12).below(4) > 0
    }

    /// Executes it on this rank, in buffers of `zones`, and looks at all that may have changed.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn run(&self, comm: &mut Communicator, zones: &mut (Zone, Zone)) -> Result<(), String> {
        if self.is_in_place(comm.rank().index()) {
            return self.run_in_place(comm, &mut zones.0);
        }
        let (me, size) = (comm.rank().index(), self.dtype.size());
        let (sent, received) = (self.layout(me, false), self.layout(me, true));
        let lay = |zone, what, len| {
            let shift = self.chance(me, what + 8).next();
            Zone::lay(zone, shift, self.in_heap(me, what), size, len)
        };
        let (mut input, mut output) =
            (lay(&mut zones.0, 0, sent.total * size), lay(&mut zones.1, 1, received.total * size));
        input.expect(0, &self.contents(me));
        let told = |error: shmccl::Error| error.to_string();
        input.put().and_then(|()| output.put()).map_err(told)?;
        let sides = Sides::Two(
            input.side(0, sent.total * size).map_err(told)?,
            output.side(0, received.total * size).map_err(told)?,
        );
        self.execute(comm, sides, (&sent, &received)).map_err(told)?;
        for peer in 0..self.counts.len() {
            let theirs = self.layout(peer, false).bytes(me, size);
            output.expect(received.bytes(peer, size).start, &self.contents(peer)[theirs]);
        }
        for (buffer, what) in [(&input, "input"), (&output, "output")] {
            if let Some(at) = buffer.first_change().map_err(told)? {
                return Err(format!("byte {at} of the {what} is not what it has to be"));
            }
        }
        Ok(())
    }

    /// Like [`Exchange::run`], but in one buffer, of `zone`, in which each block takes the place of
    /// the one that goes the other way.
    fn run_in_place(&self, comm: &mut Communicator, zone: &mut Zone) -> Result<(), String> {
        let (me, size) = (comm.rank().index(), self.dtype.size());
        let told = |error: shmccl::Error| error.to_string();
        let (layout, shift) = (self.layout(me, false), self.chance(me, 8).next());
        let mut buffer = Zone::lay(zone, shift, self.in_heap(me, 0), size, layout.total * size);
        buffer.expect(0, &self.contents(me));
        buffer.put().map_err(told)?;
        let side = buffer.side(0, layout.total * size).map_err(told)?;
        self.execute(comm, Sides::One(side), (&layout, &layout)).map_err(told)?;
        for peer in 0..self.counts.len() {
            let theirs = self.layout(peer, false).bytes(me, size);
            buffer.expect(layout.bytes(peer, size).start, &self.contents(peer)[theirs]);
        }
        match buffer.first_change().map_err(told)? {
            Some(at) => Err(format!("byte {at} of the buffer is not what it has to be")),
            None => Ok(()),
        }
    }

    fn execute(&self, comm: &mut Communicator, sides: Sides<'_>, layouts: (&Layout, &Layout)) -> Result<()> {
        let execute = of_type!(self.dtype, Self::execute_of);
        execute(self, comm, sides, layouts)
    }

    fn execute_of<T: Element>(
        &self,
        comm: &mut Communicator,
        sides: Sides<'_>,
        (sent, received): (&Layout, &Layout),
    ) -> Result<()> {
        let (input, output) = match sides {
            Sides::One(side) => {
                return comm.all_to_all_v_in_place(recv_buffer::<T>(comm, side)?, sent.blocks());
            }
            Sides::Two(input, output) => (input, output),
        };
        if self.way != Way::Messages {
            let (input, output) = (send_buffer::<T>(comm, input)?, recv_buffer::<T>(comm, output)?);
            return comm.all_to_all_v(input, sent.blocks(), output, received.blocks());
        }
        let mut random = self.chance(comm.rank().index(), 3);
        let messages = sends::<T>(comm, input, sent)?.into_iter().chain(receives(comm, output, received)?);
        let mut messages: Vec<_> = messages.map(|message| (random.next(), message)).collect();
        messages.sort_by_key(|(place, _)| *place);
        let mut group = Group::start();
        let joined = group.join(comm);
        for (_, message) in messages {
            match message {
                Message::Send(buffer, peer) => group.on(joined).send(buffer, peer)?,
                Message::Recv(buffer, peer) => group.on(joined).recv(buffer, peer)?,
            }
        }
        group.end()
    }
}

enum Message<'a, T> {
    Send(SendBuffer<'a, T>, Rank),
    Recv(RecvBuffer<'a, T>, Rank),
}

fn peer_of(comm: &Communicator, peer: usize) -> Rank {
    rank(comm, u32::try_from(peer).unwrap())
}

/// The part of `region` that is bytes `range`.
fn within(region: Region, range: std::ops::Range<usize>) -> Result<Region> {
    region.part(range.start as u64, range.len() as u64)
}

fn sends<'a, T: Element>(
    comm: &Communicator,
    side: Side<'a>,
    layout: &Layout,
) -> Result<Vec<Message<'a, T>>> {
    let size = size_of::<T>();
    let ranges = (0..layout.counts.len()).map(|peer| (peer_of(comm, peer), layout.bytes(peer, size)));
    match side {
        Side::Heap(region) => ranges
            .map(|(peer, range)| {
                Ok(Message::Send(send_buffer(comm, Side::Heap(within(region, range)?))?, peer))
            })
            .collect(),
        Side::Ordinary(bytes) => {
            let bytes: &'a [u8] = bytes;
            let slice = |range| bytemuck::cast_slice::<u8, T>(&bytes[range]);
            Ok(ranges.map(|(peer, range)| Message::Send(slice(range).into(), peer)).collect())
        }
        Side::Lasting(_) => unreachable!("it is for streams"),
    }
}

fn receives<'a, T: Element>(
    comm: &Communicator,
    side: Side<'a>,
    layout: &Layout,
) -> Result<Vec<Message<'a, T>>> {
    let mut order: Vec<_> = (0..layout.counts.len()).collect();
    // Empty ones come before the one that begins there, too.
    order.sort_by_key(|&peer| (layout.displacements[peer], layout.counts[peer]));
    let (mut rest, mut start) = (side, 0);
    let mut messages = Vec::new();
    for peer in order {
        let range = layout.bytes(peer, size_of::<T>());
        let block = match rest {
            Side::Heap(region) => {
                rest = Side::Heap(region);
                Side::Heap(within(region, range)?)
            }
            Side::Ordinary(bytes) => {
                let (block, behind) = bytes[range.start - start..].split_at_mut(range.len());
                (rest, start) = (Side::Ordinary(behind), range.end);
                Side::Ordinary(block)
            }
            Side::Lasting(_) => unreachable!("it is for streams"),
        };
        messages.push(Message::Recv(recv_buffer(comm, block)?, peer_of(comm, peer)));
    }
    Ok(messages)
}
