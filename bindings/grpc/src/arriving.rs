//! Bodies of requests, with an end to those that bring nothing for too long, or too much.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Sleep, sleep};
use tonic::Status;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Arriving<B> {
    body: B,
    /// How many bytes it may have.
    limit: usize,
    came: usize,
    /// How long nothing may come while somebody waits for it.
    idle_time: Duration,
    /// Ends so long after the last bytes. `None` while nobody waits.
    silence: Option<Pin<Box<Sleep>>>,
}

impl<B> Arriving<B> {
    pub(crate) fn new(body: B, limit: usize, idle_time: Duration) -> Self {
        Self { body, limit, came: 0, idle_time, silence: None }
    }

    /// # Errors
    /// `ResourceExhausted` where more than the limit has come.
    fn count(&mut self, frame: &Frame<Bytes>) -> Result<(), Status> {
        self.came = self.came.saturating_add(frame.data_ref().map_or(0, Bytes::len));
        if self.came <= self.limit {
            return Ok(());
        }
        let text = format!("a call of this method has at most {} bytes, and more came", self.limit);
        Err(Status::resource_exhausted(text))
    }
}

impl<B> Body for Arriving<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Error>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.silence = None;
            let counted = |frame: Frame<Bytes>| Ok(self.count(&frame).map(|()| frame)?);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into).and_then(counted)));
        }
        let idle_time = self.idle_time;
        ready!(self.silence.get_or_insert_with(|| Box::pin(sleep(idle_time))).as_mut().poll(context));
        let text = format!("the call has brought nothing for {idle_time:?}, so it has ended; call again");
        Poll::Ready(Some(Err(Status::deadline_exceeded(text).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt, Full, StreamBody};
    use tonic::Code;

    use super::*;

    fn code(error: &Error) -> Code {
        error.downcast_ref::<Status>().unwrap().code()
    }

    #[tokio::test]
    async fn a_call_that_brings_nothing_any_more_ends_with_a_status() {
        let first = tokio_stream::once(Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"ab"))));
        let stalled = tokio_stream::StreamExt::chain(first, tokio_stream::pending());
        let mut body = Arriving::new(StreamBody::new(stalled), 8, Duration::from_millis(20));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ab");
        assert_eq!(code(&body.frame().await.unwrap().unwrap_err()), Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_call_with_too_much_is_refused_as_soon_as_that_has_come() {
        let whole = |limit| Arriving::new(Full::new(Bytes::from_static(b"abc")), limit, Duration::MAX);
        assert_eq!(whole(3).collect().await.unwrap().to_bytes(), "abc");
        assert_eq!(code(&whole(2).collect().await.unwrap_err()), Code::ResourceExhausted);
    }
}
