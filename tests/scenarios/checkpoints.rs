//! Checkpoints: what is written comes back, whoever dies leaves one that is whole, and what is
//! damaged or does not fit changes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use shmccl::bootstrap::Options;
use shmccl::comm::{CheckpointFault, Collectives};
use shmccl::heap::DeviceBuffer;
use shmccl::launch::launch_threads;
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Error, Result};

use crate::harness::{Job, Watchdog, pattern};

/// A directory of a test's own that goes with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn with(faults: &str) -> Options {
    Options { heap_len: 16 << 20, faults: faults.parse().unwrap(), ..Options::default() }
}

const LENS: [usize; 5] = [1, 0, 100_000, (1 << 20) + 1, 4096];

fn allocate(comm: &mut Communicator) -> Result<Vec<DeviceBuffer<u8>>> {
    LENS.iter().map(|len| comm.alloc::<u8>(*len)).collect()
}

/// What rank and version have in buffer `index`.
fn contents(comm: &Communicator, version: u64, index: usize) -> Vec<u8> {
    pattern(version * 1000 + u64::from(comm.rank().get()) * 10 + index as u64, LENS[index])
}

fn write(comm: &Communicator, buffers: &[DeviceBuffer<u8>], version: u64) -> Result<()> {
    (0..)
        .zip(buffers)
        .try_for_each(|(index, buffer)| buffer.copy_from_slice(0, &contents(comm, version, index)))
}

/// Which version the buffers hold; `None` when that is none of those up to 9.
fn version(comm: &Communicator, buffers: &[DeviceBuffer<u8>]) -> Option<u64> {
    let holds = |version: &u64| {
        (0..).zip(buffers).all(|(index, buffer)| buffer.to_vec() == contents(comm, *version, index))
    };
    (0..10).find(holds)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Processes of a job run in different processes, so that the directory is named after their
/// launcher.
pub(crate) fn common_directory(name: &str) -> PathBuf {
    let job = std::env::var("SHMCCL_JOB").unwrap_or_else(|_| std::process::id().to_string());
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{job}"))
}

scenario!(what_was_written_comes_back_and_the_newest_counts, Job::of(3).heap_len(16 << 20), |comm| {
    let directory = common_directory("newest").join("made/on/the/way");
    let gone = comm.alloc::<u8>(777)?;
    let buffers = allocate(comm)?;
    comm.free(gone)?;
    for number in 1..=3 {
        write(comm, &buffers, number)?;
        assert_eq!(comm.checkpoint(&directory)?, number);
        comm.barrier()?;
        assert_eq!(names(&directory), ["CURRENT", &format!("generation-{number}")]);
        comm.barrier()?;
    }
    write(comm, &buffers, 9)?;
    // Communicators keep regions in the heap as well: these are not for a checkpoint to change.
    comm.all_reduce_in_place(&mut vec![1_u64; 3000], &ReduceOp::Sum)?;
    assert_eq!(comm.restore(&directory)?, 3);
    assert_eq!(version(comm, &buffers), Some(3));
    let mut sum = vec![1_u64; 3000];
    comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
    assert!(sum.iter().all(|sum| *sum == 3));
    comm.barrier()?;
    if comm.rank().get() == 0 {
        fs::remove_dir_all(common_directory("newest")).unwrap();
    }
    comm.barrier()?;
});

/// How long a few jobs may take that write to a disk and read from it, however many others do so.
const PATIENCE: Duration = Duration::from_secs(60);

/// More steps than there are in writing a checkpoint.
const MOST: u64 = 500;

/// Restores in a job of its own: the version on each rank, or what is wrong on the first that says
/// so.
fn restored(n_ranks: u32, directory: &Path) -> Result<Vec<Option<u64>>> {
    launch_threads(n_ranks, &with(""), |comm| {
        let buffers = allocate(comm)?;
        write(comm, &buffers, 8)?;
        let outcome = comm.restore(directory);
        if outcome.is_err() {
            assert_eq!(version(comm, &buffers), Some(8), "nothing has changed");
            // All can go on.
            comm.barrier()?;
        }
        outcome.map(|_| version(comm, &buffers))
    })
}

fn written(n_ranks: u32, directory: &Path, number: u64, faults: &str) -> Result<Vec<u64>> {
    launch_threads(n_ranks, &with(faults), |comm| {
        let buffers = allocate(comm)?;
        write(comm, &buffers, number)?;
        comm.checkpoint(directory)
    })
}

#[test]
fn whoever_dies_at_whatever_step_leaves_a_checkpoint_that_is_whole() {
    let scratch = Scratch::new("deaths");
    let (mut old, mut new, mut all) = (0, 0, 0);
    for victim in 0..2 {
        for number in 1.. {
            assert!(number < MOST, "writing a checkpoint takes rank {victim} more than {MOST} steps");
            let _watchdog = Watchdog::start(&format!("death of {victim} at step {number}"), PATIENCE);
            written(2, &scratch.0, 1, "").unwrap();
            let outcome = written(2, &scratch.0, 2, &format!("kill:rank={victim},of=step,at={number}"));
            match outcome {
                Err(Error::FaultInjected { hit }) => assert_eq!(hit.number, number),
                Ok(_) => break,
                Err(error) => panic!("step {number} of {victim}: {error}"),
            }
            all += 1;
            let versions = restored(2, &scratch.0).unwrap();
            assert_eq!(versions[0], versions[1], "step {number} of {victim}");
            match versions[0] {
                Some(1) => old += 1,
                Some(2) => new += 1,
                other => panic!("step {number} of {victim}: {other:?}"),
            }
        }
    }
    assert!(old > 8 && new > 0 && old + new == all, "{old} {new} of {all}");
    written(2, &scratch.0, 3, "").unwrap();
    assert_eq!(names(&scratch.0).len(), 2, "nothing is left of attempts: {:?}", names(&scratch.0));
    assert_eq!(restored(2, &scratch.0).unwrap(), [Some(3); 2]);
}

/// What is wrong with a checkpoint, by the rank that says so.
fn fault(outcome: Result<Vec<Option<u64>>>) -> (String, CheckpointFault) {
    match outcome {
        Err(Error::Checkpoint { path, fault }) => {
            (path.display().to_string(), *fault.downcast().expect("a fault of a checkpoint"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_file_is_found_before_a_byte_changes() {
    let scratch = Scratch::new("damaged");
    written(2, &scratch.0, 4, "").unwrap();
    let file = scratch.0.join("generation-1/rank1");
    let whole = fs::read(&file).unwrap();
    let in_chunks = [60, 200, 50_000, 150_000, whole.len() / 2, whole.len() - 1];
    for at in [0, 7, 8, 16, 24, 32, 39, 40, 47, 119, 120, 123].into_iter().chain(in_chunks) {
        let _watchdog = Watchdog::start(&format!("damage at byte {at}"), PATIENCE);
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&file, bytes).unwrap();
        let (path, fault) = fault(restored(2, &scratch.0));
        let named = path.ends_with("generation-1/rank1") && matches!(fault, CheckpointFault::Damaged { .. });
        assert!(named, "byte {at}: {path}: {fault}");
    }
    let longer = [&whole[..], &[0]].concat();
    for bytes in [&whole[..whole.len() - 1], &whole[..100], &[], &longer] {
        fs::write(&file, bytes).unwrap();
        assert!(
            matches!(fault(restored(2, &scratch.0)).1, CheckpointFault::Damaged { .. }),
            "{}",
            bytes.len()
        );
    }
    fs::remove_file(&file).unwrap();
    assert!(matches!(fault(restored(2, &scratch.0)).1, CheckpointFault::Io { .. }));
    // The file of another rank, whole in itself.
    fs::copy(scratch.0.join("generation-1/rank0"), &file).unwrap();
    assert!(matches!(fault(restored(2, &scratch.0)).1, CheckpointFault::Damaged { .. }));
    fs::write(&file, &whole).unwrap();
    assert_eq!(restored(2, &scratch.0).unwrap(), [Some(4); 2]);
    let current = fs::read_to_string(scratch.0.join("CURRENT")).unwrap();
    fs::write(scratch.0.join("CURRENT"), current.replace("generation 1", "generation 2")).unwrap();
    assert!(matches!(fault(restored(2, &scratch.0)).1, CheckpointFault::Damaged { .. }));
}

#[test]
fn what_was_corrupted_on_the_way_to_the_disk_is_found_when_it_is_restored() {
    let _watchdog = Watchdog::start("corrupted checkpoints", Duration::from_secs(60));
    let scratch = Scratch::new("corrupted");
    written(2, &scratch.0, 5, "corrupt:rank=1,at=2,of=file").unwrap();
    let told = fault(restored(2, &scratch.0)).1.to_string();
    assert!(
        told.starts_with("a chunk of data is not what was written; the file is damaged: restore it"),
        "{told}"
    );
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused_with_what_to_do() {
    let _watchdog = Watchdog::start("misfits", Duration::from_secs(60));
    let scratch = Scratch::new("misfits");
    let (_, missing) = fault(restored(2, &scratch.0));
    assert!(matches!(missing, CheckpointFault::Missing), "{missing}");
    written(2, &scratch.0, 1, "").unwrap();
    let ranks = fault(restored(3, &scratch.0)).1.to_string();
    assert_eq!(ranks, "it is of 2 ranks, and this job has 3; start as many");
    for (first, expected) in
        [(2, "5 allocations, the first that differs at 0, and this job has 1"), (1, "at 64")]
    {
        let outcome = launch_threads(2, &with(""), |comm| {
            comm.alloc::<u8>(first)?;
            comm.restore(&scratch.0).map(|_| None)
        });
        let layout = fault(outcome).1.to_string();
        assert!(layout.contains(expected) && layout.contains("allocate the same"), "{layout}");
    }
    // Each rank names another directory: nobody's checkpoint is replaced.
    let both = Scratch::new("both");
    let outcome = launch_threads(2, &with(""), |comm| {
        allocate(comm)?;
        comm.checkpoint(if comm.rank().get() == 0 { &both.0 } else { &scratch.0 })
    });
    assert!(matches!(outcome, Err(Error::Mismatch { .. })), "{outcome:?}");
    assert_eq!(restored(2, &scratch.0).unwrap(), [Some(1); 2]);
    // Nor is half of one restored, though each is the first in its directory.
    written(2, &both.0, 2, "").unwrap();
    let outcome = launch_threads(2, &with(""), |comm| {
        let buffers = allocate(comm)?;
        write(comm, &buffers, 8)?;
        let error = comm.restore(if comm.rank().get() == 0 { &both.0 } else { &scratch.0 }).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        Ok(version(comm, &buffers))
    });
    assert_eq!(outcome.unwrap(), [Some(8); 2]);
    // Where there can be no directory the first rank says so, and the others that it was the first.
    fs::create_dir_all(&both.0).unwrap();
    let file = both.0.join("file");
    fs::write(&file, "x").unwrap();
    let told = Mutex::new(Vec::new());
    launch_threads(2, &with(""), |comm| {
        let error = comm.checkpoint(&file).unwrap_err();
        told.lock().unwrap().push(match error {
            Error::Checkpoint { fault, .. } => {
                matches!(fault.downcast_ref(), Some(CheckpointFault::Io { .. }))
            }
            Error::FailedElsewhere { operation: "checkpoint", rank } => rank.get() == 0,
            _ => false,
        });
        comm.barrier()
    })
    .unwrap();
    assert_eq!(told.into_inner().unwrap(), [true; 2]);
}
