use std::cell::RefCell;
use std::rc::Rc;

use shmccl::bootstrap::Options;
use shmccl::collective::Operation;
use shmccl::launch::launch_threads;
use shmccl::reduce::ReduceOp;

use super::super::layout::Layout;
use super::super::settings::{Average, Memory};
use super::super::trial::Trial;
use super::super::workload::Task;
use super::*;
use crate::perf::lane::Lane;

/// Sums of lengths around those of pieces, by the loop: elements that are wrong.
fn wrong(comm: &mut Communicator, bytes: u64, in_place: bool) -> Result<u64> {
    let mut region = |len| comm.alloc_region(len, 128);
    let ground =
        Ground { send: region(0)?, recv: region(0)?, mail: region(0)?, stage: region(stage_len(bytes))? };
    let gathering = Rc::new(RefCell::new(Gathering::new(comm, Average::Mean, false)?));
    let task = Task {
        operation: Operation::AllReduce,
        op: Some(ReduceOp::Sum),
        root: comm.rank(),
        layout: Layout::new(Operation::AllReduce, bytes, SIZE as u64, comm.n_ranks().into()),
        in_place,
        check: true,
    };
    let mut workload = Workload::<f32>::new(comm, task, ground, Memory::Ordinary)?;
    let behind = workload.own().expect("ordinary memory").behind_line();
    let staged = Staged::new(comm, ground, behind)?;
    let mut trial = Trial::new(staged, workload, &gathering, u64::MAX).settled(Memory::Ordinary);
    for cut in Cut::all(false) {
        trial.way().cut(cut);
        trial.slice(2, &mut Vec::new())?;
    }
    Ok(trial.wrong())
}

#[test]
fn sums_are_right_whatever_the_pieces_in_place_and_apart() {
    for n_ranks in [2, 3] {
        launch_threads(n_ranks, &Options::default(), |comm| {
            let first = PIECES[0];
            for bytes in [0, 4, 132, first - 4, first, first + 4, 3 * first, 5 * first + 1000] {
                for in_place in [false, true] {
                    assert_eq!(wrong(comm, bytes, in_place)?, 0, "{bytes} among {n_ranks}");
                }
            }
            Ok(())
        })
        .unwrap();
    }
}
