//! What puts bring is what the operations promise.

use std::cell::RefCell;
use std::rc::Rc;

use shmccl::bootstrap::Options;
use shmccl::collective::Algorithm;
use shmccl::launch::launch_threads;
use shmccl::reduce::ReduceOp;

use super::*;
use crate::case::CaseData;
use crate::interleave::Contender;
use crate::layout::CaseLayout;
use crate::report::Memory;
use crate::sync::{Gathering, RankAverage};
use crate::timed_case::{RunCase, TimedCase};

impl RunCase<f32> for ByPuts {
    fn run(&mut self, _data: &mut CaseData<f32>, _gathering: &mut Gathering) -> Result<()> {
        Self::run(self)
    }
}

/// An operation of `bytes` in its larger buffer, with data that are checked.
fn spec_of(comm: &Communicator, operation: Operation, bytes: u64) -> Result<CaseSpec> {
    let n_ranks = comm.n_ranks();
    Ok(CaseSpec {
        operation,
        op: operation.reduces().then_some(ReduceOp::Sum),
        root: Rank::new(1, n_ranks)?,
        layout: CaseLayout::new(operation, bytes, 4, n_ranks.into()),
        in_place: false,
        check: true,
    })
}

/// Operations by puts: elements that are wrong.
fn wrong_by_puts(comm: &mut Communicator, operation: Operation, bytes: u64) -> Result<u64> {
    let buffers = CollectiveBuffers::alloc(comm, bytes, 0, 0)?;
    let gathering = Rc::new(RefCell::new(Gathering::new(comm, RankAverage::Mean, false)?));
    let spec = spec_of(comm, operation, bytes)?;
    let puts = ByPuts::new(comm, &spec, DataType::F32, buffers)?;
    let data = CaseData::<f32>::new(comm, spec, buffers, Memory::Heap)?;
    let mut case = TimedCase::new(puts, data, &gathering, bytes);
    case.slice(2 * case.batch(), &mut Vec::new())?;
    Ok(case.wrong())
}

#[test]
fn puts_bring_what_the_operations_promise_by_slots_that_take_turns_and_where_readers_are_asked() {
    for n_ranks in [2, 3, 5] {
        launch_threads(n_ranks, &Options::default(), |comm| {
            for operation in Algorithm::OPERATIONS.into_iter().filter(|operation| is_done_by_puts(*operation))
            {
                for bytes in [0, 4, 124, 1000, SHORT_BYTES, SHORT_BYTES + 4, 150_004] {
                    let wrong = wrong_by_puts(comm, operation, bytes)?;
                    assert_eq!(wrong, 0, "{operation}, {bytes} among {n_ranks}");
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn without_room_in_the_heap_there_are_no_puts_on_any_rank_and_ranks_go_on() {
    let options = Options { heap_len: 24 << 20, ..Options::default() };
    launch_threads(3, &options, |comm| {
        let bytes = 8 << 20;
        let buffers = CollectiveBuffers::alloc(comm, bytes, 0, 0)?;
        for (operation, has_room) in [(Operation::AllReduce, false), (Operation::AllGather, true)] {
            let spec = spec_of(comm, operation, bytes)?;
            let puts = ByPuts::if_there_is_room(comm, &spec, DataType::F32, buffers)?;
            assert_eq!(puts.is_some(), has_room, "{operation}");
            comm.barrier()?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn no_heap_is_asked_for_where_nothing_is_done_by_puts_and_slots_are_whole_lines() {
    assert_eq!(landing_len(Operation::Send, 4, 1 << 20), 0);
    assert_eq!(landing_len(Operation::AllGather, 4, 1 << 20), 4 * 2 * LINE);
    assert_eq!(landing_len(Operation::AllGather, 4, 8), 4 * 4 * LINE);
    assert_eq!(landing_len(Operation::AllReduce, 3, 1 << 20), 3 * ((1 << 20) + 2 * LINE));
    assert_eq!(landing_len(Operation::AllReduce, 3, u64::MAX), u64::MAX);
}
