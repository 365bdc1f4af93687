//! Events of a supervised job, and what its processes print.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

#[cfg(doc)]
use super::Launch;
use crate::bootstrap::call_error;
use crate::error::{DeviceName, Error, ExitCause, Result};

/// Receives the events of a job. Its methods run on the supervising thread, which goes on when they
/// return. A closure over the name of a lost member is an observer too.
pub trait Observer {
    /// Reports that a member was lost: it died, failed, hung up or broke the protocol. It is called
    /// once for each member, at once. This is the place to revoke the epoch in the control segment.
    fn on_loss(&mut self, device: DeviceName);

    /// Reports that a member hangs, after [`Observer::on_loss`]. It was silent for that long, and
    /// `is_killed` at once or left as it is. Only with [`Launch::detect_hangs`].
    fn on_hang(&mut self, device: DeviceName, silent: Duration, is_killed: bool) {
        let _ = (device, silent, is_killed);
    }

    /// Reports that a signal, which was passed on, or [`Observer::wants_end`] stops the launcher.
    fn on_interrupt(&mut self) {}

    /// Reports that a rank that ended by `cause` was restarted, and how many restarts are `left`.
    fn on_restart(&mut self, device: DeviceName, cause: ExitCause, left: u32) {
        let _ = (device, cause, left);
    }

    /// Reports that a rank was to be restarted and the system has refused it. The rank is lost.
    fn on_restart_failed(&mut self, device: DeviceName, error: &Error) {
        let _ = (device, error);
    }

    /// Reports a SIGQUIT, which asks what the job is doing; only with [`Launch::heed_quit`].
    fn on_quit(&mut self) {}

    /// Reports how long after the launch all members are ready.
    fn on_ready(&mut self, after: Duration) {
        let _ = after;
    }

    /// Reports that the name of a segment was removed from `/dev/shm`, left by the killed process
    /// `creator` of an earlier job. It is called before anything is started.
    fn on_stale_name(&mut self, name: &str, creator: u64) {
        let _ = (name, creator);
    }

    /// Hands over a line that a process has printed; only with [`Launch::capture_output`].
    ///
    /// A job is supervised only when this has returned: an observer that hands lines on to a reader
    /// does that in a thread of its own, and says so by [`Observer::backlog`].
    fn on_output(&mut self, line: OutputLine<'_>) {
        let _ = line;
    }

    /// Returns how far the observer is with the lines that it was handed. While there is a backlog
    /// it is asked again, and about its wish to end the job, within milliseconds.
    fn backlog(&self) -> OutputBacklog {
        OutputBacklog::None
    }

    /// Returns whether the job is to end. It is asked after every event until the job is
    /// interrupted. `true` ends the job like a SIGTERM to the launcher, also where that signal is
    /// ignored.
    fn wants_end(&mut self) -> bool {
        false
    }
}

impl<F: FnMut(DeviceName)> Observer for F {
    fn on_loss(&mut self, device: DeviceName) {
        self(device);
    }
}

/// How far an observer is with the lines that it was handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputBacklog {
    /// It is done with all of them.
    None,
    /// It is not done, and takes more.
    Some,
    /// It is not done, and takes no more: the processes wait until it does, once their pipes are
    /// full.
    Full,
}

/// A line that is longer is handed on in parts.
const MAX_LINE: usize = 16 << 20;

/// How much is read at a time.
const READ_LEN: usize = 64 << 10;

/// An output of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// The standard output of the process.
    Stdout,
    /// The standard error of the process.
    Stderr,
}

/// A line that a process has printed.
#[derive(Clone, Copy, Debug)]
pub struct OutputLine<'a> {
    /// The process.
    pub device: DeviceName,
    /// The output.
    pub stream: OutputStream,
    /// The text, without the line feed.
    pub text: &'a [u8],
}

impl OutputLine<'_> {
    /// Writes the line behind the name of its process: `[rank 3] text`.
    ///
    /// # Errors
    /// Whatever `writer` returns.
    pub fn write_prefixed(&self, writer: &mut impl std::io::Write) -> std::io::Result<()> {
        let mut line = match self.device {
            DeviceName::Rank(rank) => format!("[rank {rank}] ").into_bytes(),
            DeviceName::Proxy => b"[proxy] ".to_vec(),
        };
        line.extend_from_slice(self.text);
        line.push(b'\n');
        writer.write_all(&line)
    }
}

/// The launcher's end of one output.
#[derive(Debug)]
pub(super) struct OutputPipe {
    device: DeviceName,
    stream: OutputStream,
    pipe: Option<OwnedFd>,
    partial: Vec<u8>,
}

impl OutputPipe {
    pub(super) fn new(device: DeviceName, stream: OutputStream, pipe: OwnedFd) -> Result<Self> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|errno| call_error("preparing an output pipe", "the system call fcntl", errno))?;
        Ok(Self { device, stream, pipe: Some(pipe), partial: Vec::new() })
    }

    /// Returns the pipe, until its end was read.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads once and hands on what lines there are. Returns whether there may be more at once.
    pub(super) fn read(&mut self, take: &mut dyn FnMut(OutputLine<'_>)) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let before = self.partial.len();
        self.partial.resize(before + READ_LEN, 0);
        let got = nix::unistd::read(pipe, &mut self.partial[before..]);
        self.partial.truncate(before + got.unwrap_or(0));
        self.hand_on_lines(before, take);
        match got {
            Ok(0) => self.finish(take),
            Ok(_) | Err(Errno::EINTR) => return true,
            Err(Errno::EAGAIN) => {}
            Err(_) => self.finish(take),
        }
        false
    }

    /// Hands on what is left of an unfinished line and closes the pipe.
    pub(super) fn finish(&mut self, take: &mut dyn FnMut(OutputLine<'_>)) {
        self.pipe = None;
        if !self.partial.is_empty() {
            let text = std::mem::take(&mut self.partial);
            take(OutputLine { device: self.device, stream: self.stream, text: &text });
        }
    }

    /// Hands on all lines that have an end, which the first `without_end` bytes have not.
    fn hand_on_lines(&mut self, mut without_end: usize, take: &mut dyn FnMut(OutputLine<'_>)) {
        let mut hand_on = |text| take(OutputLine { device: self.device, stream: self.stream, text });
        let mut rest = self.partial.as_slice();
        while let Some(end) = rest[without_end..].iter().position(|&byte| byte == b'\n') {
            hand_on(&rest[..without_end + end]);
            rest = &rest[without_end + end + 1..];
            without_end = 0;
        }
        if rest.len() > MAX_LINE {
            hand_on(rest);
            rest = &[];
        }
        let done = self.partial.len() - rest.len();
        self.partial.drain(..done);
    }
}
