//! Phase-2 queries over the shards of a context host: one channel a query host, rows of all its jobs in one frame, answered
//! with partial attention over their shards. Keeps nothing of a query.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Range,
    sync::Arc,
};

use asterism_kernels::{Ask, Backend, Heads, Mask};
use asterism_models::{Decoder, EncodedShard};
use asterism_transport::{
    Frame, FrameHeader, FrameKind, FrameReceiver, FrameSender, Link, MAX_PAYLOAD_BYTES, PayloadType,
};
use bytes::Bytes;

use super::answer::Desk;
use crate::{
    authority,
    messages::{
        Attach, Opening, PartialsAnswer, PartialsMeta, PartialsPart, QueryMeta, QueryPart, ShardKeys, StreamingMask,
        WireMessage,
    },
    metric,
    payload::{self, Floats},
};

/// Contexts that one query host may have attached at a time.
const ATTACHMENTS: usize = 65_536;
/// Multiply-adds, some hundred microseconds, below which a frame is answered where it is read: to hand it to another thread
/// and back would take as long.
const AT_ONCE: usize = 4 << 20;

/// One query host's channel.
pub struct Queries<'a, B: Backend> {
    /// What is answered from.
    pub desk: Desk<B>,
    /// By their numbers.
    pub attached: HashMap<u64, Arc<Attached>>,
    /// Where answers go.
    pub sender: Box<dyn FrameSender>,
    /// Who asks.
    pub link: &'a Arc<dyn Link>,
    /// The same for logs.
    pub peer: &'a str,
}

/// Shards of a context that a query host attached.
pub struct Attached {
    context: u64,
    /// Group by group.
    blocks: Vec<u32>,
    /// Shards of each group.
    sizes: Vec<usize>,
    /// Keys of each shard that are not to be seen.
    hidden: Vec<Vec<Range<usize>>>,
}

/// A part of a query, and what it is answered from.
struct Found<B: Backend> {
    part: QueryPart,
    shards: Result<Grouped<B>, String>,
}

/// Shards, as they were attached.
type Grouped<B> = (Vec<Arc<EncodedShard<B>>>, Arc<Attached>);

impl<B: Backend> Queries<'_, B> {
    /// Answers until the query host goes; the error is why it ended before.
    pub async fn serve(mut self, first: Attach, mut receiver: Box<dyn FrameReceiver>) -> Result<(), String> {
        self.attach(first).await?;
        while let Some(frame) = receiver.receive().await.map_err(|error| error.to_string())? {
            match frame.header.kind {
                FrameKind::Control => self.control(&frame).await?,
                FrameKind::Query => self.answer(frame).await?,
                kind => return Err(format!("{} sent a {kind:?} frame on a channel of queries", self.peer)),
            }
        }
        Ok(())
    }

    async fn control(&mut self, frame: &Frame) -> Result<(), String> {
        let opening = Opening::read(&frame.meta, self.peer).map_err(|error| error.to_string())?;
        authority::admit(self.link.peer(), &mut None, &opening).map_err(|denied| {
            metric::refused(denied.code(), self.peer, &denied);
            denied.to_string()
        })?;
        match opening {
            Opening::Attach(attach) => self.attach(attach).await,
            Opening::Detach { attachment } => {
                self.attached.remove(&attachment);
                Ok(())
            }
            Opening::Pass { .. } => Err(format!("{} passes parcels on a channel of queries", self.peer)),
        }
    }

    /// Whoever asks for what is not here, or may not, hears so before the first query, too.
    async fn attach(&mut self, attach: Attach) -> Result<(), String> {
        let attachment = attach.attachment;
        match self.attachable(attach) {
            Ok(attached) => drop(self.attached.insert(attachment, Arc::new(attached))),
            Err(cause) => {
                let header = Frame::control(Default::default()).header;
                self.send(refusal(header, attachment, cause)).await?;
            }
        }
        Ok(())
    }

    /// What is to be attached, or why it cannot be.
    fn attachable(&self, attach: Attach) -> Result<Attached, String> {
        let Attach { context, groups, hidden, ticket, .. } = attach;
        let blocks = groups.concat();
        if groups.is_empty() || groups.iter().any(Vec::is_empty) {
            return Err("a group has no shard".to_owned());
        }
        if blocks.iter().collect::<BTreeSet<_>>().len() < blocks.len() {
            return Err("a shard is named twice".to_owned());
        }
        if self.attached.len() >= ATTACHMENTS {
            return Err(format!("{ATTACHMENTS} contexts are attached already"));
        }
        let known = self.desk.tickets.find(context).ok_or_else(|| missing(context, blocks[0]))?;
        if known != ticket {
            return Err(wrong_ticket(context, self.peer));
        }
        let shards = self.desk.store.find(context, &blocks).map_err(|block| missing(context, block))?;
        let mut ranges = vec![Vec::new(); blocks.len()];
        for hidden in hidden {
            let at = blocks.iter().position(|block| *block == hidden.block);
            let of_shard = at.and_then(|at| Some((at, hidden.ranges(shards[at].tokens)?)));
            let unfit = || format!("what is hidden of shard {} is none of its keys, in order", hidden.block);
            let (at, of_shard) = of_shard.ok_or_else(unfit)?;
            ranges[at] = of_shard;
        }
        Ok(Attached { context, blocks, sizes: groups.iter().map(Vec::len).collect(), hidden: ranges })
    }

    async fn answer(&mut self, frame: Frame) -> Result<(), String> {
        let QueryMeta { parts } = QueryMeta::read(&frame.meta, self.peer).map_err(|error| error.to_string())?;
        let (mut found, decoder) = (Vec::with_capacity(parts.len()), self.desk.decoder.clone());
        for part in parts {
            let shards = match self.attached.get(&part.attachment) {
                Some(attached) => {
                    let found = self.desk.store.find(attached.context, &attached.blocks);
                    let known = |shards| (shards, attached.clone());
                    found.map(known).map_err(|block| missing(attached.context, block))
                }
                None => Err(format!("nothing is attached by number {}", part.attachment)),
            };
            found.push(Found { part, shards });
        }
        let header = frame.header;
        let (parts, payload) = if cost(&decoder, &found, &frame) <= AT_ONCE {
            attend(&decoder, found, &frame)?
        } else {
            let attended = tokio::task::spawn_blocking(move || attend(&decoder, found, &frame)).await;
            attended.map_err(|panic| panic.to_string())??
        };
        self.send(partials(header, parts, payload)).await
    }

    async fn send(&mut self, frame: Frame) -> Result<(), String> {
        self.sender.send(frame).await.map_err(|error| error.to_string())
    }
}

/// Multiply-adds of what [`attend`] does.
fn cost<B: Backend>(decoder: &Decoder<B>, found: &[Found<B>], frame: &Frame) -> usize {
    let (Heads { query, dim, .. }, layer) = (decoder.config().heads, frame.header.layer as usize);
    let keys = |shard: &Arc<EncodedShard<B>>| shard.layers.get(layer).map_or(0, |kv| decoder.backend().kv_len(kv));
    let of_part = |Found { part, shards }: &Found<B>| {
        let keys: usize = shards.iter().flat_map(|(shards, _)| shards).map(keys).sum();
        (part.rows as usize).saturating_mul(2 * keys * query * dim)
    };
    found.iter().map(of_part).fold(0, usize::saturating_add)
}

/// Attention of each part's rows over its shards, in order. The error is a frame that cannot be read; what a part lacks is
/// its own answer.
fn attend<B: Backend>(
    decoder: &Decoder<B>,
    found: Vec<Found<B>>,
    frame: &Frame,
) -> Result<(Vec<PartialsPart>, Bytes), String> {
    let (header, backend, heads) = (frame.header, decoder.backend(), decoder.config().heads);
    let (Heads { query, dim, .. }, layers) = (heads, decoder.config().layers);
    let layer = header.layer as usize;
    let payload_type = payload::payload_type(backend.dtype());
    if layer >= layers || header.payload_type != payload_type {
        return Err(format!("expected {payload_type:?} queries of a layer below {layers}, got {header:?}"));
    }
    let rows = found.iter().fold(0, |sum: usize, found| sum.saturating_add(found.part.rows as usize));
    let values = payload::read(&frame.payload, rows.saturating_mul(query * dim), payload_type)?;
    let mut room = MAX_PAYLOAD_BYTES / (4 * heads.packed_row());
    let (mut parts, mut asks, mut grouped, mut start) = (Vec::with_capacity(found.len()), Vec::new(), Vec::new(), 0);
    for Found { part: QueryPart { attachment, rows, mask }, shards } in &found {
        let (range, mask) = (start..start + *rows as usize, mask.map_or(Mask::None, seen));
        start = range.end;
        let fits = shards.as_ref().map_err(Clone::clone).and_then(|(shards, attached)| {
            if mask != Mask::None && attached.hidden.iter().any(|hidden| !hidden.is_empty()) {
                return Err("keys are hidden, so that no other mask can be".to_owned());
            }
            let wanted = range.len() * shards.len();
            room = room.checked_sub(wanted).ok_or_else(|| format!("{wanted} partial rows do not fit into a frame"))?;
            Ok((shards, &**attached))
        });
        let answer = match fits {
            Ok((shards, Attached { sizes, hidden, .. })) => {
                let each = shards.iter().zip(hidden);
                let seen = |(shard, hidden): (&Arc<EncodedShard<B>>, &Vec<Range<usize>>)| ShardKeys {
                    block: shard.block as u32,
                    keys: (backend.kv_len(&shard.layers[layer]) - hidden.iter().map(Range::len).sum::<usize>()) as u64,
                };
                let mut keys = each.clone().map(seen);
                let groups = sizes.iter().map(|shards| keys.by_ref().take(*shards).collect()).collect();
                asks.extend(each.map(|(shard, holes)| Ask {
                    kv: &shard.layers[layer],
                    rows: range.clone(),
                    mask,
                    holes,
                }));
                grouped.extend_from_slice(sizes);
                PartialsAnswer::Groups(groups)
            }
            Err(cause) => PartialsAnswer::Failed { cause },
        };
        parts.push(PartialsPart { attachment: *attachment, rows: *rows, answer });
    }
    let mut packed = Vec::new();
    let attended = backend
        .upload(&[rows, query * dim], &values)
        .and_then(|q| backend.cast(&q))
        .and_then(|q| backend.attend_merged(heads, &q, (&asks, &grouped), &mut packed));
    attended.map_err(|error| error.to_string())?;
    Ok((parts, Floats::of(packed)))
}

/// Which keys the rows of a part see.
fn seen(mask: StreamingMask) -> Mask {
    let StreamingMask { sink, window, first_row, first_key } = mask;
    let [sink, window, first_row, first_key] = [sink, window, first_row, first_key].map(|size| size as usize);
    Mask::Streaming { sink, window, first_row, first_key }
}

/// Counts and says that somebody has no business with a context.
pub fn wrong_ticket(context: u64, peer: &str) -> String {
    let cause = format!("context {context} opens to its ticket only, and another one was shown");
    metric::refused("ticket", peer, &cause);
    cause
}

fn missing(context: u64, block: u32) -> String {
    format!("shard {block} of context {context} is not here")
}

/// Says that an attachment has no answer.
pub fn refusal(asked: FrameHeader, attachment: u64, cause: String) -> Frame {
    let part = PartialsPart { attachment, rows: 0, answer: PartialsAnswer::Failed { cause } };
    partials(asked, vec![part], Bytes::new())
}

fn partials(asked: FrameHeader, parts: Vec<PartialsPart>, payload: Bytes) -> Frame {
    let header = FrameHeader { kind: FrameKind::Partials, payload_type: PayloadType::F32, ..asked };
    Frame::new(header, PartialsMeta { parts }.archive(), payload)
}
