//! Ranks that die in the middle of plans.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error};
use support::{Random, Watchdog, long, seed};

use crate::corpus::of_ranks;
use crate::harness::this_test;

/// What a survivor prints that was told whom it has lost.
const TOLD: &str = "survivor: rank 1 was lost";

/// The environment variable that says after how many microseconds rank 1 dies.
const AFTER: &str = "SHMCCL_TEST_DIES_AFTER";

/// The environment variable that says which plan runs.
const PLAN: &str = "SHMCCL_TEST_PLAN";

/// Kills rank 1 of 2 at a drawn moment of a drawn plan, again and again.
pub(crate) fn again_and_again(name: &str) {
    let _watchdog = Watchdog::start(name, crate::PATIENCE);
    match join_job().unwrap() {
        Some(JoinedAs::Device(comm)) => return run_until_lost(*comm),
        Some(JoinedAs::Proxy) => return,
        None => {}
    }
    let mut random = Random(seed());
    let n_plans = of_ranks(2).len() as u64;
    for _ in 0..if long() { 200 } else { 8 } {
        trial(name, random.below(n_plans), random.below(30_000));
    }
}

fn trial(name: &str, plan: u64, after: u64) {
    let program = this_test(name);
    let launch = Launch::new(2).unwrap().program(program.clone()).service(program).heap_len(64 << 20);
    let launch = launch
        .timeout(Duration::from_secs(30))
        .grace(Duration::from_secs(20))
        .env(AFTER, after.to_string())
        .env(PLAN, plan.to_string())
        .capture_output(true);
    let mut output = Lines::default();
    let outcome = launch.supervise(&mut output);
    let is_killed = matches!(
        outcome,
        Err(Error::DeviceFailed { device: DeviceName::Rank(rank), cause: ExitCause::Signal(9) })
            if rank.get() == 1
    );
    assert!(is_killed, "plan {plan} after {after} us: {outcome:?}\n{}", output.0);
    assert!(output.0.contains(TOLD), "plan {plan} after {after} us:\n{}", output.0);
}

fn run_until_lost(mut comm: Communicator) {
    let number = |variable| std::env::var(variable).unwrap().parse::<u64>().unwrap();
    let listed = &of_ranks(2)[usize::try_from(number(PLAN)).unwrap()];
    let elements = usize::try_from(listed.smallest).unwrap() / size_of::<i32>();
    comm.register_plan(&listed.plan).unwrap();
    comm.barrier().unwrap();
    if comm.rank().get() == 1 {
        let after = Duration::from_micros(number(AFTER));
        std::thread::spawn(move || {
            #[expect(clippy::disallowed_methods, reason = "any moment will do: nothing is waited for")]
            std::thread::sleep(after);
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        });
    }
    let mut data = vec![1_i32; elements];
    let error = loop {
        let done = match listed.plan.collective.as_str() {
            "allreduce" => comm.all_reduce_in_place(&mut data, &ReduceOp::BitOr),
            "allgather" => comm.all_gather_in_place(&mut data),
            "reducescatter" => comm.reduce_scatter_in_place(&mut data, &ReduceOp::BitOr),
            _ => comm.all_to_all_in_place(&mut data),
        };
        if let Err(error) = done {
            break error;
        }
    };
    assert!(matches!(error, Error::PeerLost { rank } if rank.get() == 1), "{error}");
    tell(TOLD);
}

#[expect(clippy::print_stdout, reason = "for the launcher")]
fn tell(text: &str) {
    println!("\n{text}");
}

/// What the processes print.
#[derive(Default)]
struct Lines(String);

impl Observer for Lines {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        self.0 += &String::from_utf8_lossy(line.text);
        self.0.push('\n');
    }
}
