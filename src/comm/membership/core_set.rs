//! How many ranks that no launcher has placed share a core.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::bootstrap::CONTRIBUTION_LEN;

/// The share of one rank, divided among its cores.
const SHARE: u64 = 1 << 32;

/// The cores on which a rank may run, one bit each, by which ranks that no launcher has placed
/// count how many of them share a core.
///
/// Each rank tells the others its cores, and counts as using them in equal parts. A rank takes the
/// sum on the emptiest of its own cores, rounded up. So n ranks on the same k cores count n / k
/// each, and a rank with a core of its own counts itself alone. In doubt the count is too high: a
/// wait that yields without need loses little, but one that spins in the way of its peer loses a
/// time slice.
///
/// Cores without a bit share one with another core, which can only raise the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CoreSet([u8; CONTRIBUTION_LEN]);

impl CoreSet {
    /// Returns the cores of the calling thread, or all where the system does not say.
    pub(super) fn own() -> Self {
        let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Self([u8::MAX; CONTRIBUTION_LEN]) };
        Self::of((0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)))
    }

    fn of(cores: impl IntoIterator<Item = usize>) -> Self {
        let mut bits = [0; CONTRIBUTION_LEN];
        for core in cores {
            bits[core / 8 % CONTRIBUTION_LEN] |= 1 << (core % 8);
        }
        Self(bits)
    }

    pub(super) fn bytes(&self) -> &[u8; CONTRIBUTION_LEN] {
        &self.0
    }

    /// Counts the ranks of `all` that share a core of this rank, which is one of them.
    pub(super) fn spinners(&self, all: &[[u8; CONTRIBUTION_LEN]]) -> u32 {
        let mut load = [0; 8 * CONTRIBUTION_LEN];
        for cores in all.iter().map(|bits| Self(*bits)) {
            let part = SHARE / cores.iter().count().max(1) as u64;
            for core in cores.iter() {
                load[core] += part;
            }
        }
        let emptiest = self.iter().map(|core| load[core]).min().unwrap_or(0);
        u32::try_from(emptiest.div_ceil(SHARE)).unwrap_or(u32::MAX).max(1)
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..8 * CONTRIBUTION_LEN).filter(|core| self.0[core / 8] >> (core % 8) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spinners(all: &[CoreSet]) -> Vec<u32> {
        let bits: Vec<_> = all.iter().map(|cores| *cores.bytes()).collect();
        all.iter().map(|cores| cores.spinners(&bits)).collect()
    }

    #[test]
    fn ranks_on_the_same_cores_share_them_when_there_are_more_ranks_than_cores() {
        for n_cores in [1, 2, 3, 7, 64, 512] {
            for n_ranks in [1, n_cores - 1, n_cores, n_cores + 1, 64] {
                let cores = CoreSet::of(0..n_cores);
                let count = cores.spinners(&vec![*cores.bytes(); n_ranks]) as usize;
                assert_eq!(count, n_ranks.div_ceil(n_cores).max(1), "{n_ranks} on {n_cores}");
            }
        }
    }

    #[test]
    fn a_rank_with_a_core_of_its_own_counts_itself_alone() {
        let one = |core| CoreSet::of([core]);
        assert_eq!(spinners(&[one(0), one(1), one(1), one(511)]), [1, 2, 2, 1]);
        // The second one may run anywhere, and goes where the first is not; the first cannot know.
        assert_eq!(spinners(&[one(0), CoreSet::of([0, 1])]), [2, 1]);
    }

    #[test]
    fn cores_beyond_the_bits_and_masks_of_nothing_still_count() {
        assert_eq!(spinners(&[CoreSet::of([0]), CoreSet::of([512])]), [2, 2]);
        assert_eq!(spinners(&[CoreSet::of([])]), [1]);
    }
}
