//! Attention of the rows of a frame to the shards of this host.

use std::{ops::Range, sync::Arc};

use asterism_kernels::{Ask, Backend, Exported, Heads, KernelError, Mask};
use asterism_models::{Decoder, EncodedShard};
use asterism_transport::{Frame, FrameHeader, FrameKind, LocalValue, MAX_PAYLOAD_BYTES, PayloadType};
use bytes::Bytes;

use crate::{
    compute::{CROWDED, ROOM_AFTER},
    context_host::error::{ChannelError, Refusal},
    messages::{PartialsAnswer, PartialsMeta, PartialsPart, QueryPart, ShardKeys, StreamingMask, WireMessage},
    payload::{self, Floats},
};

/// A part of a query, and what it is answered from.
pub struct AttendedPart<B: Backend> {
    /// The part.
    pub part: QueryPart,
    /// Its rows among those of the frame.
    pub rows: Range<usize>,
    /// The shards.
    pub shards: Result<Grouped<B>, Refusal>,
}

/// Shards of a context that a query host attached.
pub struct Attached {
    /// Number of the context.
    pub context: u64,
    /// Group by group.
    pub blocks: Vec<u32>,
    /// Shards of each group.
    pub sizes: Vec<usize>,
    /// Keys of each shard that are not to be seen.
    pub hidden: Vec<Vec<Range<usize>>>,
}

/// Shards, as they were attached.
pub type Grouped<B> = (Vec<Arc<EncodedShard<B>>>, Arc<Attached>);

/// The rows that a frame asks about.
pub enum Rows<B: Backend> {
    /// As they travel.
    Bytes(Bytes),
    /// On the device `(rows, query heads dim)`.
    Exported(B::Tensor),
}

impl<B: Backend> Rows<B> {
    /// Of a frame that is to have so many for a layer of the model.
    pub fn of(decoder: &Decoder<B>, frame: &Frame, (layer, rows): (usize, usize)) -> Result<Self, ChannelError> {
        let (Heads { query, dim, .. }, layers) = (decoder.config().heads, decoder.config().layers);
        let (expected, got) = (payload::payload_type(decoder.backend().dtype()), frame.header.payload_type);
        if layer >= layers || got != expected {
            return Err(ChannelError::Query { expected, layers, got, layer });
        }
        if let Some(exported) = frame.handed.as_ref().and_then(|handed| handed.get::<Exported<B>>()) {
            let q = (*exported)(decoder.backend())?.swap_remove(0);
            if decoder.backend().shape(&q) == [rows, query * dim] {
                return Ok(Self::Exported(q));
            }
        }
        payload::check(frame.payload.len(), rows.saturating_mul(query * dim), expected)?;
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
            Self::Exported(q) => Ok(q.clone()),
        }
    }
}

/// Multiply-adds of what [`attend`] does.
pub fn cost<B: Backend>(decoder: &Decoder<B>, found: &[AttendedPart<B>], layer: usize) -> usize {
    let Heads { query, dim, .. } = decoder.config().heads;
    let keys = |shard: &Arc<EncodedShard<B>>| shard.layers.get(layer).map_or(0, |kv| decoder.backend().kv_len(kv));
    let of_part = |AttendedPart { rows, shards, .. }: &AttendedPart<B>| {
        let keys: usize = shards.iter().flat_map(|(shards, _)| shards).map(keys).sum();
        rows.len().saturating_mul(2 * keys * query * dim)
    };
    found.iter().map(of_part).fold(0, usize::saturating_add)
}

/// Which query is answered.
#[derive(Clone, Copy, Debug)]
pub struct QueryHead {
    /// Of its frame; the answer repeats its correlation.
    pub header: FrameHeader,
    /// Its layer.
    pub layer: usize,
}

/// What is asked, answered in kind; `None` where the device is full.
pub fn answer<B: Backend>(
    decoder: &Decoder<B>,
    found: &[AttendedPart<B>],
    (all, asked): (usize, &Rows<B>),
    QueryHead { header, layer }: QueryHead,
) -> Result<Option<Frame>, ChannelError> {
    let (backend, heads) = (decoder.backend(), decoder.config().heads);
    let answered = || match asked {
        Rows::Bytes(_) => {
            let (parts, values) = attend(decoder, found, (all, asked), layer)?;
            Ok(partials(header, parts, Floats::of(values)))
        }
        Rows::Exported(q) => {
            let (parts, asks, groups) = asks_of(decoder, found, layer);
            let exported = backend.export(vec![backend.attend_rows(heads, q, (&asks, &groups))?])?;
            Ok(partials(header, parts, Bytes::new()).handing(LocalValue::new::<Exported<B>>(exported)))
        }
    };
    match answered() {
        Err(ChannelError::Kernel(KernelError::DeviceMemory { .. })) => Ok(None),
        answered => answered.map(Some),
    }
}

/// [`answer`], again and again for a while: a context that does not fit leaves the device's memory soon.
pub fn answer_when_there_is_room<B: Backend>(
    decoder: &Decoder<B>,
    found: &[AttendedPart<B>],
    asked: (usize, &Rows<B>),
    head: QueryHead,
) -> Result<Frame, ChannelError> {
    for tried in 0..CROWDED {
        if let Some(answer) = answer(decoder, found, asked, head)? {
            return Ok(answer);
        }
        if tried == 0 {
            tracing::warn!("the device's memory is full: an answer waits for room");
        }
        std::thread::sleep(ROOM_AFTER);
    }
    Err(ChannelError::Full)
}

/// Attention of each part's rows over its shards, in order, where the frame has so many in all. The error is a frame that
/// cannot be read; what a part lacks is its own answer.
pub fn attend<B: Backend>(
    decoder: &Decoder<B>,
    found: &[AttendedPart<B>],
    (all, asked): (usize, &Rows<B>),
    layer: usize,
) -> Result<(Vec<PartialsPart>, Vec<f32>), ChannelError> {
    let (backend, heads) = (decoder.backend(), decoder.config().heads);
    let q = asked.on_device(backend, [all, heads.query * heads.dim])?;
    let (parts, asks, groups) = asks_of(decoder, found, layer);
    Ok((parts, backend.attend_packed(heads, &q, (&asks, &groups))?))
}

/// How each part is answered, and what is asked of the device for it: the shards of each group, one group after the other.
#[allow(clippy::type_complexity)]
fn asks_of<'a, B: Backend>(
    decoder: &Decoder<B>,
    found: &'a [AttendedPart<B>],
    layer: usize,
) -> (Vec<PartialsPart>, Vec<Ask<'a, B::Kv>>, Vec<usize>) {
    let (backend, heads) = (decoder.backend(), decoder.config().heads);
    let mut room = MAX_PAYLOAD_BYTES / (4 * heads.packed_row());
    let (mut parts, mut asks, mut grouped) = (Vec::with_capacity(found.len()), Vec::new(), Vec::new());
    for AttendedPart { part: QueryPart { attachment, rows: count, mask }, rows, shards } in found {
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
                    mask: mask.beginning_at(shard.position as usize),
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
    let header = FrameHeader { kind: FrameKind::Response, payload_type: PayloadType::F32, ..asked };
    Frame::new(header, PartialsMeta { parts }.archive(), payload)
}
