//! Bodies of replies that take long or are large: what they hold until the client has taken them,
//! and an end to those that it does not take, or not in time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use hyper::body::{Body as HttpBody, Frame};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::body::Body;

/// When a reply ends that is not over by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLimits {
    /// The deadline of the call.
    pub(crate) deadline: Option<Instant>,
    /// How long a client may take nothing of what is there for it; `None` for as long as it likes.
    pub(crate) idle_time: Option<Duration>,
}

/// The body of a reply.
#[derive(Debug)]
struct Leaving {
    state: Arc<Mutex<ReplyState>>,
    guard: AbortHandle,
}

#[derive(Debug)]
struct ReplyState {
    /// `None` once it is over.
    going: Option<(Body, OwnedSemaphorePermit)>,
    /// Why it was ended.
    refusal: Option<Status>,
    /// Since when the client has taken nothing, unless nothing is there for it.
    untaken_since: Option<Instant>,
    waker: Option<Waker>,
}

/// Has a reply keep its `place` until the client has taken all of it, or the `limits` are passed.
pub(crate) fn keep(
    response: Response<Body>,
    place: OwnedSemaphorePermit,
    limits: ReplyLimits,
) -> Response<Body> {
    if response.body().is_end_stream() {
        return response;
    }
    response.map(|body| {
        let going = Some((body, place));
        let state = ReplyState { going, refusal: None, untaken_since: Some(Instant::now()), waker: None };
        let state = Arc::new(Mutex::new(state));
        let guard = tokio::spawn(guard(Arc::downgrade(&state), limits)).abort_handle();
        Body::new(Leaving { state, guard })
    })
}

/// Ends a reply when its limits are passed.
async fn guard(state: Weak<Mutex<ReplyState>>, limits: ReplyLimits) {
    while let Some(state) = state.upgrade() {
        let now = Instant::now();
        let Some(due) = locked(&state).due(now, limits) else { return };
        if due <= now {
            return locked(&state).end(limits.deadline.is_some_and(|deadline| deadline <= now));
        }
        drop(state);
        sleep_until(due).await;
    }
}

fn locked(state: &Mutex<ReplyState>) -> MutexGuard<'_, ReplyState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReplyState {
    /// Returns when it is to be looked at again, or ends. `None` for a reply without limits.
    fn due(&self, now: Instant, limits: ReplyLimits) -> Option<Instant> {
        let idle = limits.idle_time.map(|time| self.untaken_since.unwrap_or(now) + time);
        limits.deadline.into_iter().chain(idle).min()
    }

    fn end(&mut self, is_late: bool) {
        self.going = None;
        self.refusal = Some(Status::deadline_exceeded(if is_late {
            "the deadline of the call has passed"
        } else {
            "the client has taken nothing of the reply for too long; call again"
        }));
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some((body, _)) = &mut self.going else {
            return Poll::Ready(self.refusal.take().map(|refusal| {
                let mut trailers = HeaderMap::new();
                refusal.add_header(&mut trailers)?;
                Ok(Frame::trailers(trailers))
            }));
        };
        let frame = Pin::new(body).poll_frame(context);
        match &frame {
            Poll::Pending => (self.untaken_since, self.waker) = (None, Some(context.waker().clone())),
            Poll::Ready(Some(Ok(frame))) if frame.is_data() => self.untaken_since = Some(Instant::now()),
            Poll::Ready(_) => self.going = None,
        }
        frame
    }
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        locked(&self.state).poll_frame(context)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.guard.abort();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio_stream::StreamExt;
    use tokio_stream::wrappers::UnboundedReceiverStream;
    use tonic::Code;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(20);

    /// Makes a reply with one place. Returns what sends its bytes as well.
    fn reply(
        deadline: Option<Duration>,
        idle_time: Duration,
    ) -> (Arc<Semaphore>, UnboundedSender<Bytes>, Body) {
        let (places, (sender, coming)) = (Arc::new(Semaphore::new(1)), unbounded_channel());
        let frames = UnboundedReceiverStream::new(coming).map(|data| Ok::<_, Status>(Frame::data(data)));
        let place = Arc::clone(&places).try_acquire_owned().unwrap();
        let deadline = deadline.map(|limit| Instant::now() + limit);
        let limits = ReplyLimits { deadline, idle_time: Some(idle_time) };
        let response = keep(Response::new(Body::new(StreamBody::new(frames))), place, limits);
        (places, sender, response.into_body())
    }

    /// Takes the rest of a reply. Returns the code in its trailers, if it has any.
    async fn code_of(mut body: Body) -> Option<Code> {
        loop {
            let frame = body.frame().await?.unwrap();
            if let Ok(trailers) = frame.into_trailers() {
                return Some(Status::from_header_map(&trailers)?.code());
            }
        }
    }

    #[tokio::test]
    async fn a_reply_has_its_place_until_all_of_it_was_taken() {
        let (places, sender, mut body) = reply(None, LONG);
        sender.send(Bytes::from_static(b"ab")).unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ab");
        assert_eq!(places.available_permits(), 0);
        drop(sender);
        assert_eq!(code_of(body).await, None);
        assert_eq!(places.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_reply_that_nobody_takes_gives_its_place_back() {
        let (places, sender, body) = reply(None, SHORT);
        sender.send(Bytes::from_static(b"ab")).unwrap();
        drop(places.acquire().await.unwrap());
        assert!(sender.is_closed(), "nor has it bytes any more");
        assert_eq!(code_of(body).await, Some(Code::DeadlineExceeded));
    }

    #[tokio::test]
    async fn a_client_that_waits_for_the_rest_is_not_told_to_take_it() {
        let (_, sender, mut body) = reply(None, SHORT);
        let later = async {
            tokio::time::sleep(4 * SHORT).await;
            sender.send(Bytes::from_static(b"ab")).unwrap();
        };
        let (frame, ()) = tokio::join!(body.frame(), later);
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "ab");
    }

    #[tokio::test]
    async fn the_deadline_of_a_call_ends_its_reply_also_while_nothing_comes() {
        let (places, _sender, body) = reply(Some(SHORT), LONG);
        assert_eq!(code_of(body).await, Some(Code::DeadlineExceeded));
        assert_eq!(places.available_permits(), 1);
    }
}
