//! The fifos of a rank and the proxy that serves them.

use std::sync::{Arc, Mutex, PoisonError};

use shmccl_proxy::{Handler, MAX_PRODUCERS};

use crate::bootstrap::ProxyMode;
use crate::channel::{
    Executor, Port, ProxyFaults, ProxyThread, ProxyWaitPoint, Pusher, RankContext, ServedFifos, Traced,
};
use crate::error::{Error, Result};
use crate::heap::layout::{FifoCells, N_FIFOS};
use crate::sync::WaitPolicy;

/// The fifos of a rank, and the proxy that serves them.
#[derive(Debug)]
pub(in crate::comm) struct Ports {
    mode: ProxyMode,
    state: Mutex<PortsState>,
}

/// Whose channel it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) enum ChannelUser {
    /// The program.
    Program,
    /// A pipe. It pushes a trigger for a whole piece of a message, so the cost of a push does not
    /// matter. Every fifo in use is one more for an idle proxy to look at.
    Pipe,
}

#[derive(Debug)]
struct PortsState {
    proxy: Option<ProxyThread>,
    /// How many fifos port channels are spread over.
    n_fifos: u32,
    /// How many of them, from the first on, have one producer at most: a channel of the program.
    n_sole: u32,
    /// How many port channels have come to share a fifo.
    sharing: u32,
}

impl Ports {
    pub(super) fn new(mode: ProxyMode, n_ranks: u32) -> Self {
        let n_sole = N_FIFOS - enough_to_share(n_ranks);
        Self { mode, state: Mutex::new(PortsState { proxy: None, n_fifos: N_FIFOS, n_sole, sharing: 0 }) }
    }

    /// Opens a fifo, or a place in one, and starts the proxy that serves it, if need be.
    pub(in crate::comm) fn open(&self, context: &Arc<RankContext>, user: ChannelUser) -> Result<Port> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.mode == ProxyMode::Thread && state.proxy.is_none() {
            state.start(context, |executor| executor)?;
        }
        let (fifo, pusher) = state.take_place(context, user)?;
        let (mapped, rank) = (context.mapped(), context.rank());
        Ok(match self.mode {
            ProxyMode::Thread => {
                Port::new(pusher, fifo, ProxyWaitPoint::of_thread(mapped, rank)?, Some(rank))
            }
            ProxyMode::Process => Port::new(pusher, fifo, ProxyWaitPoint::of_process(mapped), None),
        })
    }

    /// Starts the proxy thread with the handler that `make` returns, over `n_fifos` fifos.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the proxy runs already, or is a service process.
    pub(in crate::comm) fn start_proxy<T: Handler + Send + 'static>(
        &self,
        context: &Arc<RankContext>,
        n_fifos: u32,
        make: impl FnOnce(Executor) -> T,
    ) -> Result<()> {
        let unavailable = |needs| Err(Error::Unavailable { operation: "start_proxy", needs });
        if self.mode == ProxyMode::Process {
            return unavailable("a job whose proxies are threads; this one has a service process");
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.proxy.is_some() {
            return unavailable("a proxy that does not run yet; call it before the first port channel");
        }
        let before = (state.n_fifos, state.n_sole);
        (state.n_fifos, state.n_sole) = (n_fifos, 0);
        let started = state.start(context, make);
        if started.is_err() {
            (state.n_fifos, state.n_sole) = before;
        }
        started
    }

    /// Stops the proxy thread when everything pushed so far has been executed, or the epoch has
    /// ended.
    pub(super) fn stop(&self) {
        drop(self.state.lock().unwrap_or_else(PoisonError::into_inner).proxy.take());
    }
}

impl PortsState {
    /// Takes a fifo without a producer for a channel of the program, while there is one; otherwise
    /// a place in the next shared fifo.
    fn take_place(&mut self, context: &RankContext, user: ChannelUser) -> Result<(FifoCells, Pusher)> {
        let cells = context.mapped().cells(context.rank());
        if user == ChannelUser::Program {
            for index in 0..self.n_sole {
                let fifo = cells.fifo(index)?;
                if let Some(pusher) = Pusher::sole(&fifo)? {
                    return Ok((fifo, pusher));
                }
            }
        }
        let n_shared = self.n_fifos - self.n_sole;
        for _ in 0..n_shared {
            let fifo = cells.fifo(self.n_sole + self.sharing % n_shared)?;
            self.sharing = self.sharing.wrapping_add(1);
            if let Some(pusher) = Pusher::shared(&fifo)? {
                return Ok((fifo, pusher));
            }
        }
        Err(Error::Exhausted { what: "producers of a fifo", limit: MAX_PRODUCERS as u64 })
    }

    fn start<T: Handler + Send + 'static>(
        &mut self,
        context: &Arc<RankContext>,
        make: impl FnOnce(Executor) -> T,
    ) -> Result<()> {
        let (mapped, rank) = (context.mapped(), context.rank());
        let wait_point = ProxyWaitPoint::of_thread(mapped, rank)?;
        let doorbell = wait_point.doorbell.clone();
        let served = ServedFifos::of(mapped, [rank], self.n_fifos, wait_point)?;
        let injectors = served.owners.iter().map(|_| context.injector().cloned()).collect();
        let executor = Executor::new(mapped, &served.owners)?
            .with_faults(ProxyFaults::new(injectors, false))
            .with_checksums(context.takes_checksums());
        let handler = make(executor);
        // The proxy has the rank itself on its core.
        let policy = WaitPolicy::OVERSUBSCRIBED;
        self.proxy = Some(match context.any_recorder() {
            None => ProxyThread::start(mapped, served, policy, handler)?,
            Some(recorder) => {
                let lanes = vec![recorder.proxy().clone(); served.fifos.len()];
                ProxyThread::start(mapped, served, policy, Traced::new(handler, lanes))?
            }
        });
        context.host_proxy(doorbell);
        Ok(())
    }
}

/// Returns how many fifos leave half of their places free when a port channel goes to every rank.
fn enough_to_share(n_ranks: u32) -> u32 {
    let half = u32::try_from(MAX_PRODUCERS / 2).unwrap_or(1);
    n_ranks.div_ceil(half).clamp(1, N_FIFOS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Communicator;
    use crate::bootstrap::Options;
    use crate::channel::Channel;

    #[test]
    fn a_proxy_thread_counts_as_a_spinner_while_it_is_awake_and_channels_come_and_go() {
        let options = Options { heap_len: 4 << 20, ..Options::default() };
        let comm = Communicator::init_all_with(1, &options).unwrap().remove(0);
        let context = comm.context();
        let alone = context.policy();
        let doorbell = context.mapped().cells(context.rank()).fifo(0).unwrap().doorbell;
        let asleep = || crate::testing::wait_until("the proxy sleeps", || doorbell.is_slept_on());
        // Over a proxy that is idle the rank waits as it did before it had one.
        let mut channel = comm.port_channel(comm.rank()).unwrap();
        asleep();
        assert_eq!(context.policy(), alone);
        // From a push on it counts. It would fall asleep in a millisecond or so, but a test cannot
        // rely on seeing that.
        doorbell.wake(context.kernel());
        assert!(context.policy() == WaitPolicy::OVERSUBSCRIBED || doorbell.is_slept_on());
        channel.signal().unwrap();
        channel.wait().unwrap();
        drop(channel);
        asleep();
        assert_eq!(context.policy(), alone);
    }
}
