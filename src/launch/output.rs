//! What the processes print, by lines.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::error::{DeviceName, Error, Result};

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
