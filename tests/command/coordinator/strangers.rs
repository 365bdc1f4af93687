//! Peers that are refused: of another user, or of another version.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;

use shmccl::bootstrap::{Options, SegmentBacking};
use shmccl::coordinator::VERSION;
use shmccl::launch::launch_threads;
use support::can_be_played;

use crate::coordinator::pool::Pool;

/// The variable with the targets of the other user's process: the coordinator's socket, a device,
/// and the name of its socket.
const PART: &str = "SHMCCL_TEST_STRANGER";

/// The variable with the files and named segments that it is to try to open.
const PATHS: &str = "SHMCCL_TEST_STRANGER_PATHS";

/// Returns a message as it goes over a socket.
pub(crate) fn frame(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap();
    len.to_le_bytes().into_iter().chain(text.bytes()).collect()
}

/// Returns the name of the socket of `device`, which every user can read.
pub(crate) fn device_socket(device: u32) -> String {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    let prefix = format!("@shmccl-device-{device}-");
    let name = all.split_whitespace().find(|word| word.starts_with(&prefix)).unwrap();
    name[1..].to_owned()
}

/// Sends a greeting. Returns all that is answered until the end.
fn greet(stream: &mut UnixStream, version: &str) -> String {
    let greeting = frame(&format!(r#"{{"shmccl":"{version}","role":"client"}}"#));
    // The other side may have hung up by now.
    let _ = stream.write_all(&greeting);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(answer.get(4..).unwrap_or_default()).into_owned()
}

#[test]
fn stranger() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut part = part.split(' ');
    let (path, device, socket) = (part.next().unwrap(), part.next().unwrap(), part.next().unwrap());
    let denied = |error: std::io::Error| assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    denied(UnixStream::connect(path).unwrap_err());
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(socket).unwrap()).unwrap();
    assert_eq!(greet(&mut stream, VERSION), "", "nothing is read");
    denied(std::fs::read_dir(format!("/proc/{device}/fd")).unwrap_err());
    denied(std::fs::File::open(format!("/proc/{device}/mem")).unwrap_err());
}

#[test]
fn another_user_can_neither_connect_nor_attach_nor_read() {
    if !can_be_played("another_user_can_neither_connect_nor_attach_nor_read") {
        return;
    }
    let pool = Pool::start("stranger", 1);
    let device = pool.devices()[0];
    let part = format!("{} {device} {}", pool.socket().display(), device_socket(device));
    // By its link, since the other user may not enter the directory of the binary.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "coordinator::strangers::stranger", "--test-threads=1"]).env(PART, part);
    let output = command.uid(65534).gid(65534).current_dir("/").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(pool.ctl("devices").line().contains("free"));
}

/// The attempts of the other user at files and named segments.
#[test]
fn reader() {
    let Ok(paths) = std::env::var(PATHS) else { return };
    for path in paths.split(' ') {
        let opened = std::fs::File::open(path).map_err(|error| error.kind());
        assert_eq!(opened.err(), Some(std::io::ErrorKind::PermissionDenied), "{path}");
    }
}

#[test]
fn another_user_can_open_no_segment_that_has_a_name_or_is_a_file() {
    if !can_be_played("another_user_can_open_no_segment_that_has_a_name_or_is_a_file") {
        return;
    }
    let prefix = format!("shmccl-test-strangers-{}", std::process::id());
    let folder = std::env::temp_dir().join(&prefix);
    std::fs::create_dir(&folder).unwrap();
    let file = |rank: u32| folder.join(format!("rank{rank}.shmccl")).display().to_string();
    let cases = [
        (SegmentBacking::Named(prefix.clone()), [0, 1].map(|rank| format!("/dev/shm/{prefix}.{rank}"))),
        (SegmentBacking::Files(folder.display().to_string()), [0, 1].map(file)),
    ];
    for (backing, paths) in cases {
        let options = Options { heap_len: 2 << 20, backing, ..Options::default() };
        let ran = launch_threads(2, &options, |comm| {
            comm.barrier()?;
            if comm.rank().get() == 0 {
                let there = paths.iter().all(|path| std::fs::File::open(path).is_ok());
                assert!(there, "to this user: {paths:?}");
                let mut command = Command::new("/proc/self/exe");
                command
                    .args(["--exact", "coordinator::strangers::reader", "--test-threads=1"])
                    .env(PATHS, paths.join(" "));
                let output = command.uid(65534).gid(65534).current_dir("/").output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            }
            comm.barrier()
        });
        ran.unwrap();
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn another_version_is_refused_with_both_versions_named() {
    let pool = Pool::start("version", 1);
    let mut stream = UnixStream::connect(pool.socket()).unwrap();
    let answer = greet(&mut stream, "9.9.9");
    assert_eq!(answer, format!(r#"{{"shmccl":"{VERSION}"}}"#), "and the connection ends");
    let address = SocketAddr::from_abstract_name(device_socket(pool.devices()[0])).unwrap();
    let answer = greet(&mut UnixStream::connect_addr(&address).unwrap(), "9.9.9");
    assert!(answer.contains(VERSION));
    drop(pool);

    let other = Pool::empty("other-version");
    let directory = other.parent.join("shmccl");
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(&directory)
        .unwrap();
    let listener = UnixListener::bind(other.socket()).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&frame(r#"{"shmccl":"9.9.9","more":[]}"#)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let refused = other.ctl("devices");
    let both = format!("this is shmccl {VERSION}, and the other side is shmccl 9.9.9");
    assert!(refused.error().contains(&both), "{}", refused.stderr);
    server.join().unwrap();
}
