//! The metrics of a coordinator over HTTP, for a Prometheus on this host. It asks the coordinator as any client does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shmccl::coordinator::{Client, RuntimeDirectory};

/// How long a scraper may take to ask, and the coordinator to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest question that is read.
const MAX_QUESTION: usize = 8 << 10;

/// Answers at `address`, in a thread that ends with the process. Returns where that is.
///
/// # Errors
/// When nothing can listen there.
pub(super) fn serve(address: SocketAddr, directory: RuntimeDirectory) -> Result<SocketAddr> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot serve metrics at {address}"))?;
    let address = listener.local_addr().context("finding the address of the metrics")?;
    let answer_all = move || {
        // A scraper that asks wrongly, or hangs up, concerns nobody else.
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &directory);
        }
    };
    let thread = std::thread::Builder::new().name("shmccl metrics".to_owned()).spawn(answer_all);
    thread.context("cannot start the thread that serves metrics")?;
    Ok(address)
}

fn answer(mut stream: TcpStream, directory: &RuntimeDirectory) -> Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let question = question(&mut stream)?;
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
    stream.write_all((head + &text).as_bytes())?;
    Ok(())
}

/// The head of what is asked, which comes within the time for it, however slowly.
fn question(stream: &mut TcpStream) -> Result<String> {
    let until = Instant::now() + PATIENCE;
    let (mut head, mut piece) = (Vec::new(), [0; 1 << 10]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_QUESTION {
        let left = until.saturating_duration_since(Instant::now());
        // Zero would be no deadline at all.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut piece)? {
            0 => break,
            len => head.extend_from_slice(&piece[..len]),
        }
        anyhow::ensure!(!left.is_zero(), "too slow");
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
