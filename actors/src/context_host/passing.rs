//! What shards pass each other, when they are on different hosts: parcels as frames, one channel a peer. Decides nothing.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::Poll,
};

use asterism_kernels::Backend;
use asterism_models::{Decoder, LocalPeers, ModelError, Parcel, Part, Peers};
use asterism_transport::{Frame, FrameHeader, FrameKind, FrameReceiver, FrameSender, TransportError};
use bytes::Bytes;
use tokio::task::JoinHandle;

use super::{
    error::ChannelError,
    mailroom::{Arrived, Attempt, Mailroom},
    pieces,
    stop::Stop,
    turns::Seat,
};
use crate::{
    link::Links,
    machine,
    messages::{EncodeShards, Opening, ParcelMeta, ParcelPart, ShardHolder, Taken, WireMessage},
    payload,
    ticket::Ticket,
};

/// Peers of the shards that this host encodes together.
pub struct RemotePeers<B: Backend> {
    office: Office<B>,
    seat: Rc<RefCell<Seat>>,
    attempt: Attempt,
    ticket: Ticket,
    own: Vec<usize>,
    peers: Vec<ShardHolder>,
    local: LocalPeers<B>,
    channels: BTreeMap<String, Outgoing>,
    received_bytes: u64,
    peer_lost: bool,
}

/// A channel of parcels to a peer.
struct Outgoing {
    sender: Box<dyn FrameSender>,
    taken: Taking,
}

/// Waits for a peer's word that it has all, or that the channel broke; ends with its holder.
struct Taking(JoinHandle<Result<(), ChannelError>>);

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What parcels go through.
pub struct Office<B: Backend> {
    /// The device.
    pub decoder: Arc<Decoder<B>>,
    /// Links to other hosts.
    pub links: Arc<Links>,
    /// Where parcels arrive.
    pub mailroom: Arc<Mailroom>,
    /// Set when the work is to stop.
    pub stop: Stop,
    /// Most bytes of a parcel in one frame.
    pub piece_bytes: usize,
}

impl<B: Backend> Clone for Office<B> {
    fn clone(&self) -> Self {
        let Self { decoder, links, mailroom, stop, piece_bytes } = self;
        Self {
            decoder: decoder.clone(),
            links: links.clone(),
            mailroom: mailroom.clone(),
            stop: stop.clone(),
            piece_bytes: *piece_bytes,
        }
    }
}

impl<B: Backend> RemotePeers<B> {
    /// For the shards of one order, whose turn `seat` keeps.
    pub fn new(office: Office<B>, seat: Rc<RefCell<Seat>>, order: &EncodeShards) -> Self {
        let own: Vec<usize> = order.shards.iter().map(|shard| shard.block).collect();
        let foreign = |peer: &&ShardHolder| peer.blocks.iter().all(|block| !own.contains(&(*block as usize)));
        let peers = order.peers.iter().filter(foreign).cloned().collect();
        Self {
            office,
            seat,
            attempt: (order.context, order.attempt),
            ticket: order.ticket,
            own,
            peers,
            local: LocalPeers::default(),
            channels: BTreeMap::new(),
            received_bytes: 0,
            peer_lost: false,
        }
    }

    /// Bytes of tensors that other hosts sent.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Whether another host could not be reached.
    pub fn peer_lost(&self) -> bool {
        self.peer_lost
    }

    /// Each parcel in as many frames as it needs; they are fetched from the device together.
    fn frames(&self, parcels: &[(Parcel, Vec<B::Tensor>)]) -> Result<Vec<Vec<Frame>>, ModelError> {
        let backend = self.office.decoder.backend();
        let payload_type = payload::payload_type(backend.dtype());
        let tensors: Vec<B::Tensor> = parcels.iter().flat_map(|(_, tensors)| tensors).cloned().collect();
        let mut bytes = Bytes::from(backend.download_raw(&tensors)?);
        let frames = parcels.iter().map(|(parcel, tensors)| {
            let shapes: Vec<Vec<usize>> = tensors.iter().map(|tensor| backend.shape(tensor)).collect();
            let count: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
            let payload = bytes.split_to(count * payload::element_bytes(payload_type));
            let payloads = pieces::cut(&payload, self.office.piece_bytes);
            let meta = ParcelMeta {
                part: parcel.part.into(),
                from: parcel.from as u32,
                to: parcel.to.map(|block| block as u32),
                shapes: shapes.iter().map(|shape| shape.iter().map(|size| *size as u32).collect()).collect(),
                piece: 0,
                pieces: payloads.len() as u32,
            };
            let header = FrameHeader {
                kind: FrameKind::Parcel,
                job: self.attempt.0,
                shard_set: self.attempt.1,
                layer: parcel.layer as u32,
                step: 0,
                rows: 0,
                payload_type,
            };
            let frame = |(piece, payload)| Frame::new(header, ParcelMeta { piece, ..meta.clone() }.archive(), payload);
            (0..).zip(payloads).map(frame).collect()
        });
        Ok(frames.collect())
    }

    /// Hosts that want a parcel.
    fn wanting(&self, parcel: Parcel) -> impl Iterator<Item = &ShardHolder> {
        let wants = move |block: usize| parcel.to.map_or(block > parcel.from, |to| block == to);
        self.peers.iter().filter(move |peer| peer.blocks.iter().any(|block| wants(*block as usize)))
    }

    fn send_to(&mut self, peer: &ShardHolder, frame: Frame) -> Result<(), ModelError> {
        let mut channel = match self.channels.remove(&peer.host) {
            Some(channel) => channel,
            None => self.open(peer)?,
        };
        let sent = self.office.away(&self.seat, channel.sender.send(frame)).ok_or(ModelError::Cancelled)?;
        self.reached(&peer.host, sent)?;
        self.channels.insert(peer.host.clone(), channel);
        Ok(())
    }

    /// Waits until all that was sent has come where it is needed: what a link loses behind the back of its sender is missed
    /// by a host that may never have heard of the channel, and waits for it.
    ///
    /// # Errors
    /// A host that cannot say so any more.
    pub fn finish(&mut self) -> Result<(), ModelError> {
        for (host, Outgoing { sender, mut taken }) in std::mem::take(&mut self.channels) {
            drop(sender);
            let taken = self.office.away(&self.seat, &mut taken.0).ok_or(ModelError::Cancelled)?;
            self.reached(&host, taken.unwrap_or(Err(ChannelError::NotTaken)))?;
        }
        Ok(())
    }

    /// A channel that is watched: where two hosts wait for each other, who lost what it sent is the only one to know.
    fn open(&mut self, peer: &ShardHolder) -> Result<Outgoing, ModelError> {
        let (links, holder) = (self.office.links.clone(), peer.clone());
        let (attempt, ticket) = (self.attempt, self.ticket);
        let (context, number) = attempt;
        let opened = self.office.away(&self.seat, async move {
            let mut channel = links.channel(&holder.host, &holder.endpoints).await?;
            channel.sender.send(Opening::Pass { context, attempt: number, ticket }.frame()).await?;
            Ok::<_, TransportError>(channel)
        });
        let channel = self.reached(&peer.host, opened.ok_or(ModelError::Cancelled)?)?;
        let (mailroom, host) = (self.office.mailroom.clone(), peer.host.clone());
        let watch = tokio::spawn(async move {
            let taken = taken(channel.receiver, attempt).await;
            if let Err(cause) = &taken {
                mailroom.break_off(attempt, &host, cause);
            }
            taken
        });
        Ok(Outgoing { sender: channel.sender, taken: Taking(watch) })
    }

    fn reached<T, E: ToString>(&mut self, host: &str, result: Result<T, E>) -> Result<T, ModelError> {
        self.peer_lost |= result.is_err();
        result.map_err(|error| ModelError::Host { host: host.to_string(), cause: error.to_string() })
    }

    fn read(&self, Arrived { meta, frame }: &Arrived) -> Result<Vec<B::Tensor>, ModelError> {
        let backend = self.office.decoder.backend();
        let wrong = |cause: String| ModelError::Host { host: format!("of shard {}", meta.from), cause };
        let expected = payload::payload_type(backend.dtype());
        if frame.header.payload_type != expected {
            return Err(wrong(format!("expected {expected:?} tensors, got {:?}", frame.header)));
        }
        let (tensors, part) = (meta.shapes.len(), meta.part);
        if tensors != part.tensors() || meta.shapes.iter().any(|shape| shape.len() != 3) {
            return Err(wrong(format!(
                "{part:?} are {} tensors of 3 dimensions, got {:?}",
                part.tensors(),
                meta.shapes
            )));
        }
        let sizes: Vec<Vec<usize>> =
            meta.shapes.iter().map(|shape| shape.iter().map(|size| *size as usize).collect()).collect();
        let count = |shape: &[usize]| shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
        let counts = sizes.iter().map(|shape| count(shape)).collect::<Option<Vec<_>>>();
        let total =
            counts.as_ref().and_then(|counts| counts.iter().try_fold(0_usize, |all, count| all.checked_add(*count)));
        let (Some(counts), Some(total)) = (counts, total) else {
            return Err(wrong(format!("its shapes are {sizes:?}")));
        };
        payload::check(&frame.payload, total, expected).map_err(|error| wrong(error.to_string()))?;
        let (mut rest, each) = (&frame.payload[..], payload::element_bytes(expected));
        let mut tensors = Vec::with_capacity(sizes.len());
        for (shape, count) in sizes.iter().zip(counts) {
            let (own, after) = rest.split_at(count * each);
            // Outputs are f32 wherever they come from; all else is in compute type.
            tensors.push(match meta.part {
                ParcelPart::Outputs => {
                    let values = payload::read(own, count, expected).map_err(|error| wrong(error.to_string()))?;
                    backend.upload(shape, &values)?
                }
                _ => backend.upload_raw(shape, own)?,
            });
            rest = after;
        }
        Ok(tensors)
    }
}

/// Waits for the word that all parcels of a channel were taken.
async fn taken(mut receiver: Box<dyn FrameReceiver>, (context, attempt): Attempt) -> Result<(), ChannelError> {
    let answer = receiver.receive().await?.filter(|frame| frame.header.kind == FrameKind::Control);
    match answer.map(|frame| Taken::read(&frame.meta, "it")).transpose()? {
        Some(said) if said == (Taken { context, attempt }) => Ok(()),
        _ => Err(ChannelError::NotTaken),
    }
}

impl<B: Backend> Office<B> {
    /// Waits for `work` on the network, letting others compute meanwhile; none when told to stop first.
    fn away<F: Future>(&self, seat: &RefCell<Seat>, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        let at_once = poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
        if let Poll::Ready(done) = machine::block_on(at_once) {
            return Some(done);
        }
        seat.borrow_mut().give_up();
        let done = machine::block_on(async {
            tokio::select! {
                biased;
                done = work => Some(done),
                () = self.stop.wait() => None,
            }
        });
        done.filter(|_| seat.borrow_mut().take())
    }
}

impl<B: Backend> Peers<B> for RemotePeers<B> {
    fn send(&mut self, parcel: Parcel, tensors: Vec<B::Tensor>) -> Result<(), ModelError> {
        self.send_all(vec![(parcel, tensors)])
    }

    fn send_all(&mut self, parcels: Vec<(Parcel, Vec<B::Tensor>)>) -> Result<(), ModelError> {
        let (wanted, kept): (Vec<_>, Vec<_>) =
            parcels.into_iter().partition(|(parcel, _)| self.wanting(*parcel).next().is_some());
        if !wanted.is_empty() {
            for (frames, (parcel, _)) in self.frames(&wanted)?.into_iter().zip(&wanted) {
                for peer in self.wanting(*parcel).cloned().collect::<Vec<_>>() {
                    frames.iter().try_for_each(|frame| self.send_to(&peer, frame.clone()))?;
                }
            }
        }
        kept.into_iter().chain(wanted).try_for_each(|(parcel, tensors)| self.local.send(parcel, tensors))
    }

    fn receive(&mut self, parcel: Parcel) -> Result<Vec<B::Tensor>, ModelError> {
        if let Some(tensors) = self.local.find(parcel) {
            return Ok(tensors);
        }
        if self.own.contains(&parcel.from) {
            return Err(ModelError::NoParcel { parcel });
        }
        let Office { mailroom, stop, .. } = &self.office;
        let arrived = match mailroom.find(self.attempt, parcel) {
            Some(arrived) => arrived,
            None => {
                self.seat.borrow_mut().give_up();
                let arrived =
                    machine::block_on(mailroom.wait(self.attempt, parcel, stop)).map_err(|(host, cause)| {
                        self.peer_lost = true;
                        ModelError::Host { host, cause }
                    })?;
                arrived.filter(|_| self.seat.borrow_mut().take()).ok_or(ModelError::Cancelled)?
            }
        };
        self.received_bytes += arrived.frame.payload.len() as u64;
        let tensors = self.read(&arrived)?;
        // Another shard of this host may want it too.
        self.local.send(parcel, tensors.clone())?;
        Ok(tensors)
    }

    fn layer_done(&mut self, layer: usize) {
        self.local.layer_done(layer);
        self.office.mailroom.layer_done(self.attempt, layer);
    }
}

impl ParcelPart {
    /// Tensors of such a parcel.
    fn tensors(self) -> usize {
        match self {
            Self::Keys => 2,
            Self::Heads => 3,
            Self::Queries | Self::Outputs => 1,
        }
    }
}

impl From<Part> for ParcelPart {
    fn from(part: Part) -> Self {
        match part {
            Part::Keys => Self::Keys,
            Part::Queries => Self::Queries,
            Part::Heads => Self::Heads,
            Part::Outputs => Self::Outputs,
        }
    }
}

impl From<ParcelPart> for Part {
    fn from(part: ParcelPart) -> Self {
        match part {
            ParcelPart::Keys => Self::Keys,
            ParcelPart::Queries => Self::Queries,
            ParcelPart::Heads => Self::Heads,
            ParcelPart::Outputs => Self::Outputs,
        }
    }
}
