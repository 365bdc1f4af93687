//! A plan as its file says it: names, counts and indices, not yet resolved.

use std::fmt;

/// The most ranks of a plan.
pub const MAX_RANKS: usize = 256;

/// An execution plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionPlan {
    /// The name of the algorithm.
    pub name: String,
    /// The name of the collective.
    pub collective: String,
    /// Whether scratch holds packets.
    pub protocol: Protocol,
    /// Whether the plan is written for input and output that overlap.
    pub in_place: bool,
    /// Whether chunks of scratch wrap, so that scratch has a fixed size.
    pub reuse_resources: bool,
    /// Whether launches use two halves of scratch by turns.
    pub double_scratch: bool,
    /// The smallest unit of all divisions, in bytes.
    pub alignment: usize,
    /// How many threads a block has on a GPU.
    pub threads_per_block: u32,
    /// The smallest message in bytes.
    pub min_message: u64,
    /// The largest message in bytes.
    pub max_message: u64,
    /// The program of each rank.
    pub ranks: Vec<RankProgram>,
}

impl ExecutionPlan {
    /// Returns the operators by which it reduces, each once.
    #[must_use]
    pub fn operators(&self) -> Vec<Operator> {
        let mut found = Vec::new();
        for block in self.ranks.iter().flat_map(|rank| &rank.blocks) {
            note_operators(&block.operations, &mut found);
        }
        found
    }
}

fn note_operators(operations: &[BlockOperation], found: &mut Vec<Operator>) {
    for operation in operations {
        if operation.code.is_reduction() && !found.contains(&operation.operator) {
            found.push(operation.operator);
        }
        note_operators(operation.inner(), found);
    }
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankProgram {
    /// The length of the input in chunks.
    pub input_chunks: u32,
    /// The length of the output in chunks.
    pub output_chunks: u32,
    /// The length of scratch in chunks.
    pub scratch_chunks: u32,
    /// The thread blocks, by id.
    pub blocks: Vec<Block>,
    /// The peer of each memory channel.
    pub memory_channels: Vec<u32>,
    /// The peer of each port channel.
    pub port_channels: Vec<u32>,
    /// The switch groups.
    pub switch_groups: Vec<SwitchGroup>,
    /// Buffers of other ranks.
    pub remote_buffers: Vec<RemoteBuffer>,
    /// The initial value of each semaphore.
    pub semaphores: Vec<u32>,
}

impl RankProgram {
    /// Returns the length of a buffer in chunks.
    #[must_use]
    pub fn chunks(&self, buffer: Buffer) -> u32 {
        match buffer {
            Buffer::Input => self.input_chunks,
            Buffer::Output => self.output_chunks,
            Buffer::Scratch => self.scratch_chunks,
        }
    }

    /// Returns the peers of the channels of a kind; none of switch channels.
    #[must_use]
    pub fn channels(&self, kind: ChannelKind) -> &[u32] {
        match kind {
            ChannelKind::Memory => &self.memory_channels,
            ChannelKind::Port => &self.port_channels,
            ChannelKind::Switch => &[],
        }
    }
}

/// A group of ranks whose buffers a switch channel joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchGroup {
    /// The buffer of each member.
    pub buffer: Buffer,
    /// The members, in the order of reduction.
    pub ranks: Vec<u32>,
}

/// A buffer of another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The other rank.
    pub rank: u32,
    /// Which of its buffers.
    pub buffer: Buffer,
    /// Over which kinds of channels.
    pub access: Vec<ChannelKind>,
}

/// A thread block: operations in order, and what they use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The operations.
    pub operations: Vec<BlockOperation>,
    /// The memory channels that operations name, as indices of the rank's.
    pub memory_channels: Vec<u32>,
    /// The port channels that operations name, as indices of the rank's.
    pub port_channels: Vec<u32>,
    /// The switch groups that operations name, as indices of the rank's.
    pub switch_groups: Vec<u32>,
    /// The remote buffers that operations over memory channels name, as indices of the rank's.
    pub memory_buffers: Vec<u32>,
    /// The remote buffers that operations over port channels name, as indices of the rank's.
    pub port_buffers: Vec<u32>,
}

/// A thread block of a rank, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    pub(crate) rank: usize,
    pub(crate) block: usize,
}

impl Block {
    /// Returns the channels of a kind, as indices of the rank's.
    #[must_use]
    pub fn channels(&self, kind: ChannelKind) -> &[u32] {
        match kind {
            ChannelKind::Memory => &self.memory_channels,
            ChannelKind::Port => &self.port_channels,
            ChannelKind::Switch => &self.switch_groups,
        }
    }

    /// Returns the remote buffers of a kind of access, as indices of the rank's.
    #[must_use]
    pub fn remote_buffers(&self, kind: ChannelKind) -> &[u32] {
        match kind {
            ChannelKind::Memory => &self.memory_buffers,
            ChannelKind::Port => &self.port_buffers,
            ChannelKind::Switch => &[],
        }
    }
}

/// One operation. What its name does not use is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockOperation {
    /// What it does.
    pub code: Code,
    /// Over which kind of channel.
    pub kind: Option<ChannelKind>,
    /// Channels, as indices into the block's of that kind.
    pub channels: Vec<u32>,
    /// Semaphores of the rank.
    pub semaphores: Vec<u32>,
    /// The id of a barrier, and how many blocks meet.
    pub barrier: Option<(u32, u32)>,
    /// Sources.
    pub sources: Vec<Reference>,
    /// Destinations.
    pub targets: Vec<Reference>,
    /// How sources are combined.
    pub operator: Operator,
    /// Which part of each reference: part, and of how many.
    pub slice: Option<(u32, u32)>,
    /// The iterations of a pipeline.
    pub pipeline: Option<PipelineLoop>,
}

impl BlockOperation {
    /// Makes an operation that uses nothing.
    #[must_use]
    pub fn new(code: Code) -> Self {
        Self {
            code,
            kind: None,
            channels: Vec::new(),
            semaphores: Vec::new(),
            barrier: None,
            sources: Vec::new(),
            targets: Vec::new(),
            operator: Operator::Sum,
            slice: None,
            pipeline: None,
        }
    }

    /// Returns the operations of a pipeline, and none of others.
    #[must_use]
    pub fn inner(&self) -> &[Self] {
        self.pipeline.as_ref().map_or(&[], |pipeline| &pipeline.operations)
    }
}

/// The body of a pipeline, and how often it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineLoop {
    /// The bytes of an iteration.
    pub unit: usize,
    /// The chunks of all iterations together.
    pub chunks: u32,
    /// The operations of an iteration.
    pub operations: Vec<BlockOperation>,
}

/// A range of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// The holder of the buffer.
    pub holder: ReferencedBuffer,
    /// The first chunk.
    pub index: u32,
    /// How many chunks.
    pub size: u32,
}

/// The buffer of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReferencedBuffer {
    /// A buffer of the own rank.
    Local(Buffer),
    /// A remote buffer, as an index into the block's of the kind of channel.
    Remote(u32),
    /// The buffers of all members of a switch group, as an index into the block's.
    Switch(u32),
}

/// Makes an enum whose members have names in the file.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$of:meta])* $member:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type { $($(#[$of])* $member,)* }

        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$member,)*];

            /// Returns the name in a file.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$member => $name,)* }
            }

            /// Returns what a name in a file means.
            #[must_use]
            pub fn of_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|member| member.name() == name)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// What scratch holds.
    Protocol {
        /// Plain bytes.
        Simple = "Simple",
        /// Packets, which carry a flag beside the payload.
        LowLatency = "LL",
    }
}

named! {
    /// A buffer of a rank.
    Buffer {
        /// The input.
        Input = "i",
        /// The output.
        Output = "o",
        /// Scratch, which belongs to the plan.
        Scratch = "s",
    }
}

named! {
    /// A kind of channel.
    ChannelKind {
        /// Bytes move by the block itself.
        Memory = "memory",
        /// Bytes move by a proxy.
        Port = "port",
        /// All members' buffers at once.
        Switch = "switch",
    }
}

named! {
    /// How sources are combined.
    Operator {
        /// The sum.
        Sum = "sum",
        /// The smallest.
        Min = "min",
        /// The largest.
        Max = "max",
    }
}

named! {
    /// The name of an operation.
    Code {
        /// The threads of a block meet.
        Nop = "nop",
        /// Blocks of a rank meet.
        Barrier = "barrier",
        /// Waits for a semaphore, and takes 1.
        SemAcquire = "sem_acquire",
        /// Adds 1 to a semaphore.
        SemRelease = "sem_release",
        /// Adds 1 to a peer's counter, behind all earlier accesses.
        Signal = "signal",
        /// Waits for a signal.
        Wait = "wait",
        /// A signal that orders execution only.
        RelaxedSignal = "rlxsignal",
        /// A wait that orders execution only.
        RelaxedWait = "rlxwait",
        /// Waits for the proxy.
        Flush = "flush",
        /// Copies within the rank.
        Copy = "copy",
        /// Copies from a peer.
        Get = "get",
        /// Copies to a peer.
        Put = "put",
        /// Puts, then signals.
        PutWithSignal = "pws",
        /// Puts, then signals, then waits for the proxy.
        PutWithSignalAndFlush = "pwsf",
        /// Reduces within the rank.
        Reduce = "re",
        /// Reduces, and sends the result.
        ReduceSend = "res",
        /// Reduces what peers hold.
        ReadReduce = "rre",
        /// Reduces what peers hold, and sends the result.
        ReadReduceSend = "rres",
        /// Makes packets of plain bytes, within the rank.
        CopyPackets = "cpkt",
        /// Waits for packets, and writes their payload.
        UnpackPackets = "upkt",
        /// Sends plain bytes as packets, or packets over a port.
        PutPackets = "ppkt",
        /// Waits for packets, and sends them on.
        ReadPutPackets = "rppkt",
        /// Reduces packets.
        ReducePackets = "repkt",
        /// Reduces packets, and makes packets of the result.
        ReduceCopyPackets = "recpkt",
        /// Reduces packets, and sends the result as packets.
        ReduceSendPackets = "respkt",
        /// Reduces packets, makes packets of the result, and sends it as packets.
        ReduceCopySendPackets = "recspkt",
        /// Reduces over a group into all members' buffers.
        GroupLoadReduceStore = "glres",
        /// Stores into all members' buffers.
        GroupStore = "gstore",
        /// Waits for packets, and stores them into all members' buffers.
        GroupStorePackets = "gstorepkt",
        /// Reduces over a group into one buffer.
        GroupLoadReduce = "glre",
        /// Runs its operations once per unit.
        Pipeline = "pipeline",
    }
}

impl Code {
    /// Returns whether the operation reads or writes packets.
    #[must_use]
    pub fn is_of_packets(self) -> bool {
        matches!(
            self,
            Self::CopyPackets
                | Self::UnpackPackets
                | Self::PutPackets
                | Self::ReadPutPackets
                | Self::ReducePackets
                | Self::ReduceCopyPackets
                | Self::ReduceSendPackets
                | Self::ReduceCopySendPackets
                | Self::GroupStorePackets
        )
    }

    /// Returns whether the operation combines sources.
    #[must_use]
    pub fn is_reduction(self) -> bool {
        matches!(
            self,
            Self::Reduce
                | Self::ReduceSend
                | Self::ReadReduce
                | Self::ReadReduceSend
                | Self::ReducePackets
                | Self::ReduceCopyPackets
                | Self::ReduceSendPackets
                | Self::ReduceCopySendPackets
                | Self::GroupLoadReduceStore
                | Self::GroupLoadReduce
        )
    }
}
