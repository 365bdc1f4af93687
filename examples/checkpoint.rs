//! Writes the memory of all ranks to a directory and reads it back. Compares the time with plain
//! writes of as many bytes.
//!
//! ```sh
//! cargo run --release --example checkpoint -- [DIRECTORY [MIB]]
//! ```
//!
//! A long computation does that now and then, and calls `restore` as it starts. The error
//! [`CheckpointFault::Missing`] says that there is none, and it begins anew. It may be killed at
//! any time: `SHMCCL_FAULTS=kill:rank=1,at=4,of=step`.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use shmccl::comm::CheckpointFault;
use shmccl::heap::DeviceBuffer;
use shmccl::{Communicator, Error, Result, launch::Launch};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory =
        arguments.next().map_or_else(|| std::env::temp_dir().join("shmccl-checkpoint"), PathBuf::from);
    let mib: usize = arguments.next().and_then(|mib| mib.parse().ok()).unwrap_or(128);
    let heap_len = (mib as u64 + 16) << 20;
    Launch::new(2)?.heap_len(heap_len).run(|comm| go(comm, &directory, mib << 17)).map(drop)
}

fn go(comm: &mut Communicator, directory: &PathBuf, count: usize) -> Result<()> {
    let state = comm.alloc::<u64>(count)?;
    let begun = match comm.restore(directory) {
        Ok(number) => number,
        Err(error) if matches!(error.detail(), Some(CheckpointFault::Missing)) => 0,
        Err(error) => return Err(error),
    };
    if begun > 0 {
        assert_eq!(state.get(count - 1)?, begun, "as it was written");
    }
    state.fill(begun + 1);
    let written = timed(comm, |comm| comm.checkpoint(directory).map(drop))?;
    let plain = timed(comm, |comm| write_plainly(&state, &directory.join(format!("plain{}", comm.rank()))))?;
    let read = timed(comm, |comm| comm.restore(directory).map(drop))?;
    if comm.rank().get() == 0 {
        let rate = |time: Duration| (2 * 8 * count) as f64 / time.as_secs_f64() / 1e9;
        let mut out = std::io::stdout().lock();
        let line = format!(
            "checkpoint {}: written at {:.2} GB/s, plain files at {:.2} GB/s; checked and read back at {:.2} GB/s",
            begun + 1,
            rate(written),
            rate(plain),
            rate(read)
        );
        writeln!(out, "{line}").map_err(|source| Error::Os { action: "printing", source })?;
    }
    Ok(())
}

/// Measures the time until all ranks have done `work`.
fn timed(comm: &mut Communicator, work: impl FnOnce(&mut Communicator) -> Result<()>) -> Result<Duration> {
    comm.barrier()?;
    let began = Instant::now();
    work(comm)?;
    comm.barrier()?;
    Ok(began.elapsed())
}

/// Writes the bytes of `state` to a file, and waits until they are on the disk; and removes it.
fn write_plainly(state: &DeviceBuffer<u64>, path: &PathBuf) -> Result<()> {
    let failed = |source| Error::Os { action: "writing a plain file", source };
    let mut file = std::fs::File::create(path).map_err(failed)?;
    let mut chunk = vec![0; 1 << 20];
    let (span, len) = (state.span(), state.span().len());
    for offset in (0..len).step_by(chunk.len()) {
        let now = chunk.len().min(usize::try_from(len - offset).unwrap_or(chunk.len()));
        span.copy_out(offset, &mut chunk[..now])?;
        file.write_all(&chunk[..now]).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    std::fs::remove_file(path).map_err(failed)
}
