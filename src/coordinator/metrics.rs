//! The figures of a coordinator, in the format of Prometheus.

use std::fmt;

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
    /// The state of the communicator.
    pub state: CommState,
    /// The epoch of the communicator.
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

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uptime_ms, connections: [devices, clients, unknown], free, allocated, .. } = self;
        let (seconds, thousandths) = (uptime_ms / 1000, uptime_ms % 1000);
        write!(
            f,
            "# HELP shmccl_coordinator_uptime_seconds Time since the coordinator started.\n\
             # TYPE shmccl_coordinator_uptime_seconds gauge\n\
             shmccl_coordinator_uptime_seconds {seconds}.{thousandths:03}\n\
             # HELP shmccl_connections Open connections with the coordinator.\n\
             # TYPE shmccl_connections gauge\n\
             shmccl_connections{{role=\"device\"}} {devices}\n\
             shmccl_connections{{role=\"client\"}} {clients}\n\
             shmccl_connections{{role=\"unknown\"}} {unknown}\n\
             # HELP shmccl_devices Devices of the pool.\n\
             # TYPE shmccl_devices gauge\n\
             shmccl_devices{{state=\"free\"}} {free}\n\
             shmccl_devices{{state=\"allocated\"}} {allocated}\n\
             # HELP shmccl_communicators Communicators that have not ended.\n\
             # TYPE shmccl_communicators gauge\n"
        )?;
        for state in CommState::LIVING {
            let (name, is_in) = (state.to_string().replace(' ', "_"), |it: &&CommMetrics| it.state == state);
            let count = self.comms.iter().filter(is_in).count();
            writeln!(f, "shmccl_communicators{{state=\"{name}\"}} {count}")?;
        }
        f.write_str(
            "# HELP shmccl_communicator_epoch Epoch of a communicator.\n\
             # TYPE shmccl_communicator_epoch gauge\n",
        )?;
        for CommMetrics { comm, epoch, .. } in &self.comms {
            writeln!(f, "shmccl_communicator_epoch{{communicator=\"{comm}\"}} {epoch}")?;
        }
        f.write_str(
            "# HELP shmccl_communicator_devices Devices of a communicator.\n\
             # TYPE shmccl_communicator_devices gauge\n",
        )?;
        for CommMetrics { comm, devices, .. } in &self.comms {
            writeln!(f, "shmccl_communicator_devices{{communicator=\"{comm}\"}} {devices}")?;
        }
        self.counts.write(f)
    }
}

impl CoordinatorCounters {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registered, lost, restarted, joined, formed, recovered, .. } = self;
        let Self { grown, started, succeeded, failed, answered, refused, .. } = self;
        write!(
            f,
            "# HELP shmccl_devices_registered_total Devices that have connected, some of them again.\n\
             # TYPE shmccl_devices_registered_total counter\n\
             shmccl_devices_registered_total {registered}\n\
             # HELP shmccl_devices_lost_total Devices that have died, hung up, or were dropped because they hang.\n\
             # TYPE shmccl_devices_lost_total counter\n\
             shmccl_devices_lost_total {lost}\n\
             # HELP shmccl_devices_restarted_total Devices that were started in the place of others that had died.\n\
             # TYPE shmccl_devices_restarted_total counter\n\
             shmccl_devices_restarted_total {restarted}\n\
             # HELP shmccl_devices_joined_total Devices that have joined a communicator after its first epoch.\n\
             # TYPE shmccl_devices_joined_total counter\n\
             shmccl_devices_joined_total {joined}\n\
             # HELP shmccl_epochs_begun_total Epochs that have begun, by what they began with.\n\
             # TYPE shmccl_epochs_begun_total counter\n\
             shmccl_epochs_begun_total{{cause=\"init\"}} {formed}\n\
             shmccl_epochs_begun_total{{cause=\"loss\"}} {recovered}\n\
             shmccl_epochs_begun_total{{cause=\"growth\"}} {grown}\n\
             # HELP shmccl_groups_started_total Groups of calls that were started.\n\
             # TYPE shmccl_groups_started_total counter\n\
             shmccl_groups_started_total {started}\n\
             # HELP shmccl_groups_ended_total Groups of calls that have ended.\n\
             # TYPE shmccl_groups_ended_total counter\n\
             shmccl_groups_ended_total{{outcome=\"succeeded\"}} {succeeded}\n\
             shmccl_groups_ended_total{{outcome=\"failed\"}} {failed}\n\
             # HELP shmccl_requests_total Requests of clients that were dealt with.\n\
             # TYPE shmccl_requests_total counter\n\
             shmccl_requests_total{{outcome=\"answered\"}} {answered}\n\
             shmccl_requests_total{{outcome=\"refused\"}} {refused}\n"
        )
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
