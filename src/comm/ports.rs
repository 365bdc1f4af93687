//! The fifos of a rank and the proxy that serves them.

use std::sync::{Arc, Mutex, PoisonError};

use shmccl_proxy::{Handler, MAX_PRODUCERS, Snapshot};

use super::Communicator;
use super::membership::Membership;
use crate::bootstrap::ProxyMode;
use crate::channel::{Executor, Fabric, Noting, Port, PortChannel, ProxyFaults, ProxyThread, Served};
use crate::collective::OpenPorts;
use crate::error::{Error, Result};
use crate::heap::layout::{FifoCells, N_FIFOS};
use crate::rank::Rank;

/// How a rank's triggers are served.
#[derive(Debug)]
pub(super) struct Ports {
    mode: ProxyMode,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    proxy: Option<ProxyThread>,
    /// How many fifos port channels are spread over.
    n_fifos: u32,
    /// How many port channels were opened.
    opened: u32,
}

impl Ports {
    pub(super) fn new(mode: ProxyMode) -> Self {
        Self { mode, state: Mutex::new(State { proxy: None, n_fifos: 1, opened: 0 }) }
    }

    /// Opens a place in the next fifo, and sees to it that somebody serves it.
    pub(super) fn open(&self, fabric: &Arc<Fabric>) -> Result<Port> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.mode == ProxyMode::Thread && state.proxy.is_none() {
            state.start(fabric, enough_fifos(fabric.world().n_ranks()), |executor| executor)?;
        }
        let fifo = fabric.world().cells(fabric.rank()).fifo(state.opened % state.n_fifos)?;
        let served_by = (self.mode == ProxyMode::Thread).then_some(fabric.rank());
        let port = Port::open(fifo, self.doorbell(fabric)?, fabric.rank(), served_by)?;
        state.opened = state.opened.wrapping_add(1);
        Ok(port)
    }

    /// Stops the proxy thread, after everything pushed so far has been executed, or the epoch has ended.
    pub(super) fn stop(&self) {
        drop(self.state.lock().unwrap_or_else(PoisonError::into_inner).proxy.take());
    }

    fn doorbell(&self, fabric: &Fabric) -> Result<crate::shm::CellRef<crate::sync::ParkCell>> {
        match self.mode {
            ProxyMode::Thread => Ok(fabric.world().cells(fabric.rank()).fifo(0)?.doorbell),
            ProxyMode::Process => Ok(fabric.world().control().proxy_doorbell()),
        }
    }
}

impl State {
    fn start<T: Handler + Send + 'static>(
        &mut self,
        fabric: &Arc<Fabric>,
        n_fifos: u32,
        make: impl FnOnce(Executor) -> T,
    ) -> Result<()> {
        let world = fabric.world();
        let cells = world.cells(fabric.rank());
        let fifos = (0..n_fifos).map(|index| cells.fifo(index)).collect::<Result<Vec<FifoCells>>>()?;
        let owners = vec![fabric.rank(); fifos.len()];
        let doorbell = cells.fifo(0)?.doorbell;
        let injectors = owners.iter().map(|_| fabric.injector().cloned()).collect();
        let executor = Executor::new(world, &owners)?
            .suffering(ProxyFaults::new(injectors, false))
            .checking(fabric.takes_checksums());
        let handler = make(executor);
        fabric.add_spinner();
        let served = Served { owners, fifos, doorbell };
        let policy = fabric.policy();
        self.proxy = Some(match fabric.any_recorder() {
            None => ProxyThread::start(world, served, policy, handler)?,
            Some(recorder) => {
                let lanes = vec![recorder.proxy().clone(); usize::try_from(n_fifos).unwrap_or(0)];
                ProxyThread::start(world, served, policy, Noting::new(handler, lanes))?
            }
        });
        self.n_fifos = n_fifos;
        Ok(())
    }
}

/// So many fifos that a port channel to every rank takes no more than half of their places.
fn enough_fifos(n_ranks: u32) -> u32 {
    let half = u32::try_from(MAX_PRODUCERS / 2).unwrap_or(1);
    n_ranks.div_ceil(half).clamp(1, N_FIFOS)
}

impl OpenPorts for Membership {
    fn open_port(&self, peer: Rank) -> Result<PortChannel> {
        PortChannel::open_from_top(&self.fabric, peer, self.ports.open(&self.fabric)?)
    }
}

impl Communicator {
    /// Starts this rank's proxy thread with a handler of the caller's own, over `n_fifos` fifos, between which port
    /// channels are dealt out in turn. The handler is made from the one that would be used otherwise.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `n_fifos` is not from 1 to 8; [`Error::Unavailable`] when the proxy runs already
    /// (the first [`Communicator::port_channel`] starts it), or when the job's proxy is a service process.
    pub fn start_proxy<T: Handler + Send + 'static>(
        &self,
        n_fifos: u32,
        make: impl FnOnce(Executor) -> T,
    ) -> Result<()> {
        if !(1..=N_FIFOS).contains(&n_fifos) {
            let expected = "from 1 to 8 fifos";
            return Err(Error::InvalidArgument { name: "n_fifos", value: n_fifos.into(), expected });
        }
        let unavailable = |needs| Err(Error::Unavailable { operation: "start_proxy", needs });
        if self.membership.ports.mode == ProxyMode::Process {
            return unavailable("a job whose proxies are threads; this one has a service process");
        }
        let mut state = self.membership.ports.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.proxy.is_some() {
            return unavailable("a proxy that does not run yet; call it before the first port channel");
        }
        state.start(self.fabric(), n_fifos, make)
    }

    /// The counters of this rank's fifos, in use or not. Costs the fifos nothing.
    ///
    /// # Errors
    /// None in a job that is intact.
    pub fn fifo_snapshots(&self) -> Result<Vec<Snapshot>> {
        let fabric = self.fabric();
        let cells = fabric.world().cells(fabric.rank());
        (0..N_FIFOS).map(|index| Ok(cells.fifo(index)?.snapshot())).collect()
    }
}
