//! What is asked for by options or the environment: checks, what is to go wrong on purpose, and how many cores to count on.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::Communicator;
use crate::bootstrap::{Options, checksums_from_env, cores_from_env};
use crate::error::Result;
use crate::faults::{FaultHit, Faults, Injector};

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
    pub fn fault_hits(&self) -> Vec<FaultHit> {
        self.context().injector().map_or_else(Vec::new, |injector| injector.fault_hits())
    }

    /// Has this new communicator do what is asked for, and suffer what is planned for its rank, which may be a thread among others of its
    /// process.
    pub(super) fn apply(&self, overrides: &Overrides, is_thread: bool) {
        if overrides.checksums {
            self.context().take_checksums();
        }
        let context = self.context();
        if let Some(injector) = Injector::new(&overrides.faults, context.rank(), is_thread) {
            let told = context.mapped().control().faults(context.rank());
            context.plan_faults(Arc::new(injector.telling(told)));
        }
    }
}
