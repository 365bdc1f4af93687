//! Systems that watch over nobody: they refuse robust lists, by which peers learn of a death where
//! there is no launcher.

use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use shmccl::bootstrap::Options;
use shmccl::{Communicator, Error, UniqueId};
use support::Surroundings;

use crate::job::{Started, say};

const ENTRY: &str = "presence::who_dies_or_leaves_is_told_apart_where_the_system_watches_over_nobody";

/// What a member meets under; `new` where it makes the id itself.
const ID: &str = "SHMCCL_TEST_MEETING";

/// What rank 1 does once all are there.
const PART: &str = "SHMCCL_TEST_PART";

#[test]
fn who_dies_or_leaves_is_told_apart_where_the_system_watches_over_nobody() {
    if let Ok(id) = std::env::var(ID) {
        return be_a_member(&id);
    }
    for [first_is_watched, second_is_watched] in [[false, false], [true, false], [false, true]] {
        for (part, told) in [("dies", "lost 1"), ("leaves", "done")] {
            let mut first = member("new", part, first_is_watched, 0);
            let id = first.hear("id ");
            let pid = first.hear("pid ");
            let second = member(id.trim(), part, second_is_watched, 1);
            first.hear("together");
            if part == "dies" {
                kill(second.pid(), Signal::SIGKILL).unwrap();
            }
            let context = format!("{pid}: {part}, {first_is_watched} {second_is_watched}");
            assert_eq!(first.hear("told ").trim(), told, "{context}");
            assert_eq!(first.end().0, 0, "{context}");
            second.end();
        }
    }
}

fn member(id: &str, part: &str, is_watched: bool, n_pids: usize) -> Started {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", ENTRY, "--nocapture"]).env(ID, id).env(PART, part).env("SHMCCL_TUNING", "");
    let refusing = Surroundings::plain().refusing(libc::SYS_set_robust_list, Errno::ENOSYS);
    Started::new(if is_watched { &mut command } else { refusing.around(&mut command) }, n_pids)
}

fn be_a_member(id: &str) {
    let (rank, id) = match id {
        "new" => (0, UniqueId::new().unwrap()),
        id => (1, id.parse().unwrap()),
    };
    if rank == 0 {
        say(format_args!("id {id}"));
    }
    say(format_args!("pid {}", std::process::id()));
    let options = Options { heap_len: 2 << 20, timeout: Duration::from_secs(20), ..Options::default() };
    let mut comm = Communicator::init_rank_with(2, &id, rank, &options).unwrap();
    comm.barrier().unwrap();
    let leaves = std::env::var(PART).unwrap() == "leaves";
    if rank == 1 && !leaves {
        loop {
            std::thread::park();
        }
    }
    if leaves {
        // Longer than peers look away.
        std::thread::park_timeout(Duration::from_millis(200));
        comm.barrier().unwrap();
    }
    say(format_args!("together"));
    let ended = if leaves { comm.finalize() } else { comm.barrier() };
    if rank == 0 {
        match ended {
            Ok(()) => say(format_args!("told done")),
            Err(Error::PeerLost { rank }) => say(format_args!("told lost {rank}")),
            Err(error) => say(format_args!("told {error}")),
        }
    }
}
