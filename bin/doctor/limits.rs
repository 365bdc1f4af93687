//! Resource limits of this process, which every device process inherits.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::{Finding, Job};
use crate::units::format_size;

/// Looks at the limits on descriptors, address space, file size and locked memory.
pub(super) fn examine(job: Job) -> Vec<Finding> {
    vec![
        descriptors(soft(Resource::RLIMIT_NOFILE), job),
        address_space(soft(Resource::RLIMIT_AS), job),
        file_size(soft(Resource::RLIMIT_FSIZE), job),
        locked(soft(Resource::RLIMIT_MEMLOCK)),
    ]
}

/// The limit in force; `None` where there is none.
fn soft(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft).filter(|limit| *limit != RLIM_INFINITY)
}

/// A rank holds a descriptor per peer, and the launcher a socket, a segment and a process per rank.
fn descriptors(limit: Option<u64>, job: Job) -> Finding {
    let topic = "open files";
    let needed = 64 + 4 * u64::from(job.ranks);
    match limit {
        Some(limit) if limit < needed => Finding::bad(
            topic,
            format!("at most {limit}, {needed} needed"),
            format!("raise it: ulimit -n {}", needed.next_power_of_two()),
        ),
        limit => Finding::ok(topic, limit.map_or("unlimited".to_owned(), |limit| format!("at most {limit}"))),
    }
}

/// Every rank maps the heaps of all.
fn address_space(limit: Option<u64>, job: Job) -> Finding {
    let topic = "address space";
    let window = job.heap.saturating_add(4 << 20).saturating_mul(u64::from(job.ranks));
    let needed = window.saturating_add(1 << 30);
    match limit {
        Some(limit) if limit < needed => Finding::bad(
            topic,
            format!("at most {}", format_size(limit)),
            format!(
                "every rank maps all heaps, {} in all; raise it: ulimit -v unlimited",
                format_size(window)
            ),
        ),
        limit => Finding::ok(topic, unlimited(limit)),
    }
}

/// A segment is a file in memory, so the limit on file sizes holds for it.
fn file_size(limit: Option<u64>, job: Job) -> Finding {
    let topic = "file size";
    match limit {
        Some(limit) if limit < job.heap.saturating_add(4 << 20) => Finding::bad(
            topic,
            format!("at most {}", format_size(limit)),
            format!(
                "a heap of {} is one file in memory; raise it: ulimit -f unlimited",
                format_size(job.heap)
            ),
        ),
        limit => Finding::ok(topic, unlimited(limit)),
    }
}

/// Nothing locks memory today; the limit is told because pinned buffers would need it.
fn locked(limit: Option<u64>) -> Finding {
    Finding::ok("locked memory", format!("{} (none is needed)", unlimited(limit)))
}

fn unlimited(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| format!("at most {}", format_size(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use crate::flags::ProxyPlace;

    const JOB: Job = Job { ranks: 8, proxy: ProxyPlace::Thread, heap: 256 << 20 };

    #[test]
    fn limits_below_what_the_job_needs_are_bad_and_name_the_command() {
        for (finding, command) in [
            (descriptors(Some(32), JOB), "ulimit -n 128"),
            (address_space(Some(1 << 30), JOB), "ulimit -v"),
            (file_size(Some(1 << 20), JOB), "ulimit -f"),
        ] {
            assert_eq!(finding.verdict, Verdict::Bad);
            assert!(finding.advice.unwrap().contains(command));
        }
    }

    #[test]
    fn no_limit_and_a_high_limit_are_ok() {
        for limit in [None, Some(1 << 40)] {
            for finding in
                [descriptors(limit, JOB), address_space(limit, JOB), file_size(limit, JOB), locked(limit)]
            {
                assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
            }
        }
    }

    #[test]
    fn an_absurd_heap_is_refused_and_not_wrapped_around() {
        let job = Job { heap: u64::MAX, ..JOB };
        assert_eq!(address_space(Some(1 << 40), job).verdict, Verdict::Bad);
        assert_eq!(file_size(Some(1 << 40), job).verdict, Verdict::Bad);
    }
}
