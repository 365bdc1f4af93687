//! A program with its own pool of devices. It allocates three of them as a communicator, adds
//! vectors on their memory, loses one device, and goes on with the rest.
//!
//! ```sh
//! cargo run --release --example pool
//! ```
//!
//! `shmccl coordinator -n 4` is such a pool by itself, and `shmccl ctl` does the same from outside.

#![allow(clippy::print_stdout, reason = "examples print")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::collective::Operation;
use shmccl::coordinator::{Client, CommStatus, Device, DeviceCall, Pool, Result};
use shmccl::reduce::{DataType, ReduceOp};

const COUNT: usize = 1000;
const INPUT: u64 = 0x1000;
const OUTPUT: u64 = 0x8000;

fn main() -> Result<()> {
    // The pool starts this program again for each device.
    if let Some(device) = Device::from_env()? {
        return device.serve();
    }
    let pool = Pool::start(4)?;
    let mut client = pool.client()?;
    let comm = client.init(3, false)?;
    println!("{} of {} devices are communicator {}", comm.devices.len(), pool.devices().len(), comm.comm);
    println!("the sum of three is {}", sum(&mut client, &comm)?);

    let lost = comm.devices[1];
    // Any process of this user may do that to a device.
    let _ = kill(Pid::from_raw(lost.get().cast_signed()), Signal::SIGKILL);
    while client.status(comm.comm, false)?.lost.is_empty() {
        std::thread::yield_now();
    }
    let comm = client.go_on(comm.comm)?;
    println!("without device {lost} it is {}, in epoch {}", sum(&mut client, &comm)?, comm.epoch);
    let comm = client.grow(comm.comm, 1)?;
    println!("with another one it is {} again, in epoch {}", sum(&mut client, &comm)?, comm.epoch);
    client.finalize(comm.comm)
    // Here the pool is dropped, and its devices end.
}

/// Fills `COUNT` elements on each device with its rank plus one, adds them on all devices, and
/// reads the last.
fn sum(client: &mut Client, comm: &CommStatus) -> Result<f64> {
    for (rank, device) in (1..).zip(&comm.devices) {
        let vector = f64::from(rank).to_ne_bytes().repeat(COUNT);
        client.copy_host_to_device(*device, INPUT, &vector)?;
    }
    let (send, recv) = (vec![INPUT; comm.devices.len()], vec![OUTPUT; comm.devices.len()]);
    let (operation, data_type, op) = (Operation::AllReduce, DataType::F64, ReduceOp::Sum);
    client.call(
        comm.comm,
        None,
        DeviceCall { operation, data_type, op, root: 0, count: COUNT as u64, send, recv },
    )?;
    let last = client.status(comm.comm, true)?.last.expect("a group that is over");
    assert_eq!(last.failure, None);
    let (last, mut element) = (comm.devices[comm.devices.len() - 1], [0; 8]);
    client.copy_device_to_host(last, OUTPUT + 8 * (COUNT as u64 - 1), &mut element)?;
    Ok(f64::from_ne_bytes(element))
}
