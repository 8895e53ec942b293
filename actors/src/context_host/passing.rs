//! What shards pass each other, when they are on different hosts: parcels as frames, one channel a peer. Decides nothing.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
};

use asterism_kernels::Backend;
use asterism_models::{Decoder, LocalPeers, ModelError, Parcel, Part, Peers};
use asterism_transport::{Frame, FrameHeader, FrameKind, FrameSender};
use tokio::runtime::Handle;

use super::mailroom::{Arrived, Mailroom};
use crate::{
    link::Links,
    messages::{EncodeShards, Opening, ParcelMeta, ParcelPart, ShardHolder, WireMessage},
    payload,
};

/// Peers of the shards that this host encodes together.
pub struct RemotePeers<B: Backend> {
    office: Office<B>,
    job: u64,
    own: Vec<usize>,
    peers: Vec<ShardHolder>,
    local: LocalPeers<B>,
    channels: HashMap<String, Box<dyn FrameSender>>,
    received_bytes: u64,
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
    pub stop: Arc<AtomicBool>,
    /// Where channels live.
    pub runtime: Handle,
}

impl<B: Backend> RemotePeers<B> {
    /// For the shards of one order.
    pub fn new(office: Office<B>, order: &EncodeShards) -> Self {
        let own: Vec<usize> = order.shards.iter().map(|shard| shard.block).collect();
        let foreign = |peer: &&ShardHolder| peer.blocks.iter().all(|block| !own.contains(&(*block as usize)));
        let peers = order.peers.iter().filter(foreign).cloned().collect();
        Self {
            office,
            job: order.job,
            own,
            peers,
            local: LocalPeers::default(),
            channels: HashMap::new(),
            received_bytes: 0,
        }
    }

    /// Bytes of tensors that other hosts sent.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    fn frame(&self, parcel: Parcel, tensors: &[B::Tensor]) -> Result<Frame, ModelError> {
        let backend = self.office.decoder.backend();
        let payload_type = payload::payload_type(backend.dtype());
        let mut bytes = Vec::new();
        for tensor in tensors {
            payload::write(&mut bytes, &backend.download(tensor)?, payload_type);
        }
        let shape = |tensor: &B::Tensor| backend.shape(tensor).iter().map(|size| *size as u32).collect();
        let meta = ParcelMeta {
            part: parcel.part.into(),
            from: parcel.from as u32,
            to: parcel.to.map(|block| block as u32),
            shapes: tensors.iter().map(shape).collect(),
        };
        let header = FrameHeader {
            kind: FrameKind::Parcel,
            job: self.job,
            shard_set: 0,
            layer: parcel.layer as u32,
            step: 0,
            rows: 0,
            payload_type,
        };
        Ok(Frame::new(header, meta.archive(), bytes.into()))
    }

    fn send_to(&mut self, peer: &ShardHolder, frame: Frame) -> Result<(), ModelError> {
        let lost = |cause: String| ModelError::Host { host: peer.host.clone(), cause };
        let Office { links, runtime, .. } = &self.office;
        if !self.channels.contains_key(&peer.host) {
            let address: SocketAddr = peer.address.parse().map_err(|error| lost(format!("{error}")))?;
            let opened = runtime.block_on(async {
                let mut channel = links.channel(address).await?;
                channel.sender.send(Opening::Pass { job: self.job }.frame()).await?;
                Ok::<_, asterism_transport::TransportError>(channel.sender)
            });
            self.channels.insert(peer.host.clone(), opened.map_err(|error| lost(error.to_string()))?);
        }
        let sender = self.channels.get_mut(&peer.host).expect("it was just put there");
        runtime.block_on(sender.send(frame)).map_err(|error| lost(error.to_string()))
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
        let values = payload::read(&frame.payload, total, expected).map_err(wrong)?;
        let mut rest = values.as_slice();
        let mut tensors = Vec::with_capacity(sizes.len());
        for (shape, count) in sizes.iter().zip(counts) {
            let (own, after) = rest.split_at(count);
            let tensor = backend.upload(shape, own)?;
            // Outputs are f32 wherever they come from; all else is in compute type.
            tensors.push(if meta.part == ParcelPart::Outputs { tensor } else { backend.cast(&tensor)? });
            rest = after;
        }
        Ok(tensors)
    }
}

impl<B: Backend> Peers<B> for RemotePeers<B> {
    fn send(&mut self, parcel: Parcel, tensors: Vec<B::Tensor>) -> Result<(), ModelError> {
        let wants = |block: usize| parcel.to.map_or(block > parcel.from, |to| block == to);
        let wanting: Vec<ShardHolder> =
            self.peers.iter().filter(|peer| peer.blocks.iter().any(|block| wants(*block as usize))).cloned().collect();
        if !wanting.is_empty() {
            let frame = self.frame(parcel, &tensors)?;
            for peer in wanting {
                self.send_to(&peer, frame.clone())?;
            }
        }
        self.local.send(parcel, tensors)
    }

    fn receive(&mut self, parcel: Parcel) -> Result<Vec<B::Tensor>, ModelError> {
        if let Some(tensors) = self.local.find(parcel) {
            return Ok(tensors);
        }
        if self.own.contains(&parcel.from) {
            return Err(ModelError::NoParcel { parcel });
        }
        let arrived = self.office.mailroom.wait(self.job, parcel, &self.office.stop).ok_or(ModelError::Cancelled)?;
        self.received_bytes += arrived.frame.payload.len() as u64;
        let tensors = self.read(&arrived)?;
        // Another shard of this host may want it too.
        self.local.send(parcel, tensors.clone())?;
        Ok(tensors)
    }

    fn layer_done(&mut self, layer: usize) {
        self.local.layer_done(layer);
        self.office.mailroom.layer_done(self.job, layer);
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
