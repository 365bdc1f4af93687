//! The page that shows the pool, and the jobs of this user: one document on a loopback port.
//!
//! | request | answer |
//! |---|---|
//! | `GET /TOKEN/` | the page, which needs nothing else from anywhere |
//! | `GET /TOKEN/events` | the picture, and each change of it, as server-sent events |
//!
//! It changes nothing. The token keeps other programs of the browser out, the name of the host
//! those that have it resolve another name to this port, and the kernel's table other users.
//!
//! Tried by its unit tests and `.ci/run page`.

mod picture;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;

use crate::connections::Connections;
use crate::listen::{Accepted, Admission, is_same};
use picture::Painter;

/// The page itself.
const DOCUMENT: &str = include_str!("page/page.html");

/// What the page may do: run its own script, and listen to its own events.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How often the picture is looked at, while somebody does.
const LOOK: Duration = Duration::from_millis(250);

/// The most connections at a time.
const MAX_CONNECTIONS: usize = 32;

/// How long a request may take to arrive.
const ASKING: Duration = Duration::from_secs(5);

type PageAnswer = Response<BoxBody<Bytes, Infallible>>;

/// The page at its port.
pub(crate) struct Page {
    listener: TcpListener,
    address: SocketAddr,
    site: Arc<PageSite>,
    painter: Painter,
    picture: watch::Sender<String>,
}

/// What requests are held against.
struct PageSite {
    token: String,
    /// The names by which a browser may have come here.
    hosts: Vec<String>,
    picture: watch::Receiver<String>,
}

impl Page {
    /// Listens at `address`, which only this host can reach.
    ///
    /// # Errors
    /// Returns the errors of the system.
    pub(crate) fn open(address: SocketAddr, connections: Connections) -> Result<Self> {
        let listen = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        let listener = listen().with_context(|| format!("showing the page at {address}"))?;
        let address = listener.local_addr().context("finding the address of the page")?;
        let hosts = vec![address.to_string(), format!("localhost:{}", address.port())];
        let (picture, shown) = watch::channel(String::new());
        let site = Arc::new(PageSite { token: random_token()?, hosts, picture: shown });
        Ok(Self { listener, address, site, painter: Painter::new(connections), picture })
    }

    /// Returns where a browser finds it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.site.token)
    }

    /// Shows it, as long as this is polled.
    pub(crate) async fn show(self) {
        let Self { listener, site, mut painter, picture, .. } = self;
        let paint = async {
            let mut looked_at = tokio::time::interval(LOOK);
            loop {
                looked_at.tick().await;
                // One receiver is the site's own.
                if picture.receiver_count() > 1 {
                    let now = painter.paint().await;
                    picture.send_if_modified(|was| {
                        let is_other = *was != now;
                        *was = now;
                        is_other
                    });
                }
            }
        };
        tokio::select! {
            () = paint => {}
            () = serve(listener, site) => {}
        }
    }
}

async fn serve(listener: TcpListener, site: Arc<PageSite>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(LOOK).await;
            continue;
        };
        let site = Arc::clone(&site);
        tokio::spawn(async move {
            let _place = place;
            let Ok((stream, Admission::Open)) = Accepted::Tcp(stream, None).admit().await else { return };
            let answer = service_fn(move |request| {
                let answer = site.answer(&request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(ASKING).max_buf_size(16 << 10);
            // Errors are for the browser, which sees its connection end.
            let _ = http.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

impl PageSite {
    fn answer(&self, request: &Request<Incoming>) -> PageAnswer {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        if host.is_none_or(|host| self.hosts.iter().all(|it| it != host)) {
            return plain(StatusCode::MISDIRECTED_REQUEST, "this page is at its own address only");
        }
        if request.method() != Method::GET {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "this page is only read");
        }
        let path = request.uri().path();
        let within = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        match within.filter(|(token, _)| is_same(token.as_bytes(), self.token.as_bytes())) {
            Some((_, "")) => answer_with(StatusCode::OK, "text/html; charset=utf-8", whole(DOCUMENT)),
            Some((_, "events")) => answer_with(StatusCode::OK, "text/event-stream", self.events()),
            _ => plain(StatusCode::NOT_FOUND, "there is no such page; the front has printed its address"),
        }
    }

    /// Returns the picture, and each change of it.
    fn events(&self) -> BoxBody<Bytes, Infallible> {
        let pictures = WatchStream::new(self.picture.clone()).filter(|picture| !picture.is_empty());
        let events = pictures.map(|picture| Ok(Frame::data(Bytes::from(format!("data: {picture}\n\n")))));
        BodyExt::boxed(StreamBody::new(events))
    }
}

fn whole(text: &'static str) -> BoxBody<Bytes, Infallible> {
    Full::new(Bytes::from_static(text.as_bytes())).boxed()
}

fn plain(status: StatusCode, text: &'static str) -> PageAnswer {
    answer_with(status, "text/plain; charset=utf-8", whole(text))
}

fn answer_with(status: StatusCode, kind: &'static str, body: BoxBody<Bytes, Infallible>) -> PageAnswer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Returns a token that nobody guesses.
fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    read.context("making a token for the page")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
