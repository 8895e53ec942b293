//! What a context host answers: phase-2 queries with partial attention over its shards, keeping nothing of them. Parcels of
//! phase 1 go to the mailroom.

use std::{sync::Arc, time::Duration};

use asterism_kernels::{Backend, Heads, Mask};
use asterism_models::{Decoder, EncodedShard, ModelError};
use asterism_transport::{Channel, Frame, FrameHeader, FrameKind, Link, PayloadType, Transport, TransportError};
use bytes::Bytes;

use tokio::sync::Semaphore;

use super::{mailroom::Mailroom, store::ShardStore, tickets::Tickets};
use crate::{
    authority, link,
    messages::{Attach, Opening, PartialsMeta, ShardKeys, StreamingMask, WireMessage},
    metric, payload,
};

/// Channels of one link that are served at a time: a peer has one for each job or context that it works on here.
const CHANNELS: usize = 256;
/// Longest wait of another host's parcels for the order that they belong to.
const ORDER_DEADLINE: Duration = Duration::from_secs(60);

/// Answers every channel that a query host opens, until the transport closes.
pub async fn serve<B: Backend>(transport: Arc<dyn Transport>, desk: Desk<B>) {
    while let Some(link) = transport.accept().await {
        tokio::spawn(serve_link(link, desk.clone()));
    }
}

/// What a context host answers from.
pub struct Desk<B: Backend> {
    /// The model.
    pub decoder: Arc<Decoder<B>>,
    /// Shards held.
    pub store: ShardStore<B>,
    /// Parcels on their way to the encoder.
    pub mailroom: Arc<Mailroom>,
    /// What opens the contexts ordered here.
    pub tickets: Arc<Tickets>,
}

impl<B: Backend> Clone for Desk<B> {
    fn clone(&self) -> Self {
        let Self { decoder, store, mailroom, tickets } = self;
        Self { decoder: decoder.clone(), store: store.clone(), mailroom: mailroom.clone(), tickets: tickets.clone() }
    }
}

async fn serve_link<B: Backend>(link: Arc<dyn Link>, desk: Desk<B>) {
    let peer = link::peer_name(link.as_ref());
    let places = Arc::new(Semaphore::new(CHANNELS));
    while let Ok(channel) = link.accept().await {
        // A channel that finds no place is dropped, which its opener sees.
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (desk, peer, link) = (desk.clone(), peer.clone(), link.clone());
        tokio::spawn(async move {
            let _place = place;
            if let Err(cause) = serve_channel(channel, desk, (&link, &peer)).await {
                tracing::warn!(%peer, %cause, "a channel ended early");
            }
        });
    }
}

async fn serve_channel<B: Backend>(
    mut channel: Channel,
    desk: Desk<B>,
    (link, peer): (&Arc<dyn Link>, &str),
) -> Result<(), String> {
    let said = |error: TransportError| error.to_string();
    let Some(first) = channel.receiver.receive().await.map_err(said)? else { return Ok(()) };
    let opening = Opening::read(&first.meta, peer).map_err(|error| error.to_string())?;
    let admitted = authority::admit(link.peer(), &mut None, &opening);
    if let Err(denied) = admitted {
        metric::refused(denied.code(), peer, &denied);
        link.close(&denied.to_string());
        return Err(denied.to_string());
    }
    match opening {
        Opening::Attach(attach) => {
            let (context, block) = (attach.context, attach.blocks.first().copied().unwrap_or_default());
            match desk.tickets.find(context) {
                Some(ticket) if ticket == attach.ticket => answer_queries(channel, desk, first.header, attach).await,
                Some(_) => refuse(&mut channel, first.header, wrong_ticket(context, peer)).await,
                None => refuse(&mut channel, first.header, missing(context, block)).await,
            }
        }
        Opening::Pass { context, attempt, ticket } => {
            // Parcels may come before the order does; until then they stay in their channel.
            let known = tokio::select! {
                known = desk.tickets.wait(context) => known,
                error = link.closed() => return Err(error.to_string()),
                () = tokio::time::sleep(ORDER_DEADLINE) => {
                    return Err(format!("context {context} was not ordered here in {} s", ORDER_DEADLINE.as_secs()));
                }
            };
            if known != ticket {
                return refuse(&mut channel, first.header, wrong_ticket(context, peer)).await;
            }
            desk.mailroom.take_in((context, attempt), channel.receiver, peer).await
        }
    }
}

/// Counts and says that somebody has no business with a context.
fn wrong_ticket(context: u64, peer: &str) -> String {
    let cause = format!("context {context} opens to its ticket only, and another one was shown");
    metric::refused("ticket", peer, &cause);
    cause
}

async fn answer_queries<B: Backend>(
    mut channel: Channel,
    desk: Desk<B>,
    first: FrameHeader,
    attach: Attach,
) -> Result<(), String> {
    // Whoever asks for what is not here hears so before the first query, too.
    if let Err(block) = desk.store.find(attach.context, &attach.blocks) {
        return refuse(&mut channel, first, missing(attach.context, block)).await;
    }
    while let Some(frame) = channel.receiver.receive().await.map_err(|error| error.to_string())? {
        let header = frame.header;
        let (decoder, found) = (desk.decoder.clone(), desk.store.find(attach.context, &attach.blocks));
        let shards = match found {
            Ok(shards) => shards,
            Err(block) => return refuse(&mut channel, header, missing(attach.context, block)).await,
        };
        let answer = tokio::task::spawn_blocking(move || answer(&decoder, &shards, &frame))
            .await
            .map_err(|panic| panic.to_string())?;
        let (keys, payload) = match answer {
            Ok(answer) => answer,
            Err(cause) => return refuse(&mut channel, header, cause).await,
        };
        let header = FrameHeader { kind: FrameKind::Partials, payload_type: PayloadType::F32, ..header };
        let answer = Frame::new(header, PartialsMeta::Shards(keys).archive(), payload);
        channel.sender.send(answer).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn missing(context: u64, block: u32) -> String {
    format!("shard {block} of context {context} is not here")
}

/// Says why there is no answer, and no further one on this channel.
async fn refuse(channel: &mut Channel, asked: FrameHeader, cause: String) -> Result<(), String> {
    let meta = PartialsMeta::Failed { cause: cause.clone() };
    let header = FrameHeader { kind: FrameKind::Partials, payload_type: PayloadType::None, ..asked };
    let told = channel.sender.send(Frame::new(header, meta.archive(), Default::default())).await;
    Err(told.map_or_else(|error| error.to_string(), |()| cause))
}

/// Attention of one frame's queries over every shard, in order.
fn answer<B: Backend>(
    decoder: &Decoder<B>,
    shards: &[Arc<EncodedShard<B>>],
    frame: &Frame,
) -> Result<(Vec<ShardKeys>, Bytes), String> {
    let (header, backend) = (frame.header, decoder.backend());
    let (Heads { query, dim, .. }, layers) = (decoder.config().heads, decoder.config().layers);
    let (layer, rows) = (header.layer as usize, header.rows as usize);
    let payload_type = payload::payload_type(backend.dtype());
    if header.kind != FrameKind::Query || layer >= layers || header.payload_type != payload_type {
        return Err(format!("expected {payload_type:?} queries of a layer below {layers}, got {header:?}"));
    }
    let values = payload::read(&frame.payload, query * rows * dim, payload_type)?;
    let mask = mask(frame)?;
    let attended = backend
        .upload(&[query, rows, dim], &values)
        .and_then(|q| backend.cast(&q))
        .map_err(ModelError::from)
        .and_then(|q| attend(backend, shards, layer, (&q, mask)));
    attended.map_err(|error| error.to_string())
}

fn attend<B: Backend>(
    backend: &B,
    shards: &[Arc<EncodedShard<B>>],
    layer: usize,
    (q, mask): (&B::Tensor, Mask),
) -> Result<(Vec<ShardKeys>, Bytes), ModelError> {
    let mut keys = Vec::with_capacity(shards.len());
    let mut bytes = Vec::new();
    for shard in shards {
        let answer = shard.attend(backend, layer, q, mask)?;
        keys.push(ShardKeys { block: answer.block as u32, keys: answer.keys as u64 });
        payload::write(&mut bytes, &backend.download(&answer.partial.output)?, PayloadType::F32);
        payload::write(&mut bytes, &backend.download(&answer.partial.lse)?, PayloadType::F32);
    }
    Ok((keys, bytes.into()))
}

/// Which keys the rows of a query see.
fn mask(frame: &Frame) -> Result<Mask, String> {
    if frame.meta.is_empty() {
        return Ok(Mask::None);
    }
    let StreamingMask { sink, window, first_row, first_key } =
        StreamingMask::read(&frame.meta, "the query host").map_err(|error| error.to_string())?;
    let [sink, window, first_row, first_key] = [sink, window, first_row, first_key].map(|size| size as usize);
    Ok(Mask::Streaming { sink, window, first_row, first_key })
}
