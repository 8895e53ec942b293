//! An attachment that merges: for each query, the hosts below are asked the same, and what they and the shards here answer is
//! merged as the query host said. Keeps nothing of a query.

use std::sync::Arc;

use asterism_kernels::{Backend, Heads, KernelError};
use asterism_models::{Decoder, PackedRows};
use asterism_transport::{Channel, Frame, FrameHeader, FrameKind, FrameSender, TransportError};
use bytes::Bytes;
use futures_util::future::try_join_all;
use rkyv::util::AlignedVec;
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinHandle,
};

use crate::{
    context_host::{
        answering::attending::{self, AttendedPart, Grouped, QueryHead, Rows},
        error::Refusal,
    },
    link::Links,
    machine,
    messages::{
        PartialsAnswer, PartialsMeta, PartialsPart, QueryMeta, QueryPart, RelayChild, RelayOrder, ShardKeys,
        WireMessage, are_of,
    },
    payload::{Floats, are_numbers},
};

/// Queries of an attachment that wait for the hosts below; its query host waits for each answer.
const QUERIES_IN_FLIGHT: usize = 8;

/// Where answers go; one at a time.
pub type Replies = Arc<Mutex<Box<dyn FrameSender>>>;

/// The task that serves an attachment; it ends with it.
pub struct RelayTask<B: Backend> {
    queries: mpsc::Sender<Query<B>>,
    task: JoinHandle<()>,
}

impl<B: Backend> Drop for RelayTask<B> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A query over an attachment.
pub struct Query<B: Backend> {
    /// Which it is.
    pub head: QueryHead,
    /// What is asked.
    pub part: QueryPart,
    /// Its rows.
    pub rows: Bytes,
    /// The shards here.
    pub shards: Grouped<B>,
}

/// What an attachment is served with.
pub struct AttachmentContext<B: Backend> {
    /// Its number.
    pub attachment: u64,
    /// The model.
    pub decoder: Arc<Decoder<B>>,
    /// What is asked and merged.
    pub merges: RelayOrder,
    /// To the hosts below.
    pub links: Arc<Links>,
    /// To the query host.
    pub replies: Replies,
}

/// A host below.
struct RelayChannel {
    heads: Heads,
    below: RelayChild,
    channel: Channel,
}

/// A partial and its shards.
type Partial = (Vec<ShardKeys>, PackedRows);

impl<B: Backend> RelayTask<B> {
    /// Opens channels to the hosts below; whoever asks before they are open waits.
    pub fn start(served: AttachmentContext<B>) -> Self {
        let (queries, waiting) = mpsc::channel(QUERIES_IN_FLIGHT);
        Self { queries, task: tokio::spawn(served.serve(waiting)) }
    }

    /// Takes a query, which is answered in its turn.
    ///
    /// # Errors
    /// When too many wait, or none is answered any more.
    pub fn ask(&self, query: Query<B>) -> Result<(), Refusal> {
        self.queries.try_send(query).map_err(|_| Refusal::TooMany { what: "queries wait", most: QUERIES_IN_FLIGHT })
    }
}

impl<B: Backend> AttachmentContext<B> {
    /// Answers until nobody asks, or a host below is of no use.
    async fn serve(self, mut queries: mpsc::Receiver<Query<B>>) {
        let mut header = Frame::control(AlignedVec::new()).header;
        let refused = match self.open().await {
            Err(refused) => refused,
            Ok(mut lines) => loop {
                let Some(query) = queries.recv().await else { return };
                header = query.head.header;
                match self.answer(&mut lines, query).await {
                    Ok(frame) => self.send(frame).await,
                    Err(refused) => break refused,
                }
            },
        };
        if let Refusal::Below { host, .. } = &refused {
            let of_host = self.merges.below.iter().filter(|below| below.host == *host);
            of_host.for_each(|below| self.links.forget(&below.endpoints));
        }
        self.send(attending::refusal(header, self.attachment, &refused)).await;
    }

    /// An answer that has begun goes out as a whole, whatever becomes of the attachment.
    async fn send(&self, frame: Frame) {
        let replies = self.replies.clone();
        let _ = tokio::spawn(async move { replies.lock().await.send(frame).await }).await;
    }

    async fn open(&self) -> Result<Vec<RelayChannel>, Refusal> {
        let heads = self.decoder.config().heads;
        let open = |below: &RelayChild| {
            let below = below.clone();
            async move {
                let failed = |cause: String| Refusal::Below { host: below.host.clone(), cause };
                let reached = self.links.reach(&below.host, &below.endpoints).await;
                let mut channel = reached.map_err(|error| failed(error.to_string()))?;
                let mut opening = AlignedVec::new();
                opening.extend_from_slice(&below.opening);
                let sent = channel.sender.send(Frame::control(opening)).await;
                sent.map_err(|error| failed(error.to_string()))?;
                Ok(RelayChannel { heads, below, channel })
            }
        };
        try_join_all(self.merges.below.iter().map(open)).await
    }

    async fn answer(&self, lines: &mut [RelayChannel], query: Query<B>) -> Result<Frame, Refusal> {
        let Query { head: QueryHead { header, layer }, part, rows, shards } = query;
        let meta = QueryMeta { layer: layer as u32, parts: vec![part.clone()] }.archive();
        let asked = Frame::new(header, meta, rows.clone());
        let row = self.decoder.config().heads.packed_row();
        try_join_all(lines.iter_mut().map(|line| line.ask(asked.clone()))).await?;
        let (decoder, count) = (self.decoder.clone(), part.rows as usize);
        let found = AttendedPart { part: part.clone(), rows: 0..count, shards: Ok(shards) };
        let own = machine::spawn(move || attending::attend(&decoder, &[found], (count, &Rows::Bytes(rows)), layer));
        let below = try_join_all(lines.iter_mut().map(|line| line.receive_answer(header, &part, row))).await?;
        let not_computed = |cause: String| Refusal::NotComputed { cause };
        let (own, values) = own
            .await
            .map_err(|panic| not_computed(panic.to_string()))?
            .map_err(|error| not_computed(error.to_string()))?;
        let own = match own.into_iter().next().map(|part| part.answer) {
            Some(PartialsAnswer::Groups(groups)) => partials(groups, values, count * row),
            Some(PartialsAnswer::Failed { cause, .. }) => return Err(not_computed(cause)),
            None => Vec::new(),
        };
        let (decoder, merges) = (self.decoder.clone(), self.merges.merges.clone());
        let all = own.into_iter().chain(below.into_iter().flatten()).collect();
        let merged = machine::spawn(move || merged(&decoder, all, &merges)).await;
        let (groups, values) = merged
            .map_err(|panic| not_computed(panic.to_string()))?
            .map_err(|error| not_computed(error.to_string()))?;
        let answer = PartialsAnswer::Groups(groups);
        let part = PartialsPart { attachment: self.attachment, rows: part.rows, answer };
        Ok(attending::partials(header, vec![part], Floats::of(values)))
    }
}

impl RelayChannel {
    async fn ask(&mut self, query: Frame) -> Result<(), Refusal> {
        let sent = self.channel.sender.send(query).await;
        sent.map_err(|error| self.fault(&error.to_string()))
    }

    /// The partials that answer a query.
    async fn receive_answer(
        &mut self,
        asked: FrameHeader,
        part: &QueryPart,
        row: usize,
    ) -> Result<Vec<Partial>, Refusal> {
        let heard: Result<Option<Frame>, TransportError> = self.channel.receiver.receive().await;
        let frame = heard.map_err(|error| self.fault(&error.to_string()))?;
        let frame = frame.ok_or_else(|| self.fault("it closed the channel"))?;
        if frame.header.kind != FrameKind::Response {
            return Err(self.fault(&format!("asked for partials, it sent {:?}", frame.header)));
        }
        let meta = PartialsMeta::read(&frame.meta, &self.below.host).map_err(|error| self.fault(&error.to_string()))?;
        let [PartialsPart { attachment, rows, answer }] = meta.parts.try_into().map_err(|parts: Vec<_>| {
            self.fault(&format!("asked about one attachment, it answered for {}", parts.len()))
        })?;
        let groups = match answer {
            PartialsAnswer::Groups(groups) => groups,
            PartialsAnswer::Failed { cause, host } => {
                let host = host.unwrap_or_else(|| self.below.host.clone());
                return Err(Refusal::Below { host, cause });
            }
        };
        if (frame.header.correlation, attachment, rows) != (asked.correlation, part.attachment, part.rows) {
            return Err(self.fault(&format!("asked {asked:?}, it answered {:?} of {rows} rows", frame.header)));
        }
        if !are_of(&groups, &self.below.answers) {
            let asked = &self.below.answers;
            return Err(self.fault(&format!("asked for partials of the shards {asked:?}, it answered for {groups:?}")));
        }
        let (each, count) = ((rows as usize).saturating_mul(row), groups.len());
        let values = Floats::new(frame.payload.clone());
        match values.filter(|values| Some(values.as_ref().len()) == each.checked_mul(count)) {
            Some(values) if are_numbers(self.heads, values.as_ref()) => Ok(partials(groups, values, each)),
            Some(_) => Err(self.fault("its partials are not finite")),
            None => {
                let bytes = frame.payload.len();
                Err(self.fault(&format!("it sent {bytes} bytes for {count} partials of {each} values")))
            }
        }
    }

    fn fault(&self, cause: &str) -> Refusal {
        Refusal::Below { host: self.below.host.clone(), cause: cause.to_owned() }
    }
}

/// Partials that lie one after the other, each of so many values.
fn partials(
    groups: Vec<Vec<ShardKeys>>,
    values: impl AsRef<[f32]> + Send + Sync + 'static,
    each: usize,
) -> Vec<Partial> {
    let values: Arc<dyn AsRef<[f32]> + Send + Sync> = Arc::new(values);
    let rows = |at: usize| PackedRows::new(values.clone(), at * each..(at + 1) * each);
    groups.into_iter().enumerate().map(|(at, shards)| (shards, rows(at))).collect()
}

/// What is left of partials after these merges, and its values one after the other.
fn merged<B: Backend>(
    decoder: &Decoder<B>,
    partials: Vec<Partial>,
    merges: &[Vec<u32>],
) -> Result<(Vec<Vec<ShardKeys>>, Vec<f32>), KernelError> {
    let (backend, heads) = (decoder.backend(), decoder.config().heads);
    let mut there: Vec<Option<Partial>> = partials.into_iter().map(Some).collect();
    for inputs in merges {
        let taken: Vec<Partial> = inputs.iter().filter_map(|input| there[*input as usize].take()).collect();
        let (shards, rows): (Vec<&Vec<ShardKeys>>, Vec<&[f32]>) =
            taken.iter().map(|(shards, rows)| (shards, rows.values())).unzip();
        let mut values = Vec::new();
        backend.merge_rows(heads, &[rows], &mut values)?;
        let shards = shards.into_iter().flatten().copied().collect();
        let range = 0..values.len();
        there.push(Some((shards, PackedRows::new(Arc::new(values), range))));
    }
    let (shards, rows): (Vec<_>, Vec<PackedRows>) = there.into_iter().flatten().unzip();
    Ok((shards, rows.iter().flat_map(|rows| rows.values().iter().copied()).collect()))
}
