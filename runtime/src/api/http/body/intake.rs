//! Bodies of jobs and sessions on their way in: bounded before they are read, read within a time, and few bytes of all at once.
//! Knows no request.

use std::{future::Future, pin::Pin, time::Duration};

use actix_web::{
    FromRequest, HttpMessage, HttpRequest,
    dev::Payload,
    http::{
        StatusCode,
        header::{CONTENT_ENCODING, CONTENT_LENGTH},
    },
    web::Data,
};
use asterism_actors::{
    JobError,
    capacity::{CapacityShare, Holder, SharedCapacity},
    machine,
    supervisor::{ModelFront, Supervisor},
};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::{field, weight};
use crate::api::http::{
    error::{self, Refusal},
    pace,
};

/// Memory of bodies that are read, parsed and tokenised at once, whichever listener they came to.
const ALL_BYTES: usize = 256 << 20;
/// Largest body, whatever the model takes.
const BODY_BYTES: usize = 32 << 20;
/// Bytes of a body beside its texts.
const REST_BYTES: usize = 64 << 10;
/// Largest body of a request that brings no text.
const SMALL_BYTES: usize = 16 << 10;
/// Longest wait for others to be done.
const ROOM_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for more of a body, and for all of it.
const MORE_WITHIN: Duration = Duration::from_secs(10);
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of a refused body is thrown away, and how long, so that its sender receives the reason: who cannot send on looks for no answer.
const DRAINED_BYTES: usize = 256 << 20;
const DRAINED_WITHIN: Duration = Duration::from_secs(3);
const DRAINED_PAUSE: Duration = Duration::from_millis(250);
/// A larger body is parsed beside those who answer.
const PARSED_HERE: usize = 64 << 10;

/// Bytes of the largest body of a request that a model can take.
fn body_of(model: &ModelFront) -> usize {
    // JSON writes a byte of text as three where it escapes what is not ASCII, and a token id as eleven at most.
    let texts = model.most_text_bytes().saturating_mul(3);
    texts.saturating_add(model.max_tokens.saturating_mul(22)).saturating_add(REST_BYTES).min(BODY_BYTES)
}

/// What bodies may take. Copies share it.
#[derive(Clone)]
pub struct Intake {
    of: LimitSource,
    room: SharedCapacity,
}

/// What the largest body follows from.
#[derive(Clone)]
enum LimitSource {
    /// What the models take that there are.
    Models(Supervisor),
    /// A test.
    #[cfg(test)]
    Bytes(usize),
}

impl Intake {
    /// For requests that a model of `supervisor` can take.
    pub fn new(supervisor: &Supervisor) -> Self {
        Self { of: LimitSource::Models(supervisor.clone()), room: SharedCapacity::new(ALL_BYTES) }
    }

    /// For bodies of so many bytes.
    #[cfg(test)]
    pub fn of_bytes(most: usize) -> Self {
        Self { of: LimitSource::Bytes(most), room: SharedCapacity::new(ALL_BYTES) }
    }

    /// Bytes of the largest body, and of the longest line of a batch.
    pub fn most(&self) -> usize {
        self.limit().0
    }

    /// The same, and what it comes from, for refusals.
    fn limit(&self) -> (usize, String) {
        match &self.of {
            LimitSource::Models(supervisor) => {
                let models = supervisor.models();
                let limits = models.iter().map(|model| (body_of(model), model));
                let (most, model) = limits.max_by_key(|(most, _)| *most).expect("a cluster has a model");
                (most, format!("{} takes at most {} tokens", model.name, model.max_tokens))
            }
            #[cfg(test)]
            LimitSource::Bytes(most) => (*most, "a test".into()),
        }
    }

    /// Reads a body, or says why not.
    async fn read(
        &self,
        holder: &Holder,
        declared: Option<usize>,
        body: &mut Payload,
    ) -> Result<(Vec<u8>, CapacityShare), Refusal> {
        let most = self.most();
        if declared.is_some_and(|length| length > most) {
            return Err(self.too_large(declared, body).await);
        }
        let (mut bytes, mut share, due) = (Vec::new(), self.room(holder, 0).await?, Instant::now() + BODY_TIMEOUT);
        while let Some(chunk) = next(body, due).await? {
            if bytes.len() + chunk.len() > most {
                drop((bytes, share));
                return Err(self.too_large(declared, body).await);
            }
            share.merge(self.room(holder, weight::unread(chunk.len())).await?);
            bytes.extend_from_slice(&chunk);
        }
        Ok((bytes, share))
    }

    /// Room for so many bytes in memory.
    pub async fn room(&self, holder: &Holder, bytes: usize) -> Result<CapacityShare, Refusal> {
        timeout(ROOM_WITHIN, self.room.take(holder, bytes)).await.map_err(|_| JobError::Busy.into())
    }

    /// The same for what nobody waits for on a connection.
    pub async fn awaited(&self, holder: &Holder, bytes: usize) -> CapacityShare {
        self.room.take(holder, bytes).await
    }

    /// What JSON takes beside its bytes, unless that is more than anybody may have.
    pub fn structure(&self, json: &[u8]) -> Result<usize, Refusal> {
        let structure = weight::structure(json);
        let (needed, most) = (weight::unread(json.len()).saturating_add(structure), self.room.most());
        if needed <= most {
            return Ok(structure);
        }
        let message = format!(
            "the request's {} bytes would take {needed} of memory, expected at most {most}: it has too many lists, \
             objects and fields",
            json.len()
        );
        Err(Refusal::of(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message))
    }

    /// Parses what has room already; more is taken for it before anything is built, and given back when it has been.
    async fn parse<T: DeserializeOwned + Send + 'static>(
        &self,
        holder: &Holder,
        (bytes, share): (Vec<u8>, &mut CapacityShare),
    ) -> Result<T, actix_web::Error> {
        let (least, structure) = (share.amount(), self.structure(&bytes)?);
        share.merge(self.room(holder, structure).await?);
        let (length, parse) = (bytes.len(), move || parsed(&bytes));
        let request = match length {
            0..=PARSED_HERE => parse(),
            _ => machine::spawn_behind(parse).await.map_err(|_| Refusal::from(JobError::Busy))?,
        };
        share.shrink(least);
        Ok(request?)
    }

    async fn too_large(&self, declared: Option<usize>, body: &mut Payload) -> Refusal {
        let (due, mut thrown) = (Instant::now() + DRAINED_WITHIN, 0);
        while let Ok(Some(Ok(chunk))) = timeout(DRAINED_PAUSE, body.next()).await {
            thrown += chunk.len();
            if thrown > DRAINED_BYTES || Instant::now() > due {
                break;
            }
        }
        let got = declared.map_or("more".to_string(), |length| format!("{length} bytes"));
        let (most, model) = self.limit();
        let message = format!("the request body has {got}, expected at most {most} bytes: {model}");
        Refusal::of(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
    }
}

async fn next(body: &mut Payload, due: Instant) -> Result<Option<Bytes>, Refusal> {
    let wait = MORE_WITHIN.min(due.saturating_duration_since(Instant::now()));
    match timeout(wait, body.next()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(chunk))) => Ok(Some(chunk)),
        Ok(Some(Err(error))) if pace::was_cut(&error) => Err(error::too_slow()),
        Ok(Some(Err(error))) => Err(Refusal::invalid(None, format!("the request body broke off: {error}"))),
        Err(_) => Err(error::too_slow()),
    }
}

/// A request out of its body, and its share of the room, which it has until it is dropped.
pub struct Taken<T> {
    request: T,
    share: CapacityShare,
}

impl<T> Taken<T> {
    /// The request, and what is to be dropped when it has been answered.
    pub fn into_parts(self) -> (T, CapacityShare) {
        (self.request, self.share)
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest for Taken<T> {
    type Error = actix_web::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self, Self::Error>>>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (intake, holder) = of(request);
        let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let json = check_json(request);
        let mut payload = payload.take();
        Box::pin(async move {
            json?;
            let (bytes, mut share) = intake.read(&holder, length, &mut payload).await?;
            let request = intake.parse(&holder, (bytes, &mut share)).await?;
            Ok(Self { request, share })
        })
    }
}

/// A request without texts out of its body; one without a body is one without fields.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest for Body<T> {
    type Error = actix_web::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self, Self::Error>>>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (intake, holder) = of(request);
        let json = check_json(request);
        let mut payload = payload.take();
        Box::pin(async move {
            let (mut bytes, due) = (Vec::new(), Instant::now() + BODY_TIMEOUT);
            let mut share = intake.room(&holder, weight::unread(SMALL_BYTES)).await?;
            while let Some(chunk) = next(&mut payload, due).await? {
                bytes.extend_from_slice(&chunk);
                if bytes.len() > SMALL_BYTES {
                    let message = format!("the request body is larger than {SMALL_BYTES} bytes");
                    return Err(Refusal::of(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message).into());
                }
            }
            match bytes.is_empty() {
                true => bytes = b"{}".to_vec(),
                false => json?,
            }
            Ok(Self(intake.parse(&holder, (bytes, &mut share)).await?))
        })
    }
}

/// What a request's body may take, and who holds that.
pub fn of(request: &HttpRequest) -> (Data<Intake>, Holder) {
    let intake = request.app_data::<Data<Intake>>().expect("every app of this module has its intake").clone();
    (intake, request.extensions().get::<Requester>().and_then(|by| by.0.clone()))
}

/// Whose request it is, for shares of what all have.
pub struct Requester(pub Holder);

fn check_json(request: &HttpRequest) -> Result<(), Refusal> {
    let packed =
        request.headers().get(CONTENT_ENCODING).filter(|how| !how.as_bytes().eq_ignore_ascii_case(b"identity"));
    if let Some(how) = packed {
        return Err(Refusal::content_encoding(&String::from_utf8_lossy(how.as_bytes())));
    }
    let got = request.content_type();
    if got.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(Refusal::media_type(got)) }
}

/// What some editors write before a text, and JSON does not have.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A text without the byte order mark at its front.
pub fn unmarked(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bytes = unmarked(bytes);
    serde_json::from_slice(bytes).map_err(|error| {
        let field = field::at_fault(bytes, &error);
        error::no_request(field.as_deref(), &error.to_string())
    })
}
