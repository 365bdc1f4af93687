//! What a rank sees of all ranks of its job.

use super::Communicator;
use crate::error::Result;
use crate::observe::Report;

impl Communicator {
    /// What all ranks of the job are doing at this moment, and who holds the others up: for whoever wants to know why a wait was an
    /// [`crate::Error::Timeout`], or takes so long. Ranks are named as the job numbers them. It costs the others nothing.
    ///
    /// # Errors
    /// [`crate::Error::Os`] when the segments cannot be read.
    pub fn report(&self) -> Result<Report> {
        Report::of(self.context().mapped())
    }
}
