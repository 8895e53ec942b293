//! Answers that are charged for their memory before they are built, and until they have been read, however slowly. Words none.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use actix_web::{
    HttpRequest, HttpResponse,
    body::{BodySize, MessageBody},
    http::header::ContentType,
};
use asterism_actors::capacity::CapacityShare;
use bytes::Bytes;
use serde::Serialize;

use super::intake;
use crate::api::http::error::Refusal;

/// An answer in memory, with its share of that.
struct Charged {
    answer: Bytes,
    _share: CapacityShare,
}

impl MessageBody for Charged {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.answer.len() as u64)
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        let answer = std::mem::take(&mut self.answer);
        Poll::Ready((!answer.is_empty()).then_some(Ok(answer)))
    }
}

/// What `build` makes, as JSON. `most`: bytes that it takes meanwhile, about.
pub async fn json<T: Serialize>(
    request: &HttpRequest,
    most: usize,
    build: impl FnOnce() -> T,
) -> Result<HttpResponse, Refusal> {
    let (intake, holder) = intake::of(request);
    let mut share = intake.room(&holder, most).await?;
    let answer = serde_json::to_vec(&build()).expect("plain values are JSON");
    share.shrink(answer.len());
    Ok(HttpResponse::Ok().content_type(ContentType::json()).body(Charged { answer: answer.into(), _share: share }))
}
