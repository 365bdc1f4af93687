//! The job that the process belongs to, from `shmem_init` to `shmem_finalize`, and the way to the
//! memory of its other ranks.
//!
//! The heaps of all ranks lie at one distance from each other. So an address of this rank's heap,
//! moved by so many distances, is that of another rank. Static objects are looked up.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use shmccl::bootstrap::Options;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::heap::Region;
use shmccl::{Communicator, Error, Rank, Symmetric};

use crate::allocations::AllocatedRegions;
use crate::control::{CONTROL_LEN, ControlWords};
use crate::fail::{fatal, name_rank, or_fatal, say_leaving};
use crate::statics::StaticObjects;

/// The alignment of the control words, and of all memory that calls allocate.
pub(crate) const PAGE: u64 = 4096;

/// The length of the name with its zero: at most `SHMEM_MAX_NAME_LEN`.
const NAME: &[u8] = b"shmccl\0";

/// What the name of something in the heap has, and in that of a static object. Both are above all
/// addresses of user space.
const HEAP: u64 = 1 << 48;
const STATIC: u64 = 1 << 49;

/// A membership in a job.
pub(crate) struct World {
    pub(crate) me: usize,
    pub(crate) n: usize,
    /// The address of this rank's heap.
    own: usize,
    /// The length of each heap.
    len: usize,
    /// The distance from one rank's heap to that of the next.
    stride: usize,
    statics: StaticObjects,
    pub(crate) control: ControlWords,
    /// The same heaps by rank and offset.
    pub(crate) symmetric: Symmetric,
    /// All ranks but this one.
    pub(crate) others: Vec<Rank>,
    comm: Mutex<Option<Communicator>>,
    pub(crate) allocations: AllocatedRegions,
}

/// The job, from the first `shmem_init` to the end of the process.
static JOINED: OnceLock<World> = OnceLock::new();

/// The job while the program may use it.
static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

/// Whether this process is a child that a rank has forked.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Takes a lock, whatever became of its last holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the job, if the process is in one.
#[inline]
pub(crate) fn current() -> Option<&'static World> {
    let world = WORLD.load(Ordering::Acquire);
    // SAFETY: it is null, or leads to what stays in `JOINED`.
    unsafe { world.as_ref() }
}

/// Begins to use the job. The first time joins it.
pub(crate) fn enter() -> &'static World {
    let world = JOINED.get_or_init(|| {
        let world = or_fatal(World::join(), "shmem_init");
        // SAFETY: the function is there as long as the process.
        unsafe { libc::pthread_atfork(None, None, Some(end_in_child)) };
        world
    });
    WORLD.store(std::ptr::from_ref(world).cast_mut(), Ordering::Release);
    world
}

/// Ends the use of the job.
pub(crate) fn end() {
    WORLD.store(std::ptr::null_mut(), Ordering::Release);
}

/// Ends the use of the job in the child of a fork: it has a copy of what the rank had.
extern "C" fn end_in_child() {
    // Relaxed: the child has one thread.
    IS_CHILD.store(true, Ordering::Relaxed);
    end();
}

/// Returns whether this process is a child that a rank has forked.
pub(crate) fn is_child() -> bool {
    // Relaxed: as above.
    IS_CHILD.load(Ordering::Relaxed)
}

/// Returns the job that this process has joined, whether it uses it now or not.
pub(crate) fn joined() -> Option<&'static World> {
    JOINED.get()
}

/// Leaves the job, if nobody is in a call of it. A thread that is to end the process waits until
/// another one has left: a rank that ends while it leaves counts as lost.
pub(crate) fn leave() {
    static LEAVES: Mutex<()> = Mutex::new(());
    say_leaving();
    let _leaves = lock(&LEAVES);
    drop(joined().and_then(|world| world.comm.try_lock().ok()?.take()));
}

/// Returns the job, or ends a program that is in none.
#[inline]
pub(crate) fn world() -> &'static World {
    current().unwrap_or_else(|| out_of_use())
}

#[cold]
fn out_of_use() -> ! {
    refuse_child();
    fatal("a call before shmem_init, or after shmem_finalize")
}

/// Ends a child that a rank has forked.
pub(crate) fn refuse_child() {
    if is_child() {
        fatal("a call in a child of a fork, which is no PE");
    }
}

/// Returns the job that this process is in, or that its parent was in.
fn own_or_inherited() -> &'static World {
    current().or_else(|| joined().filter(|_| is_child())).unwrap_or_else(|| out_of_use())
}

impl World {
    /// Joins the job of the launcher, or makes one of this process alone.
    fn join() -> Result<Self, Error> {
        let mut comm = match join_job()? {
            Some(JoinedAs::Device(comm)) => *comm,
            // The proxy service has served until the job ended.
            Some(JoinedAs::Proxy) => std::process::exit(0),
            None => Communicator::init_all_with(1, &Options::default())?.remove(0),
        };
        let region = comm.alloc_region(CONTROL_LEN, PAGE)?;
        let start = comm.span(comm.rank(), region)?.start();
        let shape = comm.heap().view().shape();
        name_rank(comm.rank().index(), comm.members().len());
        let fits = |len: u64| usize::try_from(len).expect("addresses have 64 bits");
        Ok(Self {
            me: comm.rank().index(),
            n: comm.members().len(),
            own: start.addr().get() - fits(region.offset.get()),
            len: fits(shape.len()),
            stride: fits(shape.segment_len()),
            statics: StaticObjects::of(&comm)?,
            control: ControlWords::new(start),
            allocations: AllocatedRegions::new(&comm),
            symmetric: comm.symmetric(),
            others: comm.members().iter().copied().filter(|rank| *rank != comm.rank()).collect(),
            comm: Mutex::new(Some(comm)),
        })
    }

    /// Lets `run` have the communicator alone.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut Communicator) -> R) -> R {
        let mut comm = lock(&self.comm);
        run(comm.as_mut().expect("it is taken when the process ends"))
    }

    /// Returns the number of a rank of the job that C names.
    #[inline]
    pub(crate) fn rank(&self, pe: c_int) -> usize {
        let rank = usize::try_from(pe).unwrap_or(usize::MAX);
        if rank < self.n { rank } else { fatal(format_args!("PE {pe} of {} does not exist", self.n)) }
    }

    /// Returns a rank of the job as the engine has it.
    #[inline]
    pub(crate) fn numbered(&self, rank: usize) -> Rank {
        let rank = u32::try_from(rank).ok().and_then(|rank| Rank::new(rank, self.symmetric.n_ranks()).ok());
        rank.expect("it was found to be one")
    }

    /// Wakes a rank that may wait for a word that was changed.
    #[inline]
    pub(crate) fn wake(&self, rank: usize) {
        self.symmetric.notify(self.numbered(rank)).expect("it is a rank");
    }

    /// Returns a number that all ranks give what lies at `address` of each, and that is not zero.
    pub(crate) fn name_of<T>(&self, address: *const T) -> u64 {
        let address = address.addr();
        if self.is_in_heap(address) {
            return HEAP | (address - self.own) as u64;
        }
        // Of a world of one any memory will do.
        self.statics.offset_of(address).unwrap_or(address) as u64 | STATIC
    }

    #[cold]
    fn refuse(&self, address: usize) -> ! {
        fatal(format_args!("{address:#x} is no symmetric address: {}", self.statics.reason(address)))
    }

    /// Returns whether what lies at `address` is in this rank's heap.
    #[inline]
    fn is_in_heap(&self, address: usize) -> bool {
        address.wrapping_sub(self.own) < self.len
    }

    /// Returns whether other ranks have something in the place of what lies at `address`.
    fn is_symmetric(&self, address: usize) -> bool {
        self.is_in_heap(address) || self.statics.at(address, self.me).is_some()
    }

    /// Returns where `rank` has what this rank has at `address`. Of this rank any memory will do.
    #[inline]
    pub(crate) fn at<T>(&self, address: *const T, rank: usize) -> *mut T {
        if self.is_in_heap(address.addr()) || rank == self.me {
            let distance = rank.wrapping_sub(self.me).wrapping_mul(self.stride);
            return address.cast_mut().wrapping_byte_add(distance);
        }
        let Some(theirs) = self.statics.at(address.addr(), rank) else { self.refuse(address.addr()) };
        std::ptr::with_exposed_provenance_mut(theirs)
    }

    /// Returns the address of `region`, which this rank has allocated.
    pub(crate) fn address(&self, region: Region) -> usize {
        self.own + usize::try_from(region.offset.get()).expect("addresses have 64 bits")
    }
}

/// # Safety
/// `target` is NULL, or can be written.
pub(crate) unsafe fn store(target: *mut c_int, value: c_int) {
    // SAFETY: the caller answers for it.
    if let Some(target) = unsafe { target.as_mut() } {
        *target = value;
    }
}

/// Returns a number as C has it.
pub(crate) fn signed(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

pub(crate) fn my_pe() -> c_int {
    signed(own_or_inherited().me)
}

pub(crate) fn n_pes() -> c_int {
    signed(own_or_inherited().n)
}

pub(crate) fn pe_accessible(pe: c_int) -> c_int {
    let n = world().n;
    c_int::from(usize::try_from(pe).is_ok_and(|pe| pe < n))
}

pub(crate) fn addr_accessible<T>(address: *const T, pe: c_int) -> c_int {
    c_int::from(pe_accessible(pe) == 1 && world().is_symmetric(address.addr()))
}

pub(crate) fn ptr<T>(address: *const T, pe: c_int) -> *mut T {
    if addr_accessible(address, pe) == 0 {
        return std::ptr::null_mut();
    }
    let world = world();
    let rank = world.rank(pe);
    world.allocations.reach(rank, &world.statics);
    world.at(address, rank)
}

/// # Safety
/// Both can be written.
pub(crate) unsafe fn version(major: *mut c_int, minor: *mut c_int) {
    for (target, number) in [(major, 1), (minor, 6)] {
        // SAFETY: the caller answers for it.
        unsafe { store(target, number) };
    }
}

/// # Safety
/// `SHMEM_MAX_NAME_LEN` bytes can be written.
pub(crate) unsafe fn name(name: *mut c_char) {
    // SAFETY: the name is shorter, and the caller answers for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(NAME.as_ptr().cast(), name, NAME.len()) };
}

/// Does nothing: profilers put their own function in its place.
pub(crate) fn pcontrol(_level: c_int) {}
