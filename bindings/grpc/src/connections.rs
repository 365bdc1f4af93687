//! The front's connections with the coordinator: a client each, one request at a time.
//!
//! A client waits in a thread of its own, so two kinds of requests have places of their own.
//! Whatever waits for devices can then not keep a status from being told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shmccl::coordinator::{Client, RuntimeDirectory};
use tokio::sync::{Semaphore, oneshot};
use tonic::Status;

use crate::refusal::Refusal;

/// The most requests at a time that are answered at once.
const QUICK: usize = 24;

/// The most requests at a time that wait for devices.
const SLOW: usize = 96;

/// The most threads that wait at a time.
pub(crate) const MAX_THREADS: usize = QUICK + SLOW;

/// How long an answer of the coordinator may take. What takes longer is asked for again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a request is answered at once, or waits for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Quick,
    Slow,
}

/// Connections with the coordinator of a directory, made as they are needed.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    directory: RuntimeDirectory,
    idle: Arc<Mutex<Vec<Client>>>,
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

impl Connections {
    pub(crate) fn new(directory: RuntimeDirectory) -> Self {
        let places = |n| Arc::new(Semaphore::new(n));
        Self { directory, idle: Arc::default(), quick: places(QUICK), slow: places(SLOW) }
    }

    /// Has `action` ask the coordinator. It goes on if nobody waits for the answer any more.
    ///
    /// # Errors
    /// Those of `action`, and of the connection.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        pace: Pace,
        action: impl FnOnce(&mut Client) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        self.ask_or_undo(pace, action, |_, _| {}).await
    }

    /// Like [`Connections::ask`], but has `undo` take back what `action` has done for a caller that
    /// has gone meanwhile.
    pub(crate) async fn ask_or_undo<T: Send + 'static>(
        &self,
        pace: Pace,
        action: impl FnOnce(&mut Client) -> Result<T, Refusal> + Send + 'static,
        undo: impl FnOnce(&mut Client, T) + Send + 'static,
    ) -> Result<T, Status> {
        let places = if pace == Pace::Quick { &self.quick } else { &self.slow };
        let place = Arc::clone(places).acquire_owned().await.map_err(|_| ending())?;
        let (told, answer) = oneshot::channel();
        let connections = self.clone();
        tokio::task::spawn_blocking(move || {
            let _place = place;
            let mut client = match connections.take() {
                Ok(client) => client,
                Err(refusal) => return drop(told.send(Err(refusal))),
            };
            if let Err(Ok(done)) = told.send(action(&mut client)) {
                undo(&mut client, done);
            }
            connections.give_back(client);
        });
        answer.await.map_err(|_| ending())?.map_err(Status::from)
    }

    /// Returns a client that the coordinator has not hung up on.
    fn take(&self) -> Result<Client, Refusal> {
        while let Some(client) = { self.idle().pop() } {
            if client.is_connected() {
                return Ok(client);
            }
        }
        Ok(Client::connect(&self.directory, PATIENCE)?)
    }

    fn give_back(&self, client: Client) {
        if client.is_connected() {
            self.idle().push(client);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Client>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The refusal of a front that is about to end.
fn ending() -> Status {
    Status::unavailable("this front is ending; ask the next one")
}
