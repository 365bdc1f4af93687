//! The front's connections with the coordinator: a client each, one request at a time.
//!
//! What groups need is [sent](Connections::sent): the answer wakes the task that waits for it. All
//! else is [asked](Connections::ask) for in a thread, which costs two more wake-ups. Copies block,
//! so they are to have one.
//!
//! Two kinds of requests have places of their own. Whatever waits for devices can then not keep a
//! status from being told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shmccl::coordinator::{Client, CoordinatorError, RuntimeDirectory, Sent};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::Status;

use crate::refusal::Refusal;

/// The most requests at a time that are answered at once.
const QUICK: usize = 24;

/// The most requests at a time that wait for devices.
const SLOW: usize = 96;

/// The most threads that wait at a time.
pub(crate) const MAX_THREADS: usize = QUICK + SLOW;

/// The most actions at a time that go on without their callers.
const MAX_ACTIONS: usize = 256;

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
    idle: Arc<Mutex<Idle>>,
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    actions: Arc<Semaphore>,
}

/// Clients that nobody uses.
#[derive(Debug, Default)]
struct Idle {
    /// The clients that wait in threads.
    waiting: Vec<Client>,
    /// The clients whose answers wake tasks.
    woken: Vec<AsyncFd<Client>>,
}

impl Connections {
    pub(crate) fn new(directory: RuntimeDirectory) -> Self {
        let places = |n| Arc::new(Semaphore::new(n));
        let (quick, slow, actions) = (places(QUICK), places(SLOW), places(MAX_ACTIONS));
        Self { directory, idle: Arc::default(), quick, slow, actions }
    }

    /// Has `action` done. It goes on if nobody waits for it any more.
    ///
    /// # Errors
    /// Fails as `action` does.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        action: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Status> {
        let place = Arc::clone(&self.actions).acquire_owned().await.map_err(|_| ending())?;
        let done = tokio::spawn(async move {
            let _place = place;
            action.await
        });
        done.await.map_err(|_| ending())?.map_err(Status::from)
    }

    /// Checks that there is a coordinator to send requests to.
    ///
    /// # Errors
    /// Returns the errors of the connection. Nothing has been sent then.
    pub(crate) async fn reach(&self) -> Result<(), CoordinatorError> {
        let client = self.take_woken().await?;
        self.idle().woken.push(client);
        Ok(())
    }

    /// Has `send` send a request, and waits for the answer.
    ///
    /// # Errors
    /// Returns the errors of the request and of the connection.
    pub(crate) async fn sent<T>(
        &self,
        pace: Pace,
        send: impl FnOnce(&mut Client) -> Result<Sent<T>, CoordinatorError>,
    ) -> Result<T, CoordinatorError> {
        let _place = self.place(pace).await.map_err(|_| hung_up())?;
        let mut client = self.take_woken().await?;
        let sent = send(client.get_mut())?;
        let answer = answer_to(&mut client, sent).await;
        // In any other case it is not known what comes next.
        if matches!(answer, Ok(_) | Err(CoordinatorError::Refused(_))) {
            self.idle().woken.push(client);
        }
        answer
    }

    /// Has `action` ask the coordinator in a thread. It goes on if nobody waits for the answer any
    /// more.
    ///
    /// # Errors
    /// Returns the errors of `action` and of the connection.
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
        let place = self.place(pace).await?;
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

    async fn place(&self, pace: Pace) -> Result<OwnedSemaphorePermit, Status> {
        let places = if pace == Pace::Quick { &self.quick } else { &self.slow };
        Arc::clone(places).acquire_owned().await.map_err(|_| ending())
    }

    /// Returns a client that the coordinator has not hung up on, and whose answers wake tasks.
    async fn take_woken(&self) -> Result<AsyncFd<Client>, CoordinatorError> {
        while let Some(client) = { self.idle().woken.pop() } {
            if client.get_ref().is_connected() {
                return Ok(client);
            }
        }
        let directory = self.directory.clone();
        let connected = tokio::task::spawn_blocking(move || Client::connect(&directory, PATIENCE));
        let client = connected.await.map_err(|_| hung_up())??;
        #[expect(deprecated, reason = "its successor is unsafe, for types that close their descriptors")]
        AsyncFd::with_interest(client, Interest::READABLE).map_err(|_| hung_up())
    }

    /// Returns a client that the coordinator has not hung up on. Its copies come behind groups.
    fn take(&self) -> Result<Client, Refusal> {
        while let Some(mut client) = { self.idle().waiting.pop() } {
            if client.is_connected() {
                client.keep_to(None);
                return Ok(client);
            }
        }
        Ok(Client::connect(&self.directory, PATIENCE)?.behind_groups())
    }

    fn give_back(&self, client: Client) {
        if client.is_connected() {
            self.idle().waiting.push(client);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the answer to a request, or until it takes too long.
async fn answer_to<T>(client: &mut AsyncFd<Client>, mut sent: Sent<T>) -> Result<T, CoordinatorError> {
    loop {
        let answer = match tokio::time::timeout(sent.next_look(), client.readable_mut()).await {
            Ok(ready) => {
                let mut ready = ready.map_err(|_| hung_up())?;
                let answer = ready.get_inner_mut().answer(&mut sent)?;
                if answer.is_none() {
                    ready.clear_ready();
                }
                answer
            }
            Err(_) => client.get_mut().answer(&mut sent)?,
        };
        if let Some(answer) = answer {
            return Ok(answer);
        }
    }
}

/// Returns the error of a connection that the system, or the end of the front, has taken away.
fn hung_up() -> CoordinatorError {
    CoordinatorError::Disconnected { peer: "coordinator" }
}

/// Returns the refusal of a front that is about to end.
fn ending() -> Status {
    Status::unavailable("this front is ending; ask the next one")
}
