//! The rule that picks a kernel.

use std::sync::OnceLock;

use super::{CopyKernel, ReadSoon};

/// Copies shorter than this, in bytes, are `memcpy` without looking at anything.
pub(super) const SHORT: usize = 4096;

/// Sizes of the caches in bytes, as far as one core can use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSizes {
    /// The core's own cache (level 2).
    pub own: u64,
    /// The cache that cores share (level 3; level 2 where there is no third).
    pub shared: u64,
}

/// Names the kernel for a copy of `len` bytes.
#[inline]
#[must_use]
pub fn choose(len: u64, read_soon: ReadSoon) -> CopyKernel {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    PLAN.get_or_init(|| Plan::new(CacheSizes::of_this_machine(), CopyKernel::is_supported))
        .kernel(len, read_soon)
}

/// For either kind of copy: lengths (ascending) from which a kernel is used.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    streaming: CopyKernel,
    stream_from_read_soon: u64,
    stream_from: u64,
}

impl Plan {
    fn new(caches: CacheSizes, is_supported: impl Fn(CopyKernel) -> bool) -> Self {
        let streaming = [CopyKernel::Avx512Streaming, CopyKernel::Avx2Streaming]
            .into_iter()
            .find(|&kernel| is_supported(kernel))
            .unwrap_or(CopyKernel::Memcpy);
        Self { streaming, stream_from_read_soon: caches.shared / 2, stream_from: caches.own }
    }

    #[inline]
    fn kernel(&self, len: u64, read_soon: ReadSoon) -> CopyKernel {
        let stream_from = match read_soon {
            ReadSoon::Yes => self.stream_from_read_soon,
            ReadSoon::No => self.stream_from,
        };
        if len >= stream_from { self.streaming } else { CopyKernel::Memcpy }
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
        is_it.then(|| parse_size(read("size")?.trim()))?
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
