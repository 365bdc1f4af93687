//! Programs of tagged messages that are drawn at random, against what each receive has to get.
//!
//! A program is a list of steps that all ranks go through in one order, each taking its part: so
//! the first step that is not done has everybody that it needs. In a *burst* one rank sends another
//! some messages of different tags, and that one receives them in another order, but for some short
//! ones that it takes at the end of the program. In a *gathering* one rank receives from any. There
//! are operations of all ranks between them.

use shmccl::collective::ChannelKind;
use shmccl::heap::DeviceBuffer;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Group, Rank, Result, StatusHandle};

use crate::harness::{Job, Random, pattern, rank, seed_of};

const LENGTHS: [usize; 11] = [0, 1, 8, 64, 65, 500, 4000, 16 << 10, 33_000, 70_000, 300_000];

/// Room for all that a rank sends, or receives, in one step.
const ROOM: usize = 8 * (300_000 + 128);

#[derive(Clone, Debug)]
struct Message {
    tag: u32,
    len: usize,
    /// What it is made of.
    seed: u64,
    /// At both ends.
    in_heap: [bool; 2],
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        pattern(self.seed, self.len)
    }
}

/// Messages of one rank to another.
#[derive(Debug)]
struct Burst {
    from: u32,
    to: u32,
    sent: Vec<Message>,
    /// In the order of the receives.
    received: Vec<Message>,
    /// Whether each end puts its calls together.
    grouped: [bool; 2],
    from_any: bool,
}

/// Messages of all other ranks, `each` of every one.
#[derive(Debug)]
struct Gathering {
    to: u32,
    tag: u32,
    len: usize,
    each: u64,
    seed: u64,
}

#[derive(Debug)]
enum Step {
    Burst(Burst),
    Gathering(Gathering),
    AllReduce,
    Barrier,
}

fn index(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).unwrap()
}

/// `messages` in another order, in which those of one tag keep theirs.
fn shuffled(random: &mut Random, messages: &[Message]) -> Vec<Message> {
    let mut rest = messages.to_vec();
    let mut order = Vec::new();
    while !rest.is_empty() {
        let tag = rest[index(random, rest.len())].tag;
        let first = rest.iter().position(|message| message.tag == tag).unwrap();
        order.push(rest.remove(first));
    }
    order
}

/// The steps of a program for `n` ranks.
fn draw(random: &mut Random, n: u32, n_steps: u32) -> Vec<Step> {
    let (mut steps, mut late) = (Vec::new(), Vec::new());
    for number in 0..n_steps {
        let from = u32::try_from(random.below(n.into())).unwrap();
        let to = (from + 1 + u32::try_from(random.below(u64::from(n) - 1)).unwrap()) % n;
        // Nobody else uses those from there on.
        let own = 1000 + 100 * number;
        let len = LENGTHS[index(random, LENGTHS.len())];
        match random.below(10) {
            0 => steps.push(Step::AllReduce),
            1 => steps.push(Step::Barrier),
            2 | 3 => {
                let (each, seed) = (1 + random.below(3), random.next());
                steps.push(Step::Gathering(Gathering { to, tag: own, len, each, seed }));
            }
            _ => {
                let from_any = random.below(4) == 0;
                let mut sent: Vec<_> =
                    (0..2 + random.below(6)).map(|_| message(random, from_any.then_some(own))).collect();
                // The last one is not late: who awaits it takes all before it out of the pipe.
                let last = sent.len() - 1;
                let mut tags = own + 1..;
                for message in sent[..last].iter_mut().filter(|message| message.len <= 500 && !from_any) {
                    if random.below(3) == 0 {
                        message.tag = tags.next().unwrap();
                        late.push((from, to, message.clone()));
                    }
                }
                let now: Vec<_> = sent.iter().filter(|message| message.tag <= own).cloned().collect();
                let received = shuffled(random, &now);
                let grouped = [random.below(2) == 0, random.below(2) == 0];
                steps.push(Step::Burst(Burst { from, to, sent, received, grouped, from_any }));
            }
        }
    }
    while !late.is_empty() {
        let (from, to, message) = late.remove(index(random, late.len()));
        let (sent, received, grouped) = (Vec::new(), vec![message], [false; 2]);
        steps.push(Step::Burst(Burst { from, to, sent, received, grouped, from_any: false }));
    }
    steps
}

fn message(random: &mut Random, tag: Option<u32>) -> Message {
    Message {
        tag: tag.unwrap_or_else(|| u32::try_from(random.below(4)).unwrap()),
        len: LENGTHS[index(random, LENGTHS.len())],
        seed: random.next(),
        in_heap: [random.below(2) == 0, random.below(2) == 0],
    }
}

/// The memory of one end of a step: each message in a place of its own.
struct Places {
    heap: DeviceBuffer<u8>,
    memory: Vec<Vec<u8>>,
    in_heap: Vec<Option<DeviceBuffer<u8>>>,
}

impl Places {
    fn new(heap: &DeviceBuffer<u8>) -> Self {
        Self { heap: heap.clone(), memory: Vec::new(), in_heap: Vec::new() }
    }

    /// Lays `messages` out, of which this is end number `end`.
    fn lay(&mut self, comm: &Communicator, messages: &[Message], end: usize) -> Result<()> {
        let mut at = 0;
        for message in messages {
            let bytes = if end == 0 { message.bytes() } else { vec![0xdd; message.len] };
            if !message.in_heap[end] {
                self.in_heap.push(None);
                self.memory.push(bytes);
                continue;
            }
            let place = comm.buffer::<u8>(self.heap.part(at, bytes.len())?)?;
            place.copy_from_slice(0, &bytes)?;
            self.in_heap.push(Some(place));
            self.memory.push(Vec::new());
            at = (at + bytes.len()).next_multiple_of(64);
        }
        Ok(())
    }

    fn contents(self) -> impl Iterator<Item = Vec<u8>> {
        let both = self.in_heap.into_iter().zip(self.memory);
        both.map(|(heap, memory)| heap.map_or(memory, |place| place.to_vec()))
    }
}

fn send_burst(comm: &mut Communicator, heap: &DeviceBuffer<u8>, burst: &Burst) -> Result<()> {
    let to = rank(comm, burst.to);
    let mut places = Places::new(heap);
    places.lay(comm, &burst.sent, 0)?;
    let each = burst.sent.iter().zip(places.in_heap.iter().zip(&places.memory));
    if !burst.grouped[0] {
        return each.into_iter().try_for_each(|(message, (place, memory))| match place {
            Some(place) => comm.send_tagged(place, to, message.tag),
            None => comm.send_tagged(memory, to, message.tag),
        });
    }
    let mut group = Group::start();
    let all = group.join(comm);
    for (message, (place, memory)) in each {
        match place {
            Some(place) => group.on(all).send_tagged(place, to, message.tag)?,
            None => group.on(all).send_tagged(memory, to, message.tag)?,
        }
    }
    group.end()
}

fn receive_burst(comm: &mut Communicator, heap: &DeviceBuffer<u8>, burst: &Burst) -> Result<()> {
    let from = (!burst.from_any).then(|| rank(comm, burst.from));
    let mut places = Places::new(heap);
    places.lay(comm, &burst.received, 1)?;
    let statuses: Vec<_> = burst.received.iter().map(|_| StatusHandle::new()).collect();
    let memory = places.in_heap.iter().zip(&mut places.memory);
    let each = burst.received.iter().zip(&statuses).zip(memory);
    if burst.grouped[1] {
        let mut group = Group::start();
        let all = group.join(comm);
        for ((message, status), (place, memory)) in each {
            receive(&mut group.on(all), message.tag, from, (place.as_ref(), memory), status)?;
        }
        group.end()?;
    } else {
        for ((message, status), (place, memory)) in each {
            receive(comm, message.tag, from, (place.as_ref(), memory), status)?;
        }
    }
    for ((message, status), got) in burst.received.iter().zip(&statuses).zip(places.contents()) {
        assert!(got == message.bytes(), "{message:?} of {burst:?}");
        let told = status.get().map(|status| (status.source.get(), status.tag, status.bytes()));
        assert_eq!(told, burst.from_any.then_some((burst.from, message.tag, message.len as u64)));
    }
    Ok(())
}

fn receive<'a>(
    taker: &mut impl Collectives<'a>,
    tag: u32,
    from: Option<Rank>,
    (place, memory): (Option<&DeviceBuffer<u8>>, &'a mut Vec<u8>),
    status: &StatusHandle,
) -> Result<()> {
    match (place, from) {
        (Some(place), Some(from)) => taker.recv_tagged(place, from, tag),
        (Some(place), None) => taker.recv_any_into(place, tag, status),
        (None, Some(from)) => taker.recv_tagged(memory, from, tag),
        (None, None) => taker.recv_any_into(memory, tag, status),
    }
}

fn gather(comm: &mut Communicator, gathering: &Gathering) -> Result<()> {
    let &Gathering { to, tag, len, each, seed } = gathering;
    let (me, n) = (comm.rank().get(), comm.n_ranks());
    let bytes = |source: u32, number: u64| pattern(seed ^ u64::from(source) << 32 ^ number, len);
    if me != to {
        return (0..each).try_for_each(|number| comm.send_tagged(&bytes(me, number), rank(comm, to), tag));
    }
    let mut seen = vec![0; n as usize];
    for _ in 0..each * u64::from(n - 1) {
        let mut got = vec![0xdd; len];
        let source = comm.recv_any(&mut got, tag)?.source;
        assert!(got == bytes(source.get(), seen[source.index()]), "{gathering:?} from rank {source}");
        seen[source.index()] += 1;
    }
    assert!((0..n).all(|source| seen[source as usize] == if source == me { 0 } else { each }));
    Ok(())
}

fn run(comm: &mut Communicator, seed: u64, n_steps: u32) -> Result<()> {
    let (me, n) = (comm.rank().get(), comm.n_ranks());
    comm.prepare()?;
    let heap = comm.alloc::<u8>(ROOM)?;
    for step in draw(&mut Random(seed), n, n_steps) {
        match step {
            Step::Burst(burst) if burst.from == me => send_burst(comm, &heap, &burst)?,
            Step::Burst(burst) if burst.to == me => receive_burst(comm, &heap, &burst)?,
            Step::Burst(_) => {}
            Step::Gathering(gathering) => gather(comm, &gathering)?,
            Step::AllReduce => {
                let mut sum = [me];
                comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
                assert_eq!(sum, [n * (n - 1) / 2]);
            }
            Step::Barrier => comm.barrier()?,
        }
    }
    comm.barrier()?;
    comm.free(heap)
}

port_scenario!(programs_of_tagged_messages_get_what_was_sent, Job::of(3).heap_len(32 << 20), |comm| {
    for seed in 1..=3 {
        for kind in [ChannelKind::Memory, ChannelKind::Port] {
            comm.set_channel_kind(kind)?;
            run(comm, seed, 40)?;
        }
    }
});

scenario!(programs_of_two_ranks_get_what_was_sent, Job::of(2).heap_len(32 << 20), |comm| {
    (10..14).try_for_each(|seed| run(comm, seed, 60))?;
});

scenario!(programs_that_are_checked_get_what_was_sent, Job::of(3).heap_len(32 << 20).checksums(), |comm| {
    run(comm, 20, 60)?;
});

scenario!(programs_of_many_ranks_that_share_cores_get_what_was_sent, Job::of(6).heap_len(16 << 20), |comm| {
    let seed = seed_of(comm, "programs of tagged messages")?;
    run(comm, seed, 60)?;
});
