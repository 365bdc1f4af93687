//! The metrics of a coordinator over HTTP, for a Prometheus on this host. They come from the
//! coordinator, as for any client.
//!
//! Any user of this host can connect, so no connection may block the others. One thread reads all
//! requests. Each has a short time; there are few at once, and one more closes the one that has
//! waited longest. Answers are sent one after the other, each within a short time as well.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shmccl::coordinator::{Client, RuntimeDirectory};

/// The longest time in which the coordinator answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest time for a request to arrive.
const ASKING: Duration = Duration::from_secs(2);

/// The longest time to send an answer, before the rest is cut off. The answer grows with the number
/// of communicators and may exceed the buffer of a socket. Other connections wait meanwhile.
const TAKING: Duration = Duration::from_secs(2);

/// The most connections whose request is incomplete.
const MAX_CONNECTIONS: usize = 16;

/// The longest request.
const MAX_QUESTION: usize = 8 << 10;

/// The pause after a failed `accept`: the connection stays in the queue, and the call would fail
/// again at once.
const SHUT: Duration = Duration::from_millis(50);

/// Serves metrics at `address`, in a thread that ends with the process. Returns the actual address.
///
/// # Errors
/// Returns the errors of listening.
pub(super) fn serve(address: SocketAddr, directory: RuntimeDirectory) -> Result<SocketAddr> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot serve metrics at {address}"))?;
    let address = listener.local_addr().context("finding the address of the metrics")?;
    listener.set_nonblocking(true).context("serving metrics")?;
    let answer_all = move || {
        let mut connections = ScrapeConnections::default();
        loop {
            for (question, stream) in connections.next(&listener) {
                // A bad or broken request concerns no other connection.
                let _ = answer(&question, stream, &directory);
            }
        }
    };
    let thread = std::thread::Builder::new().name("shmccl metrics".to_owned()).spawn(answer_all);
    thread.context("cannot start the thread that serves metrics")?;
    Ok(address)
}

fn answer(question: &str, stream: TcpStream, directory: &RuntimeDirectory) -> Result<()> {
    let (status, text) = match question.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["GET", "/metrics"] => match Client::connect(directory, PATIENCE).and_then(|mut it| it.metrics()) {
            Ok(metrics) => ("200 OK", metrics.to_string()),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        ["GET", _] => ("404 Not Found", "expected /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "expected GET\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let len = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    stream.set_nonblocking(false)?;
    give(stream, (head + &text).as_bytes(), Instant::now() + TAKING)?;
    Ok(())
}

/// Sends the whole answer, in as many pieces as needed.
///
/// # Errors
/// Returns the errors of the system, and [`ErrorKind::TimedOut`] if the last byte finds no room
/// before `until`.
fn give(mut stream: TcpStream, mut answer: &[u8], until: Instant) -> io::Result<()> {
    while !answer.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(answer) {
            Ok(len) => answer = &answer[len..],
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connections whose request is incomplete, in the order of their arrival.
#[derive(Debug, Default)]
struct ScrapeConnections {
    all: VecDeque<ScrapeConnection>,
    /// Until when no connection is accepted.
    shut: Option<Instant>,
}

/// A connection, and the part of its request that has arrived.
#[derive(Debug)]
struct ScrapeConnection {
    stream: TcpStream,
    head: Vec<u8>,
    until: Instant,
}

impl ScrapeConnections {
    /// Waits for events, and returns all complete requests.
    fn next(&mut self, listener: &TcpListener) -> Vec<(String, TcpStream)> {
        self.wait(listener);
        let now = Instant::now();
        if self.shut.is_some_and(|until| until <= now) {
            self.shut = None;
        }
        let (mut asked, mut asking) = (Vec::new(), VecDeque::new());
        for mut connection in self.all.drain(..) {
            match connection.listen() {
                Some(question) => asked.push((question, connection.stream)),
                None if connection.until > now => asking.push_back(connection),
                None => {}
            }
        }
        self.all = asking;
        if self.shut.is_none() {
            self.accept(listener, now);
        }
        asked
    }

    /// Waits for a connection, a piece of a request, or the end of a time limit.
    fn wait(&self, listener: &TcpListener) {
        let now = Instant::now();
        let door = if self.shut.is_none() { PollFlags::POLLIN } else { PollFlags::empty() };
        let wakes_at = self.all.iter().map(|connection| connection.until).chain(self.shut).min();
        let streams =
            self.all.iter().map(|connection| PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN));
        let mut watched: Vec<_> = [PollFd::new(listener.as_fd(), door)].into_iter().chain(streams).collect();
        let timeout = wakes_at.map_or(PollTimeout::NONE, |at| {
            // Never too early.
            let wait = at.saturating_duration_since(now) + Duration::from_millis(1);
            PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
        });
        // A failed poll means a look at all of them.
        let _ = poll(&mut watched, timeout);
    }

    fn accept(&mut self, listener: &TcpListener, now: Instant) {
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                if self.all.len() == MAX_CONNECTIONS {
                    self.all.pop_front();
                }
                self.all.push_back(ScrapeConnection { stream, head: Vec::new(), until: now + ASKING });
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.shut = Some(now + SHUT),
        }
    }
}

impl ScrapeConnection {
    /// Returns the head of the request, once it is complete or too long, or the connection has
    /// ended.
    fn listen(&mut self) -> Option<String> {
        let mut piece = [0; MAX_QUESTION];
        let is_over = match self.stream.read(&mut piece) {
            Ok(0) => true,
            Ok(len) => {
                self.head.extend_from_slice(&piece[..len]);
                self.head.windows(4).any(|end| end == b"\r\n\r\n") || self.head.len() >= MAX_QUESTION
            }
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        is_over.then(|| String::from_utf8_lossy(&self.head).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_been_silent_longest_is_hung_up_on_for_one_more_and_others_are_heard() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = ScrapeConnections::default();
        let mut silent: Vec<_> =
            (0..MAX_CONNECTIONS + 3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let last = silent.last().unwrap().local_addr().unwrap();
        while connections.all.back().is_none_or(|connection| connection.stream.peer_addr().unwrap() != last) {
            assert!(connections.next(&listener).is_empty());
            // No connection times out, however slow this machine is.
            connections.all.iter_mut().for_each(|connection| connection.until += Duration::from_secs(3600));
        }
        assert_eq!(connections.all.len(), MAX_CONNECTIONS);
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "it was hung up on");
        let mut scraper = TcpStream::connect(address).unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let asked =
            std::iter::repeat_with(|| connections.next(&listener)).find(|asked| !asked.is_empty()).unwrap();
        assert_eq!((asked.len(), asked[0].0.as_str()), (1, "GET /metrics HTTP/1.1\r\n\r\n"));
        assert_eq!(connections.all.len(), MAX_CONNECTIONS - 1);
    }

    #[test]
    fn who_takes_too_long_is_forgotten() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut connections = ScrapeConnections::default();
        let mut silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        while connections.all.is_empty() {
            connections.next(&listener);
        }
        connections.all[0].until = Instant::now();
        assert!(connections.next(&listener).is_empty() && connections.all.is_empty());
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn an_answer_longer_than_what_a_socket_has_room_for_is_given_whole_unless_nobody_takes_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || {
            let taker = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (taker, listener.accept().unwrap().0)
        };
        let answer: Vec<u8> = (0..64_u32 << 20).map(|index| (index % 251) as u8).collect();
        let (mut taker, stream) = connect();
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| give(stream, &answer, Instant::now() + Duration::from_secs(3600)).unwrap());
            let mut taken = Vec::new();
            taker.read_to_end(&mut taken).unwrap();
            taken
        });
        assert!(taken == answer);
        let (_silent, stream) = connect();
        let error = give(stream, &answer, Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
