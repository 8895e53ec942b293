//! The context as the query host sees it: shards behind channels. Carries out what [`Gather`] decides; merges nothing.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use asterism_kernels::{Backend, Heads, Mask, Partial};
use asterism_models::{ContextAttention, Decoder, ModelError, ShardPartial};
use asterism_transport::{Frame, FrameHeader, FrameKind, PayloadType};
use rkyv::util::AlignedVec;
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    gather::{self, Command, Gather},
    state::Event,
};
use crate::{
    host::Post,
    link::Links,
    messages::{
        Attach, Generate, Opening, PartialsMeta, Phase2Times, ShardHolder, ShardKeys, StreamingMask, WireMessage,
    },
    payload,
    ticket::Ticket,
};

/// Longest wait for a context host to accept a channel.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// What reaches a generation while it runs.
pub enum Arrival {
    /// A frame came over a channel.
    Frame(u64, Frame),
    /// A channel is of no use any more.
    Broke(u64, String),
    /// Where shards are from now on.
    Holders(Vec<ShardHolder>),
    /// The order to stop.
    Stop,
}

/// The shards of one job on their hosts.
pub struct RemoteContext<B: Backend> {
    decoder: Arc<Decoder<B>>,
    links: Arc<Links>,
    runtime: Handle,
    clock: Clock,
    job: u64,
    context: u64,
    ticket: Ticket,
    gather: Gather,
    channels: HashMap<u64, Line>,
    arrived: mpsc::UnboundedSender<Arrival>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    asked: Asked<B>,
    post: Post<Event>,
}

/// When things happen, and how long they take.
struct Clock {
    started: Instant,
    /// When the last answers were all there.
    collected: Instant,
    times: Box<Phase2Times>,
}

/// The layer step under way.
struct Asked<B: Backend> {
    header: FrameHeader,
    query: Option<Frame>,
    answers: Vec<ShardPartial<B>>,
    done: bool,
}

/// Shards that answered, and their answers if they are to the layer step under way.
type Answers<B> = (Vec<ShardKeys>, Option<Vec<ShardPartial<B>>>);

/// A channel to a holder, and the task that serves it.
struct Line {
    host: String,
    address: Option<SocketAddr>,
    queries: mpsc::UnboundedSender<Frame>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<B: Backend> RemoteContext<B> {
    /// Begins to open a channel to every holder of a shard. Returns where arrivals go, too; what stalls goes to `post`.
    pub fn open(
        decoder: Arc<Decoder<B>>,
        links: Arc<Links>,
        generate: &Generate,
        post: Post<Event>,
    ) -> (mpsc::UnboundedSender<Arrival>, Self) {
        let (started, (arrived, arrivals)) = (Instant::now(), mpsc::unbounded_channel());
        let header = FrameHeader {
            kind: FrameKind::Query,
            job: generate.job,
            shard_set: 0,
            layer: 0,
            step: 0,
            rows: 0,
            payload_type: payload::payload_type(decoder.backend().dtype()),
        };
        let mut context = Self {
            decoder,
            links,
            runtime: Handle::current(),
            clock: Clock { started, collected: started, times: Box::default() },
            job: generate.job,
            context: generate.context,
            ticket: generate.ticket,
            gather: Gather::default(),
            channels: HashMap::new(),
            arrived: arrived.clone(),
            arrivals,
            asked: Asked { header, query: None, answers: Vec::new(), done: false },
            post,
        };
        context.apply(gather::Event::Holders(generate.holders.clone()), None);
        (arrived, context)
    }

    /// A step is over, its token chosen.
    pub fn stepped(&mut self, took: Duration) {
        self.clock.times.step.add(took);
    }

    /// Where the seconds went.
    pub fn times(self) -> Box<Phase2Times> {
        self.clock.times
    }

    /// Applies an event; `answers` are those that came with it.
    fn apply(&mut self, event: gather::Event, mut answers: Option<Vec<ShardPartial<B>>>) {
        for command in self.gather.handle(self.clock.started.elapsed(), event) {
            match command {
                Command::Open { channel, holder } => self.connect(channel, holder),
                Command::Drop { channel } => {
                    let line = self.channels.remove(&channel);
                    line.and_then(|line| line.address).into_iter().for_each(|address| self.links.forget(address));
                }
                Command::Send { channel } => {
                    let (Some(line), Some(query)) = (self.channels.get(&channel), &self.asked.query) else { continue };
                    let _ = line.queries.send(query.clone());
                }
                Command::Take { blocks } => {
                    let taken = answers.take().into_iter().flatten();
                    self.asked.answers.extend(taken.filter(|answer| blocks.contains(&(answer.block as u32))));
                }
                Command::Done { .. } => self.asked.done = true,
                Command::Stalled { host, cause } => {
                    tracing::warn!(job = self.job, %host, %cause, "shards do not answer");
                    (self.post)(Event::Stalled { job: self.job, host, cause });
                }
            }
        }
    }

    fn connect(&mut self, channel: u64, holder: ShardHolder) {
        let (queries, asked) = mpsc::unbounded_channel();
        let (links, arrived) = (self.links.clone(), self.arrived.clone());
        let (context, ticket) = (self.context, self.ticket);
        let (host, address) = (holder.host.clone(), holder.address.parse().ok());
        let task = self.runtime.spawn(async move {
            let Err(cause) = serve(channel, &holder, (&links, (context, ticket)), asked, &arrived).await else {
                return;
            };
            let _ = arrived.send(Arrival::Broke(channel, cause));
        });
        self.channels.insert(channel, Line { host, address, queries, task });
    }

    /// Waits for the next arrival; none when it is time to tell a loss again.
    fn next(&mut self) -> Result<Option<Arrival>, ModelError> {
        let arrivals = &mut self.arrivals;
        let Some(deadline) = self.gather.deadline() else {
            return arrivals.blocking_recv().ok_or(ModelError::Cancelled).map(Some);
        };
        let left = deadline.saturating_sub(self.clock.started.elapsed());
        match self.runtime.block_on(async { tokio::time::timeout(left, arrivals.recv()).await }) {
            Ok(arrival) => arrival.ok_or(ModelError::Cancelled).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn heard(&mut self, channel: u64, frame: &Frame) -> Result<(), ModelError> {
        let broke = |cause| gather::Event::Broke { channel, cause };
        match self.read(channel, frame)? {
            Ok((shards, answers)) => {
                let (step, layer) = (frame.header.step, frame.header.layer);
                self.apply(gather::Event::Answer { channel, step, layer, shards }, answers);
            }
            Err(cause) => self.apply(broke(cause), None),
        }
        Ok(())
    }

    /// What a frame answers, or what is wrong with it.
    fn read(&self, channel: u64, frame: &Frame) -> Result<Result<Answers<B>, String>, ModelError> {
        let (header, asked) = (frame.header, self.asked.header);
        let shards = match PartialsMeta::read(&frame.meta, "the context host") {
            Ok(PartialsMeta::Shards(shards)) => shards,
            Ok(PartialsMeta::Failed { cause }) => return Ok(Err(cause)),
            Err(invalid) => return Ok(Err(invalid.to_string())),
        };
        if header.kind != FrameKind::Partials {
            return Ok(Err(format!("asked for partials, it sent {header:?}")));
        }
        if (header.step, header.layer) != (asked.step, asked.layer) {
            return Ok(Ok((shards, None)));
        }
        let (backend, rows) = (self.decoder.backend(), asked.rows as usize);
        let Heads { query, dim, .. } = self.decoder.config().heads;
        let (outputs, lses) = (query * rows * dim, query * rows);
        let values = match payload::read(&frame.payload, shards.len() * (outputs + lses), PayloadType::F32) {
            Ok(values) if header.rows == asked.rows => values,
            Ok(_) => return Ok(Err(format!("asked for {} rows, it answered {header:?}", asked.rows))),
            Err(cause) => return Ok(Err(cause)),
        };
        let answer = |(shard, values): (&ShardKeys, &[f32])| -> Result<_, ModelError> {
            let (output, lse) = values.split_at(outputs);
            if !are_numbers(output, lse) {
                let host = self.channels.get(&channel).map_or_else(String::new, |line| line.host.clone());
                let (block, layer) = (shard.block as usize, header.layer as usize);
                return Err(ModelError::PartialNotFinite { host, block, layer });
            }
            let partial = Partial {
                output: backend.upload(&[query, rows, dim], output)?,
                lse: backend.upload(&[query, rows], lse)?,
            };
            Ok(ShardPartial { block: shard.block as usize, keys: shard.keys as usize, partial })
        };
        let answers = shards.iter().zip(values.chunks(outputs + lses)).map(answer).collect::<Result<_, _>>()?;
        Ok(Ok((shards, Some(answers))))
    }
}

impl<B: Backend> ContextAttention<B> for RemoteContext<B> {
    fn ask(&mut self, layer: usize, q: &B::Tensor, mask: Mask) -> Result<(), ModelError> {
        let (backend, asked) = (self.decoder.backend(), &mut self.asked);
        if layer == 0 {
            asked.header.step += u32::from(asked.header.rows > 0);
        }
        (asked.header.layer, asked.header.rows) = (layer as u32, backend.shape(q)[1] as u32);
        let mut bytes = Vec::new();
        payload::write(&mut bytes, &backend.download(q)?, asked.header.payload_type);
        asked.query = Some(Frame::new(asked.header, archived(mask), bytes.into()));
        (asked.answers, asked.done) = (Vec::new(), false);
        let (step, layer) = (asked.header.step, asked.header.layer);
        self.apply(gather::Event::Ask { step, layer }, None);
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<ShardPartial<B>>, ModelError> {
        let began = Instant::now();
        while !self.asked.done {
            match self.next()? {
                Some(Arrival::Frame(channel, frame)) => self.heard(channel, &frame)?,
                Some(Arrival::Broke(channel, cause)) => self.apply(gather::Event::Broke { channel, cause }, None),
                Some(Arrival::Holders(holders)) => self.apply(gather::Event::Holders(holders), None),
                Some(Arrival::Stop) => return Err(ModelError::Cancelled),
                None => self.apply(gather::Event::Tick, None),
            }
        }
        self.clock.collected = Instant::now();
        self.clock.times.layer_wait.add(self.clock.collected - began);
        Ok(std::mem::take(&mut self.asked.answers))
    }

    fn merged(&mut self) {
        self.clock.times.merge.add(self.clock.collected.elapsed());
    }
}

/// Whether a partial can be merged. A row that sees none of a shard's keys has a log-sum-exp of minus infinity.
fn are_numbers(output: &[f32], lse: &[f32]) -> bool {
    output.iter().fold(true, |all, value| all & value.is_finite())
        && lse.iter().fold(true, |all, &value| all & (value < f32::INFINITY))
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

/// Opens a channel, sends queries and hands answers over until nobody asks any more; the error is why it ended before.
async fn serve(
    number: u64,
    holder: &ShardHolder,
    (links, (context, ticket)): (&Links, (u64, Ticket)),
    mut queries: mpsc::UnboundedReceiver<Frame>,
    arrived: &mpsc::UnboundedSender<Arrival>,
) -> Result<(), String> {
    let address: SocketAddr =
        holder.address.parse().map_err(|error| format!("its address {}: {error}", holder.address))?;
    let mut channel = tokio::time::timeout(CONNECT_DEADLINE, links.channel(&holder.host, address))
        .await
        .map_err(|_| format!("no answer from {address} in {} s", CONNECT_DEADLINE.as_secs()))?
        .map_err(|error| error.to_string())?;
    let opening = Opening::Attach(Attach { context, blocks: holder.blocks.clone(), ticket });
    channel.sender.send(opening.frame()).await.map_err(|error| error.to_string())?;
    loop {
        tokio::select! {
            query = queries.recv() => {
                let Some(query) = query else { return Ok(()) };
                channel.sender.send(query).await.map_err(|error| error.to_string())?;
            }
            answer = channel.receiver.receive() => {
                let answer = answer.map_err(|error| error.to_string())?.ok_or("it closed the channel")?;
                let _ = arrived.send(Arrival::Frame(number, answer));
            }
        }
    }
}
