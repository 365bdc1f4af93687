//! Serving connections: HTTP/2, the services by their names, deadlines, limits.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower_service::Service;

use crate::arriving::Arriving;
use crate::comms::ConnectionId;
use crate::front::Front;
use crate::leaving::{ReplyLimits, keep};
use crate::listen::{Accepted, Admission, Listener, Wire};
use crate::memcpy::with_bytes;

/// What may be on its way to this side, in bytes: of one call, and of a connection.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// The longest frame of HTTP/2 that is taken.
const FRAME: u32 = 1 << 20;

/// The longest headers.
const HEADERS: u32 = 16 << 10;

/// The most calls of a connection at a time; others wait at the other side.
const MAX_CALLS: u32 = 128;

/// The most calls with payload of all connections at a time, until their replies were taken; others
/// wait before they are read.
const MAX_BULKY: usize = 256;

/// The most bytes of a call without payload. So these need no places, and what waits keeps no
/// status from being told.
const MAX_SMALL: usize = 64 << 10;

/// The most calls at a time that last for as long as their clients like. Each looks for news often.
const MAX_LASTING: usize = 64;

/// How long a call may bring nothing, or its client take nothing of the reply.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// The most connections of a listener; others wait in the backlog.
const MAX_CONNECTIONS: usize = 256;

/// How long no connection is accepted after the system had no room for one.
const NOT_ACCEPTING: Duration = Duration::from_millis(50);

/// How long a connection may take until it is one: TLS, and the first words of HTTP/2. Where calls
/// are not taken from everybody it is as long until the first one that is.
const GREETING_TIME: Duration = Duration::from_secs(10);

/// The first words of HTTP/2.
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

type CallAnswer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

type CallHandler = Box<dyn Fn(Request<Body>) -> CallAnswer + Send + Sync>;

/// The services of a listener, by name.
#[derive(Clone, Default)]
pub(crate) struct Services(Arc<HashMap<&'static str, CallHandler>>);

/// Services that are put together.
#[derive(Default)]
pub(crate) struct ServicesBuilder(HashMap<&'static str, CallHandler>);

/// What all connections of a front share.
#[derive(Debug)]
pub(crate) struct FrontServer {
    front: Arc<Front>,
    bulky: Arc<Semaphore>,
    lasting: Arc<Semaphore>,
    connections: AtomicU64,
    greeting_time: Duration,
}

/// What a call holds, by its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Hardly anything.
    Small,
    /// Payload of devices.
    Bulky,
    /// A connection, for as long as its client likes.
    Lasting,
}

impl Load {
    /// Returns that of the method at `path`.
    fn of(path: &str) -> Self {
        match path.rsplit('/').next().unwrap_or_default() {
            "Memcpy" | "MemcpyHostToDevice" | "MemcpyDeviceToHost" => Self::Bulky,
            "StreamSend" | "StreamReceive" | "Write" | "Read" => Self::Bulky,
            "Watch" | "ServerReflectionInfo" => Self::Lasting,
            _ => Self::Small,
        }
    }
}

/// What the calls of a connection have shown of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Unknown,
    Admitted,
    Refused,
}

/// A connection that is served.
struct Guest {
    number: ConnectionId,
    admission: Admission,
    standing: watch::Sender<Standing>,
}

impl Guest {
    /// # Errors
    /// Fails as [`Admission::check`] does. A connection of which no call was taken ends then.
    fn check(&self, headers: &http::HeaderMap) -> Result<(), Status> {
        let checked = self.admission.check(headers);
        let shown = if checked.is_ok() { Standing::Admitted } else { Standing::Refused };
        self.standing.send_if_modified(|standing| {
            let is_news = *standing != Standing::Admitted && *standing != shown;
            if is_news {
                *standing = shown;
            }
            is_news
        });
        checked
    }
}

impl ServicesBuilder {
    pub(crate) fn add<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
    {
        let handler = move |request| -> CallAnswer {
            let mut service = service.clone();
            Box::pin(async move {
                let Ok(response) = service.call(request).await;
                response
            })
        };
        self.0.insert(S::NAME, Box::new(handler));
        self
    }

    pub(crate) fn build(self) -> Services {
        Services(Arc::new(self.0))
    }
}

impl Services {
    async fn call(&self, request: Request<Body>) -> Response<Body> {
        let name = request.uri().path().split('/').nth(1).unwrap_or_default();
        match self.0.get(name) {
            Some(handler) => handler(request).await,
            None => Status::unimplemented(format!("this listener has no service {name:?}")).into_http(),
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl FrontServer {
    pub(crate) fn new(front: Arc<Front>) -> Arc<Self> {
        let places = |n| Arc::new(Semaphore::new(n));
        let (bulky, lasting, connections) = (places(MAX_BULKY), places(MAX_LASTING), AtomicU64::new(0));
        Arc::new(Self { front, bulky, lasting, connections, greeting_time: GREETING_TIME })
    }

    /// Serves the connections of `listener`, until this is dropped.
    pub(crate) async fn serve(self: Arc<Self>, listener: Listener, services: Services) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        // Dropped with this: the connections end with their listener.
        let mut all = tokio::task::JoinSet::new();
        loop {
            while all.try_join_next().is_some() {}
            // It is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match listener.accept().await {
                Ok(accepted) => {
                    let (server, services) = (Arc::clone(&self), services.clone());
                    all.spawn(async move {
                        let _place = place;
                        server.serve_connection(accepted, services).await;
                    });
                }
                Err(_) => tokio::time::sleep(NOT_ACCEPTING).await,
            }
        }
    }

    async fn serve_connection(self: Arc<Self>, accepted: Accepted, services: Services) {
        let greeted = async {
            let (stream, admission) = accepted.admit().await?;
            Ok::<_, io::Error>((greeted(stream).await?, admission))
        };
        // Errors are for the client, which sees its connection end.
        if let Ok(Ok((stream, admission))) = tokio::time::timeout(self.greeting_time, greeted).await {
            self.converse(stream, admission, services).await;
        }
    }

    /// Serves a connection that has greeted. It ends early if none of its calls is taken.
    async fn converse(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        admission: Admission,
        services: Services,
    ) {
        let number = ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed) + 1);
        self.front.comms.connected(number);
        let is_open = matches!(admission, Admission::Open);
        let (standing, mut shown) =
            watch::channel(if is_open { Standing::Admitted } else { Standing::Unknown });
        let (server, guest) = (Arc::clone(&self), Arc::new(Guest { number, admission, standing }));
        let serve = service_fn(move |request| {
            let (server, guest, services) = (Arc::clone(&server), Arc::clone(&guest), services.clone());
            async move { Ok::<_, Infallible>(server.call(request, &guest, &services).await) }
        });
        let mut http = Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_header_list_size(HEADERS)
            .max_concurrent_streams(MAX_CALLS)
            .keep_alive_interval(Some(Duration::from_secs(60)));
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), serve));
        let is_admitted = async {
            let shown = shown.wait_for(|standing| *standing != Standing::Unknown);
            let shown = tokio::time::timeout(self.greeting_time, shown).await;
            matches!(shown, Ok(Ok(standing)) if *standing == Standing::Admitted)
        };
        tokio::select! {
            _ = connection.as_mut() => {}
            false = is_admitted => {
                // What was answered goes out, if the other side takes it.
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(self.greeting_time, connection).await;
            }
        }
        self.front.comms.disconnected(number);
    }

    async fn call(
        &self,
        mut request: Request<Incoming>,
        guest: &Guest,
        services: &Services,
    ) -> Response<Body> {
        if let Err(refusal) = guest.check(request.headers()) {
            return refusal.into_http();
        }
        let limit =
            request.headers_mut().remove("grpc-timeout").and_then(|text| time_of(text.to_str().ok()?));
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        request.extensions_mut().insert(guest.number);
        let answer = self.answer(request, services, deadline);
        let response = match deadline {
            None => answer.await,
            Some(deadline) => tokio::time::timeout_at(deadline, answer).await.unwrap_or_else(|_| {
                let text = "the deadline of the call has passed; the operation goes on, and its status tells how it ends";
                Status::deadline_exceeded(text).into_http()
            }),
        };
        as_promised(response)
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        services: &Services,
        deadline: Option<Instant>,
    ) -> Response<Body> {
        let load = Load::of(request.uri().path());
        let most = if load == Load::Bulky { usize::MAX } else { MAX_SMALL };
        let request = request.map(|body| Body::new(Arriving::new(body, most, IDLE_TIME)));
        let place = match load {
            Load::Small => return services.call(request).await,
            Load::Bulky => Arc::clone(&self.bulky).acquire_owned().await.ok(),
            Load::Lasting => Arc::clone(&self.lasting).try_acquire_owned().ok(),
        };
        let Some(place) = place else {
            let text = format!("{MAX_LASTING} calls that last are in progress; end one of them first");
            return Status::resource_exhausted(text).into_http();
        };
        let idle_time = (load == Load::Bulky).then_some(IDLE_TIME);
        keep(with_bytes(services.call(request).await), place, ReplyLimits { deadline, idle_time })
    }
}

/// Waits for the first words of HTTP/2, which are not awaited with a limit otherwise. Returns the
/// connection as if they were still to come.
async fn greeted(mut stream: Box<dyn Wire>) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin> {
    let mut preface = [0; PREFACE];
    stream.read_exact(&mut preface).await?;
    let (incoming, outgoing) = tokio::io::split(stream);
    Ok(tokio::io::join(io::Cursor::new(preface).chain(incoming), outgoing))
}

/// Returns a response with the code that is promised for a message that is too long.
fn as_promised(response: Response<Body>) -> Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status)
            if status.code() == Code::OutOfRange && status.message().contains("message length too large") =>
        {
            Status::resource_exhausted(status.message().to_owned()).into_http()
        }
        _ => response,
    }
}

/// Reads a deadline as gRPC has it: at most eight digits and a unit.
fn time_of(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use shmccl::coordinator::RuntimeDirectory;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use crate::connections::Connections;

    use super::*;

    /// Makes a server with this patience, in a directory where no coordinator is.
    fn server(name: &str, greeting_time: Duration) -> Arc<FrontServer> {
        let place = std::env::temp_dir().join(format!("shmccl-grpc-{name}-{}", std::process::id()));
        let directory = RuntimeDirectory::at(&place).unwrap();
        std::fs::remove_dir(place).unwrap();
        let front = Arc::new(Front::new(Connections::new(directory), 1024));
        let mut server = Arc::into_inner(FrontServer::new(front)).unwrap();
        server.greeting_time = greeting_time;
        Arc::new(server)
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_ends() {
        let server = server("silent", Duration::from_millis(20));
        let (mut client, stream) = UnixStream::pair().unwrap();
        let serving = server.serve_connection(Accepted::Unix(stream), Services::default());
        let mut said = Vec::new();
        let (read, ()) = tokio::join!(client.read_to_end(&mut said), serving);
        assert!(read.is_ok() && said.is_empty());
    }

    #[tokio::test]
    async fn a_connection_that_may_not_come_and_calls_nothing_ends() {
        let server = server("stranger", Duration::from_millis(20));
        let (mut client, stream) = UnixStream::pair().unwrap();
        // The words and empty settings: as much as anybody may say.
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let admission = Admission::Closed(Status::permission_denied("another user"));
        let greeted = greeted(Box::new(stream)).await.unwrap();
        let serving = server.converse(greeted, admission, Services::default());
        let mut said = Vec::new();
        let (read, ()) = tokio::join!(client.read_to_end(&mut said), serving);
        assert!(read.is_ok() && !said.is_empty());
    }

    #[test]
    fn deadlines_are_read_as_grpc_has_them() {
        assert_eq!(time_of("250m"), Some(Duration::from_millis(250)));
        assert_eq!(time_of("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in ["", "m", "5", "5x", "123456789S", "-1S", "5é"] {
            assert_eq!(time_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_has_its_own_code() {
        let told = Status::out_of_range("Error, decoded message length too large: found 9 bytes");
        let code = |response: Response<Body>| Status::from_header_map(response.headers()).unwrap().code();
        assert_eq!(code(as_promised(told.into_http())), Code::ResourceExhausted);
        assert_eq!(code(as_promised(Status::out_of_range("bytes").into_http())), Code::OutOfRange);
    }
}
