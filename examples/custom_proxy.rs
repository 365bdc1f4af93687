//! A proxy that does more than copy: it pretends to be a slow wire and keeps accounts. So an
//! algorithm can be tried on the network that it is meant for.
//!
//! Each rank sends blocks around the ring through its own proxy and checks what arrives. Run it
//! alone (`cargo run --release --example custom_proxy`), or under `shmccl run -n N -- ...` for any
//! N. It does not work with `--proxy process`, where one service process stands in for all proxies.

#![allow(clippy::print_stdout, reason = "examples print")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shmccl::channel::{Channel, Executor};
use shmccl::launch::launch;
use shmccl::proxy::{Handler, Trigger, TriggerKind, TriggerRefusal};

const BLOCKS: u32 = 100;
const WORDS: usize = 4096;
const LATENCY: Duration = Duration::from_micros(20);
const BYTES_PER_US: u64 = 1000; // 1 GB/s

/// The traffic over the wire.
#[derive(Clone, Copy, Default)]
struct Account {
    transfers: u64,
    bytes: u64,
}

/// Executes triggers like the proxy that runs otherwise, only later.
struct SlowWire {
    inner: Executor,
    account: Arc<Mutex<Account>>,
}

impl Handler for SlowWire {
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), TriggerRefusal> {
        if trigger.kind().contains(TriggerKind::DATA) {
            let len = u64::from(trigger.transfer().len.get());
            let arrival = Instant::now() + LATENCY + Duration::from_micros(len / BYTES_PER_US);
            while Instant::now() < arrival {
                std::thread::yield_now();
            }
            let mut account = self.account.lock().expect("nobody panics with the account in hand");
            account.transfers += 1;
            account.bytes += len;
        }
        self.inner.handle(fifo, trigger) // checks ids and bounds, and refuses what is out of them
    }
}

fn main() -> shmccl::Result<()> {
    launch(2, |comm| {
        let account = Arc::new(Mutex::new(Account::default()));
        let for_proxy = Arc::clone(&account);
        comm.start_proxy(1, |inner| SlowWire { inner, account: for_proxy })?;

        let (right, left) = (comm.right(), comm.left());
        let (source, target) = (comm.alloc::<u64>(WORDS)?, comm.alloc::<u64>(WORDS)?);
        // With two ranks both neighbours are one, and with one rank it is this rank: then one
        // channel does for both.
        let mut to_right = comm.port_channel(right)?;
        let mut from_left = if left == right { None } else { Some(comm.port_channel(left)?) };

        let start = Instant::now();
        for block in 0..u64::from(BLOCKS) {
            source.fill(block * 1000 + u64::from(comm.rank().get()));
            let (to, from) = (target.region().offset, source.region());
            to_right.put_with_signal_and_flush(to, from.offset, from.len)?;
            from_left.as_mut().unwrap_or(&mut to_right).wait()?;
            let expected = block * 1000 + u64::from(left.get());
            assert!(target.to_vec().iter().all(|&word| word == expected), "block {block} of rank {left}");
            comm.barrier()?; // all have read their block: the next one may come
        }
        let took = start.elapsed();

        let Account { transfers, bytes } = *account.lock().expect("nobody panics with the account in hand");
        assert_eq!((transfers, bytes), (u64::from(BLOCKS), u64::from(BLOCKS) * source.region().len));
        let at_least = (LATENCY + Duration::from_micros(source.region().len / BYTES_PER_US)) * BLOCKS;
        assert!(took >= at_least, "{took:?} is faster than the wire");
        println!(
            "rank {}: {transfers} blocks, {bytes} bytes in {took:.1?}; the wire needs {at_least:.1?}",
            comm.rank()
        );
        Ok(())
    })
    .map(drop)
}
