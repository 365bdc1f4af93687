//! Copies between clients and a device's memory, each over a connection of its own. The coordinator
//! has no part in them.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use nix::poll::poll;
use nix::sys::signal::SigSet;

use super::undo::Undo;
use crate::bootstrap::{poll_timeout, resource_error};
use crate::coordinator::call::{AddressRange, Bytes};
use crate::coordinator::deadline_stream::DeadlineStream;
use crate::coordinator::error::{CoordinatorError, RequestError, Result};
use crate::coordinator::handshake::{
    CopyDirection, CopyOrder, GREETING_TIME, Hello, HelloReply, PATIENCE, check_peer, check_version,
};
use crate::coordinator::id::{CommId, DeviceId};
use crate::coordinator::wire::{IoContext, read, write};
use crate::epoch_id::fresh_job_id;
use crate::error::Error;
use crate::heap::{DeviceAddress, DeviceMemory};
use crate::shm::undivided::spawn;
use crate::shm::unforked::Unforked;

const CLIENT: IoContext =
    IoContext { peer: "client", operation: "copying between a client and a device", patience: PATIENCE };

/// The most copies that are in progress at a time. Others wait in the backlog.
const MAX_COPIES: usize = 16;

/// The most bytes that are copied at a time. A client has [`PATIENCE`] for them, however it divides
/// them.
const PIECE: usize = 1 << 20;

/// How long no connection is accepted after the system had no room for one.
const NOT_ACCEPTING: Duration = Duration::from_millis(50);

/// The threads that serve copies of a device's memory.
#[derive(Debug)]
pub(super) struct CopyServer {
    socket: String,
    service: Arc<CopyService>,
}

/// The state that these threads share.
#[derive(Debug)]
struct CopyService {
    device: DeviceId,
    memory: Arc<DeviceMemory>,
    /// Nothing is taken back once a client has copied something new.
    undo: Undo,
    /// The communicator whose clients are admitted. It does not change while a piece is copied.
    comm: RwLock<Option<CommId>>,
    /// How long a client may take for a piece.
    patience: Duration,
}

impl CopyServer {
    /// Starts the threads, which end with the process. No client is admitted yet. A client has
    /// `patience` for a piece.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`], [`Error::Os`].
    pub(super) fn start(
        device: DeviceId,
        memory: Arc<DeviceMemory>,
        undo: Undo,
        patience: Duration,
    ) -> Result<Self, Error> {
        const ACTION: &str = "opening a device's memory to clients";
        // A random name: no other process can have taken it.
        let socket = format!("shmccl-device-{device}-{:016x}", fresh_job_id());
        let address = SocketAddr::from_abstract_name(&socket);
        let listener = Unforked::open(|| UnixListener::bind_addr(&address?));
        let listener = Arc::new(listener.map_err(|error| resource_error(ACTION, error))?);
        let service = Arc::new(CopyService { device, memory, undo, comm: RwLock::new(None), patience });
        for _ in 0..MAX_COPIES {
            let (listener, service) = (Arc::clone(&listener), Arc::clone(&service));
            let serve = move || {
                // Signals are for the thread that serves.
                let _ = SigSet::all().thread_block();
                // Kept from copy to copy: fresh memory takes longer to get than to fill.
                let mut buffer = Vec::new();
                loop {
                    match listener.accept() {
                        // Errors are for the client, which has been told as far as possible.
                        Ok((stream, _)) => _ = service.serve(stream, &mut buffer),
                        // The system has no room for another connection; it may have later.
                        Err(_) => _ = poll(&mut [], poll_timeout(Some(NOT_ACCEPTING))),
                    }
                }
            };
            spawn("shmccl copies", serve).map_err(|error| resource_error(ACTION, error))?;
        }
        Ok(Self { socket, service })
    }

    /// Returns the name of the socket in the abstract namespace.
    pub(super) fn socket(&self) -> &str {
        &self.socket
    }

    /// Admits the clients of `comm`, and no others.
    pub(super) fn admit(&self, comm: Option<CommId>) {
        *self.service.comm.write().unwrap_or_else(PoisonError::into_inner) = comm;
    }
}

impl CopyService {
    fn serve(&self, mut stream: UnixStream, buffer: &mut Vec<u8>) -> Result<()> {
        check_peer(&stream)?;
        let order = Self::take_order(&stream)?;
        let deadline =
            stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        deadline.map_err(|error| Error::os(CLIENT.operation, error))?;
        let checked = self.check(&order);
        write(&mut stream, &checked, CLIENT)?;
        checked?;
        match order.direction {
            CopyDirection::Put => {
                let outcome = match self.put(&order, &stream, buffer) {
                    Err(CoordinatorError::Refused(refusal)) => Err(refusal),
                    outcome => Ok(outcome?),
                };
                write(&mut stream, &outcome, CLIENT)
            }
            CopyDirection::Get => self.get(&order, &stream, buffer),
        }
    }

    /// Takes a greeting and an order, within a short time, since other clients wait in the backlog.
    fn take_order(stream: &UnixStream) -> Result<CopyOrder> {
        const GREETING: IoContext = IoContext { patience: GREETING_TIME, ..CLIENT };
        let mut stream = DeadlineStream::new(stream, GREETING_TIME);
        let greeting: Hello = read(&mut stream, GREETING)?;
        write(&mut stream, &HelloReply::new(None), GREETING)?;
        check_version(&greeting.shmccl)?;
        read(&mut stream, GREETING)
    }

    /// Checks an order. Asks the system for all the memory of a put before the first byte comes, so
    /// that nothing changes where there is too little. Reading takes none.
    fn check(&self, order: &CopyOrder) -> Result<(), RequestError> {
        let device = self.device;
        if order.device != device {
            return Err(RequestError::NoSuchDevice { device: order.device });
        }
        drop(self.enter(order)?);
        let Bytes { address, len } = order.bytes;
        AddressRange::of(&self.memory).check(device, order.bytes)?;
        match order.direction {
            CopyDirection::Get => Ok(()),
            CopyDirection::Put => {
                self.undo.forget();
                self.memory.touch(DeviceAddress::new(address), len)
            }
        }
        .map_err(|error| RequestError::DeviceFailed { device, why: error.to_string() })
    }

    /// Keeps the device in the communicator of `order` until the guard is dropped.
    fn enter(&self, order: &CopyOrder) -> Result<RwLockReadGuard<'_, Option<CommId>>, RequestError> {
        let comm = self.comm.read().unwrap_or_else(PoisonError::into_inner);
        if *comm == Some(order.comm) {
            Ok(comm)
        } else {
            Err(RequestError::NotAllocated { device: self.device })
        }
    }

    fn put(&self, order: &CopyOrder, stream: &UnixStream, buffer: &mut Vec<u8>) -> Result<()> {
        self.in_pieces(order, buffer, |address, piece| {
            DeadlineStream::new(stream, self.patience)
                .read_exact(piece)
                .map_err(|error| CLIENT.error(error))?;
            let _entered = self.enter(order)?;
            self.memory.copy_host_to_device(address, piece).map_err(|error| self.refusal(&error))
        })
    }

    fn get(&self, order: &CopyOrder, stream: &UnixStream, buffer: &mut Vec<u8>) -> Result<()> {
        self.in_pieces(order, buffer, |address, piece| {
            let entered = self.enter(order)?;
            self.memory.copy_device_to_host(address, piece)?;
            drop(entered);
            DeadlineStream::new(stream, self.patience).write_all(piece).map_err(|error| CLIENT.error(error))
        })
    }

    fn in_pieces(
        &self,
        order: &CopyOrder,
        buffer: &mut Vec<u8>,
        mut copy: impl FnMut(DeviceAddress, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let Bytes { mut address, len } = order.bytes;
        let end = address + len;
        let room = usize::try_from(len).map_or(PIECE, |len| len.min(PIECE));
        buffer.resize(room.max(buffer.len()), 0);
        while address < end {
            let len = usize::try_from(end - address).map_or(PIECE, |left| left.min(PIECE));
            copy(DeviceAddress::new(address), &mut buffer[..len])?;
            address += len as u64;
        }
        Ok(())
    }

    /// Returns the answer to a client whose bytes the system has no memory for.
    fn refusal(&self, error: &Error) -> CoordinatorError {
        RequestError::DeviceFailed { device: self.device, why: format!("{error:?}") }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::handshake::{PeerRole, greet};
    use crate::shm::{Backing, Identity};

    /// A copy of so many bytes that has been let in.
    fn begin(copies: &CopyServer, direction: CopyDirection, len: u64) -> UnixStream {
        let address = SocketAddr::from_abstract_name(copies.socket()).unwrap();
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        greet(&stream, PeerRole::Client, IoContext { peer: "device", ..CLIENT }).unwrap();
        let (device, comm, bytes) = (DeviceId::new(7), CommId::new(1), Bytes { address: 0x1000, len });
        write(&mut stream, &CopyOrder { device, comm, bytes, direction }, CLIENT).unwrap();
        read::<Result<(), RequestError>>(&mut stream, CLIENT).unwrap().unwrap();
        stream
    }

    #[test]
    fn clients_that_send_byte_by_byte_keep_nobody_from_the_memory_for_long() {
        let identity = Identity { job: 7, epoch: 0, owner: 0 };
        let memory = DeviceMemory::create(&Backing::Anonymous, DeviceAddress::new(0x10_1000), identity);
        // Each of them is to have begun in it, be the machine busy.
        let patience = Duration::from_secs(1);
        let copies =
            CopyServer::start(DeviceId::new(7), Arc::new(memory.unwrap()), Undo::default(), patience)
                .unwrap();
        copies.admit(Some(CommId::new(1)));
        let slow: Vec<_> = (0..MAX_COPIES).map(|_| begin(&copies, CopyDirection::Put, 0x1_0000)).collect();
        let drip = std::thread::spawn(move || {
            // Until the last of them was hung up on.
            let is_heard = |mut stream: &UnixStream| stream.write_all(&[1]).is_ok();
            while slow.iter().filter(|stream| is_heard(stream)).count() > 0 {
                poll(&mut [], poll_timeout(Some(Duration::from_millis(5)))).unwrap();
            }
        });
        let mut bytes = [1; 4];
        begin(&copies, CopyDirection::Get, 4).read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 4], "what has not come whole changes nothing");
        drip.join().unwrap();
    }

    #[test]
    fn what_was_never_written_is_read_without_memory_for_it() {
        let identity = Identity { job: 7, epoch: 0, owner: 0 };
        let memory = DeviceMemory::create(&Backing::Anonymous, DeviceAddress::new(0x80_1000), identity);
        let memory = Arc::new(memory.unwrap());
        let copies =
            CopyServer::start(DeviceId::new(7), Arc::clone(&memory), Undo::default(), PATIENCE).unwrap();
        copies.admit(Some(CommId::new(1)));
        let mut bytes = vec![1; 0x80_0000];
        begin(&copies, CopyDirection::Get, 0x80_0000).read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(memory.used(), [], "nor does a checkpoint write it");
    }
}
