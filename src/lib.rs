//! One-sided communication between the processes of one host, over a symmetric heap in shared
//! memory.
//!
//! Each *device* is a process with a rank. Its part of the symmetric heap is mapped by every other
//! rank, and an offset means the same on all of them. A [`channel`] moves bytes to one peer and
//! raises a counted semaphore there: with the caller's own core
//! ([`MemoryChannel`](channel::MemoryChannel)), or through a fifo that a [`proxy`] serves
//! ([`PortChannel`](channel::PortChannel)). A wait for a rank that dies returns
//! [`Error::PeerLost`].
//!
//! ```no_run
//! use shmccl::{channel::Channel, launch::launch};
//!
//! fn main() -> shmccl::Result<()> {
//!     // Two processes of this executable.
//!     launch(2, |comm| {
//!         // The offset is the same on every rank.
//!         let cells = comm.alloc::<u64>(2)?;
//!         // Or `port_channel`: through a proxy.
//!         let mut channel = comm.memory_channel(comm.right())?;
//!         cells.set(0, 42)?;
//!         channel.put_with_signal(cells.part(1, 1)?.offset, cells.part(0, 1)?.offset, 8)?;
//!         // The peer has done the same.
//!         channel.wait()?;
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
//! | devices as processes or threads | [`launch::launch`], [`launch::launch_threads`] |
//! | joining a job that `shmccl run` started | [`Communicator::from_env`] |
//! | meeting processes that were started on their own | [`UniqueId`], [`Communicator::init_rank`] |
//! | all communicators of one process, for threads of its own | [`Communicator::init_all`] |
//! | memory: `alloc`, `free`, typed buffers | [`Communicator`], [`heap`] |
//! | memory that a rank allocates alone | [`Communicator::arena`] |
//! | put, get, signal, wait, flush, packets | [`channel::Channel`] and the two types behind it |
//! | put, get, atomics by rank and offset, without a channel | [`Communicator::symmetric`] |
//! | all-reduce, broadcast, messages and more | [`Collectives`]; first [`Communicator::prepare`] |
//! | several such calls put together | [`Group`] |
//! | types of elements, and how they are combined | [`reduce::DataType`], [`reduce::ReduceOp`] |
//! | algorithms | [`collective::Algorithm`], [`collective::tuning`] |
//! | algorithms of one's own | [`collective::CustomAlgorithm`] |
//! | reading and writing the buffers of all ranks at once | [`comm::SwitchChannel`] |
//! | further communicators | [`Communicator::split`], [`Communicator::duplicate`] |
//! | operations in order, behind the program's back | [`Stream`], [`Event`], [`comm::stream`] |
//! | operations that are started now and waited for later | [`Communicator::start`], [`Work`] |
//! | a pool of devices, within the program | [`coordinator::Pool`] |
//! | a proxy with a handler of one's own | [`Communicator::start_proxy`] |
//! | what can go wrong | [`Error`] |
//! | making it go wrong on purpose | [`faults`] |
//! | what ranks are doing, from inside and outside | [`Communicator::report`], [`observe`] |
//! | what they did, when, and for how long | [`trace`] |
//! | the turns in the life of a job, as they happen | [`logs`] |
//!
//! [`shm`], [`sync`] and [`bootstrap`] are the ground that these stand on: shared memory and
//! everything unsafe, the protocols with their memory orderings, the first meeting of a job. They
//! are public because tools and measurements need them; most programs do not.
//!
//! The first collective call or message on a job's first communicator prepares memory, and is a
//! call of all ranks: [`Communicator::prepare`], once after joining, has that done.
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
#[cfg(not(loom))]
pub mod symmetric;
pub mod sync;
#[cfg(all(test, not(loom)))]
mod testing;
#[cfg(not(loom))]
pub mod trace;
#[cfg(not(loom))]
mod trials;
#[cfg(not(loom))]
pub mod variables;

#[cfg(not(loom))]
pub use collective::{MessageSelector, MessageStatus, StatusHandle};
#[cfg(not(loom))]
pub use comm::stream::{Event, Stream};
#[cfg(not(loom))]
pub use comm::{Blocks, Collectives, Communicator, Group, UniqueId, Work};
pub use error::{Error, Result};
#[cfg(not(loom))]
pub use heap::{Arena, ArenaBuffer};
pub use rank::Rank;
#[doc(no_inline)]
pub use shmccl_plan as plan;
#[doc(no_inline)]
pub use shmccl_proxy as proxy;
#[cfg(not(loom))]
pub use symmetric::Symmetric;
