//! Brings the members of a job together: each learns its rank and gets the descriptors of all.
//!
//! A *root* (the launcher) holds one end of a `SOCK_SEQPACKET` socket pair per member. The members
//! are the ranks and, where there is one, the proxy service process. The kernel keeps message
//! boundaries, every message is a fixed-size record, and descriptors travel beside them
//! (SCM_RIGHTS).
//!
//! ```text
//! member                                   root
//!   Hello {layout version, pid}       ->     user id checked against SCM_CREDENTIALS
//!                                     <-   Welcome {rank, n_ranks, epoch, ..} + control segment
//!                                             [+ the hold on the job's names]
//!   Contribution {round} [+ segment]  ->     waits for all members
//!                                     <-   Gathered {round} + the segments of all ranks
//!   (the same for static objects, where all ranks have said that they have some to give)
//!   Ready                             ->     waits for all members
//!                                     <-   Go
//!   Report {who was lost}             ->     a consequence, not a cause
//!   Bye                               ->     from here on hanging up is not a death
//!                                     <-   Lost {who}: at any time
//! ```
//!
//! A restarted member sends Hello as well, and waits for an Invite after the Welcome. The survivors
//! send it through the root. The member meets them as below, and sends Ready when it is back among
//! them.
//!
//! Processes without a launcher come to a *meeting* first. The process that made their id hosts it
//! (`meeting.rs`, `host.rs`); of ranks that know a name, the first one to come. Each sends a
//! request with the rank that it claims (`join_request.rs`). When all are there, the sequence above
//! follows. Joining ranks claim no rank, and are told theirs. The meeting ends with Go: members
//! hang up, and neither root nor host is needed any more.
//!
//! Invariants:
//! - A member may hang up, die, send garbage or stop reading. The root neither blocks nor panics,
//!   and every other member gets `Lost`. Restarted members that are not back learn it from the
//!   survivors instead.
//! - The root never waits in a call of its own. It is a state machine that the supervisor's poll
//!   loop drives.
//! - Every wait of a member has a deadline, and ends at once when the root hangs up.
//!
//! Tried by its unit tests, `meet`, `scenarios kill::gathering:: kill::steps::` and `environments
//! namespaces::`.

mod control_channel;
pub(crate) mod environment;
mod host;
mod join_request;
mod link;
mod meeting;
mod member;
pub(crate) mod message;
mod options;
mod process_mark;
mod root;
mod socket;
#[cfg(test)]
mod tests;
mod waiting_hosts;

pub(crate) use control_channel::{CancelToken, WaitGuard};
#[cfg(feature = "coordinator")]
pub(crate) use environment::{LAUNCHER, bind_to_launcher};
pub use environment::{become_program, join_from_env, wants_statics};
pub(crate) use host::MeetingHost;
pub(crate) use join_request::{MeetingPoint, RankClaim, is_hosted, meet, meet_as_joiner, meet_by_name};
pub use link::{ControlLink, LinkEvent, LinkWatch, MemberHeartbeat};
pub use member::{Joining, RankContribution, Shared};
pub use message::CONTRIBUTION_LEN;
pub use options::{
    CHECKSUMS, CORES, DUMP_HEAP, Options, Placement, ProxyMode, SegmentBacking, checksums_from_env,
    cores_from_env, dump_heap_from_env,
};
pub use process_mark::ProcessMark;
pub(crate) use process_mark::{explain_hang_up, watch_processes};
pub(crate) use root::{BlamedMember, BootstrapRoot, MemberId, Offer, RootEvent};
#[cfg(test)]
pub(crate) use socket::send;
pub(crate) use socket::{call_error, duplicate, pair, poll_timeout, resource_error};
