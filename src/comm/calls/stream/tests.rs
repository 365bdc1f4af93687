use std::sync::mpsc::{Sender, channel};

use super::*;
use crate::bootstrap::Options;
use crate::collective::Algorithm;
use crate::comm::{Collectives, Group};
use crate::heap::HeapPlace;
use crate::reduce::ReduceOp;

fn alone() -> Communicator {
    let options = Options { heap_len: 4 << 20, ..Options::default() };
    Communicator::init_all_with(1, &options).unwrap().remove(0)
}

/// Blocks `stream` until the returned value is dropped.
fn hold(stream: &Stream) -> Sender<()> {
    let ((release, released), (begin, begun)) = (channel::<()>(), channel());
    stream
        .call(move || {
            begin.send(()).unwrap();
            assert!(released.recv().is_err());
        })
        .unwrap();
    begun.recv().unwrap();
    release
}

#[test]
fn what_is_left_of_a_stream_after_the_end_of_the_epoch_is_dropped_with_it() {
    let comm = alone();
    let stream = comm.stream().unwrap();
    let (tell, told) = channel::<()>();
    let event = Event::new();
    let release = hold(&stream);
    stream.call(move || tell.send(()).unwrap()).unwrap();
    stream.record(&event).unwrap();
    comm.revoke();
    stream.queue.close(); // what a drop begins with; the rest of it would wait for the first call
    drop(release);
    drop(stream);
    assert!(told.recv().is_err(), "the second call was made");
    let error = event.synchronise().unwrap_err();
    assert!(matches!(error, Error::StreamFailed { operation: "call", number: 2, .. }), "{error}");
    assert!(matches!(error.origin(), Error::Revoked { .. }), "{error:?}");
}

#[test]
fn only_streams_that_are_awake_count_as_spinners() {
    let comm = alone();
    let alone = comm.context().policy();
    let stream = comm.stream().unwrap();
    let (tell, told) = channel();
    let context = Arc::clone(comm.context());
    stream.call(move || tell.send(context.policy()).unwrap()).unwrap();
    assert_eq!(told.recv().unwrap(), crate::sync::WaitPolicy::OVERSUBSCRIBED);
    drop(stream);
    assert_eq!(comm.context().policy(), alone);
}

#[test]
fn a_call_that_cannot_be_done_gives_the_engine_back() {
    let mut comm = alone();
    let (stream, me) = (comm.stream().unwrap(), comm.rank());
    let sums = comm.alloc::<u64>(8).unwrap();
    let mut group = Group::start();
    let all = group.join(&mut comm);
    group.on(all).send(&sums, me).unwrap();
    group.end_on(&stream).unwrap();
    comm.all_reduce_in_place(&sums, &ReduceOp::Sum).unwrap();
    let error = stream.synchronise().unwrap_err();
    assert!(matches!(error.origin(), Error::InvalidArgument { .. }), "{error:?}");
}

#[test]
fn a_call_that_is_wrong_in_itself_is_refused_at_once_and_not_enqueued() {
    let mut comm = alone();
    let (stream, me) = (comm.stream().unwrap(), comm.rank());
    let sums = comm.alloc::<u64>(8).unwrap();
    comm.set_algorithm(Some(Algorithm::Ring));
    let misfit = stream.on(&mut comm).gather(&sums, &sums, me).unwrap_err();
    assert!(matches!(misfit, Error::UnsupportedAlgorithm { .. }), "{misfit:?}");
    comm.set_algorithm(None);
    let to_itself = stream.on(&mut comm).send(&sums, me).unwrap_err();
    assert!(matches!(to_itself, Error::InvalidArgument { .. }), "{to_itself:?}");
    assert_eq!(stream.synchronise().map(|()| stream.query().unwrap()).unwrap(), StreamStatus::Success);
}

#[test]
fn a_stream_writes_nothing_once_its_rank_has_left_and_what_is_there_can_be_read() {
    let mut comm = alone();
    let (stream, rank) = (comm.stream().unwrap(), comm.rank());
    let data = comm.alloc::<u32>(4).unwrap();
    let at = HeapPlace { rank, offset: data.region().offset };
    stream.fill(&data, 7).unwrap();
    comm.finalize().unwrap();
    let refused = [
        stream.fill(&data, 8),
        stream.copy_host_to_device(vec![8_u32; 4], &data),
        stream.copy_device_to_device(at, at, 16),
    ];
    assert!(refused.iter().all(|done| matches!(done, Err(Error::Unavailable { .. }))), "{refused:?}");
    let copy = HostBuffer::<u32>::zeroed(4);
    stream.copy_device_to_host(&data, &copy).unwrap();
    stream.synchronise().unwrap();
    assert_eq!(copy.to_vec(), [7; 4]);
}

#[test]
fn a_stream_that_is_full_refuses_more_and_is_none_the_worse() {
    let mut comm = alone();
    let stream = comm.stream().unwrap();
    let sums = comm.alloc::<u64>(1).unwrap();
    let (event, release) = (Event::new(), hold(&stream));
    stream.record(&event).unwrap();
    stream.on(&mut comm).all_reduce_in_place(&sums, &ReduceOp::Sum).unwrap();
    for _ in 2..MAX_ENQUEUED {
        stream.call(|| ()).unwrap();
    }
    let called = stream.on(&mut comm).all_reduce_in_place(&sums, &ReduceOp::Sum);
    let mut group = Group::start();
    let all = group.join(&mut comm);
    group.on(all).all_reduce_in_place(&sums, &ReduceOp::Sum).unwrap();
    group.nest(|group| group.end_on(&stream)).unwrap();
    for told in [called, stream.call(|| ()), stream.record(&event), group.end_on(&stream)] {
        assert!(
            matches!(told, Err(Error::Exhausted { what, .. }) if what.contains("synchronise")),
            "{told:?}"
        );
    }
    drop(release);
    stream.synchronise().unwrap();
    group.end_on(&stream).unwrap();
    event.synchronise().unwrap();
    comm.all_reduce_in_place(&sums, &ReduceOp::Sum).unwrap();
    stream.synchronise().unwrap();
    stream.on(&mut comm).all_reduce_in_place(&sums, &ReduceOp::Sum).unwrap();
}

#[test]
fn a_group_that_is_full_refuses_more_and_does_what_it_has() {
    let mut comm = alone();
    let (sums, me) = (comm.alloc::<u64>(1).unwrap(), comm.rank());
    let mut group = crate::comm::Group::start();
    let joined = group.join(&mut comm);
    for _ in 0..crate::comm::Group::MAX_CALLS {
        group.on(joined).broadcast(&sums, &sums, me).unwrap();
    }
    let told = group.on(joined).broadcast(&sums, &sums, me);
    assert!(matches!(told, Err(Error::Exhausted { limit: 65_536, .. })), "{told:?}");
    group.end().unwrap();
}

#[test]
fn a_waiter_that_sleeps_is_woken_by_the_change_it_waits_for_after_the_end_of_the_epoch_too() {
    let comm = alone();
    let monitor = crate::comm::calls::monitor::Monitor::new(comm.context(), 0);
    for end in [2, 4] {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| monitor.wait_asleep(|value| (*value == end).then_some("woken")));
            for _ in 0..2 {
                monitor.change(|value| *value += 1);
            }
            assert_eq!(waiter.join().unwrap(), "woken");
        });
        comm.revoke();
    }
    assert_eq!(monitor.wait_awake(|_| None::<()>), None, "nobody stays awake for ever");
}
