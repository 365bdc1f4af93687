//! The program of each rank: buffers, channels and thread blocks.

use serde_json::value::RawValue;

use super::fields::{Fields, PlanReader};
use super::operation;
use super::{MAX_BLOCKS, MAX_ENTRIES, MAX_OPERATIONS};
use crate::plan::{Block, Buffer, ChannelKind, MAX_RANKS, RankProgram, RemoteBuffer, SwitchGroup};
use crate::problem::Place;

/// The fields of a rank that only the layout before August 2025 has.
const OLD_FIELDS: &[&str] = &["inputChunks", "outputChunks", "scratchChunks", "chunkGroups"];

/// Reads all ranks and orders them by id. Returns nothing where ids are no permutation.
pub(super) fn ranks(reader: &mut PlanReader, raws: &[&RawValue]) -> Option<Vec<RankProgram>> {
    let mut ranks: Vec<Option<RankProgram>> = raws.iter().map(|_| None).collect();
    for raw in raws {
        let mut fields = reader.fields(raw, Place::PLAN, "an entry of `gpus`")?;
        if let Some(old) = fields.any(OLD_FIELDS) {
            reader.old_layout(Place::PLAN, old);
            return None;
        }
        let id: usize = reader.need(&mut fields, Place::PLAN, "id");
        match ranks.get_mut(id) {
            Some(place @ None) => *place = Some(rank(reader, fields, id)?),
            _ => {
                let what =
                    format!("`gpus` has a rank {id} twice, or out of 0..{}; give each once", raws.len());
                reader.problem(Place::PLAN, what);
                return None;
            }
        }
    }
    ranks.into_iter().collect()
}

fn rank(reader: &mut PlanReader, mut fields: Fields<'_>, id: usize) -> Option<RankProgram> {
    let at = Place::rank(id);
    let mut rank = RankProgram {
        input_chunks: reader.need(&mut fields, at, "input_chunks"),
        output_chunks: reader.need(&mut fields, at, "output_chunks"),
        scratch_chunks: reader.need(&mut fields, at, "scratch_chunks"),
        ..RankProgram::default()
    };
    for raw in reader.list_of(&mut fields, at, "channels", MAX_ENTRIES) {
        channel(reader, raw, at, &mut rank);
    }
    for raw in reader.list_of(&mut fields, at, "remote_buffers", MAX_ENTRIES) {
        let buffer = remote_buffer(reader, raw, at)?;
        rank.remote_buffers.push(buffer);
    }
    for raw in reader.list_of(&mut fields, at, "semaphores", MAX_ENTRIES) {
        let mut semaphore = reader.fields(raw, at, "an entry of `semaphores`")?;
        rank.semaphores.push(reader.need(&mut semaphore, at, "init_value"));
        reader.unknown(semaphore, "a semaphore");
    }
    let blocks = reader.list_of(&mut fields, at, "threadblocks", MAX_BLOCKS);
    reader.unknown(fields, "a rank");
    rank.blocks = self::blocks(reader, &blocks, id, &rank.switch_groups)?;
    Some(rank)
}

/// Reads one entry of the channels of a rank, which holds several.
fn channel(reader: &mut PlanReader, raw: &RawValue, at: Place, rank: &mut RankProgram) {
    let Some(mut fields) = reader.fields(raw, at, "an entry of `channels`") else { return };
    match reader.named(&mut fields, at, "channel_type", ChannelKind::of_name, None) {
        Some(ChannelKind::Switch) => switch_groups(reader, &mut fields, at, rank),
        Some(kind) => {
            let peers = reader.numbers(&mut fields, at, "connected_to", MAX_ENTRIES);
            let channels = match kind {
                ChannelKind::Port => &mut rank.port_channels,
                _ => &mut rank.memory_channels,
            };
            channels.extend(peers);
            if channels.len() > MAX_ENTRIES {
                reader.problem(at, format!("more than {MAX_ENTRIES} {kind} channels; split the plan"));
            }
        }
        None => {}
    }
    reader.unknown(fields, "a channel");
}

fn switch_groups(reader: &mut PlanReader, fields: &mut Fields<'_>, at: Place, rank: &mut RankProgram) {
    let name = if fields.any(&["buff"]).is_some() { "buff" } else { "buffer_type" };
    let buffer = reader.named(fields, at, name, Buffer::of_name, None).unwrap_or(Buffer::Input);
    for raw in reader.list_of(fields, at, "rank_groups", MAX_ENTRIES) {
        let Some(mut group) = reader.fields(raw, at, "an entry of `rank_groups`") else { return };
        let ranks = reader.numbers(&mut group, at, "ranks", MAX_RANKS);
        let size: usize = reader.or(&mut group, at, "size", ranks.len());
        if size != ranks.len() {
            reader.problem(
                at,
                format!("a group of `size` {size} names {} ranks; make them agree", ranks.len()),
            );
        }
        reader.unknown(group, "a group of ranks");
        rank.switch_groups.push(SwitchGroup { buffer, ranks });
    }
    if rank.switch_groups.len() > MAX_ENTRIES {
        reader.problem(at, format!("more than {MAX_ENTRIES} switch channels; split the plan"));
    }
}

fn remote_buffer(reader: &mut PlanReader, raw: &RawValue, at: Place) -> Option<RemoteBuffer> {
    let mut fields = reader.fields(raw, at, "an entry of `remote_buffers`")?;
    let rank = reader.need(&mut fields, at, "rank");
    let buffer = reader.named(&mut fields, at, "type", Buffer::of_name, None)?;
    let kinds = reader.list_of(&mut fields, at, "access_channel_types", 16);
    let named = |raw: &RawValue| {
        serde_json::from_str::<String>(raw.get()).ok().and_then(|name| ChannelKind::of_name(&name))
    };
    let access: Option<Vec<_>> = kinds.into_iter().map(named).collect();
    if access.is_none() {
        reader.problem(at, "`access_channel_types` of a remote buffer: expected kinds of channels");
    }
    reader.unknown(fields, "a remote buffer");
    Some(RemoteBuffer { rank, buffer, access: access? })
}

/// Reads the thread blocks of a rank and orders them by id.
fn blocks(
    reader: &mut PlanReader,
    raws: &[&RawValue],
    rank: usize,
    groups: &[SwitchGroup],
) -> Option<Vec<Block>> {
    let mut blocks: Vec<Option<Block>> = raws.iter().map(|_| None).collect();
    for (index, raw) in raws.iter().enumerate() {
        let at = Place::rank(rank);
        let mut fields = reader.fields(raw, at, "an entry of `threadblocks`")?;
        let id: usize = reader.need(&mut fields, at, "id");
        if id != index {
            reader.warn(format!(
                "{at}: `threadblocks` are not in the order of `id`, as MSCCL++'s executor takes them"
            ));
        }
        match blocks.get_mut(id) {
            Some(place @ None) => *place = Some(block(reader, fields, Place::block(rank, id), groups)?),
            _ => {
                let what =
                    format!("`threadblocks` has {id} twice, or out of 0..{}; give each once", raws.len());
                reader.problem(at, what);
                return None;
            }
        }
    }
    blocks.into_iter().collect()
}

fn block(
    reader: &mut PlanReader,
    mut fields: Fields<'_>,
    at: Place,
    groups: &[SwitchGroup],
) -> Option<Block> {
    let buffer_of = |id: u32| groups.get(id as usize).map(|group| group.buffer);
    let mut block = Block::default();
    for raw in reader.list_of(&mut fields, at, "channels", MAX_ENTRIES) {
        let mut entry = reader.fields(raw, at, "an entry of `channels`")?;
        let kind = reader.named(&mut entry, at, "channel_type", ChannelKind::of_name, None)?;
        let ids = reader.numbers(&mut entry, at, "channel_ids", MAX_ENTRIES);
        // Files repeat here which buffer a switch channel is of.
        for name in ["buff", "buffer_type"] {
            if entry.any(&[name]).is_none() {
                continue;
            }
            let told = reader.named(&mut entry, at, name, Buffer::of_name, None);
            let is_other = |id: &&u32| buffer_of(**id).zip(told).is_some_and(|(buffer, told)| buffer != told);
            if let Some(id) = ids.iter().find(is_other).filter(|_| kind == ChannelKind::Switch) {
                reader.problem(
                    at,
                    format!("`{name}` is not that of switch channel {id} of the rank; make them agree"),
                );
            }
        }
        reader.unknown(entry, "a channel of a block");
        match kind {
            ChannelKind::Memory => block.memory_channels.extend(ids),
            ChannelKind::Port => block.port_channels.extend(ids),
            ChannelKind::Switch => block.switch_groups.extend(ids),
        }
    }
    for raw in reader.list_of(&mut fields, at, "remote_buffer_refs", MAX_ENTRIES) {
        let mut entry = reader.fields(raw, at, "an entry of `remote_buffer_refs`")?;
        let kind = reader.named(&mut entry, at, "access_channel_type", ChannelKind::of_name, None)?;
        let ids = reader.numbers(&mut entry, at, "remote_buffer_ids", MAX_ENTRIES);
        reader.unknown(entry, "a remote buffer of a block");
        match kind {
            ChannelKind::Memory => block.memory_buffers.extend(ids),
            ChannelKind::Port => block.port_buffers.extend(ids),
            ChannelKind::Switch => {}
        }
    }
    let operations = reader.list_of(&mut fields, at, "ops", MAX_OPERATIONS);
    reader.unknown(fields, "a block");
    let groups: Vec<_> = block.switch_groups.iter().map(|&id| buffer_of(id)).collect();
    block.operations = operation::list(reader, &operations, at, &groups)?;
    Some(block)
}
