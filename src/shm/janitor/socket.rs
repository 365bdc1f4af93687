//! The janitor of a coordinator: removes its socket from the file system when it was killed, and no
//! device is left that waits there for the next one.
//!
//! It starts before there is anything to remove, and is told over a pair of sockets, whose other
//! end only the coordinator has:
//!
//! | message | says | sent |
//! |---|---|---|
//! | a [`SocketFileId`] | which file is the socket of this coordinator | before it has its name |
//! | one byte, and a pidfd | a device that will wait at the socket | when it is known |
//!
//! At end of file the coordinator is dead. The janitor waits until all those devices have ended, as
//! their descriptors tell: no number of a process is involved. Then it locks the directory, as
//! every process does that removes something there, and removes the socket if it is still the one
//! that it was told of. The socket of another coordinator is for the janitor of that one, which
//! knows the devices that wait there by then. So this janitor ends as soon as it finds such a
//! socket. Where another process has the lock for longer than a moment the socket is left to that
//! process.
//!
//! As all janitors it has a session of its own, allocates nothing and takes no lock of the program.

use std::ffi::{CStr, CString};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sendmsg, setsockopt, socketpair,
};
use nix::sys::stat::{Mode, fstatat, stat};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::{FlockOperation, flock};

use super::Janitor;
use crate::shm::system::{Ancillary, receive_with};

/// How many processes it waits for at a time; of more it does not know.
const MAX_AWAITED: usize = 2048;

/// Those processes, and its own messages. The list of them is on the stack.
const MAX_POLLED: usize = MAX_AWAITED + 1;

/// How often it looks whether the socket is another coordinator's, once its own is dead.
const LOOK_MS: u8 = 100;

/// How many seconds a coordinator waits for room for a message, of which there is some for
/// hundreds.
const HEARING_S: i64 = 1;

/// How many times in a row it tries to lock the directory.
const TRIES: u32 = 50;

/// Which file a socket is, told from others that have had its name, or its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketFileId {
    device: u64,
    inode: u64,
    modified: [i64; 2],
}

/// A running janitor of a coordinator. Dropping it ends it: what it would remove is then the
/// caller's to remove, before.
#[derive(Debug)]
pub(crate) struct SocketJanitor(Janitor);

/// What there is to be removed.
struct SocketPlace<'p> {
    directory: BorrowedFd<'p>,
    /// The name of the socket there.
    socket: &'p CStr,
    /// The name that it has until it takes the place of another one.
    coming: &'p CStr,
    /// The directory's own path, where that is to go as well.
    own: Option<&'p CStr>,
}

/// What came of a look at the messages.
enum JanitorMessage {
    Marked(SocketFileId),
    Device(OwnedFd),
    Nothing,
    End,
}

impl SocketFileId {
    const LEN: usize = 32;

    /// Returns the id of the file at `path`.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(stat(path)?))
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        let Self { device, inode, modified: [seconds, nanoseconds] } = self;
        bytemuck::cast([device, inode, seconds.cast_unsigned(), nanoseconds.cast_unsigned()])
    }

    fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [device, inode, seconds, nanoseconds]: [u64; 4] = bytemuck::cast(bytes);
        Self { device, inode, modified: [seconds.cast_signed(), nanoseconds.cast_signed()] }
    }
}

impl From<libc::stat> for SocketFileId {
    fn from(found: libc::stat) -> Self {
        #[allow(
            clippy::useless_conversion,
            clippy::unnecessary_cast,
            reason = "their types differ by processor"
        )]
        let modified = [found.st_mtime as i64, found.st_mtime_nsec as i64];
        Self { device: found.st_dev, inode: found.st_ino, modified }
    }
}

impl SocketJanitor {
    /// Starts the janitor of the socket that is about to be made in `directory`, first under the
    /// name `coming`. The directory itself goes as well if it `is_private`.
    pub(crate) fn start(
        directory: &Path,
        socket: &CStr,
        coming: &CStr,
        is_private: bool,
    ) -> io::Result<Self> {
        // Opened anew: this is not the lock.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let handle = open(directory, flags, Mode::empty())?;
        let own = std::path::absolute(directory)?.into_os_string().into_encoded_bytes();
        let own = if is_private { CString::new(own).ok() } else { None };
        let flags = SockFlag::SOCK_CLOEXEC;
        let (news, tell) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        setsockopt(&tell, SendTimeout, &TimeVal::seconds(HEARING_S))?;
        let mut awaited = Vec::with_capacity(MAX_AWAITED);
        let place = SocketPlace { directory: handle.as_fd(), socket, coming, own: own.as_deref() };
        let mut wait_and_sweep = || place.keep(news.as_fd(), &mut awaited);
        Janitor::spawn(&mut wait_and_sweep, [handle.as_fd(), news.as_fd()], tell).map(Self)
    }

    /// Tells which file is the socket.
    pub(crate) fn mark(&self, mark: SocketFileId) {
        self.tell(&mark.to_bytes(), &[]);
    }

    /// Tells of a process that waits at the socket when the coordinator is dead.
    pub(crate) fn watch(&self, process: BorrowedFd<'_>) {
        self.tell(&[0], &[ControlMessage::ScmRights(&[process.as_raw_fd()])]);
    }

    /// Sends one message. A janitor that is gone, or is stopped, does not receive it.
    fn tell(&self, bytes: &[u8], ancillary: &[ControlMessage<'_>]) {
        let flags = MsgFlags::MSG_NOSIGNAL;
        let tell = self.0.hold().as_raw_fd();
        while sendmsg::<UnixAddr>(tell, &[IoSlice::new(bytes)], ancillary, flags, None) == Err(Errno::EINTR) {
        }
    }
}

impl SocketPlace<'_> {
    /// Runs the janitor to its end. `awaited` has room for all processes that it is told of.
    fn keep(&self, news: BorrowedFd<'_>, awaited: &mut Vec<OwnedFd>) {
        let mut mark = None;
        loop {
            wait(Some(news), awaited, PollTimeout::NONE);
            match hear(news) {
                JanitorMessage::Marked(told) => mark = Some(told),
                JanitorMessage::Device(process) if awaited.len() < MAX_AWAITED => awaited.push(process),
                JanitorMessage::Device(_) | JanitorMessage::Nothing => {}
                JanitorMessage::End => break,
            }
        }
        while !awaited.is_empty() {
            if !self.is_there(self.socket, mark) {
                // Another coordinator has it, or it was removed.
                return;
            }
            wait(None, awaited, LOOK_MS.into());
        }
        self.sweep(mark);
    }

    /// Returns whether the file of this name is the one of the id.
    fn is_there(&self, name: &CStr, mark: Option<SocketFileId>) -> bool {
        let found = fstatat(self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(SocketFileId::from).ok();
        found.is_some() && found == mark
    }

    fn sweep(&self, mark: Option<SocketFileId>) {
        for _ in 0..TRIES {
            if lock(self.directory) {
                // No coordinator begins meanwhile. The file may be gone.
                let _ = unlinkat(self.directory, self.coming, UnlinkatFlags::NoRemoveDir);
                if self.is_there(self.socket, mark) {
                    let _ = unlinkat(self.directory, self.socket, UnlinkatFlags::NoRemoveDir);
                }
                if let Some(own) = self.own {
                    let _ = unlinkat(self.directory, own, UnlinkatFlags::RemoveDir);
                }
                return;
            }
            if !self.is_there(self.socket, mark) {
                // A coordinator that begins here removes the rest.
                return;
            }
            wait(None, &mut Vec::new(), LOOK_MS.into());
        }
    }
}

/// Waits for `news`, or for a process to end, at most as long as `timeout` says. Lets go of
/// processes that have ended.
fn wait(news: Option<BorrowedFd<'_>>, awaited: &mut Vec<OwnedFd>, timeout: PollTimeout) {
    let all = awaited.iter().map(AsFd::as_fd).chain(news);
    let mut polled: ArrayVec<_, MAX_POLLED> = all.map(|it| PollFd::new(it, PollFlags::POLLIN)).collect();
    if !poll(&mut polled, timeout).is_ok_and(|count| count > 0) {
        return;
    }
    let ended: ArrayVec<bool, MAX_POLLED> = polled.iter().map(|it| it.any() != Some(false)).collect();
    drop(polled);
    let mut ended = ended.into_iter();
    awaited.retain(|_| ended.next() == Some(false));
}

/// Takes a message, if one has come.
fn hear(news: BorrowedFd<'_>) -> JanitorMessage {
    let (mut bytes, mut process) = ([0_u8; SocketFileId::LEN], None);
    let heard = receive_with(news, &mut bytes, |beside| {
        if let Ancillary::Descriptor(descriptor) = beside {
            process = Some(descriptor);
        }
    });
    match heard {
        Ok((0, _)) => JanitorMessage::End,
        Ok((SocketFileId::LEN, _)) => JanitorMessage::Marked(SocketFileId::from_bytes(bytes)),
        Ok(_) => process.map_or(JanitorMessage::Nothing, JanitorMessage::Device),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
            JanitorMessage::Nothing
        }
        Err(_) => JanitorMessage::End,
    }
}

/// Locks the directory until the process ends, if no other process has it locked.
fn lock(directory: BorrowedFd<'_>) -> bool {
    flock(directory, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, remove_dir, remove_dir_all, write};
    use std::path::PathBuf;
    use std::process::{Child, Command};

    use nix::unistd::{Pid, pipe};

    use super::*;
    use crate::shm::system::pidfd_open;
    use crate::testing::wait_until;

    /// A coordinator with a device, as the janitor sees them.
    struct Bench {
        directory: PathBuf,
        janitor: SocketJanitor,
        device: Child,
    }

    impl Bench {
        fn new(name: &str, is_private: bool) -> Self {
            let directory =
                std::env::temp_dir().join(format!("shmccl-janitor-{name}-{}", std::process::id()));
            create_dir(&directory).unwrap();
            let janitor = SocketJanitor::start(&directory, c"socket", c"coming", is_private).unwrap();
            write(directory.join("socket"), "").unwrap();
            janitor.mark(SocketFileId::of(&directory.join("socket")).unwrap());
            let device = Command::new("sleep").arg("1000").spawn().unwrap();
            janitor.watch(pidfd_open(Pid::from_raw(device.id().cast_signed())).unwrap().as_fd());
            Self { directory, janitor, device }
        }

        /// The coordinator is killed.
        fn kill(&mut self) {
            write(self.directory.join("coming"), "").unwrap();
            self.janitor.0.hold = pipe().unwrap().1;
        }

        fn has(&self, name: &str) -> bool {
            self.directory.join(name).exists()
        }

        fn has_janitor(&self) -> bool {
            let process = self.janitor.0.process.as_fd();
            poll(&mut [PollFd::new(process, PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            let _ = self.device.kill();
            let _ = self.device.wait();
            let _ = remove_dir_all(&self.directory);
        }
    }

    #[test]
    fn a_socket_stays_until_the_coordinator_and_its_devices_are_dead_and_a_private_directory_goes_with_it() {
        for (is_private, name) in [(false, "waits"), (true, "waits-private")] {
            let mut bench = Bench::new(name, is_private);
            bench.kill();
            // It looks at the socket meanwhile.
            std::thread::park_timeout(std::time::Duration::from_millis(250));
            assert!(bench.has("socket") && bench.has_janitor());
            bench.device.kill().unwrap();
            wait_until("the janitor has ended", || !bench.has_janitor());
            assert_eq!((bench.has("socket"), bench.has("coming")), (false, false));
            assert_eq!(remove_dir(&bench.directory).is_ok(), !is_private);
        }
    }

    #[test]
    fn the_socket_of_another_coordinator_is_left_alone_and_not_waited_at() {
        let mut bench = Bench::new("replaced", true);
        let other = bench.directory.join("other");
        write(&other, "").unwrap();
        std::fs::rename(other, bench.directory.join("socket")).unwrap();
        bench.kill();
        wait_until("the janitor has ended", || !bench.has_janitor());
        assert!(bench.has("socket") && bench.device.try_wait().unwrap().is_none());
    }

    #[test]
    fn who_has_locked_the_directory_is_waited_for_while_the_socket_is_what_it_was() {
        let mut bench = Bench::new("locked", false);
        let directory = std::fs::File::open(&bench.directory).unwrap();
        assert!(lock(directory.as_fd()));
        bench.device.kill().unwrap();
        bench.kill();
        std::thread::park_timeout(std::time::Duration::from_millis(250));
        assert!(bench.has("socket") && bench.has("coming") && bench.has_janitor());
        drop(directory);
        wait_until("the janitor has ended", || !bench.has_janitor());
        assert!(!bench.has("socket") && !bench.has("coming"));
    }
}
