//! The protocol with a root and members in threads of one process: what each side does when the
//! other misbehaves.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;

use super::control_channel::ControlChannel;
use super::message::{
    self, Bye, Contribution, ControlMessage, Gathered, Hello, LAYOUT_VERSION, Ready, Report, Welcome,
};
use super::socket::{ControlSocket, send};
use super::*;
use crate::epoch_id::EpochId;
use crate::error::{DeviceName, Error, ExitCause, Result};
use crate::rank::Rank;

const JOB: u64 = 0x1234_5678_9abc_def0;
const WATCHDOG: Duration = Duration::from_secs(20);

fn memory() -> OwnedFd {
    memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap()
}

fn identity(descriptor: &impl AsFd) -> u64 {
    fstat(descriptor).unwrap().st_ino
}

fn rank(value: u32) -> DeviceName {
    DeviceName::Rank(Rank::known(value))
}

fn options() -> Options {
    Options {
        heap_len: 1 << 20,
        backing: SegmentBacking::Named("shmccl-test".to_owned()),
        timeout: WATCHDOG,
        ..Options::default()
    }
}

/// Runs a root until all members have left or were lost; returns its events. `act` plays member by
/// member.
fn with_root(n_ranks: u32, options: Options, act: impl Fn(u32, OwnedFd) + Sync) -> Vec<RootEvent> {
    let services = u32::from(options.proxy == ProxyMode::Process);
    let control = memory();
    let offer = Offer { n_ranks, epoch: 7, job_id: JOB, options, restarting: false, beat: None };
    let mut root = BootstrapRoot::new(offer, control.as_fd(), None, None).unwrap();
    std::thread::scope(|scope| {
        let act = &act;
        for member in 0..n_ranks + services {
            let (own, theirs) = pair().unwrap();
            root.add_member(own, Placement { cpu: Some(member), devices: 1, proxies: 2 });
            scope.spawn(move || act(member, theirs));
        }
        serve(&mut root)
    })
}

fn serve(root: &mut BootstrapRoot) -> Vec<RootEvent> {
    let began = Instant::now();
    let mut events = Vec::new();
    loop {
        assert!(began.elapsed() < WATCHDOG, "the root hangs after {events:?}");
        let ids: Vec<_> = {
            let sockets: Vec<_> = root.sockets().collect();
            if sockets.is_empty() {
                return events;
            }
            let mut polled: Vec<_> =
                sockets.iter().map(|(_, socket, _)| PollFd::new(*socket, PollFlags::POLLIN)).collect();
            poll(&mut polled, PollTimeout::from(100_u8)).unwrap();
            sockets.iter().map(|(id, ..)| *id).collect()
        };
        for id in ids {
            root.serve(id).unwrap();
        }
        events.extend(std::iter::from_fn(|| root.next_event()));
    }
}

fn begin(member: u32, n_ranks: u32, socket: OwnedFd) -> Result<Joining> {
    let device = if member == n_ranks { DeviceName::Proxy } else { rank(member) };
    let channel = ControlChannel {
        socket: ControlSocket::new(socket),
        job_id: JOB,
        n_ranks,
        guard: None,
        last_words: Duration::ZERO,
    };
    Joining::begin(channel, device, WATCHDOG)
}

fn join(member: u32, n_ranks: u32, socket: OwnedFd) -> Result<ControlLink> {
    begin(member, n_ranks, socket)?.share(|_| Ok(memory()))?.ready()
}

fn lost_rank(result: Result<impl std::fmt::Debug>) -> u32 {
    match result {
        Err(Error::PeerLost { rank }) => rank.get(),
        other => panic!("expected the loss of a peer, got {other:?}"),
    }
}

fn hello(member: u32) -> Hello {
    Hello {
        header: Hello::header(JOB),
        layout_version: LAYOUT_VERSION,
        pid: std::process::id(),
        member,
        reserved: 0,
    }
}

fn send_message<M: ControlMessage>(socket: &OwnedFd, message: &M) {
    send(socket.as_fd(), bytemuck::bytes_of(message), &[]).unwrap();
}

#[test]
fn every_member_gets_the_options_and_the_same_segments() {
    for proxy in [ProxyMode::Thread, ProxyMode::Process] {
        let seen = std::sync::Mutex::new(Vec::new());
        let events = with_root(3, Options { proxy, ..options() }, |member, socket| {
            let joining = begin(member, 3, socket).unwrap();
            assert_eq!(joining.options, Options { proxy, ..options() });
            assert_eq!((joining.epoch_id, joining.n_ranks()), (EpochId { job: JOB, epoch: 7 }, 3));
            assert_eq!(joining.rank().map(Rank::get), (member < 3).then_some(member));
            assert_eq!(joining.placement, Placement { cpu: Some(member), devices: 1, proxies: 2 });
            let shared = joining.share(|_| Ok(memory())).unwrap();
            let identities: Vec<_> = shared.segments.iter().map(identity).collect();
            seen.lock().unwrap().push((identity(&shared.joining.control), identities));
            shared.ready().unwrap().finalize().unwrap();
        });
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen[0].1.len(), 3);
        assert!(seen[0].1.iter().all(|one| seen[0].1.iter().filter(|other| one == *other).count() == 1));
        assert!(seen.iter().all(|each| *each == seen[0]), "{seen:?}");
        let members = seen.len();
        assert_eq!(events.iter().filter(|event| **event == RootEvent::Up).count(), 1);
        assert_eq!(events.iter().filter(|event| matches!(event, RootEvent::Left(_))).count(), members);
        assert!(!events.iter().any(|event| matches!(event, RootEvent::Lost(..))), "{events:?}");
    }
}

#[test]
fn the_largest_job_meets() {
    with_root(64, options(), |member, socket| {
        let shared = begin(member, 64, socket).unwrap().share(|_| Ok(memory())).unwrap();
        assert_eq!(shared.segments.len(), 64);
        shared.ready().unwrap();
    });
}

#[test]
fn an_all_gather_keeps_bytes_and_descriptors_with_their_rank() {
    with_root(3, options(), |member, socket| {
        let mut joining = begin(member, 3, socket).unwrap();
        assert!(matches!(joining.all_gather(&[0; 65], None), Err(Error::OutOfRange { len: 65, .. })));
        for round in 0..4_u8 {
            let own = (member == 1).then(memory);
            let text = [round, u8::try_from(member).unwrap()];
            let contributions = joining.all_gather(&text, own.as_ref().map(AsFd::as_fd)).unwrap();
            for (index, contribution) in contributions.iter().enumerate() {
                assert_eq!(contribution.bytes[..3], [round, u8::try_from(index).unwrap(), 0]);
                assert_eq!(contribution.descriptor.is_some(), index == 1);
            }
            if let Some(own) = own {
                assert_eq!(identity(contributions[1].descriptor.as_ref().unwrap()), identity(&own));
            }
        }
        joining.share(|_| Ok(memory())).unwrap().ready().unwrap();
    });
}

#[test]
fn a_member_that_hangs_up_at_any_step_is_lost_to_all_others() {
    for step in 0..4 {
        let events = with_root(3, options(), |member, socket| {
            if member != 1 {
                assert_eq!(lost_rank(join_and_wait(member, socket)), 1, "step {step}");
                return;
            }
            // The root says nothing of members that never said Hello; see the launcher's tests for
            // those.
            let joining = begin(1, 3, socket).unwrap();
            match step {
                0 => drop(joining),
                1 => {
                    let failed = joining.share(|_| Err(Error::Revoked { by: None, awaited: None }));
                    assert!(matches!(failed, Err(Error::Revoked { .. })));
                }
                2 => drop(joining.share(|_| Ok(memory())).unwrap()),
                _ => {
                    // A link that is dropped by a panic says nothing.
                    hang_up(joining.share(|_| Ok(memory())).unwrap().ready().unwrap());
                }
            }
        });
        assert!(events.contains(&RootEvent::Lost(MemberId(1), ExitCause::HungUp)), "step {step}: {events:?}");
    }
}

/// Joins, waits for a loss, and gives it as an error.
fn join_and_wait(member: u32, socket: OwnedFd) -> Result<()> {
    match join(member, 3, socket)?.wait_event(WATCHDOG)? {
        LinkEvent::Lost { device: DeviceName::Rank(rank), .. } => Err(Error::PeerLost { rank }),
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_member_that_speaks_garbage_at_any_step_is_lost_to_all_others() {
    let bytes = |length: usize| vec![0xa5_u8; length];
    let bad_head = |kind: u32, version: u32| {
        let mut header = Hello::header(JOB);
        (header.kind, header.version) = (kind, version);
        bytemuck::bytes_of(&header).to_vec()
    };
    let garbage = [
        bytes(1),
        bytes(24),
        bytes(4136),
        bytes(5000),
        bad_head(0, 1),
        bad_head(99, 1),
        bad_head(Bye::KIND, 2),
        bad_head(Bye::KIND, 1),
        bytemuck::bytes_of(&Contribution { round: 9, ..contribution() }).to_vec(),
        bytemuck::bytes_of(&Report { header: Report::header(JOB), member: 3, restarts: 0 }).to_vec(),
        bytemuck::bytes_of(&Welcome { header: Welcome::header(JOB), ..Welcome::zeroed() }).to_vec(),
        bytemuck::bytes_of(&Gathered { header: Gathered::header(JOB), ..Gathered::zeroed() }).to_vec(),
    ];
    for text in &garbage {
        for is_welcomed in [false, true] {
            let events = with_root(3, options(), |member, socket| {
                if member != 1 {
                    assert_eq!(lost_rank(join_and_wait(member, socket)), 1);
                    return;
                }
                if is_welcomed {
                    send_message(&socket, &hello(1));
                }
                send(socket.as_fd(), text, &[]).unwrap();
                hold_until_hang_up(&socket);
            });
            let told = |event: &RootEvent| {
                matches!(event, RootEvent::Lost(MemberId(1), ExitCause::Protocol | ExitCause::Version { .. }))
            };
            assert!(events.iter().any(told), "{text:?}: {events:?}");
        }
    }
}

fn contribution() -> Contribution {
    Contribution { header: Contribution::header(JOB), ..Contribution::zeroed() }
}

fn hold_until_hang_up(socket: &OwnedFd) {
    let began = Instant::now();
    while !matches!(super::socket::try_receive(socket.as_fd()).unwrap(), super::socket::Incoming::HungUp) {
        assert!(began.elapsed() < WATCHDOG);
        std::thread::yield_now();
    }
}

#[test]
fn descriptors_that_nobody_asked_for_break_the_protocol_and_are_closed() {
    let events = with_root(2, options(), |member, socket| {
        if member == 0 {
            assert_eq!(lost_rank(join(0, 2, socket)), 1);
            return;
        }
        send_message(&socket, &hello(1));
        let (one, two) = (memory(), memory());
        send(socket.as_fd(), bytemuck::bytes_of(&contribution()), &[one.as_fd(), two.as_fd()]).unwrap();
        hold_until_hang_up(&socket);
    });
    assert!(events.contains(&RootEvent::Lost(MemberId(1), ExitCause::Protocol)), "{events:?}");
}

#[test]
fn a_rank_without_a_segment_fails_everyone_with_a_typed_error() {
    with_root(2, options(), |member, socket| {
        let mut joining = begin(member, 2, socket).unwrap();
        if member == 1 {
            joining.all_gather(&[], None).unwrap();
        } else {
            let shared = joining.share(|_| Ok(memory()));
            assert!(
                matches!(shared, Err(Error::Layout { what: "number of segments", expected: 2, found: 1 })),
                "{shared:?}"
            );
        }
    });
}

#[test]
fn a_member_that_does_not_fit_is_told_why_and_so_is_the_launcher() {
    let version =
        |what, launcher: u32, device| ExitCause::Version { what, launcher: launcher.into(), device };
    let misfits = [
        (
            Hello { layout_version: 99, ..hello(0) },
            "layout version",
            version("layout version", LAYOUT_VERSION, 99),
        ),
        (Hello { header: Hello::header(5), ..hello(0) }, "job id", ExitCause::Protocol),
        (Hello { member: 1, ..hello(0) }, "rank", ExitCause::Protocol),
        (
            Hello { header: message::MessageHeader { version: 9, ..Hello::header(JOB) }, ..hello(0) },
            "bootstrap version",
            version("bootstrap version", message::VERSION, 9),
        ),
    ];
    for (hello, what, cause) in misfits {
        let events = with_root(1, options(), |_, socket| {
            send_message(&socket, &hello);
            // Later messages find the socket closed, and do not hide the answer.
            let refused = begin(0, 1, socket);
            assert!(matches!(refused, Err(Error::Layout { what: told, .. }) if told == what), "{refused:?}");
        });
        assert_eq!(events, [RootEvent::Lost(MemberId(0), cause)]);
    }
}

#[test]
fn the_last_words_of_a_member_are_heard_though_it_never_read_its_mail() {
    let events = with_root(2, options(), |member, socket| {
        let link = join(member, 2, socket).unwrap();
        if member == 0 {
            // Until rank 1 is gone there is unread mail: its loss.
            let mut polled = [PollFd::new(link.socket.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::from(20_000_u16)).unwrap();
            link.finalize().unwrap();
        } else {
            hang_up(link);
        }
    });
    assert!(events.contains(&RootEvent::Left(MemberId(0))), "{events:?}");
    assert!(events.contains(&RootEvent::Lost(MemberId(1), ExitCause::HungUp)), "{events:?}");
}

/// Closes a link without a Bye.
fn hang_up(link: ControlLink) {
    let thread = std::thread::spawn(move || {
        let _link = link;
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(thread.join().is_err());
}

#[test]
fn a_report_names_who_was_lost_and_counts_once_for_each() {
    let events = with_root(2, options(), |member, socket| {
        let link = join(member, 2, socket).unwrap();
        if member == 0 {
            for lost in [rank(1), rank(1), DeviceName::Proxy, rank(0)] {
                link.report_loss(lost, 0);
            }
        }
    });
    let reports: Vec<_> = events.iter().filter(|event| matches!(event, RootEvent::Reported(..))).collect();
    assert_eq!(
        reports,
        [1, 0].map(|lost| RootEvent::Reported(MemberId(0), MemberId(lost))).iter().collect::<Vec<_>>()
    );
}

#[test]
fn ready_before_the_segments_were_shared_holds_everyone_until_the_deadline() {
    let short = Options { timeout: Duration::from_millis(50), ..options() };
    with_root(2, short, |member, socket| {
        if member == 0 {
            let late = join(0, 2, socket);
            assert!(matches!(late, Err(Error::Timeout { .. } | Error::PeerLost { .. })), "{late:?}");
            return;
        }
        send_message(&socket, &hello(1));
        send_message(&socket, &Ready { header: Ready::header(JOB) });
        hold_until_lost(&socket);
    });
}

/// Waits until the other member gave up.
fn hold_until_lost(socket: &OwnedFd) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < WATCHDOG);
        match super::socket::try_receive(socket.as_fd()).unwrap() {
            super::socket::Incoming::Message(bytes, _)
                if message::read::<message::Lost>(&bytes).is_some() =>
            {
                return;
            }
            _ => std::thread::yield_now(),
        }
    }
}

#[test]
fn a_member_whose_root_dies_at_any_step_is_told_so() {
    for step in 0..3 {
        let (own, theirs) = pair().unwrap();
        let control = memory();
        let offer =
            Offer { n_ranks: 1, epoch: 1, job_id: JOB, options: options(), restarting: false, beat: None };
        let mut root = BootstrapRoot::new(offer, control.as_fd(), None, None).unwrap();
        root.add_member(own, Placement { cpu: None, devices: 1, proxies: 0 });
        let member = std::thread::spawn(move || join(0, 1, theirs).map(|link| link.wait_event(WATCHDOG)));
        let began = Instant::now();
        // Steps: before the Hello is answered, after the Welcome, after Go.
        let is_there = |root: &mut BootstrapRoot| {
            assert!(began.elapsed() < WATCHDOG);
            root.serve(MemberId(0)).unwrap();
            let event = root.next_event();
            matches!((step, event), (1, Some(RootEvent::Joined(..))) | (2, Some(RootEvent::Up)))
        };
        while step > 0 && !is_there(&mut root) {}
        drop(root);
        match member.join().unwrap() {
            Err(Error::Revoked { by: None, .. }) => assert!(step < 2),
            // A quick member is up before the root stops serving it after its Hello.
            Ok(Ok(event)) => assert!(step > 0 && event == LinkEvent::LauncherGone, "step {step}: {event:?}"),
            other => panic!("step {step}: {other:?}"),
        }
    }
}

#[test]
fn a_watch_hears_losses_and_ends_when_it_is_dropped() {
    let events = with_root(2, options(), |member, socket| {
        let link = join(member, 2, socket).unwrap();
        if member == 1 {
            return hang_up(link);
        }
        let (told, heard) = std::sync::mpsc::channel();
        let watch = link.watch(None, move |event| told.send(event).unwrap()).unwrap();
        assert_eq!(
            heard.recv_timeout(WATCHDOG),
            Ok(LinkEvent::Lost { device: rank(1), restarts: 0, hangs: false })
        );
        drop(watch);
        assert!(heard.recv().is_err(), "the thread has ended");
        link.finalize().unwrap();
    });
    assert!(events.contains(&RootEvent::Left(MemberId(0))), "{events:?}");
}

#[test]
fn a_member_that_never_reads_does_not_keep_the_others_waiting() {
    // A member that joins and never reads must not delay messages to the others.
    let events = with_root(2, options(), |member, socket| {
        if member == 1 {
            send_message(&socket, &hello(1));
            return;
        }
        assert_eq!(lost_rank(join(0, 2, socket)), 1);
    });
    assert!(events.contains(&RootEvent::Lost(MemberId(1), ExitCause::HungUp)), "{events:?}");
}

#[test]
fn an_overlong_name_is_refused_before_anything_is_started() {
    let backing = SegmentBacking::Named("x".repeat(257));
    let options = Options { backing, ..options() };
    let offer = Offer { n_ranks: 1, epoch: 1, job_id: JOB, options, restarting: false, beat: None };
    assert!(matches!(
        BootstrapRoot::new(offer, memory().as_fd(), None, None),
        Err(Error::InvalidArgument { value: 257, .. })
    ));
}

/// Serves until the root has had that event.
fn serve_until(root: &mut BootstrapRoot, awaited: RootEvent) {
    let began = Instant::now();
    loop {
        let ids: Vec<_> = root.sockets().map(|(id, ..)| id).collect();
        ids.into_iter().for_each(|id| root.serve(id).unwrap());
        if std::iter::from_fn(|| root.next_event()).any(|event| event == awaited) {
            return;
        }
        assert!(began.elapsed() < WATCHDOG, "no {awaited:?}");
    }
}

/// Makes the root of a running job, and its three members.
fn root_that_restarts() -> (BootstrapRoot, Vec<ControlLink>) {
    let offer = Offer { n_ranks: 3, epoch: 7, job_id: JOB, options: options(), restarting: true, beat: None };
    let mut root = BootstrapRoot::new(offer, memory().as_fd(), None, None).unwrap();
    let joining = (0..3).map(|member| {
        let (own, theirs) = pair().unwrap();
        root.add_member(own, Placement { cpu: None, devices: 1, proxies: 0 });
        std::thread::spawn(move || join(member, 3, theirs).unwrap())
    });
    let joining: Vec<_> = joining.collect();
    serve_until(&mut root, RootEvent::Up);
    (root, joining.into_iter().map(|member| member.join().unwrap()).collect())
}

/// Hangs up for this member and restarts it. Returns the new process before it is back.
fn start_again(root: &mut BootstrapRoot, number: u32, link: ControlLink) -> Joining {
    let id = MemberId(number as usize);
    hang_up(link);
    serve_until(root, RootEvent::Lost(id, ExitCause::HungUp));
    let (own, theirs) = pair().unwrap();
    root.replace_member(id, own);
    let again = std::thread::spawn(move || begin(number, 3, theirs).unwrap());
    serve_until(root, RootEvent::Joined(id, std::process::id().try_into().unwrap()));
    again.join().unwrap()
}

#[test]
fn a_member_that_was_started_again_is_told_as_it_comes_back_who_was_lost_on_its_way() {
    let (mut root, mut members) = root_that_restarts();
    let again = start_again(&mut root, 1, members.remove(1));
    root.declare_lost(MemberId(2), true);
    let link = again.rejoin().unwrap();
    serve_until(&mut root, RootEvent::Returned(MemberId(1)));
    let told = link.wait_event(WATCHDOG).unwrap();
    assert_eq!(told, LinkEvent::Lost { device: rank(2), restarts: 0, hangs: true });
    // The others have learned it at once: of the member that hung up, and then of the one that
    // hangs.
    let first = members[0].wait_event(WATCHDOG).unwrap();
    assert_eq!(first, LinkEvent::Lost { device: rank(1), restarts: 0, hangs: false });
    assert_eq!(members[0].wait_event(WATCHDOG).unwrap(), told);
    assert!(matches!(members[0].wait_event(Duration::ZERO), Err(Error::Timeout { .. })));
}

#[test]
fn whoever_is_there_or_comes_back_is_told_once_that_nobody_is_started_for_a_lost_rank() {
    let (mut root, mut members) = root_that_restarts();
    let again = start_again(&mut root, 1, members.remove(1));
    let link = &members[0];
    root.declare_lost(MemberId(2), false);
    root.announce_not_restarted(MemberId(2));
    root.announce_not_restarted(MemberId(2));
    let told: Vec<_> = std::iter::from_fn(|| link.wait_event(Duration::ZERO).ok()).collect();
    let lost = |number| LinkEvent::Lost { device: rank(number), restarts: 0, hangs: false };
    assert_eq!(told, [lost(1), lost(2), LinkEvent::NotRestarted(rank(2))]);
    let in_vain = again.await_invite().unwrap_err();
    assert!(matches!(in_vain, Error::Unavailable { operation: "recover", .. }), "{in_vain}");
    // A member that is restarted only now learns it, too.
    drop(again);
    let (own, theirs) = pair().unwrap();
    root.replace_member(MemberId(1), own);
    let later = std::thread::spawn(move || begin(1, 3, theirs).unwrap().await_invite().unwrap_err());
    serve_until(&mut root, RootEvent::Joined(MemberId(1), std::process::id().try_into().unwrap()));
    assert_eq!(later.join().unwrap().to_string(), in_vain.to_string());
}
