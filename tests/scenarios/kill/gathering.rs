//! Trials in which a rank is killed at a step of meeting the others under a unique id: the one that
//! hosts the meeting, or another.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use shmccl::bootstrap::Options;
use shmccl::{Communicator, Error, UniqueId};

use crate::kill::device::{say, saying};
use crate::kill::{steps, these_args};

/// How long everybody waits for the others: longer than a trial may take.
const PATIENCE_MS: u64 = 120_000;

/// The rank of a process, and what it meets under where it is not the host.
const RANK: &str = "GATHER_RANK";
const ID: &str = "GATHER_ID";
const RANKS: &str = "GATHER_RANKS";
const PATIENCE: &str = "GATHER_PATIENCE";

pub(crate) fn is_rank() -> bool {
    std::env::var_os(RANK).is_some()
}

/// The body of a rank. Rank 0 hosts the meeting.
pub(crate) fn be_a_rank() {
    let told = |name: &str| std::env::var(name).unwrap();
    let id: UniqueId = match std::env::var(ID) {
        Ok(id) => id.parse().unwrap(),
        Err(_) => {
            let id = UniqueId::new().unwrap();
            say(&format!("id {id}"));
            id
        }
    };
    steps::count_from(&format!("gather {}", told(RANK)));
    let timeout = Duration::from_millis(told(PATIENCE).parse().unwrap());
    let options = Options { heap_len: 4 << 20, timeout, ..Options::default() };
    let (n_ranks, rank) = (told(RANKS).parse().unwrap(), told(RANK).parse().unwrap());
    let met = Communicator::init_rank_with(n_ranks, &id, rank, &options);
    let done = met.and_then(|mut comm| comm.barrier().and_then(|()| comm.finalize()));
    say(&match done {
        Ok(()) => "done".to_owned(),
        Err(Error::PeerLost { rank }) => format!("lost {rank}"),
        Err(error @ Error::NoMeeting { .. }) if error.to_string().contains("before it had a rank") => {
            "nameless".to_owned()
        }
        Err(Error::NoMeeting { .. }) => "over".to_owned(),
        Err(Error::Timeout { awaited: Some(rank), .. }) => format!("missing {rank}"),
        // It was not told by a host that is held up whom that misses.
        Err(Error::Timeout { awaited: None, .. }) if rank != 0 => "unheard".to_owned(),
        Err(error) => panic!("{error:?}"),
    });
}

/// Who is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathering {
    pub(crate) test: &'static str,
    pub(crate) n_ranks: u32,
    pub(crate) victim: u32,
    /// Whether the victim has got so far at an earlier step that others knew of it: then they
    /// know which rank they lose.
    pub(crate) is_known: bool,
}

impl Gathering {
    /// Kills the victim at the step of this `number`, and looks at what the others say. Returns
    /// whether there was such a step.
    pub(crate) fn kill_at(&mut self, number: u64) -> bool {
        let ends = self.ends_of_a_kill_at(number);
        self.judge(number, &ends)
    }

    fn ends_of_a_kill_at(&self, number: u64) -> Vec<End> {
        let mut host = Player::start(self, 0, None, number);
        let id = host.id();
        let others: Vec<_> =
            (1..self.n_ranks).map(|rank| Player::start(self, rank, Some(&id), number)).collect();
        std::iter::once(host).chain(others).map(Player::end).collect()
    }

    /// Looks at how all ended. Returns whether there was a step of this `number`.
    fn judge(&mut self, number: u64, ends: &[End]) -> bool {
        let context = || format!("{self:?}, step {number}: {ends:?}");
        let victim = self.victim as usize;
        if ends[victim] == End::Said("done".to_owned()) {
            assert!(ends.iter().all(|end| *end == ends[victim]), "{}", context());
            return false;
        }
        assert_eq!(ends[victim], End::Killed, "{}", context());
        let mut survivors = (0..).zip(ends).filter(|(rank, _)| *rank != victim).map(|(_, end)| end);
        let (lost, nameless) = (format!("lost {victim}"), "nameless".to_owned());
        let is_right = |end: &End| match end {
            // A rank that is killed as it leaves has passed the barrier.
            End::Said(said) if *said == lost || said == "done" => true,
            End::Said(said) if *said == nameless => !self.is_known,
            // The host is gone, or was told of the death and has ended before this one came.
            End::Said(said) if said == "over" => {
                victim == 0 || [&lost, &nameless].iter().any(|told| ends[0] == End::Said((*told).clone()))
            }
            // One that is killed at a step has knocked before, and is not missed.
            End::Said(_) | End::Killed | End::Failed(_) => false,
        };
        assert!(survivors.all(is_right), "{}", context());
        self.is_known |= !ends.contains(&End::Said(nameless));
        true
    }
}

/// How a rank has ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Said(String),
    Killed,
    /// In another way than it was meant to, such as by a panic.
    Failed(ExitStatus),
}

/// The process of a rank; killed at the latest when this is dropped.
struct Player {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Player {
    fn start(trial: &Gathering, rank: u32, id: Option<&str>, number: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(these_args(trial.test));
        command.envs(id.map(|id| (ID, id))).env("SHMCCL_TUNING", "");
        let told = [(RANK, rank.into()), (RANKS, trial.n_ranks.into()), (PATIENCE, PATIENCE_MS)];
        command.envs(told.map(|(name, value): (_, u64)| (name, value.to_string())));
        command.env(steps::FROM, format!("gather {}", trial.victim)).env(steps::NUMBER, number.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The id that it makes.
    fn id(&mut self) -> String {
        let lines = self.output.by_ref().lines().map(Result::unwrap);
        let mut ids = lines.filter_map(|line| match saying(&line)?[..] {
            ["id", id] => Some(id.to_owned()),
            _ => None,
        });
        ids.next().expect("an id comes first")
    }

    fn end(mut self) -> End {
        let mut output = String::new();
        self.output.read_to_string(&mut output).unwrap();
        let status = self.child.wait().unwrap();
        let said = output.lines().filter_map(saying).next_back().map(|words| words.join(" "));
        match said {
            Some(said) if status.success() => End::Said(said),
            _ if status.signal() == Some(9) => End::Killed,
            _ => End::Failed(status),
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
