//! Checks memory: whether the heaps fit, the control group, `/dev/shm`, and huge pages for shared
//! memory.

use nix::sys::statvfs::statvfs;

use super::{HostFinding, JobSize};
use crate::host::{HostFiles, chosen};
use crate::units::{format_about, format_size};

/// Checks memory, the control group, `/dev/shm` and huge pages.
pub(super) fn examine(host: &HostFiles, job: JobSize) -> Vec<HostFinding> {
    vec![memory(host, job), control_group(host, job), dev_shm(shm_space()), huge_pages(host)]
}

/// Returns the size of all heaps. A heap is committed as it is allocated, so this is the most that
/// the job can need.
fn needed(job: JobSize) -> u64 {
    job.heap.saturating_mul(u64::from(job.ranks))
}

fn heaps(job: JobSize) -> String {
    format!("{} heaps of {}", job.ranks, format_size(job.heap))
}

fn memory(host: &HostFiles, job: JobSize) -> HostFinding {
    let topic = "memory";
    let (Some(total), Some(available)) = (host.meminfo("MemTotal"), host.meminfo("MemAvailable")) else {
        return HostFinding::ok(topic, "unknown");
    };
    let found = format!("{} available of {}", about(available), about(total));
    if needed(job) > available {
        return HostFinding::bad(
            topic,
            found,
            format!("{} do not fit; use a smaller --heap or fewer ranks", heaps(job)),
        );
    }
    HostFinding::ok(topic, found)
}

fn control_group(host: &HostFiles, job: JobSize) -> HostFinding {
    let topic = "control group";
    let Some(memory) = host.cgroup_limits().memory else {
        return HostFinding::ok(topic, "no memory limit");
    };
    let free = memory.room();
    let found = format!("{} free of {}", about(free), about(memory.limit));
    if needed(job) > free {
        let advice = format!(
            "{} do not fit and the job would be killed; raise the limit (docker run --memory) or use a smaller --heap",
            heaps(job)
        );
        return HostFinding::bad(topic, found, advice);
    }
    HostFinding::ok(topic, found)
}

/// Returns the total and the free bytes of `/dev/shm`.
fn shm_space() -> Option<(u64, u64)> {
    let space = statvfs("/dev/shm").ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.fragment_size());
    Some((bytes(space.blocks()), bytes(space.blocks_available())))
}

/// Checks `/dev/shm`, where only named segments live. The others are anonymous, and count as plain
/// memory.
fn dev_shm(space: Option<(u64, u64)>) -> HostFinding {
    let topic = "/dev/shm";
    let Some((total, free)) = space else {
        return HostFinding::warn(
            topic,
            "not mounted",
            "named segments need it: mount -t tmpfs tmpfs /dev/shm",
        );
    };
    let found = format!("{} free of {}", about(free), about(total));
    if free < 64 << 20 {
        return HostFinding::warn(
            topic,
            found,
            "named segments need room there: remove stale files, or enlarge it (docker run --shm-size=1g; mount -o remount,size=1g /dev/shm)",
        );
    }
    HostFinding::ok(topic, found)
}

fn huge_pages(host: &HostFiles) -> HostFinding {
    let topic = "huge pages";
    let base = "/sys/kernel/mm/transparent_hugepage";
    let choice = |path: &str| host.read(path).and_then(|text| chosen(&text).map(str::to_owned));
    let general = choice(&format!("{base}/shmem_enabled"));
    // Kernels from 6.10 on decide by page size; "inherit" hands back to the general choice.
    let two_mib = choice(&format!("{base}/hugepages-2048kB/shmem_enabled")).filter(|word| word != "inherit");
    match two_mib.or(general).as_deref() {
        None => HostFinding::ok(topic, "unknown to this kernel"),
        Some(word @ ("always" | "advise" | "within_size" | "force")) => {
            HostFinding::ok(topic, format!("2 MiB pages for shared memory: {word}"))
        }
        Some(word) => HostFinding::warn(
            topic,
            format!("2 MiB pages for shared memory: {word}"),
            format!(
                "large transfers touch 512 times as many pages; as root: echo advise > {base}/shmem_enabled"
            ),
        ),
    }
}

fn about(bytes: u64) -> String {
    // A float is precise to far more digits than are shown.
    let mebibytes = u32::try_from(bytes >> 20).map_or(f64::INFINITY, f64::from);
    if bytes < 1 << 20 { format_size(bytes) } else { format_about(mebibytes * 1024.0 * 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::flags::ProxyPlace;
    use crate::host::tests::Layout;

    fn job(ranks: u32, heap: u64) -> JobSize {
        JobSize { ranks, proxy: ProxyPlace::Thread, heap }
    }

    #[test]
    fn heaps_that_do_not_fit_are_bad() {
        let layout = Layout::new(
            "memory",
            &[("/proc/meminfo", "MemTotal:        4194304 kB\nMemAvailable:    1048576 kB\n")],
        );
        assert_eq!(memory(&layout.host(), job(2, 512 << 20)).verdict, Severity::Ok);
        let bad = memory(&layout.host(), job(3, 512 << 20));
        assert_eq!((bad.verdict, bad.found.as_str()), (Severity::Bad, "1 GiB available of 4 GiB"));
        assert_eq!(memory(&layout.host(), job(64, u64::MAX)).verdict, Severity::Bad);
    }

    #[test]
    fn what_the_control_group_has_left_counts_and_not_its_limit() {
        let layout = Layout::new(
            "cgroup-memory",
            &[
                ("/proc/self/cgroup", "0::/\n"),
                ("/sys/fs/cgroup/memory.max", "1073741824"),
                // A quarter of it are pages of files, which the kernel can drop.
                ("/sys/fs/cgroup/memory.current", "1073741824"),
                ("/sys/fs/cgroup/memory.stat", "anon 805306368\ninactive_file 268435456\n"),
            ],
        );
        assert_eq!(control_group(&layout.host(), job(1, 256 << 20)).verdict, Severity::Ok);
        assert_eq!(control_group(&layout.host(), job(2, 256 << 20)).verdict, Severity::Bad);
    }

    #[test]
    fn a_small_dev_shm_matters_to_named_segments_only() {
        assert_eq!(dev_shm(Some((1 << 30, 1 << 29))).verdict, Severity::Ok);
        assert_eq!(dev_shm(Some((64 << 20, 1 << 20))).verdict, Severity::Warn);
        assert!(dev_shm(None).advice.unwrap().contains("mount"));
    }

    #[test]
    fn the_choice_for_two_mebibytes_comes_before_the_general_one() {
        let general = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
        let sized = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
        let verdict =
            |name: &str, files: &[(&str, &str)]| huge_pages(&Layout::new(name, files).host()).verdict;
        let never = "always advise [never]";
        assert_eq!(verdict("huge-never", &[(general, never)]), Severity::Warn);
        assert_eq!(verdict("huge-inherit", &[(general, never), (sized, "[inherit] never")]), Severity::Warn);
        assert_eq!(verdict("huge-sized", &[(general, never), (sized, "[advise] never")]), Severity::Ok);
        assert_eq!(verdict("huge-none", &[]), Severity::Ok);
    }
}
