//! The options that a launcher decides for all members of a job, and the placement of each member.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::faults::Faults;
use crate::variables;

/// The longest name or path that a [`SegmentBacking`] can carry, in bytes.
const MAX_BACKING_NAME: usize = 256;

/// The place where the triggers of port channels are executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProxyMode {
    /// A thread in each device process.
    #[default]
    Thread,
    /// One service process for all devices.
    Process,
}

impl ProxyMode {
    pub(crate) const fn code(self) -> u32 {
        self as u32
    }

    pub(crate) fn from_code(code: u32) -> Option<Self> {
        [Self::Thread, Self::Process].into_iter().find(|mode| mode.code() == code)
    }
}

/// The source of the memory of segments. Each rank derives its own segment from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum SegmentBacking {
    /// Anonymous memory that vanishes with the last process.
    #[default]
    Anonymous,
    /// A named segment; the name is a prefix, to which the rank is appended.
    Named(String),
    /// A file in this directory, kept when the job ends.
    Files(String),
}

impl SegmentBacking {
    pub(crate) const fn code(&self) -> u32 {
        match self {
            Self::Anonymous => 0,
            Self::Named(_) => 1,
            Self::Files(_) => 2,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Anonymous => "",
            Self::Named(name) | Self::Files(name) => name,
        }
    }

    pub(crate) fn from_code(code: u32, name: &[u8]) -> Option<Self> {
        let name = || String::from_utf8(name.to_vec()).ok();
        match code {
            0 => Some(Self::Anonymous),
            1 => Some(Self::Named(name()?)),
            2 => Some(Self::Files(name()?)),
            _ => None,
        }
    }

    /// Checks the length of the name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the name is too long for a message to the ranks.
    pub(crate) fn check(&self) -> Result<()> {
        let len = self.name().len();
        if len > MAX_BACKING_NAME {
            return Err(Error::invalid("length of the segment name", len as u64, "at most 256 bytes"));
        }
        Ok(())
    }
}

/// The options of a job. A launcher decides them for all members; without one, each rank brings its
/// own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Length of each rank's part of the symmetric heap, in bytes.
    pub heap_len: u64,
    /// The proxy that executes triggers.
    pub proxy: ProxyMode,
    /// The memory of segments.
    pub backing: SegmentBacking,
    /// How long a wait may take, in the bootstrap and afterwards.
    pub timeout: Duration,
    /// The faults to inject. An empty plan leaves that to the environment: see [`crate::faults`].
    pub faults: Faults,
    /// Whether data are checked on their way: see [`checksums_from_env`]. `false` leaves that to
    /// the environment.
    pub checksums: bool,
    /// How many cores the ranks count on: see [`cores_from_env`]. `None` leaves that to the
    /// environment, or to a count.
    pub cores: Option<NonZeroU32>,
}

impl Options {
    /// Checks that a job of `n_ranks` can suffer the faults that these options, or the environment,
    /// plan.
    ///
    /// # Errors
    /// Fails as [`Faults::from_env`] does, or with [`Error::FaultSpec`].
    pub(crate) fn check_faults(&self, n_ranks: u32) -> Result<()> {
        self.faults.check_for(n_ranks, self.proxy == ProxyMode::Process)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            heap_len: 256 << 20,
            proxy: ProxyMode::default(),
            backing: SegmentBacking::default(),
            timeout: Duration::from_secs(60),
            faults: Faults::default(),
            checksums: false,
            cores: None,
        }
    }
}

/// The variable that asks for checksums.
pub const CHECKSUMS: &str = "SHMCCL_CHECKSUMS";

/// Returns whether [`CHECKSUMS`] asks for CRC32C checksums: `1`; nothing or `0` for none. All ranks
/// have to say the same.
///
/// These are covered, from the sender's buffer to where the receiver uses the bytes:
/// - messages of `send` and `recv`, and those of the algorithms that go through pipes, in each
///   slot: ring, trees, doubling, halving, all proxied ones, the user's own;
/// - messages that the receiver copies straight from the sender's buffer;
/// - the data that collective calls of at most 8 KiB post;
/// - ordinary memory that longer calls stage, and the results that come back the same way;
/// - puts through a proxy on any channel, from the source before the copy to the target after it.
///
/// A mismatch ends the epoch. It is [`Error::Corrupted`] on the receiver, or
/// [`Error::PutCorrupted`] on all ranks; the peer of such a put gets no signal.
///
/// These are not covered:
/// - puts, gets and packets by a rank's own core, and switch channels;
/// - calls on heap buffers that read and write the peers' buffers in place (two-shot, mostly chosen
///   from 8 KiB on). Nothing lies in between that a checksum could cover, and the owner's would
///   cost another pass and another wait. Another algorithm
///   ([`Communicator::set_algorithm`](crate::Communicator::set_algorithm)), or proxied channels, go
///   through pipes;
/// - copies out of a slot, and what happens to data before they are sent and after they have
///   arrived.
///
/// The source of a proxied put must not be written before its flush. Here such a write counts as
/// corruption.
///
/// # Errors
/// [`Error::Setting`] for another value.
pub fn checksums_from_env() -> Result<bool> {
    switch_from_env(CHECKSUMS)
}

/// The variable that asks for a rank's own memory in its core dumps: see [`dump_heap_from_env`].
pub const DUMP_HEAP: &str = "SHMCCL_DUMP_HEAP";

/// Returns whether [`DUMP_HEAP`] asks for the rank's own segment in its core dumps: `1`; nothing or
/// `0` for none.
///
/// A core dump holds no shared memory otherwise, since peers learn of a death only when the dump is
/// written. With it a dump holds the control structures of the rank, and of its heap what was ever
/// allocated. A gigabyte of that delays the news by a second or so. What ordinary memory the
/// program itself has delays them, too. Segments of peers are never dumped,
/// nor is the memory of a pool's devices.
///
/// # Errors
/// [`Error::Setting`] for another value.
pub fn dump_heap_from_env() -> Result<bool> {
    switch_from_env(DUMP_HEAP)
}

fn switch_from_env(variable: &'static str) -> Result<bool> {
    match variables::get(variable).as_ref().map(|text| text.to_str()) {
        None | Some(Some("" | "0")) => Ok(false),
        Some(Some("1")) => Ok(true),
        Some(_) => Err(Error::Setting { variable, expected: "1, or 0 for none" }),
    }
}

/// The variable that sets the number of cores.
pub const CORES: &str = "SHMCCL_CORES";

/// Returns how many cores [`CORES`] tells the ranks of a job to count on; `None` where it is not
/// set, and ranks count for themselves.
///
/// With n ranks on k cores, n / k of them (rounded up) share one. If that is one, waiting ranks
/// spin, and operations are done in the best way for ranks with a core each. Otherwise waiting
/// ranks yield, and operations are done in the best way for ranks that share cores
/// ([`Communicator::is_oversubscribed`](crate::Communicator::is_oversubscribed)).
///
/// Ranks count the cores on which they may run. They do not know of a quota of processor time, or
/// of other jobs on the same cores, and this variable tells them. A number above the real one makes
/// them behave as on a larger machine, but does not measure that machine.
///
/// Proxies are counted as before, and nobody is moved. Ranks may be told different numbers. Where
/// they have to agree, they do as ranks that share cores if any of them does.
///
/// # Errors
/// [`Error::Setting`] for another value.
pub fn cores_from_env() -> Result<Option<NonZeroU32>> {
    match variables::get(CORES).as_ref().map(|text| text.to_str()) {
        None | Some(Some("")) => Ok(None),
        Some(text) => {
            let cores = text.and_then(|text| text.parse().ok());
            cores
                .map(Some)
                .ok_or(Error::Setting { variable: CORES, expected: "a number of cores, 1 or more" })
        }
    }
}

/// The core of a member, and what shares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The core to which the launcher pinned the process with all its threads; `None` when it did
    /// not.
    pub cpu: Option<u32>,
    /// How many device threads share a core, this one included if it is a device.
    pub devices: u32,
    /// How many proxies share that core with them, once they are started.
    pub proxies: u32,
}
