//! Processes without a launcher meet under a unique id, and each greets its neighbour.
//!
//! In one terminal `meet 2 0` makes the id and prints it; in another one, `meet 2 1 ID` takes it.
//! Without an id on its command line, any rank but 0 reads it from its input, so one line will do:
//! `meet 2 0 | meet 2 1`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples print")]

use std::error::Error;

use shmccl::channel::Channel;
use shmccl::{Communicator, UniqueId};

const USAGE: &str = "usage: meet N_RANKS RANK [ID]";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (n_ranks, rank) = match args.as_slice() {
        [n_ranks, rank, ..] => (n_ranks.parse()?, rank.parse()?),
        _ => return Err(USAGE.into()),
    };
    let id: UniqueId = match (args.get(2), rank) {
        (Some(id), _) => id.parse()?,
        (None, 0) => {
            // This process hosts the meeting from now on.
            let id = UniqueId::new()?;
            println!("{id}");
            id
        }
        (None, _) => {
            let mut id = String::new();
            std::io::stdin().read_line(&mut id)?;
            id.parse()?
        }
    };
    // Returns when all ranks have called it.
    let comm = Communicator::init_rank(n_ranks, &id, rank)?;
    Ok(greet(comm)?)
}

/// From here on it does not matter how the ranks have come together.
fn greet(mut comm: Communicator) -> shmccl::Result<()> {
    let cells = comm.alloc::<u64>(2)?;
    cells.set(0, std::process::id().into())?;
    comm.memory_channel(comm.right())?.put(cells.part(1, 1)?.offset, cells.part(0, 1)?.offset, 8)?;
    // Direct puts from before the barrier are there after it.
    comm.barrier()?;
    // The standard output may be a pipe whose reader has left; one string is one write.
    let line =
        format!("rank {} was greeted by rank {}, process {}\n", comm.rank(), comm.left(), cells.get(1)?);
    eprint!("{line}");
    comm.finalize()
}
