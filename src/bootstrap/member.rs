//! A member's side of the first meeting: Hello to Go.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::control_channel::{ControlChannel, WaitGuard};
use super::link::ControlLink;
use super::message::{
    self, CONTRIBUTION_LEN, Contribution, ControlMessage, GATHERED_RANKS, Gathered, Go, Hello, Invite,
    LAYOUT_VERSION, Ready, Welcome,
};
use super::options::{Options, Placement, ProxyMode, SegmentBacking};
use super::socket::{duplicate, has_hung_up};
use crate::epoch_id::EpochId;
use crate::error::{DeviceName, Error, Result, check_layout};
use crate::rank::{Rank, check_n_ranks};
use crate::shm::statics::{self, OwnStatics};

/// A member that the launcher has welcomed and that has not met the others yet.
///
/// Dropping it hangs up, which every other member sees as the loss of this one.
#[derive(Debug)]
pub struct Joining {
    pub(super) channel: ControlChannel,
    /// The member that this process is.
    pub(crate) device: DeviceName,
    /// The job and the epoch of the communicator.
    pub(crate) epoch_id: EpochId,
    /// The options that the launcher has decided for all.
    pub(crate) options: Options,
    /// The core of this process, and what shares it.
    pub(crate) placement: Placement,
    /// The control segment, made by the launcher.
    pub(crate) control: OwnedFd,
    /// The trace rings of this member, if it is traced.
    pub(crate) rings: Option<OwnedFd>,
    /// Held by this process for as long as it has a named segment. The launcher's janitor removes
    /// names when nobody holds it any more.
    pub(crate) hold: Option<OwnedFd>,
    /// How often the launcher has restarted this rank. A restarted process comes back to the
    /// others, which are on their way already.
    pub(crate) restarts: u32,
    /// Whether the launcher restarts ranks that die.
    pub(crate) is_restarting: bool,
    /// How often this member has to beat for the launcher, if it has to.
    pub(crate) beat: Option<Duration>,
    round: u32,
}

/// A member that holds everyone's segments and has not said yet that it is attached to them.
///
/// Dropping it hangs up, which every other member sees as the loss of this one.
#[derive(Debug)]
pub struct Shared {
    /// What the Welcome decided.
    pub(crate) joining: Joining,
    /// The segments in the order of the ranks, this member's own included.
    pub(crate) segments: Vec<OwnedFd>,
    /// The static objects of all ranks in order; or the first rank that has none to give.
    pub(crate) statics: Result<Vec<OwnedFd>, Rank>,
}

/// One rank's contribution to an all-gather.
#[derive(Debug)]
pub struct RankContribution {
    /// The bytes of the rank, padded with zeros.
    pub bytes: [u8; CONTRIBUTION_LEN],
    /// The descriptor of the rank, if it sent one.
    pub descriptor: Option<OwnedFd>,
}

impl Joining {
    /// Sends Hello over `channel` as `device`, and takes the Welcome.
    ///
    /// # Errors
    /// - [`Error::PeerLost`] or [`Error::ProxyLost`] when another member was lost meanwhile.
    /// - [`Error::Layout`] when launcher and program do not fit.
    /// - [`Error::Revoked`] when the launcher is gone.
    /// - [`Error::Timeout`].
    pub(super) fn begin(channel: ControlChannel, device: DeviceName, timeout: Duration) -> Result<Self> {
        let (header, member) = (Hello::header(channel.job_id), message::member_code(device));
        let (layout_version, pid) = (LAYOUT_VERSION, std::process::id());
        channel.send(&Hello { header, layout_version, pid, member, reserved: 0 }, &[])?;
        let (welcome, descriptors) = channel.receive::<Welcome>(timeout, "joining the job (welcome)")?;
        check_layout("number of ranks", channel.n_ranks.into(), welcome.n_ranks.into())?;
        check_layout("rank", member.into(), welcome.member.into())?;
        let found = descriptors.len() as u64;
        let mut descriptors = descriptors.into_iter();
        let control = descriptors.next();
        let rings = if welcome.traced == 0 { None } else { descriptors.next() };
        let (Some(control), hold, None) = (control, descriptors.next(), descriptors.next()) else {
            return Err(Error::Layout { what: "number of control segments", expected: 1, found });
        };
        let (options, placement) = decode(&welcome)?;
        Ok(Self {
            epoch_id: EpochId { job: channel.job_id, epoch: welcome.epoch },
            channel,
            device,
            options,
            placement,
            control,
            rings,
            hold,
            restarts: welcome.restarts,
            is_restarting: welcome.restarting != 0,
            beat: Some(Duration::from_micros(welcome.beat_us)).filter(|beat| !beat.is_zero()),
            round: 0,
        })
    }

    /// Returns the rank of this process, or `None` for the proxy service.
    #[must_use]
    pub fn rank(&self) -> Option<Rank> {
        match self.device {
            DeviceName::Rank(rank) => Some(rank),
            DeviceName::Proxy => None,
        }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        self.channel.n_ranks
    }

    /// Returns the guard of its waits, if it has one.
    pub(crate) fn guard(&self) -> Option<&WaitGuard> {
        self.channel.guard.as_ref()
    }

    /// Looks after the launcher while this member meets the others without it.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`].
    pub(crate) fn launcher_guard(&self) -> Result<WaitGuard> {
        let line = duplicate(&*self.channel.socket, "duplicating the control socket")?;
        Ok(WaitGuard::new(|| None).unless(move || has_hung_up(&line)))
    }

    /// Waits until the others say where they are to be met; returns the token of the id.
    pub(crate) fn await_invite(&self) -> Result<[u64; 2]> {
        let timeout = self.options.timeout;
        let (invite, _) =
            self.channel.receive::<Invite>(timeout, "waiting to be taken back by the other ranks")?;
        Ok(invite.token)
    }

    /// Says that this member is back among the others.
    pub(crate) fn rejoin(self) -> Result<ControlLink> {
        self.channel.send(&Ready { header: Ready::header(self.channel.job_id) }, &[])?;
        Ok(self.channel.into_link())
    }

    /// Creates this rank's segment by `create`, and gives every member the segments of all ranks.
    ///
    /// The proxy service has no segment, so it does not call `create`. Where the static objects of
    /// every rank are symmetric, the members exchange these as well.
    ///
    /// # Errors
    /// - Those of `create`, and [`Error::PeerLost`] on every other member then.
    /// - [`Error::PeerLost`], [`Error::ProxyLost`], [`Error::Revoked`], [`Error::Timeout`].
    /// - [`Error::ResourceLimit`] when this process may not open so many files.
    pub fn share(mut self, create: impl FnOnce(&Self) -> Result<OwnedFd>) -> Result<Shared> {
        let own = match self.device {
            DeviceName::Rank(_) => Some(create(&self)?),
            DeviceName::Proxy => None,
        };
        let statics = self.rank().and_then(|_| statics::own().ok()).map(OwnStatics::file);
        let told = [statics.is_some().into()];
        let (first, segments) = self.gather_descriptors(&told, own.as_ref().map(AsFd::as_fd))?;
        check_layout("number of segments", self.n_ranks().into(), segments.len() as u64)?;
        let lacking = Rank::of_each(&first).find(|(_, told)| told[0] == 0).map(|(rank, _)| rank);
        let statics = match lacking {
            Some(lacking) => Err(lacking),
            None => Ok(self.gather_descriptors(&[], statics)?.1),
        };
        Ok(Shared { joining: self, segments, statics })
    }

    /// Gives `bytes` and a descriptor, and returns what all ranks have given.
    fn gather_descriptors(
        &mut self,
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Vec<[u8; CONTRIBUTION_LEN]>, Vec<OwnedFd>)> {
        let contributions = self.all_gather(bytes, descriptor)?;
        let told = contributions.iter().map(|contribution| contribution.bytes).collect();
        Ok((told, contributions.into_iter().filter_map(|contribution| contribution.descriptor).collect()))
    }

    /// Gives `bytes` and a descriptor, and returns those of all ranks in order of rank. Collective:
    /// every member calls it equally often. The contribution of the proxy service is not passed on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for more than [`CONTRIBUTION_LEN`] bytes; otherwise as
    /// [`Joining::share`].
    pub fn all_gather(
        &mut self,
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<RankContribution>> {
        let mut padded = [0; CONTRIBUTION_LEN];
        let (len, limit) = (bytes.len() as u64, CONTRIBUTION_LEN as u64);
        let space = padded.get_mut(..bytes.len());
        let out_of_range = Error::OutOfRange { what: "contribution to an all-gather", offset: 0, len, limit };
        space.ok_or(out_of_range)?.copy_from_slice(bytes);
        let header = Contribution::header(self.channel.job_id);
        let contribution = Contribution { header, round: self.round, reserved: 0, bytes: padded };
        self.channel.send(&contribution, descriptor.as_slice())?;
        let timeout = self.options.timeout;
        let mut contributions = Vec::with_capacity(self.n_ranks() as usize);
        while contributions.len() < self.n_ranks() as usize {
            self.receive_gathered(timeout, &mut contributions)?;
        }
        self.round += 1;
        Ok(contributions)
    }

    /// Receives the next part of what all ranks contributed.
    fn receive_gathered(&self, timeout: Duration, all: &mut Vec<RankContribution>) -> Result<()> {
        let (gathered, descriptors) =
            self.channel.receive::<Gathered>(timeout, "joining the job (segments)")?;
        check_layout("bootstrap round", self.round.into(), gathered.round.into())?;
        check_layout("number of ranks", self.n_ranks().into(), gathered.n_ranks.into())?;
        check_layout("first rank of a part", all.len() as u64, gathered.first.into())?;
        check_layout(
            "number of descriptors",
            gathered.with_descriptor.count_ones().into(),
            descriptors.len() as u64,
        )?;
        let mut descriptors = descriptors.into_iter();
        let contribution = |place: usize| RankContribution {
            bytes: gathered.bytes[place],
            descriptor: (gathered.with_descriptor >> place & 1 == 1).then(|| descriptors.next()).flatten(),
        };
        let left = self.n_ranks() as usize - all.len();
        all.extend((0..left.min(GATHERED_RANKS)).map(contribution));
        Ok(())
    }
}

impl Shared {
    /// Says that this member is attached to everything, and waits until all are. Returns the live
    /// socket to the launcher.
    ///
    /// # Errors
    /// As [`Joining::share`].
    pub fn ready(self) -> Result<ControlLink> {
        let Joining { channel, options, .. } = self.joining;
        channel.send(&Ready { header: Ready::header(channel.job_id) }, &[])?;
        channel.receive::<Go>(options.timeout, "joining the job (ready)")?;
        Ok(channel.into_link())
    }
}

/// Reads the decisions in a Welcome, and checks each.
fn decode(welcome: &Welcome) -> Result<(Options, Placement)> {
    check_n_ranks(welcome.n_ranks)?;
    let unknown = |what, found: u32| Error::Layout { what, expected: 0, found: found.into() };
    let proxy = ProxyMode::from_code(welcome.proxy_mode);
    let name = welcome.backing_name.get(..welcome.backing_name_len as usize);
    let backing = name.and_then(|name| SegmentBacking::from_code(welcome.backing, name));
    let options = Options {
        heap_len: welcome.heap_len,
        proxy: proxy.ok_or_else(|| unknown("proxy mode", welcome.proxy_mode))?,
        backing: backing.ok_or_else(|| unknown("segment backing", welcome.backing))?,
        timeout: Duration::from_millis(welcome.timeout_ms),
        ..Options::default()
    };
    let cpu = (welcome.cpu != message::NO_CPU).then_some(welcome.cpu);
    Ok((options, Placement { cpu, devices: welcome.devices, proxies: welcome.proxies }))
}
