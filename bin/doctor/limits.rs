//! Checks the limits of this process, which every device process inherits, and the system calls
//! that waiting uses. Whether a job starts within the limits is tried (`trial.rs`): what is said of
//! them here is an estimate of what a job may need later.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use shmccl::shm::HostKernel;
use shmccl::shm::probe::{TriedCalls, try_calls};

use super::{HostFinding, JobSize, Severity};
use crate::units::format_size;

/// The memory of its own that a rank needs, with room for a little more.
const OWN_MEMORY: u64 = 32 << 20;

/// The stack that the main thread of a rank needs, with room for what the program does itself.
const MAIN_STACK: u64 = 1 << 20;

/// Checks the limits on descriptors, address space, data, file size, locked memory, CPU time and
/// stack, and system calls.
pub(super) fn examine(job: JobSize) -> Vec<HostFinding> {
    let mut findings = vec![
        descriptors(soft(Resource::RLIMIT_NOFILE), job),
        address_space(soft(Resource::RLIMIT_AS), job),
        data(soft(Resource::RLIMIT_DATA)),
        file_size(soft(Resource::RLIMIT_FSIZE), job),
        locked(soft(Resource::RLIMIT_MEMLOCK)),
        cpu_time(soft(Resource::RLIMIT_CPU)),
        stack(soft(Resource::RLIMIT_STACK)),
    ];
    findings.extend(system_calls(&HostKernel::detect(), &try_calls()));
    findings
}

/// Returns the limit in force; `None` where there is none.
fn soft(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft).filter(|limit| *limit != RLIM_INFINITY)
}

/// Checks descriptors: a rank has one per peer, the launcher a socket, a segment and a process per
/// rank.
fn descriptors(limit: Option<u64>, job: JobSize) -> HostFinding {
    let topic = "open files";
    let needed = 64 + 4 * u64::from(job.ranks);
    match limit {
        Some(limit) if limit < needed => HostFinding::warn(
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
fn address_space(limit: Option<u64>, job: JobSize) -> HostFinding {
    let window = job.heap.saturating_add(4 << 20).saturating_mul(u64::from(job.ranks));
    let advice =
        format!("every rank maps all heaps, {} in all; raise it: ulimit -v unlimited", format_size(window));
    enough("address space", limit, window.saturating_add(1 << 30), advice)
}

/// Checks the limit on memory of a process's own: the stacks of its threads, and what it allocates.
fn data(limit: Option<u64>) -> HostFinding {
    let advice = "threads of a rank and its own buffers count; raise it: ulimit -d unlimited".to_owned();
    enough("data size", limit, OWN_MEMORY, advice)
}

/// Checks the limit on file sizes, which holds for segments: each is a file in memory.
fn file_size(limit: Option<u64>, job: JobSize) -> HostFinding {
    let advice =
        format!("a heap of {} is one file in memory; raise it: ulimit -f unlimited", format_size(job.heap));
    enough("file size", limit, job.heap.saturating_add(4 << 20), advice)
}

fn enough(topic: &'static str, limit: Option<u64>, needed: u64, advice: String) -> HostFinding {
    if limit.is_some_and(|limit| limit < needed) {
        HostFinding::warn(topic, unlimited(limit), advice)
    } else {
        HostFinding::ok(topic, unlimited(limit))
    }
}

/// Reports locked memory, which pinned buffers would need.
fn locked(limit: Option<u64>) -> HostFinding {
    HostFinding::ok("locked memory", format!("{} (none is needed)", unlimited(limit)))
}

/// Checks the limit on CPU time, which ranks that wait use up as well.
fn cpu_time(limit: Option<u64>) -> HostFinding {
    match limit {
        Some(seconds) => HostFinding::warn(
            "CPU time",
            format!("at most {seconds} s"),
            "a rank that has used as much is killed, and waiting counts; raise it: ulimit -t unlimited",
        ),
        None => HostFinding::ok("CPU time", "unlimited"),
    }
}

/// Checks the stack of the main thread of a program. Threads of the library have their own size.
fn stack(limit: Option<u64>) -> HostFinding {
    let advice = "a rank that does its calls in its main thread may overflow it; raise it: ulimit -s 8192";
    enough("stack", limit, MAIN_STACK, advice.to_owned())
}

fn unlimited(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| format!("at most {}", format_size(limit)))
}

/// Checks system calls by trying them, as a container may refuse a call that the kernel has.
fn system_calls(kernel: &HostKernel, tried: &TriedCalls) -> Vec<HostFinding> {
    use Severity::{Bad, Warn};
    let TriedCalls { pidfd_open, memfd_create, fallocate, set_robust_list, seals, prctl, affinity } = tried;
    let calls = [
        ("pidfd_open", pidfd_open.is_ok(), "5.3", Bad, "no job starts without it"),
        ("memfd_create", memfd_create.is_ok(), "3.17", Bad, "no job starts without it"),
        (
            "fallocate",
            fallocate.is_ok(),
            "3.5",
            Warn,
            "memory is committed by writing to it, which takes longer",
        ),
        ("set_robust_list", set_robust_list.is_ok(), "2.6.17", Warn, SEEN_LATER),
        ("fcntl (seals)", seals.is_ok(), "3.17", Warn, "nothing proves that segments keep their length"),
        (
            "prctl",
            prctl.is_ok(),
            "2.3.15",
            Warn,
            "programs that have not joined outlive a launcher that is killed",
        ),
        (
            "sched_setaffinity",
            affinity.is_ok(),
            "2.5.8",
            Warn,
            "processes are not pinned, and figures depend on where the system puts them",
        ),
        ("membarrier", kernel.has_membarrier(), "4.16", Warn, "every signal pays a fence of some 10 ns"),
        ("futex_waitv", kernel.has_waitv(), "5.16", Warn, SEEN_LATER),
    ];
    let finding = |(topic, works, since, verdict, cost)| match works {
        true => HostFinding::ok(topic, "works"),
        false => HostFinding {
            verdict,
            ..HostFinding::warn(
                topic,
                format!("refused (Linux has it since {since})"),
                format!("{cost}; {ALLOW}"),
            )
        },
    };
    calls.into_iter().map(finding).collect()
}

const SEEN_LATER: &str = "the death of a rank is seen by looking every 20 ms instead of at once";
const ALLOW: &str = "allow it in the profile of the sandbox or container (seccomp), or use a newer kernel";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::ProxyPlace;

    const JOB: JobSize = JobSize { ranks: 8, proxy: ProxyPlace::Thread, heap: 256 << 20 };

    #[test]
    fn limits_below_what_the_job_may_need_are_told_with_the_command() {
        for (finding, command) in [
            (descriptors(Some(32), JOB), "ulimit -n 128"),
            (address_space(Some(1 << 30), JOB), "ulimit -v"),
            (file_size(Some(1 << 20), JOB), "ulimit -f"),
            (stack(Some(64 << 10)), "ulimit -s 8192"),
        ] {
            assert_eq!(finding.verdict, Severity::Warn);
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
        let job = JobSize { heap: u64::MAX, ..JOB };
        assert_eq!(address_space(Some(1 << 40), job).verdict, Severity::Warn);
        assert_eq!(file_size(Some(1 << 40), job).verdict, Severity::Warn);
    }

    #[test]
    fn a_call_that_is_refused_is_told_with_what_it_costs_and_one_that_works_needs_no_advice() {
        let kernel = HostKernel::detect().without_membarrier();
        let refused = || Err(std::io::ErrorKind::Unsupported.into());
        let tried = TriedCalls { memfd_create: refused(), ..try_calls() };
        let findings = system_calls(&kernel, &tried);
        let of = |call: &str| findings.iter().find(|finding| finding.topic == call).unwrap();
        assert_eq!((of("pidfd_open").verdict, of("memfd_create").verdict), (Severity::Ok, Severity::Bad));
        assert_eq!(of("membarrier").found, "refused (Linux has it since 4.16)");
        assert!(of("membarrier").advice.as_deref().unwrap().starts_with("every signal pays a fence"));
        assert!(findings.iter().all(|it| (it.verdict == Severity::Ok) == it.advice.is_none()));
    }
}
