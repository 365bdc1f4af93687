//! What the devices of a job do until some of them are killed: they restore what is there, look at
//! it, and keep the next state, and the next.

use std::io::Write;
use std::path::PathBuf;

use shmccl::comm::{CheckpointFault, JoinedAs, join_job};
use shmccl::heap::DeviceBuffer;
use shmccl::{Communicator, Error, Result};

/// The lengths of what each rank has, in bytes: of several chunks, of one, of a part of one.
const LENS: [usize; 3] = [(1 << 20) + 4097, 5000, 1];

/// Where a job keeps its checkpoints, and how many each is to write.
pub(crate) const DIRECTORY: &str = "KEEP_DIRECTORY";
pub(crate) const COUNT: &str = "KEEP_COUNT";

/// The body of a device process.
pub(crate) fn be_a_keeper() {
    say(&format!("start {}", std::process::id()));
    let mut comm = match join_job() {
        Ok(Some(JoinedAs::Device(comm))) => *comm,
        // Somebody was killed before all had come.
        Err(Error::PeerLost { .. }) => std::process::exit(1),
        other => panic!("{other:?}"),
    };
    match keep(&mut comm).and_then(|()| comm.finalize()) {
        Ok(()) => say("done"),
        Err(Error::PeerLost { .. }) => std::process::exit(1),
        Err(error) => panic!("{error}"),
    }
}

fn keep(comm: &mut Communicator) -> Result<()> {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let count: u64 = std::env::var(COUNT).unwrap().parse().unwrap();
    let state = State::allocate(comm)?;
    let found = match comm.restore(&directory) {
        Err(error) if matches!(error.detail(), Some(CheckpointFault::Missing)) => 0,
        found => found?,
    };
    assert!(found == 0 || state.holds(comm, found), "torn or mixed: number {found} on rank {}", comm.rank());
    say(&format!("holds {found}"));
    for number in found + 1..=found.saturating_add(count) {
        state.write(comm, number)?;
        say(&format!("begins {number}"));
        assert_eq!(comm.checkpoint(&directory)?, number);
        say(&format!("kept {number}"));
    }
    Ok(())
}

/// What each rank keeps.
pub(crate) struct State(Vec<DeviceBuffer<u8>>);

impl State {
    pub(crate) fn allocate(comm: &mut Communicator) -> Result<Self> {
        LENS.iter().map(|len| comm.alloc(*len)).collect::<Result<_>>().map(Self)
    }

    /// Bytes that no other version, rank or buffer has in the same places.
    pub(crate) fn write(&self, comm: &Communicator, version: u64) -> Result<()> {
        let mut contents = (0..).zip(&self.0);
        contents.try_for_each(|(index, buffer)| {
            buffer.copy_from_slice(0, &contents_of(comm, version, index, buffer.len()))
        })
    }

    pub(crate) fn holds(&self, comm: &Communicator, version: u64) -> bool {
        let mut contents = (0..).zip(&self.0);
        contents.all(|(index, buffer)| buffer.to_vec() == contents_of(comm, version, index, buffer.len()))
    }
}

fn contents_of(comm: &Communicator, version: u64, index: u64, len: usize) -> Vec<u8> {
    let first =
        (version << 16 | u64::from(comm.rank().get()) << 8 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut word = first;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    let words: Vec<u64> = (0..len.div_ceil(8)).map(|_| next()).collect();
    bytemuck::cast_slice(&words)[..len].to_vec()
}

/// Says something to whoever reads the output, in a way that the test harness' own output is not
/// taken for.
pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@ {what}").and_then(|()| out.flush()).unwrap();
}
