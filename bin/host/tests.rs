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
fn lists_of_cores_are_read_with_ranges_and_garbage_is_skipped() {
    assert_eq!(parse_list("0-3,8"), [0, 1, 2, 3, 8]);
    assert_eq!(parse_list("5"), [5]);
    assert_eq!(parse_list("x,2,4-y,0-99999999999"), [2]);
    assert!(parse_list("").is_empty());
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
            ("/sys/fs/cgroup/a/pids.max", "64\n"),
        ],
    );
    let memory = GroupMemory { limit: 1 << 30, used: 4096 };
    let expected = CgroupLimits { memory: Some(memory), cpus: Some(1.5), pids: Some(64) };
    assert_eq!(layout.host().cgroup_limits(), expected);
}

#[test]
fn version_one_says_no_limit_by_huge_and_negative_numbers() {
    let files = [
        ("/proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/\n8:pids:/\n"),
        ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
        ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ("/sys/fs/cgroup/pids/pids.max", "max\n"),
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
