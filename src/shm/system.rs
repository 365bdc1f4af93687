//! System calls for which neither the standard library nor `nix` offers a safe form that owns what
//! it returns: descriptors received over a socket, a descriptor inherited by number, process
//! descriptors, signal handlers. And the process that created a segment: which one it is, and
//! whether it is still there.
//!
//! Each function returns owned descriptors with `CLOEXEC` set, so that none is lost on any error
//! path and none travels into a child that was not meant to have it.
#![allow(unsafe_code, reason = "src/shm is where the crate keeps its unsafe code")]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::thread::{self, ThreadId};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{MsgFlags, getsockopt, recvmsg};
use nix::unistd::{Pid, pipe2};
use rustix::process::{self, PidfdFlags};

use super::{limits, to_usize};
use crate::error::Error;
use crate::shm::undivided::ForkMutex;
use crate::sync::header::Creator;

/// The most descriptors that the kernel lets one message carry (`SCM_MAX_FD`).
const MAX_DESCRIPTORS: usize = 253;

/// Bytes of the head of a control message (`struct cmsghdr`): length with head, level and kind.
const CONTROL_HEAD: usize = size_of::<libc::cmsghdr>();

const _: () = assert!(CONTROL_HEAD == 16);

/// Words of ancillary data: a full descriptor array and one set of credentials, with their headers.
const ANCILLARY_WORDS: usize = (MAX_DESCRIPTORS * size_of::<RawFd>() + 2 * 32 + 12) / 8 + 1;

/// One message taken from a socket.
#[derive(Debug)]
pub(crate) struct ReceivedMessage {
    /// Bytes written to the buffer; zero when the peer hung up.
    pub(crate) len: usize,
    /// The descriptors that came along.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The kernel dropped bytes or descriptors: the message was too long or this process may open
    /// no more files.
    pub(crate) truncated: bool,
    /// Process and user id of the sender, when the socket asks for them (`SO_PASSCRED`).
    pub(crate) sender: Option<(i32, u32)>,
}

/// What comes beside the bytes of a message.
pub(crate) enum Ancillary {
    Descriptor(OwnedFd),
    /// Process and user id of the sender.
    Sender(i32, u32),
}

/// Takes one message from `socket` without blocking.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<ReceivedMessage> {
    let (mut descriptors, mut sender) = (Vec::new(), None);
    let (len, truncated) = receive_with(socket, buffer, |beside| match beside {
        Ancillary::Descriptor(descriptor) => descriptors.push(descriptor),
        Ancillary::Sender(process, user) => sender = Some((process, user)),
    })?;
    Ok(ReceivedMessage { len, descriptors, truncated, sender })
}

/// Takes one message like [`receive`], and hands its ancillary data to `visit`. Returns how many
/// bytes there are, and whether something was dropped. Allocates nothing.
pub(crate) fn receive_with(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    visit: impl FnMut(Ancillary),
) -> io::Result<(usize, bool)> {
    let mut ancillary = [0_u64; ANCILLARY_WORDS];
    let room = Some(bytemuck::cast_slice_mut(&mut ancillary));
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(buffer)];
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut parts, room, flags)?;
    let (len, flags) = (got.bytes, got.flags);
    take_ancillary(bytemuck::cast_slice(&ancillary), visit);
    Ok((len, flags.intersects(MsgFlags::MSG_CTRUNC | MsgFlags::MSG_TRUNC)))
}

/// Walks the control messages that the kernel has just written from the start of `bytes` on, up to
/// zeros. `nix` tells no descriptors where some were dropped, and owns none. `rustix` takes no
/// sender of another PID namespace, whose number is 0.
fn take_ancillary(mut bytes: &[u8], mut visit: impl FnMut(Ancillary)) {
    while let Some((head, _)) = bytes.split_first_chunk::<CONTROL_HEAD>() {
        let [len, kind]: [u64; 2] = bytemuck::pod_read_unaligned(head);
        let Some(data) = bytes.get(CONTROL_HEAD..to_usize(len)) else { break };
        match bytemuck::cast::<u64, [i32; 2]>(kind) {
            [libc::SOL_SOCKET, libc::SCM_RIGHTS] => {
                for raw in data.as_chunks().0 {
                    // SAFETY: the kernel has opened this number for this process in the call of
                    // `receive_with`, and it is read once.
                    visit(Ancillary::Descriptor(unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes(*raw)) }));
                }
            }
            [libc::SOL_SOCKET, libc::SCM_CREDENTIALS] => {
                if let Some(sender) = data.first_chunk::<12>() {
                    let [process, user, _group]: [u32; 3] = bytemuck::cast(*sender);
                    visit(Ancillary::Sender(process.cast_signed(), user));
                }
            }
            _ => {}
        }
        bytes = bytes.get(to_usize(len).next_multiple_of(size_of::<u64>())..).unwrap_or_default();
    }
}

/// Why there is no inherited socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketRefusal {
    /// This process has taken it before.
    Taken,
    /// The number is closed here, or holds something else; or the parent has taken it and forked.
    NotInherited,
    /// The system does not tell what it is.
    Unknown(Errno),
}

/// Takes possession of the `SOCK_SEQPACKET` socket that the process `launcher` has made and left
/// open for this process as number `raw`. Succeeds at most once per process.
pub(crate) fn inherited_socket(raw: RawFd, launcher: i32) -> Result<OwnedFd, SocketRefusal> {
    static TAKEN_BY: ForkMutex<Option<u32>> = ForkMutex::new(None);
    TAKEN_BY.with(|taken_by| take_socket(raw, launcher, taken_by))
}

fn take_socket(raw: RawFd, launcher: i32, taken_by: &mut Option<u32>) -> Result<OwnedFd, SocketRefusal> {
    let this = std::process::id();
    match *taken_by {
        Some(process) if process == this => return Err(SocketRefusal::Taken),
        Some(_) => return Err(SocketRefusal::NotInherited),
        None => {}
    }
    let mut kind: libc::c_int = 0;
    // The size of `kind`.
    let mut len: libc::socklen_t = 4;
    // SAFETY: `kind` and `len` are live and of the sizes that SO_TYPE asks for; any `raw` is legal
    // here.
    let status = unsafe {
        libc::getsockopt(raw, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut len)
    };
    if status != 0 && limits::is_refusal(Errno::last()) {
        return Err(SocketRefusal::Unknown(Errno::last()));
    }
    if status != 0 || kind != libc::SOCK_SEQPACKET {
        return Err(SocketRefusal::NotInherited);
    }
    // SAFETY: `raw` is open, as the answer above shows, and is borrowed for one question.
    let maker = getsockopt(&unsafe { BorrowedFd::borrow_raw(raw) }, PeerCredentials);
    // A launcher outside of this PID namespace has no number here.
    if !maker.is_ok_and(|maker| maker.pid() == launcher || maker.pid() == 0) {
        return Err(SocketRefusal::NotInherited);
    }
    *taken_by = Some(this);
    // SAFETY: the number was opened before this program started and announced to it alone; nothing
    // in this program has such a socket of the launcher, and `taken_by` lets one caller pass.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|_| SocketRefusal::NotInherited)?;
    Ok(socket)
}

/// Opens a descriptor of process `pid` that becomes readable when it ends.
pub(crate) fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    let pid = process::Pid::from_raw(pid.as_raw()).ok_or(Errno::EINVAL)?;
    process::pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| {
        let (action, needs) = ("watching a process", "the system call pidfd_open (Linux 5.3)");
        limits::refused_call(action, needs, errno.into()).map_or_else(|other| other, io::Error::other)
    })
}

/// Kills the process behind `pidfd`; one that has ended already is not an error.
pub(crate) fn pidfd_kill(pidfd: BorrowedFd<'_>) {
    pidfd_signal(pidfd, Signal::SIGKILL);
}

/// Sends `signal` to the process behind `pidfd`; one that has ended already is not an error.
pub(crate) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: Signal) {
    let signal = process::Signal::from_named_raw(signal as i32);
    let _ = signal.map(|signal| process::pidfd_send_signal(pidfd, signal));
}

/// `struct pidfd_info` of the kernel, as it was at first.
#[repr(C)]
#[derive(Debug, Default)]
struct PidfdInfo {
    mask: u64,
    control_group: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// The bit of its mask that asks how a process has ended, and says that this is told.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `PIDFD_GET_INFO`: `_IOWR(0xFF, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: libc::Ioctl = 0xC040_FF0B_u32 as libc::Ioctl;

const _: () = assert!(size_of::<PidfdInfo>() == 64);

/// Returns how the process behind `pidfd` has ended, also where it is no child of this one; `None`
/// until its parent has waited for it.
///
/// # Errors
/// The system's: before Linux 6.15 only the parent can ask.
pub(crate) fn pidfd_exit(pidfd: BorrowedFd<'_>) -> io::Result<Option<ExitStatus>> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the request names the size of `info`, which is the kernel's to write as long as the
    // call lasts.
    let done = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    match done {
        0 => Ok((info.mask & PIDFD_INFO_EXIT != 0).then(|| ExitStatus::from_raw(info.exit_code))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A request to end that reached this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupt {
    /// The signal's number.
    pub(crate) signal: Signal,
    /// It came from the terminal, which sends it to the whole foreground process group.
    pub(crate) from_terminal: bool,
}

/// The pipe from the handler to the watch. Opened once and kept for the life of the process,
/// because a handler may still be running on some thread after it was uninstalled.
static INTERRUPTS: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();

/// Whether an [`InterruptWatch`] is alive.
static WATCHED: ForkMutex<bool> = ForkMutex::new(false);

/// Turns SIGINT, SIGTERM and SIGHUP, and SIGQUIT where it was asked for, into readiness of a
/// descriptor while it lives.
///
/// Handlers, unlike a blocked mask, work whatever other threads do, and are not inherited by
/// programs that are started meanwhile. A signal that the process ignores stays ignored, so that
/// the terminal does not end what a shell has started in the background. SIGQUIT is the exception,
/// as it ends nothing here. The signals are unblocked in the thread that has started the watch, and
/// blocked again there at its end.
#[derive(Debug)]
pub(crate) struct InterruptWatch {
    previous: Vec<(Signal, SigAction)>,
    /// The signals that were blocked in this thread.
    blocked: (ThreadId, SigSet),
}

impl InterruptWatch {
    /// Installs the handlers, or gives `None` when another watch of this process is alive.
    pub(crate) fn start(heeds_quit: bool) -> Result<Option<Self>, Error> {
        let (action, needs) = ("catching signals", "the system call pipe2 (or rt_sigaction)");
        Self::install(heeds_quit).map_err(|error| {
            limits::refused_call(action, needs, error).unwrap_or_else(|error| Error::os(action, error))
        })
    }

    fn install(heeds_quit: bool) -> io::Result<Option<Self>> {
        let is_first = WATCHED.with(|watched| {
            if !*watched && INTERRUPTS.get().is_none() {
                let ends = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
                INTERRUPTS.set(ends).unwrap_or_else(|_| unreachable!("WATCHED is held"));
            }
            io::Result::Ok(!std::mem::replace(watched, true))
        })?;
        if !is_first {
            return Ok(None);
        }
        let handler = SigHandler::SigAction(note_interrupt);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        let mut watch = Self { previous: Vec::new(), blocked: (thread::current().id(), SigSet::empty()) };
        // An interrupt of an earlier watch is not this one's. All that come from here on are.
        while watch.next().is_some() {}
        let quit = heeds_quit.then_some(Signal::SIGQUIT);
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().chain(quit) {
            // SAFETY: `note_interrupt` does only what is allowed in a signal handler.
            let previous = unsafe { sigaction(signal, &action) }?;
            watch.previous.push((signal, previous));
            if matches!(previous.handler(), SigHandler::SigIgn) && signal != Signal::SIGQUIT {
                watch.restore_last();
            }
            if SigSet::thread_get_mask()?.contains(signal) {
                watch.blocked.1.add(signal);
            }
        }
        watch.blocked.1.thread_unblock()?;
        Ok(Some(watch))
    }

    /// Returns the descriptor that is readable while interrupts are pending.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        INTERRUPTS.get().expect("opened in start").0.as_fd()
    }

    /// Takes one interrupt.
    pub(crate) fn next(&mut self) -> Option<Interrupt> {
        let mut record = [0_u8; 2];
        match nix::unistd::read(self.descriptor(), &mut record) {
            Ok(2) => Some(Interrupt {
                signal: Signal::try_from(i32::from(record[0])).ok()?,
                from_terminal: record[1] != 0,
            }),
            _ => None,
        }
    }

    fn restore_last(&mut self) {
        if let Some((signal, previous)) = self.previous.pop() {
            // SAFETY: puts back what `sigaction` returned in `start`.
            let _ = unsafe { sigaction(signal, &previous) };
        }
    }
}

impl Drop for InterruptWatch {
    fn drop(&mut self) {
        let (thread, blocked) = &self.blocked;
        if *thread == thread::current().id() {
            let _ = blocked.thread_block();
        }
        while !self.previous.is_empty() {
            self.restore_last();
        }
        WATCHED.with(|watched| *watched = false);
    }
}

/// Returns the user whose process this is. Where a sandbox refuses to tell, it is the owner of the
/// process in `/proc`.
pub(crate) fn user() -> u32 {
    let told = nix::unistd::getuid().as_raw();
    // No user has such a number: it is the error of a call that does not fail otherwise.
    let is_error = told > u32::MAX - 4096;
    std::fs::metadata("/proc/self").ok().filter(|_| is_error).map_or(told, |process| process.uid())
}

/// Has `command` start with no signal blocked, whatever this thread blocks.
pub(crate) fn unblock_all_in(command: &mut Command) {
    if SigSet::thread_get_mask().is_ok_and(|mask| mask != SigSet::empty()) {
        // SAFETY: between fork and exec it makes one system call, and touches no memory of others.
        unsafe { command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?)) };
    }
}

/// Has `write` return an error where it would write past `ulimit -f`, and the system would end this
/// process by SIGXFSZ.
///
/// # Errors
/// Fails as `write` does.
pub(crate) fn within_file_size<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let signal = SigSet::from(Signal::SIGXFSZ);
    // Where a sandbox refuses it, there is nothing to put back.
    let before = signal.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap_or_else(|_| SigSet::all());
    let written = write();
    if !before.contains(Signal::SIGXFSZ) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are live; nobody wants to know more of the signal.
        unsafe { libc::sigtimedwait(signal.as_ref(), std::ptr::null_mut(), &raw const at_once) };
        let _ = before.thread_set_mask();
    }
    written
}

/// Has the system keep ended children until they are waited for, while it lives. A process that
/// ignores SIGCHLD, as its starter may have, would never learn how they have ended.
#[derive(Debug)]
pub(crate) struct KeptChildren(());

/// How many [`KeptChildren`] there are, and what the first one has replaced.
static KEPT_CHILDREN: ForkMutex<(usize, Option<libc::sigaction>)> = ForkMutex::new((0, None));

impl KeptChildren {
    pub(crate) fn start() -> Self {
        KEPT_CHILDREN.with(|(count, before)| {
            *count += 1;
            if *count == 1 {
                *before = action_of_sigchld(None)
                    .filter(|it| it.sa_sigaction == libc::SIG_IGN || it.sa_flags & libc::SA_NOCLDWAIT != 0);
                if let Some(mut action) = *before {
                    action.sa_flags &= !libc::SA_NOCLDWAIT;
                    if action.sa_sigaction == libc::SIG_IGN {
                        action.sa_sigaction = libc::SIG_DFL;
                    }
                    action_of_sigchld(Some(&action));
                }
            }
        });
        Self(())
    }
}

impl Drop for KeptChildren {
    fn drop(&mut self) {
        KEPT_CHILDREN.with(|(count, before)| {
            *count -= 1;
            if *count == 0 {
                before.take().and_then(|before| action_of_sigchld(Some(&before)));
            }
        });
    }
}

/// Returns what the process does at SIGCHLD, and has it do something else from now on: nothing that
/// it did not do before but for flags, or the default.
fn action_of_sigchld(next: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    let mut before = libc::sigaction::from(default);
    let next = next.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both pointers are null or live for the call; a handler in `next` was the program's
    // own before.
    let status = unsafe { libc::sigaction(libc::SIGCHLD, next, &raw mut before) };
    (status == 0).then_some(before)
}

/// Has this process, and the program that takes its place, ignore SIGQUIT, which a terminal sends
/// to all processes of a job.
pub(crate) fn ignore_quit() {
    // SAFETY: no handler is installed. It cannot fail with a valid signal.
    let _ = unsafe { nix::sys::signal::signal(Signal::SIGQUIT, SigHandler::SigIgn) };
}

/// Handles a signal: writes two bytes to a pipe and leaves `errno` as it was.
extern "C" fn note_interrupt(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let before = Errno::last_raw();
    // SAFETY: the handler is installed with SA_SIGINFO, so the kernel passes a valid `info`.
    let code = unsafe { (*info).si_code };
    let record = [u8::try_from(signal).unwrap_or(0), u8::from(code > 0)];
    if let Some((_, write_end)) = INTERRUPTS.get() {
        // A pipe write that small is atomic and async-signal-safe.
        let _ = nix::unistd::write(write_end, &record);
    }
    Errno::set_raw(before);
}

impl Creator {
    /// Returns this process.
    #[must_use]
    pub fn this_process() -> Self {
        let pid = u64::from(std::process::id());
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self { pid, start: start_time(&stat).unwrap_or(0), namespace: namespace("pid") }
    }

    /// Returns the number of that process, unless it means another process here, or none. A
    /// process of another PID namespace has no number that is known here.
    #[must_use]
    pub fn pid_here(&self) -> Option<u64> {
        self.pid_in(namespace("pid"))
    }

    /// Returns the number of that process in the PID namespace `here`, unless that is known to be
    /// another one.
    fn pid_in(&self, here: u64) -> Option<u64> {
        may_be_one_namespace(self.namespace, here).then_some(self.pid)
    }

    /// Returns whether that process is known to have ended. Where this process cannot tell its own
    /// namespace, that of a creator which could may be another.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.is_known_dead_in(namespace("pid"))
    }

    fn is_known_dead_in(&self, here: u64) -> bool {
        (self.namespace == 0 || self.namespace == here) && !self.is_there()
    }

    /// Returns whether that process is seen to be there. An entry that waits for the parent to ask
    /// does not count. A process without a known start time is taken to be there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.pid_here().is_some() && self.is_there()
    }

    fn is_there(&self) -> bool {
        match stat_of(self.pid) {
            Some(stat) if has_ended(&stat) => false,
            Some(stat) => self.start == 0 || start_time(&stat).is_none_or(|start| start == self.start),
            None => is_numbered(self.pid),
        }
    }
}

/// Returns whether the process of that number has ended, be it waited for or not. One of which the
/// system says nothing counts as living.
#[cfg(feature = "coordinator")]
pub(crate) fn has_process_ended(pid: u32) -> bool {
    stat_of(pid.into()).map_or_else(|| !is_numbered(pid.into()), |stat| has_ended(&stat))
}

/// Returns `/proc/PID/stat`, where there is such a file, which may be hidden.
fn stat_of(pid: u64) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// Returns whether some process has that number, also where `/proc` does not show it.
pub(crate) fn is_numbered(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    pid.is_some_and(|pid| nix::sys::signal::kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
}

/// Returns the number of this process's namespace of a `kind`; 0 where the system does not tell.
pub(crate) fn namespace(kind: &str) -> u64 {
    std::fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |namespace| namespace.ino())
}

/// Returns whether two numbers that [`namespace`] has returned may be of one namespace: what a
/// process could not find out is no difference.
pub(crate) fn may_be_one_namespace(one: u64, other: u64) -> bool {
    one == 0 || other == 0 || one == other
}

/// Returns field 22 of `/proc/PID/stat`.
pub(crate) fn start_time(stat: &str) -> Option<u64> {
    fields_after_name(stat)?.nth(19)?.parse().ok()
}

/// Returns whether `/proc/PID/stat` is that of a process that has ended, by its third field, which
/// tells of the first thread, and its 20th, which counts the threads.
pub(crate) fn has_ended(stat: &str) -> bool {
    let threads = fields_after_name(stat).and_then(|mut fields| fields.nth(17)?.parse::<u64>().ok());
    matches!(state_of_process(stat), Some("Z" | "X")) && threads.is_none_or(|threads| threads <= 1)
}

/// Returns field 3 of `/proc/PID/stat`: a letter for what the process does.
pub(crate) fn state_of_process(stat: &str) -> Option<&str> {
    fields_after_name(stat)?.next()
}

/// Returns what follows the second field of `/proc/PID/stat`: a name in parentheses that may itself
/// hold anything.
fn fields_after_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat[stat.rfind(')')? + 1..].split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_its_successor_by_its_start_time() {
        let me = Creator::this_process();
        assert!(me.start > 0);
        assert!(me.is_alive());
        assert!(!Creator { start: me.start + 1, ..me }.is_alive());
        let dead = Creator { pid: u64::from(u32::MAX), start: 1, ..me };
        assert!(!dead.is_alive() && dead.is_dead() && !me.is_dead());
    }

    #[test]
    fn of_a_process_of_another_pid_namespace_nothing_is_known() {
        let me = Creator::this_process();
        let elsewhere = Creator { namespace: me.namespace + 1, ..me };
        assert_eq!((elsewhere.pid_here(), elsewhere.is_alive(), elsewhere.is_dead()), (None, false, false));
        let of_old = Creator { namespace: 0, ..me };
        assert_eq!((of_old.pid_here(), of_old.is_alive()), (Some(me.pid), true));
    }

    #[test]
    fn a_namespace_that_a_process_cannot_find_out_is_no_other_one() {
        let me = Creator::this_process();
        assert_eq!((me.pid_in(0), me.pid_in(me.namespace + 1)), (Some(me.pid), None));
        let one_is = |one, other| may_be_one_namespace(one, other);
        assert_eq!(
            [one_is(0, 7), one_is(7, 0), one_is(0, 0), one_is(7, 7), one_is(7, 8)],
            [true, true, true, true, false]
        );
        // Nor does it prove that anybody is dead.
        let dead = Creator { pid: u64::from(u32::MAX), ..me };
        assert_eq!((dead.is_known_dead_in(me.namespace), dead.is_known_dead_in(0)), (true, false));
    }

    #[test]
    fn a_process_that_proc_does_not_show_is_there_while_its_number_is() {
        assert!(is_numbered(std::process::id().into()) && is_numbered(1));
        assert!(!is_numbered(u64::from(u32::MAX)) && !is_numbered(0) && !is_numbered(u64::MAX));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!is_numbered(child.id().into()));
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_yet_is_not_alive() {
        assert!(has_ended("7 (a) Z) Z 1 7 7 0") && has_ended("7 (sh) X 1"));
        assert!(!has_ended("7 (Z) S 1 7 7 0") && !has_ended(""));
        // Its first thread has ended before others.
        let zombie = |threads| format!("7 (a) Z {}{threads} 0 99 0", "0 ".repeat(16));
        assert!(has_ended(&zombie(1)) && !has_ended(&zombie(2)));
        let mut child =
            std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn().unwrap();
        // Its end of the pipe is closed as it ends, a moment before.
        std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
        let entry = Creator { pid: child.id().into(), ..Creator::default() };
        crate::testing::wait_until("it has ended", || !entry.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_time(stat), Some(4242));
        assert_eq!(start_time("12 (a"), None);
        assert_eq!(start_time(""), None);
    }
}
