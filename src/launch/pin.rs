//! Decides which process runs on which core.
//!
//! With no more ranks than cores, each rank has a core of its own. The proxy thread of a device
//! shares the device's core: the two hand over by yielding, which is quicker than a wake-up across
//! cores. More ranks than cores share them in turn. Cores that share a physical core come last.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::bootstrap::{Placement, ProxyMode};
use crate::error::DeviceName;

/// The cores of a job's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinPlan {
    n_ranks: usize,
    proxy: ProxyMode,
    /// The cores to use, best first; never empty.
    cores: Vec<usize>,
    pinned: bool,
}

impl PinPlan {
    /// Plans for the cores in the calling thread's affinity mask.
    pub(super) fn new(n_ranks: u32, proxy: ProxyMode, pin: bool) -> Self {
        let cores = allowed_cores();
        let pinned = pin && !cores.is_empty();
        let cores = if cores.is_empty() {
            (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
        } else {
            distinct_first(cores, sibling_index)
        };
        Self { n_ranks: n_ranks as usize, proxy, cores, pinned }
    }

    /// Returns the core of a process, and what shares it.
    #[must_use]
    pub fn placement(&self, device: DeviceName) -> Placement {
        let turn = self.turn(device);
        let cpu = if self.pinned { u32::try_from(self.cores[turn]).ok() } else { None };
        let devices = if self.pinned { self.devices(turn) } else { self.most_devices() };
        let proxies = match self.proxy {
            ProxyMode::Thread => devices,
            ProxyMode::Process if self.pinned => usize::from(self.turn(DeviceName::Proxy) == turn),
            ProxyMode::Process => usize::from(self.n_ranks >= self.cores.len()),
        };
        let count = |threads| u32::try_from(threads).unwrap_or(u32::MAX);
        Placement { cpu, devices: count(devices), proxies: count(proxies) }
    }

    /// Moves the calling thread to the core of a process that it is about to start. Dropping the
    /// value moves it back.
    ///
    /// A process inherits the affinity mask of the thread that starts it, and passes it on to
    /// everything that it starts. Moving it later would miss those. A core that has gone away is
    /// not an error: the system then chooses one.
    pub(super) fn borrow_core(&self, device: DeviceName) -> Option<BorrowedCore> {
        let cpu = self.placement(device).cpu?;
        let before = sched_getaffinity(this_thread()).ok()?;
        let mut core = CpuSet::new();
        core.set(cpu as usize).ok()?;
        sched_setaffinity(this_thread(), &core).ok()?;
        Some(BorrowedCore { before })
    }

    /// Returns the index of a process's core.
    fn turn(&self, device: DeviceName) -> usize {
        let id = match device {
            DeviceName::Rank(rank) => rank.index(),
            DeviceName::Proxy => self.n_ranks,
        };
        id % self.cores.len()
    }

    /// Counts the device threads on the core with this index.
    fn devices(&self, turn: usize) -> usize {
        (0..self.n_ranks).filter(|rank| rank % self.cores.len() == turn).count()
    }

    fn most_devices(&self) -> usize {
        self.n_ranks.div_ceil(self.cores.len())
    }

    /// Counts the threads that may spin on the fullest core, proxies included.
    fn most_spinners(&self) -> usize {
        let n_cores = self.cores.len();
        match self.proxy {
            ProxyMode::Thread if self.pinned => 2 * self.most_devices(),
            ProxyMode::Thread => (2 * self.n_ranks).div_ceil(n_cores),
            // The service's turn comes behind that of the last rank.
            ProxyMode::Process => (self.n_ranks + 1).div_ceil(n_cores),
        }
    }
}

impl std::fmt::Display for PinPlan {
    /// Describes the plan in one line: the core of each process, and how many share a core.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (n_ranks, n_cores) = (self.n_ranks, self.cores.len());
        let in_order = self.cores.iter().enumerate().all(|(index, &core)| index == core);
        let place = match (self.pinned, n_ranks == 1, n_ranks <= n_cores, in_order) {
            (false, ..) => "not pinned".to_owned(),
            (_, true, ..) => format!("on core {}", self.cores[0]),
            (_, _, true, true) => "rank r on core r".to_owned(),
            (_, _, true, false) => format!("rank r on core {:?}[r]", &self.cores[..n_ranks]),
            (_, _, _, true) => format!("rank r on core r mod {n_cores}"),
            _ => format!("rank r on core {:?}[r mod {n_cores}]", self.cores),
        };
        let proxies = match self.proxy {
            _ if !self.pinned => String::new(),
            ProxyMode::Thread => ", proxies on the core of their device".to_owned(),
            ProxyMode::Process => {
                format!(", proxy service on core {}", self.cores[self.turn(DeviceName::Proxy)])
            }
        };
        let spinners = plural(self.most_spinners(), "spinner");
        let (ranks, cores) = (plural(n_ranks, "rank"), plural(n_cores, "core"));
        write!(f, "{ranks} on {cores}: {place}, {spinners} per core{proxies}")
    }
}

/// Keeps the calling thread on the core of another process while it lives.
#[derive(Debug)]
pub(super) struct BorrowedCore {
    before: CpuSet,
}

impl Drop for BorrowedCore {
    fn drop(&mut self) {
        let _ = sched_setaffinity(this_thread(), &self.before);
    }
}

const fn this_thread() -> Pid {
    Pid::from_raw(0)
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Returns the cores that the calling thread may use, or none where the system does not say.
fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(this_thread()) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect()
}

/// Returns the index of a core among the hyper-threads of its physical core: 0 for the first.
fn sibling_index(core: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().take_while(|&sibling| sibling < core).count()
}

/// Puts cores that are the first of their physical core ahead of the others.
fn distinct_first(mut cores: Vec<usize>, sibling_index: impl Fn(usize) -> usize) -> Vec<usize> {
    cores.sort_by_cached_key(|&core| (sibling_index(core), core));
    cores
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;

    fn plan(n_ranks: usize, proxy: ProxyMode, cores: &[usize], pinned: bool) -> PinPlan {
        PinPlan { n_ranks, proxy, cores: cores.to_vec(), pinned }
    }

    #[test]
    fn ranks_take_turns_when_there_are_more_of_them_than_cores() {
        let plan = plan(4, ProxyMode::Process, &[0, 1], true);
        let cpus: Vec<_> =
            (0..4).map(|rank| plan.placement(DeviceName::Rank(Rank::known(rank))).cpu.unwrap()).collect();
        assert_eq!(cpus, [0, 1, 0, 1]);
        assert_eq!(plan.placement(DeviceName::Proxy), Placement { cpu: Some(0), devices: 2, proxies: 1 });
        let rank_1 = plan.placement(DeviceName::Rank(Rank::known(1)));
        assert_eq!(rank_1, Placement { cpu: Some(1), devices: 2, proxies: 0 });
    }

    #[test]
    fn the_plan_is_told_in_one_line() {
        let line = |n_ranks, proxy, cores: &[usize], pinned| plan(n_ranks, proxy, cores, pinned).to_string();
        assert_eq!(
            line(4, ProxyMode::Thread, &[0, 1], true),
            "4 ranks on 2 cores: rank r on core r mod 2, 4 spinners per core, proxies on the core of their device"
        );
        assert_eq!(
            line(2, ProxyMode::Process, &[3, 7, 9], true),
            "2 ranks on 3 cores: rank r on core [3, 7][r], 1 spinner per core, proxy service on core 9"
        );
        assert_eq!(
            line(3, ProxyMode::Process, &[0, 1], false),
            "3 ranks on 2 cores: not pinned, 2 spinners per core"
        );
        assert_eq!(
            line(1, ProxyMode::Thread, &[0], true),
            "1 rank on 1 core: on core 0, 2 spinners per core, proxies on the core of their device"
        );
    }

    #[test]
    fn hyper_thread_siblings_come_after_whole_cores() {
        assert_eq!(distinct_first(vec![0, 1, 2, 3], |core| core % 2), [0, 2, 1, 3]);
        assert_eq!(distinct_first(vec![0, 1, 2, 3], |core| core / 2), [0, 1, 2, 3]);
    }

    #[test]
    fn without_pinning_a_rank_is_told_the_busiest_core() {
        let plan = plan(3, ProxyMode::Thread, &[0, 1], false);
        assert_eq!(
            plan.placement(DeviceName::Rank(Rank::known(2))),
            Placement { cpu: None, devices: 2, proxies: 2 }
        );
    }
}
