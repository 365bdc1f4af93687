//! What the ranks do in a job of which one is stopped: the same as others whose peers are killed,
//! until they are told of it. Then the survivors go on, fill the first eighth of their heaps in the
//! new epoch, and look at that while they compute; and the stopped one, when it is woken, goes on
//! trying in the old epoch by every way there is.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use shmccl::channel::{Channel, MemoryChannel, PortChannel};
use shmccl::comm::{Aborter, JoinedAs, join_job};
use shmccl::heap::{DeviceBuffer, HeapOffset};
use shmccl::launch::Launch;
use shmccl::reduce::ReduceOp;
use shmccl::shm::packet::{PacketFlag, PacketKind};
use shmccl::{Collectives, Communicator, Error, Rank, Result};

use crate::kill::device::{open, say};
use crate::kill::survivor::sum_up;
use crate::kill::work::work;

/// How much the woken rank writes at a time, in words.
const WORDS: usize = 1 << 16;

/// How much memory the survivors look at, in words: 8 MiB of the 64 MiB of a heap, what the woken
/// rank writes to in its epoch, and more.
const FRESH: usize = 1 << 20;

/// How often the woken rank tries each way.
const ATTEMPTS: u64 = 50;

/// More puts than a fifo has room for.
const MORE_THAN_A_FIFO: usize = 600;

/// What the launcher tells the ranks while they run: files in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Signs(PathBuf);

impl Signs {
    pub(crate) fn new(directory: PathBuf) -> Self {
        // A failed run may have left it whose process had the same number.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).unwrap();
        Self(directory)
    }

    /// Has the processes of `launch` see them.
    pub(crate) fn tell(&self, launch: Launch) -> Launch {
        launch.env("STOPPED_SIGNS", &self.0)
    }

    pub(crate) fn give(&self, name: &str) {
        std::fs::write(self.0.join(name), b"").unwrap();
    }

    pub(crate) fn remove(self) {
        std::fs::remove_dir_all(self.0).unwrap();
    }

    fn of_process() -> Self {
        Self(told("STOPPED_SIGNS").into())
    }

    fn is_given(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }
}

fn told(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// What becomes of the stopped rank, as far as the others are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It wakes before anybody is told of anything.
    Pauses,
    /// The others time out, and give it up.
    Late,
    /// The launcher says that it hangs.
    Hangs,
}

/// The body of every process of a trial.
pub(crate) fn be_stopped_or_not() {
    say(&format!("start {}", std::process::id()));
    let Ok(Some(JoinedAs::Device(mut comm))) = join_job() else { return };
    let victim = Rank::new(told("STOPPED_RANK").parse().unwrap(), comm.n_ranks()).unwrap();
    let fate = match told("STOPPED_FATE").as_str() {
        "pauses" => Fate::Pauses,
        "late" => Fate::Late,
        _ => Fate::Hangs,
    };
    let mut numbers: Vec<_> = (0..comm.n_ranks()).collect();
    let data = comm.alloc::<u64>(WORDS).unwrap();
    comm.set_algorithm(told("STOPPED_ALGORITHM").parse().ok());
    let ender = (fate == Fate::Pauses && comm.rank().get() == 0).then(|| end_when_told(comm.aborter()));
    comm.barrier().unwrap();
    say("up");
    let error = work(&mut comm, &told("STOPPED_KIND"), &told("STOPPED_MODE")).unwrap_err();
    ender.into_iter().for_each(|ender| ender.join().unwrap());
    if comm.rank() == victim && fate != Fate::Pauses {
        return try_on(*comm, &data, &error);
    }
    let comm = go_on(*comm, victim, fate, &error);
    // So that the system may use the addresses of the old epoch again.
    drop(data);
    numbers.retain(|number| fate == Fate::Pauses || *number != victim.get());
    live_on(comm, &numbers);
    say("done");
}

/// Ends the epoch when it has lasted long enough.
fn end_when_told(aborter: Aborter) -> JoinHandle<()> {
    let signs = Signs::of_process();
    std::thread::spawn(move || {
        while !signs.is_given("enough") {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        aborter.revoke();
    })
}

/// Checks what this rank was told of the stopped one, and goes on into the next epoch: without it,
/// unless it has only paused.
fn go_on(mut comm: Communicator, victim: Rank, fate: Fate, error: &Error) -> Communicator {
    let is_of_another = |by: &Option<Rank>| by.is_some_and(|rank| rank != victim && rank != comm.rank());
    let is_right = match (fate, error.origin()) {
        // Nobody was told of anything but the end.
        (Fate::Pauses, Error::Revoked { by: Some(rank), .. }) => rank.get() == 0,
        // Where a rank waits for the service process, which was stopped with the victim, nobody
        // else need be in the way.
        (Fate::Late, Error::Timeout { straggler: None, .. }) if told("STOPPED_SERVICE") == "true" => true,
        // The awaited one may have given its own wait up an instant before: nobody holds it up.
        (Fate::Late, Error::Timeout { awaited: Some(awaited), straggler: None, .. }) => {
            *awaited != comm.rank()
        }
        (Fate::Late, Error::Timeout { straggler, .. }) => *straggler == Some(victim),
        // Another one was quicker to give it up.
        (Fate::Late, Error::Revoked { by, .. }) => is_of_another(by),
        (Fate::Late | Fate::Hangs, Error::PeerLost { rank }) => *rank == victim,
        // The service was stopped with it, and found first.
        (Fate::Hangs, Error::ProxyLost) => told("STOPPED_SERVICE") == "true",
        _ => false,
    };
    assert!(is_right, "{fate:?}: {error:#?}");
    if fate == Fate::Late {
        comm.give_up(victim).unwrap();
    }
    let shrunk = comm.shrink().unwrap();
    let lost = if fate == Fate::Pauses { vec![] } else { vec![victim] };
    assert_eq!(shrunk.lost, lost);
    shrunk.comm
}

/// Fills memory, and computes and looks at it with the others, which had these `numbers` in the
/// beginning, until it is over.
pub(crate) fn live_on(mut comm: Communicator, numbers: &[u32]) {
    let signs = Signs::of_process();
    let fresh = comm.alloc::<u64>(FRESH).unwrap();
    let post = comm.alloc::<u64>(2).unwrap();
    assert_eq!(fresh.region().offset, HeapOffset::new(0), "where the one that was given up writes");
    let pattern: Vec<_> = (0..).map(|index| word(comm.rank(), index)).take(FRESH).collect();
    fresh.copy_from_slice(0, &pattern).unwrap();
    let mut neighbours = open(&comm, "thread").unwrap();
    comm.barrier().unwrap();
    say("on");
    let is_intact = || fresh.span().equals(0, bytemuck::cast_slice(&pattern)).unwrap();
    for round in 0.. {
        assert!(is_intact(), "something has changed");
        sum_up(&mut comm, numbers).unwrap();
        let (here, there) = (post.part(0, 1).unwrap().offset, post.part(1, 1).unwrap().offset);
        post.set(0, word(comm.rank(), round)).unwrap();
        let [right, left] = &mut neighbours;
        right.put_with_signal(there, here, 8).unwrap();
        left.wait().unwrap();
        assert_eq!(post.get(1).unwrap(), word(comm.left(), round));
        let is_over = comm.rank().get() == 0 && signs.is_given("over");
        let mut over = [u64::from(is_over)];
        comm.all_reduce_in_place(&mut over, &ReduceOp::Max).unwrap();
        if over[0] > 0 {
            break;
        }
    }
    assert!(is_intact(), "something has changed");
    drop(neighbours);
    comm.finalize().unwrap();
}

fn word(rank: Rank, index: u64) -> u64 {
    u64::from(rank.get() + 1) << 48 | index
}

/// Goes on in the old epoch, after it was woken and told `error`: by direct channels and proxied
/// ones, packets, views of its peers' memory, and collective calls, until it asks to go on and is
/// told that it was given up.
fn try_on(mut comm: Communicator, data: &DeviceBuffer<u64>, error: &Error) {
    let _through = Through::of_process();
    let left: u64 = comm.fifo_snapshots().unwrap().iter().map(|fifo| fifo.depth).sum();
    let told = reason(&comm, error);
    assert_eq!(data.region().offset, HeapOffset::new(0), "where the others look");
    let peers: Vec<_> = (0..comm.n_ranks()).filter(|rank| *rank != comm.rank().get()).collect();
    data.fill(u64::MAX);
    for rank in peers {
        let peer = Rank::new(rank, comm.n_ranks()).unwrap();
        write_to(&comm, peer, data);
        let mut direct = comm.memory_channel(peer).unwrap();
        let mut proxied = comm.port_channel(peer).unwrap();
        for _ in 0..ATTEMPTS {
            // They are not refused; only a fifo that nobody serves is full in the end.
            for done in [put_packets(&mut direct, data), put(&mut direct, data), put(&mut proxied, data)] {
                done.unwrap_or_else(|error| _ = reason(&comm, &error));
            }
        }
        let error = push_until_full(&mut proxied, data).unwrap_err();
        reason(&comm, &error);
        reason(&comm, &direct.wait().and_then(|()| proxied.flush()).unwrap_err());
    }
    call_everybody(&mut comm, data);
    let error = comm.give_up(comm.left()).unwrap_err();
    assert!(matches!(error, Error::Excluded), "{error}");
    let error = comm.shrink().unwrap_err();
    assert!(matches!(error, Error::Excluded), "{error}");
    drop(comm);
    say(&format!("excluded {told} {left}"));
}

/// Tells the others that the woken rank is through, also when it panics.
pub(crate) struct Through(Signs);

impl Through {
    pub(crate) fn of_process() -> Self {
        Self(Signs::of_process())
    }
}

impl Drop for Through {
    fn drop(&mut self) {
        self.0.give("over");
    }
}

/// What `error` says to a rank that was given up, in a word: that it is lost, that the epoch was
/// ended by another rank, or that the service process was lost, which was stopped with it.
fn reason(comm: &Communicator, error: &Error) -> &'static str {
    match error.origin() {
        Error::PeerLost { rank } if *rank == comm.rank() => "lost",
        Error::Revoked { by: Some(rank), .. } if *rank != comm.rank() => "revoked",
        Error::ProxyLost if told("STOPPED_SERVICE") == "true" => "service",
        _ => panic!("{error:#?}"),
    }
}

/// Writes to its memory, without any channel.
pub(crate) fn write_to(comm: &Communicator, peer: Rank, data: &DeviceBuffer<u64>) {
    let theirs = comm.span(peer, data.region()).unwrap();
    for _ in 0..ATTEMPTS {
        theirs.copy_in(data.region().offset.get(), bytemuck::cast_slice(&data.to_vec())).unwrap();
    }
}

fn put(channel: &mut impl Channel, data: &DeviceBuffer<u64>) -> Result<()> {
    let all = data.region();
    channel.put_with_signal(all.offset, all.offset, all.len)
}

fn put_packets(channel: &mut MemoryChannel, data: &DeviceBuffer<u64>) -> Result<()> {
    // As packets they take twice the room.
    let half = data.part(0, WORDS / 2)?;
    channel.put_packets(PacketKind::Ll8, half.offset, half.offset, half.len, PacketFlag::FIRST)
}

/// Nobody serves its fifo any more.
fn push_until_full(proxied: &mut PortChannel, data: &DeviceBuffer<u64>) -> Result<()> {
    (0..MORE_THAN_A_FIFO).try_for_each(|_| put(proxied, data))
}

/// Makes collective calls, which all fail.
fn call_everybody(comm: &mut Communicator, data: &DeviceBuffer<u64>) {
    let errors = [
        comm.barrier().unwrap_err(),
        comm.all_reduce_in_place(data, &ReduceOp::Sum).unwrap_err(),
        comm.all_reduce_in_place(&mut vec![1_u64; WORDS], &ReduceOp::Sum).unwrap_err(),
        comm.alloc::<u64>(WORDS).unwrap_err(),
        comm.split(Some(0), 0).unwrap_err(),
    ];
    errors.iter().for_each(|error| _ = reason(comm, error));
}
