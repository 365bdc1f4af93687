//! Which operands each operation takes, and that they lie within their buffers.

use crate::plan::{
    Block, BlockOperation, Buffer, ChannelKind, Code, ExecutionPlan, RankProgram, Reference, ReferencedBuffer,
};
use crate::problem::Place;

/// What an operand may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperandKind {
    /// A buffer of the own rank.
    Local,
    /// Scratch of the own rank.
    Scratch,
    /// A buffer of another rank.
    Far,
    /// Scratch of another rank.
    FarScratch,
    /// A buffer of all members of a group.
    Group,
    /// Scratch of all members of a group.
    GroupScratch,
}
use OperandKind::{Far, FarScratch, Group, GroupScratch, Local, Scratch};

/// The operands of one side: those that must be there in this order, and that any number of which
/// follow, at least one.
struct OperandSide {
    first: &'static [OperandKind],
    then: Option<OperandKind>,
}

const fn exactly(first: &'static [OperandKind]) -> OperandSide {
    OperandSide { first, then: None }
}

const fn then(first: &'static [OperandKind], then: OperandKind) -> OperandSide {
    OperandSide { first, then: Some(then) }
}

/// Returns the sources and targets of an operation, or nothing where it takes none.
fn sides(code: Code, kind: Option<ChannelKind>) -> Option<(OperandSide, OperandSide)> {
    let is_port = kind == Some(ChannelKind::Port);
    Some(match code {
        Code::Copy => (exactly(&[Local]), exactly(&[Local])),
        Code::Get => (then(&[], Far), then(&[], Local)),
        Code::Put | Code::PutWithSignal | Code::PutWithSignalAndFlush => (then(&[], Local), then(&[], Far)),
        Code::Reduce => (then(&[], Local), exactly(&[Local])),
        Code::ReduceSend => (then(&[], Local), then(&[Local], Far)),
        Code::ReadReduce => (then(&[Local], Far), exactly(&[Local])),
        Code::ReadReduceSend => (then(&[Local], Far), then(&[Local], Far)),
        Code::CopyPackets => (exactly(&[Local]), exactly(&[Scratch])),
        Code::UnpackPackets => (exactly(&[Scratch]), exactly(&[Local])),
        Code::PutPackets if is_port => (then(&[], Scratch), then(&[], FarScratch)),
        Code::PutPackets => (then(&[], Local), then(&[], FarScratch)),
        Code::ReadPutPackets => (exactly(&[Scratch]), then(&[], FarScratch)),
        Code::ReducePackets => (then(&[Local], Scratch), exactly(&[Local])),
        Code::ReduceCopyPackets => (then(&[Local], Scratch), exactly(&[Local, Scratch])),
        Code::ReduceSendPackets => (then(&[Local], Scratch), then(&[Local], FarScratch)),
        Code::ReduceCopySendPackets => (then(&[Local], Scratch), then(&[Local, Scratch], FarScratch)),
        Code::GroupLoadReduceStore => (exactly(&[Group]), exactly(&[Group])),
        Code::GroupStore => (exactly(&[Local]), exactly(&[Group])),
        Code::GroupStorePackets => (exactly(&[Scratch]), exactly(&[GroupScratch])),
        Code::GroupLoadReduce => (exactly(&[Group]), exactly(&[Local])),
        _ => return None,
    })
}

/// What an operand stands in.
type OperandContext<'a> = (Place, &'a RankProgram, &'a Block);

/// Notes what is wrong with the operands of an operation.
pub(super) fn check(
    plan: &ExecutionPlan,
    within: OperandContext<'_>,
    operation: &BlockOperation,
    found: &mut impl FnMut(String),
) {
    let Some((sources, targets)) = sides(operation.code, operation.kind) else { return };
    side(plan, within, operation, &operation.sources, &sources, "src_buff", found);
    side(plan, within, operation, &operation.targets, &targets, "dst_buff", found);
    let all = || operation.sources.iter().chain(&operation.targets);
    if let Some(first) = all().next()
        && let Some(other) = all().find(|other| other.size != first.size)
    {
        found(format!("references of {} and of {} chunks; give all the same `size`", first.size, other.size));
    }
    let pairs = matches!(
        operation.code,
        Code::Get | Code::Put | Code::PutWithSignal | Code::PutWithSignalAndFlush | Code::PutPackets
    );
    let (from, to) = (operation.sources.len(), operation.targets.len());
    if pairs && from != to {
        found(format!("{from} sources for {to} destinations, which go in pairs; give as many of each"));
    }
    let signals = matches!(operation.code, Code::PutWithSignal | Code::PutWithSignalAndFlush);
    let per_channel = signals || operation.kind == Some(ChannelKind::Port);
    let channels = operation.channels.len();
    if per_channel && channels != to {
        found(format!("{channels} `channel_ids` for {to} destinations; give each one"));
    }
}

fn side(
    plan: &ExecutionPlan,
    within: OperandContext<'_>,
    operation: &BlockOperation,
    given: &[Reference],
    side: &OperandSide,
    name: &str,
    found: &mut impl FnMut(String),
) {
    let least = side.first.len() + usize::from(side.then.is_some());
    if given.len() < least || (side.then.is_none() && given.len() > least) {
        let more = if side.then.is_some() { " or more" } else { "" };
        found(format!("`{name}` has {} references; expected {least}{more}", given.len()));
        return;
    }
    for (index, reference) in given.iter().enumerate() {
        let expected = side.first.get(index).copied().or(side.then).unwrap_or(Local);
        if let Err(what) = operand(plan, within, operation, reference, expected) {
            found(format!("`{name}` {index}: {what}"));
        }
    }
}

/// Checks that a reference is what is expected, and lies within its buffer.
fn operand(
    plan: &ExecutionPlan,
    (at, program, block): OperandContext<'_>,
    operation: &BlockOperation,
    reference: &Reference,
    expected: OperandKind,
) -> Result<(), String> {
    let (holders, buffer) = match (reference.holder, expected) {
        (ReferencedBuffer::Local(buffer), Local | Scratch) => (vec![at.rank.unwrap_or(0)], buffer),
        (ReferencedBuffer::Remote(id), Far | FarScratch) => {
            let ids = block.remote_buffers(operation.kind.unwrap_or(ChannelKind::Memory));
            let id = ids.get(id as usize).ok_or_else(|| outside("`buffer_id`", id, ids.len()))?;
            let far = program.remote_buffers.get(*id as usize);
            let far = far.ok_or_else(|| outside("remote buffer", *id, program.remote_buffers.len()))?;
            (vec![far.rank as usize], far.buffer)
        }
        (ReferencedBuffer::Switch(id), Group | GroupScratch) => {
            let ids = &block.switch_groups;
            let id = ids.get(id as usize).ok_or_else(|| outside("`switch_channel_id`", id, ids.len()))?;
            let group = program.switch_groups.get(*id as usize);
            let group = group.ok_or_else(|| outside("switch channel", *id, program.switch_groups.len()))?;
            (group.ranks.iter().map(|&rank| rank as usize).collect(), group.buffer)
        }
        _ => return Err(format!("expected {}", told(expected))),
    };
    if matches!(expected, Scratch | FarScratch | GroupScratch) && buffer != Buffer::Scratch {
        return Err(format!("packets in buffer \"{buffer}\"; keep packets in scratch, \"s\""));
    }
    let end = u64::from(reference.index) + u64::from(reference.size);
    for holder in holders {
        let chunks = plan.ranks.get(holder).map_or(0, |program| program.chunks(buffer));
        if end > u64::from(chunks) {
            return Err(format!(
                "chunks {}..{end} of buffer \"{buffer}\" of rank {holder}, which has {chunks}; stay within",
                reference.index
            ));
        }
    }
    Ok(())
}

fn outside(what: &str, id: u32, count: usize) -> String {
    format!("{what} {id} of {count}; name one there is")
}

fn told(kind: OperandKind) -> &'static str {
    match kind {
        Local => "a buffer of the own rank",
        Scratch => "scratch of the own rank",
        Far => "a remote buffer",
        FarScratch => "remote scratch",
        Group => "the buffers of a switch group",
        GroupScratch => "scratch of a switch group",
    }
}
