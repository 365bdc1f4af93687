//! What the launcher tells the device processes of a measuring job to do.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::collective::settings::Settings;
use super::contest::Effort;
use super::matrix;
use crate::flags::ProxyPlace;
use crate::perf::test::{Test, TestChannel};

/// The environment variable that carries the plan, as JSON.
pub(crate) const VARIABLE: &str = "SHMCCL_PERF_PLAN";

/// An idle proxy polls for a millisecond before it sleeps.
const PROXIES_ASLEEP_AFTER: Duration = Duration::from_millis(3);

/// One job: every rank does the same tests, in the same order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// What to measure, and over which channel.
    pub(crate) tests: Vec<(Test, Option<TestChannel>)>,
    /// Sizes, for the tests that have them.
    pub(crate) sizes: Vec<u64>,
    /// Operations to time per figure, where the user said how many.
    pub(crate) iters: Option<u64>,
    /// Operations before the clock starts, where the user said how many.
    pub(crate) warmup: Option<u64>,
    /// Whether data are verified.
    pub(crate) check: bool,
    /// Whether ranks 0 and 1 share a core; the launcher's finding.
    pub(crate) one_core: bool,
    /// Milliseconds to spend on a figure where the user did not say how many operations.
    pub(crate) figure_ms: u64,
    /// Milliseconds to go on for at most, where a figure has too few samples for a 99th percentile.
    pub(crate) patience_ms: u64,
    /// The only test that is given so long, where the percentiles of one only are shown.
    pub(crate) patient: Option<Test>,
    /// Where proxies run.
    pub(crate) proxy: ProxyPlace,
    /// What collective tests are to measure.
    pub(crate) collective: Option<Settings>,
    /// What a matrix is to show.
    pub(crate) matrix: Option<matrix::settings::Settings>,
}

impl Plan {
    /// A job that starts and ends.
    pub(crate) fn of_nothing() -> Self {
        Self {
            tests: Vec::new(),
            sizes: Vec::new(),
            iters: None,
            warmup: None,
            check: true,
            one_core: false,
            figure_ms: 0,
            patience_ms: 0,
            patient: None,
            proxy: ProxyPlace::Thread,
            collective: None,
            matrix: None,
        }
    }

    /// Bytes of heap that the job needs on every rank.
    pub(crate) fn heap_len(&self) -> u64 {
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        if self.collective.is_some() {
            // Inputs and outputs, what the library keeps for itself (up to an eighth of the heap), flags and times.
            return (pages(largest).saturating_mul(2).saturating_add(64 << 20) / 7).saturating_mul(8);
        }
        // Outgoing, incoming, what a peer sends meanwhile, packets twice over in two halves, flags and small buffers.
        let has_packets = self.tests.iter().any(|(test, _)| *test == Test::PacketLatency);
        let packets = if has_packets { largest.saturating_mul(4) } else { 0 };
        pages(largest).saturating_mul(3).saturating_add(packets).saturating_add(16 << 20)
    }

    /// How much to measure for one figure.
    pub(crate) fn effort(&self, test: Test, channel: Option<TestChannel>) -> Effort {
        let is_patient = self.patient.is_none_or(|patient| patient == test);
        let rest = if channel == Some(TestChannel::Port) { PROXIES_ASLEEP_AFTER } else { Duration::ZERO };
        Effort {
            iters: self.iters,
            warmup: self.warmup,
            time: Duration::from_millis(self.figure_ms),
            patience: if is_patient { Duration::from_millis(self.patience_ms) } else { Duration::ZERO },
            rest,
        }
    }
}

/// `len` in whole pages.
fn pages(len: u64) -> u64 {
    len.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}
