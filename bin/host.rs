//! The machine, as the kernel describes it under `/proc` and `/sys`. Tests lay out a root of their
//! own. A file that is missing or garbled reads as "unknown", never as an error: half of the files
//! are absent in containers.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shmccl::shm::limits::{GroupMemory, tightest_group};
use shmccl_harness::cores::{allowed_cpus, parse_list};

/// The files of `/proc` and `/sys`, below a root.
#[derive(Clone, Debug)]
pub(crate) struct HostFiles {
    root: PathBuf,
}

/// The limits of a control group; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CgroupLimits {
    /// Memory of the group that has the least left.
    pub(crate) memory: Option<GroupMemory>,
    /// CPU time, in cores.
    pub(crate) cpus: Option<f64>,
}

/// The machine of a run: enough to tell whether two reports may be compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineInfo {
    /// Cores that this process may run on.
    pub(crate) cores: usize,
    /// Cores that are online.
    pub(crate) cores_online: usize,
    /// Whether the kernel, or a probe that differed from others in this run, said that two cores
    /// are hyper-threads of one. If all probes were alike, only the `probe_ns` of the rows can
    /// tell.
    pub(crate) siblings_seen: bool,
    /// The share of slices in which a probe found the two cores to be siblings; `None` without
    /// probes.
    pub(crate) sibling_slices: Option<f64>,
    /// Whether the processor says that it is virtual.
    pub(crate) virtual_machine: bool,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The processor's name.
    pub(crate) cpu: String,
    /// The version of this program.
    pub(crate) version: String,
    /// The commit that this program was built from, if it was built in a clone.
    pub(crate) commit: Option<String>,
    /// Whether this program was built with optimisation.
    pub(crate) optimised: bool,
}

impl HostFiles {
    /// Returns the files of the machine that this process runs on.
    pub(crate) fn new() -> Self {
        Self::at("/")
    }

    /// Returns the files of a machine that is laid out below `root`.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the trimmed text of a file; `None` if the file cannot be read or is empty.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Returns the cores that are online.
    pub(crate) fn online_cpus(&self) -> Vec<usize> {
        self.read("/sys/devices/system/cpu/online").map(|text| parse_list(&text)).unwrap_or_default()
    }

    /// Returns groups of two or more of `cpus` that share a core according to the kernel, each
    /// sorted.
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

    /// Returns the NUMA nodes that hold any of `cpus`, with those cores.
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

    /// Returns the kernel's release, as `uname -r` prints it.
    pub(crate) fn kernel_release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned())
    }

    /// Returns a line of `/proc/meminfo`, in bytes.
    pub(crate) fn meminfo(&self, key: &str) -> Option<u64> {
        let text = self.read("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Returns the tightest limits of all control groups of this process, of both versions.
    pub(crate) fn cgroup_limits(&self) -> CgroupLimits {
        let mut cpus: Option<f64> = None;
        for line in self.read("/proc/self/cgroup").unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let quota = |directory: String| match controllers {
                "" => self.cpu_quota_v2(&directory),
                names => {
                    names.split(',').find(|name| *name == "cpu").and_then(|_| self.cpu_quota_v1(&directory))
                }
            };
            cpus = ancestors(path).into_iter().filter_map(quota).chain(cpus).reduce(f64::min);
        }
        CgroupLimits { memory: tightest_group(|path| self.read(path)), cpus }
    }

    fn cpu_quota_v2(&self, directory: &str) -> Option<f64> {
        let text = self.read(&format!("/sys/fs/cgroup{directory}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    }

    fn cpu_quota_v1(&self, directory: &str) -> Option<f64> {
        // No limit reads as -1, which is no u32.
        let number = |file| self.read(&format!("/sys/fs/cgroup/cpu{directory}/{file}"))?.parse::<u32>().ok();
        Some(f64::from(number("cpu.cfs_quota_us")?) / f64::from(number("cpu.cfs_period_us")?))
    }

    fn cpuinfo(&self, key: &str) -> Option<String> {
        let text = self.read("/proc/cpuinfo")?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }
}

impl MachineInfo {
    /// Describes the machine that this process runs on.
    pub(crate) fn detect() -> Self {
        let host = HostFiles::new();
        let allowed = allowed_cpus();
        Self {
            cores: allowed.len(),
            cores_online: host.online_cpus().len(),
            siblings_seen: !host.siblings_among(&allowed).is_empty(),
            sibling_slices: None,
            virtual_machine: host.is_virtual(),
            kernel: host.kernel_release(),
            cpu: host.cpu_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("SHMCCL_COMMIT").map(str::to_owned),
            optimised: !cfg!(debug_assertions),
        }
    }

    /// Notes in which share of the slices the probes found siblings.
    pub(crate) fn saw_siblings(&mut self, share: f64) {
        self.siblings_seen |= share > 0.0;
        self.sibling_slices = Some(share);
    }

    /// Describes the machine in one line, for the head of a table.
    pub(crate) fn line(&self) -> String {
        let siblings = match (self.sibling_slices, self.siblings_seen) {
            (Some(share), _) if share > 0.0 => {
                format!(", hyper-thread siblings in {:.0} % of the slices", share * 100.0)
            }
            (_, true) => ", some of them hyper-thread siblings".to_owned(),
            _ => String::new(),
        };
        let kind = if self.virtual_machine { "virtual cores" } else { "cores" };
        let build = if self.optimised { "" } else { ", NOT OPTIMISED (build with --release)" };
        let commit = self.commit.as_deref().unwrap_or("no commit");
        format!(
            "{}, {} {kind}{siblings}, Linux {}, shmccl {} ({commit}){build}",
            self.cpu, self.cores, self.kernel, self.version
        )
    }
}

/// Returns the word in brackets of a sysfs choice: `never` of `always within_size [never]`.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

/// Returns the path of a control group and all paths above it, each ready to be appended to the
/// mount point.
fn ancestors(path: &str) -> Vec<String> {
    let absolute = Path::new("/").join(path.trim_start_matches('/'));
    let above = absolute.ancestors().map(|ancestor| ancestor.display().to_string());
    above.map(|ancestor| if ancestor == "/" { String::new() } else { ancestor }).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A directory that lays out a machine and goes away with the test.
    pub(crate) struct Layout(PathBuf);

    impl Layout {
        pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("shmccl-host-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path.trim_start_matches('/'));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }

        pub(crate) fn host(&self) -> HostFiles {
            HostFiles::at(&self.0)
        }
    }

    impl Drop for Layout {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn siblings_are_grouped_once_and_only_among_the_allowed_cores() {
        let sibling = |cpu: usize| format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let layout = Layout::new(
            "siblings",
            &[
                (&sibling(0), "0,4\n"),
                (&sibling(4), "0,4\n"),
                (&sibling(1), "1,5\n"),
                (&sibling(5), "1,5\n"),
                ("/sys/devices/system/cpu/online", "0-7\n"),
            ],
        );
        assert_eq!(layout.host().siblings_among(&[0, 1, 4]), [[0, 4]]);
        assert!(layout.host().siblings_among(&[0, 1]).is_empty());
        assert_eq!(layout.host().online_cpus().len(), 8);
    }

    #[test]
    fn the_tightest_of_nested_control_groups_counts_in_version_two() {
        let layout = Layout::new(
            "v2",
            &[
                ("/proc/self/cgroup", "0::/a/b\n"),
                ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
                ("/sys/fs/cgroup/a/memory.current", "4096\n"),
                ("/sys/fs/cgroup/memory.max", "2147483648\n"),
                ("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"),
                ("/sys/fs/cgroup/a/cpu.max", "max 100000\n"),
            ],
        );
        let memory = GroupMemory { limit: 1 << 30, used: 4096 };
        let expected = CgroupLimits { memory: Some(memory), cpus: Some(1.5) };
        assert_eq!(layout.host().cgroup_limits(), expected);
    }

    #[test]
    fn version_one_says_no_limit_by_huge_and_negative_numbers() {
        let files = [
            ("/proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/\n"),
            ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(Layout::new("v1-none", &files).host().cgroup_limits(), CgroupLimits::default());
        let limited = [
            ("/proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/\n"),
            ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "65536\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        let limits = Layout::new("v1-some", &limited).host().cgroup_limits();
        assert_eq!((limits.memory, limits.cpus), (Some(GroupMemory { limit: 65536, used: 0 }), Some(0.5)));
    }

    #[test]
    fn an_empty_machine_is_unknown_and_not_an_error() {
        let host = Layout::new("empty", &[]).host();
        assert_eq!(host.cgroup_limits(), CgroupLimits::default());
        assert_eq!(host.kernel_release(), "unknown");
        assert!(host.meminfo("MemTotal").is_none() && !host.is_virtual() && host.online_cpus().is_empty());
    }

    #[test]
    fn the_chosen_word_is_the_one_in_brackets() {
        assert_eq!(chosen("always within_size advise [never] deny force"), Some("never"));
        assert_eq!(chosen("always never"), None);
    }

    #[test]
    fn the_machine_has_a_core_and_a_name() {
        let machine = MachineInfo::detect();
        assert!(machine.cores >= 1);
        assert!(!machine.kernel.is_empty() && !machine.cpu.is_empty());
    }

    #[test]
    fn siblings_seen_by_a_probe_are_named_in_the_head_line() {
        let mut machine = MachineInfo { siblings_seen: false, sibling_slices: None, ..MachineInfo::detect() };
        machine.saw_siblings(0.0);
        assert!(!machine.siblings_seen && !machine.line().contains("hyper-thread"));
        machine.saw_siblings(0.25);
        assert!(
            machine.siblings_seen && machine.line().contains("hyper-thread siblings in 25 % of the slices")
        );
    }
}
