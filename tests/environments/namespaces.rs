//! Ranks in PID namespaces of their own, as those of sandboxes and containers are: a number of a
//! process means another one there, or none.

use std::process::Command;

use shmccl::{Communicator, Error};
use support::can_be_played;

use crate::job::{Started, job_within, say, sum};

/// A job of ranks that are alone in their PID namespaces. They see the processes of everybody, or
/// their own alone.
fn apart(flags: &[&str], sees_own_alone: bool, scenario: &str) -> Command {
    let mut wrapper = vec!["unshare", "--pid", "--fork", "--kill-child"];
    wrapper.extend(sees_own_alone.then_some("--mount-proc"));
    job_within(flags, &wrapper, scenario)
}

#[test]
fn survivors_go_on_together_whose_process_numbers_mean_nothing_to_each_other() {
    if !can_be_played("namespaces") {
        return;
    }
    for sees_own_alone in [true, false] {
        let mut job = apart(&["-n", "3", "-q", "--keep-going"], sees_own_alone, "shrink");
        let (code, stderr, stdout) = Started::new(&mut job, 0).end();
        let sums = stdout.lines().filter(|line| line.ends_with("sum 3")).count();
        assert_eq!((sums, stderr.as_str()), (2, "rank 2 exited with code 9; the others went on\n"));
        assert_eq!(code, 0, "{stdout}");
    }
}

/// Goes on without rank 2, which ends in the middle.
pub(crate) fn shrink(mut comm: Communicator) -> shmccl::Result<()> {
    comm.barrier()?;
    if comm.rank().get() == 2 {
        std::process::exit(9);
    }
    let lost = comm.barrier().unwrap_err();
    assert!(matches!(lost, Error::PeerLost { rank } if rank.get() == 2), "{lost}");
    let mut shrunk = comm.shrink()?;
    sum(&mut shrunk.comm)?;
    shrunk.comm.finalize()
}

#[test]
fn a_report_names_no_process_by_a_number_of_another_namespace() {
    if !can_be_played("namespaces") {
        return;
    }
    let (code, stderr, stdout) = Started::new(&mut apart(&["-n", "3", "-q"], true, "report"), 0).end();
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout.lines().filter(|line| line.ends_with("knows its own number alone")).count(), 3);
}

/// Looks whose processes a report names.
pub(crate) fn report(mut comm: Communicator) -> shmccl::Result<()> {
    comm.barrier()?;
    let named = comm.report()?.ranks.into_iter().filter_map(|rank| Some((rank.rank, rank.pid?)));
    let named: Vec<_> = named.collect();
    assert_eq!(named, [(comm.rank(), std::process::id())]);
    say(format_args!("{} knows its own number alone", comm.rank()));
    comm.finalize()
}

/// The rank whose number is in place of NUMBER sees no `/proc`, and so not its own namespaces.
const WITHOUT_PROC: &str = r#"if [ "$SHMCCL_RANK" = NUMBER ]; then
exec unshare --mount sh -c 'umount -l /proc && exec "$0" "$@"' "$@"; fi; exec "$@""#;

#[test]
fn a_rank_that_cannot_tell_its_namespace_goes_on_with_the_others() {
    if !can_be_played("namespaces") {
        return;
    }
    // Rank 0 is the host of the meeting of those who go on.
    for rank in ["0", "1"] {
        let script = WITHOUT_PROC.replace("NUMBER", rank);
        let wrapper = ["sh", "-c", &script, "sh"];
        let mut job = job_within(&["-n", "3", "-q", "--keep-going"], &wrapper, "shrink");
        let (code, stderr, stdout) = Started::new(&mut job, 0).end();
        let sums = stdout.lines().filter(|line| line.ends_with("sum 3")).count();
        assert_eq!((code, sums), (0, 2), "rank {rank} sees no /proc: {stderr}{stdout}");
    }
}

#[test]
fn ranks_that_cannot_reach_each_other_over_sockets_say_so_and_end() {
    if !can_be_played("namespaces") {
        return;
    }
    let wrapper = ["unshare", "--net"];
    let mut job = job_within(&["-n", "3", "-q", "--keep-going"], &wrapper, "shrink");
    let (_, stderr, stdout) = Started::new(&mut job, 0).end();
    assert!(stderr.contains("shrink needs one network namespace for all ranks\n"), "{stderr}");
    assert!(!stdout.contains("sum"), "{stdout} {stderr}");
}
