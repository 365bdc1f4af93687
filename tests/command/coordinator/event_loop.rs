//! A client in a program with an event loop of its own.

use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shmccl::collective::Operation;
use shmccl::coordinator::{CallProgress, Client, CommId, CoordinatorError, DeviceCall, RequestError, Sent};
use shmccl::reduce::{DataType, ReduceOp};

use crate::coordinator::pool::Pool;

/// Looks for the answer whenever the descriptor says that something has come.
fn awaited<T>(client: &mut Client, mut sent: Sent<T>) -> Result<T, CoordinatorError> {
    loop {
        if let Some(answer) = client.answer(&mut sent)? {
            return Ok(answer);
        }
        poll(&mut [PollFd::new(client.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
    }
}

#[test]
fn a_group_is_executed_by_requests_that_do_not_wait_and_the_end_of_the_coordinator_is_an_answer() {
    let mut pool = Pool::start("event-loop", 2);
    let mut client = pool.client();
    let comm = client.init(2, false).unwrap();
    for (device, element) in comm.devices.iter().zip([2.0_f64, 3.0]) {
        client.copy_host_to_device(*device, 0x1000, &element.to_ne_bytes()).unwrap();
    }

    let sent = client.send_start_group(comm.comm, false).unwrap();
    let started = awaited(&mut client, sent).unwrap();
    assert_eq!(started.devices, comm.devices);
    let call = DeviceCall {
        operation: Operation::AllReduce,
        data_type: DataType::F64,
        op: ReduceOp::Prod,
        root: 0,
        count: 1,
        send: vec![0x1000; 2],
        recv: vec![0x2000; 2],
    };
    let sent = client.send_call(comm.comm, Some(started.group), call).unwrap();
    assert!(matches!(awaited(&mut client, sent), Ok(CallProgress::Queued { calls: 1, .. })));
    let sent = client.send_execute_group(comm.comm, Some(started.group)).unwrap();
    let last = awaited(&mut client, sent).unwrap().last.unwrap();
    assert_eq!((last.group, last.failure), (1, None));
    assert_eq!(client.read_device(comm.devices[1], 0x2000, 8).unwrap(), 6.0_f64.to_ne_bytes());

    let unknown = CommId::new(99);
    let sent = client.send_status(unknown, true).unwrap();
    let refused = awaited(&mut client, sent).unwrap_err();
    let is_missing = matches!(&refused, CoordinatorError::Refused(RequestError::NoSuchComm { .. }));
    assert!(is_missing, "{refused}");
    assert_eq!(client.status(comm.comm, false).unwrap().devices, comm.devices, "it waits again");

    let sent = client.send_start_group(comm.comm, false).unwrap();
    awaited(&mut client, sent).unwrap();
    pool.kill_coordinator();
    // The request may have gone out, or not.
    let told = client.send_status(comm.comm, false).and_then(|sent| awaited(&mut client, sent)).unwrap_err();
    assert!(matches!(told, CoordinatorError::Disconnected { .. }), "{told}");
}
