//! What the launcher decides for all members of a job, and where each of them is to run.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::faults::Faults;

/// The longest name or path that a [`SegmentBacking`] can carry, in bytes.
const MAX_BACKING_NAME: usize = 256;

/// Who executes the triggers of port channels.
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
        match self {
            Self::Thread => 0,
            Self::Process => 1,
        }
    }

    pub(crate) const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Thread),
            1 => Some(Self::Process),
            _ => None,
        }
    }
}

/// Where the memory of the segments comes from; each rank derives its own segment from it.
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

    /// # Errors
    /// [`Error::InvalidArgument`] when the name is too long to be told to the ranks.
    pub(crate) fn check(&self) -> Result<()> {
        let len = self.name().len();
        if len > MAX_BACKING_NAME {
            return Err(Error::InvalidArgument {
                name: "length of the segment name",
                value: len as u64,
                expected: "at most 256 bytes",
            });
        }
        Ok(())
    }
}

/// What the launcher decides for all members of a job; without one each rank brings its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Length of each rank's part of the symmetric heap, in bytes.
    pub heap_len: u64,
    /// Who executes triggers.
    pub proxy: ProxyMode,
    /// Where segments come from.
    pub backing: SegmentBacking,
    /// How long a wait may take, in the bootstrap and afterwards.
    pub timeout: Duration,
    /// What goes wrong on purpose; where that is nothing, what the environment says: see [`crate::faults`].
    pub faults: Faults,
    /// Whether data are checked by checksums on their way, as far as [`checksums_from_env`] says; where this says no, the environment may
    /// say yes.
    pub checksums: bool,
    /// How many cores the ranks count on, as [`cores_from_env`] says; where this says nothing, the environment may, or they are counted.
    pub cores: Option<NonZeroU32>,
}

impl Options {
    /// Checks that a job of `n_ranks` can suffer the faults that these options, or the environment, plan.
    ///
    /// # Errors
    /// Those of [`Faults::from_env`]; [`Error::FaultPlan`].
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

/// The variable by which checksums are asked for.
pub const CHECKSUMS: &str = "SHMCCL_CHECKSUMS";

/// Whether [`CHECKSUMS`] asks for checksums (`1`; nothing or `0` for none), by CRC32C, the same on all ranks.
///
/// Covered are, each from the sender's buffer to where the receiver uses the bytes:
/// - messages of `send` and `recv` and of the algorithms that go through pipes (ring, trees, doubling, halving, all proxied ones, the
///   user's own), in each slot; and parcels that are lent, from one buffer to the other;
/// - what collective operations of at most 8 KiB post, in the post itself or in its mail;
/// - what those of more than 8 KiB stage of ordinary memory, and the results that come back the same way;
/// - puts through a proxy, of whatever channel, from the source before the copy to the target after it.
///
/// A mismatch is [`Error::Corrupted`] on the receiver, or [`Error::PutCorrupted`] on all ranks, and ends the epoch; the peer of such a
/// put is not signalled.
///
/// Not covered are:
/// - puts, gets and packets by a rank's own core, and switch channels;
/// - those on buffers in the heap that read and write the peers' buffers in place (two-shot, which the table mostly chooses from 8 KiB on):
///   nothing lies in between that a checksum could be taken of, and the owner's would cost another pass and another meeting.
///   Another algorithm ([`Communicator::set_algorithm`](crate::Communicator::set_algorithm)), or proxied channels, go through pipes;
/// - copies out of a slot; and whatever happens to data before they are sent and after they have arrived.
///
/// The source of a proxied put must not be written before its flush; here that is found out, and taken for corruption.
///
/// # Errors
/// [`Error::Setting`] for another value.
pub fn checksums_from_env() -> Result<bool> {
    match std::env::var_os(CHECKSUMS).as_ref().map(|text| text.to_str()) {
        None | Some(Some("" | "0")) => Ok(false),
        Some(Some("1")) => Ok(true),
        Some(_) => Err(Error::Setting { variable: CHECKSUMS, expected: "1, or 0 for none" }),
    }
}

/// The variable by which ranks are told how many cores they have.
pub const CORES: &str = "SHMCCL_CORES";

/// How many cores [`CORES`] tells the ranks of a job to count on (one or more; nothing where they are to be counted).
///
/// With n ranks on k cores, n / k of them (rounded up) share one. Where that is one, ranks that wait spin, and operations are done as is
/// best among ranks with a core each; otherwise they yield, and are done as is best among crowded ones
/// ([`Communicator::is_crowded`](crate::Communicator::is_crowded)). By themselves ranks count the cores on which they may run: of a
/// quota of processor time, or of other jobs on the same cores, they know nothing, and can be told by this. Told of more cores than there
/// are, they go the ways of a larger machine; what is measured then is not what that machine does.
///
/// Proxies are counted as before, and nobody is moved. Ranks that are told different numbers go together all the same: the ways on
/// which they have to agree are those of crowded ranks, if any counts itself crowded.
///
/// # Errors
/// [`Error::Setting`] for another value.
pub fn cores_from_env() -> Result<Option<NonZeroU32>> {
    match std::env::var_os(CORES).as_ref().map(|text| text.to_str()) {
        None | Some(Some("")) => Ok(None),
        Some(text) => {
            let cores = text.and_then(|text| text.parse().ok());
            cores
                .map(Some)
                .ok_or(Error::Setting { variable: CORES, expected: "a number of cores, 1 or more" })
        }
    }
}

/// Where a member runs and with whom it shares that core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The core to which the launcher pinned the process, with all threads it starts; `None` when it did not.
    pub cpu: Option<u32>,
    /// How many device threads share a core, this one included where it is a device.
    pub devices: u32,
    /// How many proxies share that core with them, once they are started.
    pub proxies: u32,
}
