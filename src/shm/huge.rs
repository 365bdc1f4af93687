//! Huge pages: asking for them, and finding out whether there are any.
//!
//! The kernel takes the advice for shared memory without complaint and then mostly ignores it, as its own setting says.
//! So the answer to the advice is that setting, and the proof is what the process's page tables hold afterwards.

use nix::sys::mman::{MmapAdvise, madvise};

use super::mapping::{Mapping, to_usize};

/// What became of the advice to use huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugeAdvice {
    /// The kernel uses huge pages for shared memory when it has them.
    Honoured,
    /// The kernel took the advice, but its setting forbids huge pages for shared memory.
    Ignored,
    /// The kernel refused the advice (no huge pages built in, or not for this kind of memory).
    Refused,
}

/// The kernel's setting for huge pages in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePolicy {
    /// Always, or where a segment is long enough.
    Always,
    /// Where it was advised.
    Advise,
    /// Never.
    Never,
    /// There is no such setting.
    Unknown,
}

const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

impl HugePolicy {
    /// Reads the setting of this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        std::fs::read_to_string(SETTING).map_or(Self::Unknown, |text| Self::parse(&text))
    }

    /// Reads "always within_size advise [never] deny force".
    fn parse(text: &str) -> Self {
        let chosen = text.split_ascii_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
        match chosen {
            Some("always" | "within_size" | "force") => Self::Always,
            Some("advise") => Self::Advise,
            Some("never" | "deny") => Self::Never,
            _ => Self::Unknown,
        }
    }
}

impl Mapping {
    /// Advises the kernel to use huge pages, and tells what to expect.
    ///
    /// Worth giving before the memory is committed: pages that are there already are not exchanged at once.
    #[must_use]
    pub fn advise_huge(&self) -> HugeAdvice {
        if !self.advise(MmapAdvise::MADV_HUGEPAGE) {
            return HugeAdvice::Refused;
        }
        match HugePolicy::of_this_machine() {
            HugePolicy::Always | HugePolicy::Advise => HugeAdvice::Honoured,
            HugePolicy::Never | HugePolicy::Unknown => HugeAdvice::Ignored,
        }
    }

    /// Enters the pages of this mapping into the process's page tables now, instead of at the first access to each.
    ///
    /// To be called for committed memory. Answers whether the kernel did it; if not, the first accesses do it one by one.
    pub fn populate(&self) -> bool {
        self.advise(MmapAdvise::MADV_POPULATE_WRITE)
    }

    /// How many bytes of this mapping are in huge pages now.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let start = self.base().as_ptr().addr() as u64;
        huge_bytes_within(&smaps, start, start + self.len())
    }

    fn advise(&self, advice: MmapAdvise) -> bool {
        // SAFETY: the whole range is this mapping's own, mapped while `self` lives; neither advice that this file gives
        // changes any contents. On memory that is not page-aligned or not mapped the kernel answers an error.
        unsafe { madvise(self.base().cast(), to_usize(self.len()), advice) }.is_ok()
    }
}

/// Sums the huge pages of the areas in `smaps` that start within `start..end`.
fn huge_bytes_within(smaps: &str, start: u64, end: u64) -> u64 {
    let mut inside = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((from, _)) = first.split_once('-') {
            inside = u64::from_str_radix(from, 16).is_ok_and(|from| (start..end).contains(&from));
        } else if inside && matches!(first, "ShmemPmdMapped:" | "FilePmdMapped:" | "AnonHugePages:") {
            kib += words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    kib * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::Rank;
    use crate::shm::{Backing, Identity, Segment, Window};

    #[test]
    fn the_setting_is_the_word_in_brackets() {
        assert_eq!(HugePolicy::parse("always within_size advise [never] deny force"), HugePolicy::Never);
        assert_eq!(HugePolicy::parse("always within_size [advise] never deny force\n"), HugePolicy::Advise);
        assert_eq!(HugePolicy::parse("[always] within_size advise never"), HugePolicy::Always);
        assert_eq!(HugePolicy::parse(""), HugePolicy::Unknown);
    }

    #[test]
    fn huge_pages_are_counted_within_the_mapping_only() {
        let smaps = "1000-2000 rw-s 0 00:01 5 /memfd\nShmemPmdMapped:  2048 kB\nFilePmdMapped: 0 kB\n\
                     2000-3000 rw-p 0 00:00 0\nAnonHugePages:  4096 kB\n";
        assert_eq!(huge_bytes_within(smaps, 0x1000, 0x2000), 2 << 20);
        assert_eq!(huge_bytes_within(smaps, 0x1000, 0x3000), 6 << 20);
        assert_eq!(huge_bytes_within(smaps, 0x5000, 0x6000), 0);
    }

    #[test]
    fn what_is_mapped_into_a_window_is_advised() {
        let segment = Segment::create(&Backing::Anonymous, 4 << 20, Identity::default()).unwrap();
        let mut window = Window::reserve(1, 4 << 20).unwrap();
        let place = window.map(Rank::known(0), &segment).unwrap();
        let area = format!("{:x}-", place.base().as_ptr().addr());
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let flags = smaps.lines().skip_while(|line| !line.starts_with(&area));
        let flags = flags.skip(1).find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        let is_compiled_in = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(flags.split_ascii_whitespace().any(|flag| flag == "hg"), is_compiled_in, "{flags}");
    }

    #[test]
    fn the_answer_to_the_advice_agrees_with_the_setting() {
        let segment = Segment::create(&Backing::Anonymous, 4 << 20, Identity::default()).unwrap();
        let mapping = segment.map().unwrap();
        let advice = mapping.advise_huge();
        segment.commit(0, segment.len()).unwrap();
        mapping.populate();
        if advice != HugeAdvice::Honoured {
            assert_eq!(mapping.huge_bytes(), 0);
        }
    }
}
