//! A stream with a deadline for all that goes over it, however slowly it comes.

use std::io::{ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A stream until a point in time.
#[derive(Debug)]
pub(super) struct DeadlineStream<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl<'a> DeadlineStream<'a> {
    /// Gives everything together `limit` from now on. The deadlines of the stream itself are other ones afterwards.
    pub(super) fn new(stream: &'a UnixStream, limit: Duration) -> Self {
        let now = Instant::now();
        // Whoever may take that long has no deadline that comes.
        let until = now.checked_add(limit).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        Self { stream, until }
    }

    fn left(&self) -> Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_come_one_by_one_do_not_put_the_deadline_off() {
        let (mut slow, stream) = UnixStream::pair().unwrap();
        let drip = std::thread::spawn(move || {
            while slow.write_all(&[0]).is_ok() {
                let pause = crate::bootstrap::poll_timeout(Some(Duration::from_millis(5)));
                nix::poll::poll(&mut [], pause).unwrap();
            }
        });
        let began = Instant::now();
        let error = DeadlineStream::new(&stream, Duration::from_millis(50))
            .read_exact(&mut [0; 1 << 20])
            .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        drop(stream);
        drip.join().unwrap();
    }
}
