//! Operations and their references.

use serde_json::value::RawValue;

use super::fields::{Fields, PlanReader};
use super::{MAX_OPERANDS, MAX_OPERATIONS};
use crate::plan::{
    BlockOperation, Buffer, ChannelKind, Code, Operator, PipelineLoop, Reference, ReferencedBuffer,
};
use crate::problem::Place;

/// The fields of an operation that only the layout before August 2025 has.
const OLD_FIELDS: &[&str] = &["i_buff", "o_buff", "i_cids", "o_cids", "cnt", "ctype"];

/// Reads the operations of a block, or of a pipeline within it. `groups` has the buffer of each
/// switch channel of the block.
pub(super) fn list(
    reader: &mut PlanReader,
    raws: &[&RawValue],
    at: Place,
    groups: &[Option<Buffer>],
) -> Option<Vec<BlockOperation>> {
    if !reader.count_operations(at, raws.len()) {
        return None;
    }
    let mut operations = Vec::with_capacity(raws.len());
    for (index, raw) in raws.iter().enumerate() {
        let at = at.operation(index, None);
        let fields = reader.fields(raw, at, "the operation")?;
        operations.extend(operation(reader, fields, at, groups)?);
    }
    Some(operations)
}

/// Reads an operation. Returns nothing where the rest of the file is not worth reading, and an
/// empty list where only the name is unknown.
fn operation(
    reader: &mut PlanReader,
    mut fields: Fields<'_>,
    at: Place,
    groups: &[Option<Buffer>],
) -> Option<Option<BlockOperation>> {
    if let Some(old) = fields.any(OLD_FIELDS) {
        reader.old_layout(at, old);
        return None;
    }
    let Some(code) = reader.named(&mut fields, at, "name", Code::of_name, None) else { return Some(None) };
    let at = Place { code: Some(code), ..at };
    let mut operation = BlockOperation::new(code);
    operation.kind = kind(reader, &mut fields, at);
    operation.channels = reader.numbers(&mut fields, at, "channel_ids", MAX_OPERANDS);
    operation.semaphores = reader.numbers(&mut fields, at, "semaphore_ids", MAX_OPERANDS);
    operation.sources = references(reader, &mut fields, at, "src_buff");
    operation.targets = references(reader, &mut fields, at, "dst_buff");
    let operator = reader.named(&mut fields, at, "reduce_op", Operator::of_name, Some(Operator::Sum));
    operation.operator = operator.unwrap_or(Operator::Sum);
    operation.slice = slice(reader, &mut fields, at);
    match code {
        Code::Barrier => {
            let id = reader.need(&mut fields, at, "barrier_id");
            operation.barrier = Some((id, reader.need(&mut fields, at, "num_threadblocks")));
        }
        Code::GroupLoadReduce => group_load_reduce(reader, &mut fields, at, groups, &mut operation),
        Code::Pipeline => operation.pipeline = Some(pipeline(reader, &mut fields, at, groups)?),
        _ => {}
    }
    reader.unknown(fields, &format!("operation {code}"));
    Some(Some(operation))
}

/// Takes the kind of channel. `none` is the same as absent.
fn kind(reader: &mut PlanReader, fields: &mut Fields<'_>, at: Place) -> Option<ChannelKind> {
    let of_name = |name: &str| match name {
        "none" => Some(None),
        name => ChannelKind::of_name(name).map(Some),
    };
    reader.named(fields, at, "channel_type", of_name, Some(None)).flatten()
}

fn slice(reader: &mut PlanReader, fields: &mut Fields<'_>, at: Place) -> Option<(u32, u32)> {
    let mut slice = reader.fields(fields.take("tbg_info")?, at, "`tbg_info`")?;
    let part = reader.need(&mut slice, at, "tb_id");
    let of = reader.need(&mut slice, at, "tbg_size");
    reader.unknown(slice, "a slice");
    Some((part, of))
}

fn pipeline(
    reader: &mut PlanReader,
    fields: &mut Fields<'_>,
    at: Place,
    groups: &[Option<Buffer>],
) -> Option<PipelineLoop> {
    let Some(raw) = fields.take("iter_context") else {
        reader.problem(at, "`iter_context` is missing; give `unit_size` and `num_chunks`");
        return None;
    };
    let mut context = reader.fields(raw, at, "`iter_context`")?;
    let unit = reader.need(&mut context, at, "unit_size");
    let chunks = reader.need(&mut context, at, "num_chunks");
    reader.unknown(context, "a pipeline's context");
    if at.operation.is_some_and(|(_, inner)| inner.is_some()) {
        reader.problem(at, "a pipeline stands within a pipeline; unroll one of them");
        return None;
    }
    let raws = reader.list_of(fields, at, "ops", MAX_OPERATIONS);
    Some(PipelineLoop { unit, chunks, operations: list(reader, &raws, at, groups)? })
}

/// Brings the operands of `glre`, which has fields of its own, into the form of all others.
fn group_load_reduce(
    reader: &mut PlanReader,
    fields: &mut Fields<'_>,
    at: Place,
    groups: &[Option<Buffer>],
    operation: &mut BlockOperation,
) {
    let told = reader.named(fields, at, "buffer_type", Buffer::of_name, None);
    let index = reader.need(fields, at, "buffer_offset");
    let size = reader.need(fields, at, "size");
    let channels = operation.channels.len();
    if channels != 1 {
        reader.problem(at, format!("{channels} `channel_ids`; give the one that is reduced over"));
    }
    let channel = operation.channels.first().copied().unwrap_or(u32::MAX);
    if let (Some(told), Some(&Some(buffer))) = (told, groups.get(channel as usize))
        && told != buffer
    {
        let what = format!(
            "`buffer_type` is \"{told}\", and switch channel {channel} is of \"{buffer}\"; make them agree"
        );
        reader.problem(at, what);
    }
    operation.sources = vec![Reference { holder: ReferencedBuffer::Switch(channel), index, size }];
    match fields.take("dst_chunk") {
        Some(raw) => operation.targets.extend(reference(reader, raw, at, "dst_chunk")),
        None => reader.problem(at, "`dst_chunk` is missing; expected a reference"),
    }
}

fn references(reader: &mut PlanReader, fields: &mut Fields<'_>, at: Place, name: &str) -> Vec<Reference> {
    let raws = reader.list_of(fields, at, name, MAX_OPERANDS);
    raws.into_iter().filter_map(|raw| reference(reader, raw, at, name)).collect()
}

fn reference(reader: &mut PlanReader, raw: &RawValue, at: Place, of: &str) -> Option<Reference> {
    let mut fields = reader.fields(raw, at, &format!("an entry of `{of}`"))?;
    let holder = if fields.any(&["buffer_id"]).is_some() {
        ReferencedBuffer::Remote(reader.need(&mut fields, at, "buffer_id"))
    } else if fields.any(&["switch_channel_id"]).is_some() {
        ReferencedBuffer::Switch(reader.need(&mut fields, at, "switch_channel_id"))
    } else {
        local(reader, &mut fields, at)?
    };
    let index = reader.need(&mut fields, at, "index");
    let size = reader.need(&mut fields, at, "size");
    reader.unknown(fields, "a reference");
    Some(Reference { holder, index, size })
}

/// Takes a buffer of the own rank, which may be named with its rank.
fn local(reader: &mut PlanReader, fields: &mut Fields<'_>, at: Place) -> Option<ReferencedBuffer> {
    let buffer = reader.named(fields, at, "type", Buffer::of_name, None)?;
    let own = at.rank.unwrap_or(0);
    let rank: usize = reader.or(fields, at, "rank", own);
    if rank != own {
        reader.problem(at, format!("a local reference names rank {rank}; use a remote buffer"));
    }
    Some(ReferencedBuffer::Local(buffer))
}
