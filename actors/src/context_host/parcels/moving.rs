//! A shard that moves to another host as it lies: its keys and values go layer by layer over a channel of their own, and are kept
//! once their checksum is that of what was sent. Decides nothing.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use asterism_kernels::Backend;
use asterism_models::{Decoder, EncodedShard, ModelError, Parcel, Part};
use asterism_plan::Shard;
use asterism_transport::{Channel, Frame, FrameKind, FrameSender};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{
    compute::ReportSink,
    context_host::{
        command::{ContextHostEvent, EncodeWork, Failure},
        error::{ChannelError, FetchError, Refusal},
        parcels::{
            frames::{Parcels, take_first},
            pieces::{Joiner, Memory, ReceivedParcel},
        },
        stop::StopFlag,
        store::ShardStore,
    },
    link::Links,
    machine,
    messages::{ChannelOpening, EncodeShards, Encoded, ParcelMeta, ShardHolder, ShardSent, WireMessage},
    payload::{self, PIECE_BYTES},
};

/// Frames that wait at most for the channel to take them.
const FRAMES_AHEAD: usize = 4;
/// Longest wait for the next frame.
const SILENCE: Duration = Duration::from_secs(20);

/// Sends the keys and values of a shard that is held here.
pub async fn send<B: Backend>(
    mut sender: Box<dyn FrameSender>,
    (store, decoder): (&ShardStore<B>, &Arc<Decoder<B>>),
    (context, block): (u64, u32),
) -> Result<(), ChannelError> {
    let mut held = store.find(context, &[block]).map_err(|block| Refusal::Missing { context, block })?;
    let (shard, decoder) = (held.swap_remove(0), decoder.clone());
    let digest = shard.digest;
    let (frames, mut waiting) = mpsc::channel(FRAMES_AHEAD);
    let reading = machine::spawn(move || read(&decoder, &shard, &frames));
    while let Some(frame) = waiting.recv().await {
        sender.send(frame).await?;
    }
    let read = reading.await.map_err(|panic| ChannelError::Panicked { cause: panic.to_string() })?;
    let checksum = read.map_err(|error| Refusal::NotComputed { cause: error.to_string() })?;
    Ok(sender.send(ShardSent { context, block, digest, checksum }.frame()).await?)
}

/// Gives out the frames of a shard's layers. Returns the checksum of their bytes.
fn read<B: Backend>(
    decoder: &Decoder<B>,
    shard: &EncodedShard<B>,
    frames: &mpsc::Sender<Frame>,
) -> Result<[u8; 32], ModelError> {
    let (parcels, mut memory, mut checksum) =
        (Parcels { backend: decoder.backend() }, Memory::default(), blake3::Hasher::new());
    for layer in 0..shard.layers.len() {
        let parcel = Parcel { layer, part: Part::Keys, from: shard.block, to: None };
        let raw = shard.raw(decoder, layer)?;
        let layer = (decoder.config().heads, shard.tokens, &*raw);
        parcels.kept_frames(parcel, layer, (PIECE_BYTES, &mut memory), |_, frame| {
            checksum.update(&frame.payload);
            machine::block_on(frames.send(frame)).map_err(|_| ModelError::Cancelled)
        })?;
    }
    Ok(*checksum.finalize().as_bytes())
}

/// What shards are fetched with.
pub struct FetchWorker<B: Backend> {
    /// The model.
    pub decoder: Arc<Decoder<B>>,
    /// Links to other hosts.
    pub links: Arc<Links>,
    /// Where shards are laid.
    pub store: ShardStore<B>,
    /// Set when the work is to stop.
    pub stop: StopFlag,
    /// Where events go.
    pub post: ReportSink<ContextHostEvent>,
}

impl<B: Backend> FetchWorker<B> {
    /// Fetches the shards of a work, lays them ready and says how it ended.
    pub fn run(self, work: &EncodeWork) {
        let (began, number) = (Instant::now(), work.work);
        let fetched = machine::block_on(async {
            tokio::select! {
                biased;
                fetched = self.fetch_all(work) => Some(fetched),
                () = self.stop.wait() => None,
            }
        });
        let failure = match fetched {
            Some(Ok((shards, encoded))) => {
                let bytes: u64 = encoded.iter().map(|shard: &Encoded| shard.kv_bytes).sum();
                let seconds = began.elapsed().as_secs_f64();
                tracing::info!(
                    context = work.order.context,
                    shards = shards.len(),
                    bytes,
                    seconds,
                    "shards came as they lay"
                );
                self.store.lay_ready(number, shards);
                return (self.post)(ContextHostEvent::Encoded { work: number, encoded, used: 0.0 });
            }
            Some(Err((host, cause))) => {
                tracing::warn!(context = work.order.context, %host, %cause, "shards did not come; they are encoded here");
                let (code, message) = ("host_lost".into(), format!("{host}: {cause}"));
                Some(Failure { peer_lost: true, crowded: false, code, message })
            }
            None => None,
        };
        (self.post)(ContextHostEvent::Stopped { work: number, failure, used: 0.0 });
    }

    async fn fetch_all(&self, work: &EncodeWork) -> Result<(Vec<EncodedShard<B>>, Vec<Encoded>), (String, FetchError)> {
        let (mut shards, mut encoded) = (Vec::new(), Vec::new());
        for shard in &work.order.shards {
            let block = shard.block;
            let holder = work.order.peers.iter().find(|peer| peer.blocks.contains(&(block as u32)));
            let holder = holder.ok_or_else(|| ("nobody".to_string(), FetchError::NoHolder { block }))?;
            let came = self.fetch(&work.order, shard, holder).await;
            let (came, bytes) = came.map_err(|cause| (holder.host.clone(), cause))?;
            encoded.push(Encoded {
                context: work.order.context,
                block: block as u32,
                digest: came.digest,
                kept_tokens: came.tokens as u64,
                kv_bytes: came.bytes(&self.decoder),
                seconds: 0.0,
                computing_s: 0.0,
                operations: 0,
                pairs: 0,
                exchange_bytes: bytes,
                cached: true,
            });
            shards.push(came);
        }
        Ok((shards, encoded))
    }

    /// One shard, and the bytes that came.
    async fn fetch(
        &self,
        order: &EncodeShards,
        shard: &Shard,
        holder: &ShardHolder,
    ) -> Result<(EncodedShard<B>, u64), FetchError> {
        let (context, block, ticket) = (order.context, shard.block as u32, order.ticket);
        let Channel { mut sender, mut receiver } = self.links.channel(&holder.host, &holder.endpoints).await?;
        sender.send(ChannelOpening::Fetch { context, block, ticket }.frame()).await?;
        let mut coming = Coming {
            decoder: &self.decoder,
            shard: EncodedShard::coming(shard),
            joiner: Joiner::default(),
            checksum: blake3::Hasher::new(),
            bytes: 0,
        };
        loop {
            let frame = timeout(SILENCE, receiver.receive()).await;
            let frame = frame.map_err(|_| FetchError::Silent { waited: SILENCE })??;
            let (layers, of) = (coming.shard.layers.len(), self.decoder.config().layers);
            let frame = frame.ok_or(FetchError::Short { layers, of })?;
            match frame.header.kind {
                FrameKind::Data if layers < of => coming.take(frame, &holder.host)?,
                FrameKind::Control if layers == of => {
                    let sent = ShardSent::read(&frame.meta, &holder.host).map_err(ChannelError::from)?;
                    return coming.whole((context, block), &sent);
                }
                kind => {
                    let expected = format!("layer {layers} of {of} or the end");
                    return Err(FetchError::Other { expected, got: format!("a {kind:?} frame") });
                }
            }
        }
    }
}

/// A shard of which some layers have come.
struct Coming<'a, B: Backend> {
    decoder: &'a Decoder<B>,
    shard: EncodedShard<B>,
    joiner: Joiner,
    checksum: blake3::Hasher,
    bytes: u64,
}

impl<B: Backend> Coming<'_, B> {
    /// Takes in a frame, which must be of the next layer.
    fn take(&mut self, frame: Frame, peer: &str) -> Result<(), FetchError> {
        let (layer, from) = (self.shard.layers.len(), self.shard.block);
        let meta = ParcelMeta::read(&frame.meta, peer).map_err(ChannelError::from)?;
        let parcels = Parcels { backend: self.decoder.backend() };
        let (shape, payload_type) = parcels.kept(self.decoder.config().heads, self.shard.tokens);
        let parcel = Parcel { layer, part: Part::Keys, from, to: None };
        let shapes = vec![shape.to_vec(); 2];
        let expected = ParcelMeta {
            layer: layer as u32,
            part: parcel.part.into(),
            from: from as u32,
            to: None,
            shapes,
            piece: meta.piece,
            pieces: meta.pieces,
        };
        let got = frame.header.payload_type;
        if meta != expected || frame.handed.is_some() || got != payload_type {
            let [expected, got] =
                [(&expected, payload_type), (&meta, got)].map(|(meta, kind)| format!("{meta:?} of {kind:?}"));
            return Err(FetchError::Other { expected, got });
        }
        self.checksum.update(&frame.payload);
        self.bytes += frame.payload.len() as u64;
        let piece = ReceivedParcel { meta, frame, more: Vec::new() };
        let joined = self.joiner.add(parcel, piece);
        let joined = joined.map_err(|cause| ChannelError::Piece { peer: peer.to_owned(), cause })?;
        if let Some((_, whole)) = joined {
            let mut pieces: VecDeque<&[u8]> = whole.payloads().collect();
            let (count, came) = (2 * shape.map(|size| size as usize).iter().product::<usize>(), whole.payloads());
            let bytes = came.map(<[u8]>::len).sum();
            payload::check(bytes, count, payload_type)
                .map_err(|error| ModelError::Host { host: peer.to_owned(), cause: error.to_string() })?;
            let [keys, values] = [(); 2].map(|()| take_first(&mut pieces, bytes / 2));
            self.shard.take(self.decoder, [&keys, &values])?;
        }
        Ok(())
    }

    /// The shard, if its keys and values are those that were sent. Whether it read what was asked for, the supervisor judges by the digest
    /// that it was sent with: behind a shared prefix it has another one than alone.
    fn whole(mut self, (context, block): (u64, u32), sent: &ShardSent) -> Result<(EncodedShard<B>, u64), FetchError> {
        let came = ShardSent { context, block, digest: sent.digest, checksum: *self.checksum.finalize().as_bytes() };
        if came != *sent {
            let [expected, got] =
                [sent, &came].map(|of| format!("{}.{}, {:02x?}", of.context, of.block, &of.checksum[..8]));
            return Err(FetchError::Checksum { expected, got });
        }
        self.shard.digest = sent.digest;
        self.decoder.backend().finish().map_err(ModelError::from)?;
        Ok((self.shard, self.bytes))
    }
}
