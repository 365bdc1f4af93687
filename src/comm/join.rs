//! Joining the job that a launcher has started this process for.

use std::sync::Arc;

use super::Communicator;
use super::membership::attach::{AttachedMember, JoinParams, LiveRank, Overrides, rings_of};
use super::membership::launcher_link::{Incarnation, LauncherLink};
use super::recovery::exchange::rejoin;
use crate::bootstrap::{MemberHeartbeat, ProxyMode, join_from_env};
use crate::channel::serve_all;
use crate::error::{Error, Result};

/// The part of a process in the job that it was started for.
#[derive(Debug)]
pub enum JoinedAs {
    /// A device, with its communicator.
    Device(Box<Communicator>),
    /// The proxy service. It has served until the job ended, and nothing is left to do.
    Proxy,
}

impl Communicator {
    /// Joins the job that `shmccl run` started this process for.
    ///
    /// # Errors
    /// [`Error::Environment`] when no launcher started this process; otherwise those of
    /// [`join_job`].
    pub fn from_env() -> Result<Self> {
        match join_job()? {
            Some(JoinedAs::Device(comm)) => Ok(*comm),
            Some(JoinedAs::Proxy) | None => Err(Error::Environment {
                variable: "SHMCCL_SOCKET",
                expected: "expected the control socket of a launcher",
            }),
        }
    }
}

/// Joins the job that this process was started for. Returns `None` when no launcher started it,
/// also where a rank has started it with its own environment.
///
/// The proxy service process serves until the job ends, and then returns [`JoinedAs::Proxy`]. A
/// restarted rank ([`Launch::restart`](crate::launch::Launch::restart)) waits until the others take
/// it back ([`Communicator::recover`]): see [`Communicator::on_recovery`].
///
/// # Errors
/// Fails as [`join_from_env`] does, where segments cannot be created or mapped, and with
/// [`Error::PeerLost`] when a rank is lost meanwhile.
pub fn join_job() -> Result<Option<JoinedAs>> {
    let Some(joining) = join_from_env()? else { return Ok(None) };
    if joining.restarts > 0 {
        return Ok(Some(JoinedAs::Device(Box::new(rejoin(joining)?))));
    }
    let (restarting, beat, device) = (joining.is_restarting, joining.beat, joining.device);
    let (options, placement) = (joining.options.clone(), joining.placement);
    let overrides = Overrides::of(&options)?;
    let rings = rings_of(&joining)?;
    let AttachedMember { shared, mapped, own } = AttachedMember::of(joining)?;
    let heartbeat = beat.map(|every| MemberHeartbeat::new(mapped.control().beat(device), every));
    let Some(rank) = shared.joining.rank() else {
        let link = shared.ready()?;
        // It hears from the devices when the job is over.
        let _beating = link.watch(heartbeat, |_| {})?;
        let spinners = placement.devices + placement.proxies;
        serve_all(&mapped, spinners, &overrides.faults, overrides.checksums, rings.as_ref())?;
        return Ok(Some(JoinedAs::Proxy));
    };
    let live = LiveRank::announce(&mapped, rank)?;
    let link = shared.ready()?;
    let params = JoinParams {
        mode: options.proxy,
        spinners: placement.devices,
        cores: overrides.cores,
        beside_service: options.proxy == ProxyMode::Process && placement.proxies > 0,
        timeout: options.timeout,
    };
    let incarnations = Incarnation::first(mapped.n_ranks());
    let line = LauncherLink::begin(link, heartbeat, restarting, &mapped, incarnations)?;
    let mut comm = live.join(&mapped, &params)?;
    let membership = comm.alone();
    (membership.launcher, membership._own) = (Some(Arc::new(line)), own);
    comm.apply(&overrides, false);
    comm.record_in(rings.as_ref(), rank);
    Ok(Some(JoinedAs::Device(Box::new(comm))))
}
