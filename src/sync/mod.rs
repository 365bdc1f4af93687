//! How the ranks of a job wait for each other: protocols over `&atomic` cells, no pointers, no
//! system calls.
//!
//! A cell is a small `repr(C)` struct of atomics, legal when all its bytes are zero. Whether it
//! lives in a shared segment, in a `Box` or in a loom model is nobody's business here: the
//! protocols take references (or anything that derefs to the cell), and whatever needs the
//! operating system goes through [`Kernel`].
//!
//! | module | protocol | edges |
//! |---|---|---|
//! | [`semaphore`] | counted signals from one sender to one receiver | S1 |
//! | [`barrier`] | all ranks meet | B1 |
//! | [`agreement`] | a small all-gather by which ranks agree on a call | B1 |
//! | [`post`] | notices that one rank puts up for all, and how far it has come | C1, C2 |
//! | [`park`] | sleeping without cost to wakers; a word that opens once | P1, P2, T1 |
//! | [`revoke`] | one reason why everybody stops waiting | R1 |
//! | `regroup` | survivors of an epoch go on together | G1, G2 |
//! | [`life`] | a rank's presence, which the system withdraws at its death; its heartbeat | L1 |
//! | [`word`] | words of the heap that any rank changes | W1, W2, W3 |
//! | [`lock`] | locks in the heap, which outlive their holders | K1, K2 |
//! | [`plain`] | single words that order nothing | none |
//! | [`activity`] | what a rank tells of itself to whoever looks on | none |
//! | [`record`] | a ring in which a thread notes what it does | none |
//! | [`wait`] | the one waiting loop of the engine | none of its own |
//! | [`interrupt`] | what a program does to end the waits of a thread | none |
//! | `grace` | time that is counted by looks, so that a pause does not count | none |
//! | [`header`] | what the first bytes of a segment say about it, and their hand-over | H1 |
//!
//! `Ordering` appears in this module and in the proxy crate, and nowhere else. A site that orders
//! names its edge at the end of the line; the table at the head of each file says what the edge
//! carries. A `Relaxed` site says why it needs no more.
//!
//! Tried by its unit tests and models and `scenarios barriers:: parking:: waits::`.

pub mod activity;
pub mod agreement;
pub mod atomic;
pub mod barrier;
pub(crate) mod grace;
pub mod header;
pub mod interrupt;
pub mod kernel;
pub mod life;
pub mod lock;
#[cfg(all(test, loom))]
mod models;
pub mod park;
pub mod plain;
pub mod post;
pub mod record;
pub(crate) mod regroup;
pub mod revoke;
pub mod semaphore;
pub mod wait;
pub mod word;

pub use activity::{Activity, ActivityCell, WaitingIn};
pub use agreement::{AGREEMENT_WORDS, Agreement, AgreementCell};
pub use barrier::{Barrier, BarrierCell, BarrierPurpose};
pub use kernel::{Kernel, SleepWord};
pub use life::{HeartbeatCell, LifeCell, LifeStatus};
pub use lock::WishCell;
pub use park::{Latch, ParkCell};
pub use post::{POST_WORDS, PostCell, ProgressCell};
pub use record::{CursorCell, KeptRecords, RECORD_WORDS, RecordCell, RecordRing};
pub use revoke::{Revocation, RevokeCell};
pub use semaphore::{SemaphoreCell, SemaphoreReceiver, SemaphoreSender};
pub use wait::{Stop, WaitPolicy, Waiting, Watch, spin_until, wait_until};
pub use word::AtomicWord;
