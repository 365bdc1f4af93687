//! Faults on purpose, under `shmccl run`.

use crate::run::{job, run, told};

#[test]
fn a_device_that_an_injected_fault_has_killed_is_named_with_the_fault() {
    let flags = ["-n", "2", "-q", "--grace", "60s", "--faults", "seed=4;kill:rank=1,at=2"];
    let (code, error) = told(&job(&flags, "ring").output().unwrap());
    let named = "error: rank 1 was killed by an injected fault: kill at operation 2, wait (seed 4)\n";
    assert!(code == 137 && error.ends_with(named) && error.contains("rank 1 was lost"), "{code} {error}");
    let mut service = job(&["-n", "2", "-q", "--proxy", "process"], "ring");
    let (code, error) = told(&service.env("SHMCCL_FAULTS", "stop:at=1").output().unwrap());
    let named = "error: the proxy service was killed by an injected fault: stop at trigger 1 (seed 0)\n";
    assert!(code == 137 && error.ends_with(named), "{code} {error}");
}

#[test]
fn a_rank_that_is_started_again_after_a_fault_suffers_none() {
    let flags = ["-n", "2", "-q", "--restart", "2", "--faults", "kill:rank=1,at=1"];
    let (code, error) = told(&job(&flags, "recover").output().unwrap());
    let named =
        "rank 1 was killed by an injected fault: kill at operation 1, barrier (seed 0); started again";
    assert!(code == 0 && error.contains(named) && error.lines().count() == 1, "{code} {error}");
}

#[test]
fn a_plan_of_faults_that_makes_no_sense_is_one_line_that_says_how_it_is_written() {
    let (code, error) = told(&run(&["-n", "2", "--faults", "murder:at=1", "--", "true"]));
    assert!(code == 2 && error.contains("`murder` is no fault; expected CLAUSE[;CLAUSE]"), "{code} {error}");
    let mut by_environment = job(&["-n", "2"], "ring");
    let (code, error) = told(&by_environment.env("SHMCCL_FAULTS", "kill:rank=1").output().unwrap());
    assert!(code == 2 && error.contains("`kill` needs either at or one_in"), "{code} {error}");
    let (code, error) = told(&run(&["-n", "2", "--faults", "kill:rank=2,at=1", "--", "true"]));
    assert!(code == 2 && error.contains("there is no rank 2 in a job of 2"), "{code} {error}");
    let of_service = ["-n", "2", "--proxy", "process", "--faults", "kill:at=1,of=trigger", "--", "true"];
    let (code, error) = told(&run(&of_service));
    assert!(code == 2 && error.contains("which `stop` kills"), "{code} {error}");
}
