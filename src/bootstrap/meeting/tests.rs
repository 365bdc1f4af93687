use std::time::Instant;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;
use crate::bootstrap::control_channel::ControlChannel;
use crate::bootstrap::join_request::reach;
use crate::bootstrap::message::Rejected;
use crate::bootstrap::{
    Joining, MeetingHost, MeetingPoint, Options, RankClaim, WaitGuard, meet, meet_as_joiner, meet_by_name,
};
use crate::error::DeviceName;

/// A change that makes a JoinRequest odd.
type Change = fn(JoinRequest) -> JoinRequest;

const WATCHDOG: Duration = Duration::from_secs(20);

fn memory() -> Result<OwnedFd> {
    memfd_create(c"test", MFdFlags::MFD_CLOEXEC).map_err(|errno| Error::os("making test memory", errno))
}

/// Hosts a meeting under a name of its own.
fn hosted(name: &str, make_control: fn() -> Result<OwnedFd>) -> MeetingPoint {
    let point = point(name);
    MeetingHost::open(point.clone()).unwrap().start(move |_| make_control()).unwrap();
    point
}

fn point(name: &str) -> MeetingPoint {
    let name = format!("shmccl-test-{}-{name}", std::process::id());
    MeetingPoint { name, job_id: 77, epoch: 1 }
}

fn patient(timeout: Duration) -> Options {
    Options { heap_len: 1 << 20, timeout, ..Options::default() }
}

fn come(point: &MeetingPoint, n_ranks: u32, rank: u32) -> Result<Joining> {
    meet(point, RankClaim { rank: Rank::known(rank), n_ranks, n_members: n_ranks }, &patient(WATCHDOG), None)
}

fn join(joining: Joining) -> Result<()> {
    joining.share(|_| memory())?.ready().map(drop)
}

/// Knocks and does nothing more.
fn request(point: &MeetingPoint, change: impl FnOnce(JoinRequest) -> JoinRequest) -> ControlSocket {
    let socket = reach(point, WATCHDOG).unwrap();
    let header = JoinRequest::header(point.job_id);
    let request = JoinRequest {
        header,
        layout_version: LAYOUT_VERSION,
        rank: 1,
        n_ranks: 2,
        n_members: 0,
        backing: 0,
        reserved: 0,
        heap_len: 1 << 20,
        timeout_ms: 20_000,
    };
    let request = change(request);
    // Where the change does not say otherwise, there are no joiners.
    let n_members = if request.n_members == 0 { request.n_ranks } else { request.n_members };
    send_to(&socket, &JoinRequest { n_members, ..request });
    socket
}

/// Goes on as a rank that has sent its request. It does so before a rank with a short timeout, to
/// be heard before that ends.
fn stay(point: &MeetingPoint, socket: ControlSocket, n_ranks: u32, rank: u32) -> Result<Joining> {
    let channel =
        ControlChannel { socket, job_id: point.job_id, n_ranks, guard: None, last_words: Duration::ZERO };
    channel.receive::<Met>(WATCHDOG, "meeting")?;
    let mut joining = Joining::begin(channel, DeviceName::Rank(Rank::known(rank)), WATCHDOG)?;
    joining.options = patient(WATCHDOG);
    Ok(joining)
}

fn hear<M: ControlMessage>(socket: &ControlSocket) -> Option<M> {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < WATCHDOG);
        match try_receive(socket.as_fd()).unwrap() {
            Incoming::Nothing => std::thread::yield_now(),
            Incoming::Message(bytes, _) => return message::read::<M>(&bytes),
            Incoming::HungUp | Incoming::NoDescriptors => return None,
        }
    }
}

fn lost_rank<T: std::fmt::Debug>(result: Result<T>) -> u32 {
    match result {
        Err(Error::PeerLost { rank }) => rank.get(),
        other => panic!("expected the loss of a rank, got {other:?}"),
    }
}

#[test]
fn all_who_have_come_join_and_the_next_one_finds_nobody() {
    let point = hosted("all", memory);
    std::thread::scope(|scope| {
        for rank in (0..5).rev() {
            scope.spawn({
                let point = &point;
                move || come(point, 5, rank).and_then(join).unwrap()
            });
        }
    });
    assert!(matches!(come(&point, 5, 0), Err(Error::NoMeeting { .. })));
}

fn come_with_newcomers(point: &MeetingPoint, n_ranks: u32, n_members: u32, rank: u32) -> Result<Joining> {
    meet(point, RankClaim { rank: Rank::known(rank), n_ranks, n_members }, &patient(WATCHDOG), None)
}

fn joiner(point: &MeetingPoint) -> ControlSocket {
    request(point, |request| JoinRequest { rank: ANY_RANK, n_ranks: 0, ..request })
}

#[test]
fn newcomers_get_the_ranks_behind_those_of_the_members_and_their_terms() {
    let rank_of = |joining: Joining| {
        assert_eq!((joining.n_ranks(), joining.options.heap_len), (4, 1 << 20));
        let rank = joining.rank().unwrap().get();
        join(joining).unwrap();
        rank
    };
    for newcomers_first in [true, false] {
        // A process that was forked meanwhile may keep the name of a meeting that is over.
        let point = &hosted(&format!("newcomers-{newcomers_first}"), memory);
        let mut ranks = std::thread::scope(|scope| {
            let joiners = || {
                [(), ()].map(|()| scope.spawn(|| meet_as_joiner(point, WATCHDOG, None).map(rank_of).unwrap()))
            };
            let early = newcomers_first.then(joiners);
            let members = [0, 1].map(|rank| {
                scope.spawn(move || come_with_newcomers(point, 4, 2, rank).map(rank_of).unwrap())
            });
            let joiners = early.unwrap_or_else(joiners);
            members.into_iter().chain(joiners).map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(ranks[..2], [0, 1]);
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2, 3]);
    }
}

#[test]
fn a_newcomer_too_many_is_told_and_the_others_meet() {
    let point = hosted("too-many", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, n_members: 2, ..request });
    let placed = joiner(&point);
    let refused = meet_as_joiner(&point, WATCHDOG, None).unwrap_err();
    assert!(matches!(refused, Error::NoPlace { places: 1 }), "{refused}");
    let _second = request(&point, |request| JoinRequest { rank: 1, n_ranks: 3, n_members: 2, ..request });
    let met = [&first, &placed].map(|connection| hear::<Met>(connection).map(|met| (met.rank, met.n_ranks)));
    assert_eq!(met, [Some((0, 3)), Some((2, 3))]);
}

#[test]
fn a_newcomer_that_hangs_up_is_lost_to_all_once_it_has_a_rank_and_forgotten_before() {
    let point = hosted("fickle", memory);
    drop(joiner(&point));
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, n_members: 2, ..request });
    drop(joiner(&point));
    assert_eq!(hear::<Lost>(&first).unwrap().member, 2);
}

#[test]
fn a_meeting_that_ends_as_it_fails_tells_those_who_are_there_and_nobody_else() {
    let point = point("brief");
    MeetingHost::open(point.clone()).unwrap().ending_as_it_fails().start(|_| memory()).unwrap();
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, ..request });
    drop(request(&point, |request| JoinRequest { n_ranks: 3, ..request }));
    assert_eq!(hear::<Lost>(&first).unwrap().member, 1);
    let began = Instant::now();
    while !matches!(reach(&point, WATCHDOG), Err(Error::NoMeeting { .. })) {
        assert!(began.elapsed() < WATCHDOG);
        std::thread::yield_now();
    }
}

#[test]
fn ranks_that_meet_by_a_name_are_led_by_the_first_one_and_told_whom_they_lose() {
    let name = format!("shmccl-test-{}-by-name", std::process::id());
    let host =
        |rank: u32| move |point| MeetingHost::open(point)?.of_rank(Rank::known(rank)).start(|_| memory());
    let part = |rank| RankClaim { rank: Rank::known(rank), n_ranks: 3, n_members: 3 };
    let by_name = |rank| meet_by_name(&name, part(rank), &patient(WATCHDOG), host(rank));
    std::thread::scope(|scope| {
        for rank in (0..3).rev() {
            scope.spawn(move || by_name(rank).and_then(join).unwrap());
        }
    });
    // The name is free again, and this time a rank dies.
    std::thread::scope(|scope| {
        let others = [0, 2].map(|rank| scope.spawn(move || lost_rank(by_name(rank).and_then(join))));
        let began = Instant::now();
        let point = MeetingPoint { name: name.clone(), job_id: 0, epoch: 1 };
        let socket = loop {
            assert!(began.elapsed() < WATCHDOG);
            if let Ok(socket) = reach(&point, WATCHDOG) {
                break socket;
            }
            std::thread::yield_now();
        };
        let hosted = hear::<Hosted>(&socket).unwrap();
        let header = JoinRequest::header(hosted.header.job_id);
        send_to(
            &socket,
            &JoinRequest {
                header,
                n_ranks: 3,
                n_members: 3,
                rank: 1,
                heap_len: 1 << 20,
                timeout_ms: 20_000,
                ..forged()
            },
        );
        drop(socket);
        for other in others {
            assert_eq!(other.join().unwrap(), 1);
        }
    });
}

#[test]
fn a_newcomer_that_has_just_hung_up_takes_no_place_from_one_that_is_heard_in_the_same_round() {
    let point = point("ghost");
    let host = MeetingHost::open(point.clone()).unwrap();
    let listener = Unforked::open(|| host.try_clone_listener()).unwrap();
    drop(host);
    let mut meeting = Meeting::new(listener, point.job_id, None);
    let gone = joiner(&point);
    meeting.accept_waiting().unwrap();
    meeting.receive(0).unwrap();
    drop(gone);
    let _first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, n_members: 2, ..request });
    let placed = joiner(&point);
    meeting.accept_waiting().unwrap();
    (0..3).for_each(|index| meeting.receive(index).unwrap());
    assert_eq!(
        meeting.connections.iter().map(|connection| connection.socket.is_some()).collect::<Vec<_>>(),
        [false, true, true]
    );
    assert_eq!(meeting.claims().map(|claim| claim.rank.get()).collect::<Vec<_>>(), [0, 2]);
    assert!(matches!(try_receive(placed.as_fd()).unwrap(), Incoming::Nothing), "it was told nothing yet");
}

#[test]
fn a_descriptor_that_a_forked_process_has_kept_neither_keeps_a_line_nor_the_door_of_a_meeting() {
    let point = point("forked");
    let host = MeetingHost::open(point.clone()).unwrap();
    let _kept_listener = host.try_clone_listener().unwrap();
    host.start(|_| memory()).unwrap();
    let second = request(&point, |request| request);
    let _kept_line = second.try_clone().unwrap();
    drop(second);
    assert_eq!(lost_rank(come(&point, 2, 0).and_then(join)), 1);
    // All who were to come have an answer by now.
    let began = Instant::now();
    while !matches!(reach(&point, WATCHDOG), Err(Error::NoMeeting { .. })) {
        assert!(began.elapsed() < WATCHDOG);
        std::thread::yield_now();
    }
}

#[test]
fn the_patience_of_a_newcomer_counts_for_all_from_when_it_has_a_rank() {
    let hasty = |request| JoinRequest { rank: ANY_RANK, n_ranks: 0, timeout_ms: 150, ..request };
    let point = hosted("hasty", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, n_members: 2, ..request });
    let placed = joiner(&point);
    assert!(hear::<Rejected>(&request(&point, hasty)).is_some(), "there is no place for it");
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(250) {
        std::thread::yield_now();
    }
    let _second = request(&point, |request| JoinRequest { rank: 1, n_ranks: 3, n_members: 2, ..request });
    assert!(hear::<Met>(&first).is_some() && hear::<Met>(&placed).is_some());

    let point = hosted("hasty-placed", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, n_members: 2, ..request });
    let _placed = request(&point, hasty);
    assert!(hear::<Rejected>(&first).is_some(), "rank 1 is missing");
}

/// Whether there is a socket of that name, without coming to it.
fn is_open(point: &MeetingPoint) -> bool {
    let name = format!("@{}", point.name);
    std::fs::read_to_string("/proc/net/unix").unwrap().lines().any(|line| line.ends_with(&name))
}

#[test]
fn a_host_to_which_nobody_comes_goes_when_its_time_is_up() {
    assert!(is_open(&hosted("patient", memory)));
    let point = point("forsaken");
    let host = MeetingHost::open(point.clone()).unwrap().for_at_most(Duration::from_millis(50));
    host.start(|_| memory()).unwrap();
    let began = Instant::now();
    // Whoever came would have it look at its time.
    while is_open(&point) {
        assert!(began.elapsed() < WATCHDOG);
        std::thread::yield_now();
    }
}

#[test]
fn a_meeting_that_is_opened_while_others_are_waited_at_is_heard() {
    let _never_come_to = hosted("never-come-to", memory);
    for turn in 0..3 {
        // Whoever waits at all of them waits anew after this one.
        let first = hosted(&format!("first-{turn}"), memory);
        come(&first, 1, 0).and_then(join).unwrap();
        let second = hosted(&format!("second-{turn}"), memory);
        come(&second, 1, 0).and_then(join).unwrap();
    }
}

#[test]
fn newcomers_alone_are_told_at_their_deadline_that_nobody_has_come() {
    let point = hosted("alone", memory);
    let missed = meet_as_joiner(&point, Duration::from_millis(200), None);
    assert!(
        matches!(missed, Err(Error::Timeout { awaited: Some(rank), .. }) if rank.get() == 0),
        "{missed:?}"
    );
}

#[test]
fn whom_a_member_reports_to_be_lost_is_named_to_the_others_and_not_the_member() {
    let guard = |lost| WaitGuard::new(move || Some(Rank::known(lost)));
    let point = hosted("reports", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, ..request });
    let part = |rank, n_ranks| RankClaim { rank: Rank::known(rank), n_ranks, n_members: n_ranks };
    assert_eq!(lost_rank(meet(&point, part(1, 3), &patient(WATCHDOG), Some(guard(2)))), 2);
    assert_eq!(hear::<Lost>(&first).unwrap().member, 2);
    // The last one to come reports it when all have met, or as it joins.
    let point = hosted("reports-late", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, ..request });
    let met = meet(&point, part(1, 2), &patient(WATCHDOG), Some(guard(0)));
    assert_eq!(lost_rank(met.and_then(join)), 0);
    // Behind what is said to all as they meet and join.
    let told = std::iter::repeat_with(|| hear::<Lost>(&first)).take(4).find_map(|told| told);
    assert_eq!(told.map(|lost| lost.member), Some(0));
}

#[test]
fn a_rank_that_hangs_up_after_its_knock_is_lost_to_everybody() {
    let point = hosted("hangs-up", memory);
    drop(request(&point, |request| request));
    // Whether all had come before that was noticed makes no difference.
    assert_eq!(lost_rank(come(&point, 2, 0).and_then(join)), 1);
    let point = hosted("hangs-up-later", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, ..request });
    let second = request(&point, |request| JoinRequest { n_ranks: 3, ..request });
    drop(second);
    assert_eq!(hear::<Lost>(&first).unwrap().member, 1);
    assert!(hear::<Lost>(&first).is_none(), "the host has hung up");
    assert_eq!(lost_rank(come(&point, 3, 2)), 1);
}

#[test]
fn a_rank_that_speaks_out_of_turn_is_lost_to_everybody() {
    let point = hosted("twice", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, ..request });
    let second = request(&point, |request| JoinRequest { n_ranks: 3, ..request });
    send_to(&second, &Met { header: Met::header(point.job_id), rank: 0, n_ranks: 3 });
    assert_eq!(hear::<Lost>(&first).unwrap().member, 1);
}

#[test]
fn a_rank_that_comes_and_then_gets_stuck_is_named_at_the_deadline() {
    let point = hosted("stuck", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, ..request });
    let stuck = request(&point, |request| JoinRequest { timeout_ms: 300, ..request });
    assert_eq!(lost_rank(stay(&point, first, 2, 0).and_then(join)), 1);
    assert!(hear::<Met>(&stuck).is_some());
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline_of_the_most_impatient() {
    let point = hosted("missing", memory);
    let first = request(&point, |request| JoinRequest { n_ranks: 3, rank: 0, ..request });
    let _other = request(&point, |request| JoinRequest { n_ranks: 3, rank: 2, timeout_ms: 200, ..request });
    let missed = stay(&point, first, 3, 0);
    assert!(
        matches!(missed, Err(Error::Timeout { awaited: Some(rank), .. }) if rank.get() == 1),
        "{missed:?}"
    );
}

#[test]
fn whoever_has_come_by_the_deadline_is_received_however_late_the_host_is() {
    let point = point("late-host");
    let host = MeetingHost::open(point.clone()).unwrap();
    let mut meeting = Meeting::new(Unforked::open(|| host.try_clone_listener()).unwrap(), point.job_id, None);
    let come = |rank| request(&point, |request| JoinRequest { rank, n_ranks: 3, timeout_ms: 0, ..request });
    let _in_their_sockets = [come(0), come(2)];
    meeting.accept_waiting().unwrap();
    let _at_the_door = come(1);
    assert_eq!(meeting.assemble().expect("all have come").sockets.len(), 3);
}

#[test]
fn of_those_who_have_come_by_the_deadline_none_is_said_to_be_missing_however_late_the_host_is() {
    let point = point("late-host-of-some");
    let host = MeetingHost::open(point.clone()).unwrap();
    let listener = Unforked::open(|| host.try_clone_listener()).unwrap();
    drop(host);
    let connections = [0, 2]
        .map(|rank| request(&point, |request| JoinRequest { rank, n_ranks: 3, timeout_ms: 0, ..request }));
    assert!(Meeting::new(listener, point.job_id, None).assemble().is_none());
    for connection in &connections {
        let told = hear::<Rejected>(connection).and_then(Rejection::from_message);
        assert_eq!(told, Some(Rejection::Missing(Rank::known(1))));
    }
}

#[test]
fn two_claims_to_one_rank_end_the_meeting_for_all() {
    let point = hosted("twins", memory);
    let of_three = |rank| request(&point, |request| JoinRequest { rank, n_ranks: 3, ..request });
    let connections = [of_three(0), of_three(1), of_three(1)];
    for connection in &connections {
        let told = hear::<Rejected>(connection).and_then(Rejection::from_message);
        assert_eq!(told, Some(Rejection::Taken(Rank::known(1))));
    }
}

#[test]
fn a_rank_that_was_started_anew_before_its_death_was_seen_is_told_that_it_was_lost() {
    let point = hosted("anew", memory);
    let first = request(&point, |request| JoinRequest { rank: 0, n_ranks: 3, ..request });
    drop(request(&point, |request| JoinRequest { n_ranks: 3, ..request }));
    let anew = reach(&point, WATCHDOG).unwrap();
    send_to(
        &anew,
        &JoinRequest { n_ranks: 3, n_members: 3, rank: 1, heap_len: 1 << 20, timeout_ms: 20_000, ..forged() },
    );
    for connection in [&first, &anew] {
        assert_eq!(hear::<Lost>(connection).unwrap().member, 1);
    }
}

#[test]
fn ranks_with_different_terms_are_each_told_the_term_of_the_other() {
    let odd: [(Term, u64, Change); 4] = [
        (Term::NRanks, 4, |request| JoinRequest { rank: 3, n_ranks: 4, ..request }),
        (Term::HeapLen, 5, |request| JoinRequest { rank: 2, n_ranks: 3, heap_len: 5, ..request }),
        (Term::Backing, 2, |request| JoinRequest { rank: 2, n_ranks: 3, backing: 2, ..request }),
        (Term::Members, 2, |request| JoinRequest { rank: 0, n_ranks: 3, n_members: 2, ..request }),
    ];
    for (term, theirs, odd) in odd {
        let point = hosted(&format!("terms-{}", term as usize), memory);
        let of_three = |rank| request(&point, |request| JoinRequest { rank, n_ranks: 3, ..request });
        let (first, second) = (of_three(0), of_three(1));
        let odd = request(&point, odd);
        let told = |connection| hear::<Rejected>(connection).and_then(Rejection::from_message);
        let Some(Rejection::Differs { term: named, mine, rank, theirs: seen }) = told(&odd) else {
            panic!("{term:?}")
        };
        assert_eq!((named, mine, rank.get()), (term, theirs, 0));
        for connection in [&first, &second] {
            let rank = Rank::known(match term {
                Term::NRanks => 3,
                Term::Members => 0,
                Term::HeapLen | Term::Backing => 2,
            });
            assert_eq!(told(connection), Some(Rejection::Differs { term, mine: seen, rank, theirs }));
        }
    }
}

#[test]
fn a_guest_that_does_not_fit_is_refused_and_the_others_meet() {
    let point = hosted("misfits", memory);
    let misfits: [(u32, Change); 3] = [
        (MemberRefusal::Layout.code(), |request| JoinRequest { layout_version: 99, ..request }),
        (MemberRefusal::Job.code(), |request| JoinRequest { header: JoinRequest::header(5), ..request }),
        (MemberRefusal::Version.code(), |request| JoinRequest {
            header: message::MessageHeader { version: 9, ..request.header },
            ..request
        }),
    ];
    for (reason, misfit) in misfits {
        let refused = request(&point, misfit);
        assert_eq!(hear::<Refused>(&refused).unwrap().reason, reason);
    }
    for nonsense in [JoinRequest { rank: 2, ..forged() }, JoinRequest { n_ranks: 0, ..forged() }] {
        assert!(hear::<Refused>(&request(&point, |_| nonsense)).is_none());
    }
    let garbage = reach(&point, WATCHDOG).unwrap();
    send(garbage.as_fd(), b"garbage", &[]).unwrap();
    assert!(hear::<Refused>(&garbage).is_none());
    meet_in_two(&point);
}

fn forged() -> JoinRequest {
    JoinRequest {
        header: JoinRequest::header(77),
        layout_version: LAYOUT_VERSION,
        rank: 0,
        n_ranks: 2,
        n_members: 2,
        backing: 0,
        reserved: 0,
        heap_len: 0,
        timeout_ms: 0,
    }
}

fn meet_in_two(point: &MeetingPoint) {
    std::thread::scope(|scope| {
        scope.spawn(|| come(point, 2, 1).and_then(join).unwrap());
        come(point, 2, 0).and_then(join).unwrap();
    });
}

#[test]
fn guests_that_say_nothing_keep_nobody_out_however_many_they_are() {
    let point = hosted("silent", memory);
    let silent: Vec<_> = (0..MAX_CONNECTIONS + 10).map(|_| reach(&point, WATCHDOG).unwrap()).collect();
    meet_in_two(&point);
    for connection in &silent {
        assert!(hear::<Met>(connection).is_none());
    }
}

#[test]
fn a_host_that_cannot_go_on_says_why() {
    let fails = || Err(Error::os("making test memory", Errno::EMFILE));
    let point = hosted("fails", fails);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let point = &point;
            scope.spawn(move || {
                let error = come(point, 2, rank).unwrap_err();
                assert!(
                    matches!(error, Error::ResourceLimit { resource: "file descriptors", .. }),
                    "{error:?}"
                );
            });
        }
    });
}
