//! What MSCCL++'s executor refuses or runs otherwise.

use shmccl_plan::ExecutionPlan;
use shmccl_plan::build::CollectiveProgram;
use shmccl_plan::check::gpu;
use shmccl_plan::plan::{BlockOperation, Buffer, Code, Operator, PipelineLoop, Reference, ReferencedBuffer};

use crate::corpus::load;

/// Returns the first operation of a kind in the first block of rank 0.
fn first(plan: &mut ExecutionPlan, code: Code) -> &mut BlockOperation {
    let operations = &mut plan.ranks[0].blocks[0].operations;
    operations.iter_mut().find(|operation| operation.code == code).unwrap()
}

/// Returns a plan with its first operation of a kind changed.
fn changed(name: &str, code: Code, change: impl Fn(&mut BlockOperation)) -> ExecutionPlan {
    let mut plan = load(name);
    change(first(&mut plan, code));
    plan
}

fn shift(operation: &mut BlockOperation) {
    operation.targets[0].index = operation.sources[0].index + 1;
}

/// Adds a pair of references, of another buffer than the first.
fn add_output(operation: &mut BlockOperation) {
    let [source, target] = [operation.sources[0], operation.targets[0]];
    operation.sources.push(Reference { holder: ReferencedBuffer::Local(Buffer::Input), ..source });
    operation.targets.push(target);
}

#[test]
fn what_runs_otherwise_on_a_gpu_is_named_with_its_operation() {
    let mut doubled = load("upstream/reduce");
    doubled.double_scratch = true;
    let sliced = changed("generated/ag_2", Code::Nop, |operation| {
        let inner = BlockOperation { slice: Some((0, 2)), ..BlockOperation::new(Code::Nop) };
        *operation = BlockOperation {
            pipeline: Some(PipelineLoop { unit: 16, chunks: 1, operations: vec![inner] }),
            ..BlockOperation::new(Code::Pipeline)
        };
    });
    let cases = [
        (changed("upstream/reduce", Code::Get, shift), "(get): get exchanges the two offsets"),
        (load("units/unit_flush"), "(flush): flush does nothing"),
        (
            changed("generated/ag_2", Code::Put, add_output),
            "(put): a fused put takes the buffer of all sources",
        ),
        (load("generated/def_ar_8of4_t1"), "(ppkt): packets over a port come from the first plan"),
        (load("units/unit_switch_reduce"), "(glre): glre is refused"),
        (
            changed("generated/ar_nvls_2", Code::GroupLoadReduceStore, shift),
            "(glres): glres takes the source's index",
        ),
        (
            changed("upstream/reduce", Code::ReadReduceSend, |operation| operation.operator = Operator::Max),
            "(rres): every reduction is a sum",
        ),
        (doubled, "far plain accesses use the first half of scratch"),
        (sliced, "(pipeline): a slice that is shorter than a pipeline's offset"),
    ];
    for (plan, told) in cases {
        let found = gpu::differences(&plan);
        assert!(
            found.iter().any(|line| line.starts_with("rank ") && line.contains(told)),
            "{told}: {found:?}"
        );
    }
    assert_eq!(gpu::differences(&load("generated/ag_2")), Vec::<String>::new());
}

#[test]
fn each_thing_that_an_operation_does_otherwise_on_a_gpu_is_named() {
    let both = changed("generated/ar_nvls_2", Code::GroupLoadReduceStore, |operation| {
        shift(operation);
        operation.operator = Operator::Min;
    });
    let found = gpu::differences(&both);
    assert!(found.len() == 2 && found.iter().all(|line| line.contains("(glres)")), "{found:?}");
}

#[test]
fn counts_beyond_the_arrays_of_mscclpp_are_named() {
    let mut program = CollectiveProgram::new("many", "test", 2).chunks(1, 1, 0);
    let block = program.block(0);
    for _ in 0..17 {
        let (channel, _) = (program.memory_channel(0, 1), program.memory_channel(1, 0));
        let semaphore = program.semaphore(0, 0);
        program.release(block, semaphore).unwrap();
        program.acquire(block, semaphore).unwrap();
        program.signal(block, channel).unwrap();
    }
    for id in 0..17 {
        program.barrier(id, &[block]).unwrap();
    }
    program.begin_pipeline(block, 16, 65_536).unwrap();
    program.end_pipeline(block).unwrap();
    let mut plan = program.finish_unproved().unwrap();
    let signal = first(&mut plan, Code::Signal);
    signal.channels = vec![0; 9];
    let own = Reference { holder: ReferencedBuffer::Local(Buffer::Input), index: 0, size: 1 };
    signal.sources = vec![own; 11];
    signal.targets = vec![own; 12];
    let found = gpu::differences(&plan).join("\n");
    for told in [
        "rank 0 block 0: 17 channels of a kind, of which its executor takes 16",
        "(signal): 9 channels, of which its executor takes 8",
        "(signal): 11 sources, of which its executor takes 10",
        "(signal): 12 destinations, of which its executor takes 10",
        "rank 0: 17 semaphores, of which its executor takes 16",
        "rank 0: 17 barriers, of which its executor takes 16",
        "(pipeline): 65536 chunks of a pipeline, of which its executor takes 65535",
    ] {
        assert!(found.contains(told), "{told}: {found}");
    }
    let operations = plan.ranks[0].blocks[0].operations.len();
    assert!(
        operations > 64 && found.contains(&format!("rank 0 block 0: {operations} operations")),
        "{found}"
    );
}

#[test]
fn a_plan_that_names_far_inputs_or_outputs_asks_callers_for_equal_offsets() {
    let told = gpu::duties(&load("generated/ag_2")).unwrap();
    assert!(told.starts_with("all ranks must pass buffers at equal offsets"), "{told}");
    assert!(told.contains("as in rank 0 block 0 operation 5 (put)"), "{told}");
    assert!(gpu::duties(&load("generated/ar_nvls_2")).is_some());
    // Packets go to scratch, which is not of the caller.
    assert_eq!(gpu::duties(&load("generated/ar_pkt_2")), None);
}
