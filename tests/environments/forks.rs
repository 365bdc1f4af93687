//! Forks of a process with ranks: child and parent each have memory of their own, and the child is
//! no rank.

use std::io::{BufRead, BufReader, PipeReader, Read, Write, pipe};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pause};
use shmccl::channel::Channel;
use shmccl::heap::{DeviceAddress, DeviceMemory};
use shmccl::reduce::ReduceOp;
use shmccl::shm::undivided::{ForkMutex, undivided};
use shmccl::shm::{Backing, Identity, Segment, Span};
use shmccl::{Collectives, Communicator, Error, Event, Rank, UniqueId};
use support::wait_until;

use crate::job::{Started, alone, say};

const PAGE: u64 = 4096;

/// Plays `scenario` in a process of its own, which says `word` in the end.
fn plays(scenario: &str, word: &str) {
    let (code, stderr, stdout) = Started::new(&mut alone(scenario), 0).end();
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert_eq!(stdout.matches(word).count(), 1, "{stdout}");
}

/// Forks a child that does `run` and ends. Its exit code is 0 when that returns `true`.
fn child(run: impl FnOnce() -> bool) -> Pid {
    // SAFETY: the child touches what it has and ends. The test has no other thread that holds a
    // lock which the child needs.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let code = if run() { 0 } else { 7 };
            // SAFETY: nothing of this process is to run any more.
            unsafe { nix::libc::_exit(code) }
        }
    }
}

fn ends_well(child: Pid) {
    assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
}

/// Waits until the parent has written.
fn heard(mut parent: &PipeReader) -> bool {
    parent.read_exact(&mut [0]).is_ok()
}

#[test]
fn a_child_of_a_fork_and_its_parent_each_have_memory_of_their_own() {
    plays("private", "all is private");
}

/// Forks over memory of each kind, which child and parent write to.
pub(crate) fn private() -> shmccl::Result<()> {
    let comms = Communicator::init_all(2)?;
    let folder = crate::scratch("forks");
    let name = format!("shmccl-forks-{}", std::process::id());
    let kinds = [Backing::Anonymous, Backing::Named(name.clone()), Backing::File(folder.join("file"))];
    let segments: Vec<_> = kinds.iter().map(segment).collect::<Result<_, _>>()?;
    let mut spans: Vec<Span> = segments.iter().map(|it| it.map()?.span(PAGE, 8)).collect::<Result<_, _>>()?;
    // Each rank's own, and what rank 0 sees of rank 1.
    let arena: Vec<_> =
        comms.iter().map(|comm| comm.arena().alloc::<u64>(100_000)).collect::<Result<_, _>>()?;
    spans.extend(arena.iter().map(|buffer| buffer.span().clone()));
    spans.push(comms[0].span(comms[1].rank(), arena[1].region())?);
    let device = DeviceMemory::create(&Backing::Anonymous, DeviceAddress::new(1 << 20), Identity::default())?;
    let address = DeviceAddress::new(8192);
    let set = |value: u64| {
        spans.iter().all(|span| span.write(0, value).is_ok())
            && device.copy_host_to_device(address, &value.to_le_bytes()).is_ok()
    };
    let is = |value: u64| {
        let mut bytes = [0; 8];
        device.copy_device_to_host(address, &mut bytes).is_ok()
            && u64::from_le_bytes(bytes) == value
            && spans.iter().all(|span| span.read::<u64>(0).is_ok_and(|found| found == value))
    };
    set(1);
    let (parent, mut tell) = pipe().unwrap();
    // The child keeps its snapshot, and hands it on to one of its own.
    let forked = child(|| {
        heard(&parent) && is(1) && set(2) && is(2) && {
            ends_well(child(|| is(2) && set(3) && is(3)));
            is(2)
        }
    });
    assert!(is(1) && set(4));
    tell.write_all(&[0]).unwrap();
    ends_well(forked);
    assert!(is(4), "the child has changed it");
    // What a child drops does nothing to its parent, which drops nothing before the child ends.
    let mut all = Some((comms, segments, spans, arena, device));
    ends_well(child(|| {
        drop(all.take());
        std::path::Path::new("/dev/shm").join(&name).exists()
    }));
    say(format_args!("all is private"));
    Ok(())
}

fn segment(backing: &Backing) -> shmccl::Result<Segment> {
    let segment = Segment::create(backing, 16 * PAGE, Identity::default())?;
    segment.commit(PAGE, PAGE)?;
    Ok(segment)
}

#[test]
fn a_child_of_a_fork_is_refused_every_operation_and_waits_for_nothing() {
    plays("refused", "all is refused");
}

/// Forks while another thread is in a collective call, with a stream and started work.
pub(crate) fn refused() -> shmccl::Result<()> {
    let [mut comm, mut other] = Communicator::init_all(2)?.try_into().expect("two");
    let peer = other.rank();
    let (mut messages, mut others) = std::thread::scope(|scope| {
        let others = scope.spawn(|| other.duplicate());
        Ok::<_, Error>((comm.duplicate()?, others.join().unwrap()?))
    })?;
    let (mine, theirs) = (comm.arena().alloc::<u64>(8)?, other.arena().alloc::<u64>(8)?);
    let (mut direct, mut proxied) = (comm.memory_channel(peer)?, comm.port_channel(peer)?);
    let (stream, event) = (comm.stream()?, Event::new());
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    stream.call(move || assert!(waits.recv().is_ok()))?;
    stream.record(&event)?;
    let work = messages.start(|_| (), |calls| calls.recv(&mine, peer))?;
    let waiting = std::thread::spawn(move || other.barrier().map(|()| other));
    wait_until("it waits", || comm.report().is_ok_and(|report| report.to_string().contains("barrier")));
    let (here, there) = (mine.region(), theirs.region());
    ends_well(child(|| {
        let all = [
            comm.barrier(),
            comm.all_reduce_in_place(&mut [1_u64], &ReduceOp::Sum),
            comm.alloc::<u64>(1).map(drop),
            comm.split(Some(0), 0).map(drop),
            comm.shrink().map(drop),
            comm.grow(3, None).map(drop),
            comm.arena().alloc::<u64>(1).map(drop),
            messages.start(|_| (), |calls| calls.send(&mine, peer)).map(drop),
            messages.barrier(),
            comm.stream().map(drop),
            comm.port_channel(peer).map(drop),
            direct.put(there.offset, here.offset, 8),
            direct.put_with_signal(there.offset, here.offset, 8),
            direct.signal(),
            direct.wait(),
            direct.flush(),
            proxied.put(there.offset, here.offset, 8),
            proxied.signal(),
            proxied.flush(),
            proxied.wait(),
            stream.call(|| ()),
            stream.query().map(drop),
            stream.synchronise(),
            event.synchronise(),
            work.wait(),
        ];
        let is_refused = |done: &shmccl::Result<()>| matches!(done, Err(Error::Unavailable { .. }));
        let odd = all.iter().enumerate().filter(|(_, done)| !is_refused(done));
        odd.map(|(index, done)| say(format_args!("operation {index}: {done:?}"))).count() == 0
    }));
    go_on.send(()).unwrap();
    stream.synchronise()?;
    assert!(!direct.poll(), "nobody has signalled");
    // The parent goes on where it was.
    comm.barrier()?;
    let other = waiting.join().unwrap()?;
    others.send(&theirs, Rank::new(0, 2)?)?;
    work.wait()?;
    drop((direct, proxied, stream, other));
    say(format_args!("all is refused"));
    Ok(())
}

#[test]
fn a_child_for_whose_copy_there_is_no_memory_has_none_and_shares_nothing() {
    plays("short", "nothing is shared");
}

/// Forks with less room than the copy takes.
pub(crate) fn short() -> shmccl::Result<()> {
    let comms = Communicator::init_all(1)?;
    let buffer = comms[0].arena().alloc::<u64>(4 << 20)?;
    buffer.fill(1);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    let limit = (size.unwrap().parse::<u64>().unwrap() << 10) + (16 << 20);
    setrlimit(Resource::RLIMIT_AS, limit, limit).unwrap();
    ends_well(child(|| true));
    let forked = child(|| buffer.set(0, 2).is_ok());
    assert!(matches!(waitpid(forked, None).unwrap(), WaitStatus::Signaled(_, Signal::SIGSEGV, _)));
    assert_eq!(buffer.get(0)?, 1);
    say(format_args!("nothing is shared"));
    Ok(())
}

#[test]
fn a_fork_waits_for_the_steps_of_other_threads_and_for_none_of_its_own() {
    plays("steps", "no step is divided");
}

/// Forks while another thread is in a step, and inside one.
pub(crate) fn steps() -> shmccl::Result<()> {
    static LAST: ForkMutex<u32> = ForkMutex::new(0);
    let is_done = AtomicBool::new(false);
    let (mut hears, mut tells) = pipe().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            LAST.with(|last| {
                tells.write_all(&[1]).unwrap();
                // A fork that does not wait has come long before.
                poll(&mut [], PollTimeout::from(50_u8)).unwrap();
                *last += 1;
                is_done.store(true, Ordering::Relaxed);
            });
        });
        hears.read_exact(&mut [0]).unwrap();
        ends_well(child(|| is_done.load(Ordering::Relaxed) && LAST.with(|last| *last == 1)));
    });
    let inside = undivided(|| LAST.with(|_| child(|| true)));
    ends_well(inside);
    ends_well(child(|| LAST.with(|last| *last == 1)));
    say(format_args!("no step is divided"));
    Ok(())
}

#[test]
fn a_meeting_whose_host_is_dead_keeps_nobody_waiting_though_a_child_of_it_lives() {
    plays("orphan", "nobody hosts it");
}

/// Comes to the id of a process that has died, and left a child.
pub(crate) fn orphan() -> shmccl::Result<()> {
    let (hears, mut tells) = pipe().unwrap();
    let host = child(|| {
        let id = UniqueId::new().unwrap();
        let orphan = child(|| {
            pause();
            true
        });
        writeln!(tells, "{id} {orphan}").is_ok()
    });
    ends_well(host);
    let mut told = String::new();
    BufReader::new(hears).read_line(&mut told).unwrap();
    let (id, orphan) = told.trim().split_once(' ').unwrap();
    let refused = Communicator::init_rank(2, &id.parse()?, 1).err();
    kill(Pid::from_raw(orphan.parse().unwrap()), Signal::SIGKILL).unwrap();
    assert!(!matches!(refused, None | Some(Error::Timeout { .. })), "{refused:?}");
    say(format_args!("nobody hosts it"));
    Ok(())
}
