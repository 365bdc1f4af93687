//! A front from its start to its end.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use shmccl::coordinator::{Client, DeviceId, DeviceStatus, RuntimeDirectory};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

use crate::connections::{Connections, MAX_THREADS, Pace};
use crate::coordinator::CoordinatorService;
use crate::device::DeviceService;
use crate::dialect::Dialect;
use crate::front::{Front, MAX_MESSAGE};
use crate::listen::{AddressBook, DevicePlace, ListenPlace, ListenSpec, Listener, Secrets, sweep_devices};
use crate::page::Page;
use crate::serve::{FrontServer, Services, ServicesBuilder};
use crate::typed::PoolService;
use crate::wire::DESCRIPTORS;
use crate::wire::gpu_sim::gpu_coordinator_server::GpuCoordinatorServer;
use crate::wire::gpu_sim::gpu_device_server::GpuDeviceServer;
use crate::wire::pool::pool_server::PoolServer;

/// How often it is looked whether the coordinator lives, and which devices there are.
const LOOK: Duration = Duration::from_millis(500);

/// How long the coordinator may take to answer and count as healthy.
const PROMPT: Duration = Duration::from_secs(1);

/// The name of the socket in the runtime directory.
const SOCKET: &str = "grpc";

/// How a front is started.
#[derive(Clone, Debug)]
pub struct FrontOptions {
    /// Where it listens. Nothing stands for the usual socket.
    pub listen: Vec<ListenSpec>,
    /// The longest message.
    pub max_message: usize,
    /// The secrets of listeners that other hosts can reach.
    pub secrets: Option<SecretFiles>,
    /// Where the page is shown, if it is.
    pub page: Option<SocketAddr>,
    /// Whether nothing else is served.
    pub only_page: bool,
}

/// The files of what a listener has that other hosts can reach.
#[derive(Clone, Debug)]
pub struct SecretFiles {
    /// The chain of certificates, as PEM.
    pub certificate: PathBuf,
    /// The private key of the certificate, as PEM.
    pub key: PathBuf,
    /// The token, which only this user may read.
    pub token: PathBuf,
}

impl Default for FrontOptions {
    fn default() -> Self {
        Self { listen: Vec::new(), max_message: MAX_MESSAGE, secrets: None, page: None, only_page: false }
    }
}

/// Serves until it is interrupted (SIGINT, SIGTERM, SIGHUP). `note` is told where it listens.
///
/// # Errors
/// A place to listen at that is taken, or open to others without secrets; those of the system.
pub fn serve(options: &FrontOptions, note: impl Fn(&str) + Send + Sync + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .max_blocking_threads(MAX_THREADS)
        .thread_keep_alive(Duration::from_secs(2))
        .enable_all()
        .build()
        .context("starting the front")?;
    let served = runtime.block_on(run(options, Arc::new(note)));
    // What waits for devices in a thread does not keep the process.
    runtime.shutdown_background();
    served
}

/// Returns how many threads carry messages: one for eight cores. What clients and devices do takes
/// the others, and each thread more wakes its neighbours for every call.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(8))
}

type Note = Arc<dyn Fn(&str) + Send + Sync>;

async fn run(options: &FrontOptions, note: Note) -> Result<()> {
    let mut interrupts = JoinSet::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut interrupt = signal(kind).context("catching the signals that end the front")?;
        interrupts.spawn(async move { interrupt.recv().await });
    }
    let directory = RuntimeDirectory::open()?;
    let secrets = options.secrets.as_ref().map(read_secrets).transpose()?;
    let front = Arc::new(Front::new(Connections::new(directory.clone()), options.max_message));
    let server = FrontServer::new(Arc::clone(&front));
    let (reporter, health) = health_reporter();
    let usual = [ListenSpec { place: ListenPlace::Usual, dialect: Dialect::default() }];
    let specs = match &options.listen[..] {
        _ if options.only_page => &[],
        [] => &usual[..],
        given => given,
    };
    let mut books = Vec::new();
    let mut listeners = JoinSet::new();
    for spec in specs {
        let (listener, place) = open(&spec.place, directory.path(), secrets.as_ref())?;
        note(&format!("listens at {listener}: {}", spec.dialect));
        let book = book_of(place, secrets.clone(), &server, &front, spec.dialect, health.clone());
        let services = services_of(&front, spec.dialect, &book, health.clone())?;
        books.push(book);
        listeners.spawn(Arc::clone(&server).serve(listener, services));
    }
    if let Some(address) = options.page {
        let page = Page::open(address, front.connections.clone())?;
        note(&format!("the page is at {}", page.url()));
        listeners.spawn(page.show());
    }
    tokio::select! {
        _ = interrupts.join_next() => {}
        () = watch(&front, &reporter, &books, &note) => {}
    }
    // The runtime does not wait until all has gone; the files of sockets are to be gone.
    listeners.shutdown().await;
    for book in books {
        book.close().await;
    }
    Ok(())
}

fn open(
    place: &ListenPlace,
    directory: &Path,
    secrets: Option<&Arc<Secrets>>,
) -> Result<(Listener, DevicePlace)> {
    let unix = |path: PathBuf| {
        let listener = Listener::unix(&path)?;
        sweep_devices(&path);
        Ok((listener, DevicePlace::Beside(path)))
    };
    match place {
        ListenPlace::Usual => unix(directory.join(SOCKET)),
        ListenPlace::Unix(path) => unix(path.clone()),
        ListenPlace::Tcp(address) => {
            let ip: IpAddr = SocketAddr::ip(address);
            Ok((Listener::tcp(*address, secrets)?, DevicePlace::At(ip)))
        }
    }
}

/// Makes the listeners of devices that belong to a listener of this `dialect`.
fn book_of(
    place: DevicePlace,
    secrets: Option<Arc<Secrets>>,
    server: &Arc<FrontServer>,
    front: &Arc<Front>,
    dialect: Dialect,
    health: HealthServer<impl Health>,
) -> AddressBook {
    let (server, front) = (Arc::clone(server), Arc::clone(front));
    AddressBook::new(place, secrets, move |device, listener: Listener| {
        let address = listener.address().filter(|_| dialect.addresses);
        let services = device_services(&front, dialect, device, address, health.clone());
        tokio::spawn(Arc::clone(&server).serve(listener, services))
    })
}

fn services_of(
    front: &Arc<Front>,
    dialect: Dialect,
    book: &AddressBook,
    health: HealthServer<impl Health>,
) -> Result<Services> {
    let most = front.max_message;
    let service = CoordinatorService { front: Arc::clone(front), dialect, book: book.clone() };
    let coordinator =
        GpuCoordinatorServer::new(service).max_decoding_message_size(most).max_encoding_message_size(most);
    let pool = PoolServer::new(PoolService(Arc::clone(front)))
        .max_decoding_message_size(most)
        .max_encoding_message_size(most);
    Ok(with_reflection(ServicesBuilder::default().add(coordinator).add(pool).add(health)))
}

fn device_services(
    front: &Arc<Front>,
    dialect: Dialect,
    device: DeviceId,
    address: Option<(String, u16)>,
    health: HealthServer<impl Health>,
) -> Services {
    let most = front.max_message;
    let service = DeviceService { front: Arc::clone(front), dialect, device, address };
    let service =
        GpuDeviceServer::new(service).max_decoding_message_size(most).max_encoding_message_size(most);
    with_reflection(ServicesBuilder::default().add(service).add(health))
}

fn with_reflection(services: ServicesBuilder) -> Services {
    let configured = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = configured().build_v1().expect("descriptors that were compiled");
    let v1alpha = configured().build_v1alpha().expect("descriptors that were compiled");
    services.add(v1).add(v1alpha).build()
}

/// Reads what a listener needs that other hosts can reach.
fn read_secrets(files: &SecretFiles) -> Result<Arc<Secrets>> {
    let SecretFiles { certificate, key, token } = files;
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("reading the certificate {}", certificate.display()))?;
    let key =
        PrivateKeyDer::from_pem_file(key).with_context(|| format!("reading the key {}", key.display()))?;
    let mut tls = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| format!("using the certificate {}", certificate.display()))?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let text =
        std::fs::read_to_string(token).with_context(|| format!("reading the token {}", token.display()))?;
    let text = text.trim();
    if text.len() < 16 {
        bail!("the token in {} has {} bytes, expected 16 or more", token.display(), text.len());
    }
    Ok(Arc::new(Secrets { acceptor: TlsAcceptor::from(Arc::new(tls)), token: text.to_owned() }))
}

/// Tells of the health of the coordinator, and has its devices listen, as long as it is polled.
async fn watch(front: &Arc<Front>, reporter: &HealthReporter, books: &[AddressBook], note: &Note) {
    let mut was = None;
    loop {
        let known = Arc::clone(front);
        let look = move |client: &mut Client| {
            let devices = client.devices()?;
            known.forget_ended(client, &devices)?;
            Ok(devices)
        };
        let mut asked = pin!(front.connections.ask(Pace::Quick, look));
        let devices = match tokio::time::timeout(PROMPT, &mut asked).await {
            Ok(devices) => devices,
            Err(_) => {
                was = Some(ServingStatus::NotServing);
                report(reporter, ServingStatus::NotServing).await;
                note("the coordinator does not answer; if it was stopped, continue it");
                asked.await
            }
        };
        let is = if devices.is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing };
        if was.replace(is) != Some(is) {
            report(reporter, is).await;
            if let Err(refusal) = &devices {
                note(refusal.message());
            }
        }
        listen(books, devices.as_deref().unwrap_or_default(), note);
        tokio::time::sleep(LOOK).await;
    }
}

/// Has these devices listen, and no others.
fn listen(books: &[AddressBook], devices: &[DeviceStatus], note: &Note) {
    for book in books {
        book.keep(devices);
        for (device, place) in book.add(devices) {
            note(&format!("device {device} listens at {place}"));
        }
    }
}

async fn report(reporter: &HealthReporter, is: ServingStatus) {
    for service in ["", "gpu_sim.GPUCoordinator", "gpu_sim.GPUDevice", "shmccl.v1.Pool"] {
        reporter.set_service_status(service, is).await;
    }
}
