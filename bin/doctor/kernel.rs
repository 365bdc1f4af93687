//! What the kernel offers for waiting and for seeing a death, found out by trying: a container may refuse a call that the
//! running version has.

use shmccl::shm::HostKernel;

use super::Finding;

/// Looks at the system calls that waiting uses where they exist.
pub(super) fn examine(kernel: &HostKernel) -> Vec<Finding> {
    vec![
        finding(
            "membarrier",
            kernel.has_membarrier(),
            "4.16",
            "every signal pays a fence of some 10 ns in case somebody sleeps; a newer kernel, or a container that \
             allows the call, spares it",
        ),
        finding(
            "futex_waitv",
            kernel.has_waitv(),
            "5.16",
            "the death of a rank is seen by looking every few ms instead of at once; a newer kernel, or a container \
             that allows the call, mends that",
        ),
    ]
}

fn finding(topic: &'static str, works: bool, since: &str, advice: &str) -> Finding {
    if works {
        Finding::ok(topic, "works")
    } else {
        Finding::warn(topic, format!("refused (Linux has it since {since})"), advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_call_that_is_refused_is_told_with_what_it_costs() {
        let kernel = HostKernel::detect().without_membarrier().without_waitv();
        let findings = examine(&kernel);
        assert_eq!(findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>(), [Verdict::Warn; 2]);
        assert_eq!(findings[0].found, "refused (Linux has it since 4.16)");
        assert!(findings[1].advice.as_deref().unwrap().contains("every few ms"));
    }

    #[test]
    fn what_works_needs_no_advice() {
        let kernel = HostKernel::detect();
        let found = examine(&kernel);
        for (finding, works) in found.iter().zip([kernel.has_membarrier(), kernel.has_waitv()]) {
            assert_eq!((finding.verdict == Verdict::Ok, finding.advice.is_none()), (works, works));
        }
    }
}
