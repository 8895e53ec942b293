//! How slowly a request's body may come. Reads none itself.

use std::{io::ErrorKind, time::Duration};

use actix_web::{
    Error, HttpMessage,
    body::MessageBody,
    dev::{Payload, ServiceRequest, ServiceResponse},
    error::PayloadError,
    middleware::Next,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, timeout_at};

/// Time for a body of a few bytes.
const GRACE: Duration = Duration::from_secs(10);
/// Bytes a second that a longer one has to bring.
const LEAST_RATE: u64 = 64 << 10;

type Piece = Result<Bytes, PayloadError>;

/// Cuts a body that comes more slowly than any client that means it.
pub async fn keep(
    mut request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let began = Instant::now();
    let body = stream::unfold((request.take_payload(), 0), move |(body, had)| read(began, body, had));
    request.set_payload(Payload::Stream { payload: Box::pin(body) });
    next.call(request).await
}

/// The next piece of a body that brought `had` bytes since it `began`.
async fn read(began: Instant, mut body: Payload, had: u64) -> Option<(Piece, (Payload, u64))> {
    let deadline = began + GRACE + Duration::from_secs(had / LEAST_RATE);
    let piece = match timeout_at(deadline, body.next()).await {
        Ok(piece) => piece?,
        Err(_) => Err(PayloadError::Io(ErrorKind::TimedOut.into())),
    };
    let had = had + piece.as_ref().map_or(0, |bytes| bytes.len() as u64);
    Some((piece, (body, had)))
}

/// Whether a body was cut because it came too slowly.
pub fn was_cut(error: &PayloadError) -> bool {
    matches!(error, PayloadError::Io(cause) if cause.kind() == ErrorKind::TimedOut)
}
