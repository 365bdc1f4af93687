//! What is known about kernels before anything has been measured: the policies, and which one to
//! begin with.

use std::sync::OnceLock;

use super::{CacheHint, CopyKernel, StorePurpose};

/// Copies shorter than this, in bytes, are `memcpy` without looking at anything. From here on it
/// can pay to try another policy.
pub(super) const SHORT: usize = 2048;

/// Combinations from this length on are worth a trial. Of shorter results, the time that readers
/// lose is too large a part.
pub(super) const TUNED_COMBINATION: usize = 16 << 10;

/// A cache line, in bytes.
const LINE: usize = 64;

/// Where stored bytes are left. All policies are right; which one is cheapest depends on the
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorePolicy {
    /// Stored bytes are left in the cache.
    Cached,
    /// Stored bytes go to memory, past the cache.
    NonTemporal,
    /// Stored bytes are left in the cache for one of several receivers, and copied from there to
    /// the others.
    CopyForward,
}

/// Sizes of the caches in bytes, as far as one core can use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// The core's own cache (level 2).
    pub own: u64,
    /// The cache that cores share (level 3; level 2 where there is no third).
    pub shared: u64,
}

/// The kernel that copies past the cache on a machine, if it has one, and the lengths from which to
/// begin with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CopyStrategy {
    streaming: Option<CopyKernel>,
    /// Through the cache, where source and target do not fit into the core's own.
    long: CopyKernel,
    long_from: u64,
    /// Through the cache, where source and target lie differently in their lines, and where it is
    /// to be a loop in any case.
    looped: CopyKernel,
    stream_from: u64,
    stream_always_from: u64,
}

/// Names the kernel that copies of `len` bytes begin with, before this thread has measured any.
#[must_use]
pub fn choose(len: u64, cache_hint: CacheHint) -> CopyKernel {
    let known = CopyStrategy::of_this_machine();
    if len < SHORT as u64 { CopyKernel::Memcpy } else { known.kernel(known.first(len, cache_hint), len) }
}

/// Returns whether a copy of so many bytes is too long for the cache: it goes past it even if it is
/// read soon.
pub(crate) fn fills_cache(len: u64) -> bool {
    choose(len, CacheHint::Keep).is_streaming()
}

/// Reads the machine's caches now, so that no copy does it later. Costs a few files of sysfs, once
/// per process.
pub fn prepare() {
    CopyStrategy::of_this_machine();
}

impl CopyStrategy {
    #[inline]
    pub(super) fn of_this_machine() -> &'static Self {
        static STRATEGY: OnceLock<CopyStrategy> = OnceLock::new();
        STRATEGY.get_or_init(|| Self::new(CacheSizes::of_this_machine(), CopyKernel::is_supported))
    }

    /// Picks the kernels. Their times are in `benches/RESULTS.md`, "Copy kernels".
    ///
    /// Through the cache it is `memcpy`, which picks by processor. For short copies `memcpy` takes
    /// the string instruction where that is quick: it takes lines over without reading them first.
    /// From the length of the core's own cache on `memcpy` no longer does (glibc 2.36 on AMD),
    /// although the instruction stays ahead. So it is taken here.
    ///
    /// Where source and target lie differently in their lines the string instruction is slow, and
    /// the kernel is a loop. That was measured on AMD Zen 3 and nowhere else. The halves of an
    /// exchange are loops, too (`exchange.rs`).
    ///
    /// Past the cache it is the loop over half lines. It fills the same lines as the loop over
    /// whole lines, in less time.
    pub(super) fn new(caches: CacheSizes, is_supported: impl Fn(CopyKernel) -> bool) -> Self {
        let streaming = Some(CopyKernel::Avx2Streaming).filter(|&kernel| is_supported(kernel));
        let or_memcpy = |kernel| if is_supported(kernel) { kernel } else { CopyKernel::Memcpy };
        // Source and target fill the shared cache at half its size. At a quarter, a target that is
        // not read soon begins to drive out more than it is worth.
        Self {
            streaming,
            long: or_memcpy(CopyKernel::RepMovsb),
            long_from: caches.own,
            looped: or_memcpy(CopyKernel::Avx2),
            stream_from: caches.shared / 4,
            stream_always_from: caches.shared / 2,
        }
    }

    #[inline]
    pub(super) fn kernel(&self, policy: StorePolicy, len: u64) -> CopyKernel {
        match (policy, self.streaming) {
            (StorePolicy::NonTemporal, Some(streaming)) => streaming,
            _ if len >= self.long_from => self.long,
            _ => CopyKernel::Memcpy,
        }
    }

    /// Returns the kernel for that policy from `source` to `target`, as they lie.
    #[inline]
    pub(super) fn kernel_between(
        &self,
        policy: StorePolicy,
        source: *const u8,
        target: *mut u8,
        len: usize,
    ) -> CopyKernel {
        match self.kernel(policy, len as u64) {
            kernel if kernel.is_streaming() => kernel,
            _ if !(source.addr() ^ target.addr()).is_multiple_of(LINE) => self.looped,
            kernel => kernel,
        }
    }

    /// Returns a loop of loads and stores, if the processor has one. It goes past the cache where
    /// `cache_hint` says so.
    pub(super) fn looped(&self, cache_hint: CacheHint) -> CopyKernel {
        match (cache_hint, self.streaming) {
            (CacheHint::Bypass, Some(streaming)) => streaming,
            _ => self.looped,
        }
    }

    /// Returns whether trials can tell more than [`first`](Self::first) does.
    #[inline]
    pub(super) fn is_tuned(&self, len: usize, purpose: StorePurpose) -> bool {
        let from = if purpose.is_joint() { TUNED_COMBINATION } else { SHORT };
        len >= from && self.streaming.is_some()
    }

    /// Returns whether a target of `len` bytes that goes through the cache is still there when it
    /// is read.
    pub(super) fn stays_in_cache(&self, len: usize) -> bool {
        (len as u64) < self.stream_always_from
    }

    /// Returns whether `bytes` in all fit into the cache that cores share.
    #[inline]
    pub(super) fn fits_cache(&self, bytes: u64) -> bool {
        bytes / 2 <= self.stream_always_from
    }

    /// Returns the policy to begin with.
    #[inline]
    pub(super) fn first(&self, len: u64, cache_hint: CacheHint) -> StorePolicy {
        let from = match cache_hint {
            CacheHint::Keep => self.stream_always_from,
            CacheHint::Bypass => self.stream_from,
        };
        if len >= from { StorePolicy::NonTemporal } else { StorePolicy::Cached }
    }
}

impl CacheSizes {
    /// Returns what sysfs says; a modest guess where it says nothing.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let size = |level| cache_size(level).filter(|&size| size > 0);
        let own = size(2).unwrap_or(256 << 10);
        Self { own, shared: size(3).unwrap_or(own).max(own) }
    }
}

/// Returns the size in bytes of the first processor's data or unified cache of `level`.
fn cache_size(level: u32) -> Option<u64> {
    (0..8).find_map(|index| {
        let read = |field: &str| {
            std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{field}")).ok()
        };
        let is_it = read("level")?.trim().parse() == Ok(level) && read("type")?.trim() != "Instruction";
        if is_it { parse_size(read("size")?.trim()) } else { None }
    })
}

/// Reads "512K", "32M" or plain bytes.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHES: CacheSizes = CacheSizes { own: 512 << 10, shared: 32 << 20 };

    #[test]
    fn the_quickest_supported_kernel_goes_past_the_cache() {
        for (supported, past) in
            [(&CopyKernel::ALL[..3], CopyKernel::Memcpy), (&CopyKernel::ALL[..], CopyKernel::Avx2Streaming)]
        {
            let strategy = CopyStrategy::new(CACHES, |kernel| supported.contains(&kernel));
            let kernels =
                (strategy.kernel(StorePolicy::Cached, 4096), strategy.kernel(StorePolicy::NonTemporal, 4096));
            assert_eq!(kernels, (CopyKernel::Memcpy, past));
        }
    }

    #[test]
    fn a_loop_goes_through_the_cache_where_lines_do_not_fit() {
        let (source, target) =
            (std::ptr::without_provenance(64), std::ptr::without_provenance_mut::<u8>(128));
        let strategy = CopyStrategy::new(CACHES, |_| true);
        let kernel = |policy, skew| strategy.kernel_between(policy, source, target.wrapping_add(skew), 4096);
        assert_eq!(
            (kernel(StorePolicy::Cached, 0), kernel(StorePolicy::Cached, 64)),
            (CopyKernel::Memcpy, CopyKernel::Memcpy)
        );
        assert_eq!(
            (kernel(StorePolicy::Cached, 1), kernel(StorePolicy::Cached, 16)),
            (CopyKernel::Avx2, CopyKernel::Avx2)
        );
        assert_eq!(kernel(StorePolicy::NonTemporal, 16), CopyKernel::Avx2Streaming);
        let plain = CopyStrategy::new(CACHES, |kernel| kernel == CopyKernel::Memcpy);
        let skewed = plain.kernel_between(StorePolicy::Cached, source, target.wrapping_add(16), 4096);
        assert_eq!(skewed, CopyKernel::Memcpy);
    }

    #[test]
    fn the_string_instruction_goes_through_the_cache_what_no_core_can_keep() {
        let strategy = CopyStrategy::new(CACHES, |_| true);
        let through = |len| strategy.kernel(StorePolicy::Cached, len);
        assert_eq!(through(CACHES.own - 1), CopyKernel::Memcpy);
        assert_eq!(through(CACHES.own), CopyKernel::RepMovsb);
        assert_eq!(strategy.kernel(StorePolicy::NonTemporal, CACHES.own), CopyKernel::Avx2Streaming);
        let plain = CopyStrategy::new(CACHES, |kernel| kernel == CopyKernel::Memcpy);
        assert_eq!(plain.kernel(StorePolicy::Cached, CACHES.own), CopyKernel::Memcpy);
    }

    #[test]
    fn copies_begin_past_the_cache_when_they_would_fill_it() {
        let strategy = CopyStrategy::new(CACHES, |_| true);
        assert_eq!(strategy.first((16 << 20) - 1, CacheHint::Keep), StorePolicy::Cached);
        assert_eq!(strategy.first(16 << 20, CacheHint::Keep), StorePolicy::NonTemporal);
        assert_eq!(strategy.first((8 << 20) - 1, CacheHint::Bypass), StorePolicy::Cached);
        assert_eq!(strategy.first(8 << 20, CacheHint::Bypass), StorePolicy::NonTemporal);
    }

    #[test]
    fn long_copies_are_tuned_where_there_are_two_ways() {
        let strategy = CopyStrategy::new(CACHES, |_| true);
        for (purpose, from) in [(StorePurpose::Put, SHORT), (StorePurpose::Combine, TUNED_COMBINATION)] {
            let is_tuned = |len| strategy.is_tuned(len, purpose);
            assert!(!is_tuned(from - 1) && is_tuned(from) && is_tuned(1 << 30));
        }
        assert!(strategy.stays_in_cache((16 << 20) - 1) && !strategy.stays_in_cache(16 << 20));
        assert!(
            !CopyStrategy::new(CACHES, |kernel| kernel == CopyKernel::Memcpy)
                .is_tuned(1 << 20, StorePurpose::Put)
        );
        assert!(strategy.fits_cache(CACHES.shared) && !strategy.fits_cache(CACHES.shared + 2));
    }

    #[test]
    fn cache_sizes_are_read_with_their_units() {
        assert_eq!(parse_size("512K"), Some(512 << 10));
        assert_eq!(parse_size("32M"), Some(32 << 20));
        assert_eq!(parse_size("64"), Some(64));
        assert_eq!(parse_size("64Q"), None);
        assert_eq!(parse_size(""), None);
        let found = CacheSizes::of_this_machine();
        assert!(found.own > 0 && found.shared >= found.own);
    }

    #[test]
    fn the_choice_for_any_length_can_be_run_here() {
        for len in [0, 1, 64, 4096, 1 << 20, 1 << 30, u64::MAX] {
            for cache_hint in [CacheHint::Keep, CacheHint::Bypass] {
                assert!(choose(len, cache_hint).is_supported());
            }
        }
    }
}
