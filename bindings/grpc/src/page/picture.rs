//! The picture of the pool and of all jobs of this user, as the page draws it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shmccl::coordinator::{CommState, CommStatus, DeviceId, DeviceStatus};
use shmccl::observe::{Job, RankReport, RankWork, Report};

use crate::connections::{Connections, Pace};

/// How long a device is shown that is lost.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Paints one picture after the other.
pub(super) struct Painter {
    connections: Connections,
    /// What each process had done when it was looked at last, and when that was.
    done: BTreeMap<u32, (RankWork, Instant)>,
    /// The devices that were there, and since when they are not.
    known: BTreeMap<DeviceId, (DeviceStatus, Option<Instant>)>,
}

/// What the coordinator tells.
struct PoolState {
    devices: Vec<DeviceStatus>,
    comms: Vec<CommStatus>,
}

impl Painter {
    pub(super) fn new(connections: Connections) -> Self {
        Self { connections, done: BTreeMap::new(), known: BTreeMap::new() }
    }

    /// Returns the picture of this moment, as JSON.
    pub(super) async fn paint(&mut self) -> String {
        let asked = self
            .connections
            .ask(Pace::Quick, |client| Ok(PoolState { devices: client.devices()?, comms: client.list()? }));
        let pool = asked.await.ok();
        let reports = tokio::task::spawn_blocking(all_reports).await.unwrap_or_default();
        let ranks: BTreeMap<u32, &RankReport> = reports
            .iter()
            .flat_map(|report| &report.ranks)
            .filter_map(|rank| Some((rank.pid?, rank)))
            .collect();
        let rates = self.rates(&ranks);
        let has_coordinator = pool.is_some();
        let PoolState { devices, comms } =
            pool.unwrap_or(PoolState { devices: Vec::new(), comms: Vec::new() });
        if has_coordinator {
            self.remember(&devices);
        }
        let tiles = self.known.values().map(|(device, gone)| {
            let rank = ranks.get(&device.device.get()).copied();
            tile(device, gone.is_some(), &comms, rank, rates.get(&device.device.get()))
        });
        let tiles: Vec<_> = tiles.collect();
        let is_device =
            |rank: &RankReport| rank.pid.is_some_and(|pid| self.known.contains_key(&DeviceId::new(pid)));
        let jobs: Vec<_> = reports
            .iter()
            .filter(|report| !report.ranks.iter().any(is_device))
            .map(|report| job(report, &rates))
            .collect();
        let comms: Vec<_> = comms.iter().map(comm).collect();
        json!({ "coordinator": has_coordinator, "devices": tiles, "comms": comms, "jobs": jobs }).to_string()
    }

    /// Returns how many bytes per second each process has put into operations since the last look.
    fn rates(&mut self, ranks: &BTreeMap<u32, &RankReport>) -> BTreeMap<u32, f64> {
        let now = Instant::now();
        let rate = |(pid, rank): (&u32, &&RankReport)| {
            let (before, at) = self.done.get(pid)?;
            let seconds = now.duration_since(*at).as_secs_f64().max(1e-3);
            Some((*pid, bytes_between(before, &rank.work) / seconds))
        };
        let rates = ranks.iter().filter_map(rate).collect();
        self.done = ranks.iter().map(|(pid, rank)| (*pid, (rank.work, now))).collect();
        rates
    }

    /// Notes which devices there are, and which have gone.
    fn remember(&mut self, devices: &[DeviceStatus]) {
        for (device, gone) in self.known.values_mut() {
            let is_there = devices.iter().any(|it| it.device == device.device);
            *gone = if is_there { None } else { gone.or_else(|| Some(Instant::now())) };
        }
        self.known.retain(|_, (_, gone)| gone.is_none_or(|gone| gone.elapsed() < REMEMBERED));
        self.known.extend(devices.iter().map(|device| (device.device, (*device, None))));
    }
}

fn all_reports() -> Vec<Report> {
    Job::newest().into_iter().filter_map(|job| job.report().ok()).collect()
}

/// Returns the bytes of operations between two looks; short ones count by their mean.
fn bytes_between(before: &RankWork, now: &RankWork) -> f64 {
    let operations = now.operations.saturating_sub(before.operations);
    let large = now.large_operations.saturating_sub(before.large_operations);
    let short = operations.saturating_sub(large).saturating_mul(now.small_len);
    now.large_bytes.saturating_sub(before.large_bytes).saturating_add(short) as f64
}

fn tile(
    device: &DeviceStatus,
    is_gone: bool,
    comms: &[CommStatus],
    rank: Option<&RankReport>,
    rate: Option<&f64>,
) -> Value {
    let comm = comms.iter().find(|comm| comm.devices.contains(&device.device));
    let is_lost = is_gone || comm.is_some_and(|comm| comm.lost.contains(&device.device));
    let state = match comm.map(|comm| comm.state) {
        _ if is_lost => "lost",
        _ if rank.is_some_and(|rank| rank.is_stopped) => "stopped",
        None => "free",
        Some(CommState::Ready) => "ready",
        Some(CommState::Failed) => "failed",
        Some(_) => "busy",
    };
    json!({
        "id": device.device.get(),
        "state": state,
        "comm": comm.map(|comm| comm.comm.get()),
        "rank": comm.and_then(|comm| comm.devices.iter().position(|it| *it == device.device)),
        "mib": (device.range.max - device.range.min) >> 20,
        "does": rank.and_then(does).filter(|_| !is_lost),
        "beat": rank.and_then(beat).filter(|_| !is_lost),
        "rate": rate.filter(|_| !is_lost),
    })
}

fn comm(comm: &CommStatus) -> Value {
    let last = comm.last.as_ref();
    json!({
        "comm": comm.comm.get(),
        "state": comm.state.to_string(),
        "epoch": comm.epoch,
        "devices": comm.devices.len(),
        "lost": comm.lost.iter().map(|device| device.get()).collect::<Vec<_>>(),
        "group": last.map(|last| last.group),
        "failure": comm.why.as_ref().or(last.and_then(|last| last.failure.as_ref())),
    })
}

fn job(report: &Report, rates: &BTreeMap<u32, f64>) -> Value {
    let ranks = report.ranks.iter().map(|rank| {
        let life = format!("{:?}", rank.life).to_lowercase();
        json!({
            "id": rank.pid,
            "rank": rank.rank.get(),
            "state": match life.as_str() {
                _ if rank.is_stopped => "stopped",
                "alive" if rank.call.is_some() => "busy",
                "alive" => "ready",
                "lost" => "lost",
                _ => "free",
            },
            "does": does(rank),
            "beat": beat(rank),
            "rate": rank.pid.and_then(|pid| rates.get(&pid)),
        })
    });
    json!({
        "job": format!("{:016x}", report.job),
        "epoch": report.epoch,
        "ended": report.why_ended(),
        "ranks": ranks.collect::<Vec<_>>(),
    })
}

/// Tells the operation that a rank is in, or the last one.
fn does(rank: &RankReport) -> Option<String> {
    let last = || rank.last.as_ref().map(|last| format!("last: {last}"));
    rank.call.as_ref().map(ToString::to_string).or_else(last)
}

/// Returns the age of the last heartbeat in whole seconds, so that a picture in which nothing
/// happens stays the same.
fn beat(rank: &RankReport) -> Option<u64> {
    rank.heartbeat.map(|age| age.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmccl::coordinator::{AddressRange, CommId};

    fn device(number: u32) -> DeviceStatus {
        let range = AddressRange { min: 0x1000, max: 0x10_1000 };
        DeviceStatus { device: DeviceId::new(number), range, comm: None }
    }

    #[test]
    fn a_device_that_is_lost_is_shown_as_lost_and_in_its_communicator() {
        let status = CommStatus {
            comm: CommId::new(3),
            state: CommState::Failed,
            epoch: 1,
            devices: vec![DeviceId::new(7), DeviceId::new(9)],
            lost: vec![DeviceId::new(9)],
            last: None,
            why: Some("device 9 was lost".to_owned()),
        };
        let lost = tile(&device(9), true, std::slice::from_ref(&status), None, None);
        assert_eq!((lost["state"].as_str(), lost["rank"].as_u64()), (Some("lost"), Some(1)));
        let left = tile(&device(7), false, &[status], None, None);
        assert_eq!(left["state"], "failed");
        assert_eq!(tile(&device(8), false, &[], None, None)["state"], "free");
    }

    #[test]
    fn bytes_are_those_of_long_operations_and_short_ones_by_their_mean() {
        let (before, mut now) = (RankWork::default(), RankWork::default());
        (now.operations, now.large_operations, now.large_bytes, now.small_len) = (5, 1, 4000, 8);
        assert!((bytes_between(&before, &now) - 4032.0).abs() < 1e-9);
        assert!(bytes_between(&now, &before).abs() < 1e-9);
    }
}
