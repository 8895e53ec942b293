//! Phase-2 queries over the shards of a context host: one channel a query host, rows of all its jobs in one frame, answered
//! with partial attention over their shards. Keeps nothing of a query.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
    sync::Arc,
};

use asterism_kernels::{Ask, Backend, Heads, Lent, Mask};
use asterism_models::{Decoder, EncodedShard};
use asterism_transport::{Frame, FrameHeader, FrameKind, FrameReceiver, Handed, Link, MAX_PAYLOAD_BYTES, PayloadType};
use bytes::Bytes;

use super::{
    answer::Desk,
    error::{ChannelError, Refusal},
    relay::{Query, Relay, Replies, Served},
};
use crate::{
    authority,
    cores::{Computing, Work},
    machine,
    messages::{
        Attach, Opening, PartialsAnswer, PartialsMeta, PartialsPart, QueryMeta, QueryPart, ShardKeys, StreamingMask,
        WireMessage,
    },
    metric,
    payload::{self, Floats},
};

/// Contexts that one query host may have attached at a time.
const ATTACHMENTS: usize = 65_536;
/// Hosts that an attachment may have asked in its turn.
const BELOW: usize = 1024;
/// Multiply-adds, some hundred microseconds, below which a frame is answered where it is read: to hand it to another thread
/// and back would take as long.
const AT_ONCE: usize = 4 << 20;

/// One query host's channel.
pub struct Queries<'a, B: Backend> {
    /// What is answered from.
    pub desk: Desk<B>,
    /// By their numbers.
    pub attached: BTreeMap<u64, (Arc<Attached>, Option<Relay<B>>)>,
    /// Where answers go.
    pub replies: Replies,
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
pub struct Found<B: Backend> {
    /// The part.
    pub part: QueryPart,
    /// Its rows among those of the frame.
    pub rows: Range<usize>,
    /// The shards.
    pub shards: Result<Grouped<B>, Refusal>,
}

/// Shards, as they were attached.
pub type Grouped<B> = (Vec<Arc<EncodedShard<B>>>, Arc<Attached>);

impl<B: Backend> Queries<'_, B> {
    /// Answers until the query host goes; the error is why it ended before.
    pub async fn serve(mut self, first: Attach, mut receiver: Box<dyn FrameReceiver>) -> Result<(), ChannelError> {
        self.attach(first).await?;
        while let Some(frame) = receiver.receive().await? {
            self.desk.links.plane().stirred();
            match frame.header.kind {
                FrameKind::Control => self.control(&frame).await?,
                FrameKind::Query => self.answer(frame).await?,
                kind => return Err(ChannelError::Frame { peer: self.peer.to_owned(), kind, of: "queries" }),
            }
        }
        Ok(())
    }

    async fn control(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        let opening = Opening::read(&frame.meta, self.peer)?;
        authority::admit(self.link.peer(), &mut None, &opening)
            .inspect_err(|denied| metric::refused(denied.code(), self.peer, denied))?;
        match opening {
            Opening::Attach(attach) => self.attach(attach).await,
            Opening::Detach { attachment } => {
                self.attached.remove(&attachment);
                Ok(())
            }
            Opening::Pass { .. } | Opening::Probe => {
                let what = "that it passes parcels or times the link, on a channel of queries";
                Err(ChannelError::OutOfPlace { peer: self.peer.to_owned(), what })
            }
        }
    }

    /// Whoever asks for what is not here, or may not, hears so before the first query, too.
    async fn attach(&mut self, attach: Attach) -> Result<(), ChannelError> {
        let attachment = attach.attachment;
        match self.attachable(&attach) {
            Ok(attached) => {
                let (decoder, links) = (self.desk.decoder.clone(), self.desk.links.clone());
                let (merges, replies) = (attach.relay, self.replies.clone());
                let idle = merges.is_idle();
                let served = Served { attachment, decoder, merges, links, replies };
                let relay = if idle { None } else { Some(Relay::start(served)) };
                self.attached.insert(attachment, (Arc::new(attached), relay));
                Ok(())
            }
            Err(refused) => {
                let header = Frame::control(Default::default()).header;
                self.send(refusal(header, attachment, &refused)).await
            }
        }
    }

    /// What is to be attached, or why it cannot be.
    fn attachable(&self, attach: &Attach) -> Result<Attached, Refusal> {
        let Attach { context, groups, hidden, relay, ticket, .. } = attach;
        let (context, blocks) = (*context, groups.concat());
        if groups.is_empty() || groups.iter().any(Vec::is_empty) {
            return Err(Refusal::EmptyGroup);
        }
        if blocks.iter().collect::<BTreeSet<_>>().len() < blocks.len() {
            return Err(Refusal::NamedTwice);
        }
        if self.attached.len() >= ATTACHMENTS {
            return Err(Refusal::TooMany { what: "contexts are attached", most: ATTACHMENTS });
        }
        if relay.below.len() > BELOW {
            return Err(Refusal::TooMany { what: "hosts are asked through another", most: BELOW });
        }
        relay.answers(groups)?;
        let missing = |block| Refusal::Missing { context, block };
        if self.desk.tickets.find(context).ok_or_else(|| missing(blocks[0]))? != *ticket {
            return Err(wrong_ticket(context, self.peer));
        }
        let shards = self.desk.store.find(context, &blocks).map_err(missing)?;
        let mut ranges = vec![Vec::new(); blocks.len()];
        let mut places: HashMap<u32, usize> = blocks.iter().enumerate().map(|(at, block)| (*block, at)).collect();
        for hidden in hidden {
            // A shard that is named twice is not there the second time.
            let at = places.remove(&hidden.block);
            let of_shard = at.and_then(|at| Some((at, hidden.ranges(shards[at].tokens)?)));
            let (at, of_shard) = of_shard.ok_or(Refusal::Hidden { block: hidden.block })?;
            ranges[at] = of_shard;
        }
        Ok(Attached { context, blocks, sizes: groups.iter().map(Vec::len).collect(), hidden: ranges })
    }

    async fn answer(&mut self, frame: Frame) -> Result<(), ChannelError> {
        let QueryMeta { parts } = QueryMeta::read(&frame.meta, self.peer)?;
        let all = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.rows as usize));
        let (mut found, mut start, decoder) = (Vec::with_capacity(parts.len()), 0, self.desk.decoder.clone());
        let asked = Rows::of(&decoder, &frame, all)?;
        let row_bytes = frame.payload.len().checked_div(all).unwrap_or(0);
        for part in parts {
            let rows = start..start + part.rows as usize;
            start = rows.end;
            let attached = self.attached.get(&part.attachment);
            let shards =
                attached.ok_or(Refusal::NotAttached { attachment: part.attachment }).and_then(|(attached, _)| {
                    let found = self.desk.store.find(attached.context, &attached.blocks);
                    let known = |shards| (shards, attached.clone());
                    found.map(known).map_err(|block| Refusal::Missing { context: attached.context, block })
                });
            match (attached.and_then(|(_, relay)| relay.as_ref()), shards) {
                (Some(relay), Ok(shards)) => {
                    let (header, attachment) = (frame.header, part.attachment);
                    let rows = match &asked {
                        Rows::Bytes(payload) => payload.slice(rows.start * row_bytes..rows.end * row_bytes),
                        Rows::Lent(q) => {
                            let backend = decoder.backend();
                            backend.download_raw(&[backend.rows(q, rows.start, rows.end)?])?.into()
                        }
                    };
                    if let Err(refused) = relay.ask(Query { header, part, rows, shards }) {
                        self.send(refusal(header, attachment, &refused)).await?;
                    }
                }
                (_, shards) => found.push(Found { part, rows, shards }),
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        let header = frame.header;
        // Whoever waits for a device that works off a queue waits for all that stands there, and does not do so on the links' thread.
        let at_once = match (decoder.backend().queues(), &asked) {
            (true, asked) => matches!(asked, Rows::Lent(_)),
            (false, _) => cost(&decoder, &found, &frame) <= AT_ONCE,
        };
        let answer = if at_once {
            answer(&decoder, found, (all, asked), header)?
        } else {
            let cores = self.desk.cores.clone();
            let attended = machine::spawn(move || {
                let _computing = Computing::begin(&cores, Work::Answering);
                answer(&decoder, found, (all, asked), header)
            })
            .await;
            attended.map_err(|panic| ChannelError::Panicked { cause: panic.to_string() })??
        };
        self.send(answer).await
    }

    async fn send(&mut self, frame: Frame) -> Result<(), ChannelError> {
        Ok(self.replies.lock().await.send(frame).await?)
    }
}

/// The rows that a frame asks about.
pub enum Rows<B: Backend> {
    /// As they travel.
    Bytes(Bytes),
    /// On the device `(rows, query heads dim)`.
    Lent(B::Tensor),
}

impl<B: Backend> Rows<B> {
    /// Of a frame that is to have so many for the model.
    fn of(decoder: &Decoder<B>, frame: &Frame, rows: usize) -> Result<Self, ChannelError> {
        let (Heads { query, dim, .. }, layers) = (decoder.config().heads, decoder.config().layers);
        let FrameHeader { payload_type: got, layer, .. } = frame.header;
        let (expected, layer) = (payload::payload_type(decoder.backend().dtype()), layer as usize);
        if layer >= layers || got != expected {
            return Err(ChannelError::Query { expected, layers, got, layer });
        }
        if let Some(lent) = frame.handed.as_ref().and_then(|handed| handed.get::<Lent<B>>()) {
            let q = (*lent)(decoder.backend())?.swap_remove(0);
            if decoder.backend().shape(&q) == [rows, query * dim] {
                return Ok(Self::Lent(q));
            }
        }
        payload::check(&frame.payload, rows.saturating_mul(query * dim), expected)?;
        Ok(Self::Bytes(frame.payload.clone()))
    }

    /// `(rows, query heads dim)` in compute type.
    fn on_device(&self, backend: &B, shape: [usize; 2]) -> Result<B::Tensor, ChannelError> {
        match self {
            Self::Bytes(bytes) => {
                let values =
                    payload::read(bytes, shape[0].saturating_mul(shape[1]), payload::payload_type(backend.dtype()))?;
                Ok(backend.cast(&backend.upload(&shape, &values)?)?)
            }
            Self::Lent(q) => Ok(q.clone()),
        }
    }
}

/// Multiply-adds of what [`attend`] does.
fn cost<B: Backend>(decoder: &Decoder<B>, found: &[Found<B>], frame: &Frame) -> usize {
    let (Heads { query, dim, .. }, layer) = (decoder.config().heads, frame.header.layer as usize);
    let keys = |shard: &Arc<EncodedShard<B>>| shard.layers.get(layer).map_or(0, |kv| decoder.backend().kv_len(kv));
    let of_part = |Found { rows, shards, .. }: &Found<B>| {
        let keys: usize = shards.iter().flat_map(|(shards, _)| shards).map(keys).sum();
        rows.len().saturating_mul(2 * keys * query * dim)
    };
    found.iter().map(of_part).fold(0, usize::saturating_add)
}

/// What is asked, answered in kind.
fn answer<B: Backend>(
    decoder: &Decoder<B>,
    found: Vec<Found<B>>,
    (all, asked): (usize, Rows<B>),
    header: FrameHeader,
) -> Result<Frame, ChannelError> {
    let (backend, heads) = (decoder.backend(), decoder.config().heads);
    if let Rows::Bytes(_) = &asked {
        let (parts, values) = attend(decoder, &found, (all, &asked), header)?;
        return Ok(partials(header, parts, Floats::of(values)));
    }
    let q = asked.on_device(backend, [all, heads.query * heads.dim])?;
    let (parts, asks, groups) = asks_of(decoder, &found, header);
    let lent = backend.lend(vec![backend.attend_rows(heads, &q, (&asks, &groups))?])?;
    Ok(partials(header, parts, Bytes::new()).handing(Handed::new::<Lent<B>>(lent)))
}

/// Attention of each part's rows over its shards, in order, where the frame has so many in all. The error is a frame that
/// cannot be read; what a part lacks is its own answer.
pub fn attend<B: Backend>(
    decoder: &Decoder<B>,
    found: &[Found<B>],
    (all, asked): (usize, &Rows<B>),
    header: FrameHeader,
) -> Result<(Vec<PartialsPart>, Vec<f32>), ChannelError> {
    let (backend, heads) = (decoder.backend(), decoder.config().heads);
    let q = asked.on_device(backend, [all, heads.query * heads.dim])?;
    let (parts, asks, groups) = asks_of(decoder, found, header);
    let mut packed = Vec::new();
    backend.attend_merged(heads, &q, (&asks, &groups), &mut packed)?;
    Ok((parts, packed))
}

/// How each part is answered, and what is asked of the device for it: the shards of each group, one group after the other.
#[allow(clippy::type_complexity)]
fn asks_of<'a, B: Backend>(
    decoder: &Decoder<B>,
    found: &'a [Found<B>],
    header: FrameHeader,
) -> (Vec<PartialsPart>, Vec<Ask<'a, B::Kv>>, Vec<usize>) {
    let (backend, heads, layer) = (decoder.backend(), decoder.config().heads, header.layer as usize);
    let mut room = MAX_PAYLOAD_BYTES / (4 * heads.packed_row());
    let (mut parts, mut asks, mut grouped) = (Vec::with_capacity(found.len()), Vec::new(), Vec::new());
    for Found { part: QueryPart { attachment, rows: count, mask }, rows, shards } in found {
        let mask = mask.map_or(Mask::None, seen);
        let fits = shards.as_ref().map_err(Clone::clone).and_then(|(shards, attached)| {
            if mask != Mask::None && attached.hidden.iter().any(|hidden| !hidden.is_empty()) {
                return Err(Refusal::HiddenAndMasked);
            }
            let wanted = rows.len() * shards.len();
            room = room.checked_sub(wanted).ok_or(Refusal::TooManyRows { rows: wanted })?;
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
                    rows: rows.clone(),
                    mask,
                    holes,
                }));
                grouped.extend_from_slice(sizes);
                PartialsAnswer::Groups(groups)
            }
            Err(refused) => failed(&refused),
        };
        parts.push(PartialsPart { attachment: *attachment, rows: *count, answer });
    }
    (parts, asks, grouped)
}

/// Which keys the rows of a part see.
fn seen(mask: StreamingMask) -> Mask {
    let StreamingMask { sink, window, first_row, first_key } = mask;
    let [sink, window, first_row, first_key] = [sink, window, first_row, first_key].map(|size| size as usize);
    Mask::Streaming { sink, window, first_row, first_key }
}

/// Counts and says that somebody has no business with a context.
pub fn wrong_ticket(context: u64, peer: &str) -> Refusal {
    let refused = Refusal::Ticket { context };
    metric::refused("ticket", peer, &refused);
    refused
}

/// Says that an attachment has no answer.
pub fn refusal(asked: FrameHeader, attachment: u64, refused: &Refusal) -> Frame {
    partials(asked, vec![PartialsPart { attachment, rows: 0, answer: failed(refused) }], Bytes::new())
}

fn failed(refused: &Refusal) -> PartialsAnswer {
    let (host, cause) = match refused {
        Refusal::Below { host, cause } => (Some(host.clone()), cause.clone()),
        refused => (None, refused.to_string()),
    };
    PartialsAnswer::Failed { cause, host }
}

/// Answers as they travel.
pub fn partials(asked: FrameHeader, parts: Vec<PartialsPart>, payload: Bytes) -> Frame {
    let header = FrameHeader { kind: FrameKind::Partials, payload_type: PayloadType::F32, ..asked };
    Frame::new(header, PartialsMeta { parts }.archive(), payload)
}
