//! Who is told what of a recovery, and what is left of the heap of a rank that was killed: with
//! segments of every kind.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use shmccl::bootstrap::SegmentBacking;
use shmccl::comm::{JoinedAs, Recovery, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::heap::{HeapOffset, Region};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::shm::Span;
use shmccl::{Communicator, Error, Rank, Result};
use support::Watchdog;

use crate::kill::device::{is_device, say, saying};
use crate::kill::series::Series;
use crate::kill::{PATIENCE, shared_memory, this_test};

/// What a rank writes into its heap before the deaths.
const LEGACY: Region = Region::new(HeapOffset::new(0), 8 * WORDS);
const WORDS: u64 = 1 << 16;

/// Two of three ranks are killed, in two epochs.
const N_RANKS: u32 = 3;
const VICTIMS: [u32; 2] = [2, 0];

fn word(rank: Rank, index: u64) -> u64 {
    u64::from(rank.get() + 1) << 32 | index
}

#[test]
fn each_recovery_is_told_once_to_every_rank_and_a_heap_is_kept_whatever_it_is_backed_by() {
    if is_device() {
        return be_recovering();
    }
    let test = "recovered_heaps::each_recovery_is_told_once_to_every_rank_and_a_heap_is_kept_whatever_it_is_backed_by";
    let Some(mut series) = Series::begin(test, "segments of every kind") else { return };
    let prefix = format!("shmccl-recovered-heaps-{}", std::process::id());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&prefix);
    // A failed run may have left it whose process had the same number.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).unwrap();
    let files = SegmentBacking::Files(directory.to_str().unwrap().to_owned());
    for backing in [SegmentBacking::Anonymous, SegmentBacking::Named(prefix.clone()), files.clone()] {
        let said =
            series.trial(|_| backing.clone(), |backing| run(test, "recover", backing.clone(), &VICTIMS));
        let survivor = ["epoch 2 on from 10 back 2 kept", "epoch 3 on from 21 back 0 kept"];
        let first = ["epoch 2 on from 10 back 2 kept", "epoch 3 on from 21 back 0 inherits"];
        let third = ["epoch 2 on from 10 back 2 inherits", "epoch 3 on from 21 back 0 kept"];
        for (rank, expected) in [(0, first), (1, survivor), (2, third)] {
            assert_eq!(said.of(rank), expected, "rank {rank}, {backing:?}\n{}", said.text);
        }
    }
    assert_eq!(shared_memory(&prefix), [""; 0]);
    // Nobody is left of that job, and files are.
    let said = series.trial(|_| files, |files| run(test, "look", files.clone(), &[]));
    for rank in 0..N_RANKS {
        assert_eq!(said.of(rank), ["finds its own"], "rank {rank}\n{}", said.text);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_panic_of_a_recovery_callback_is_the_death_of_its_rank() {
    if is_device() {
        return be_recovering();
    }
    let test = "recovered_heaps::a_panic_of_a_recovery_callback_is_the_death_of_its_rank";
    let _watchdog = Watchdog::start(test, PATIENCE);
    let said = run(test, "panic", SegmentBacking::Anonymous, &[2]);
    assert_eq!(said.of(0), ["epoch 3 on from 21 back 0 inherits something else"], "{}", said.text);
    for (rank, heap) in [(1, "kept"), (2, "inherits")] {
        let told = said.of(rank);
        assert_eq!(told[0], format!("epoch 2 on from 10 back 2 {heap}"), "{}", said.text);
        assert_eq!(told[1..], ["epoch 3 on from 21 back 0 kept"], "{}", said.text);
    }
}

/// Runs the job of `test`, in which ranks die `way` in the order of `victims`, and returns what its
/// ranks have said.
fn run(test: &str, way: &str, backing: SegmentBacking, victims: &[u32]) -> Said {
    let launch = Launch::new(N_RANKS).unwrap().program(this_test(test)).heap_len(8 << 20).backing(backing);
    let launch =
        launch.timeout(Duration::from_secs(10)).capture_output(true).env("RECOVERY_WAY", way).restart(2);
    let mut said = Said::default();
    let outcome = launch.supervise(&mut said);
    let Ok(outcome) = outcome else { panic!("{outcome:?}\n{}", said.text) };
    let killed = |rank: &u32| (DeviceName::Rank(Rank::new(*rank, N_RANKS).unwrap()), ExitCause::Signal(9));
    let mut ends: Vec<_> = victims.iter().map(killed).collect();
    if way == "panic" {
        ends.push((DeviceName::Rank(Rank::new(0, N_RANKS).unwrap()), ExitCause::Code(101)));
    }
    assert_eq!(outcome.restarted, ends, "{}", said.text);
    said
}

/// The body of a device process.
fn be_recovering() {
    let Ok(Some(JoinedAs::Device(comm))) = join_job() else { panic!("a device was to be started") };
    let (mut comm, way) = (*comm, std::env::var("RECOVERY_WAY").unwrap());
    if way == "look" {
        let words = comm.alloc::<u64>(WORDS.try_into().unwrap()).unwrap();
        let is_own = is_legacy_of(comm.rank(), words.span());
        say(if is_own { "finds its own" } else { "finds something else" });
        return comm.finalize().unwrap();
    }
    let (tell, told) = mpsc::channel();
    let (rank, panics) = (comm.rank(), way == "panic" && comm.rank().get() == 0 && !comm.was_restarted());
    comm.on_recovery(move |recovery| {
        assert!(!panics, "as it was told to");
        announce(rank, recovery);
        tell.send(recovery.sequence).unwrap();
    });
    let sequence = told.try_recv();
    assert_eq!(sequence.is_ok(), comm.was_restarted(), "told at once, or not yet");
    // The lives of the job are numbered from 1, and a step is a life's number and a digit.
    let mut life = sequence.map_or(1, |sequence| sequence / 10 + 1);
    while let Err(error) = live(&mut comm, life, &way) {
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        // Each has come further than the one before it.
        let next = comm.recover(10 * life + u64::from(rank.get())).unwrap();
        if way == "recover" {
            assert!(is_legacy_of(rank, &comm.span(rank, LEGACY).unwrap()), "a survivor's own");
        }
        comm = next;
        let sequence = told.try_recv().expect("it was told before");
        assert!(told.try_recv().is_err(), "and once");
        life = sequence / 10 + 1;
    }
    comm.finalize().unwrap();
}

/// Writes this rank's legacy, has the victim of this life die, if there is one, and waits for all
/// others.
fn live(comm: &mut Communicator, life: u64, way: &str) -> Result<()> {
    let words = comm.alloc::<u64>(WORDS.try_into().unwrap())?;
    assert_eq!(words.region(), LEGACY, "the same in every epoch");
    let legacy: Vec<_> = (0..WORDS).map(|index| word(comm.rank(), index)).collect();
    words.copy_from_slice(0, &legacy)?;
    comm.barrier()?;
    let victims = if way == "panic" { &VICTIMS[..1] } else { &VICTIMS[..] };
    let victim = usize::try_from(life - 1).ok().and_then(|index| victims.get(index));
    if victim == Some(&comm.rank().get()) {
        raise(Signal::SIGKILL).unwrap();
    }
    comm.barrier()
}

/// Says what is told of a recovery, and what there is to inherit.
fn announce(rank: Rank, recovery: &Recovery) {
    assert_eq!(recovery.restarted.contains(&rank), recovery.was_restarted);
    let heap = match recovery.inherited(LEGACY) {
        Ok(span) if is_legacy_of(rank, &span) => "inherits",
        Ok(_) => "inherits something else",
        Err(Error::Unavailable { .. }) if recovery.was_restarted => "inherits nothing",
        Err(Error::Unavailable { .. }) => "kept",
        Err(error) => panic!("{error}"),
    };
    assert!(recovery.keeps_heap());
    let past_its_end = Region::new(HeapOffset::new(8 << 20), 8);
    let refused = recovery.inherited(past_its_end).unwrap_err();
    assert_eq!(matches!(refused, Error::OutOfRange { .. }), recovery.was_restarted, "{refused}");
    let back: Vec<_> = recovery.restarted.iter().map(ToString::to_string).collect();
    say(&format!("epoch {} on from {} back {} {heap}", recovery.epoch, recovery.sequence, back.join(",")));
}

fn is_legacy_of(rank: Rank, span: &Span) -> bool {
    (0..WORDS).all(|index| span.read::<u64>(8 * index).unwrap() == word(rank, index))
}

/// What the ranks have said.
#[derive(Default)]
struct Said {
    by: BTreeMap<u32, Vec<String>>,
    text: String,
}

impl Said {
    fn of(&self, rank: u32) -> &[String] {
        self.by.get(&rank).map_or(&[], Vec::as_slice)
    }
}

impl Observer for Said {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        let DeviceName::Rank(rank) = line.device else { return };
        self.text.push_str(&format!("[{rank}] {text}\n"));
        self.by.entry(rank.get()).or_default().extend(saying(&text).map(|words| words.join(" ")));
    }
}
