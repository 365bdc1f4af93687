//! What the kernel offers for waiting and for seeing a death.

use super::Finding;
use crate::host::Host;

/// Whether the kernel offers something, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    /// The kernel's version is known to have it, or not to; a sandbox may still forbid it.
    ByVersion(bool),
    /// The version is unknown.
    Unknown,
}

/// Looks at the system calls that waiting uses where they exist.
pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let since = |major, minor| match host.kernel_version() {
        Some(version) => Support::ByVersion(version >= (major, minor)),
        None => Support::Unknown,
    };
    vec![membarrier(since(4, 16)), futex_waitv(since(5, 16))]
}

fn membarrier(support: Support) -> Finding {
    finding(
        "membarrier",
        support,
        "4.16",
        "every signal pays a fence of some 10 ns in case somebody sleeps; a newer kernel spares it",
    )
}

fn futex_waitv(support: Support) -> Finding {
    finding(
        "futex_waitv",
        support,
        "5.16",
        "the death of a rank is seen by looking every few ms instead of at once; a newer kernel mends that",
    )
}

fn finding(topic: &'static str, support: Support, since: &str, advice: &str) -> Finding {
    match support {
        Support::ByVersion(true) => Finding::ok(topic, format!("in this kernel (since {since})")),
        Support::ByVersion(false) => {
            Finding::warn(topic, format!("not in this kernel (since {since})"), advice)
        }
        Support::Unknown => Finding::ok(topic, "unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use crate::host::tests::Layout;

    #[test]
    fn an_old_kernel_lacks_what_came_later() {
        let verdicts = |release: &str| {
            let layout =
                Layout::new(&format!("support-{release}"), &[("/proc/sys/kernel/osrelease", release)]);
            examine(&layout.host()).iter().map(|finding| finding.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts("4.15.0"), [Verdict::Warn, Verdict::Warn]);
        assert_eq!(verdicts("5.4.0-generic"), [Verdict::Ok, Verdict::Warn]);
        assert_eq!(verdicts("6.18.44"), [Verdict::Ok, Verdict::Ok]);
    }
}
