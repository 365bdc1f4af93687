//! Processes that no launcher started meet under a unique id. They are this test binary again, told
//! their part by the environment; each failure of a meeting is looked at from the side of everybody
//! concerned.
//!
//! The test named `device_process` is the entry point: it does nothing unless the environment tells
//! it its part.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, listen, recv, socket,
};
use shmccl::bootstrap::Options;
use shmccl::channel::Channel;
use shmccl::{Communicator, Result, UniqueId};

const PART: &str = "SHMCCL_TEST_MEET";
const WATCHDOG: Duration = Duration::from_secs(30);
const NOBODY: &str = "no meeting under this unique id: it is over, or the process that made the id has ended \
    or is in another network namespace";

/// A part is a list of words, done in order: `host` makes the id (otherwise `id=ID` is given),
/// `init=RANK/N` joins, `ring` passes a number round, `barrier` waits for everybody, `finalize`
/// leaves, `tidy` checks that nothing is left, `stop` waits for a line of input, `knock` connects
/// and says nothing, `intrude` does so as a stranger would. `ask` asks whether there is a host,
/// `squat=NAME` is one that greets nobody, `named=NAME` meets by that name. `grow=N` and `join`
/// make it a larger one. `heap=LEN` and `timeout=MS` change the options.
#[test]
fn device_process() {
    let Ok(part) = std::env::var(PART) else { return };
    say("start");
    match Player::default().play(&part) {
        Ok(()) => say("done"),
        Err(error) => say(&format!("error {error}")),
    }
    // Without the test harness, which would print more.
    std::process::exit(0);
}

#[derive(Default)]
struct Player {
    id: Option<UniqueId>,
    comm: Option<Communicator>,
    options: Options,
    before: Option<(usize, usize)>,
}

impl Player {
    fn play(&mut self, part: &str) -> Result<()> {
        self.options.heap_len = 4 << 20;
        self.options.timeout = WATCHDOG;
        part.split(' ').try_for_each(|word| self.act(word))
    }

    fn act(&mut self, word: &str) -> Result<()> {
        let (verb, argument) = word.split_once('=').unwrap_or((word, ""));
        let number = || argument.parse::<u64>().unwrap();
        match verb {
            "host" => {
                self.before = Some(belongings());
                let id = UniqueId::new()?;
                say(&format!("id {id}"));
                self.id = Some(id);
            }
            "id" => self.id = Some(argument.parse()?),
            "heap" => self.options.heap_len = number(),
            "timeout" => self.options.timeout = Duration::from_millis(number()),
            "init" => {
                let (rank, n_ranks) = argument.split_once('/').unwrap();
                let (rank, n_ranks) = (rank.parse().unwrap(), n_ranks.parse().unwrap());
                let id = self.id.expect("an id is given");
                self.comm = Some(Communicator::init_rank_with(n_ranks, &id, rank, &self.options)?);
                say("up");
            }
            "ring" => pass_on(self.comm.as_mut().unwrap())?,
            "barrier" => self.comm.as_mut().unwrap().barrier()?,
            "finalize" => self.comm.take().unwrap().finalize()?,
            "squat" => {
                let socket = squat(argument);
                say("squats");
                socket.accept().map(std::mem::forget).unwrap();
                say("has a guest");
            }
            "named" => self.comm = Some(Communicator::init_by_name(2, argument, 0, &self.options)?),
            "ask" => say(if self.id.unwrap().is_hosted() { "hosted" } else { "not hosted" }),
            "knock" => {
                std::mem::forget(knock(&self.id.expect("an id is given")));
                say("knocked");
            }
            "grow" => {
                let grown = self.comm.as_mut().unwrap().grow(argument.parse().unwrap(), self.id.as_ref());
                say(&grown.map_or_else(|error| format!("alone {error}"), |_| "grown".to_owned()));
            }
            "join" => self.comm = Some(Communicator::join_within(&self.id.unwrap(), self.options.timeout)?),
            "tidy" => expect_tidy(self.before.unwrap()),
            "intrude" => say(intrude(&self.id.expect("an id is given"))),
            "stop" => _ = std::io::stdin().read_line(&mut String::new()).unwrap(),
            _ => panic!("no such word: {word}"),
        }
        Ok(())
    }
}

/// Knocks on the host's door without looking who the host is, as an honest process would.
fn intrude(id: &UniqueId) -> &'static str {
    let socket = knock(id);
    let mut answer = [0; 100];
    let receive = |answer: &mut [u8]| recv(socket.as_raw_fd(), answer, MsgFlags::empty()).unwrap();
    // Refused is the one answer of this length, and nothing follows.
    if (receive(&mut answer), receive(&mut answer)) == (48, 0) { "refused" } else { "let in" }
}

/// Has the name of a meeting, and greets nobody.
fn squat(name: &str) -> UnixListener {
    let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap();
    bind(socket.as_raw_fd(), &address).unwrap();
    listen(&socket, Backlog::new(1).unwrap()).unwrap();
    socket.into()
}

fn knock(id: &UniqueId) -> OwnedFd {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).unwrap();
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(id.to_string().as_bytes()).unwrap()).unwrap();
    socket
}

/// Sends a number to the right, directly and through the proxy, and expects that of the left.
fn pass_on(comm: &mut Communicator) -> Result<()> {
    let cells = comm.alloc::<u64>(2)?;
    let (own, left) = (u64::from(comm.rank().get()), u64::from(comm.left().get()));
    let (from, to) = (cells.part(0, 1)?.offset, cells.part(1, 1)?.offset);
    cells.set(0, own)?;
    let mut direct = comm.memory_channel(comm.right())?;
    direct.put_with_signal_and_flush(to, from, 8)?;
    comm.barrier()?;
    assert_eq!(cells.get(1)?, left);
    comm.barrier()?;
    cells.set(0, own + 100)?;
    let mut proxied = comm.port_channel(comm.right())?;
    proxied.put_with_signal_and_flush(to, from, 8)?;
    comm.barrier()?;
    assert_eq!(cells.get(1)?, left + 100);
    comm.barrier()
}

/// How many descriptors and threads this process has.
fn belongings() -> (usize, usize) {
    let count = |path| std::fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// The host's thread ends by itself, a moment after the last rank was told to go.
fn expect_tidy(before: (usize, usize)) {
    let began = Instant::now();
    while belongings() != before {
        assert!(began.elapsed() < WATCHDOG, "{before:?} became {:?}", belongings());
        std::thread::yield_now();
    }
}

fn say(text: &str) {
    // In one write, so that lines of several processes do not mix.
    std::io::stdout().write_all(format!("> {text}\n").as_bytes()).unwrap();
}

/// A process that plays a part; killed at the latest when this is dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(part: &str) -> Self {
        Self::spawn(Command::new(std::env::current_exe().unwrap()), part)
    }

    fn spawn(mut command: Command, part: &str) -> Self {
        command.args(["--exact", "device_process", "--nocapture", "--test-threads=1"]).env(PART, part);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
                if let Some((_, text)) = line.split_once("> ") {
                    let _ = told.send(text.to_owned());
                }
            }
        });
        Self { child, input, lines }
    }

    /// What it says next.
    fn next(&self) -> String {
        self.lines.recv_timeout(WATCHDOG).expect("the process is silent")
    }

    #[track_caller]
    fn expect(&self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.next(), *line);
        }
    }

    /// The id that it makes.
    fn id(&self) -> String {
        self.expect(&["start"]);
        self.next().strip_prefix("id ").expect("an id comes first").to_owned()
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rank_process(id: impl std::fmt::Display, rank: u32, n_ranks: u32, then: &str) -> Process {
    Process::start(format!("id={id} init={rank}/{n_ranks} {then}").trim_end())
}

#[test]
fn ranks_meet_in_whatever_order_they_come_and_nothing_is_left_at_the_host() {
    for n_ranks in [1, 2, 5] {
        for late in [0, n_ranks - 1] {
            let part = format!("host init={late}/{n_ranks} ring finalize tidy");
            // The host's own rank is the last to come, or the first.
            let mut host = Process::start(&if late == 0 { part } else { part.replace("host", "host stop") });
            let id = host.id();
            let others: Vec<_> = (0..n_ranks)
                .rev()
                .filter(|rank| *rank != late)
                .map(|rank| rank_process(&id, rank, n_ranks, "ring finalize"))
                .collect();
            others.iter().for_each(|other| other.expect(&["start"]));
            if late != 0 {
                host.go_on();
            }
            for process in others.iter().chain([&host]) {
                process.expect(&["up", "done"]);
            }
        }
    }
}

#[test]
fn a_rank_killed_after_the_meeting_is_lost_to_all_others() {
    let id = UniqueId::new().unwrap();
    let mut victim = rank_process(id, 1, 3, "stop");
    let others = [0, 2].map(|rank| rank_process(id, rank, 3, "ring"));
    victim.expect(&["start", "up"]);
    others.iter().for_each(|other| other.expect(&["start", "up"]));
    victim.kill();
    others.iter().for_each(|other| other.expect(&["error rank 1 was lost"]));
}

fn died(process: &Process) -> String {
    let pid = process.child.id();
    format!("no meeting under this unique id: process {pid} ended on its way into it, before it had a rank")
}

#[test]
fn a_process_killed_before_it_has_said_which_rank_it_is_ends_the_meeting_for_all_who_come_to_it() {
    for is_first in [true, false] {
        let id = UniqueId::new().unwrap();
        let start = || [0, 2].map(|rank| rank_process(id, rank, 3, ""));
        let early = (!is_first).then(start);
        let mut victim = Process::start(&format!("id={id} knock stop"));
        victim.expect(&["start", "knocked"]);
        victim.kill();
        for other in &early.unwrap_or_else(start) {
            other.expect(&["start", &format!("error {}", died(&victim))]);
        }
    }
}

/// Starts two newcomers to the job of `member`, which hosts their meeting. The second one is killed
/// before it has a rank.
fn newcomers_of_which_one_is_killed(member: &Process) -> (Process, Process) {
    member.id();
    member.expect(&["up"]);
    let id = member.next().strip_prefix("id ").unwrap().to_owned();
    let newcomer = Process::start(&format!("id={id} join"));
    let mut victim = Process::start(&format!("id={id} knock stop"));
    victim.expect(&["start", "knocked"]);
    victim.kill();
    (newcomer, victim)
}

#[test]
fn a_newcomer_killed_before_it_has_a_rank_keeps_the_others_apart_at_once_and_the_members_go_on() {
    let member = Process::start("host init=0/1 host grow=3 barrier");
    let (newcomer, victim) = newcomers_of_which_one_is_killed(&member);
    member.expect(&[&format!("alone {}", died(&victim)), "done"]);
    newcomer.expect(&["start"]);
    // It may come when all is over.
    let told = newcomer.next();
    assert!([died(&victim), NOBODY.to_owned()].iter().any(|why| told == format!("error {why}")), "{told}");
}

#[test]
fn members_that_come_when_newcomers_have_failed_to_meet_are_told_why() {
    let mut member = Process::start("host init=0/1 host stop grow=3 barrier");
    let (newcomer, victim) = newcomers_of_which_one_is_killed(&member);
    newcomer.expect(&["start", &format!("error {}", died(&victim))]);
    member.go_on();
    member.expect(&[&format!("alone {}", died(&victim)), "done"]);
}

#[test]
fn a_host_that_is_killed_before_it_has_greeted_is_named_to_whoever_waits_for_that() {
    let name = format!("shmccl-test-{}-ungreeted", std::process::id());
    let mut host = Process::start(&format!("squat={name} stop"));
    host.expect(&["start", "squats"]);
    let guest = Process::start(&format!("named={name}"));
    host.expect(&["has a guest"]);
    host.kill();
    guest.expect(&["start", &format!("error {}", died(&host))]);
}

#[test]
fn who_only_asks_whether_there_is_a_meeting_may_end() {
    let id = UniqueId::new().unwrap();
    let ranks = [0, 1].map(|rank| rank_process(id, rank, 3, "barrier finalize"));
    ranks.iter().for_each(|rank| rank.expect(&["start"]));
    Process::start(&format!("id={id} ask")).expect(&["start", "hosted", "done"]);
    let last = rank_process(id, 2, 3, "barrier finalize");
    last.expect(&["start"]);
    ranks.iter().chain([&last]).for_each(|rank| rank.expect(&["up", "done"]));
}

#[test]
fn the_maker_of_the_id_is_a_rank_like_any_other_once_all_have_met() {
    let mut host = Process::start("host init=0/3 stop");
    let id = host.id();
    let others = [1, 2].map(|rank| rank_process(&id, rank, 3, "barrier"));
    host.expect(&["up"]);
    others.iter().for_each(|other| other.expect(&["start", "up"]));
    host.kill();
    others.iter().for_each(|other| other.expect(&["error rank 0 was lost"]));
}

#[test]
fn a_maker_of_the_id_that_is_no_rank_can_be_killed_once_all_have_met() {
    let mut host = Process::start("host stop");
    let id = host.id();
    let mut ranks = [0, 1].map(|rank| rank_process(&id, rank, 2, "stop ring finalize"));
    ranks.iter().for_each(|rank| rank.expect(&["start", "up"]));
    host.kill();
    ranks.iter_mut().for_each(Process::go_on);
    ranks.iter().for_each(|rank| rank.expect(&["done"]));
}

#[test]
fn whoever_waits_for_others_is_told_when_the_maker_of_the_id_is_killed_and_so_is_whoever_comes_later() {
    let mut host = Process::start("host stop");
    let id = host.id();
    let early = [0, 1].map(|rank| rank_process(&id, rank, 3, ""));
    early.iter().for_each(|process| process.expect(&["start"]));
    host.kill();
    let late = rank_process(&id, 2, 3, "");
    late.expect(&["start"]);
    for process in early.iter().chain([&late]) {
        process.expect(&[&format!("error {NOBODY}")]);
    }
}

#[test]
fn two_processes_with_one_rank_are_told_so_and_so_is_everybody_else() {
    let id = UniqueId::new().unwrap();
    let processes = [0, 1, 1].map(|rank| rank_process(id, rank, 3, ""));
    processes.iter().for_each(|it| it.expect(&["start", "error rank 1 was claimed by two processes"]));
}

#[test]
fn ranks_that_disagree_are_each_told_what_the_other_has() {
    let id = UniqueId::new().unwrap();
    let (two, three) = (rank_process(id, 0, 2, ""), rank_process(id, 1, 3, ""));
    let what = "error ranks disagree on the number of ranks: this rank has";
    two.expect(&["start", &format!("{what} 2, rank 1 has 3")]);
    three.expect(&["start", &format!("{what} 3, rank 0 has 2")]);

    let id = UniqueId::new().unwrap();
    let small = Process::start(&format!("id={id} heap=2097152 init=0/2"));
    let large = Process::start(&format!("id={id} heap=4194304 init=1/2"));
    let what = "error ranks disagree on the length of the heap: this rank has";
    small.expect(&["start", &format!("{what} 2097152, rank 1 has 4194304")]);
    large.expect(&["start", &format!("{what} 4194304, rank 0 has 2097152")]);
}

#[test]
fn an_id_that_is_used_up_or_was_never_made_leads_nowhere() {
    let id = UniqueId::new().unwrap();
    rank_process(id, 0, 1, "ring finalize").expect(&["start", "up", "done"]);
    for id in [id.to_string(), "shmccl-0123456789abcdef0123456789abcdef".to_owned()] {
        rank_process(id, 0, 1, "").expect(&["start", &format!("error {NOBODY}")]);
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_to_all_who_wait() {
    let id = UniqueId::new().unwrap();
    let part = |rank| format!("id={id} timeout=6000 stop init={rank}/3");
    let mut waiting = [0, 2].map(|rank| Process::start(&part(rank)));
    waiting.iter().for_each(|process| process.expect(&["start"]));
    waiting.iter_mut().for_each(Process::go_on);
    for process in &waiting {
        let error = process.next();
        let named = error.starts_with("error meeting the other ranks timed out after ")
            && error.ends_with("awaiting rank 1");
        assert!(named, "{error}");
    }
}

#[test]
fn a_rank_killed_while_it_meets_the_others_is_named_to_them() {
    // Those who miss it wait for their whole time, all rounds side by side.
    let mut rounds = Vec::new();
    for round in 0..8 {
        let id = UniqueId::new().unwrap();
        let part = |rank| format!("id={id} timeout=6000 stop init={rank}/3 barrier");
        let mut others = [0, 2].map(|rank| Process::start(&part(rank)));
        let mut victim = Process::start(&part(1));
        others.iter().chain([&victim]).for_each(|process| process.expect(&["start"]));
        others.iter_mut().for_each(Process::go_on);
        victim.go_on();
        for _ in 0..round * 50 {
            std::thread::yield_now();
        }
        victim.kill();
        rounds.push((others, format!("error {}", died(&victim))));
    }
    for (other, unnamed) in
        rounds.iter().flat_map(|(others, unnamed)| others.iter().map(move |other| (other, unnamed)))
    {
        let mut said = other.next();
        if said == "up" {
            said = other.next();
        }
        let missed =
            said.starts_with("error meeting the other ranks timed out") && said.ends_with("awaiting rank 1");
        // Or the kill came before it had said its rank, or when all had passed the barrier.
        assert!(missed || said == *unnamed || said == "error rank 1 was lost" || said == "done", "{said}");
    }
}

#[test]
fn a_process_of_another_user_is_refused_and_the_others_meet() {
    if !support::can_be_played("a_process_of_another_user_is_refused_and_the_others_meet") {
        return;
    }
    let id = UniqueId::new().unwrap();
    // By its link, since the other user may not be allowed to go where the binary was built.
    let mut command = Command::new("/proc/self/exe");
    command.uid(65534).gid(65534).current_dir("/");
    let stranger = Process::spawn(command, &format!("id={id} intrude init=1/2"));
    stranger.expect(&["start", "refused", "error user id does not match: expected 0xfffe, found 0x0"]);
    let ranks = [0, 1].map(|rank| rank_process(id, rank, 2, "ring finalize"));
    ranks.iter().for_each(|rank| rank.expect(&["start", "up", "done"]));
}
