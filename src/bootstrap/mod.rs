//! The first meeting of a job: who is who, and everyone's descriptors to everyone.
//!
//! A *root* (the launcher) holds one end of a `SOCK_SEQPACKET` socket pair per member; the members are the ranks and,
//! where there is one, the proxy service process. Message boundaries are the kernel's, every message is a
//! fixed-size record, and descriptors travel beside them (SCM_RIGHTS).
//!
//! ```text
//! member                                   root
//!   Hello {layout version, pid}       ->     user id checked against SCM_CREDENTIALS
//!                                     <-   Welcome {rank, n_ranks, epoch, options} + control segment
//!                                             [+ the hold on the job's names]
//!   Contribution {round} [+ segment]  ->     waits for all members
//!                                     <-   Gathered {round} + the segments of all ranks
//!   Ready                             ->     waits for all members
//!                                     <-   Go
//!   Report {who was lost}             ->     a consequence, not a cause
//!   Bye                               ->     from here on hanging up is not a death
//!                                     <-   Lost {who}: at any time
//! ```
//!
//! A member that the launcher has started again says Hello as well. After the Welcome it waits for an Invite, which those who have
//! survived send by way of the root, meets them as below, and says Ready when it is back among them.
//!
//! Processes that no launcher started come to a *meeting* first: the process that made their id hosts it
//! (`meeting.rs`, `host.rs`), each knocks with the rank it claims (`knock.rs`), and when all are there the same
//! sequence follows. Joiners knock without a rank, and are told theirs. The meeting ends with Go: members hang up, and neither
//! root nor host is needed any more.
//!
//! Invariants:
//! - Whatever a member does (hang up, die, send garbage, stop reading), the root neither blocks nor panics, and
//!   every other member is told `Lost`; except those that were started again and are not back: they are told by those whom they
//!   come back to who is there.
//! - The root never waits in a call of its own: it is a state machine that the supervisor's poll loop drives.
//! - Every wait of a member has a deadline, and ends at once when the root hangs up.

mod control_channel;
pub(crate) mod environment;
mod host;
mod join_request;
mod link;
mod meeting;
mod member;
pub(crate) mod message;
mod options;
mod root;
mod socket;
#[cfg(test)]
mod tests;

pub(crate) use control_channel::{CancelToken, WaitGuard};
#[cfg(feature = "coordinator")]
pub(crate) use environment::{LAUNCHER, bind_to_launcher};
pub use environment::{become_program, join_from_env};
pub(crate) use host::MeetingHost;
pub(crate) use join_request::{MeetingPoint, RankClaim, meet, meet_as_joiner};
pub use link::{ControlLink, LinkEvent, LinkWatch, MemberHeartbeat};
pub use member::{Joining, RankContribution, ReadyMember, Shared};
pub use message::CONTRIBUTION_LEN;
pub use options::{
    CHECKSUMS, CORES, Options, Placement, ProxyMode, SegmentBacking, checksums_from_env, cores_from_env,
};
pub(crate) use root::{BootstrapRoot, MemberId, Offer, RootEvent};
#[cfg(test)]
pub(crate) use socket::send;
pub(crate) use socket::{pair, poll_timeout, resource_error};
