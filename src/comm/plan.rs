//! What goes wrong in a communicator on purpose.

use std::sync::Arc;

use super::Communicator;
use crate::faults::{Faults, Injector, Strike};

impl Communicator {
    /// The faults that were injected into this rank, in this process, in the order in which they struck; of very many the first
    /// thousand. See [`crate::faults`].
    #[must_use]
    pub fn strikes(&self) -> Vec<Strike> {
        self.fabric().injector().map_or_else(Vec::new, |injector| injector.strikes())
    }

    /// Has this new communicator suffer what is planned for its rank, which may be a thread among others of its process.
    pub(super) fn plan(&self, faults: &Faults, is_thread: bool) {
        if let Some(injector) = Injector::new(faults, self.fabric().rank(), is_thread) {
            self.fabric().inject(Arc::new(injector));
        }
    }
}
