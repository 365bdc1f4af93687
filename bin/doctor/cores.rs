//! Checks cores: their number, hyper-threads, NUMA nodes, the clock, and whether all spinning
//! threads have a core.

use shmccl_harness::cores::allowed_cpus;

use super::{HostFinding, JobSize};
use crate::flags::ProxyPlace;

use crate::host::HostFiles;
use crate::units::{format_runs, three_digits};

/// Checks cores, siblings, NUMA nodes, spinning threads and the clock.
pub(super) fn examine(host: &HostFiles, job: JobSize) -> Vec<HostFinding> {
    let allowed = allowed_cpus();
    let quota = host.cgroup_limits().cpus;
    vec![
        cores(&allowed, host.online_cpus().len(), quota),
        siblings(host, &allowed),
        numa(host, &allowed),
        spinners(allowed.len(), quota, job),
        clock(host),
    ]
}

fn cores(allowed: &[usize], online: usize, quota: Option<f64>) -> HostFinding {
    let topic = "cores";
    let found = format!("{} allowed ({}) of {online} online", allowed.len(), write_list(allowed));
    match quota {
        Some(quota) if quota < count(allowed.len()) => HostFinding::warn(
            topic,
            format!("{found}, throttled to the time of {}", three_digits(quota)),
            "the control group stops a job that spins for tens of ms at a time; raise its cpu quota to a core per device process",
        ),
        _ if allowed.len() < 2 => HostFinding::warn(
            topic,
            found,
            "with one core nothing runs at the same time: latencies are those of the scheduler; allow two (taskset, cpuset)",
        ),
        _ => HostFinding::ok(topic, found),
    }
}

fn siblings(host: &HostFiles, allowed: &[usize]) -> HostFinding {
    let topic = "hyper-threads";
    let groups = host.siblings_among(allowed);
    if groups.is_empty() && host.is_virtual() {
        return HostFinding::warn(
            topic,
            "none by the kernel's word, but the cores are virtual and may turn into siblings and back",
            "compare only runs of perf whose cores were alike: each row of --json has a flag's time between them (probe_ns)",
        );
    }
    if groups.is_empty() {
        return HostFinding::ok(topic, "none among the allowed cores");
    }
    let list = groups.iter().map(|group| write_list(group)).collect::<Vec<_>>().join(" and ");
    HostFinding::warn(
        topic,
        format!("cores {list} share one core each"),
        "signals between siblings are quicker and copies slower than between cores; for whole cores allow one of each group (taskset)",
    )
}

fn numa(host: &HostFiles, allowed: &[usize]) -> HostFinding {
    let topic = "NUMA";
    let nodes = host.numa_nodes(allowed);
    match nodes.as_slice() {
        [] => HostFinding::ok(topic, "no nodes reported"),
        [(node, _)] => HostFinding::ok(topic, format!("all allowed cores in node {node}")),
        nodes => {
            let node = |(node, cores): &(usize, Vec<usize>)| format!("node {node} has {}", write_list(cores));
            HostFinding::warn(
                topic,
                nodes.iter().map(node).collect::<Vec<_>>().join(", "),
                "traffic between nodes is slower; keep a job in one node with 'numactl --cpunodebind=0 --membind=0' where it fits",
            )
        }
    }
}

/// Checks that device threads and proxies, which spin while they wait, have a core each.
fn spinners(cores: usize, quota: Option<f64>, job: JobSize) -> HostFinding {
    let topic = "spinners";
    let ranks = job.ranks as usize;
    let (proxies, which) = match job.proxy {
        ProxyPlace::Thread => (ranks, "a proxy thread each"),
        ProxyPlace::Process => (1, "one proxy service"),
    };
    let room = quota.map_or(count(cores), |quota| quota.min(count(cores)));
    let found = format!("{ranks} ranks with {which} on {cores} cores: {} spinners", ranks + proxies);
    if count(ranks) > room {
        return HostFinding::warn(
            topic,
            found,
            "device processes share cores and yield instead of spinning: about 1 us per hand-off in place of about 0.1 us; use fewer ranks or more cores",
        );
    }
    if count(ranks + proxies) > room {
        return HostFinding::warn(
            topic,
            found,
            "direct channels have their cores, proxied ones share them with the devices and pay hand-offs; give every proxy a core if proxied traffic matters",
        );
    }
    HostFinding::ok(topic, found)
}

fn clock(host: &HostFiles) -> HostFinding {
    let topic = "clock";
    let source = host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref() {
        None => HostFinding::ok(topic, "unknown"),
        Some(fast @ ("tsc" | "arch_sys_counter" | "kvm-clock" | "hyperv_clocksource_tsc_page")) => {
            HostFinding::ok(topic, format!("{fast}, read without entering the kernel"))
        }
        Some(slow) => HostFinding::warn(
            topic,
            format!("{slow}, read through the kernel"),
            "reading it takes up to a microsecond and blurs every small figure; boot with 'clocksource=tsc' if the machine allows it",
        ),
    }
}

fn write_list(cpus: &[usize]) -> String {
    format_runs(cpus.iter().copied().map(Some))
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::host::tests::Layout;

    fn job(ranks: u32, proxy: ProxyPlace) -> JobSize {
        JobSize { ranks, proxy, heap: 1 << 20 }
    }

    #[test]
    fn a_job_whose_spinners_have_a_core_each_is_ok() {
        assert_eq!(spinners(4, None, job(2, ProxyPlace::Thread)).verdict, Severity::Ok);
        assert_eq!(spinners(3, None, job(2, ProxyPlace::Process)).verdict, Severity::Ok);
        let shared = spinners(2, None, job(2, ProxyPlace::Thread));
        assert!(shared.verdict == Severity::Warn && shared.found.contains("4 spinners"));
        assert!(spinners(2, None, job(8, ProxyPlace::Thread)).advice.unwrap().contains("fewer ranks"));
        assert_eq!(spinners(4, Some(1.5), job(2, ProxyPlace::Thread)).verdict, Severity::Warn);
    }

    #[test]
    fn a_cpu_quota_below_the_cores_is_told() {
        assert!(cores(&[0, 1], 2, Some(1.5)).found.contains("throttled to the time of 1.50"));
        assert_eq!(cores(&[0, 1], 2, Some(2.0)).verdict, Severity::Ok);
        assert_eq!(cores(&[1], 2, None).verdict, Severity::Warn);
    }

    #[test]
    fn cores_in_two_nodes_are_told_with_their_nodes() {
        let layout = Layout::new(
            "numa",
            &[
                ("/sys/devices/system/node/online", "0-1"),
                ("/sys/devices/system/node/node0/cpulist", "0-3"),
                ("/sys/devices/system/node/node1/cpulist", "4-7"),
            ],
        );
        assert_eq!(numa(&layout.host(), &[0, 1]).verdict, Severity::Ok);
        let both = numa(&layout.host(), &[3, 4, 5]);
        assert_eq!((both.verdict, both.found.as_str()), (Severity::Warn, "node 0 has 3, node 1 has 4-5"));
    }

    #[test]
    fn a_slow_clock_is_told() {
        let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let verdict =
            |source: &str| clock(&Layout::new(&format!("clock-{source}"), &[(file, source)]).host()).verdict;
        assert_eq!(verdict("tsc"), Severity::Ok);
        assert_eq!(verdict("hpet"), Severity::Warn);
    }
}
