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
use asterism_models::{Decoder, LocalPeers, ModelError, Parcel, Peers};
use asterism_transport::{Channel, Frame, FrameKind, FrameReceiver, FrameSender, TransportError};
use futures_util::future::try_join;
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    context_host::{
        error::ChannelError,
        fair_scheduler::Slot,
        parcels::{
            frames::{Parcels, Sent},
            parcel_inbox::{Attempt, ParcelInbox},
            pieces::{self, Memory},
        },
        stop::StopFlag,
    },
    link::Links,
    machine,
    messages::{ChannelOpening, EncodeShards, ParcelsTaken, ShardHolder, WireMessage},
    ticket::Ticket,
};

/// Peers of the shards that this host encodes together.
pub struct RemotePeers<B: Backend> {
    transfer: TransferContext<B>,
    slot: Rc<RefCell<Slot>>,
    attempt: Attempt,
    ticket: Ticket,
    own: Vec<usize>,
    peers: Vec<ShardHolder>,
    local: LocalPeers<B>,
    channels: BTreeMap<String, Outgoing>,
    memory: Memory,
    received_bytes: u64,
    peer_lost: bool,
}

/// Frames that wait at most for a channel to take them, so that a device computes while what it passed on travels.
const FRAMES_IN_FLIGHT: usize = 16;

/// A channel of parcels to a peer.
struct Outgoing {
    frames: mpsc::Sender<Frame>,
    hands_over: bool,
    carrying: ParcelSender,
}

/// Sends what waits and hears the peer's word that it has all, or that the channel broke; ends with its holder.
struct ParcelSender(JoinHandle<Result<(), ChannelError>>);

impl Drop for ParcelSender {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What parcels go through.
pub struct TransferContext<B: Backend> {
    /// The device.
    pub decoder: Arc<Decoder<B>>,
    /// Links to other hosts.
    pub links: Arc<Links>,
    /// Where parcels arrive.
    pub parcel_inbox: Arc<ParcelInbox>,
    /// Set when the work is to stop.
    pub stop: StopFlag,
    /// Most bytes of a parcel in one frame.
    pub piece_bytes: usize,
    /// Whether hosts of this process get parcels as they lie on the device.
    pub hands_over: bool,
}

impl<B: Backend> Clone for TransferContext<B> {
    fn clone(&self) -> Self {
        let Self { decoder, links, parcel_inbox, stop, piece_bytes, hands_over } = self;
        Self {
            decoder: decoder.clone(),
            links: links.clone(),
            parcel_inbox: parcel_inbox.clone(),
            stop: stop.clone(),
            piece_bytes: *piece_bytes,
            hands_over: *hands_over,
        }
    }
}

impl<B: Backend> RemotePeers<B> {
    /// For the shards of one order, whose turn `slot` keeps.
    pub fn new(transfer: TransferContext<B>, slot: Rc<RefCell<Slot>>, order: &EncodeShards) -> Self {
        let own: Vec<usize> = order.shards.iter().map(|shard| shard.block).collect();
        let foreign = |peer: &&ShardHolder| peer.blocks.iter().all(|block| !own.contains(&(*block as usize)));
        let peers = order.peers.iter().filter(foreign).cloned().collect();
        Self {
            transfer,
            slot,
            attempt: (order.context, order.attempt),
            ticket: order.ticket,
            own,
            peers,
            local: LocalPeers::default(),
            channels: BTreeMap::new(),
            memory: Memory::default(),
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

    fn parcels(&self) -> Parcels<'_, B> {
        Parcels { backend: self.transfer.decoder.backend() }
    }

    /// Hosts that want a parcel.
    fn wanting(&self, parcel: Parcel) -> impl Iterator<Item = &ShardHolder> {
        let wants = move |block: usize| parcel.to.map_or(block > parcel.from, |to| block == to);
        self.peers.iter().filter(move |peer| peer.blocks.iter().any(|block| wants(*block as usize)))
    }

    /// Whether the channel to a peer hands over, and is to.
    fn hands_over(&mut self, peer: &ShardHolder) -> Result<bool, ModelError> {
        let channel = self.take_channel(peer)?;
        let hands_over = self.transfer.hands_over && channel.hands_over;
        self.channels.insert(peer.host.clone(), channel);
        Ok(hands_over)
    }

    /// The channel to a peer, or a new one; to be put back.
    fn take_channel(&mut self, peer: &ShardHolder) -> Result<Outgoing, ModelError> {
        match self.channels.remove(&peer.host) {
            Some(channel) => Ok(channel),
            None => self.open(peer),
        }
    }

    fn send_to(&mut self, peer: &ShardHolder, frame: Frame) -> Result<(), ModelError> {
        let channel = self.take_channel(peer)?;
        let waits = self.transfer.away(&self.slot, channel.frames.send(frame)).ok_or(ModelError::Cancelled)?;
        if waits.is_err() {
            self.carried(&peer.host, channel)?;
            return self.reached(&peer.host, Err(ChannelError::NotTaken));
        }
        self.channels.insert(peer.host.clone(), channel);
        Ok(())
    }

    /// Waits until a channel has carried all, and the peer has said that it has it.
    fn carried(&mut self, host: &str, Outgoing { frames, mut carrying, .. }: Outgoing) -> Result<(), ModelError> {
        drop(frames);
        let carried = self.transfer.away(&self.slot, &mut carrying.0).ok_or(ModelError::Cancelled)?;
        self.reached(host, carried.unwrap_or(Err(ChannelError::NotTaken)))
    }

    /// Waits until all that was sent has come where it is needed: what a link loses behind the back of its sender is missed
    /// by a host that may never have heard of the channel, and waits for it.
    ///
    /// # Errors
    /// A host that cannot say so any more.
    pub fn finish(&mut self) -> Result<(), ModelError> {
        let channels = std::mem::take(&mut self.channels);
        channels.into_iter().try_for_each(|(host, channel)| self.carried(&host, channel))
    }

    /// A channel that is watched: where two hosts wait for each other, who lost what it sent is the only one to know.
    fn open(&mut self, peer: &ShardHolder) -> Result<Outgoing, ModelError> {
        let (links, holder) = (self.transfer.links.clone(), peer.clone());
        let (attempt, ticket) = (self.attempt, self.ticket);
        let (context, number) = attempt;
        let opened = self.transfer.away(&self.slot, async move {
            let mut channel = links.channel(&holder.host, &holder.endpoints).await?;
            channel.sender.send(ChannelOpening::Pass { context, attempt: number, ticket }.frame()).await?;
            Ok::<_, TransportError>(channel)
        });
        let channel = self.reached(&peer.host, opened.ok_or(ModelError::Cancelled)?)?;
        let (parcel_inbox, host) = (self.transfer.parcel_inbox.clone(), peer.host.clone());
        let (Channel { sender, receiver }, (frames, waiting)) = (channel, mpsc::channel(FRAMES_IN_FLIGHT));
        let hands_over = sender.hands_over();
        let carrying = tokio::spawn(async move {
            let carried = try_join(carry(sender, waiting), taken(receiver, attempt)).await;
            if let Err(cause) = &carried {
                parcel_inbox.break_off(attempt, &host, cause);
            }
            carried.map(|_| ())
        });
        Ok(Outgoing { frames, hands_over, carrying: ParcelSender(carrying) })
    }

    fn reached<T, E: ToString>(&mut self, host: &str, result: Result<T, E>) -> Result<T, ModelError> {
        self.peer_lost |= result.is_err();
        result.map_err(|error| ModelError::Host { host: host.to_string(), cause: error.to_string() })
    }
}

/// Sends what waits, until nothing more will.
async fn carry(mut sender: Box<dyn FrameSender>, mut waiting: mpsc::Receiver<Frame>) -> Result<(), ChannelError> {
    while let Some(frame) = waiting.recv().await {
        sender.send(frame).await?;
    }
    Ok(())
}

/// Waits for the word that all parcels of a channel were taken.
async fn taken(mut receiver: Box<dyn FrameReceiver>, (context, attempt): Attempt) -> Result<(), ChannelError> {
    let answer = receiver.receive().await?.filter(|frame| frame.header.kind == FrameKind::Control);
    match answer.map(|frame| ParcelsTaken::read(&frame.meta, "it")).transpose()? {
        Some(stated) if stated == (ParcelsTaken { context, attempt }) => Ok(()),
        _ => Err(ChannelError::NotTaken),
    }
}

impl<B: Backend> TransferContext<B> {
    /// Waits for `work` on the network, letting others compute meanwhile; none when told to stop first.
    fn away<F: Future>(&self, slot: &RefCell<Slot>, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        let at_once = poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
        if let Poll::Ready(done) = machine::block_on(at_once) {
            return Some(done);
        }
        slot.borrow_mut().give_up();
        let done = machine::block_on(async {
            tokio::select! {
                biased;
                done = work => Some(done),
                () = self.stop.wait() => None,
            }
        });
        done.filter(|_| slot.borrow_mut().take())
    }
}

impl<B: Backend> Peers<B> for RemotePeers<B> {
    fn send(&mut self, parcel: Parcel, tensors: Vec<B::Tensor>) -> Result<(), ModelError> {
        self.send_all(vec![(parcel, tensors)])
    }

    fn send_all(&mut self, parcels: Vec<(Parcel, Vec<B::Tensor>)>) -> Result<(), ModelError> {
        let (wanted, kept): (Vec<_>, Vec<_>) =
            parcels.into_iter().partition(|(parcel, _)| self.wanting(*parcel).next().is_some());
        let mut far: Vec<(Sent<'_, B>, Vec<ShardHolder>)> = Vec::new();
        for (parcel, tensors) in &wanted {
            let (mut exported, mut others) = (None, Vec::new());
            for peer in self.wanting(*parcel).cloned().collect::<Vec<_>>() {
                if !self.hands_over(&peer)? {
                    others.push(peer);
                    continue;
                }
                let frame = match &exported {
                    Some(frame) => Frame::clone(frame),
                    None => exported.insert(self.parcels().exported((*parcel, tensors))?).clone(),
                };
                self.send_to(&peer, frame)?;
            }
            far.extend((!others.is_empty()).then_some(((*parcel, &tensors[..]), others)));
        }
        if !far.is_empty() {
            let (sent, peers): (Vec<Sent<'_, B>>, Vec<_>) = far.into_iter().unzip();
            let (decoder, mut memory) = (self.transfer.decoder.clone(), std::mem::take(&mut self.memory));
            let parcels = Parcels { backend: decoder.backend() };
            parcels.frames(&sent, (self.transfer.piece_bytes, &mut memory), |place, frame| {
                peers[place].iter().try_for_each(|peer| self.send_to(peer, frame.clone()))
            })?;
            self.memory = memory;
        }
        kept.into_iter().chain(wanted).try_for_each(|(parcel, tensors)| self.local.send(parcel, tensors))
    }

    fn receive(&mut self, parcel: Parcel) -> Result<Vec<B::Tensor>, ModelError> {
        if let Some(tensors) = self.local.find(parcel) {
            return Ok(tensors);
        }
        if self.own.contains(&parcel.from) {
            return Err(ModelError::NoParcel { parcel: format!("{parcel:?}") });
        }
        let TransferContext { parcel_inbox, stop, .. } = &self.transfer;
        let arrived = match parcel_inbox.find(self.attempt, parcel) {
            Some(arrived) => arrived,
            None => {
                self.slot.borrow_mut().give_up();
                let arrived =
                    machine::block_on(parcel_inbox.wait(self.attempt, parcel, stop)).map_err(|(host, cause)| {
                        self.peer_lost = true;
                        ModelError::Host { host, cause }
                    })?;
                arrived.filter(|_| self.slot.borrow_mut().take()).ok_or(ModelError::Cancelled)?
            }
        };
        self.received_bytes += pieces::whole_bytes(&arrived).unwrap_or(0) as u64;
        let tensors = self.parcels().read(&arrived)?;
        // Another shard of this host may want it too.
        self.local.send(parcel, tensors.clone())?;
        Ok(tensors)
    }

    fn layer_done(&mut self, layer: usize) {
        self.local.layer_done(layer);
        self.transfer.parcel_inbox.layer_done(self.attempt, layer);
    }
}
