//! The context as the query host sees it: shards behind channels. Sends queries, collects partials, merges nothing.

use std::{net::SocketAddr, sync::Arc};

use asterism_kernels::{Backend, Heads, Mask, Partial};
use asterism_models::{ContextAttention, Decoder, ModelError, ShardPartial};
use asterism_transport::{Channel, Frame, FrameHeader, FrameKind, FrameReceiver, FrameSender, PayloadType};
use rkyv::util::AlignedVec;
use tokio::{runtime::Handle, sync::mpsc, time::Duration};

use crate::{
    link::Links,
    messages::{Attach, Generate, Opening, PartialsMeta, ShardHolder, StreamingMask, WireMessage},
    payload,
};

/// Longest wait for a context host to accept a channel.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// What arrives while a step is under way: an answer, or why there will be none.
pub type Arrival = Result<(usize, Frame), ModelError>;

/// The shards of one job on their hosts.
pub struct RemoteContext<B: Backend> {
    decoder: Arc<Decoder<B>>,
    runtime: Handle,
    job: u64,
    holders: Vec<Holder>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    step: u32,
    rows: usize,
    layer: usize,
}

struct Holder {
    host: String,
    blocks: Vec<u32>,
    sender: Box<dyn FrameSender>,
    reader: tokio::task::JoinHandle<()>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn lost(host: &str, cause: impl ToString) -> ModelError {
    ModelError::Host { host: host.to_string(), cause: cause.to_string() }
}

impl<B: Backend> RemoteContext<B> {
    /// Opens a channel to every holder of a shard. `arrivals` also brings the supervisor's order to stop.
    pub async fn open(
        decoder: Arc<Decoder<B>>,
        links: &Links,
        generate: &Generate,
        (arrived, arrivals): (mpsc::UnboundedSender<Arrival>, mpsc::UnboundedReceiver<Arrival>),
    ) -> Result<Self, ModelError> {
        let mut holders = Vec::with_capacity(generate.holders.len());
        for (at, holder) in generate.holders.iter().enumerate() {
            let address: SocketAddr = holder.address.parse().map_err(|error| lost(&holder.host, error))?;
            let channel = tokio::time::timeout(CONNECT_DEADLINE, links.channel(address))
                .await
                .map_err(|_| lost(&holder.host, format!("no answer from {} in 5 s", holder.address)))?
                .map_err(|cause| lost(&holder.host, cause))?;
            holders.push(attach(at, holder, generate.job, channel, arrived.clone()).await?);
        }
        let (runtime, job) = (Handle::current(), generate.job);
        Ok(Self { decoder, runtime, job, holders, arrivals, step: 0, rows: 0, layer: 0 })
    }

    fn read(&self, at: usize, frame: &Frame) -> Result<Vec<ShardPartial<B>>, ModelError> {
        let holder = &self.holders[at];
        let wrong = |cause: String| lost(&holder.host, cause);
        let header = frame.header;
        let shards = match PartialsMeta::read(&frame.meta, &holder.host).map_err(|error| wrong(error.to_string()))? {
            PartialsMeta::Shards(shards) => shards,
            PartialsMeta::Failed { cause } => return Err(wrong(cause)),
        };
        let asked = (self.step, self.layer as u32, self.rows as u32);
        if header.kind != FrameKind::Partials || (header.step, header.layer, header.rows) != asked {
            return Err(wrong(format!("asked for (step, layer, rows) {asked:?}, it answered {header:?}")));
        }
        if shards.iter().map(|shard| shard.block).ne(holder.blocks.iter().copied()) {
            return Err(wrong(format!("it holds shards {:?} and answered for {shards:?}", holder.blocks)));
        }
        let backend = self.decoder.backend();
        let Heads { query, dim, .. } = self.decoder.config().heads;
        let (outputs, lses) = (query * self.rows * dim, query * self.rows);
        let values = payload::read(&frame.payload, shards.len() * (outputs + lses), PayloadType::F32).map_err(wrong)?;
        let partial = |values: &[f32]| -> Result<_, ModelError> {
            let (output, lse) = values.split_at(outputs);
            Ok(Partial {
                output: backend.upload(&[query, self.rows, dim], output)?,
                lse: backend.upload(&[query, self.rows], lse)?,
            })
        };
        let answers = shards.iter().zip(values.chunks(outputs + lses));
        answers
            .map(|(shard, values)| {
                let (block, keys) = (shard.block as usize, shard.keys as usize);
                Ok(ShardPartial { block, keys, partial: partial(values)? })
            })
            .collect()
    }
}

impl<B: Backend> ContextAttention<B> for RemoteContext<B> {
    fn ask(&mut self, layer: usize, q: &B::Tensor, mask: Mask) -> Result<(), ModelError> {
        let backend = self.decoder.backend();
        if layer == 0 {
            self.step += u32::from(self.rows > 0);
        }
        (self.layer, self.rows) = (layer, backend.shape(q)[1]);
        let mut bytes = Vec::new();
        let payload_type = payload::payload_type(backend.dtype());
        payload::write(&mut bytes, &backend.download(q)?, payload_type);
        let payload = bytes::Bytes::from(bytes);
        let meta = archived(mask);
        let header = FrameHeader {
            kind: FrameKind::Query,
            job: self.job,
            shard_set: 0,
            layer: layer as u32,
            step: self.step,
            rows: self.rows as u32,
            payload_type,
        };
        for holder in &mut self.holders {
            let frame = Frame::new(header, meta.clone(), payload.clone());
            self.runtime.block_on(holder.sender.send(frame)).map_err(|cause| lost(&holder.host, cause))?;
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<ShardPartial<B>>, ModelError> {
        let mut answers = Vec::new();
        for _ in 0..self.holders.len() {
            let (at, frame) = self.arrivals.blocking_recv().ok_or(ModelError::Cancelled)??;
            answers.extend(self.read(at, &frame)?);
        }
        Ok(answers)
    }
}

/// The mask for a query's meta; nothing when every key is seen.
fn archived(mask: Mask) -> AlignedVec {
    match mask {
        Mask::Streaming { sink, window, first_row, first_key } => {
            let [sink, window, first_row, first_key] = [sink, window, first_row, first_key].map(|size| size as u64);
            StreamingMask { sink, window, first_row, first_key }.archive()
        }
        Mask::None | Mask::Causal | Mask::From { .. } => AlignedVec::default(),
    }
}

async fn attach(
    at: usize,
    holder: &ShardHolder,
    job: u64,
    mut channel: Channel,
    arrived: mpsc::UnboundedSender<Arrival>,
) -> Result<Holder, ModelError> {
    let opening = Opening::Attach(Attach { job, blocks: holder.blocks.clone() });
    channel.sender.send(opening.frame()).await.map_err(|cause| lost(&holder.host, cause))?;
    let reader = tokio::spawn(read_all(at, holder.host.clone(), channel.receiver, arrived));
    Ok(Holder { host: holder.host.clone(), blocks: holder.blocks.clone(), sender: channel.sender, reader })
}

async fn read_all(
    at: usize,
    host: String,
    mut receiver: Box<dyn FrameReceiver>,
    arrived: mpsc::UnboundedSender<Arrival>,
) {
    loop {
        let arrival = match receiver.receive().await {
            Ok(Some(frame)) => Ok((at, frame)),
            Ok(None) => Err(lost(&host, "it closed the channel")),
            Err(cause) => Err(lost(&host, cause)),
        };
        let ended = arrival.is_err();
        if arrived.send(arrival).is_err() || ended {
            return;
        }
    }
}
