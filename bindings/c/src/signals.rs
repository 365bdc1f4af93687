//! The signals that go with windows: counted semaphores in the heap of the rank that waits.
//!
//! Each rank has [`SHMCCL_SIGNALS`] of them for each other one. Each direction has channels of its
//! own, so that a thread that waits for a rank keeps no other one from signalling it.

use std::ffi::c_int;
use std::sync::Mutex;

use shmccl::channel::{MemoryChannel, SEMAPHORE_LEN};
use shmccl::heap::HeapOffset;
use shmccl::{Arena, ArenaBuffer, Communicator, Error, Rank};

use crate::failure::Failure;

/// How many signals a pair of ranks has in each direction, by their indices.
pub const SHMCCL_SIGNALS: c_int = 16;

/// As many, as the length of a list.
const PER_PAIR: usize = SHMCCL_SIGNALS as usize;

/// The memory of a semaphore.
type Semaphore = [u8; 128];

/// The memory of a rank's semaphores.
pub(crate) type Semaphores = ArenaBuffer<Semaphore>;

const _: () = assert!(size_of::<Semaphore>() as u64 == SEMAPHORE_LEN);

/// What the windows of a communicator signal with.
pub(crate) struct Signals {
    /// The memory of this rank's semaphores.
    _memory: Semaphores,
    pub(crate) outbound: Vec<Mutex<MemoryChannel>>,
    pub(crate) inbound: Vec<Mutex<MemoryChannel>>,
}

impl Signals {
    /// Allocates this rank's semaphores, which nobody has signalled.
    pub(crate) fn allocate(arena: &Arena, n_ranks: usize) -> Result<Semaphores, Failure> {
        let memory = arena.alloc_aligned(n_ranks * PER_PAIR, SEMAPHORE_LEN)?;
        memory.fill([0; size_of::<Semaphore>()]);
        Ok(memory)
    }

    /// Opens the channels to all ranks, whose semaphores begin at `bases`.
    pub(crate) fn open(comm: &Communicator, memory: Semaphores, bases: &[u64]) -> Result<Self, Error> {
        let cell = |base: u64, source: u32, index: usize| {
            HeapOffset::new(base + (u64::from(source) * PER_PAIR as u64 + index as u64) * SEMAPHORE_LEN)
        };
        let (own, mine) = (comm.rank().get(), bases[comm.rank().index()]);
        let open = |_| {
            let mut channels = Vec::new();
            for (peer, &theirs) in (0..).zip(bases) {
                let rank = Rank::new(peer, comm.n_ranks())?;
                for index in 0..PER_PAIR {
                    let (outbound, inbound) = (cell(theirs, own, index), cell(mine, peer, index));
                    channels.push(Mutex::new(comm.memory_channel_over(rank, outbound, inbound)?));
                }
            }
            Ok::<_, Error>(channels)
        };
        Ok(Self { _memory: memory, outbound: open(())?, inbound: open(())? })
    }

    /// Returns where the signals of `peer` with an index stand in a list.
    pub(crate) fn place(peer: Rank, index: c_int) -> Result<usize, Failure> {
        let wrong = || Failure::argument(format!("sigIdx is {index}, expected one below {SHMCCL_SIGNALS}"));
        let index = usize::try_from(index).ok().filter(|index| *index < PER_PAIR).ok_or_else(wrong)?;
        Ok(peer.index() * PER_PAIR + index)
    }
}
