//! The figures of a coordinator, in the format of Prometheus.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

use super::id::CommId;
use super::request::CommState;

/// The figures of a coordinator. Counters begin with it; its devices may be older.
///
/// It displays as the text exposition format of Prometheus, version 0.0.4.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Connections of devices, of clients, and of unidentified peers.
    pub connections: [u64; 3],
    /// Devices that belong to no communicator.
    pub free: u64,
    /// Devices that belong to one.
    pub allocated: u64,
    /// The communicators that have not ended.
    pub comms: Vec<CommMetrics>,
    /// The counters.
    pub counts: CoordinatorCounters,
}

/// The figures of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommMetrics {
    /// The communicator.
    pub comm: CommId,
    /// Its state.
    pub state: CommState,
    /// Its epoch.
    pub epoch: u64,
    /// How many devices it has.
    pub devices: u64,
}

/// The counters of a coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorCounters {
    /// Devices that have connected, some of them again.
    pub registered: u64,
    /// Devices that have died, hung up, or were dropped because they hang.
    pub lost: u64,
    /// Devices that were started to replace others that had died.
    pub restarted: u64,
    /// Devices that have joined a communicator after its first epoch.
    pub joined: u64,
    /// Epochs that have begun with a communicator.
    pub formed: u64,
    /// Epochs that have begun after a loss.
    pub recovered: u64,
    /// Epochs that have begun because devices joined.
    pub grown: u64,
    /// Groups that were started.
    pub started: u64,
    /// Groups that all members have executed.
    pub succeeded: u64,
    /// Groups that have failed.
    pub failed: u64,
    /// Requests that were done.
    pub answered: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// One metric with its samples, each with its labels and its figure.
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    samples: Vec<(String, String)>,
}

impl Family<'_> {
    /// Returns a metric of one sample.
    fn plain<'a>(name: &'a str, help: &'a str, figure: impl Display) -> Family<'a> {
        Family { name, help, samples: vec![(String::new(), figure.to_string())] }
    }

    /// Returns a metric of several samples, with a label for each.
    fn by<'a, K: Display, F: Display>(
        name: &'a str,
        help: &'a str,
        label: &str,
        samples: impl IntoIterator<Item = (K, F)>,
    ) -> Family<'a> {
        // No value of a label needs to be escaped.
        let sample = |(kind, figure): (K, F)| (format!("{{{label}=\"{kind}\"}}"), figure.to_string());
        Family { name, help, samples: samples.into_iter().map(sample).collect() }
    }
}

impl Display for Family<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, help, samples } = self;
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
        samples.iter().try_for_each(|(labels, figure)| writeln!(f, "{name}{labels} {figure}"))
    }
}

impl Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gauges().iter().chain(&self.counts.families()).try_for_each(|family| family.fmt(f))
    }
}

impl Metrics {
    fn gauges(&self) -> [Family<'_>; 6] {
        let in_state = |state: CommState| self.comms.iter().filter(|comm| comm.state == state).count();
        let states = CommState::ALL.into_iter().filter(|state| !state.has_ended());
        let states = states.map(|state| (state.to_string().replace(' ', "_"), in_state(state)));
        let (seconds, thousandths) = (self.uptime_ms / 1000, self.uptime_ms % 1000);
        [
            Family::plain(
                "shmccl_coordinator_uptime_seconds",
                "Time since the coordinator started.",
                format_args!("{seconds}.{thousandths:03}"),
            ),
            Family::by(
                "shmccl_connections",
                "Open connections with the coordinator.",
                "role",
                ["device", "client", "unknown"].into_iter().zip(self.connections),
            ),
            Family::by(
                "shmccl_devices",
                "Devices of the pool.",
                "state",
                [("free", self.free), ("allocated", self.allocated)],
            ),
            Family::by("shmccl_communicators", "Communicators that have not ended.", "state", states),
            Family::by(
                "shmccl_communicator_epoch",
                "Epoch of a communicator.",
                "communicator",
                self.comms.iter().map(|comm| (comm.comm, comm.epoch)),
            ),
            Family::by(
                "shmccl_communicator_devices",
                "Devices of a communicator.",
                "communicator",
                self.comms.iter().map(|comm| (comm.comm, comm.devices)),
            ),
        ]
    }
}

impl CoordinatorCounters {
    fn families(&self) -> [Family<'_>; 8] {
        [
            Family::plain(
                "shmccl_devices_registered_total",
                "Devices that have connected, some of them again.",
                self.registered,
            ),
            Family::plain(
                "shmccl_devices_lost_total",
                "Devices that have died, hung up, or were dropped because they hang.",
                self.lost,
            ),
            Family::plain(
                "shmccl_devices_restarted_total",
                "Devices that were started in the place of others that had died.",
                self.restarted,
            ),
            Family::plain(
                "shmccl_devices_joined_total",
                "Devices that have joined a communicator after its first epoch.",
                self.joined,
            ),
            Family::by(
                "shmccl_epochs_begun_total",
                "Epochs that have begun, by what they began with.",
                "cause",
                [("init", self.formed), ("loss", self.recovered), ("growth", self.grown)],
            ),
            Family::plain("shmccl_groups_started_total", "Groups of calls that were started.", self.started),
            Family::by(
                "shmccl_groups_ended_total",
                "Groups of calls that have ended.",
                "outcome",
                [("succeeded", self.succeeded), ("failed", self.failed)],
            ),
            Family::by(
                "shmccl_requests_total",
                "Requests of clients that were dealt with.",
                "outcome",
                [("answered", self.answered), ("refused", self.refused)],
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_told_with_its_help_its_type_and_a_line_for_each_sample() {
        let comms =
            vec![CommMetrics { comm: CommId::new(7), state: CommState::InProgress, epoch: 3, devices: 4 }];
        let counts = CoordinatorCounters { succeeded: 5, failed: 1, ..CoordinatorCounters::default() };
        let text = Metrics { uptime_ms: 61_005, comms, counts, ..Metrics::default() }.to_string();
        for expected in [
            "# HELP shmccl_coordinator_uptime_seconds Time since the coordinator started.\n\
             # TYPE shmccl_coordinator_uptime_seconds gauge\n\
             shmccl_coordinator_uptime_seconds 61.005\n",
            "\nshmccl_communicators{state=\"in_progress\"} 1\n",
            "\nshmccl_communicator_epoch{communicator=\"7\"} 3\n",
            "# TYPE shmccl_groups_ended_total counter\n\
             shmccl_groups_ended_total{outcome=\"succeeded\"} 5\n\
             shmccl_groups_ended_total{outcome=\"failed\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }
}
