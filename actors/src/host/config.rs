//! Who a host's process is, what it is started with and what it talks through.

use std::{sync::Arc, time::Duration};

use asterism_transport::{DataPlane, Endpoint, Places, Transport};
use tokio::sync::watch;

use crate::{
    compute::{Batching, DeviceHandover},
    messages::{Hello, HostRole, Settings},
    payload::PIECE_BYTES,
    tally::Tally,
};

/// How long a host works on without its supervisor, unless told otherwise. It ends with the agent that started it anyway; and one that
/// starts the supervisor again may take minutes where the machine is short of memory.
pub const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a host that is asked to end may take to give its work away, unless told otherwise.
pub const LEAVE_GRACE: Duration = Duration::from_secs(8);

/// Who a process is and where its supervisor listens.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Name, as the cluster file has it: the host's, or the node's.
    pub name: String,
    /// What it is started as.
    pub role: HostRole,
    /// Whether it encodes shards and answers queries over them.
    pub encodes: bool,
    /// Whether it generates; the model it loads needs its head then.
    pub generates: bool,
    /// Where the supervisor listens: at one of these places.
    pub supervisor: Places,
    /// The node's number of this process: larger at each start of this host.
    pub start: u64,
    /// How long a host that lost its supervisor works on and tries to reach it.
    pub patience: Duration,
    /// Most bytes of what shards pass each other in one frame.
    pub piece_bytes: usize,
    /// What it hands hosts of its process as it lies on its device; none: as suits that.
    pub hands_over: Option<DeviceHandover>,
    /// What goes together through the layers.
    pub batching: Batching,
    /// What its process counts; none where another host of the process tells it.
    pub tally: Option<Arc<Tally>>,
    /// Becomes true when its process is asked to end: it then gives its work away first. None: nobody asks.
    pub leave: Option<watch::Receiver<bool>>,
    /// How long that may take.
    pub grace: Duration,
    /// Where what its supervisor tells it to do otherwise goes; none: nowhere.
    pub settings: Option<watch::Sender<Settings>>,
}

impl HostConfig {
    /// What the role needs: a context host encodes, a query host generates, a spare does both.
    pub fn new(name: &str, role: HostRole, supervisor: impl Into<Places>, start: u64) -> Self {
        let (encodes, generates) = match role {
            HostRole::Context => (true, false),
            HostRole::Query => (false, true),
            HostRole::Spare => (true, true),
            HostRole::Node => (false, false),
        };
        let (name, patience, piece_bytes, tally) = (name.into(), SUPERVISOR_TIMEOUT, PIECE_BYTES, Some(Arc::default()));
        let (hands_over, batching, leave, grace) = (None, Batching::default(), None, LEAVE_GRACE);
        Self {
            name,
            role,
            encodes,
            generates,
            supervisor: supervisor.into(),
            start,
            patience,
            piece_bytes,
            hands_over,
            batching,
            tally,
            leave,
            grace,
            settings: None,
        }
    }

    pub(crate) fn hello(&self, endpoints: Vec<Endpoint>) -> Hello {
        Hello {
            name: self.name.clone(),
            role: self.role,
            start: self.start,
            pid: std::process::id(),
            endpoints,
            ..Hello::default()
        }
    }
}

/// What a host process talks through.
#[derive(Clone)]
pub struct Transports {
    /// To the supervisor.
    pub control: Arc<dyn Transport>,
    /// To other hosts.
    pub data: Arc<DataPlane>,
}

impl Transports {
    /// One for all.
    pub fn one(transport: Arc<dyn Transport>) -> Self {
        Self { data: DataPlane::of(transport.clone()), control: transport }
    }

    pub(super) async fn close(&self) {
        self.data.close();
        self.control.close();
        self.data.drained().await;
        self.control.drained().await;
    }
}
