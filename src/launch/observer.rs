//! Who is told what happens to a job while it is supervised.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

#[cfg(doc)]
use super::Launch;
use crate::error::{DeviceName, Error, ExitCause, Result};

/// Who is told what happens to a job. Its methods are called from the thread that supervises, which goes on when they
/// return. A closure over the name of a lost member is an observer too.
pub trait Observer {
    /// A member was lost: it died, failed, hung up or broke the protocol. Called once for each, at once; the place to
    /// revoke the epoch in the control segment.
    fn on_loss(&mut self, device: DeviceName);

    /// A member hangs: it has not beaten for so long, and was taken for lost; it `is_killed` at once, or left as it is. Only with
    /// [`Launch::detect_hangs`], and after [`Observer::on_loss`].
    fn on_hang(&mut self, device: DeviceName, silent: Duration, is_killed: bool) {
        let _ = (device, silent, is_killed);
    }

    /// The launcher was told to stop by a signal, which it has passed on, or by [`Observer::wants_end`].
    fn on_interrupt(&mut self) {}

    /// A rank that had ended so has been started again in its place; that can be done so many times more.
    fn on_restart(&mut self, device: DeviceName, cause: ExitCause, left: u32) {
        let _ = (device, cause, left);
    }

    /// The launcher was asked by SIGQUIT what the job is doing; only with [`Launch::heed_quit`].
    fn on_quit(&mut self) {}

    /// All members are ready, so long after the launch began.
    fn on_ready(&mut self, after: Duration) {
        let _ = after;
    }

    /// The name of a segment was removed from `/dev/shm`: the process `creator` of an earlier job was killed and has left it.
    /// Called before anything is started.
    fn on_stale_name(&mut self, name: &str, creator: u64) {
        let _ = (name, creator);
    }

    /// A process has printed a line; only with [`Launch::capture_output`].
    fn on_output(&mut self, line: OutputLine<'_>) {
        let _ = line;
    }

    /// Whether the job is to end. Asked whenever something has happened, until the job is interrupted; at a yes it ends as if the
    /// launcher had been sent a SIGTERM, also where that signal is ignored.
    fn wants_end(&mut self) -> bool {
        false
    }
}

impl<F: FnMut(DeviceName)> Observer for F {
    fn on_loss(&mut self, device: DeviceName) {
        self(device);
    }
}

/// A line that is longer is handed on in parts.
const MAX_LINE: usize = 64 << 10;

/// Which of a process's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputStream {
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
}

/// A line that a process has printed.
#[derive(Clone, Copy, Debug)]
pub struct OutputLine<'a> {
    /// Who.
    pub device: DeviceName,
    /// Where to.
    pub stream: OutputStream,
    /// What, without the line feed.
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
            .map_err(|errno| Error::os("preparing an output pipe", errno))?;
        Ok(Self { device, stream, pipe: Some(pipe), partial: Vec::new() })
    }

    /// The pipe, until its end was read.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads once and hands on what lines there are. Returns whether there may be more at once.
    pub(super) fn read(&mut self, take: &mut dyn FnMut(OutputLine<'_>)) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let before = self.partial.len();
        self.partial.resize(before + MAX_LINE, 0);
        let got = nix::unistd::read(pipe, &mut self.partial[before..]);
        self.partial.truncate(before + got.unwrap_or(0));
        self.hand_on_lines(take);
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

    fn hand_on_lines(&mut self, take: &mut dyn FnMut(OutputLine<'_>)) {
        let mut rest = self.partial.as_slice();
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            take(OutputLine { device: self.device, stream: self.stream, text: &rest[..end] });
            rest = &rest[end + 1..];
        }
        while rest.len() > MAX_LINE {
            let (part, more) = rest.split_at(MAX_LINE);
            take(OutputLine { device: self.device, stream: self.stream, text: part });
            rest = more;
        }
        let done = self.partial.len() - rest.len();
        self.partial.drain(..done);
    }
}
