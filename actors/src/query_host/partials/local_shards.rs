//! Shards that context hosts of this very process hand over: a step then attends to them itself, on whatever devices they lie,
//! and asks nobody. Decides nothing of whom to attach.

use std::{
    collections::HashMap,
    sync::{Arc, mpsc},
};

use asterism_kernels::Backend;
use asterism_models::{Decoder, LocalContext, TeamContext, TensorParallel};
use asterism_plan::HiddenKeys;

use crate::{handing::ShardsHere, machine::Thread};

/// What was handed over, and the devices that it lies on.
pub struct LocalShards<B: Backend> {
    /// Decoders on them, each with a queue of its own; that of the steps first.
    devices: Vec<Arc<Decoder<B>>>,
    linear: Linear<B>,
    /// By attachment; nothing of hosts that hand over nothing.
    handed: HashMap<u64, Option<Arc<ShardsHere<B>>>>,
    opening: DeviceDecoders<B>,
}

/// How the devices do linear layers.
enum Linear<B: Backend> {
    /// To be seen when a step is taken.
    Unknown,
    /// Those of few rows together.
    Shared(TensorParallel<B>),
    /// That of the steps does them all.
    Apart,
}

/// Decoders that threads make, and the hosts' whose devices they are on.
struct DeviceDecoders<B: Backend> {
    of: Vec<Arc<Decoder<B>>>,
    made: mpsc::Sender<Decoder<B>>,
    there: mpsc::Receiver<Decoder<B>>,
}

/// A part of a step: the attachments of its context, how many shards it has, and keys of them that are not seen.
pub struct Part<'a> {
    /// Numbers of the attachments.
    pub attachments: Vec<u64>,
    /// Shards of the context.
    pub shards: usize,
    /// Hidden keys.
    pub hidden: &'a [HiddenKeys],
}

impl<B: Backend> Drop for LocalShards<B> {
    fn drop(&mut self) {
        let attachments: Vec<u64> = self.handed.keys().copied().collect();
        attachments.into_iter().for_each(|attachment| self.leave(attachment));
    }
}

impl<B: Backend> LocalShards<B> {
    /// Nothing yet; steps are taken by `decoder`.
    pub fn new(decoder: Arc<Decoder<B>>) -> Self {
        let (made, there) = mpsc::channel();
        let opening = DeviceDecoders { of: Vec::new(), made, there };
        Self { devices: vec![decoder], linear: Linear::Unknown, handed: HashMap::new(), opening }
    }

    /// A host has answered an attachment, by shards or by none.
    pub fn take(&mut self, attachment: u64, shards: Option<Arc<ShardsHere<B>>>) {
        if let Some(shards) = &shards {
            let beside = |known: &Arc<Decoder<B>>| known.backend().is_beside(shards.decoder.backend());
            if !self.devices.iter().chain(&self.opening.of).any(beside) {
                self.open(shards.decoder.clone());
            }
        }
        self.handed.insert(attachment, shards);
    }

    /// Whether a host has answered an attachment.
    pub fn is_known(&self, attachment: u64) -> bool {
        self.handed.contains_key(&attachment)
    }

    /// An attachment is no more.
    pub fn leave(&mut self, attachment: u64) {
        if let Some(Some(shards)) = self.handed.remove(&attachment)
            && let Some(device) = self.device_of(&shards)
        {
            // Their memory is freed in the order of another queue than that of the steps that read it. A device that failed reads
            // nothing more.
            let _ = self.devices[device].backend().mark().and_then(|mark| mark());
        }
    }

    /// Takes in the devices that were opened meanwhile.
    pub fn look(&mut self) {
        while let Ok(decoder) = self.opening.there.try_recv() {
            self.devices.push(Arc::new(decoder));
            self.linear = Linear::Unknown;
            let devices = &self.devices;
            let opened = |of: &Arc<Decoder<B>>| devices.iter().any(|device| device.backend().is_beside(of.backend()));
            self.opening.of.retain(|of| !opened(of));
        }
        if matches!(self.linear, Linear::Unknown) && self.devices.len() > 1 {
            self.linear = TensorParallel::new(self.devices.clone()).map_or_else(
                |cause| {
                    tracing::warn!(%cause, "devices of this process do not share linear layers");
                    Linear::Apart
                },
                Linear::Shared,
            );
        }
    }

    /// A step failed: exchanges that somebody left stay so, and the next step has new ones.
    pub fn failed(&mut self) {
        self.linear = Linear::Unknown;
    }

    /// Whether a device other than that of the steps has failed: what lies there is asked for from now on.
    pub fn has_lost_a_device(&mut self) -> bool {
        let (home, known) = (self.devices[0].clone(), self.devices.len());
        self.devices.retain(|device| Arc::ptr_eq(device, &home) || device.backend().health().is_ok());
        let lost = self.devices.len() < known;
        if lost {
            tracing::warn!("another device of this process failed: its shards are asked for, not read");
        }
        lost
    }

    /// The contexts of a step's parts, if all of their shards are here.
    pub fn context(&self, parts: &[Part<'_>]) -> Option<TeamContext<'_, B>> {
        let mut held = vec![vec![Vec::new(); parts.len()]; self.devices.len()];
        for (at, part) in parts.iter().enumerate() {
            let mut places = vec![false; part.shards];
            for attachment in &part.attachments {
                let shards = self.handed.get(attachment)?.as_ref()?;
                let device = self.device_of(shards)?;
                for shard in &shards.shards {
                    let place = places.get_mut(shard.block).filter(|taken| !**taken)?;
                    *place = true;
                    held[device][at].push(&**shard);
                }
            }
            if !places.into_iter().all(|taken| taken) {
                return None;
            }
        }
        let devices = self.devices.iter().zip(held).map(|(device, held)| {
            let context = LocalContext::of(device.backend(), held);
            parts.iter().enumerate().fold(context, |context, (at, part)| context.without(at, part.hidden))
        });
        let context = TeamContext::new(devices.collect());
        Some(match &self.linear {
            Linear::Shared(linear) => context.sharing(linear),
            Linear::Unknown | Linear::Apart => context,
        })
    }

    fn device_of(&self, shards: &ShardsHere<B>) -> Option<usize> {
        self.devices.iter().position(|device| device.backend().is_beside(shards.decoder.backend()))
    }

    /// Opens the device of a context host, whose own queue has work that nobody waits for.
    fn open(&mut self, decoder: Arc<Decoder<B>>) {
        self.opening.of.push(decoder.clone());
        let made = self.opening.made.clone();
        let run = move || match decoder.another() {
            Ok(Some(another)) => drop(made.send(another)),
            Ok(None) => {}
            Err(cause) => tracing::warn!(%cause, "shards on another device of this process are asked for, not read"),
        };
        Thread::start("open a device", run).expect("the system starts a thread");
    }
}
