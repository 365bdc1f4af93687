//! The operations of a block, and the `nop`s between them.

use super::line::Line;
use super::{BlockId, BlockSemaphore, BuildError, ChannelEnd, Chunks, CollectiveProgram, SwitchGroupId};
use crate::plan::{
    Block, BlockOperation, Buffer, ChannelKind, Code, PipelineLoop, Reference, ReferencedBuffer,
};

/// Narrows an index. One that does not fit breaks a rule of the format, which says so.
pub(super) fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// A block that is written.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    block: Block,
    pub(super) lines: Vec<Line>,
    /// The pipeline that is open: unit, chunks and operations so far.
    pipeline: Option<PipelineLoop>,
    /// What was accessed since the threads met, and whether it was written.
    touched: Vec<(Chunks, bool)>,
    /// Whether something was waited for since the threads met.
    has_waited: bool,
}

impl Draft {
    pub(super) fn finish(mut self) -> Block {
        self.close();
        self.block
    }

    fn push(&mut self, operation: BlockOperation, line: &Line) {
        match &mut self.pipeline {
            Some(pipeline) => pipeline.operations.push(operation),
            None => {
                self.block.operations.push(operation);
                self.lines.push(line.clone());
            }
        }
    }

    fn fence(&mut self, line: &Line) {
        self.push(BlockOperation::new(Code::Nop), line);
        self.touched.clear();
        self.has_waited = false;
    }

    /// Lets the threads meet before accesses that must come after earlier ones.
    fn access(&mut self, line: &Line, accesses: &[(Chunks, bool)]) {
        let conflicts = |&(chunks, writes): &(Chunks, bool)| {
            let meets = |&(other, wrote): &(Chunks, bool)| (writes || wrote) && chunks.meets(&other);
            self.touched.iter().any(meets)
        };
        if self.has_waited || accesses.iter().any(conflicts) {
            self.fence(line);
        }
        self.touched.extend_from_slice(accesses);
    }

    /// Lets the threads meet before something that tells others of all that was done.
    fn tell(&mut self, line: &Line) {
        if self.has_waited || !self.touched.is_empty() {
            self.fence(line);
        }
    }

    fn close(&mut self) {
        if let Some(pipeline) = self.pipeline.take() {
            self.block
                .operations
                .push(BlockOperation { pipeline: Some(pipeline), ..BlockOperation::new(Code::Pipeline) });
        }
    }
}

impl Chunks {
    /// Returns whether two ranges share bytes, as far as that is known without sizes: input and
    /// output may be one buffer.
    fn meets(&self, other: &Self) -> bool {
        let is_one = |buffer| usize::from(buffer == Buffer::Scratch);
        if self.rank != other.rank || is_one(self.buffer) != is_one(other.buffer) {
            return false;
        }
        let end = |of: &Self| u64::from(of.index) + u64::from(of.size);
        self.buffer != other.buffer
            || (u64::from(self.index) < end(other) && u64::from(other.index) < end(self))
    }
}

impl CollectiveProgram {
    /// Copies within a rank.
    ///
    /// # Errors
    /// Chunks of another rank.
    #[track_caller]
    pub fn copy(&mut self, block: BlockId, from: Chunks, to: Chunks) -> Result<(), BuildError> {
        self.data(block, Code::Copy, None, &[from], &[to])
    }

    /// Copies from a peer.
    ///
    /// # Errors
    /// A source of the own rank.
    #[track_caller]
    pub fn get(&mut self, block: BlockId, from: Chunks, to: Chunks) -> Result<(), BuildError> {
        self.data(block, Code::Get, Some(ChannelKind::Memory), &[from], &[to])
    }

    /// Copies to a peer.
    ///
    /// # Errors
    /// A target of the own rank.
    #[track_caller]
    pub fn put(&mut self, block: BlockId, from: Chunks, to: Chunks) -> Result<(), BuildError> {
        self.data(block, Code::Put, Some(ChannelKind::Memory), &[from], &[to])
    }

    /// Hands a copy to the proxy, with a signal behind it. With `flush`, waits until it is done.
    ///
    /// # Errors
    /// A channel that is no port channel of the rank.
    #[track_caller]
    pub fn put_with_signal(
        &mut self,
        block: BlockId,
        channel: ChannelEnd,
        from: Chunks,
        to: Chunks,
        flush: bool,
    ) -> Result<(), BuildError> {
        let line = self.line();
        let code = if flush { Code::PutWithSignalAndFlush } else { Code::PutWithSignal };
        self.drafts[block.rank][block.block].tell(&line);
        let id = self.channel_of(block, channel, &line)?;
        let operation =
            BlockOperation { kind: Some(channel.kind), channels: vec![id], ..BlockOperation::new(code) };
        self.add(block, operation, &[from], &[to], &line)
    }

    /// Combines sources, the first of which is of the own rank, into targets, the first of which
    /// is, too. What is read or written far goes over memory channels.
    ///
    /// # Errors
    /// Sources that are both near and far beyond the first.
    #[track_caller]
    pub fn reduce(&mut self, block: BlockId, from: &[Chunks], to: &[Chunks]) -> Result<(), BuildError> {
        let reads_far = from.iter().any(|chunks| chunks.rank != block.rank);
        let code = match (reads_far, to.len() > 1) {
            (false, false) => Code::Reduce,
            (false, true) => Code::ReduceSend,
            (true, false) => Code::ReadReduce,
            (true, true) => Code::ReadReduceSend,
        };
        let kind = (code != Code::Reduce).then_some(ChannelKind::Memory);
        self.data(block, code, kind, from, to)
    }

    /// Sends plain chunks as packets into a peer's scratch.
    ///
    /// # Errors
    /// A target of the own rank.
    #[track_caller]
    pub fn put_packets(&mut self, block: BlockId, from: Chunks, to: Chunks) -> Result<(), BuildError> {
        self.data(block, Code::PutPackets, Some(ChannelKind::Memory), &[from], &[to])
    }

    /// Makes packets of plain chunks in the own scratch.
    ///
    /// # Errors
    /// Chunks of another rank.
    #[track_caller]
    pub fn copy_to_packets(&mut self, block: BlockId, from: Chunks, to: Chunks) -> Result<(), BuildError> {
        self.data(block, Code::CopyPackets, None, &[from], &[to])
    }

    /// Waits for packets in the own scratch, and writes their payload.
    ///
    /// # Errors
    /// Chunks of another rank.
    #[track_caller]
    pub fn unpack_packets(&mut self, block: BlockId, from: Chunks, to: Chunks) -> Result<(), BuildError> {
        self.data(block, Code::UnpackPackets, None, &[from], &[to])
    }

    /// Waits for packets in the own scratch, and sends them into peers' scratch.
    ///
    /// # Errors
    /// A target of the own rank.
    #[track_caller]
    pub fn forward_packets(&mut self, block: BlockId, from: Chunks, to: &[Chunks]) -> Result<(), BuildError> {
        self.data(block, Code::ReadPutPackets, Some(ChannelKind::Memory), &[from], to)
    }

    /// Waits for packets in the own scratch and combines them, then with the plain chunks `own`.
    /// Writes the result into `to`, and as packets into the scratch of peers.
    ///
    /// # Errors
    /// Packets outside of scratch.
    #[track_caller]
    pub fn reduce_packets(
        &mut self,
        block: BlockId,
        own: Chunks,
        packets: &[Chunks],
        to: Chunks,
        peers: &[Chunks],
    ) -> Result<(), BuildError> {
        let sources: Vec<_> = std::iter::once(own).chain(packets.iter().copied()).collect();
        let targets: Vec<_> = std::iter::once(to).chain(peers.iter().copied()).collect();
        match peers {
            [] => self.data(block, Code::ReducePackets, None, &sources, &targets),
            _ => self.data(block, Code::ReduceSendPackets, Some(ChannelKind::Memory), &sources, &targets),
        }
    }

    /// Combines chunks of all members of a group, into chunks of all members.
    ///
    /// # Errors
    /// A group of another rank.
    #[track_caller]
    pub fn group_reduce(
        &mut self,
        block: BlockId,
        group: SwitchGroupId,
        index: u32,
        size: u32,
    ) -> Result<(), BuildError> {
        let line = self.line();
        if group.rank != block.rank {
            return Err(call("the group belongs to another rank; use the block's own", &line));
        }
        let members = self.plan.ranks[group.rank].switch_groups[group.index as usize].clone();
        let draft = &mut self.drafts[block.rank][block.block];
        let of = |&rank: &u32| Chunks { rank: rank as usize, buffer: members.buffer, index, size };
        let touched: Vec<_> = members.ranks.iter().map(|rank| (of(rank), true)).collect();
        draft.access(&line, &touched);
        let id = entry(&mut draft.block.switch_groups, group.index);
        let reference = Reference { holder: ReferencedBuffer::Switch(id), index, size };
        let mut operation = BlockOperation::new(Code::GroupLoadReduceStore);
        operation.kind = Some(ChannelKind::Switch);
        (operation.sources, operation.targets) = (vec![reference], vec![reference]);
        draft.push(operation, &line);
        Ok(())
    }

    /// Signals the peer of a channel, behind all that the block has done.
    ///
    /// # Errors
    /// A channel of another rank.
    #[track_caller]
    pub fn signal(&mut self, block: BlockId, channel: ChannelEnd) -> Result<(), BuildError> {
        let line = self.line();
        self.drafts[block.rank][block.block].tell(&line);
        self.synchronise(block, Code::Signal, channel)
    }

    /// Waits for a signal of the peer.
    ///
    /// # Errors
    /// A channel of another rank.
    #[track_caller]
    pub fn wait(&mut self, block: BlockId, channel: ChannelEnd) -> Result<(), BuildError> {
        self.synchronise(block, Code::Wait, channel)?;
        self.drafts[block.rank][block.block].has_waited = true;
        Ok(())
    }

    /// Signals the peer without an order of data: that the own buffers are ready.
    ///
    /// # Errors
    /// A channel of another rank.
    #[track_caller]
    pub fn relaxed_signal(&mut self, block: BlockId, channel: ChannelEnd) -> Result<(), BuildError> {
        let line = self.line();
        self.drafts[block.rank][block.block].tell(&line);
        self.synchronise(block, Code::RelaxedSignal, channel)
    }

    /// Waits for a signal of the peer, without an order of data.
    ///
    /// # Errors
    /// A channel of another rank.
    #[track_caller]
    pub fn relaxed_wait(&mut self, block: BlockId, channel: ChannelEnd) -> Result<(), BuildError> {
        self.synchronise(block, Code::RelaxedWait, channel)?;
        self.drafts[block.rank][block.block].has_waited = true;
        Ok(())
    }

    /// Waits until all that was handed to the proxy on a channel is done.
    ///
    /// # Errors
    /// A channel of another rank.
    #[track_caller]
    pub fn flush(&mut self, block: BlockId, channel: ChannelEnd) -> Result<(), BuildError> {
        self.synchronise(block, Code::Flush, channel)?;
        self.drafts[block.rank][block.block].has_waited = true;
        Ok(())
    }

    /// Releases a semaphore, behind all that the block has done.
    ///
    /// # Errors
    /// A semaphore of another rank.
    #[track_caller]
    pub fn release(&mut self, block: BlockId, semaphore: BlockSemaphore) -> Result<(), BuildError> {
        let line = self.line();
        self.drafts[block.rank][block.block].tell(&line);
        self.semaphore_operation(block, Code::SemRelease, semaphore)
    }

    /// Waits for a semaphore, and takes 1.
    ///
    /// # Errors
    /// A semaphore of another rank.
    #[track_caller]
    pub fn acquire(&mut self, block: BlockId, semaphore: BlockSemaphore) -> Result<(), BuildError> {
        self.semaphore_operation(block, Code::SemAcquire, semaphore)?;
        self.drafts[block.rank][block.block].has_waited = true;
        Ok(())
    }

    /// Lets blocks of one rank meet.
    ///
    /// # Errors
    /// Blocks of several ranks.
    #[track_caller]
    pub fn barrier(&mut self, id: u32, blocks: &[BlockId]) -> Result<(), BuildError> {
        let line = self.line();
        if blocks.windows(2).any(|pair| pair[0].rank != pair[1].rank) {
            return Err(call("blocks of several ranks cannot meet in a barrier; signal instead", &line));
        }
        for block in blocks {
            let draft = &mut self.drafts[block.rank][block.block];
            let barrier = Some((id, narrow(blocks.len())));
            draft.push(BlockOperation { barrier, ..BlockOperation::new(Code::Barrier) }, &line);
            draft.touched.clear();
            draft.has_waited = false;
        }
        Ok(())
    }

    /// Begins a pipeline in a block: what follows, up to [`end_pipeline`](Self::end_pipeline), runs
    /// once for each `unit` bytes of so many chunks.
    ///
    /// # Errors
    /// A pipeline within a pipeline.
    #[track_caller]
    pub fn begin_pipeline(&mut self, block: BlockId, unit: usize, chunks: u32) -> Result<(), BuildError> {
        let line = self.line();
        let draft = &mut self.drafts[block.rank][block.block];
        if draft.pipeline.is_some() {
            return Err(call("a pipeline is open; end it first", &line));
        }
        draft.tell(&line);
        draft.lines.push(line);
        draft.pipeline = Some(PipelineLoop { unit, chunks, operations: Vec::new() });
        Ok(())
    }

    /// Ends the pipeline of a block. Its threads meet at the end of each iteration.
    ///
    /// # Errors
    /// No pipeline.
    #[track_caller]
    pub fn end_pipeline(&mut self, block: BlockId) -> Result<(), BuildError> {
        let line = self.line();
        let draft = &mut self.drafts[block.rank][block.block];
        if draft.pipeline.is_none() {
            return Err(call("no pipeline is open; begin one first", &line));
        }
        draft.tell(&line);
        draft.close();
        Ok(())
    }

    #[track_caller]
    fn data(
        &mut self,
        block: BlockId,
        code: Code,
        kind: Option<ChannelKind>,
        from: &[Chunks],
        to: &[Chunks],
    ) -> Result<(), BuildError> {
        let line = self.line();
        let reads = from.iter().map(|&chunks| (chunks, false));
        let accesses: Vec<_> = reads.chain(to.iter().map(|&chunks| (chunks, true))).collect();
        self.drafts[block.rank][block.block].access(&line, &accesses);
        self.add(block, BlockOperation { kind, ..BlockOperation::new(code) }, from, to, &line)
    }

    fn add(
        &mut self,
        block: BlockId,
        mut operation: BlockOperation,
        from: &[Chunks],
        to: &[Chunks],
        line: &Line,
    ) -> Result<(), BuildError> {
        for (list, of) in [(&mut operation.sources, from), (&mut operation.targets, to)] {
            for chunks in of {
                list.push(self.reference(block, chunks, operation.kind, line)?);
            }
        }
        self.drafts[block.rank][block.block].push(operation, line);
        Ok(())
    }

    fn reference(
        &mut self,
        block: BlockId,
        chunks: &Chunks,
        kind: Option<ChannelKind>,
        line: &Line,
    ) -> Result<Reference, BuildError> {
        let (index, size) = (chunks.index, chunks.size);
        if chunks.rank >= self.plan.ranks.len() {
            return Err(call(&format!("there is no rank {}; name one of the program", chunks.rank), line));
        }
        if chunks.rank == block.rank {
            return Ok(Reference { holder: ReferencedBuffer::Local(chunks.buffer), index, size });
        }
        let Some(kind) = kind else {
            return Err(call(
                &format!("rank {} is another rank; name chunks of rank {}", chunks.rank, block.rank),
                line,
            ));
        };
        let buffer = self.remote_buffer(block.rank, chunks, kind);
        let block = &mut self.drafts[block.rank][block.block].block;
        let buffers =
            if kind == ChannelKind::Port { &mut block.port_buffers } else { &mut block.memory_buffers };
        Ok(Reference { holder: ReferencedBuffer::Remote(entry(buffers, buffer)), index, size })
    }

    fn channel_of(&mut self, block: BlockId, channel: ChannelEnd, line: &Line) -> Result<u32, BuildError> {
        if channel.rank != block.rank {
            let what = format!(
                "the channel is of rank {}, the block of rank {}; use one of its own",
                channel.rank, block.rank
            );
            return Err(call(&what, line));
        }
        let block = &mut self.drafts[block.rank][block.block].block;
        let channels = if channel.kind == ChannelKind::Port {
            &mut block.port_channels
        } else {
            &mut block.memory_channels
        };
        Ok(entry(channels, channel.index))
    }

    #[track_caller]
    fn synchronise(&mut self, block: BlockId, code: Code, channel: ChannelEnd) -> Result<(), BuildError> {
        let line = self.line();
        let id = self.channel_of(block, channel, &line)?;
        let operation =
            BlockOperation { kind: Some(channel.kind), channels: vec![id], ..BlockOperation::new(code) };
        self.drafts[block.rank][block.block].push(operation, &line);
        Ok(())
    }

    #[track_caller]
    fn semaphore_operation(
        &mut self,
        block: BlockId,
        code: Code,
        semaphore: BlockSemaphore,
    ) -> Result<(), BuildError> {
        let line = self.line();
        if semaphore.rank != block.rank {
            return Err(call("the semaphore is of another rank; use one of the block's own rank", &line));
        }
        let operation = BlockOperation { semaphores: vec![semaphore.index], ..BlockOperation::new(code) };
        self.drafts[block.rank][block.block].push(operation, &line);
        Ok(())
    }
}

fn call(what: &str, at: &Line) -> BuildError {
    BuildError::Call { what: what.to_owned(), at: at.clone() }
}

/// Returns the place of an id in a list, to which it is added where it is new.
fn entry(list: &mut Vec<u32>, id: u32) -> u32 {
    let place = list.iter().position(|&other| other == id).unwrap_or_else(|| {
        list.push(id);
        list.len() - 1
    });
    narrow(place)
}
