//! Where a front listens, and whose connections it takes.
//!
//! | place | who may come |
//! |---|---|
//! | a unix socket in the private runtime directory | processes of the same user |
//! | TCP on loopback | processes of the same user, by the kernel's table of sockets |
//! | TCP elsewhere | whoever has the token, over TLS |
//!
//! A connection that may not come is served all the same: each call is told why it is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use shmccl::coordinator::{DeviceId, DeviceStatus};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tonic::Status;

use crate::dialect::Dialect;
use crate::peer::user_of;

/// What stands between the path of a socket and the number of a device that listens beside it.
const DEVICE: &str = "-device-";

/// Where a listener is, and what it speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSpec {
    pub place: ListenPlace,
    pub dialect: Dialect,
}

/// A place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenPlace {
    /// The usual socket in the runtime directory.
    Usual,
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    /// The file goes first: its number is nobody else's as long as the socket is there.
    Unix {
        file: SocketFile,
        listener: UnixListener,
    },
    Tcp {
        listener: TcpListener,
        tls: Option<Arc<Secrets>>,
    },
}

/// What a listener that other hosts can reach has.
pub(crate) struct Secrets {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) token: String,
}

/// The file of a socket, which is removed with it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The device and number of the file.
    identity: (u64, u64),
}

/// A connection, of whatever kind.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// A connection that has come, before TLS.
pub(crate) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, Option<Arc<Secrets>>),
}

/// Whether calls of a connection are taken.
#[derive(Clone)]
pub(crate) enum Admission {
    Open,
    /// Only with this token.
    Token(Arc<Secrets>),
    /// None, for this reason.
    Closed(Status),
}

impl Accepted {
    /// Returns the connection, once both sides are ready, and whether its calls are taken.
    ///
    /// # Errors
    /// Returns the errors of the socket and of TLS.
    pub(crate) async fn admit(self) -> io::Result<(Box<dyn Wire>, Admission)> {
        match self {
            Self::Unix(stream) => {
                let admission = of_user(stream.peer_cred().map(|peer| Some(peer.uid())));
                Ok((Box::new(stream), admission))
            }
            Self::Tcp(stream, None) => {
                stream.set_nodelay(true)?;
                let admission = of_user(user_of(stream.peer_addr()?, stream.local_addr()?));
                Ok((Box::new(stream), admission))
            }
            Self::Tcp(stream, Some(secrets)) => {
                stream.set_nodelay(true)?;
                let stream = secrets.acceptor.accept(stream).await?;
                Ok((Box::new(stream), Admission::Token(secrets)))
            }
        }
    }
}

/// Admits the processes of this user.
fn of_user(user: io::Result<Option<u32>>) -> Admission {
    let mine = geteuid().as_raw();
    let refused = match user {
        Ok(Some(theirs)) if theirs == mine => return Admission::Open,
        Ok(Some(theirs)) => format!("the other side runs as user {theirs}, and this front as user {mine}"),
        Ok(None) => "the user of the other side is not known".to_owned(),
        Err(error) => format!("the user of the other side cannot be told ({error})"),
    };
    let text = format!("{refused}; a front serves its own user only, or others over TLS with a token");
    Admission::Closed(Status::permission_denied(text))
}

impl Admission {
    /// # Errors
    /// `PermissionDenied` for another user, `Unauthenticated` without the token.
    pub(crate) fn check(&self, headers: &http::HeaderMap) -> Result<(), Status> {
        match self {
            Self::Open => Ok(()),
            Self::Closed(status) => Err(status.clone()),
            Self::Token(secrets) => {
                let given = headers.get(http::header::AUTHORIZATION).map(|value| value.as_bytes());
                let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
                if is_same(given, secrets.token.as_bytes()) {
                    return Ok(());
                }
                let text =
                    "this listener takes calls with its token only: metadata `authorization: Bearer TOKEN`";
                Err(Status::unauthenticated(text))
            }
        }
    }
}

/// Compares in a time that does not depend on where the two differ.
pub(crate) fn is_same(given: &[u8], token: &[u8]) -> bool {
    let differing = given.iter().zip(token).fold(0, |all, (one, other)| all | (one ^ other));
    given.len() == token.len() && differing == 0
}

impl Listener {
    /// Listens at `path`. A socket that a dead front has left there is replaced.
    ///
    /// # Errors
    /// A front that lives there; a file that is no socket; those of the system.
    pub(crate) fn unix(path: &Path) -> Result<Self> {
        let context = || format!("listening at {}", path.display());
        let _claim = Claim::of(path).with_context(context)?;
        clear(path)?;
        let listen = || {
            let listener = UnixListener::bind(path)?;
            let identity = identity(&std::fs::symlink_metadata(path)?);
            Ok::<_, io::Error>(Self::Unix { file: SocketFile { path: path.to_owned(), identity }, listener })
        };
        listen().with_context(context)
    }

    /// Listens at `address`: with `secrets`, unless only this host can reach it.
    ///
    /// # Errors
    /// An address that others can reach, without secrets; those of the system.
    pub(crate) fn tcp(address: SocketAddr, secrets: Option<&Arc<Secrets>>) -> Result<Self> {
        let tls = match (address.ip().is_loopback(), secrets) {
            (true, _) => None,
            (false, Some(secrets)) => Some(Arc::clone(secrets)),
            (false, None) => bail!(
                "{address} can be reached from other hosts; give --tls-cert, --tls-key and --token-file, \
                 or listen at 127.0.0.1"
            ),
        };
        let listen = || {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        let listener = listen().with_context(|| format!("listening at {address}"))?;
        Ok(Self::Tcp { listener, tls })
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// Returns the errors of the system, which may have room for another connection later.
    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Unix { listener, .. } => Ok(Accepted::Unix(listener.accept().await?.0)),
            Self::Tcp { listener, tls } => Ok(Accepted::Tcp(listener.accept().await?.0, tls.clone())),
        }
    }

    /// Returns where it listens, as metadata tell it.
    pub(crate) fn address(&self) -> Option<(String, u16)> {
        match self {
            Self::Unix { file, .. } => Some((format!("unix:{}", file.path.display()), 0)),
            Self::Tcp { listener, .. } => {
                let address = listener.local_addr().ok()?;
                Some((address.ip().to_string(), address.port()))
            }
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { file, .. } => write!(f, "unix:{}", file.path.display()),
            Self::Tcp { listener, .. } => match listener.local_addr() {
                Ok(address) => write!(f, "{address}"),
                Err(_) => f.write_str("a port"),
            },
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may have been removed already, and something else may stand in its place.
        let is_mine =
            std::fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        if is_mine {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The right to replace a dead socket: a lock on a file beside it, which is there as long as the
/// lock. A socket that is bound and does not listen yet looks dead, and is not to be replaced.
struct Claim {
    path: PathBuf,
    _locked: File,
}

impl Claim {
    /// Waits for the right to replace the socket at `path`.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    fn of(path: &Path) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            let flags = OFlag::O_NOFOLLOW.bits();
            let file =
                File::options().write(true).create(true).truncate(false).custom_flags(flags).open(&path)?;
            file.lock()?;
            // Whoever had it before has removed the file.
            let is_there = std::fs::symlink_metadata(&path).map(|found| identity(&found)).ok();
            if is_there == Some(identity(&file.metadata()?)) {
                return Ok(Self { path, _locked: file });
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn identity(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Removes the socket at `path` if nobody listens there.
///
/// # Errors
/// A front that lives there; a file that is no socket; those of the system.
fn clear(path: &Path) -> Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        bail!("{} is there and is no socket; name another path", path.display());
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => bail!("a front listens at {} already; end that one, or name another path", path.display()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).with_context(|| format!("removing the dead socket {}", path.display()))
        }
        // To listen there fails as well.
        Err(_) => Ok(()),
    }
}

/// Removes the sockets of devices beside `socket` that a killed front has left.
pub(crate) fn sweep_devices(socket: &Path) {
    let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else { return };
    let name = format!("{}{DEVICE}", name.to_string_lossy());
    let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    for file in std::fs::read_dir(here).into_iter().flatten().flatten() {
        let number = file.file_name().to_str().and_then(|it| it.strip_prefix(&name)?.parse::<u32>().ok());
        if number.is_some() {
            // Others than dead sockets stay.
            let _ = clear(&file.path());
        }
    }
}

impl FromStr for ListenSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, settings) = text.split_once(',').unwrap_or((text, ""));
        let place = match place {
            "unix" => ListenPlace::Usual,
            place => match place.strip_prefix("unix:") {
                Some(path) => ListenPlace::Unix(path.into()),
                None => ListenPlace::Tcp(place.parse().map_err(|_| {
                    "expected unix, unix:PATH, or an address and a port such as 127.0.0.1:60050, and settings \
                     of the dialect behind it, such as unix,bytes"
                        .to_owned()
                })?),
            },
        };
        Ok(Self { place, dialect: settings.parse()? })
    }
}

/// Has `serve` serve a device at a listener.
type Serve = dyn Fn(DeviceId, Listener) -> JoinHandle<()> + Send + Sync;

/// The listeners of devices that belong to one listener of the coordinator.
///
/// They are at free ports of its address, or beside its socket, by the number of the device.
#[derive(Clone)]
pub(crate) struct AddressBook(Arc<Book>);

struct Book {
    place: DevicePlace,
    secrets: Option<Arc<Secrets>>,
    serve: Box<Serve>,
    /// `None` once the front ends.
    devices: Mutex<Option<BTreeMap<DeviceId, Entry>>>,
}

/// Where devices listen.
#[derive(Clone, Debug)]
pub(crate) enum DevicePlace {
    /// Beside this socket.
    Beside(PathBuf),
    /// At free ports of this address.
    At(IpAddr),
}

/// A device that listens.
struct Entry {
    address: Option<(String, u16)>,
    task: JoinHandle<()>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AddressBook {
    pub(crate) fn new(
        place: DevicePlace,
        secrets: Option<Arc<Secrets>>,
        serve: impl Fn(DeviceId, Listener) -> JoinHandle<()> + Send + Sync + 'static,
    ) -> Self {
        let devices = Mutex::new(Some(BTreeMap::new()));
        Self(Arc::new(Book { place, secrets, serve: Box::new(serve), devices }))
    }

    /// Has each of these devices listen that does not yet. Returns those that have begun.
    pub(crate) fn add(&self, devices: &[DeviceStatus]) -> Vec<(DeviceId, String)> {
        let mut begun = Vec::new();
        let mut all = self.devices();
        let Some(all) = all.as_mut() else { return begun };
        for device in devices.iter().map(|device| device.device) {
            if all.contains_key(&device) {
                continue;
            }
            // Where the system has no room for it, the next look may find some.
            let Ok(listener) = self.bind(device) else { continue };
            begun.push((device, listener.to_string()));
            let address = listener.address();
            all.insert(device, Entry { address, task: (self.0.serve)(device, listener) });
        }
        begun
    }

    /// Has no other devices listen but these.
    pub(crate) fn keep(&self, devices: &[DeviceStatus]) {
        let is_there = |device: &DeviceId| devices.iter().any(|it| it.device == *device);
        self.devices().iter_mut().for_each(|all| all.retain(|device, _| is_there(device)));
    }

    /// Has no device listen any more. When it returns, nothing of their sockets is left.
    pub(crate) async fn close(&self) {
        let all = self.devices().take();
        for mut entry in all.into_iter().flat_map(BTreeMap::into_values) {
            entry.task.abort();
            // It has not panicked, or has left nothing then either.
            let _ = (&mut entry.task).await;
        }
    }

    /// Returns where a device listens.
    pub(crate) fn address(&self, device: DeviceId) -> Option<(String, u16)> {
        self.devices().as_ref()?.get(&device)?.address.clone()
    }

    fn bind(&self, device: DeviceId) -> Result<Listener> {
        match &self.0.place {
            DevicePlace::Beside(socket) => {
                let mut path = socket.clone().into_os_string();
                path.push(format!("{DEVICE}{device}"));
                Listener::unix(Path::new(&path))
            }
            DevicePlace::At(ip) => Listener::tcp(SocketAddr::new(*ip, 0), self.0.secrets.as_ref()),
        }
    }

    fn devices(&self) -> MutexGuard<'_, Option<BTreeMap<DeviceId, Entry>>> {
        self.0.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AddressBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressBook").field("place", &self.0.place).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_with_its_dialect() {
        let read = |text: &str| text.parse::<ListenSpec>();
        assert_eq!(
            read("unix").unwrap(),
            ListenSpec { place: ListenPlace::Usual, dialect: Dialect::default() }
        );
        let tcp = read("127.0.0.1:60050,bytes,prefixed=on").unwrap();
        assert_eq!(tcp.place, ListenPlace::Tcp("127.0.0.1:60050".parse().unwrap()));
        assert_eq!(tcp.dialect, "bytes,prefixed=on".parse().unwrap());
        assert!(read("60050").is_err() && read("unix,loud").is_err());
    }

    #[test]
    fn what_other_hosts_can_reach_needs_a_certificate_and_a_token() {
        let refused = Listener::tcp("0.0.0.0:0".parse().unwrap(), None).unwrap_err();
        assert!(refused.to_string().contains("--token-file"), "{refused}");
    }

    /// Makes a directory of a test.
    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("shmccl-grpc-{name}-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        directory
    }

    #[tokio::test]
    async fn only_a_dead_socket_makes_room_for_a_new_one() {
        let directory = directory("clear");
        let path = directory.join("grpc");
        std::fs::write(&path, "a letter").unwrap();
        let refused = Listener::unix(&path).unwrap_err();
        assert!(refused.to_string().contains("name another path"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"a letter");
        std::fs::remove_file(&path).unwrap();
        // The file of a socket that is closed stays.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::unix(&path).unwrap();
        assert!(Listener::unix(&path).unwrap_err().to_string().contains("already"));
        drop(listener);
        assert!(!path.exists());
        std::fs::remove_dir(&directory).unwrap();
    }

    #[tokio::test]
    async fn of_fronts_that_find_a_dead_socket_at_once_one_takes_its_place_and_stays() {
        let directory = directory("race");
        let path = directory.join("grpc");
        let runtime = tokio::runtime::Handle::current();
        for _ in 0..50 {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let all: Vec<_> = std::thread::scope(|scope| {
                let listen = || {
                    let _entered = runtime.enter();
                    Listener::unix(&path)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(listen)).collect();
                threads.into_iter().map(|it| it.join().unwrap()).collect()
            });
            assert_eq!(all.iter().filter(|it| it.is_ok()).count(), 1, "{all:?}");
            assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        }
        std::fs::remove_dir(&directory).unwrap();
    }

    #[tokio::test]
    async fn a_listener_removes_no_file_but_its_own() {
        let directory = directory("drop");
        let path = directory.join("grpc");
        let first = Listener::unix(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = Listener::unix(&path).unwrap();
        drop(first);
        assert!(path.exists(), "the second one listens there");
        drop(second);
        std::fs::remove_dir(&directory).unwrap();
    }

    #[tokio::test]
    async fn dead_sockets_of_devices_are_swept_and_nothing_else() {
        let directory = directory("sweep");
        let socket = directory.join("grpc");
        for dead in ["grpc-device-7", "other-device-7"] {
            drop(std::os::unix::net::UnixListener::bind(directory.join(dead)).unwrap());
        }
        std::fs::write(directory.join("grpc-device-8"), "a letter").unwrap();
        let _living = Listener::unix(&directory.join("grpc-device-9")).unwrap();
        sweep_devices(&socket);
        let left = std::fs::read_dir(&directory).unwrap().map(|it| it.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["grpc-device-8", "grpc-device-9", "other-device-7"]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn tokens_are_the_same_or_not() {
        assert!(is_same(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!is_same(other, b"abc"));
        }
    }
}
