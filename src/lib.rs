//! One-sided communication between the processes of one host, over a symmetric heap in shared memory.
//!
//! Each *device* is a process with a rank. Its part of the symmetric heap is mapped by every other rank, and an offset
//! means the same on all of them. A [`channel`] moves bytes to one peer and raises a counted semaphore there: with the
//! caller's own core ([`MemoryChannel`](channel::MemoryChannel)), or through a fifo that a [`proxy`] serves
//! ([`PortChannel`](channel::PortChannel)). A wait for a rank that dies returns [`Error::PeerLost`].
//!
//! ```no_run
//! use shmccl::{channel::Channel, launch::launch};
//!
//! fn main() -> shmccl::Result<()> {
//!     launch(2, |comm| {                                            // two processes of this executable
//!         let cells = comm.alloc::<u64>(2)?;                        // same offset on every rank
//!         let mut channel = comm.memory_channel(comm.right())?;     // or port_channel: through a proxy
//!         cells.set(0, 42)?;
//!         channel.put_with_signal(cells.part(1, 1)?.offset, cells.part(0, 1)?.offset, 8)?;
//!         channel.wait()?;                                          // the peer has done the same to me
//!         assert_eq!(cells.get(1)?, 42);
//!         Ok(())
//!     })
//!     .map(drop)
//! }
//! ```
//!
//! # Where to begin
//!
//! | for | see |
//! |---|---|
//! | starting devices as processes, or as threads in a test | [`launch::launch`], [`launch::launch_threads`] |
//! | joining a job that `shmccl run` started | [`Communicator::from_env`] |
//! | meeting other processes that were started on their own | [`UniqueId`], [`Communicator::init_rank`] |
//! | all communicators of one process, for threads of its own | [`Communicator::init_all`] |
//! | memory: `alloc`, `free`, typed buffers | [`Communicator`], [`heap`] |
//! | put, get, signal, wait, flush, packets | [`channel::Channel`] and the two types behind it |
//! | what ranks do together: all-reduce, broadcast, messages and more | [`Collectives`]; first [`Communicator::prepare`] |
//! | several such calls put together | [`Group`] |
//! | types of elements, and how they are combined | [`reduce::DataType`], [`reduce::ReduceOp`] |
//! | which algorithm does it, or one of one's own | [`collective::Algorithm`], [`collective::tuning`], [`collective::CustomAlgorithm`] |
//! | reading and writing the buffers of all ranks at once | [`comm::SwitchChannel`] |
//! | communicators of some of the ranks, or more of all | [`Communicator::split`], [`Communicator::duplicate`] |
//! | operations that run behind the program's back, in order | [`Stream`], [`Event`], [`comm::stream`] |
//! | a pool of devices that is asked for communicators, within the program | [`coordinator::Pool`] |
//! | a proxy with a handler of one's own | [`Communicator::start_proxy`] |
//! | what can go wrong | [`Error`] |
//! | making it go wrong on purpose | [`faults`] |
//! | what the ranks of a job are doing, from inside and outside | [`Communicator::report`], [`observe`] |
//! | what they did, when, and for how long | [`trace`] |
//! | the turns in the life of a job, as they happen | [`logs`] |
//!
//! [`shm`], [`sync`] and [`bootstrap`] are the ground that these stand on: shared memory and everything unsafe,
//! the protocols with their memory orderings, the first meeting of a job. They are public because tools and
//! measurements need them; most programs do not.
//!
//! The first collective call or message on a job's first communicator prepares memory, and is a call of all ranks:
//! [`Communicator::prepare`], once after joining, has that done.
#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod bootstrap;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod collective;
#[cfg(not(loom))]
pub mod comm;
#[cfg(all(feature = "coordinator", not(loom)))]
pub mod coordinator;
#[cfg(not(loom))]
mod epoch_id;
pub mod error;
#[cfg(not(loom))]
pub mod faults;
#[cfg(not(loom))]
mod files;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
pub mod launch;
#[cfg(not(loom))]
pub mod logs;
#[cfg(not(loom))]
pub mod observe;
#[cfg(not(loom))]
mod process;
pub mod rank;
#[cfg(not(loom))]
pub mod reduce;
#[cfg(not(loom))]
pub mod shm;
pub mod sync;
#[cfg(all(test, not(loom)))]
mod testing;
#[cfg(not(loom))]
pub mod trace;
#[cfg(not(loom))]
mod trials;

#[cfg(not(loom))]
pub use comm::stream::{Event, Stream};
#[cfg(not(loom))]
pub use comm::{Blocks, Collectives, Communicator, Group, UniqueId};
pub use error::{Error, Result};
pub use rank::Rank;
#[doc(no_inline)]
pub use shmccl_proxy as proxy;
