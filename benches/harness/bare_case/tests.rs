//! What bare loops bring is what the operations promise.

use std::cell::RefCell;
use std::rc::Rc;

use shmccl::Rank;
use shmccl::bootstrap::Options;
use shmccl::collective::{Algorithm, Operation};
use shmccl::launch::launch_threads;
use shmccl::reduce::ReduceOp;
use shmccl_limits::eager::{MOST_BYTES, eager_len};
use shmccl_limits::staged_sum::{PIECES, StagedVariant, staging_len};

use super::*;
use crate::interleave::Contender;
use crate::layout::CaseLayout;
use crate::report::Memory;
use crate::sync::RankAverage;
use crate::timed_case::TimedCase;

/// Returns the case of an operation on so many bytes, whose result is checked.
fn checked_spec(comm: &Communicator, operation: Operation, bytes: u64, in_place: bool) -> Result<CaseSpec> {
    Ok(CaseSpec {
        operation,
        op: operation.reduces().then_some(ReduceOp::Sum),
        root: Rank::new(1, comm.n_ranks())?,
        layout: CaseLayout::new(operation, bytes, SIZE, comm.n_ranks().into()),
        in_place,
        check: true,
    })
}

/// Operations by slots: elements that are wrong; `None` where there are too many for that.
fn wrong_by_slots(
    comm: &mut Communicator,
    operation: Operation,
    bytes: u64,
    in_place: bool,
) -> Result<Option<u64>> {
    let eager = eager_len(comm.n_ranks());
    let buffers = CollectiveBuffers::alloc(comm, bytes, eager, 0)?;
    let gathering = Rc::new(RefCell::new(Gathering::new(comm, RankAverage::Mean, false)?));
    let spec = checked_spec(comm, operation, bytes, in_place)?;
    let all = rank_buffers(comm, &spec, buffers)?;
    let mut wrong = None;
    for ahead in [false, true] {
        let Some(eager) = EagerLimit::new(&all, || gathering.borrow_mut().meet(), true, ahead)? else {
            continue;
        };
        let data = CaseData::<f32>::new(comm, spec.clone(), buffers, Memory::Heap)?;
        let mut case = TimedCase::new(eager, data, &gathering, bytes);
        case.slice(2 * case.batch(), &mut Vec::new())?;
        wrong = Some(wrong.unwrap_or(0) + case.wrong());
    }
    Ok(wrong)
}

#[test]
fn slots_bring_what_the_operations_promise_in_place_and_apart_and_longer_data_take_none() {
    for n_ranks in [2, 3, 5] {
        launch_threads(n_ranks, &Options::default(), |comm| {
            comm.prepare()?;
            for operation in Algorithm::OPERATIONS.into_iter().chain([Operation::AllToAllV, Operation::Send])
            {
                for bytes in [0, 4, 120, 124, 1000, MOST_BYTES, 8 * MOST_BYTES] {
                    let layout = CaseLayout::new(operation, bytes, SIZE, n_ranks.into());
                    let is_short = layout.send() * SIZE <= MOST_BYTES;
                    // Blocks that are exchanged in place have no limit of their own.
                    let is_exchange = matches!(operation, Operation::AllToAll | Operation::AllToAllV);
                    for in_place in [false, !is_exchange] {
                        let wrong = wrong_by_slots(comm, operation, bytes, in_place)?;
                        assert_eq!(wrong, is_short.then_some(0), "{operation}, {bytes} among {n_ranks}");
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Operations by loops over the buffers of all ranks: elements that are wrong.
fn wrong_by_shares(comm: &mut Communicator, operation: Operation, bytes: u64, in_place: bool) -> Result<u64> {
    let buffers = CollectiveBuffers::alloc(comm, bytes, 0, 0)?;
    let gathering = Rc::new(RefCell::new(Gathering::new(comm, RankAverage::Mean, false)?));
    let spec = checked_spec(comm, operation, bytes, in_place)?;
    let (all, mut wrong) = (rank_buffers(comm, &spec, buffers)?, 0);
    for limit in HeapLimit::all(&all)? {
        let data = CaseData::<f32>::new(comm, spec.clone(), buffers, Memory::Heap)?;
        let mut case = TimedCase::new(limit, data, &gathering, bytes);
        case.slice(2, &mut Vec::new())?;
        wrong += case.wrong();
    }
    Ok(wrong)
}

#[test]
fn shares_of_all_buffers_bring_what_the_operations_promise_in_place_and_apart() {
    for n_ranks in [2, 3, 5] {
        launch_threads(n_ranks, &Options::default(), |comm| {
            for operation in Algorithm::OPERATIONS {
                for bytes in [4, 1000, 16 << 10, 150_004] {
                    for in_place in [false, operation != Operation::AllToAll] {
                        let wrong = wrong_by_shares(comm, operation, bytes, in_place)?;
                        assert_eq!(wrong, 0, "{operation}, {bytes} among {n_ranks}");
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Sums of lengths around those of pieces, by the loop: elements that are wrong.
fn wrong_by_staging(comm: &mut Communicator, bytes: u64, in_place: bool) -> Result<u64> {
    let buffers = CollectiveBuffers::alloc(comm, 0, 0, staging_len(bytes))?;
    let gathering = Rc::new(RefCell::new(Gathering::new(comm, RankAverage::Mean, false)?));
    let spec = CaseSpec {
        operation: Operation::AllReduce,
        op: Some(ReduceOp::Sum),
        root: comm.rank(),
        layout: CaseLayout::new(Operation::AllReduce, bytes, SIZE, comm.n_ranks().into()),
        in_place,
        check: true,
    };
    let mut data = CaseData::<f32>::new(comm, spec, buffers, Memory::Ordinary)?;
    let behind = data.own().expect("ordinary memory").behind_line();
    let staged = StagedLimit::new(comm, buffers.staging, behind)?;
    let mut case = TimedCase::new(staged, data, &gathering, u64::MAX).settled(Memory::Ordinary);
    for cut in StagedVariant::all(false) {
        case.runner().set_variant(cut);
        case.slice(2, &mut Vec::new())?;
    }
    Ok(case.wrong())
}

#[test]
fn sums_are_right_whatever_the_pieces_in_place_and_apart() {
    for n_ranks in [2, 3] {
        launch_threads(n_ranks, &Options::default(), |comm| {
            let first = PIECES[0];
            for bytes in [0, 4, 132, first - 4, first, first + 4, 3 * first, 5 * first + 1000] {
                for in_place in [false, true] {
                    assert_eq!(wrong_by_staging(comm, bytes, in_place)?, 0, "{bytes} among {n_ranks}");
                }
            }
            Ok(())
        })
        .unwrap();
    }
}
