//! The cores of this machine, and those that other jobs run on.
//!
//! A process of a job that is pinned claims a core, the first of those that it may run on: its
//! launcher binds a socket to a name that stands for the core. The names are those of the kernel's
//! abstract namespace, so nothing is left of a launcher that ends, however it ends. Two launchers
//! that start at once cannot both claim a core. Launchers in another network namespace are not
//! seen.
//!
//! A launching process keeps its claims until it ends, and does not look again: all of its jobs run
//! on the same cores.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Result};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::shm::undivided::ProcessMutex;
use crate::shm::unforked::Unforked;

/// A physical core: the hardware threads of it that this process may use, in order; never empty.
pub(super) type PhysicalCore = Vec<usize>;

/// The claims of this process.
#[derive(Default)]
struct OwnClaims {
    held: BTreeMap<usize, Unforked<UnixDatagram>>,
    /// The cores that other jobs had when this process looked.
    taken: Option<BTreeSet<usize>>,
}

static OWN: ProcessMutex<OwnClaims> = ProcessMutex::new();

fn address(core: usize) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("shmccl-core-{core}"))
}

/// Returns whether another process has claimed `core`. Where the system does not say, none has.
fn is_taken(core: usize) -> bool {
    let probe = || UnixDatagram::unbound()?.connect_addr(&address(core)?);
    probe().is_ok()
}

/// Claims a core for as long as this process lives. Returns whether no other process has it.
pub(crate) fn claim(core: usize) -> bool {
    OWN.with(|own| {
        if own.held.contains_key(&core) {
            return true;
        }
        match Unforked::open(|| UnixDatagram::bind_addr(&address(core)?)) {
            Ok(socket) => own.held.insert(core, socket).is_none(),
            Err(error) => error.kind() != ErrorKind::AddrInUse,
        }
    })
}

/// Finds the cores of `cores` that other jobs had at the first call, has `pin` work around them,
/// and claims what `firsts` names of that. Does so again if another launcher is quicker.
pub(super) fn pin_around<P>(
    cores: &[PhysicalCore],
    pin: impl Fn(&BTreeSet<usize>) -> P,
    firsts: impl Fn(&P) -> Vec<usize>,
) -> P {
    let look = || cores.iter().flatten().copied().filter(|core| is_taken(*core)).collect();
    let mut taken = OWN.with(|own| own.taken.get_or_insert_with(look).clone());
    loop {
        let pinning = pin(&taken);
        let wanted: Vec<_> = firsts(&pinning).into_iter().filter(|core| !taken.contains(core)).collect();
        let lost: Vec<_> = wanted.into_iter().filter(|core| !claim(*core)).collect();
        if lost.is_empty() {
            return pinning;
        }
        taken.extend(lost);
        OWN.with(|own| own.taken = Some(taken.clone()));
    }
}

/// Returns the physical cores that the calling thread may use, or none where the system does not
/// say.
pub(super) fn allowed() -> Vec<PhysicalCore> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    let threads = (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false));
    group(threads, first_sibling)
}

fn group(threads: impl Iterator<Item = usize>, first_sibling: impl Fn(usize) -> usize) -> Vec<PhysicalCore> {
    let mut cores = BTreeMap::<usize, PhysicalCore>::new();
    threads.for_each(|thread| cores.entry(first_sibling(thread)).or_default().push(thread));
    cores.into_values().collect()
}

/// Returns the first hardware thread of the physical core that `thread` is of.
fn first_sibling(thread: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split([',', '-', '\n']).next().and_then(|first| first.parse().ok()).unwrap_or(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyper_threads_are_grouped_by_their_physical_core() {
        assert_eq!(group(0..4, |thread| thread % 2), [[0, 2], [1, 3]]);
        assert_eq!(group([1, 2, 3].into_iter(), |thread| thread / 2 * 2), [vec![1], vec![2, 3]]);
    }

    #[test]
    fn a_core_is_claimed_once_and_its_claim_is_seen_by_others() {
        // No machine has such a core.
        let core = 1 << 20 | std::process::id() as usize;
        assert!(!is_taken(core) && claim(core) && claim(core) && is_taken(core));
        let held = OWN.with(|own| own.held.remove(&core)).unwrap();
        assert!(!claim(core), "another process has it");
        drop(held);
        assert!(!is_taken(core));
    }
}
