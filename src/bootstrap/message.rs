//! The messages of the control socket: fixed-size records of plain bytes. The reader checks every
//! field.
//!
//! | field of [`MessageHeader`] | bytes | meaning |
//! |---|---|---|
//! | magic | 4 | [`MAGIC`] |
//! | version | 4 | [`VERSION`]; the header itself is the same in every version |
//! | kind | 4 | one of the `KIND` constants |
//! | reserved | 4 | zero |
//! | job id | 8 | zero in a Hello whose sender does not know it |

use bytemuck::{Pod, Zeroable};

use crate::error::DeviceName;
use crate::rank::{Rank, SET_WORDS};
pub(crate) use crate::sync::header::LAYOUT_VERSION;

/// Bytes that a member can contribute to one all-gather.
pub const CONTRIBUTION_LEN: usize = 64;

/// How many ranks one [`Gathered`] tells of: a bit of a word for each, and far fewer descriptors
/// than one message carries.
pub(crate) const GATHERED_RANKS: usize = 64;

/// "SMCB".
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"SMCB");

/// Version of these messages.
pub(crate) const VERSION: u32 = 7;

/// The longest message in bytes, which a receiver's buffer has to hold.
pub(crate) const MAX_MESSAGE: usize = size_of::<Gathered>();

/// The number of the proxy service where a rank is expected.
pub(crate) const PROXY: u32 = u32::MAX;

/// The number of a joiner, which takes any rank that is for joiners.
pub(crate) const ANY_RANK: u32 = u32::MAX;

/// The number for no core.
pub(crate) const NO_CPU: u32 = u32::MAX;

/// The header of every message.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct MessageHeader {
    pub(crate) magic: u32,
    pub(crate) version: u32,
    pub(crate) kind: u32,
    pub(crate) reserved: u32,
    pub(crate) job_id: u64,
}

/// A record that can be sent.
pub(crate) trait ControlMessage: Pod {
    /// The number of this kind of message.
    const KIND: u32;

    /// Returns the header of the message.
    fn header(job_id: u64) -> MessageHeader {
        MessageHeader { magic: MAGIC, version: VERSION, kind: Self::KIND, reserved: 0, job_id }
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $kind:literal, $len:literal bytes {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Pod, Zeroable)]
        #[repr(C)]
        pub(crate) struct $name {
            pub(crate) header: MessageHeader,
            $($(#[$field_doc])* pub(crate) $field: $type,)*
        }

        impl ControlMessage for $name {
            const KIND: u32 = $kind;
        }

        const _: () = assert!(size_of::<$name>() == $len);
    )*};
}

messages! {
    /// Member to root: the first message.
    Hello = 1, 40 bytes {
        /// [`LAYOUT_VERSION`] of the sender.
        layout_version: u32,
        /// The sender's process id, as the sender sees it.
        pid: u32,
        /// The rank that it believes to have, or [`PROXY`].
        member: u32,
        reserved: u32,
    }
    /// Root to member: its rank and the decisions for all. The control segment comes along, and
    /// where they exist the trace rings and the hold on the job's names.
    Welcome = 2, 360 bytes {
        epoch: u64,
        heap_len: u64,
        timeout_ms: u64,
        /// The member's rank, or [`PROXY`].
        member: u32,
        n_ranks: u32,
        proxy_mode: u32,
        backing: u32,
        /// The core to which it was pinned, or [`NO_CPU`].
        cpu: u32,
        /// Device threads on that core.
        devices: u32,
        /// Proxies on that core.
        proxies: u32,
        backing_name_len: u32,
        backing_name: [u8; 256],
        /// How often the launcher has restarted this member. If that is not 0, it waits for an
        /// Invite.
        restarts: u32,
        /// 1 when the launcher starts dead ranks again.
        restarting: u32,
        /// The period of its heartbeat in microseconds; 0 for none.
        beat_us: u64,
        /// 1 when the rings of a trace come behind the control segment.
        traced: u32,
        reserved: u32,
    }
    /// Root to member: it cannot take part.
    Refused = 3, 48 bytes {
        /// A [`MemberRefusal`].
        reason: u32,
        reserved: u32,
        expected: u64,
        found: u64,
    }
    /// Member to root: its part of all-gather number `round`, with at most one descriptor.
    Contribution = 4, 96 bytes {
        round: u32,
        reserved: u32,
        bytes: [u8; CONTRIBUTION_LEN],
    }
    /// Root to member: what a part of the ranks contributed, with the descriptors in order of rank.
    /// One message for each [`GATHERED_RANKS`], in order.
    Gathered = 5, 4144 bytes {
        round: u32,
        n_ranks: u32,
        /// The first rank that it tells of.
        first: u32,
        reserved: u32,
        /// Bit k: rank `first + k` sent a descriptor.
        with_descriptor: u64,
        bytes: [[u8; CONTRIBUTION_LEN]; GATHERED_RANKS],
    }
    /// Member to root: attached to everything.
    Ready = 6, 24 bytes {}
    /// Root to member: all are ready.
    Go = 7, 24 bytes {}
    /// Root to member: a member died or broke the protocol.
    Lost = 8, 40 bytes {
        /// The rank, or [`PROXY`].
        member: u32,
        /// How often it had been restarted.
        restarts: u32,
        /// 1 when it may live: it hangs.
        hangs: u32,
        reserved: u32,
    }
    /// Root to member: a lost member is not restarted, because no restart is left.
    NotRestarted = 16, 32 bytes {
        /// The rank.
        member: u32,
        reserved: u32,
    }
    /// Member to root: it is about to fail because another one was lost.
    Report = 9, 32 bytes {
        /// The rank, or [`PROXY`].
        member: u32,
        /// How often it had been restarted.
        restarts: u32,
    }
    /// Member to root: should it fail, that is because of another one, which lives, or has left.
    Blame = 15, 40 bytes {
        /// The rank.
        member: u32,
        /// How often it had been restarted.
        restarts: u32,
        /// 1 if that one held others up until the sender's deadline had passed; 0 if it had left
        /// when the sender still needed it.
        is_late: u32,
        reserved: u32,
    }
    /// Member to root: it leaves, its work done.
    Bye = 10, 24 bytes {}
    /// Process to root: it comes to a meeting, since no launcher started it.
    JoinRequest = 11, 64 bytes {
        /// [`LAYOUT_VERSION`] of the sender.
        layout_version: u32,
        /// The claimed rank, or [`ANY_RANK`] for a joiner, which leaves all numbers but the timeout
        /// zero.
        rank: u32,
        n_ranks: u32,
        /// How many ranks are claimed. The ranks behind are for joiners.
        n_members: u32,
        /// The kind of memory of its segment.
        backing: u32,
        reserved: u32,
        heap_len: u64,
        /// How long it waits for the others.
        timeout_ms: u64,
    }
    /// Root to member: all have come; what follows is as with a launcher, from the Hello on.
    Met = 12, 32 bytes {
        /// The rank of the receiver.
        rank: u32,
        n_ranks: u32,
    }
    /// Host to a process that has come by a name: the job, in the header, and which rank hosts it.
    Hosted = 17, 32 bytes {
        rank: u32,
        reserved: u32,
    }
    /// Root to member: the meeting has failed, for everybody.
    Rejected = 13, 48 bytes {
        /// A [`Rejection`](super::join_request::Rejection).
        reason: u32,
        /// The rank that the reason is about.
        rank: u32,
        mine: u64,
        theirs: u64,
    }
    /// Member to root, and root to restarted members: the meeting with the survivors.
    Invite = 14, 72 bytes {
        /// The token of the meeting's id.
        token: [u64; 2],
        /// Bit `r % 64` of word `r / 64`: rank r is to come.
        ranks: [u64; SET_WORDS],
    }
}

/// Why a member was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberRefusal {
    /// Its messages have another version.
    Version,
    /// Its shared layouts have another version.
    Layout,
    /// It was started for another job.
    Job,
    /// It runs as another user.
    User,
    /// It names another member than its socket.
    Member,
}

impl MemberRefusal {
    const ALL: [Self; 5] = [Self::Version, Self::Layout, Self::Job, Self::User, Self::Member];

    /// Returns the name of the differing value, for an error.
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::Version => "bootstrap version",
            Self::Layout => "layout version",
            Self::Job => "job id",
            Self::User => "user id",
            Self::Member => "rank",
        }
    }

    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.code() == code)
    }
}

/// What makes a member unfit: the value that differs, as it is expected, and as it was found.
pub(crate) type Misfit = (MemberRefusal, u64, u64);

/// Checks a value that a member has sent.
pub(crate) fn check_fit(refusal: MemberRefusal, expected: u64, found: u64) -> Result<(), Misfit> {
    if expected == found { Ok(()) } else { Err((refusal, expected, found)) }
}

impl Refused {
    pub(crate) fn new(job_id: u64, (refusal, expected, found): Misfit) -> Self {
        Self { header: Self::header(job_id), reason: refusal.code(), reserved: 0, expected, found }
    }
}

/// Returns the header of `bytes`, if they are long enough and carry the magic.
pub(crate) fn header_of(bytes: &[u8]) -> Option<MessageHeader> {
    let header: MessageHeader = bytemuck::pod_read_unaligned(bytes.get(..size_of::<MessageHeader>())?);
    (header.magic == MAGIC).then_some(header)
}

/// Reads `bytes` as an `M`: magic, version, kind and length have to be right.
pub(crate) fn read<M: ControlMessage>(bytes: &[u8]) -> Option<M> {
    let header = header_of(bytes)?;
    let right = header.version == VERSION && header.kind == M::KIND && bytes.len() == size_of::<M>();
    right.then(|| bytemuck::pod_read_unaligned(bytes))
}

/// Returns the number of a member in messages.
pub(crate) fn member_code(device: DeviceName) -> u32 {
    match device {
        DeviceName::Rank(rank) => rank.get(),
        DeviceName::Proxy => PROXY,
    }
}

/// Returns the member with that number, if a job of `n_ranks` has it.
pub(crate) fn member_from_code(code: u32, n_ranks: u32) -> Option<DeviceName> {
    if code == PROXY { Some(DeviceName::Proxy) } else { Rank::new(code, n_ranks).ok().map(DeviceName::Rank) }
}
