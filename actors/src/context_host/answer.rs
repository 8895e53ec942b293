//! Phase 2 on a context host: queries in, partial attention over its shards out. Keeps nothing of a query.

use std::sync::Arc;

use asterism_kernels::{Backend, Heads};
use asterism_models::{Decoder, EncodedShard, ModelError};
use asterism_transport::{Channel, Frame, FrameHeader, FrameKind, Link, PayloadType, Transport, TransportError};
use bytes::Bytes;

use super::store::ShardStore;
use crate::{
    messages::{Attach, PartialsMeta, ShardKeys, WireMessage},
    payload,
};

/// Answers every channel that a query host opens, until the transport closes.
pub async fn serve<B: Backend>(transport: Arc<dyn Transport>, decoder: Arc<Decoder<B>>, store: ShardStore<B>) {
    while let Some(link) = transport.accept().await {
        tokio::spawn(serve_link(link, decoder.clone(), store.clone()));
    }
}

async fn serve_link<B: Backend>(link: Arc<dyn Link>, decoder: Arc<Decoder<B>>, store: ShardStore<B>) {
    let peer = link.peer_address().to_string();
    while let Ok(channel) = link.accept().await {
        let (decoder, store, peer) = (decoder.clone(), store.clone(), peer.clone());
        tokio::spawn(async move {
            if let Err(cause) = serve_channel(channel, decoder, store, &peer).await {
                tracing::warn!(%peer, %cause, "a phase-2 channel ended early");
            }
        });
    }
}

async fn serve_channel<B: Backend>(
    mut channel: Channel,
    decoder: Arc<Decoder<B>>,
    store: ShardStore<B>,
    peer: &str,
) -> Result<(), String> {
    let said = |error: TransportError| error.to_string();
    let Some(first) = channel.receiver.receive().await.map_err(said)? else { return Ok(()) };
    let attach = Attach::read(&first.meta, peer).map_err(|error| error.to_string())?;
    let shards = match store.find(attach.job, &attach.blocks) {
        Ok(shards) => shards,
        Err(block) => {
            let cause = format!("shard {block} of job {} is not here", attach.job);
            let meta = PartialsMeta::Failed { cause: cause.clone() };
            let header = FrameHeader { kind: FrameKind::Partials, payload_type: PayloadType::None, ..first.header };
            channel.sender.send(Frame::new(header, meta.archive(), Default::default())).await.map_err(said)?;
            return Err(cause);
        }
    };
    while let Some(frame) = channel.receiver.receive().await.map_err(said)? {
        let header = frame.header;
        let (decoder, shards) = (decoder.clone(), shards.clone());
        let answer = tokio::task::spawn_blocking(move || answer(&decoder, &shards, &frame))
            .await
            .map_err(|panic| panic.to_string())?;
        let header = FrameHeader { kind: FrameKind::Partials, payload_type: PayloadType::F32, ..header };
        let (meta, payload) = match answer {
            Ok((keys, payload)) => (PartialsMeta::Shards(keys), payload),
            Err(cause) => (PartialsMeta::Failed { cause }, Default::default()),
        };
        channel.sender.send(Frame::new(header, meta.archive(), payload)).await.map_err(said)?;
    }
    Ok(())
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
    if header.kind != FrameKind::Query || layer >= layers || header.payload_type != PayloadType::F32 {
        return Err(format!("expected f32 queries of a layer below {layers}, got {header:?}"));
    }
    let values = payload::read_f32(&frame.payload, query * rows * dim)?;
    attend(backend, shards, layer, (&[query, rows, dim], &values)).map_err(|error| error.to_string())
}

fn attend<B: Backend>(
    backend: &B,
    shards: &[Arc<EncodedShard<B>>],
    layer: usize,
    (shape, values): (&[usize], &[f32]),
) -> Result<(Vec<ShardKeys>, Bytes), ModelError> {
    let q = backend.cast(&backend.upload(shape, values)?)?;
    let mut keys = Vec::with_capacity(shards.len());
    let mut bytes = Vec::with_capacity(shards.len() * (values.len() + shape[0] * shape[1]) * size_of::<f32>());
    for shard in shards {
        let answer = shard.attend(backend, layer, &q)?;
        keys.push(ShardKeys { block: answer.block as u32, keys: answer.keys as u64 });
        payload::write_f32(&mut bytes, &backend.download(&answer.partial.output)?);
        payload::write_f32(&mut bytes, &backend.download(&answer.partial.lse)?);
    }
    Ok((keys, bytes.into()))
}
