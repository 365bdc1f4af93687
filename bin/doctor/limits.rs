//! Checks the limits of this process, which every device process inherits, and the system calls
//! that waiting uses.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use shmccl::shm::HostKernel;

use super::{HostFinding, PlannedJob};
use crate::units::format_size;

/// Checks the limits on descriptors, address space, file size and locked memory, and system calls.
pub(super) fn examine(job: PlannedJob) -> Vec<HostFinding> {
    let mut findings = vec![
        descriptors(soft(Resource::RLIMIT_NOFILE), job),
        address_space(soft(Resource::RLIMIT_AS), job),
        file_size(soft(Resource::RLIMIT_FSIZE), job),
        locked(soft(Resource::RLIMIT_MEMLOCK)),
    ];
    findings.extend(system_calls(&HostKernel::detect()));
    findings
}

/// Returns the limit in force; `None` where there is none.
fn soft(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft).filter(|limit| *limit != RLIM_INFINITY)
}

/// Checks descriptors: a rank has one per peer, the launcher a socket, a segment and a process per
/// rank.
fn descriptors(limit: Option<u64>, job: PlannedJob) -> HostFinding {
    let topic = "open files";
    let needed = 64 + 4 * u64::from(job.ranks);
    match limit {
        Some(limit) if limit < needed => HostFinding::bad(
            topic,
            format!("at most {limit}, {needed} needed"),
            format!("raise it: ulimit -n {}", needed.next_power_of_two()),
        ),
        limit => {
            HostFinding::ok(topic, limit.map_or("unlimited".to_owned(), |limit| format!("at most {limit}")))
        }
    }
}

/// Checks the address space: every rank maps all heaps.
fn address_space(limit: Option<u64>, job: PlannedJob) -> HostFinding {
    let window = job.heap.saturating_add(4 << 20).saturating_mul(u64::from(job.ranks));
    let advice =
        format!("every rank maps all heaps, {} in all; raise it: ulimit -v unlimited", format_size(window));
    enough("address space", limit, window.saturating_add(1 << 30), advice)
}

/// Checks the limit on file sizes, which holds for segments: each is a file in memory.
fn file_size(limit: Option<u64>, job: PlannedJob) -> HostFinding {
    let advice =
        format!("a heap of {} is one file in memory; raise it: ulimit -f unlimited", format_size(job.heap));
    enough("file size", limit, job.heap.saturating_add(4 << 20), advice)
}

fn enough(topic: &'static str, limit: Option<u64>, needed: u64, advice: String) -> HostFinding {
    if limit.is_some_and(|limit| limit < needed) {
        HostFinding::bad(topic, unlimited(limit), advice)
    } else {
        HostFinding::ok(topic, unlimited(limit))
    }
}

/// Reports locked memory, which pinned buffers would need.
fn locked(limit: Option<u64>) -> HostFinding {
    HostFinding::ok("locked memory", format!("{} (none is needed)", unlimited(limit)))
}

fn unlimited(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| format!("at most {}", format_size(limit)))
}

/// Checks system calls by trying them, as a container may refuse a call that the kernel has.
fn system_calls(kernel: &HostKernel) -> Vec<HostFinding> {
    vec![
        system_call(
            "membarrier",
            kernel.has_membarrier(),
            "4.16",
            "every signal pays a fence of some 10 ns in case somebody sleeps; a newer kernel, or a container that \
             allows the call, spares it",
        ),
        system_call(
            "futex_waitv",
            kernel.has_waitv(),
            "5.16",
            "the death of a rank is seen by looking every few ms instead of at once; a newer kernel, or a container \
             that allows the call, mends that",
        ),
    ]
}

fn system_call(topic: &'static str, works: bool, since: &str, advice: &str) -> HostFinding {
    if works {
        HostFinding::ok(topic, "works")
    } else {
        HostFinding::warn(topic, format!("refused (Linux has it since {since})"), advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::flags::ProxyPlace;

    const JOB: PlannedJob = PlannedJob { ranks: 8, proxy: ProxyPlace::Thread, heap: 256 << 20 };

    #[test]
    fn limits_below_what_the_job_needs_are_bad_and_name_the_command() {
        for (finding, command) in [
            (descriptors(Some(32), JOB), "ulimit -n 128"),
            (address_space(Some(1 << 30), JOB), "ulimit -v"),
            (file_size(Some(1 << 20), JOB), "ulimit -f"),
        ] {
            assert_eq!(finding.verdict, Severity::Bad);
            assert!(finding.advice.unwrap().contains(command));
        }
    }

    #[test]
    fn no_limit_and_a_high_limit_are_ok() {
        for limit in [None, Some(1 << 40)] {
            for finding in
                [descriptors(limit, JOB), address_space(limit, JOB), file_size(limit, JOB), locked(limit)]
            {
                assert_eq!(finding.verdict, Severity::Ok, "{finding:?}");
            }
        }
    }

    #[test]
    fn an_absurd_heap_is_refused_and_not_wrapped_around() {
        let job = PlannedJob { heap: u64::MAX, ..JOB };
        assert_eq!(address_space(Some(1 << 40), job).verdict, Severity::Bad);
        assert_eq!(file_size(Some(1 << 40), job).verdict, Severity::Bad);
    }

    #[test]
    fn a_call_that_is_refused_is_told_with_what_it_costs() {
        let kernel = HostKernel::detect().without_membarrier().without_waitv();
        let findings = system_calls(&kernel);
        assert_eq!(findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>(), [Severity::Warn; 2]);
        assert_eq!(findings[0].found, "refused (Linux has it since 4.16)");
        assert!(findings[1].advice.as_deref().unwrap().contains("every few ms"));
    }

    #[test]
    fn what_works_needs_no_advice() {
        let kernel = HostKernel::detect();
        let found = system_calls(&kernel);
        for (finding, works) in found.iter().zip([kernel.has_membarrier(), kernel.has_waitv()]) {
            assert_eq!((finding.verdict == Severity::Ok, finding.advice.is_none()), (works, works));
        }
    }
}
