//! What the first bytes of every segment say about it, and how they are handed over.
//!
//! | byte | field | written by | read by |
//! |---|---|---|---|
//! | 0 | magic | creator, before ready | whoever attaches |
//! | 8 | layout version | " | " |
//! | 16 | job id | " | " |
//! | 24 | epoch | " | " |
//! | 32 | owner (rank + 1, or 0) | " | " |
//! | 40 | segment length in bytes | " | " |
//! | 48 | creator's process id | " | " |
//! | 56 | creator's start time (ticks since boot) | " | " |
//! | 64 | creator's PID namespace (its inode), 0 unknown | " | " |
//! | 128 | state: 0 initialising, 1 ready | creator | whoever attaches |
//!
//! The whole is 256 bytes; the rest is zero. A fresh segment is zero, which reads as
//! *initialising*.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | H1 ready | `publish`: state | `check` | the other fields, and all the creator wrote before |
//!
//! Nothing here is believed before `check` has compared it; a header that does not match is an
//! error, whatever it holds.

#[cfg(not(loom))]
use std::mem::offset_of;

use super::atomic::{AtomicU64, Ordering};
#[cfg(doc)]
use crate::error::Error;
use crate::error::{Result, check_layout};

/// First field of every segment: "shmccl" and two bytes to tell it from text.
pub const MAGIC: u64 = u64::from_le_bytes(*b"shmccl\x01\xf5");

/// Version of everything that processes share. Changes when any shared layout changes.
pub const LAYOUT_VERSION: u32 = 16;

/// Bytes at the start of a segment that belong to the header.
pub const HEADER_LEN: u64 = 256;

const READY: u64 = 1;

/// The header. See the field table of the [module](self).
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
#[repr(C)]
pub struct SegmentHeader {
    magic: AtomicU64,
    layout_version: AtomicU64,
    job: AtomicU64,
    epoch: AtomicU64,
    owner: AtomicU64,
    len: AtomicU64,
    creator_pid: AtomicU64,
    creator_start: AtomicU64,
    creator_namespace: AtomicU64,
    padding: [AtomicU64; 7],
    state: AtomicU64,
    padding_after: [AtomicU64; 15],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<SegmentHeader>() as u64 == HEADER_LEN);
    assert!(align_of::<SegmentHeader>() == 8);
    assert!(offset_of!(SegmentHeader, magic) == 0);
    assert!(offset_of!(SegmentHeader, layout_version) == 8);
    assert!(offset_of!(SegmentHeader, job) == 16);
    assert!(offset_of!(SegmentHeader, epoch) == 24);
    assert!(offset_of!(SegmentHeader, owner) == 32);
    assert!(offset_of!(SegmentHeader, len) == 40);
    assert!(offset_of!(SegmentHeader, creator_pid) == 48);
    assert!(offset_of!(SegmentHeader, creator_start) == 56);
    assert!(offset_of!(SegmentHeader, creator_namespace) == 64);
    assert!(offset_of!(SegmentHeader, state) == 128);
};

/// Which incarnation of which job a segment belongs to, and which rank owns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Number of the job.
    pub job: u64,
    /// Incarnation of the communicator.
    pub epoch: u64,
    /// The owning rank plus one; zero for a segment that no rank owns.
    pub owner: u64,
}

/// What an attaching process expects to find. What is `None` is not compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Length of the segment in bytes.
    pub len: Option<u64>,
    /// Job, epoch and owner.
    pub identity: Option<Identity>,
}

/// The process that created a segment, told from later processes with the same number by its start
/// time, and from those of other PID namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Creator {
    /// Process id, in its own PID namespace.
    pub pid: u64,
    /// Start time in clock ticks since boot; zero if it could not be read.
    pub start: u64,
    /// The inode of its PID namespace; zero if it is not known.
    #[serde(default)]
    pub namespace: u64,
}

impl SegmentHeader {
    /// Writes the owner of the segment; [`publish`](Self::publish) makes it visible.
    ///
    /// Called by the creator before any other process can have attached.
    pub(crate) fn describe(&self, identity: Identity, len: u64, creator: Creator) {
        // Relaxed, all of them: no field is read before `state`, which `publish` stores with
        // release.
        self.state.store(0, Ordering::Relaxed); // not ready: says nothing about other memory
        self.magic.store(MAGIC, Ordering::Relaxed); // carried by H1
        self.layout_version.store(LAYOUT_VERSION.into(), Ordering::Relaxed); // carried by H1
        self.job.store(identity.job, Ordering::Relaxed); // carried by H1
        self.epoch.store(identity.epoch, Ordering::Relaxed); // carried by H1
        self.owner.store(identity.owner, Ordering::Relaxed); // carried by H1
        self.len.store(len, Ordering::Relaxed); // carried by H1
        self.creator_pid.store(creator.pid, Ordering::Relaxed); // carried by H1
        self.creator_start.store(creator.start, Ordering::Relaxed); // carried by H1
        self.creator_namespace.store(creator.namespace, Ordering::Relaxed); // carried by H1
    }

    /// Returns the job and the creator that a header in a copy of a segment's first bytes names,
    /// published or not; `None` while it names none. The fields are the same in all layout
    /// versions.
    #[cfg(not(loom))]
    pub(crate) fn origin_in(bytes: &[u8; size_of::<Self>()]) -> Option<(u64, Creator)> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |offset: usize| u64::from_ne_bytes(words[offset / 8]);
        let creator = Creator {
            pid: word(offset_of!(Self, creator_pid)),
            start: word(offset_of!(Self, creator_start)),
            namespace: word(offset_of!(Self, creator_namespace)),
        };
        let job = word(offset_of!(Self, job));
        (word(offset_of!(Self, magic)) == MAGIC && job != 0).then_some((job, creator))
    }

    /// Declares the segment ready: a process that attaches from now on sees everything written to
    /// it so far.
    ///
    /// # Ordering
    /// Releases (H1) to [`check`](Self::check).
    pub fn publish(&self) {
        self.state.store(READY, Ordering::Release); // H1 ready
    }

    /// Returns whether the creator has declared the segment ready. Acquires (H1).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.load(Ordering::Acquire) == READY // H1 ready
    }

    /// Compares the header with what is `expected`.
    ///
    /// # Ordering
    /// Acquires (H1) from [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`Layout`](crate::Error::Layout) naming the first field that does not match.
    pub fn check(&self, expected: &Expected) -> Result<()> {
        let ready = u64::from(self.is_ready());
        check_layout("segment state", READY, ready)?;
        self.check_fields(expected)
    }

    /// Compares everything but the state.
    ///
    /// For callers that need no hand-over: after [`check`](Self::check) has acquired it, or because
    /// the creator is gone.
    pub(crate) fn check_fields(&self, expected: &Expected) -> Result<()> {
        check_layout("segment magic", MAGIC, self.magic.load(Ordering::Relaxed))?; // ordered by H1 in `check`
        let version = self.layout_version.load(Ordering::Relaxed); // ordered by H1 in `check`
        check_layout("segment layout version", LAYOUT_VERSION.into(), version)?;
        if let Some(len) = expected.len {
            check_layout("segment length", len, self.len())?;
        }
        if let Some(identity) = expected.identity {
            let found = self.identity();
            check_layout("segment job id", identity.job, found.job)?;
            check_layout("segment epoch", identity.epoch, found.epoch)?;
            check_layout("segment owner", identity.owner, found.owner)?;
        }
        Ok(())
    }

    /// Returns the length of the segment as its creator wrote it. Meaningful after
    /// [`check`](Self::check); still to be checked against what is mapped.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed) // ordered by H1 in `check`
    }

    /// Returns whether the length is zero, which it is in a segment that was never described.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns job, epoch and owner. Meaningful after [`check`](Self::check).
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity {
            job: self.job.load(Ordering::Relaxed),     // ordered by H1 in `check`
            epoch: self.epoch.load(Ordering::Relaxed), // ordered by H1 in `check`
            owner: self.owner.load(Ordering::Relaxed), // ordered by H1 in `check`
        }
    }

    /// Returns the creator of the segment. Meaningful after [`check`](Self::check).
    #[must_use]
    pub fn creator(&self) -> Creator {
        Creator {
            pid: self.creator_pid.load(Ordering::Relaxed), // ordered by H1 in `check`
            start: self.creator_start.load(Ordering::Relaxed), // ordered by H1 in `check`
            namespace: self.creator_namespace.load(Ordering::Relaxed), // ordered by H1 in `check`
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::shm::Mapping;

    const ME: Identity = Identity { job: 7, epoch: 3, owner: 1 };

    fn ready_header() -> crate::shm::CellRef<SegmentHeader> {
        let header = Mapping::boxed(HEADER_LEN).unwrap().cell::<SegmentHeader>(0).unwrap();
        header.describe(ME, 4096, Creator { pid: 5, start: 6, namespace: 7 });
        header.publish();
        header
    }

    fn refused_field(header: &SegmentHeader, expected: &Expected) -> &'static str {
        match header.check(expected) {
            Err(Error::Layout { what, .. }) => what,
            other => panic!("expected a layout error, got {other:?}"),
        }
    }

    #[test]
    fn a_zero_header_is_not_ready() {
        let header = Mapping::boxed(HEADER_LEN).unwrap().cell::<SegmentHeader>(0).unwrap();
        assert_eq!(refused_field(&header, &Expected::default()), "segment state");
        header.describe(ME, 4096, Creator::default());
        assert_eq!(refused_field(&header, &Expected::default()), "segment state");
    }

    #[test]
    fn a_matching_header_passes_and_tells_its_fields() {
        let header = ready_header();
        header.check(&Expected { len: Some(4096), identity: Some(ME) }).unwrap();
        assert_eq!(header.identity(), ME);
        assert_eq!(header.creator(), Creator { pid: 5, start: 6, namespace: 7 });
    }

    #[test]
    fn each_field_that_differs_is_named() {
        let header = ready_header();
        let with = |identity| Expected { len: None, identity: Some(identity) };
        assert_eq!(refused_field(&header, &Expected { len: Some(1), identity: None }), "segment length");
        assert_eq!(refused_field(&header, &with(Identity { job: 8, ..ME })), "segment job id");
        assert_eq!(refused_field(&header, &with(Identity { epoch: 4, ..ME })), "segment epoch");
        assert_eq!(refused_field(&header, &with(Identity { owner: 0, ..ME })), "segment owner");
        header.layout_version.store(u64::from(LAYOUT_VERSION) + 1, Ordering::Relaxed); // same thread
        assert_eq!(refused_field(&header, &Expected::default()), "segment layout version");
        header.magic.store(0, Ordering::Relaxed); // same thread
        assert_eq!(refused_field(&header, &Expected::default()), "segment magic");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::error::Error;

    /// Edge H1: a process that finds the header ready finds it complete, and finds what was written
    /// before.
    #[test]
    fn a_ready_header_is_complete() {
        loom::model(|| {
            let shared = loom::sync::Arc::new((SegmentHeader::default(), AtomicU64::new(0)));
            let creator = shared.clone();
            let identity = Identity { job: 7, epoch: 3, owner: 1 };
            let thread = loom::thread::spawn(move || {
                creator.1.store(9, Ordering::Relaxed); // carried by H1
                creator.0.describe(identity, 4096, Creator { pid: 5, start: 6, namespace: 7 });
                creator.0.publish();
            });
            let expected = Expected { len: Some(4096), identity: Some(identity) };
            match shared.0.check(&expected) {
                Ok(()) => {
                    assert_eq!(shared.1.load(Ordering::Relaxed), 9); // ordered by H1 in `check`
                    assert_eq!(shared.0.creator(), Creator { pid: 5, start: 6, namespace: 7 });
                }
                Err(Error::Layout { what, .. }) => assert_eq!(what, "segment state"),
                Err(other) => panic!("{other}"),
            }
            thread.join().unwrap();
        });
    }
}
