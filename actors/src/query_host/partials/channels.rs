//! Channels to context hosts, one a host, which the contexts of all jobs share: what is attached where. Decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
    time::Instant,
};

use asterism_transport::{Endpoint, Frame, TransportError};
use thiserror::Error;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc},
};

use crate::{
    api::TraceContext,
    link::{Links, ReachError},
    messages::{Attach, ChannelOpening, ShardHolder, WireMessage},
    query_host::arrival::Arrival,
};

/// Frames of one line that nobody has received yet; more stay with the host that sends them.
const UNHEARD: usize = 64;

/// Why a line ended before it was of no use any more.
#[derive(Debug, Error)]
enum LineError {
    #[error(transparent)]
    Reach(#[from] ReachError),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("it closed the channel")]
    Closed,
}

/// A host as it is reached: its name and address.
type HostAddress = (String, Vec<Endpoint>);

/// The channels there are.
pub struct HostChannels {
    links: Arc<Links>,
    runtime: Handle,
    arrived: mpsc::UnboundedSender<Arrival>,
    /// Frames that wait for [`HostChannels::flush`].
    batch: FrameBatch,
    /// To the task that deals batches out: whoever computes wakes another thread once a batch.
    batches: mpsc::UnboundedSender<FrameBatch>,
    lines: BTreeMap<u64, HostChannel>,
    /// The line that the next attachment to a place goes over.
    current: BTreeMap<HostAddress, u64>,
    opened: u64,
}

/// Frames and the queues that they go to.
type FrameBatch = Vec<(mpsc::UnboundedSender<Frame>, Frame)>;

/// A channel to a host, and the task that serves it.
struct HostChannel {
    place: HostAddress,
    /// One frame a layer, whose answer is waited for, and what is attached and detached.
    frames: mpsc::UnboundedSender<Frame>,
    attached: BTreeSet<u64>,
    /// Whether its channel hands over; set once it is open.
    hands_over: Arc<OnceLock<bool>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for HostChannel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HostChannels {
    /// None open yet. What comes over them goes to `arrived`.
    pub fn new(links: Arc<Links>, arrived: mpsc::UnboundedSender<Arrival>) -> Self {
        let runtime = links.runtime().clone();
        let (batches, mut dealt) = mpsc::unbounded_channel::<FrameBatch>();
        runtime.spawn(async move {
            while let Some(batch) = dealt.recv().await {
                // A line that is gone has said so.
                batch.into_iter().for_each(|(queue, frame)| drop(queue.send(frame)));
            }
        });
        let (batch, lines, current) = Default::default();
        Self { links, runtime, arrived, batch, batches, lines, current, opened: 0 }
    }

    /// Attaches shards of a holder, over the line to it or a new one. Returns the line.
    pub fn attach(&mut self, holder: &ShardHolder, attach: Attach, trace: Option<TraceContext>) -> u64 {
        let place = (holder.host.clone(), holder.endpoints.clone());
        let number = match self.current.get(&place) {
            Some(&line) if self.lines.contains_key(&line) => line,
            _ => self.open(place),
        };
        let line = self.lines.get_mut(&number).expect("it is open");
        let attachment = attach.attachment;
        line.attached.insert(attachment);
        let _ = line.frames.send(ChannelOpening::Attach(attach).frame());
        let traced = trace.map(|trace| ChannelOpening::Trace { attachment, trace }.frame());
        traced.into_iter().for_each(|frame| drop(line.frames.send(frame)));
        number
    }

    /// Detaches. Where that is because of the host, what is attached next goes over a new line and link.
    pub fn detach(&mut self, line: u64, attachment: u64, distrust: bool) {
        let Some(open) = self.lines.get_mut(&line) else { return };
        open.attached.remove(&attachment);
        let _ = open.frames.send(ChannelOpening::Detach { attachment }.frame());
        if distrust && self.current.get(&open.place) == Some(&line) {
            self.current.remove(&open.place);
            self.links.forget(&open.place.1);
        }
        if open.attached.is_empty() && self.current.get(&open.place) != Some(&line) {
            self.lines.remove(&line);
        }
    }

    /// Whether a line is known to hand over.
    pub fn hands_over(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(|line| line.hands_over.get() == Some(&true))
    }

    /// Sends a frame over a line with the next batch.
    pub fn send(&mut self, line: u64, frame: Frame) {
        let line = self.lines.get(&line);
        self.batch.extend(line.map(|line| (line.frames.clone(), frame)));
    }

    /// What comes soon, looked for without sleeping where there is a core for that.
    pub fn look(&self, arrivals: &mut mpsc::UnboundedReceiver<Arrival>) -> Option<Arrival> {
        let (began, awake) = (Instant::now(), self.links.plane().awake());
        while !awake.is_zero() && began.elapsed() < awake {
            if let Ok(arrival) = arrivals.try_recv() {
                return Some(arrival);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Sends what waits, in one batch.
    pub fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.links.plane().stirred();
            // The task that deals it out ends with its runtime.
            let _ = self.batches.send(std::mem::take(&mut self.batch));
        }
    }

    /// A line ended: what was attached over it.
    pub fn ended(&mut self, line: u64) -> BTreeSet<u64> {
        let Some(mut ended) = self.lines.remove(&line) else { return BTreeSet::new() };
        if self.current.get(&ended.place) == Some(&line) {
            self.current.remove(&ended.place);
            self.links.forget(&ended.place.1);
        }
        std::mem::take(&mut ended.attached)
    }

    /// The host that a line leads to.
    pub fn host(&self, line: u64) -> String {
        self.lines.get(&line).map_or_else(String::new, |line| line.place.0.clone())
    }

    fn open(&mut self, place: HostAddress) -> u64 {
        let number = self.opened;
        self.opened += 1;
        let (frames, queue) = mpsc::unbounded_channel();
        let (links, arrived, to) = (self.links.clone(), self.arrived.clone(), place.clone());
        let hands_over = Arc::<OnceLock<bool>>::default();
        let known = hands_over.clone();
        let task = self.runtime.spawn(async move {
            if let Err(cause) = serve(number, (&to, &known), &links, queue, &arrived).await {
                let _ = arrived.send(Arrival::Broke(number, cause.to_string()));
            }
        });
        self.lines
            .insert(number, HostChannel { place: place.clone(), frames, attached: BTreeSet::new(), hands_over, task });
        self.current.insert(place, number);
        number
    }
}

/// Opens a channel, sends frames and hands answers over until nobody asks any more; the error is why it ended before.
async fn serve(
    number: u64,
    ((host, endpoints), hands_over): (&HostAddress, &OnceLock<bool>),
    links: &Links,
    mut frames: mpsc::UnboundedReceiver<Frame>,
    arrived: &mpsc::UnboundedSender<Arrival>,
) -> Result<(), LineError> {
    let mut channel = links.reach(host, endpoints).await?;
    // It was not known before.
    let _ = hands_over.set(channel.sender.hands_over());
    let places = Arc::new(Semaphore::new(UNHEARD));
    loop {
        tokio::select! {
            biased;
            frame = frames.recv() => {
                let Some(frame) = frame else { return Ok(()) };
                channel.sender.send(frame).await?;
            }
            answer = channel.receiver.receive() => {
                let answer = answer?.ok_or(LineError::Closed)?;
                let place = places.clone().acquire_owned().await.expect("it is never closed");
                let _ = arrived.send(Arrival::Frame(number, answer, place));
            }
        }
    }
}
