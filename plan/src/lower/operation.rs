//! One operation as steps.

use super::code::{BlockCode, BlockTransfer, Form, Operand, OperationSite, Step, StepAction};
use super::counters::Counters;
use super::sizes::Sizes;
use crate::collective::Overlap;
use crate::plan::{
    Block, BlockOperation, Buffer, ChannelKind, Code, ExecutionPlan, PipelineLoop, Reference,
    ReferencedBuffer,
};
use crate::problem::{Place, Problem};

/// What the code of a rank is made from.
pub(super) struct Lowering<'a> {
    pub(super) plan: &'a ExecutionPlan,
    pub(super) sizes: &'a Sizes,
    pub(super) counters: &'a Counters,
    pub(super) overlap: Overlap,
    pub(super) rank: usize,
    pub(super) problems: &'a mut Vec<Problem>,
}

/// The pipeline that an operation stands in.
#[derive(Clone, Copy)]
struct Loop {
    unit: usize,
    iterations: usize,
}

/// The part of each reference that an operation covers, in bytes.
#[derive(Clone, Copy)]
struct ReferencePart {
    first: usize,
    bytes: usize,
}

impl Lowering<'_> {
    /// Compiles a block of the rank.
    pub(super) fn block(&mut self, index: usize, barriers: &[(u32, u32)]) -> BlockCode {
        let plan = self.plan;
        let block = &plan.ranks[self.rank].blocks[index];
        let mut lowered = BlockCode::default();
        for (operation, of) in block.operations.iter().enumerate() {
            let site = OperationSite { operation, inner: None, code: of.code };
            let mut within = Within { block, index, barriers, code: &mut lowered, around: None };
            match &of.pipeline {
                Some(pipeline) => self.pipeline(&mut within, site, pipeline),
                None => self.operation(&mut within, site, of),
            }
        }
        lowered
    }

    fn pipeline(&mut self, within: &mut Within<'_>, site: OperationSite, pipeline: &PipelineLoop) {
        let (times, over) = self.sizes.unit_scale;
        let unit = pipeline.unit.saturating_mul(times) / over;
        let iterations = (pipeline.chunks as usize).saturating_mul(self.sizes.chunk).div_ceil(unit);
        if iterations == 0 {
            return;
        }
        let first = within.code.steps.len();
        within.around = Some(Loop { unit, iterations });
        for (inner, of) in pipeline.operations.iter().enumerate() {
            self.operation(within, OperationSite { inner: Some(inner), code: of.code, ..site }, of);
        }
        if within.code.steps.len() > first {
            within.code.sites.push(site);
            within.push(StepAction::Repeat { first, iterations }, 0);
        }
    }

    fn operation(&mut self, within: &mut Within<'_>, site: OperationSite, operation: &BlockOperation) {
        within.code.sites.push(site);
        match operation.code {
            Code::Nop => within.push(StepAction::Fence, 0),
            Code::Barrier => within.barrier(operation),
            Code::SemAcquire => within.semaphores(operation, |semaphore| StepAction::Acquire { semaphore }),
            Code::SemRelease => within.semaphores(operation, |semaphore| StepAction::Release { semaphore }),
            Code::Signal | Code::RelaxedSignal | Code::Wait | Code::RelaxedWait | Code::Flush => {
                self.synchronisation(within, operation);
            }
            Code::Copy
            | Code::Get
            | Code::Put
            | Code::PutWithSignal
            | Code::PutWithSignalAndFlush
            | Code::PutPackets => {
                self.pairs(within, site, operation);
            }
            Code::ReadPutPackets if operation.kind == Some(ChannelKind::Port) => {
                self.forward(within, site, operation);
            }
            _ => self.combination(within, site, operation),
        }
    }

    /// Signals, waits and flushes: a step per channel.
    fn synchronisation(&mut self, within: &mut Within<'_>, operation: &BlockOperation) {
        let kind = operation.kind.unwrap_or(ChannelKind::Memory);
        let relaxed = matches!(operation.code, Code::RelaxedSignal | Code::RelaxedWait);
        for (slot, &id) in operation.channels.iter().enumerate() {
            let channel = within.block.channels(kind)[id as usize] as usize;
            let action = match operation.code {
                Code::Wait | Code::RelaxedWait => {
                    let counter = self.counters.ends(self.rank, kind, channel).inbound;
                    StepAction::Wait { counter, relaxed }
                }
                Code::Flush => StepAction::Flush { port: channel },
                _ => self.signal(kind, channel, relaxed),
            };
            within.push(action, slot);
        }
    }

    fn signal(&self, kind: ChannelKind, channel: usize, relaxed: bool) -> StepAction {
        let ends = self.counters.ends(self.rank, kind, channel);
        let (peer, counter) = (ends.peer, ends.outbound);
        match kind {
            ChannelKind::Port => StepAction::PushSignal { port: channel, peer, counter },
            _ => StepAction::Signal { peer, counter, relaxed },
        }
    }

    /// Copies of the i-th source to the i-th target.
    fn pairs(&mut self, within: &mut Within<'_>, site: OperationSite, operation: &BlockOperation) {
        let is_port = operation.kind == Some(ChannelKind::Port);
        let packets = match operation.code {
            Code::PutPackets if is_port => [Form::Packets; 2],
            Code::PutPackets => [Form::Plain, Form::Packets],
            _ => [Form::Plain; 2],
        };
        for (slot, pair) in operation.sources.iter().zip(&operation.targets).enumerate() {
            let operands = [(pair.0, packets[0]), (pair.1, packets[1])];
            let channel = operation.channels.get(slot).filter(|_| operation.code != Code::Get);
            let channel = channel.map(|&id| {
                let kind = operation.kind.unwrap_or(ChannelKind::Memory);
                (kind, within.block.channels(kind)[id as usize] as usize)
            });
            let transfer = self.transfer(within, site, operation, &operands[..1], &operands[1..]);
            let action = match channel {
                Some((ChannelKind::Port, port)) => within.push_of(port, transfer),
                _ => StepAction::Move(transfer),
            };
            within.push(action, slot);
            if let Some((kind, channel)) = channel
                && matches!(operation.code, Code::PutWithSignal | Code::PutWithSignalAndFlush)
            {
                within.push(self.signal(kind, channel, false), slot);
            }
        }
        if operation.code == Code::PutWithSignalAndFlush {
            for (slot, &id) in operation.channels.iter().enumerate() {
                within
                    .push(StepAction::Flush { port: within.block.port_channels[id as usize] as usize }, slot);
            }
        }
    }

    /// Waits for packets, then pushes copies of them.
    fn forward(&mut self, within: &mut Within<'_>, site: OperationSite, operation: &BlockOperation) {
        let source = [(&operation.sources[0], Form::Packets)];
        let transfer = self.transfer(within, site, operation, &source, &[]);
        within.push(StepAction::Await(transfer), 0);
        for (slot, (target, &id)) in operation.targets.iter().zip(&operation.channels).enumerate() {
            let transfer = self.transfer(within, site, operation, &source, &[(target, Form::Packets)]);
            let port = within.block.port_channels[id as usize] as usize;
            let action = within.push_of(port, transfer);
            within.push(action, slot);
        }
    }

    /// Lowers an operation that combines all sources into all targets.
    fn combination(&mut self, within: &mut Within<'_>, site: OperationSite, operation: &BlockOperation) {
        use Form::{Packets, Plain};
        let last = operation.sources.len();
        let (first_source, other_sources, first_target, other_targets) = match operation.code {
            Code::CopyPackets => (Plain, Plain, Packets, Packets),
            Code::UnpackPackets => (Packets, Packets, Plain, Plain),
            Code::ReadPutPackets | Code::GroupStorePackets => (Packets, Packets, Packets, Packets),
            Code::ReducePackets
            | Code::ReduceCopyPackets
            | Code::ReduceSendPackets
            | Code::ReduceCopySendPackets => (Plain, Packets, Plain, Packets),
            _ => (Plain, Plain, Plain, Plain),
        };
        let form = |index, first, others| if index == 0 { first } else { others };
        let mut sources: Vec<_> = (operation.sources.iter().enumerate())
            .map(|(index, source)| (source, form(index, first_source, other_sources)))
            .collect();
        if other_sources != first_source {
            // Packets are reduced from the first on, and the plain source comes last.
            sources.rotate_left(usize::from(last > 1));
        }
        let targets: Vec<_> = (operation.targets.iter().enumerate())
            .map(|(index, target)| (target, form(index, first_target, other_targets)))
            .collect();
        let transfer = self.transfer(within, site, operation, &sources, &targets);
        within.push(StepAction::Move(transfer), 0);
    }

    fn transfer(
        &mut self,
        within: &mut Within<'_>,
        site: OperationSite,
        operation: &BlockOperation,
        sources: &[(&Reference, Form)],
        targets: &[(&Reference, Form)],
    ) -> BlockTransfer {
        let bytes =
            sources.first().map_or(0, |(source, _)| (source.size as usize).saturating_mul(self.sizes.chunk));
        let slice = self.slice(operation, bytes);
        let around = within.around.filter(|_| !operation.code.is_of_packets());
        let first = within.code.operands.len();
        for &(reference, form) in sources {
            self.operand(within, operation, reference, form, slice);
        }
        let middle = within.code.operands.len();
        for &(reference, form) in targets {
            self.operand(within, operation, reference, form, slice);
        }
        let transfer = BlockTransfer {
            operator: operation.operator,
            operands: first,
            sources: middle - first,
            targets: within.code.operands.len() - middle,
            bytes: slice.bytes,
            unit: around.map_or(0, |around| around.unit),
        };
        for operand in &within.code.operands[first..] {
            self.bounds(operand, &transfer, around, site.place(self.rank, within.index));
        }
        transfer
    }

    /// Returns the part of so many bytes that an operation covers.
    fn slice(&self, operation: &BlockOperation, bytes: usize) -> ReferencePart {
        let Some((part, of)) = operation.slice else { return ReferencePart { first: 0, bytes } };
        let units = bytes / self.plan.alignment;
        let start = |part: u32| {
            let (part, of) = (part as usize, of as usize);
            (part * (units / of) + part.min(units % of)) * self.plan.alignment
        };
        ReferencePart { first: start(part), bytes: start(part + 1) - start(part) }
    }

    /// Adds an operand for each buffer that a reference names.
    fn operand(
        &self,
        within: &mut Within<'_>,
        operation: &BlockOperation,
        reference: &Reference,
        form: Form,
        slice: ReferencePart,
    ) {
        let program = &self.plan.ranks[self.rank];
        let mut add = |rank, buffer| {
            let operand = self.resolved(rank, buffer, reference, form, slice);
            within.code.operands.push(operand);
        };
        match reference.holder {
            ReferencedBuffer::Local(buffer) => add(self.rank, buffer),
            ReferencedBuffer::Remote(id) => {
                let kind = operation.kind.unwrap_or(ChannelKind::Memory);
                let far = &program.remote_buffers[within.block.remote_buffers(kind)[id as usize] as usize];
                add(far.rank as usize, far.buffer);
            }
            ReferencedBuffer::Switch(id) => {
                let group = &program.switch_groups[within.block.switch_groups[id as usize] as usize];
                group.ranks.iter().for_each(|&rank| add(rank as usize, group.buffer));
            }
        }
    }

    fn resolved(
        &self,
        rank: usize,
        buffer: Buffer,
        reference: &Reference,
        form: Form,
        slice: ReferencePart,
    ) -> Operand {
        let sizes = &self.sizes.ranks[rank];
        let pitch = if buffer == Buffer::Scratch { sizes.stride } else { self.sizes.chunk };
        let first = reference.index as usize * pitch + slice.first;
        let offset = match form {
            Form::Plain => self.start_of(rank, buffer) + first,
            Form::Packets => 2 * first,
        };
        let wrap = if buffer == Buffer::Scratch { sizes.wrap } else { usize::MAX };
        Operand { rank, buffer: self.overlap.holder(buffer), form, offset, wrap }
    }

    /// Returns where a buffer begins within the one that holds it.
    pub(super) fn start_of(&self, rank: usize, buffer: Buffer) -> usize {
        let sizes = &self.sizes.ranks[rank];
        match (self.overlap, buffer) {
            (Overlap::InputInOutput, Buffer::Input) => rank * sizes.input,
            (Overlap::OutputInInput, Buffer::Output) => rank * sizes.output,
            _ => 0,
        }
    }

    /// Notes an operand that reaches beyond scratch. Other buffers are as long as their chunks.
    fn bounds(&mut self, operand: &Operand, transfer: &BlockTransfer, around: Option<Loop>, place: Place) {
        let sizes = &self.sizes.ranks[operand.rank];
        if operand.buffer != Buffer::Scratch || transfer.bytes == 0 {
            return;
        }
        let room = if self.plan.double_scratch { sizes.half } else { sizes.scratch };
        let reach = match operand.form {
            Form::Packets => 2 * transfer.bytes,
            Form::Plain => reach(transfer, operand.wrap, around),
        };
        if operand.offset.saturating_add(reach) > room {
            let (chunk, stride) = (self.sizes.chunk, sizes.stride);
            let what = format!(
                "bytes {}..{} of the scratch of rank {}, which has {room} in chunks of {stride} (those of the message have {chunk}); give it more chunks, or move the data in a pipeline",
                operand.offset,
                operand.offset.saturating_add(reach),
                operand.rank,
            );
            self.problems.push(Problem::new(place, what));
        }
    }
}

/// Returns how many bytes from its offset on a plain operand covers, over all iterations.
fn reach(transfer: &BlockTransfer, wrap: usize, around: Option<Loop>) -> usize {
    let Some(around) = around else { return transfer.bytes };
    if transfer.bytes <= wrap {
        return transfer.bytes;
    }
    let used = around.iterations.min(transfer.bytes.div_ceil(around.unit));
    let common = gcd(around.unit, wrap);
    if used >= wrap / common {
        return (wrap - common + around.unit).min(wrap - common + transfer.bytes);
    }
    // Within a lap the last iteration reaches farthest, or the one before it where that is short.
    let laps = (0..transfer.bytes.div_ceil(wrap)).map(|lap| ((lap + 1) * wrap - 1) / around.unit);
    laps.chain([used.saturating_sub(2)])
        .map(|iteration| {
            let (first, bytes) = transfer.extent(iteration.min(used - 1));
            first % wrap + bytes
        })
        .max()
        .unwrap_or(0)
}

/// Returns the greatest common divisor.
pub(crate) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The block that is compiled.
struct Within<'a> {
    block: &'a Block,
    index: usize,
    barriers: &'a [(u32, u32)],
    code: &'a mut BlockCode,
    around: Option<Loop>,
}

impl Within<'_> {
    /// Adds a step of the latest site.
    fn push(&mut self, action: StepAction, slot: usize) {
        let site = self.code.sites.len() - 1;
        self.code.steps.push(Step { action, slot, site });
    }

    fn barrier(&mut self, operation: &BlockOperation) {
        let barrier = self.barriers.iter().position(|barrier| Some(*barrier) == operation.barrier);
        self.push(StepAction::Barrier { barrier: barrier.unwrap_or(0) }, 0);
    }

    fn semaphores(&mut self, operation: &BlockOperation, action: impl Fn(usize) -> StepAction) {
        for (slot, &id) in operation.semaphores.iter().enumerate() {
            self.push(action(id as usize), slot);
        }
    }

    /// Makes the push of a transfer. The proxy copies packets as the bytes that they take.
    fn push_of(&mut self, port: usize, mut transfer: BlockTransfer) -> StepAction {
        let operands = &mut self.code.operands[transfer.operands..];
        if operands.iter().all(|operand| operand.form == Form::Packets) {
            transfer.bytes *= 2;
            operands.iter_mut().for_each(|operand| operand.form = Form::Plain);
        }
        StepAction::Push { port, transfer }
    }
}
