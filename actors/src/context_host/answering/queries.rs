//! Phase-2 queries over the shards of a context host: one channel a query host, rows of all its jobs in one frame, answered
//! with partial attention over their shards. Keeps nothing of a query.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use asterism_kernels::{Backend, PriorityGuard, Rank};
use asterism_models::EncodedShard;
use asterism_transport::{Frame, FrameKind, FrameReceiver, Link, LocalValue};

use crate::{
    authority,
    compute::DeviceHandover,
    context_host::{
        answering::{
            attending::{
                Attached, AttendedPart, Grouped, QueryHead, Rows, answer, answer_when_there_is_room, cost, refusal,
            },
            query_service::QueryService,
            relay::{AttachmentContext, Query, RelayTask, Replies},
            spans::AnsweringSpan,
        },
        error::{ChannelError, Refusal},
    },
    cores::{ComputeKind, Computing},
    handing::ShardsHere,
    machine,
    messages::{Admitted, Attach, ChannelOpening, QueryMeta, WireMessage},
    metric, trace,
};

/// Contexts that one query host may have attached at a time.
const ATTACHMENTS: usize = 65_536;
/// Hosts that an attachment may have asked in its turn.
const BELOW: usize = 1024;
/// Multiply-adds, some hundred microseconds, below which a frame is answered where it is read: to hand it to another thread
/// and back would take as long.
const INLINE_ANSWER_OPERATIONS: usize = 4 << 20;

/// One query host's channel.
pub struct Queries<'a, B: Backend> {
    /// What is answered from.
    pub service: QueryService<B>,
    /// By their numbers.
    pub attached: BTreeMap<u64, (Arc<Attached>, Option<RelayTask<B>>)>,
    /// Of attachments whose answers are wanted as spans.
    pub spans: BTreeMap<u64, AnsweringSpan>,
    /// Where answers go.
    pub replies: Replies,
    /// While a step is asked layer by layer.
    pub priority: PriorityGuard,
    /// Who asks.
    pub link: &'a Arc<dyn Link>,
    /// The same for logs.
    pub peer: &'a str,
}

impl<B: Backend> Queries<'_, B> {
    /// Answers until the query host goes; the error is why it ended before.
    pub async fn serve(mut self, first: Attach, mut receiver: Box<dyn FrameReceiver>) -> Result<(), ChannelError> {
        self.attach(first).await?;
        while let Some(frame) = receiver.receive().await? {
            self.service.links.plane().stirred();
            match frame.header.kind {
                FrameKind::Control => self.control(&frame).await?,
                FrameKind::Request => {
                    let asked = QueryMeta::read(&frame.meta, self.peer)?;
                    let (layer, layers) = (asked.layer as usize, self.service.decoder.config().layers);
                    match layer {
                        0 => self.priority = self.service.decoder.backend().priority(Rank::Token),
                        _ => self.priority.renew(),
                    }
                    self.answer(frame, asked).await?;
                    if layer + 1 >= layers {
                        self.priority = PriorityGuard::default();
                    }
                }
                kind => return Err(ChannelError::Frame { peer: self.peer.to_owned(), kind, of: "queries" }),
            }
        }
        Ok(())
    }

    async fn control(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        let opening = ChannelOpening::read(&frame.meta, self.peer)?;
        authority::admit(self.link.peer(), &mut None, &opening)
            .inspect_err(|denied| metric::refused(denied.code(), self.peer, denied))?;
        match opening {
            ChannelOpening::Attach(attach) => self.attach(attach).await,
            ChannelOpening::Detach { attachment } => {
                self.attached.remove(&attachment);
                self.spans.remove(&attachment);
                Ok(())
            }
            ChannelOpening::Trace { attachment, trace } => {
                let attached = self.attached.get(&attachment).filter(|_| trace::is_wanted());
                let span = attached.map(|(attached, _)| (attachment, AnsweringSpan::of(trace, attached)));
                self.spans.extend(span);
                Ok(())
            }
            ChannelOpening::Pass { .. } | ChannelOpening::Fetch { .. } | ChannelOpening::Probe => {
                let what = "that it passes parcels, fetches a shard or times the link, on a channel of queries";
                Err(ChannelError::OutOfPlace { peer: self.peer.to_owned(), what })
            }
        }
    }

    /// Whoever asks for what is not here, or may not, is refused before the first query, too.
    async fn attach(&mut self, attach: Attach) -> Result<(), ChannelError> {
        let Attach { attachment, hands_over, .. } = attach;
        match self.attachable(&attach) {
            Ok((shards, attached)) => {
                let (decoder, links) = (self.service.decoder.clone(), self.service.links.clone());
                let (merges, replies) = (attach.relay, self.replies.clone());
                let idle = merges.is_idle();
                let served = AttachmentContext { attachment, decoder, merges, links, replies };
                let relay = if idle { None } else { Some(RelayTask::start(served)) };
                self.attached.insert(attachment, (attached, relay));
                if hands_over { self.admit(attachment, shards).await } else { Ok(()) }
            }
            Err(refused) => {
                let header = Frame::control(Default::default()).header;
                self.send(refusal(header, attachment, &refused)).await
            }
        }
    }

    /// Hands shards over, or says that it does not, where the channel can.
    async fn admit(&self, attachment: u64, shards: Vec<Arc<EncodedShard<B>>>) -> Result<(), ChannelError> {
        let mut replies = self.replies.lock().await;
        if !replies.hands_over() {
            return Ok(());
        }
        let admitted = Admitted { attachment }.frame();
        let admitted = match self.service.hands_over {
            DeviceHandover::Everything => {
                admitted.handing(LocalValue::new(ShardsHere { decoder: self.service.decoder.clone(), shards }))
            }
            DeviceHandover::Parcels | DeviceHandover::Nothing => admitted,
        };
        Ok(replies.send(admitted).await?)
    }

    /// What is to be attached, and its shards, or why it cannot be.
    fn attachable(&self, attach: &Attach) -> Result<Grouped<B>, Refusal> {
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
        if self.service.tickets.find(context).ok_or_else(|| missing(blocks[0]))? != *ticket {
            return Err(wrong_ticket(context, self.peer));
        }
        let shards = self.service.store.find(context, &blocks).map_err(missing)?;
        let mut ranges = vec![Vec::new(); blocks.len()];
        let mut places: HashMap<u32, usize> = blocks.iter().enumerate().map(|(at, block)| (*block, at)).collect();
        for hidden in hidden {
            // A shard that is named twice is not there the second time.
            let at = places.remove(&hidden.block);
            let of_shard = at.and_then(|at| Some((at, hidden.ranges(shards[at].tokens)?)));
            let (at, of_shard) = of_shard.ok_or(Refusal::Hidden { block: hidden.block })?;
            ranges[at] = of_shard;
        }
        let sizes = groups.iter().map(Vec::len).collect();
        Ok((shards, Arc::new(Attached { context, blocks, sizes, hidden: ranges })))
    }

    async fn answer(&mut self, frame: Frame, QueryMeta { layer, parts }: QueryMeta) -> Result<(), ChannelError> {
        let head = QueryHead { header: frame.header, layer: layer as usize };
        let all = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.rows as usize));
        let (mut found, mut start, decoder) = (Vec::with_capacity(parts.len()), 0, self.service.decoder.clone());
        let asked = Rows::of(&decoder, &frame, (head.layer, all))?;
        let row_bytes = frame.payload.len().checked_div(all).unwrap_or(0);
        for part in parts {
            let rows = start..start + part.rows as usize;
            start = rows.end;
            self.spans.get_mut(&part.attachment).into_iter().for_each(|span| span.asked(head.layer, part.rows));
            let attached = self.attached.get(&part.attachment);
            let shards =
                attached.ok_or(Refusal::NotAttached { attachment: part.attachment }).and_then(|(attached, _)| {
                    let found = self.service.store.find(attached.context, &attached.blocks);
                    let known = |shards| (shards, attached.clone());
                    found.map(known).map_err(|block| Refusal::Missing { context: attached.context, block })
                });
            match (attached.and_then(|(_, relay)| relay.as_ref()), shards) {
                (Some(relay), Ok(shards)) => {
                    let attachment = part.attachment;
                    let rows = match &asked {
                        Rows::Bytes(payload) => payload.slice(rows.start * row_bytes..rows.end * row_bytes),
                        Rows::Exported(q) => {
                            let backend = decoder.backend();
                            backend.raw(&[backend.rows(q, rows.start, rows.end)?])?.whole()?.into()
                        }
                    };
                    if let Err(refused) = relay.ask(Query { head, part, rows, shards }) {
                        self.send(refusal(head.header, attachment, &refused)).await?;
                    }
                }
                (_, shards) => found.push(AttendedPart { part, rows, shards }),
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        let traced: Vec<u64> = match self.spans.is_empty() {
            true => Vec::new(),
            false => found.iter().map(|part| part.part.attachment).collect(),
        };
        let began = Instant::now();
        let (operations, effort) = (cost(&decoder, &found, head.layer), self.service.effort.clone());
        // Whoever waits for a device that works off a queue waits for all that stands there, and does not do so on the links' thread.
        let at_once = match (decoder.backend().queues(), &asked) {
            (true, asked) => matches!(asked, Rows::Exported(_)),
            (false, _) => operations <= INLINE_ANSWER_OPERATIONS,
        };
        let answered = match at_once {
            true => effort.timed(operations, || answer(&decoder, &found, (all, &asked), head)),
            false => Ok(None),
        };
        let answer = match answered? {
            Some(answer) => answer,
            None => {
                let cores = self.service.cores.clone();
                let attended = machine::spawn(move || {
                    let _computing = Computing::begin(&cores, ComputeKind::Answering);
                    effort.timed(operations, || answer_when_there_is_room(&decoder, &found, (all, &asked), head))
                })
                .await;
                attended.map_err(|panic| ChannelError::Panicked { cause: panic.to_string() })??
            }
        };
        for attachment in traced {
            self.spans.get_mut(&attachment).into_iter().for_each(|span| span.computed(began.elapsed()));
        }
        self.send(answer).await
    }

    async fn send(&mut self, frame: Frame) -> Result<(), ChannelError> {
        Ok(self.replies.lock().await.send(frame).await?)
    }
}

/// Counts and says that somebody has no business with a context.
pub fn wrong_ticket(context: u64, peer: &str) -> Refusal {
    let refused = Refusal::Ticket { context };
    metric::refused("ticket", peer, &refused);
    refused
}
