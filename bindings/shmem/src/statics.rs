//! Static objects of the program as symmetric memory: mapped over before the program begins, found
//! by their addresses afterwards.

use shmccl::bootstrap::wants_statics;
use shmccl::comm::Statics;
use shmccl::shm::statics::map_over;
use shmccl::{Communicator, Error, Rank};

/// Runs before the constructors of the program: a library is initialised before those that need it,
/// and among those of one file this one has an early priority.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static MAPS: extern "C" fn() = map;

extern "C" fn map() {
    // SAFETY: no thread of the program exists yet.
    let mapped = unsafe { map_over(wants_statics()) };
    // Whoever uses a static object later is told why it is not symmetric.
    drop(mapped);
}

/// Where each rank has its static objects, if they are symmetric.
pub(crate) struct StaticObjects {
    start: usize,
    len: usize,
    /// The first address of each rank, in this process.
    bases: Vec<usize>,
    statics: Statics,
}

impl StaticObjects {
    pub(crate) fn of(comm: &Communicator) -> Result<Self, Error> {
        // A static library has the constructor only where something names it.
        std::hint::black_box(&MAPS);
        let statics = comm.statics();
        let Ok(window) = statics.window() else {
            return Ok(Self { start: 0, len: 0, bases: Vec::new(), statics });
        };
        let base = |rank: &Rank| Ok(window.whole(*rank)?.start().as_ptr().expose_provenance());
        let bases = comm.members().iter().map(base).collect::<Result<_, Error>>()?;
        let fits = |len: u64| usize::try_from(len).expect("addresses have 64 bits");
        Ok(Self { start: fits(window.start()), len: fits(window.len()), bases, statics: statics.clone() })
    }

    /// Returns where `rank` has the object at `address` of this rank.
    #[inline]
    pub(crate) fn at(&self, address: usize, rank: usize) -> Option<usize> {
        self.offset_of(address).map(|offset| self.bases[rank] + offset)
    }

    /// Returns the offset, which is the same on all ranks, of the object at `address` of this rank.
    #[inline]
    pub(crate) fn offset_of(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.start);
        if offset < self.len { Some(offset) } else { None }
    }

    /// Has children of a fork find what those of `rank` hold then.
    pub(crate) fn lend(&self, rank: Rank) {
        // To look for the bytes is to borrow them. Without static objects there is nothing to lend.
        drop(self.statics.span(rank, self.start, self.len as u64));
    }

    /// Tells what else lies at `address`, or why static objects are not symmetric.
    #[cold]
    pub(crate) fn reason(&self, address: usize) -> String {
        match self.statics.span(Rank::ZERO, address, 1) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }
}
