//! The part of a table that matters to one communicator.
//!
//! The first question, whether data travel with the announcement, is asked at every call, and of calls that take less than a
//! microsecond: it is one comparison. The other is asked when the announcements are there, and searches a short list.

use super::Tuning;
use super::table::{BufferKind, ONE_SHOT_LEN, Step, at};
use crate::collective::call::{Algorithm, Operation};

/// Operations have codes from 1 on.
const CODES: usize = Operation::ALL.len() + 1;

/// What one communicator takes.
#[derive(Debug)]
pub(crate) struct CommTable {
    /// By operation: shorter contributions travel with the announcement.
    eager_below: [u64; CODES],
    /// By operation and kind of buffers.
    steps: [[Box<[Step]>; 2]; CODES],
    /// Whether it is left to measurement how short all-reduces go.
    is_on_trial: bool,
}

/// All-reduces of more bytes, of those that travel with the announcement, may be left to measurement.
const TRIED_ABOVE: u64 = 4 << 10;

impl CommTable {
    /// Those among `n_members`.
    pub(crate) fn new(tuning: &Tuning, n_members: usize) -> Self {
        // Alone there is nothing to choose.
        let tuning = if n_members > 1 { tuning } else { &Tuning::default() };
        let n_ranks = u32::try_from(n_members).unwrap_or(u32::MAX);
        let steps_of =
            |operation, buffers| tuning.table.steps(operation, n_ranks, tuning.oversubscribed, buffers);
        let mut table = Self {
            eager_below: [0; CODES],
            steps: std::array::from_fn(|_| Default::default()),
            is_on_trial: n_members == 2
                && !tuning.oversubscribed
                && !tuning.table.has_case(Operation::AllReduce, tuning.oversubscribed),
        };
        for operation in Operation::ALL {
            let both = BufferKind::ALL.map(|buffers| steps_of(operation, buffers));
            let code = operation as usize;
            table.eager_below[code] = both.into_iter().map(eager_below).min().unwrap_or(0);
            table.steps[code] = both.map(Box::from);
        }
        table
    }

    /// Whether data of an `operation` to which no rank contributes more than `len` bytes travel with its announcement.
    #[inline]
    pub(crate) fn is_eager(&self, operation: Operation, len: u64) -> bool {
        len < self.eager_below[operation as usize]
    }

    /// Whether an `operation` to which no rank contributes more than `len` bytes travels with its announcement only where that is
    /// quicker, by measurement: where no table says it.
    #[inline]
    pub(crate) fn is_on_trial(&self, operation: Operation, len: u64) -> bool {
        len > TRIED_ABOVE && operation == Operation::AllReduce && self.is_on_trial
    }

    /// What does an `operation` to which no rank contributes more than `len` bytes.
    pub(crate) fn algorithm(&self, operation: Operation, buffers: BufferKind, len: u64) -> Algorithm {
        at(&self.steps[operation as usize][buffers as usize], len)
    }
}

/// Where `steps` leave the one shot that travels with the announcement.
fn eager_below(steps: &[Step]) -> u64 {
    let leading = steps.iter().take_while(|step| step.algorithm == Algorithm::OneShot);
    leading.last().map_or(0, |step| step.up_to.unwrap_or(u64::MAX).min(ONE_SHOT_LEN) + 1)
}
