//! What is asked for by options or the environment: checks, what is to go wrong on purpose, and how many cores to count on.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::Communicator;
use crate::bootstrap::{Options, checksums_from_env, cores_from_env};
use crate::error::Result;
use crate::faults::{Faults, Injector, Strike};

/// What options, or else the environment, ask for.
#[derive(Debug)]
pub(super) struct Overrides {
    pub(super) faults: Faults,
    pub(super) checksums: bool,
    pub(super) cores: Option<NonZeroU32>,
}

impl Overrides {
    /// # Errors
    /// [`crate::Error::FaultPlan`], [`crate::Error::Setting`] for what the environment says.
    pub(super) fn of(options: &Options) -> Result<Self> {
        let checksums = options.checksums || checksums_from_env()?;
        let cores = options.cores.map_or_else(cores_from_env, |cores| Ok(Some(cores)))?;
        Ok(Self { faults: options.faults.or_from_env()?, checksums, cores })
    }
}

impl Communicator {
    /// The faults that were injected into this rank, in this process, in the order in which they struck; of very many the first
    /// thousand. See [`crate::faults`].
    #[must_use]
    pub fn strikes(&self) -> Vec<Strike> {
        self.fabric().injector().map_or_else(Vec::new, |injector| injector.strikes())
    }

    /// Has this new communicator do what is asked for, and suffer what is planned for its rank, which may be a thread among others of its
    /// process.
    pub(super) fn apply(&self, overrides: &Overrides, is_thread: bool) {
        if overrides.checksums {
            self.fabric().take_checksums();
        }
        let fabric = self.fabric();
        if let Some(injector) = Injector::new(&overrides.faults, fabric.rank(), is_thread) {
            let told = fabric.world().control().faults(fabric.rank());
            fabric.inject(Arc::new(injector.telling(told)));
        }
    }
}
