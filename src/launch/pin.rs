//! Decides which process runs on which cores.
//!
//! With fewer processes than physical cores, each has a set of cores of its own, for threads that
//! its program may have. With no more ranks than cores, each rank has a core of its own. The proxy
//! thread of a device shares the device's cores: on one core the two hand over by yielding, which
//! is quicker than a wake-up across cores. More ranks than cores share them in turn. Cores of other
//! jobs come last (`cores.rs`), and so do cores that share a physical core.

use std::collections::BTreeSet;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::cores::{self, PhysicalCore};
use crate::bootstrap::{Placement, ProxyMode};
use crate::error::DeviceName;

/// The cores of a job's processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinning {
    n_ranks: usize,
    proxy: ProxyMode,
    /// The cores of each process in the order of ids, which begins again behind the last; never
    /// empty.
    sets: Vec<Vec<usize>>,
    /// How many cores there are.
    n_cores: usize,
    pinned: bool,
    /// The cores that other jobs run on.
    taken: BTreeSet<usize>,
}

impl Pinning {
    /// Assigns the cores in the calling thread's affinity mask, and claims them. Processes have
    /// `one_each`, or several where there are several for each.
    pub(super) fn new(n_ranks: u32, proxy: ProxyMode, pin: bool, one_each: bool) -> Self {
        let (cores, n_ranks) = (cores::allowed(), n_ranks as usize);
        if !pin || cores.is_empty() {
            let count = cores.iter().map(Vec::len).sum::<usize>();
            let count =
                if count > 0 { count } else { std::thread::available_parallelism().map_or(1, usize::from) };
            let (sets, taken) = ((0..count).map(|core| vec![core]).collect(), BTreeSet::new());
            return Self { n_ranks, proxy, sets, n_cores: count, pinned: false, taken };
        }
        let pin = |taken: &BTreeSet<usize>| Self::around(n_ranks, proxy, &cores, one_each, taken);
        cores::pin_around(&cores, pin, Self::firsts)
    }

    fn around(
        n_ranks: usize,
        proxy: ProxyMode,
        cores: &[PhysicalCore],
        one_each: bool,
        taken: &BTreeSet<usize>,
    ) -> Self {
        let is_taken = |core: &PhysicalCore| core.iter().any(|thread| taken.contains(thread));
        let services = usize::from(proxy == ProxyMode::Process);
        let mut usable: Vec<_> = cores.iter().collect();
        usable.sort_by_key(|core| is_taken(core));
        let n_free = usable.iter().take_while(|core| !is_taken(core)).count();
        if n_free >= n_ranks + services {
            usable.truncate(n_free);
        }
        let sets = if usable.len() >= n_ranks + services && !one_each {
            let service = usable.split_off(usable.len() - services);
            let share =
                |rank: usize| &usable[rank * usable.len() / n_ranks..(rank + 1) * usable.len() / n_ranks];
            let ranks = (0..n_ranks).map(share);
            ranks.chain((services > 0).then_some(&*service)).map(sorted).collect()
        } else {
            let mut threads: Vec<_> = cores
                .iter()
                .flat_map(|core| core.iter().enumerate().map(move |(index, thread)| (core, index, *thread)))
                .map(|(core, index, thread)| (taken.contains(&thread), is_taken(core), index, thread))
                .collect();
            threads.sort_unstable();
            threads.into_iter().map(|(.., thread)| vec![thread]).collect()
        };
        let n_cores = cores.iter().map(Vec::len).sum();
        Self { n_ranks, proxy, sets, n_cores, pinned: true, taken: taken.clone() }
    }

    /// Returns the first core of each process.
    fn firsts(&self) -> Vec<usize> {
        let services = usize::from(self.proxy == ProxyMode::Process);
        self.sets.iter().take(self.n_ranks + services).map(|set| set[0]).collect()
    }

    /// Returns the core of a process, and what shares it.
    #[must_use]
    pub fn placement(&self, device: DeviceName) -> Placement {
        let turn = self.turn(device);
        let cpu = match &*self.sets[turn] {
            [core] if self.pinned => u32::try_from(*core).ok(),
            _ => None,
        };
        let devices = if self.pinned { self.devices(turn) } else { self.most_devices() };
        let proxies = match self.proxy {
            ProxyMode::Thread => devices,
            ProxyMode::Process if self.pinned => usize::from(self.turn(DeviceName::Proxy) == turn),
            ProxyMode::Process => usize::from(self.n_ranks >= self.n_cores),
        };
        let count = |threads| u32::try_from(threads).unwrap_or(u32::MAX);
        Placement { cpu, devices: count(devices), proxies: count(proxies) }
    }

    /// Returns the cores that a process is pinned to; none where it is not.
    #[must_use]
    pub fn cores(&self, device: DeviceName) -> &[usize] {
        if self.pinned { &self.sets[self.turn(device)] } else { &[] }
    }

    /// Moves the calling thread to the cores of a process that it is about to start. Dropping the
    /// value moves it back.
    ///
    /// A process inherits the affinity mask of the thread that starts it, and passes it on to
    /// everything that it starts. Moving it later would miss those. Cores that have gone away are
    /// not an error: the system then chooses.
    pub(super) fn borrow_cores(&self, device: DeviceName) -> Option<BorrowedCores> {
        let mut cores = CpuSet::new();
        self.cores(device).first()?;
        self.cores(device).iter().try_for_each(|core| cores.set(*core)).ok()?;
        let before = sched_getaffinity(this_thread()).ok()?;
        sched_setaffinity(this_thread(), &cores).ok()?;
        Some(BorrowedCores { before })
    }

    /// Returns the index of a process's set of cores.
    fn turn(&self, device: DeviceName) -> usize {
        let id = match device {
            DeviceName::Rank(rank) => rank.index(),
            DeviceName::Proxy => self.n_ranks,
        };
        id % self.sets.len()
    }

    /// Counts the device threads on the cores with this index.
    fn devices(&self, turn: usize) -> usize {
        (0..self.n_ranks).filter(|rank| rank % self.sets.len() == turn).count()
    }

    fn most_devices(&self) -> usize {
        self.n_ranks.div_ceil(self.sets.len())
    }

    /// Counts the threads that may spin on the fullest core, proxies included.
    fn most_spinners(&self) -> usize {
        let least = self.sets.iter().map(Vec::len).min().unwrap_or(1);
        match self.proxy {
            ProxyMode::Thread if self.pinned => (2 * self.most_devices()).div_ceil(least),
            ProxyMode::Thread => (2 * self.n_ranks).div_ceil(self.n_cores),
            // The service's turn comes behind that of the last rank.
            ProxyMode::Process => (self.n_ranks + 1).div_ceil(self.sets.len()),
        }
    }

    /// Says which cores the ranks have.
    fn places(&self) -> String {
        let (n_ranks, n_sets) = (self.n_ranks, self.sets.len());
        let of_ranks = &self.sets[..n_ranks.min(n_sets)];
        if of_ranks.iter().any(|set| set.len() > 1) {
            let sets: Vec<_> = of_ranks.iter().map(|set| ranges(set)).collect();
            return match &*sets {
                [set] => format!("on cores {set}"),
                _ => format!("rank r on cores [{}][r]", sets.join("; ")),
            };
        }
        let cores: Vec<_> = of_ranks.iter().map(|set| set[0]).collect();
        let in_order = cores.iter().enumerate().all(|(index, &core)| index == core);
        match (n_ranks == 1, n_ranks <= n_sets, in_order) {
            (true, ..) => format!("on core {}", cores[0]),
            (_, true, true) => "rank r on core r".to_owned(),
            (_, true, false) => format!("rank r on core {cores:?}[r]"),
            (_, false, true) => format!("rank r on core r mod {n_sets}"),
            (_, false, false) => format!("rank r on core {cores:?}[r mod {n_sets}]"),
        }
    }
}

impl std::fmt::Display for Pinning {
    /// Describes it in one line: the cores of each process, how many share a core, and which cores
    /// have other jobs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.pinned { self.places() } else { "not pinned".to_owned() };
        let proxies = match self.proxy {
            _ if !self.pinned => String::new(),
            ProxyMode::Thread if self.sets.iter().all(|set| set.len() > 1) => {
                ", proxies on the cores of their device".to_owned()
            }
            ProxyMode::Thread => ", proxies on the core of their device".to_owned(),
            ProxyMode::Process => format!(", proxy service on {}", named(self.cores(DeviceName::Proxy))),
        };
        let spinners = plural(self.most_spinners(), "spinner");
        let (ranks, cores) = (plural(self.n_ranks, "rank"), plural(self.n_cores, "core"));
        write!(f, "{ranks} on {cores}: {place}, {spinners} per core{proxies}")?;
        match self.taken.iter().copied().collect::<Vec<_>>().as_slice() {
            [] => Ok(()),
            taken => write!(f, "; another job has claimed {}", named(taken)),
        }
    }
}

/// Keeps the calling thread on the cores of another process while it lives.
#[derive(Debug)]
pub(super) struct BorrowedCores {
    before: CpuSet,
}

impl Drop for BorrowedCores {
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

fn sorted(cores: &[&PhysicalCore]) -> Vec<usize> {
    let mut threads: Vec<_> = cores.iter().copied().flatten().copied().collect();
    threads.sort_unstable();
    threads
}

/// Writes `core 3` or `cores 0-3,8`.
fn named(cores: &[usize]) -> String {
    let noun = if cores.len() == 1 { "core" } else { "cores" };
    format!("{noun} {}", ranges(cores))
}

/// Writes numbers in order as `0-3,8`.
fn ranges(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;

    /// Assigns whole cores.
    fn pin_to(n_ranks: usize, proxy: ProxyMode, cores: &[usize], taken: &[usize]) -> Pinning {
        let cores: Vec<_> = cores.iter().map(|core| vec![*core]).collect();
        Pinning::around(n_ranks, proxy, &cores, false, &taken.iter().copied().collect())
    }

    fn unpinned(n_ranks: usize, proxy: ProxyMode, n_cores: usize) -> Pinning {
        let cores: Vec<_> = (0..n_cores).collect();
        let one_each = Pinning::around(
            n_ranks,
            proxy,
            &cores.iter().map(|core| vec![*core]).collect::<Vec<_>>(),
            true,
            &BTreeSet::new(),
        );
        Pinning { pinned: false, ..one_each }
    }

    fn sets(pinning: &Pinning) -> Vec<&[usize]> {
        (0..u32::try_from(pinning.n_ranks).unwrap())
            .map(|rank| pinning.cores(DeviceName::Rank(Rank::known(rank))))
            .collect()
    }

    #[test]
    fn ranks_take_turns_when_there_are_more_of_them_than_cores() {
        let pinning = pin_to(4, ProxyMode::Process, &[0, 1], &[]);
        let cpus: Vec<_> =
            (0..4).map(|rank| pinning.placement(DeviceName::Rank(Rank::known(rank))).cpu.unwrap()).collect();
        assert_eq!(cpus, [0, 1, 0, 1]);
        assert_eq!(pinning.placement(DeviceName::Proxy), Placement { cpu: Some(0), devices: 2, proxies: 1 });
        let rank_1 = pinning.placement(DeviceName::Rank(Rank::known(1)));
        assert_eq!(rank_1, Placement { cpu: Some(1), devices: 2, proxies: 0 });
    }

    #[test]
    fn fewer_ranks_than_cores_have_a_set_of_cores_each() {
        let cores: Vec<_> = (0..8).collect();
        assert_eq!(sets(&pin_to(2, ProxyMode::Thread, &cores, &[])), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        let uneven = pin_to(3, ProxyMode::Process, &cores, &[]);
        assert_eq!(sets(&uneven), [vec![0, 1], vec![2, 3], vec![4, 5, 6]]);
        assert_eq!(uneven.cores(DeviceName::Proxy), [7]);
        assert_eq!(uneven.placement(DeviceName::Rank(Rank::known(0))).cpu, None, "it may run on several");
        let threads = [vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]];
        let pin_to = |one_each| Pinning::around(2, ProxyMode::Thread, &threads, one_each, &BTreeSet::new());
        assert_eq!(sets(&pin_to(false)), [[0, 1, 4, 5], [2, 3, 6, 7]], "hyper-threads stay together");
        assert_eq!(sets(&pin_to(true)), [[0], [1]]);
    }

    #[test]
    fn a_job_begins_behind_the_cores_of_other_jobs_and_shares_them_where_it_has_to() {
        let beside =
            |n_ranks, cores: &[usize], taken: &[usize]| pin_to(n_ranks, ProxyMode::Thread, cores, taken);
        assert_eq!(sets(&beside(2, &[0, 1, 2, 3], &[0, 1])), [[2], [3]]);
        assert_eq!(sets(&beside(1, &[0, 1, 2, 3], &[0, 2])), [[1, 3]]);
        assert_eq!(sets(&beside(3, &[0, 1, 2, 3], &[0, 1])), [vec![2], vec![3], vec![0, 1]]);
        assert_eq!(sets(&beside(2, &[0, 1], &[0, 1])), [[0], [1]]);
        assert_eq!(sets(&beside(3, &[0, 1], &[0])), [[1], [0], [1]]);
    }

    #[test]
    fn the_pinning_is_told_in_one_line() {
        let line = |n_ranks, proxy, cores: &[usize], taken: &[usize]| {
            pin_to(n_ranks, proxy, cores, taken).to_string()
        };
        assert_eq!(
            line(4, ProxyMode::Thread, &[0, 1], &[]),
            "4 ranks on 2 cores: rank r on core r mod 2, 4 spinners per core, proxies on the core of their device"
        );
        assert_eq!(
            line(2, ProxyMode::Process, &[3, 7, 9], &[]),
            "2 ranks on 3 cores: rank r on core [3, 7][r], 1 spinner per core, proxy service on core 9"
        );
        assert_eq!(
            line(2, ProxyMode::Thread, &[0, 1, 2, 4, 5, 6], &[1]),
            "2 ranks on 6 cores: rank r on cores [0,2; 4-6][r], 1 spinner per core, \
             proxies on the cores of their device; another job has claimed core 1"
        );
        assert_eq!(
            unpinned(3, ProxyMode::Process, 2).to_string(),
            "3 ranks on 2 cores: not pinned, 2 spinners per core"
        );
        assert_eq!(
            line(1, ProxyMode::Thread, &[0], &[0]),
            "1 rank on 1 core: on core 0, 2 spinners per core, proxies on the core of their device; another job has claimed core 0"
        );
    }

    #[test]
    fn hyper_thread_siblings_come_after_whole_cores() {
        let firsts = |cores: &[PhysicalCore], taken: &[usize]| {
            let taken = taken.iter().copied().collect();
            Pinning::around(4, ProxyMode::Thread, cores, true, &taken).firsts()
        };
        assert_eq!(firsts(&[vec![0, 1], vec![2, 3]], &[]), [0, 2, 1, 3]);
        assert_eq!(firsts(&[vec![0, 2], vec![1, 3]], &[]), [0, 1, 2, 3]);
        assert_eq!(
            firsts(&[vec![0, 2], vec![1, 3]], &[0]),
            [1, 3, 2, 0],
            "its sibling before the core itself"
        );
    }

    #[test]
    fn without_pinning_a_rank_is_told_the_busiest_core() {
        let pinning = unpinned(3, ProxyMode::Thread, 2);
        assert_eq!(
            pinning.placement(DeviceName::Rank(Rank::known(2))),
            Placement { cpu: None, devices: 2, proxies: 2 }
        );
    }
}
