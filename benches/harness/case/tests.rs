use shmccl::bootstrap::Options;
use shmccl::collective::Algorithm;
use shmccl::launch::launch_threads;
use shmccl::reduce::{Complex128, DataType, F8E5M2};

use super::*;
use crate::pattern::{ForType, check_operator, operator, with_type};

fn operations() -> impl Iterator<Item = Operation> {
    Algorithm::OPERATIONS.into_iter().chain([Operation::AllToAllV, Operation::Send])
}

fn case_of<T: TestElement>(
    comm: &mut Communicator,
    operation: Operation,
    memory: Memory,
    in_place: bool,
    bytes: u64,
) -> Result<CaseData<T>> {
    comm.prepare()?;
    let buffers = CollectiveBuffers::alloc(comm, bytes, 0, 0)?;
    let spec = CaseSpec {
        operation,
        op: operation.reduces().then_some(ReduceOp::Sum),
        root: Rank::new(1, comm.n_ranks())?,
        layout: CaseLayout::new(operation, bytes, size_of::<T>() as u64, comm.n_ranks().into()),
        in_place,
        check: true,
    };
    CaseData::new(comm, spec, buffers, memory)
}

fn is_right<T: TestElement>(comm: &mut Communicator) -> Result<()> {
    for operation in operations() {
        for memory in [Memory::Heap, Memory::Ordinary] {
            for in_place in [false, true] {
                for bytes in [0, 24, 30_000] {
                    let mut case = case_of::<T>(comm, operation, memory, in_place, bytes)?;
                    for _ in 0..7 {
                        case.rewrite()?;
                        case.run(comm)?;
                        if is_defined(operation, in_place) {
                            case.verify()?;
                        }
                    }
                    assert_eq!(case.wrong, 0, "{operation} {memory:?} {in_place} {bytes}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn every_operation_comes_out_right_in_every_place() {
    launch_threads(3, &Options::default(), is_right::<f32>).unwrap();
    launch_threads(3, &Options::default(), is_right::<F8E5M2>).unwrap();
    launch_threads(3, &Options::default(), is_right::<Complex128>).unwrap();
}

struct EveryOperator<'c>(&'c mut Communicator);

impl ForType for EveryOperator<'_> {
    type Outcome = Result<()>;

    fn run<T: TestElement>(self) -> Result<()> {
        let names = ["sum", "prod", "min", "max", "avg", "mulsum", "band", "bor", "bxor"];
        for name in names.into_iter().filter(|name| check_operator(T::DATA_TYPE, name).is_ok()) {
            let op = operator::<T>(name, self.0.rank()).unwrap();
            let mut case = case_of::<T>(self.0, Operation::AllReduce, Memory::Heap, true, 20_000)?;
            case.pattern = Pattern::new(self.0.n_ranks(), 0..self.0.n_ranks() as usize, Some(&op));
            case.spec.op = Some(op);
            for _ in 0..5 {
                case.rewrite()?;
                case.run(self.0)?;
                case.verify()?;
            }
            assert_eq!(case.wrong, 0, "{:?} {name}", T::DATA_TYPE);
        }
        Ok(())
    }
}

#[test]
fn every_operator_gives_what_is_expected_of_it_in_every_type() {
    launch_threads(5, &Options::default(), |comm| {
        DataType::ALL.into_iter().try_for_each(|data_type| with_type(data_type, EveryOperator(comm)))
    })
    .unwrap();
}

#[test]
fn every_element_that_is_corrupted_is_counted_and_no_other() {
    launch_threads(2, &Options::default(), |comm| {
        for operation in operations() {
            let mut case = case_of::<f32>(comm, operation, Memory::Heap, false, 16 << 10)?;
            case.rewrite()?;
            case.run(comm)?;
            let CaseBuffers::Heap { recv, .. } = &case.buffers else { panic!("not in the heap") };
            for index in [0, 7, 509, recv.len() - 1] {
                recv.set(index, recv.get(index)? + 0.5)?;
            }
            case.verify()?;
            let counted = if case.receives() { 4 } else { 0 };
            assert_eq!(case.wrong, counted, "{operation}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_result_of_the_turn_before_is_wrong() {
    launch_threads(2, &Options::default(), |comm| {
        for operation in operations() {
            let mut case = case_of::<f32>(comm, operation, Memory::Ordinary, false, 4 << 10)?;
            case.rewrite()?;
            case.run(comm)?;
            case.rewrite()?;
            case.verify()?;
            assert!(case.wrong > 0 || !case.receives(), "{operation}");
        }
        Ok(())
    })
    .unwrap();
}
