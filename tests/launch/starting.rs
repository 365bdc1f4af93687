//! Jobs that start, and programs that never join.

use shmccl::Error;
use shmccl::bootstrap::{ProxyMode, join_from_env};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Observer, OutputLine, Program};

use crate::{entry, failure, launch, memory, rank, run, say};

#[test]
fn all_ranks_join_and_leave() {
    for n_ranks in [1, 2, 5] {
        let (result, record) = run(&launch(n_ranks, ""));
        assert!(result.unwrap().ready_after.is_some());
        assert_eq!(record.losses, []);
        for index in 0..n_ranks {
            assert_eq!(record.said(rank(index)).len(), 2, "{record:?}");
        }
    }
}

#[test]
fn the_largest_job_starts() {
    let (result, record) = run(&launch(64, ""));
    result.unwrap();
    assert_eq!(record.lines.len(), 128);
}

#[test]
fn a_rank_that_may_not_open_all_segments_gets_a_typed_error() {
    let (result, record) = run(&launch(8, "few-descriptors:welcomed@1 wait"));
    assert_eq!(failure(result), (rank(1), ExitCause::Code(1)));
    let said = record.said(rank(1));
    assert!(said.last().unwrap().starts_with("not enough file descriptors"), "{said:?}");
}

#[test]
fn the_service_process_is_a_member() {
    let (result, record) = run(&launch(2, "").proxy(ProxyMode::Process));
    result.unwrap();
    assert_eq!(record.said(DeviceName::Proxy)[1], "ready");
}

#[test]
fn programs_that_never_join_and_succeed_are_fine() {
    let (result, record) = run(&launch(2, "exit:before-join:0"));
    assert_eq!(result.unwrap().ready_after, None);
    assert_eq!(record.losses, []);
    let (result, _) = run(&launch(3, "").program(Program::new::<&str>("true", [])));
    result.unwrap();
    let (result, _) = run(&launch(1, "").program(Program::new::<&str>("false", [])));
    assert_eq!(failure(result), (rank(0), ExitCause::Code(1)));
}

#[test]
fn a_program_that_does_not_exist_is_an_error() {
    let (result, _) = run(&launch(3, "").program(Program::new::<&str>("/nonexistent/program", [])));
    assert!(matches!(result, Err(Error::Os { .. })), "{result:?}");
}

#[test]
fn a_job_can_be_joined_once() {
    let (result, record) = run(&launch(1, "").program(entry("starting::second_join_process")));
    result.unwrap();
    assert!(record.said(rank(0))[0].starts_with("SHMCCL_SOCKET: "), "{record:?}");
}

#[test]
fn second_join_process() {
    if std::env::var("SHMCCL_RANK").is_err() {
        return;
    }
    let joining = join_from_env().unwrap().unwrap();
    say(format_args!("> {}", join_from_env().unwrap_err()));
    joining.share(|_| Ok(memory())).unwrap().ready().unwrap();
}

#[test]
fn outside_a_job_there_is_nothing_to_join() {
    if std::env::var("SHMCCL_RANK").is_err() {
        assert!(join_from_env().unwrap().is_none());
    }
}

#[test]
fn output_comes_by_lines_and_a_last_line_needs_no_line_feed() {
    #[derive(Default)]
    struct Prefixed(Vec<u8>);
    impl Observer for Prefixed {
        fn on_loss(&mut self, _: DeviceName) {}
        fn on_output(&mut self, line: OutputLine<'_>) {
            line.write_prefixed(&mut self.0).unwrap();
        }
    }
    let script = "printf 'one\\n\\ntwo'; head -c 200000 /dev/zero | tr '\\0' x >&2";
    let launch = launch(1, "").program(Program::new("sh", ["-c", script]));
    let mut prefixed = Prefixed::default();
    launch.supervise(&mut prefixed).unwrap();
    let text = String::from_utf8(prefixed.0).unwrap();
    let (long, short): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.contains('x'));
    assert_eq!(short, ["[rank 0] one", "[rank 0] ", "[rank 0] two"]);
    assert_eq!(long.iter().map(|line| line.len() - "[rank 0] ".len()).collect::<Vec<_>>(), [200_000]);
}

#[test]
fn ranks_run_on_the_cores_that_the_plan_says() {
    let script = "grep Cpus_allowed_list /proc/self/status | sed 's/.*:./> /'";
    for pin in [true, false] {
        let launch = launch(3, "").pin(pin).program(Program::new("sh", ["-c", script]));
        let (result, record) = run(&launch);
        result.unwrap();
        let pinning = launch.pinning();
        for index in 0..3 {
            let said = record.said(rank(index))[0].split(',').flat_map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                first.parse::<usize>().unwrap()..=last.parse().unwrap()
            });
            let cores = pinning.cores(rank(index));
            assert!(if pin { said.eq(cores.iter().copied()) } else { cores.is_empty() }, "{pinning}");
        }
    }
}

/// Prints how long it takes; the time has no bound here, because other tests run beside it.
#[test]
fn eight_ranks_are_ready_soon() {
    let mut times: Vec<_> = (0..7).map(|_| run(&launch(8, "")).0.unwrap().ready_after.unwrap()).collect();
    times.sort_unstable();
    say(format_args!("8 ranks ready after {:?} (median; from {:?} to {:?})", times[3], times[0], times[6]));
}
