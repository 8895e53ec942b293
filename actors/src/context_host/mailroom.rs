//! Parcels of phase 1 between the channels that bring them and the encoder that waits for them. Computes nothing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use asterism_models::Parcel;
use asterism_transport::{Frame, FrameKind, FrameReceiver};
use tokio::sync::Notify;

use crate::messages::{ParcelMeta, WireMessage};

/// How often a waiting encoder looks whether it was told to stop.
const STOP_CHECK: Duration = Duration::from_millis(20);
/// Layers that a sender may be ahead of the encoder here; what comes later stays in the channel.
const LAYERS_AHEAD: usize = 1;
/// Ended jobs that are remembered, so that their late parcels are dropped.
const ENDED_JOBS: usize = 256;

/// Tensors of one parcel as they came.
pub struct Arrived {
    /// Shapes and addressing.
    pub meta: ParcelMeta,
    /// The frame that brought them.
    pub frame: Frame,
}

/// Parcels of all jobs.
#[derive(Default)]
pub struct Mailroom {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
    moved: Notify,
}

#[derive(Default)]
struct Jobs {
    open: HashMap<u64, Pigeonholes>,
    ended: BTreeSet<u64>,
}

#[derive(Default)]
struct Pigeonholes {
    layer: usize,
    parcels: HashMap<Parcel, Arrived>,
}

impl Mailroom {
    /// Takes in what a peer sends for a job, until it closes the channel or the job ends here.
    pub async fn take_in(&self, job: u64, mut receiver: Box<dyn FrameReceiver>, peer: &str) -> Result<(), String> {
        while let Some(frame) = receiver.receive().await.map_err(|error| error.to_string())? {
            if frame.header.kind != FrameKind::Parcel {
                return Err(format!("{peer} sent a {:?} frame among parcels", frame.header.kind));
            }
            let meta = ParcelMeta::read(&frame.meta, peer).map_err(|error| error.to_string())?;
            let (from, to) = (meta.from as usize, meta.to.map(|block| block as usize));
            let parcel = Parcel { layer: frame.header.layer as usize, part: meta.part.into(), from, to };
            let mut arrived = Some(Arrived { meta, frame });
            while arrived.is_some() {
                let moved = self.moved.notified();
                if !self.put(job, parcel, &mut arrived) {
                    return Ok(());
                }
                if arrived.is_some() {
                    moved.await;
                }
            }
        }
        Ok(())
    }

    /// Waits for a parcel; none when `stop` is set first.
    pub fn wait(&self, job: u64, parcel: Parcel, stop: &AtomicBool) -> Option<Arrived> {
        let mut jobs = self.jobs.lock().expect("no holder panics");
        loop {
            if let Some(arrived) = jobs.open.get_mut(&job).and_then(|holes| holes.parcels.remove(&parcel)) {
                return Some(arrived);
            }
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            jobs = self.arrived.wait_timeout(jobs, STOP_CHECK).expect("no holder panics").0;
        }
    }

    /// The encoder is done with a layer: room for another.
    pub fn layer_done(&self, job: u64, layer: usize) {
        let mut jobs = self.jobs.lock().expect("no holder panics");
        if jobs.ended.contains(&job) {
            return;
        }
        let holes = jobs.open.entry(job).or_default();
        holes.layer = layer + 1;
        holes.parcels.retain(|parcel, _| parcel.layer > layer);
        self.moved.notify_waiters();
    }

    /// Drops everything of a job, also what is still to come.
    pub fn forget(&self, job: u64) {
        let mut jobs = self.jobs.lock().expect("no holder panics");
        jobs.open.remove(&job);
        jobs.ended.insert(job);
        if jobs.ended.len() > ENDED_JOBS {
            jobs.ended.pop_first();
        }
        self.moved.notify_waiters();
    }

    /// Takes a parcel in if there is room for its layer. Whether its job goes on: nothing comes in for one that has ended.
    fn put(&self, job: u64, parcel: Parcel, arrived: &mut Option<Arrived>) -> bool {
        let mut jobs = self.jobs.lock().expect("no holder panics");
        if jobs.ended.contains(&job) {
            return false;
        }
        let holes = jobs.open.entry(job).or_default();
        if parcel.layer <= holes.layer + LAYERS_AHEAD {
            holes.parcels.extend(arrived.take().map(|arrived| (parcel, arrived)));
            self.arrived.notify_all();
        }
        true
    }
}
