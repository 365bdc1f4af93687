//! What the kernel tells about the machine under `/proc` and `/sys`, read below a root that tests can lay out themselves.
//! A file that is missing or garbled reads as "unknown", never as an error: half of them are absent in containers.

use std::path::{Path, PathBuf};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use shmccl::shm::limits::{GroupMemory, tightest_group};

/// A view of `/proc` and `/sys`.
#[derive(Clone, Debug)]
pub(crate) struct HostFiles {
    root: PathBuf,
}

/// What a control group allows; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CgroupLimits {
    /// Memory, of the group that has the least of it left.
    pub(crate) memory: Option<GroupMemory>,
    /// Cores' worth of time.
    pub(crate) cpus: Option<f64>,
    /// Processes and threads.
    pub(crate) pids: Option<u64>,
}

impl HostFiles {
    /// The machine that this process runs on.
    pub(crate) fn new() -> Self {
        Self::at("/")
    }

    /// A machine laid out below `root`.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The trimmed text of a file, unless it cannot be read or is empty.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The cores that the affinity mask of this process allows.
    pub(crate) fn allowed_cpus(&self) -> Vec<usize> {
        match sched_getaffinity(Pid::from_raw(0)) {
            Ok(set) => (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect(),
            Err(_) => self.online_cpus(),
        }
    }

    /// The cores that are online.
    pub(crate) fn online_cpus(&self) -> Vec<usize> {
        self.read("/sys/devices/system/cpu/online").map(|text| parse_list(&text)).unwrap_or_default()
    }

    /// Groups of two or more of `cpus` that the kernel says share a core, each sorted.
    pub(crate) fn siblings_among(&self, cpus: &[usize]) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for cpu in cpus {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            let Some(text) = self.read(&path) else { continue };
            let group: Vec<usize> = parse_list(&text).into_iter().filter(|cpu| cpus.contains(cpu)).collect();
            if group.len() > 1 && !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    /// NUMA nodes that hold any of `cpus`: node and its cores among them.
    pub(crate) fn numa_nodes(&self, cpus: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let online =
            self.read("/sys/devices/system/node/online").map(|text| parse_list(&text)).unwrap_or_default();
        let cores = |node: &usize| {
            let list = self.read(&format!("/sys/devices/system/node/node{node}/cpulist"))?;
            let cores: Vec<usize> = parse_list(&list).into_iter().filter(|cpu| cpus.contains(cpu)).collect();
            (!cores.is_empty()).then_some((*node, cores))
        };
        online.iter().filter_map(cores).collect()
    }

    /// Whether the processor says that a hypervisor runs below it.
    pub(crate) fn is_virtual(&self) -> bool {
        let flags = self.cpuinfo("flags").unwrap_or_default();
        flags.split_whitespace().any(|flag| flag == "hypervisor")
    }

    /// The processor's name.
    pub(crate) fn cpu_name(&self) -> String {
        let name = self.cpuinfo("model name").or_else(|| self.cpuinfo("Model"));
        name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
    }

    /// The kernel's release, as `uname -r` prints it.
    pub(crate) fn kernel_release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned())
    }

    /// A line of `/proc/meminfo`, in bytes.
    pub(crate) fn meminfo(&self, key: &str) -> Option<u64> {
        let text = self.read("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// The tightest limits of the control groups that this process is in, for both versions of control groups.
    pub(crate) fn cgroup_limits(&self) -> CgroupLimits {
        let memory = tightest_group(|path| self.read(path));
        let mut limits = CgroupLimits { memory, ..CgroupLimits::default() };
        for line in self.read("/proc/self/cgroup").unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            for directory in ancestors(path) {
                if controllers.is_empty() {
                    self.read_cgroup_v2(&format!("/sys/fs/cgroup{directory}"), &mut limits);
                }
                for controller in controllers.split(',') {
                    self.read_cgroup_v1(controller, &directory, &mut limits);
                }
            }
        }
        limits
    }

    fn read_cgroup_v2(&self, directory: &str, limits: &mut CgroupLimits) {
        let number = |file: &str| self.read(&format!("{directory}/{file}"))?.parse::<u64>().ok();
        limits.pids = tighter(limits.pids, number("pids.max"));
        let quota = self.read(&format!("{directory}/cpu.max")).and_then(|text| {
            let (quota, period) = text.split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        });
        limits.cpus = tighter(limits.cpus, quota);
    }

    fn read_cgroup_v1(&self, controller: &str, directory: &str, limits: &mut CgroupLimits) {
        let directory = format!("/sys/fs/cgroup/{controller}{directory}");
        let number = |file: &str| self.read(&format!("{directory}/{file}"))?.parse::<u64>().ok();
        match controller {
            "cpu" => {
                // No limit reads as -1, which is no u64.
                let both = number("cpu.cfs_quota_us").zip(number("cpu.cfs_period_us"));
                let quota = both.and_then(|(quota, period)| {
                    Some(f64::from(u32::try_from(quota).ok()?) / f64::from(u32::try_from(period).ok()?))
                });
                limits.cpus = tighter(limits.cpus, quota);
            }
            "pids" => limits.pids = tighter(limits.pids, number("pids.max")),
            _ => {}
        }
    }

    fn cpuinfo(&self, key: &str) -> Option<String> {
        let text = self.read("/proc/cpuinfo")?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }
}

/// The word in brackets of a sysfs choice: `never` of `always within_size [never]`.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// Reads a list of cores: `0-3,8`.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // A machine has fewer cores than this; a garbled file shall not cost memory.
        (last < 1 << 20).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// A control group's path and all above it, from the innermost to the root, each ready to be appended to the mount point.
fn ancestors(path: &str) -> Vec<String> {
    let absolute = Path::new("/").join(path.trim_start_matches('/'));
    let above = absolute.ancestors().map(|ancestor| ancestor.display().to_string());
    above.map(|ancestor| if ancestor == "/" { String::new() } else { ancestor }).collect()
}

fn tighter<T: PartialOrd>(current: Option<T>, found: Option<T>) -> Option<T> {
    match (current, found) {
        (Some(current), Some(found)) => Some(if found < current { found } else { current }),
        (current, found) => current.or(found),
    }
}

#[cfg(test)]
pub(crate) mod tests;
