use std::cell::RefCell;
use std::rc::Rc;

use shmccl::bootstrap::Options;
use shmccl::collective::Algorithm;
use shmccl::launch::launch_threads;
use shmccl::reduce::ReduceOp;

use super::super::layout::Layout;
use super::super::settings::{Average, Memory};
use super::super::trial::Trial;
use super::super::workload::{Ground, Task};
use super::*;
use crate::perf::lane::Lane;

/// Operations by letters: elements that are wrong; `None` where there are too many for that.
fn wrong(comm: &mut Communicator, operation: Operation, bytes: u64, in_place: bool) -> Result<Option<u64>> {
    let mail = mail_len(comm.n_ranks());
    let mut region = |len| comm.alloc_region(len, 128);
    let ground =
        Ground { send: region(bytes)?, recv: region(bytes)?, mail: region(mail)?, stage: region(0)? };
    let gathering = Rc::new(RefCell::new(Gathering::new(comm, Average::Mean, false)?));
    let task = Task {
        operation,
        op: operation.reduces().then_some(ReduceOp::Sum),
        root: Rank::new(1, comm.n_ranks())?,
        layout: Layout::new(operation, bytes, SIZE, comm.n_ranks().into()),
        in_place,
        check: true,
    };
    let places = Places { comm, task: &task, ground };
    let mut wrong = None;
    for ahead in [false, true] {
        let Some(mailed) = Mailed::new(&places, &mut gathering.borrow_mut(), true, ahead)? else {
            continue;
        };
        let workload = Workload::<f32>::new(comm, task.clone(), ground, Memory::Heap)?;
        let mut trial = Trial::new(mailed, workload, &gathering, bytes);
        trial.slice(2 * trial.batch(), &mut Vec::new())?;
        wrong = Some(wrong.unwrap_or(0) + trial.wrong());
    }
    Ok(wrong)
}

#[test]
fn letters_bring_what_the_operations_promise_in_place_and_apart_and_longer_data_take_none() {
    for n_ranks in [2, 3, 5] {
        launch_threads(n_ranks, &Options::default(), |comm| {
            comm.prepare()?;
            for operation in Algorithm::OPERATIONS.into_iter().chain([Operation::AllToAllV, Operation::Send])
            {
                for bytes in [0, 4, 120, 124, 1000, BATCH_BYTES, 8 * BATCH_BYTES] {
                    let layout = Layout::new(operation, bytes, SIZE, n_ranks.into());
                    let is_short = layout.send() * SIZE <= BATCH_BYTES;
                    // Blocks that are exchanged in place have no yardstick of their own.
                    let is_exchange = matches!(operation, Operation::AllToAll | Operation::AllToAllV);
                    for in_place in [false, !is_exchange] {
                        let wrong = wrong(comm, operation, bytes, in_place)?;
                        assert_eq!(wrong, is_short.then_some(0), "{operation}, {bytes} among {n_ranks}");
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    }
}
