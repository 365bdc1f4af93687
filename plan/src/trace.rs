//! One launch of a plan in logical time: what happens when, after what, and what moves where.

use std::collections::{BTreeMap, VecDeque};

use crate::lower::{BlockCode, BlockTransfer, Cursor, Form, Lowered, Operand, OperationSite, StepAction};
use crate::plan::{Buffer, MAX_RANKS};

/// The most units that a trace follows, as buffers have them and as steps move them.
const MAX_UNITS: usize = 1 << 21;
/// The most steps of all blocks in a launch.
const MAX_STEPS: usize = 1 << 20;

/// A set of ranks, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ranks([u64; MAX_RANKS.div_ceil(64)]);

impl Ranks {
    /// Returns the set of one rank.
    fn of(rank: usize) -> Self {
        let mut ranks = Self::default();
        ranks.0[rank / 64] |= 1 << (rank % 64);
        ranks
    }

    /// Returns the ranks of both sets.
    fn or(self, others: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | others.0[word]))
    }

    /// Returns the ranks in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_RANKS).filter(move |rank| self.0[rank / 64] >> (rank % 64) & 1 == 1)
    }
}

/// What happened in a launch. Events come in an order in which each comes after its causes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) events: Vec<TracedStep>,
    /// The end of the last event.
    pub(crate) end: usize,
    /// Whether some blocks wait for ever.
    pub(crate) is_stuck: bool,
}

/// A step of a block or of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct TracedStep {
    pub(crate) rank: usize,
    pub(crate) block: usize,
    pub(crate) by_proxy: bool,
    pub(crate) site: OperationSite,
    pub(crate) action: StepAction,
    /// When it was ready to begin, and when it was done.
    pub(crate) ready: usize,
    pub(crate) end: usize,
    /// The events of others that it has waited for.
    pub(crate) causes: Vec<usize>,
    pub(crate) movements: Vec<Movement>,
}

/// Bytes that one event moves between two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Movement {
    pub(crate) from: PayloadSpan,
    pub(crate) to: PayloadSpan,
    /// The ranks whose inputs the bytes combine, and over how many hops between ranks they came.
    pub(crate) ranks: Ranks,
    pub(crate) hop: usize,
}

/// A range of a buffer: of payload, where it holds packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PayloadSpan {
    pub(crate) rank: usize,
    pub(crate) buffer: Buffer,
    pub(crate) first: usize,
    pub(crate) bytes: usize,
}

/// What a unit of memory holds: ranks, hops, and the event that wrote it last.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    ranks: Ranks,
    hop: usize,
    writer: Option<usize>,
}

struct Tracer<'a> {
    lowered: &'a Lowered,
    unit: usize,
    trace: Trace,
    memory: BTreeMap<(usize, Buffer, usize), Held>,
    blocks: Vec<Vec<BlockProgress>>,
    signals: BTreeMap<(usize, usize), VecDeque<usize>>,
    /// What is left of the initial values of semaphores, and the events that have added to them.
    semaphores: BTreeMap<(usize, usize), (u32, VecDeque<usize>)>,
    arrivals: BTreeMap<(usize, usize), Vec<usize>>,
    /// By rank, the end of its proxy's last event, and by port its last event.
    proxies: Vec<usize>,
    ports: BTreeMap<(usize, usize), usize>,
}

#[derive(Clone, Default)]
struct BlockProgress {
    cursor: Cursor,
    time: usize,
    arrival: Option<usize>,
}

/// Traces the first launch.
///
/// # Errors
/// A plan that moves more, at this size, than a trace holds.
pub(crate) fn trace(lowered: &Lowered, unit: usize) -> Result<Trace, String> {
    let bytes = lowered.ranks.iter().flat_map(|rank| rank.buffers).fold(0, usize::saturating_add);
    let units = bytes.saturating_add(lowered.accessed()) / unit.max(1);
    let steps = lowered.steps();
    for (what, count, most) in [("units of memory", units, MAX_UNITS), ("steps", steps, MAX_STEPS)] {
        if count > most {
            return Err(format!("the plan has {count} {what}, more than {most}; take a smaller size"));
        }
    }
    let semaphores = lowered.ranks.iter().enumerate().flat_map(|(rank, code)| {
        let all = code.semaphores.iter().enumerate();
        all.map(move |(index, &value)| ((rank, index), (value, VecDeque::new())))
    });
    let mut tracer = Tracer {
        lowered,
        unit: unit.max(1),
        trace: Trace::default(),
        memory: BTreeMap::new(),
        blocks: lowered.ranks.iter().map(|code| vec![BlockProgress::default(); code.blocks.len()]).collect(),
        signals: BTreeMap::new(),
        semaphores: semaphores.collect(),
        arrivals: BTreeMap::new(),
        proxies: vec![0; lowered.ranks.len()],
        ports: BTreeMap::new(),
    };
    tracer.inputs();
    tracer.run();
    Ok(tracer.trace)
}

impl Tracer<'_> {
    fn inputs(&mut self) {
        for (rank, code) in self.lowered.ranks.iter().enumerate() {
            for unit in 0..code.input.bytes / self.unit {
                let at = (rank, code.input.buffer, code.input.offset / self.unit + unit);
                self.memory.insert(at, Held { ranks: Ranks::of(rank), ..Held::default() });
            }
        }
    }

    fn run(&mut self) {
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            for rank in 0..self.blocks.len() {
                for block in 0..self.blocks[rank].len() {
                    while self.turn(rank, block) {
                        has_moved = true;
                    }
                }
            }
        }
        self.trace.end = self.trace.events.iter().map(|event| event.end).max().unwrap_or(0);
        let mut tasks = self.blocks.iter().zip(&self.lowered.ranks);
        self.trace.is_stuck = tasks.any(|(tasks, code)| {
            tasks.iter().zip(&code.blocks).any(|(task, code)| task.cursor.step(code).is_some())
        });
    }

    fn turn(&mut self, rank: usize, block: usize) -> bool {
        let lowered = self.lowered;
        let code = &lowered.ranks[rank].blocks[block];
        let task = self.blocks[rank][block].clone();
        let Some(&step) = task.cursor.step(code) else { return false };
        let iteration = task.cursor.iteration();
        let Some(causes) = self.causes(rank, block, code, &step.action, iteration) else { return false };
        let ready =
            causes.iter().map(|&cause| self.trace.events[cause].end).max().unwrap_or(0).max(task.time);
        let event = TracedStep {
            rank,
            block,
            by_proxy: false,
            site: code.sites[step.site],
            action: step.action,
            ready,
            end: ready + usize::from(step.action != StepAction::Fence),
            causes,
            movements: Vec::new(),
        };
        let end = event.end;
        let index = self.trace.events.len();
        self.trace.events.push(event.clone());
        self.effects(index, code, &event, iteration);
        let task = &mut self.blocks[rank][block];
        task.time = end;
        task.arrival = None;
        task.cursor.advance(code);
        true
    }

    /// Returns the events that a step waits for, or nothing while one is missing.
    fn causes(
        &mut self,
        rank: usize,
        block: usize,
        code: &BlockCode,
        action: &StepAction,
        iteration: usize,
    ) -> Option<Vec<usize>> {
        match *action {
            StepAction::Wait { counter, .. } => {
                self.signals.get_mut(&(rank, counter))?.pop_front().map(|cause| vec![cause])
            }
            StepAction::Acquire { semaphore } => {
                let (initial, added) = self.semaphores.get_mut(&(rank, semaphore))?;
                if *initial > 0 {
                    *initial -= 1;
                    return Some(Vec::new());
                }
                added.pop_front().map(|cause| vec![cause])
            }
            StepAction::Barrier { barrier } => self.meet(rank, block, barrier),
            StepAction::Move(transfer) | StepAction::Await(transfer) => {
                self.packets(rank, code, &transfer, iteration)
            }
            StepAction::Flush { port } => Some(self.ports.get(&(rank, port)).copied().into_iter().collect()),
            _ => Some(Vec::new()),
        }
    }

    /// Arrives at a barrier. The times of all arrivals count once the last is there.
    fn meet(&mut self, rank: usize, block: usize, barrier: usize) -> Option<Vec<usize>> {
        let parties = self.lowered.ranks[rank].barriers[barrier];
        let arrivals = self.arrivals.entry((rank, barrier)).or_default();
        let task = &mut self.blocks[rank][block];
        let round = *task.arrival.get_or_insert_with(|| {
            arrivals.push(task.time);
            (arrivals.len() - 1) / parties
        });
        let times = arrivals.get(round * parties..(round + 1) * parties)?;
        task.time = times.iter().copied().max().unwrap_or(task.time);
        Some(Vec::new())
    }

    fn packets(
        &self,
        rank: usize,
        code: &BlockCode,
        transfer: &BlockTransfer,
        iteration: usize,
    ) -> Option<Vec<usize>> {
        let mut causes = Vec::new();
        for source in code.sources(transfer).iter().filter(|source| source.form == Form::Packets) {
            let (first, bytes) = transfer.extent(iteration);
            let start = self.lowered.place(source, first, 1) / self.unit;
            for unit in start..start + 2 * bytes / self.unit {
                let held = self.memory.get(&(source.rank, source.buffer, unit))?;
                let cause = held.writer?;
                if self.trace.events[cause].rank != rank && !causes.contains(&cause) {
                    causes.push(cause);
                }
            }
        }
        Some(causes)
    }

    fn effects(&mut self, index: usize, code: &BlockCode, event: &TracedStep, iteration: usize) {
        match event.action {
            StepAction::Signal { peer, counter, .. } => {
                self.signals.entry((peer, counter)).or_default().push_back(index);
            }
            StepAction::Release { semaphore } => {
                self.semaphores.entry((event.rank, semaphore)).or_default().1.push_back(index);
            }
            StepAction::Move(transfer) => self.moves(index, code, &transfer, iteration),
            StepAction::Push { port, transfer } => {
                let pushed = self.proxied(index, event, port);
                self.moves(pushed, code, &transfer, iteration);
            }
            StepAction::PushSignal { port, peer, counter } => {
                let pushed = self.proxied(index, event, port);
                self.signals.entry((peer, counter)).or_default().push_back(pushed);
            }
            _ => {}
        }
    }

    /// Adds the event of the proxy that does what was pushed.
    fn proxied(&mut self, index: usize, event: &TracedStep, port: usize) -> usize {
        let ready = event.end.max(self.proxies[event.rank]);
        let of_proxy = TracedStep {
            by_proxy: true,
            ready,
            end: ready + 1,
            causes: vec![index],
            movements: Vec::new(),
            ..event.clone()
        };
        self.proxies[event.rank] = of_proxy.end;
        self.trace.events.push(of_proxy);
        let last = self.trace.events.len() - 1;
        self.ports.insert((event.rank, port), last);
        last
    }

    /// Notes what moves in an event. What a rank reads from others and writes to others has come to
    /// the rank in between, in one hop, and leaves it in another.
    fn moves(&mut self, index: usize, code: &BlockCode, transfer: &BlockTransfer, iteration: usize) {
        let (first, bytes) = transfer.extent(iteration);
        let event = &self.trace.events[index];
        let is_raw = event.by_proxy && event.site.code.is_of_packets();
        let (rank, targets) = (event.rank, code.targets(transfer).to_vec());
        let reads_far = code.sources(transfer).iter().any(|source| source.rank != rank);
        let between = targets.iter().find(|target| reads_far && target.rank == rank).copied();
        let mut results = Vec::new();
        for unit in 0..bytes.div_ceil(self.unit) {
            let mut result = Held::default();
            for source in code.sources(transfer) {
                let held = self.held(source, first, unit);
                result =
                    Held { ranks: result.ranks.or(held.ranks), hop: result.hop.max(held.hop), writer: None };
            }
            results.push(result);
        }
        let sources: Vec<_> = code.sources(transfer).to_vec();
        let origins = self.origins(&sources, first, bytes);
        let all = origins.iter().fold(Ranks::default(), |all, (_, ranks)| all.or(*ranks));
        let before = results.iter().map(|result| result.hop).max().unwrap_or(0);
        for target in targets {
            let far = sources.iter().any(|source| source.rank != target.rank);
            let between = between.filter(|_| target.rank != rank);
            let hops = if between.is_some() { 2 } else { usize::from(far) };
            for (unit, result) in results.iter().enumerate() {
                let held = Held { hop: result.hop + hops, writer: Some(index), ..*result };
                self.store(&target, first, unit, held);
            }
            let from = between.map_or_else(|| origins.clone(), |own| vec![(own, all)]);
            for (source, ranks) in from.iter().filter(|_| bytes > 0) {
                let [from, to] = [source, &target].map(|operand| self.span(operand, first, bytes, is_raw));
                let hop = before + hops;
                self.trace.events[index].movements.push(Movement { from, to, ranks: *ranks, hop });
            }
        }
    }

    /// Returns one source of each rank, a plain one where there is, and whose inputs those of the
    /// rank combine.
    fn origins(&self, sources: &[Operand], first: usize, bytes: usize) -> Vec<(Operand, Ranks)> {
        let mut origins: BTreeMap<usize, (Operand, Ranks)> = BTreeMap::new();
        for source in sources {
            let units = 0..bytes.div_ceil(self.unit);
            let ranks =
                units.fold(Ranks::default(), |all, unit| all.or(self.held(source, first, unit).ranks));
            let origin = origins.entry(source.rank).or_insert((*source, Ranks::default()));
            origin.1 = origin.1.or(ranks);
            if source.form == Form::Plain {
                origin.0 = *source;
            }
        }
        origins.into_values().collect()
    }

    fn held(&self, operand: &Operand, first: usize, unit: usize) -> Held {
        let per_unit = if operand.form == Form::Packets { 2 } else { 1 };
        let start = self.lowered.place(operand, first, 1) / self.unit;
        let at = (operand.rank, operand.buffer, start + per_unit * unit);
        self.memory.get(&at).copied().unwrap_or_default()
    }

    fn store(&mut self, operand: &Operand, first: usize, unit: usize, held: Held) {
        let per_unit = if operand.form == Form::Packets { 2 } else { 1 };
        let start = self.lowered.place(operand, first, 1) / self.unit;
        for part in 0..per_unit {
            self.memory.insert((operand.rank, operand.buffer, start + per_unit * unit + part), held);
        }
    }

    /// Returns the payload that an operand covers. What a proxy copies of packets is raw: half of
    /// it is payload.
    fn span(&self, operand: &Operand, first: usize, bytes: usize, is_raw: bool) -> PayloadSpan {
        let (rank, buffer, at) = (operand.rank, operand.buffer, operand.at(first));
        match operand.form {
            Form::Packets => PayloadSpan { rank, buffer, first: at / 2, bytes },
            Form::Plain if is_raw => PayloadSpan { rank, buffer, first: at / 2, bytes: bytes / 2 },
            Form::Plain => PayloadSpan { rank, buffer, first: at, bytes },
        }
    }
}
