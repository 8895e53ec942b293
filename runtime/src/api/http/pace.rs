//! How slowly a request's body may come and an answer be read, and the end of a body that nobody reads on. Reads none itself.

use std::{
    any::Any,
    cell::RefCell,
    error::Error as StdError,
    future::poll_fn,
    io::ErrorKind,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix_web::{
    Error, HttpMessage,
    body::{BodySize, BoxBody, MessageBody},
    dev::{Payload, ServiceRequest, ServiceResponse},
    error::PayloadError,
    middleware::Next,
    rt::net::TcpStream,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use socket2::SockRef;
use tokio::time::{Instant, timeout_at};

/// Time for the head of a request.
pub const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Time between requests of one connection.
pub const KEPT_IDLE: Duration = Duration::from_secs(5);
/// Time for a body of a few bytes.
const BODY_GRACE: Duration = Duration::from_secs(10);
/// Bytes a second that a longer one has to bring.
const LEAST_RATE: u64 = 64 << 10;
/// Longest that a client may read nothing of an answer that waits for it.
const ANSWER_READ_WITHIN: Duration = Duration::from_secs(120);

type BodyPiece = Result<Bytes, PayloadError>;
type Shared = Rc<RefCell<Payload>>;

/// Takes in a connection: one whose client reads nothing is closed.
pub fn take_in(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_tcp_user_timeout(Some(ANSWER_READ_WITHIN)) {
        tracing::debug!(%error, "a client that reads nothing keeps its connection");
    }
}

/// Cuts a body that comes more slowly than any client that means it.
pub async fn keep(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let began = Instant::now();
    let body: Shared = Rc::new(RefCell::new(request.take_payload()));
    let pieces = stream::unfold((body.clone(), 0), move |(body, had)| read(began, body, had));
    request.set_payload(Payload::Stream { payload: Box::pin(pieces.fuse()) });
    let response = next.call(request).await?;
    let place = response.request().extensions().get::<ResponseGuard>().cloned();
    Ok(response.map_into_boxed_body().map_body(|_, answer| HeldAnswer { answer, _body: body, _place: place }))
}

/// What a request holds until its answer has been read, however slowly: in its extensions.
#[derive(Clone)]
pub struct ResponseGuard {
    _held: Arc<dyn Any + Send + Sync>,
}

impl ResponseGuard {
    /// Of something that is given back when it is dropped.
    pub fn holding(what: impl Any + Send + Sync) -> Self {
        Self { _held: Arc::new(what) }
    }
}

/// The next piece of a body that brought `had` bytes since it `began`.
async fn read(began: Instant, body: Shared, had: u64) -> Option<(BodyPiece, (Shared, u64))> {
    let deadline = began + BODY_GRACE + Duration::from_secs(had / LEAST_RATE);
    let piece = poll_fn(|context| body.borrow_mut().poll_next_unpin(context));
    let piece = match timeout_at(deadline, piece).await {
        Ok(piece) => piece?,
        Err(_) => Err(PayloadError::Io(ErrorKind::TimedOut.into())),
    };
    let had = had + piece.as_ref().map_or(0, |bytes| bytes.len() as u64);
    Some((piece, (body, had)))
}

/// An answer that holds its request's place and its body: where that has not ended by then, the connection is closed behind the answer.
/// Of one in chunks that was let go the rest is read, and it may have no end.
struct HeldAnswer {
    answer: BoxBody,
    _body: Shared,
    _place: Option<ResponseGuard>,
}

impl MessageBody for HeldAnswer {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.answer.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.answer).poll_next(context)
    }
}

/// Whether a body was cut because it came too slowly.
pub fn was_cut(error: &PayloadError) -> bool {
    matches!(error, PayloadError::Io(cause) if cause.kind() == ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_not_waited_for_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let _client = std::net::TcpStream::connect(address).expect("it listens");
        let (stream, _) = listener.accept().await.expect("a connection");
        take_in(&stream);
        assert_eq!(SockRef::from(&stream).tcp_user_timeout().expect("Linux has it"), Some(ANSWER_READ_WITHIN));
    }
}
