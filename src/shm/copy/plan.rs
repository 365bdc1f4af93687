//! What is known about kernels before anything has been measured: which to consider, and which to begin with.

use std::sync::OnceLock;

use super::{CopyKernel, ReadSoon};

/// Copies shorter than this, in bytes, are `memcpy` without looking at anything.
pub(super) const SHORT: usize = 4096;

/// From this length in bytes on it can pay to try another kernel than the first.
pub(super) const TUNED: usize = 16 << 10;

/// The most kernels that are considered for one length.
pub(super) const MAX_CANDIDATES: usize = 3;

/// Sizes of the caches in bytes, as far as one core can use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// The core's own cache (level 2).
    pub own: u64,
    /// The cache that cores share (level 3; level 2 where there is no third).
    pub shared: u64,
}

/// The kernels worth considering on a machine, and the lengths from which to begin with a streaming one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    candidates: [CopyKernel; MAX_CANDIDATES],
    count: usize,
    stream_from: u64,
    stream_always_from: u64,
}

/// Names the kernel that copies of `len` bytes begin with, before this thread has measured any.
#[must_use]
pub fn choose(len: u64, read_soon: ReadSoon) -> CopyKernel {
    if len < SHORT as u64 { CopyKernel::Memcpy } else { Plan::of_this_machine().first(len, read_soon) }
}

/// Reads the machine's caches now, so that no copy does it later. Costs a few files of sysfs, once per process.
pub fn prepare() {
    Plan::of_this_machine();
}

impl Plan {
    #[inline]
    pub(super) fn of_this_machine() -> &'static Self {
        static PLAN: OnceLock<Plan> = OnceLock::new();
        PLAN.get_or_init(|| Self::new(CacheSizes::of_this_machine(), CopyKernel::is_supported))
    }

    /// One kernel through the cache and one past it, the widest of each, and `rep movsb`, which on some processors
    /// takes lines over without reading them first. Not `memcpy` where there is a choice: it is one of these inside,
    /// and does not tell which.
    pub(super) fn new(caches: CacheSizes, is_supported: impl Fn(CopyKernel) -> bool) -> Self {
        use CopyKernel::{Avx2, Avx2Streaming, Avx512, Avx512Streaming, Memcpy, RepMovsb};
        let order = [Avx512, Avx2, Memcpy, RepMovsb, Avx512Streaming, Avx2Streaming];
        let cached = order[..3].iter().copied().find(|&kernel| is_supported(kernel)).unwrap_or(Memcpy);
        let streaming = order[4..].iter().copied().find(|&kernel| is_supported(kernel));
        let mut candidates = [cached; MAX_CANDIDATES];
        let mut count = 1;
        for kernel in [Some(RepMovsb).filter(|&kernel| is_supported(kernel)), streaming].into_iter().flatten()
        {
            candidates[count] = kernel;
            count += 1;
        }
        // Source and target fill the shared cache at half its size; at a quarter, a target that nobody reads soon
        // begins to drive out more than it is worth.
        Self { candidates, count, stream_from: caches.shared / 4, stream_always_from: caches.shared / 2 }
    }

    #[inline]
    pub(super) fn candidates(&self) -> &[CopyKernel] {
        &self.candidates[..self.count]
    }

    /// Whether experience can tell more than [`first`](Self::first) does.
    #[inline]
    pub(super) fn is_tuned(&self, len: usize) -> bool {
        len >= TUNED && (len as u64) < self.stream_always_from && self.count > 1
    }

    /// Index of the candidate to begin with.
    #[inline]
    pub(super) fn first_index(&self, len: u64, read_soon: ReadSoon) -> usize {
        let from = match read_soon {
            ReadSoon::Yes => self.stream_always_from,
            ReadSoon::No => self.stream_from,
        };
        // Where there is a streaming candidate, it is the last.
        let last = self.count - 1;
        if len >= from && self.candidates[last].is_streaming() { last } else { 0 }
    }

    /// The candidate to begin with.
    #[inline]
    pub(super) fn first(&self, len: u64, read_soon: ReadSoon) -> CopyKernel {
        self.candidates[self.first_index(len, read_soon)]
    }
}

impl CacheSizes {
    /// What sysfs says; a modest guess where it says nothing.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let size = |level| cache_size(level).filter(|&size| size > 0);
        let own = size(2).unwrap_or(256 << 10);
        Self { own, shared: size(3).unwrap_or(own).max(own) }
    }
}

/// Size in bytes of the first processor's data or unified cache of `level`.
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
    fn only_supported_kernels_are_considered() {
        use CopyKernel::{Avx2, Avx2Streaming, Avx512, Avx512Streaming, Memcpy, RepMovsb};
        let old = [Memcpy, RepMovsb];
        let usual = [Memcpy, RepMovsb, Avx2, Avx2Streaming];
        let wide = CopyKernel::ALL;
        for supported in [&[Memcpy][..], &old, &usual, &wide] {
            let plan = Plan::new(CACHES, |kernel| supported.contains(&kernel));
            assert!(plan.candidates().iter().all(|kernel| supported.contains(kernel)), "{plan:?}");
            assert!(!plan.candidates().is_empty());
        }
        assert_eq!(Plan::new(CACHES, |_| true).candidates(), [Avx512, RepMovsb, Avx512Streaming]);
    }

    #[test]
    fn copies_begin_past_the_cache_when_they_would_fill_it() {
        let plan = Plan::new(CACHES, |kernel| CopyKernel::ALL[..4].contains(&kernel));
        let begins = |len, read_soon| plan.first(len, read_soon);
        assert_eq!(begins((16 << 20) - 1, ReadSoon::Yes), CopyKernel::Avx2);
        assert_eq!(begins(16 << 20, ReadSoon::Yes), CopyKernel::Avx2Streaming);
        assert_eq!(begins((8 << 20) - 1, ReadSoon::No), CopyKernel::Avx2);
        assert_eq!(begins(8 << 20, ReadSoon::No), CopyKernel::Avx2Streaming);
        let plain = Plan::new(CACHES, |kernel| kernel == CopyKernel::Memcpy);
        assert_eq!(plain.first(u64::MAX, ReadSoon::No), CopyKernel::Memcpy);
    }

    #[test]
    fn only_lengths_between_the_obvious_ones_are_tuned() {
        let plan = Plan::new(CACHES, |_| true);
        assert!(!plan.is_tuned(TUNED - 1) && plan.is_tuned(TUNED));
        assert!(plan.is_tuned((16 << 20) - 1) && !plan.is_tuned(16 << 20));
        assert!(!Plan::new(CACHES, |kernel| kernel == CopyKernel::Memcpy).is_tuned(1 << 20));
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
            for read_soon in [ReadSoon::Yes, ReadSoon::No] {
                assert!(choose(len, read_soon).is_supported());
            }
        }
    }
}
