//! Where a job runs: cores that another job has, mounts that execute nothing, no `/proc`.

use std::io::Write;
use std::process::Command;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::job::{end_of, job, launching, shmccl, with_environment_of};
use crate::scratch;

/// Whether `test` can have namespaces of its own. A container may refuse them even to root.
fn can_unshare(test: &str) -> bool {
    let tried = || Command::new("unshare").args(["--net", "--mount", "true"]).output();
    support::can_be_played(test) && {
        let can = tried().is_ok_and(|output| output.status.success());
        if !can {
            let _ = writeln!(std::io::stderr(), "{test}: NOT TRIED, since this system refuses namespaces");
        }
        can
    }
}

/// The command in namespaces of its own (`flags`), once `script` has been run there.
fn unshared(flags: &str, script: &str, command: &Command) -> Command {
    let mut shell = Command::new("unshare");
    shell.args([flags, "sh", "-ec", &format!("{script}; exec \"$@\""), "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    with_environment_of(command, shell)
}

#[test]
fn a_job_begins_behind_the_cores_of_another_and_says_so() {
    if !can_unshare("a_job_begins_behind_the_cores_of_another_and_says_so") {
        return;
    }
    let this = env!("CARGO_BIN_EXE_shmccl");
    let nested = shmccl(&["run", "-q", "-n", "1", "--", this, "run", "-n", "1", "--", "true"]);
    // No other job of this machine is seen there.
    let (code, stderr) = end_of(&mut unshared("--net", ":", &nested));
    assert_eq!(code, 0, "{stderr}");
    let n_cores = std::thread::available_parallelism().unwrap().get();
    assert!(stderr.contains("; another job has claimed core "), "{stderr}");
    assert_eq!(stderr.contains("on core 0, "), n_cores == 1, "{stderr}");
}

#[test]
fn a_job_that_others_leave_too_few_cores_shares_all_of_them_and_begins_with_the_free_ones() {
    if !can_unshare("a_job_that_others_leave_too_few_cores_shares_all_of_them_and_begins_with_the_free_ones")
    {
        return;
    }
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cores: Vec<_> = (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap()).collect();
    let directory = scratch("two-jobs");
    for n_first in [1, cores.len()] {
        let script = format!(
            "mkfifo up; \"$0\" run -q -n {n_first} -- sh -c 'echo up; exec sleep 1000' >up & \
             exec 3<up; read -r line <&3; \
             \"$0\" run -n {} -- grep Cpus_allowed_list: /proc/self/status >&2; kill $!; rm up",
            cores.len()
        );
        let mut shell = Command::new("unshare");
        shell.args(["--net", "sh", "-ec", &script, env!("CARGO_BIN_EXE_shmccl")]).current_dir(&directory);
        let (code, told) = end_of(&mut shell);
        let of_ranks = told.lines().filter_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let mut found: Vec<usize> = of_ranks.map(|list| list.trim().parse().unwrap()).collect();
        found.sort_unstable();
        assert_eq!((code, &found), (0, &cores), "each has a core of its own: {told}");
        assert!(told.contains("; another job has claimed core"), "{told}");
        let begins_behind = told.contains(&format!("on core [{}, ", cores.get(1).unwrap_or(&cores[0])));
        assert_eq!(begins_behind, n_first == 1 && cores.len() > 1, "{told}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn one_rank_may_use_all_cores_for_its_threads() {
    if !can_unshare("one_rank_may_use_all_cores_for_its_threads") {
        return;
    }
    let script = "nproc >&2";
    let run = shmccl(&["run", "-q", "-n", "1", "--", "sh", "-c", script]);
    let n_cores = std::thread::available_parallelism().unwrap();
    assert_eq!(end_of(&mut unshared("--net", ":", &run)), (0, format!("{n_cores}\n")));
}

#[test]
fn a_program_on_a_mount_that_executes_nothing_is_refused_with_the_remedy() {
    if !can_unshare("a_program_on_a_mount_that_executes_nothing_is_refused_with_the_remedy") {
        return;
    }
    let directory = scratch("noexec");
    let program = directory.join("program");
    let script =
        format!("mount -t tmpfs -o noexec none {0}; cp /bin/true {0}/program", directory.to_str().unwrap());
    let run = shmccl(&["run", "-q", "-n", "1", "--", program.to_str().unwrap()]);
    let (code, stderr) = end_of(&mut unshared("--mount", &script, &run));
    assert_eq!(code, 126, "{stderr}");
    assert!(stderr.contains("its file system is mounted noexec; copy it to another"), "{stderr}");
}

#[test]
fn a_job_runs_where_there_is_no_proc() {
    if !can_unshare("a_job_runs_where_there_is_no_proc") {
        return;
    }
    let (code, stderr) = end_of(&mut unshared("--mount", "umount -l /proc", &job(&["-n", "2", "-q"], "sum")));
    assert_eq!((code, stderr), (0, String::new()));
}

#[test]
fn a_program_launches_itself_where_there_is_no_proc() {
    if !can_unshare("a_program_launches_itself_where_there_is_no_proc") {
        return;
    }
    let program = launching("sum");
    let (code, stderr) = end_of(&mut unshared("--mount", "umount -l /proc", &program));
    assert_eq!((code, stderr), (0, String::new()));
}

#[test]
fn ranks_that_fill_a_file_system_by_allocating_alone_get_an_error_and_no_signal() {
    if !can_unshare("ranks_that_fill_a_file_system_by_allocating_alone_get_an_error_and_no_signal") {
        return;
    }
    let directory = scratch("full");
    let place = directory.display();
    let flags = ["-n", "2", "-q", "--heap", "128M", "--segment", &format!("file:{place}")];
    let script = format!("mount -t tmpfs -o size=40m none {place}");
    let (code, told) = end_of(&mut unshared("--mount", &script, &job(&flags, "fill")));
    assert_eq!((code, told.as_str()), (0, ""));
    std::fs::remove_dir_all(directory).unwrap();
}
