//! What devices do, word by word.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::unistd::pause;
use shmccl::bootstrap::{LinkEvent, join_from_env};

use crate::{WATCHDOG, memory, say};

pub(crate) fn play(scenario: &str) -> shmccl::Result<()> {
    let own = std::env::var("SHMCCL_RANK").unwrap();
    let words: Vec<&str> = scenario
        .split(' ')
        .filter_map(|word| match word.split_once('@') {
            Some((word, rank)) => (rank == own).then_some(word),
            None => Some(word),
        })
        .collect();
    let at = |step: &str| {
        for word in &words {
            act(word, step);
        }
    };
    say(format_args!("> pid {}", std::process::id()));
    at("before-join");
    let joining = join_from_env()?.expect("started by a launcher");
    at("welcomed");
    let shared = joining.share(|_| Ok(memory()))?;
    at("shared");
    let link = shared.ready()?;
    say("> ready");
    at("up");
    if words.contains(&"wait") {
        let event = link.wait_event(WATCHDOG)?;
        let LinkEvent::Lost { device, restarts, .. } = event else { panic!("the launcher is gone") };
        link.report_loss(device, restarts);
        say(format_args!("> lost {device}"));
        // Without unwinding: whoever loses a peer fails.
        std::process::exit(1);
    }
    if words.contains(&GO_ON) {
        link.wait_event(WATCHDOG)?;
        say("> gone on");
    }
    link.finalize()?;
    at("left");
    Ok(())
}

/// What ranks of a job that keeps going do.
pub(crate) const GO_ON: &str = "go-on";

fn act(word: &str, step: &str) {
    let mut parts = word.split(':');
    let (verb, at, argument) = (parts.next().unwrap(), parts.next(), parts.next());
    if at != Some(step) {
        return;
    }
    let number = || argument.unwrap().parse::<i32>().unwrap();
    match verb {
        "die" => {
            raise(Signal::try_from(number()).unwrap()).unwrap();
            hang();
        }
        "exit" => std::process::exit(number()),
        "hang" => hang(),
        "garbage" => {
            send_garbage();
            hang();
        }
        "nonsense" => {
            await_hang_up(send_garbage());
            std::process::exit(1);
        }
        "deaf" => {
            let script = "trap '' INT TERM; echo '> deaf'; exec sleep 1000";
            panic!("{}", Command::new("sh").args(["-c", script]).exec());
        }
        "few-descriptors" => setrlimit(Resource::RLIMIT_NOFILE, 8, 8).unwrap(),
        "descriptors" => say(format_args!("> descriptors {:?}", inheritable())),
        _ => panic!("no such word: {word}"),
    }
}

/// Returns the number of the socket to the launcher.
fn send_garbage() -> RawFd {
    let socket = std::env::var("SHMCCL_SOCKET").unwrap().parse().unwrap();
    send(socket, b"garbage", MsgFlags::empty()).unwrap();
    socket
}

/// Reads on until the launcher says nothing more.
fn await_hang_up(socket: RawFd) {
    while recv(socket, &mut [0; 4096], MsgFlags::empty()).is_ok_and(|len| len > 0) {}
}

fn hang() -> ! {
    loop {
        pause();
    }
}

/// The numbers of the descriptors that a child would inherit.
pub(crate) fn inheritable() -> BTreeSet<i32> {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let kept = numbers.filter(|number| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.is_some_and(|flags| u32::from_str_radix(flags.trim(), 8).unwrap() & 0o2_000_000 == 0)
    });
    kept.map(|number| number.parse().unwrap()).collect()
}
