//! The ways by which data reaches other hosts, and which of them a link takes and why. Carries no frame itself.
//!
//! A host offers one [`Endpoint`] for each way it has. Whoever connects takes the best that both have; a way that both have
//! and that fails is passed over for the next, which the link then says for as long as it lives.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rkyv::{Archive, Deserialize, Serialize};
use tokio::{
    runtime::Handle,
    sync::{Mutex, Notify, mpsc},
};

use crate::{Link, Transport, TransportError};

/// What transports are called in endpoints, the best first. One that is not among them comes last.
pub const BEST_FIRST: [&str; 3] = [LOCAL, "ucx", "quic"];
const LOCAL: &str = "local";
/// Links of one way that wait for `accept`.
const PLANE_LINKS_IN_FLIGHT: usize = 16;
/// How long a way may take to connect that has another behind it.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// Where a host is reached by one transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Archive, Serialize, Deserialize)]
#[rkyv(derive(Debug))]
pub struct Endpoint {
    /// The transport's name.
    pub transport: String,
    /// What [`Transport::resolve`] makes an address of.
    pub address: String,
}

impl Endpoint {
    /// Where `transport` reaches a host.
    pub fn new(transport: &str, address: impl ToString) -> Self {
        Self { transport: transport.to_owned(), address: address.to_string() }
    }

    /// What a transport offers.
    pub fn of(transport: &dyn Transport) -> Self {
        Self::new(transport.name(), transport.offered())
    }

    /// The address alone, for people: without what a transport says before it of where it holds.
    pub fn socket(&self) -> &str {
        self.address.rsplit('/').next().unwrap_or_default()
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} at {}", self.transport, self.address)
    }
}

/// The ways by which a process reaches others and is reached.
pub struct DataPlane {
    /// The best first.
    ways: Vec<Arc<dyn Transport>>,
    /// What the ways need beneath them.
    beneath: Vec<Arc<dyn Transport>>,
    /// Ways that this process would have, and why it does not.
    lacking: Vec<(&'static str, String)>,
    runtime: Handle,
    vigil: Arc<Vigil>,
    accepted: Mutex<Option<mpsc::Receiver<Arc<dyn Link>>>>,
}

/// A link and how it came about.
pub struct Reached {
    /// The link.
    pub link: Arc<dyn Link>,
    /// The transport's name.
    pub transport: &'static str,
    /// Better ways that it does not take, each with the cause; empty where there is none.
    pub why: String,
}

impl DataPlane {
    /// Of transports that the current tokio runtime drives, on which links are made and whoever serves them had best run.
    /// Nothing travels by those `beneath`, which close after them.
    pub fn new(ways: Vec<Arc<dyn Transport>>, beneath: Vec<Arc<dyn Transport>>) -> Arc<Self> {
        Arc::new(Self::with(ways, beneath, Vec::new()))
    }

    /// Of one transport.
    pub fn of(transport: Arc<dyn Transport>) -> Arc<Self> {
        Self::new(vec![transport], Vec::new())
    }

    /// Of transports that are there, beside one that is not, and why, as links say.
    pub fn lacking(ways: Vec<Arc<dyn Transport>>, transport: &'static str, cause: String) -> Arc<Self> {
        Arc::new(Self::with(ways, Vec::new(), vec![(transport, cause)]))
    }

    fn with(
        mut ways: Vec<Arc<dyn Transport>>,
        beneath: Vec<Arc<dyn Transport>>,
        lacking: Vec<(&'static str, String)>,
    ) -> Self {
        ways.sort_by_key(|way| rank(way.name()));
        let (runtime, vigil, accepted) = (Handle::current(), Arc::default(), Mutex::default());
        Self { ways, beneath, lacking, runtime, vigil, accepted }
    }

    /// From now on its thread looks for the next frame for so long after each before it sleeps: a sleeper takes tens of
    /// microseconds to wake. For a runtime of one thread that has a core to itself.
    pub fn keep_awake(&self, long: Duration) {
        if !long.is_zero() && self.vigil.long.set(long).is_ok() {
            self.runtime.spawn(self.vigil.clone().keep());
        }
    }

    /// How long its thread stays awake after a frame; zero where it sleeps at once.
    pub fn awake(&self) -> Duration {
        self.vigil.long.get().copied().unwrap_or_default()
    }

    /// A frame came or went, and another may follow soon.
    pub fn stirred(&self) {
        self.vigil.stir();
    }

    /// What drives its transports.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Where others reach this process, the best way first.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.ways.iter().map(|way| Endpoint::of(way.as_ref())).collect()
    }

    /// Connects to a peer that offers these endpoints.
    ///
    /// # Errors
    /// [`TransportError::NoWay`] where the two have none in common, else what the last of them failed with.
    pub async fn connect(self: &Arc<Self>, peer: &[Endpoint]) -> Result<Reached, TransportError> {
        let own: Vec<&str> = self.ways.iter().map(|way| way.name()).collect();
        let resolve = |way: usize, address: &str| self.ways[way].resolve(address);
        let mut passed_over = Vec::new();
        let mut last = None;
        let mut steps = choose((&own, &self.lacking), peer, resolve).into_iter().peekable();
        while let Some(step) = steps.next() {
            match step {
                Step::Skip(cause) => passed_over.push(cause),
                Step::Try { way, address } => {
                    let (transport, is_last) = (self.ways[way].clone(), steps.peek().is_none());
                    let name = transport.name();
                    if let Some(cause) = transport.ailing(address).filter(|_| !is_last) {
                        passed_over.push(format!("{name}: {cause}"));
                        continue;
                    }
                    let connect = async move {
                        let link = transport.connect(address);
                        if is_last {
                            return link.await;
                        }
                        let late = || TransportError::Unreachable {
                            address,
                            cause: format!("no answer within {CONNECT_PATIENCE:?}"),
                        };
                        tokio::time::timeout(CONNECT_PATIENCE, link).await.unwrap_or_else(|_| Err(late()))
                    };
                    let made = self.runtime.spawn(connect).await;
                    match made.unwrap_or(Err(TransportError::TransportClosed)) {
                        Ok(link) => return Ok(Reached { link, transport: name, why: passed_over.join("; ") }),
                        Err(error) => {
                            tracing::warn!(transport = name, %address, %error, "a way to a peer fails");
                            passed_over.push(format!("{name}: {error}"));
                            last = Some(error);
                        }
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| TransportError::NoWay {
            offered: peer.iter().map(|endpoint| endpoint.transport.as_str()).collect::<Vec<_>>().join(", "),
            own: own.join(", "),
        }))
    }

    /// The next authenticated peer, by whichever way; `None` once all are closed. One task at a time asks.
    pub async fn accept(&self) -> Option<Arc<dyn Link>> {
        let mut accepted = self.accepted.lock().await;
        accepted.get_or_insert_with(|| self.listen()).recv().await
    }

    fn listen(&self) -> mpsc::Receiver<Arc<dyn Link>> {
        let (sender, receiver) = mpsc::channel(PLANE_LINKS_IN_FLIGHT);
        for way in &self.ways {
            let (way, sender) = (way.clone(), sender.clone());
            self.runtime.spawn(async move {
                while let Some(link) = way.accept().await {
                    if sender.send(link).await.is_err() {
                        return;
                    }
                }
            });
        }
        receiver
    }

    /// Stops listening and closes every link.
    pub fn close(&self) {
        self.ways.iter().chain(&self.beneath).for_each(|way| way.close());
    }

    /// After `close`: completes once every peer has been told, or cannot be.
    pub async fn drained(&self) {
        for way in self.ways.iter().chain(&self.beneath) {
            way.drained().await;
        }
    }
}

/// Keeps a thread awake for a while after each frame.
#[derive(Default)]
struct Vigil {
    long: OnceLock<Duration>,
    stirred: AtomicBool,
    begin: Notify,
}

impl Vigil {
    fn stir(&self) {
        if self.long.get().is_some() && !self.stirred.swap(true, Ordering::Relaxed) {
            self.begin.notify_one();
        }
    }

    async fn keep(self: Arc<Self>) {
        let long = self.long.get().copied().unwrap_or_default();
        loop {
            self.begin.notified().await;
            let mut since = Instant::now();
            while since.elapsed() < long {
                if self.stirred.swap(false, Ordering::Relaxed) {
                    since = Instant::now();
                }
                // Has the runtime look at its sockets, without a pause.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// What is done about one way.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Not taken, and why.
    Skip(String),
    /// To be tried.
    Try {
        /// Place among the own ones.
        way: usize,
        /// Where.
        address: SocketAddr,
    },
}

/// The ways to a peer, the best first, and the better ones that there is no trying. What is worse than the last is not named.
fn choose(
    (own, lacking): (&[&str], &[(&'static str, String)]),
    peer: &[Endpoint],
    resolve: impl Fn(usize, &str) -> Result<Option<SocketAddr>, String>,
) -> Vec<Step> {
    let offered = peer.iter().map(|endpoint| endpoint.transport.as_str());
    let mut names: Vec<&str> =
        own.iter().copied().chain(offered).chain(lacking.iter().map(|(name, _)| *name)).collect();
    names.sort_by_key(|name| (rank(name), *name));
    names.dedup();
    let step = |name: &str| {
        let (here, there) = (own.iter().position(|own| *own == name), peer.iter().find(|one| one.transport == name));
        let skip = |cause: &str| Some(Step::Skip(format!("{name}: {cause}")));
        match (here, there) {
            (Some(way), Some(endpoint)) => match resolve(way, &endpoint.address) {
                Ok(address) => address.map(|address| Step::Try { way, address }),
                Err(cause) => skip(&cause),
            },
            // Between two processes nobody misses it.
            _ if name == LOCAL => None,
            (Some(_), None) => skip("the peer does not offer it"),
            (None, _) => match lacking.iter().find(|(lacking, _)| *lacking == name) {
                Some((_, cause)) => skip(cause),
                None => skip("this process does not have it"),
            },
        }
    };
    let mut steps: Vec<Step> = names.into_iter().filter_map(step).collect();
    let last = steps.iter().rposition(|step| matches!(step, Step::Try { .. }));
    steps.truncate(last.map_or(0, |last| last + 1));
    steps
}

fn rank(transport: &str) -> usize {
    BEST_FIRST.iter().position(|known| *known == transport).unwrap_or(BEST_FIRST.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoObserver, local::LocalNetwork};

    fn parsed(_: usize, address: &str) -> Result<Option<SocketAddr>, String> {
        address.parse().map(Some).map_err(|_| "no address".to_string())
    }

    #[test]
    fn the_best_that_both_have_is_tried_first_and_what_is_better_named() {
        let address: SocketAddr = "10.0.0.1:7400".parse().expect("an address");
        let offers = |names: &[&str]| names.iter().map(|name| Endpoint::new(name, address)).collect::<Vec<_>>();
        let choose = |own: &[&str], peer: &[Endpoint], resolve| choose((own, &[]), peer, resolve);
        let steps = choose(&["ucx", "quic"], &offers(&["quic", "ucx"]), parsed);
        assert_eq!(steps, [Step::Try { way: 0, address }, Step::Try { way: 1, address }]);
        let steps = choose(&["ucx", "quic"], &offers(&["quic"]), parsed);
        let skipped = Step::Skip("ucx: the peer does not offer it".into());
        assert_eq!(steps, [skipped, Step::Try { way: 1, address }]);
        let steps = choose(&["quic"], &offers(&["quic", "ucx"]), parsed);
        let skipped = Step::Skip("ucx: this process does not have it".into());
        assert_eq!(steps, [skipped, Step::Try { way: 0, address }]);
        let steps = choose(&["local", "quic"], &offers(&["quic"]), parsed);
        assert_eq!(steps, [Step::Try { way: 1, address }], "between processes");
        let steps = choose(&["quic"], &offers(&["quic", "pigeon"]), parsed);
        assert_eq!(steps, [Step::Try { way: 0, address }], "what is worse is not missed");
        assert_eq!(choose(&["quic"], &offers(&["ucx"]), parsed), []);
        let broken = [Endpoint::new("ucx", "nowhere"), Endpoint::new("quic", address)];
        let steps = choose(&["ucx", "quic"], &broken, parsed);
        assert_eq!(steps, [Step::Skip("ucx: no address".into()), Step::Try { way: 1, address }]);
        let lacking = [("ucx", "no memory to lock".to_string())];
        let steps = super::choose((&["quic"], &lacking), &offers(&["quic", "ucx"]), parsed);
        assert_eq!(steps, [Step::Skip("ucx: no memory to lock".into()), Step::Try { way: 0, address }]);
        assert_eq!(super::choose((&["quic"], &lacking), &offers(&["quic"]), parsed), steps, "nor has the peer");
    }

    #[tokio::test]
    async fn a_way_that_fails_is_passed_over_and_the_link_says_so() {
        let (network, address) = (LocalNetwork::new(), "127.0.0.1:0".parse().expect("an address"));
        let bind = || Arc::new(network.bind(address, Arc::new(NoObserver)).expect("a port"));
        let (here, there) = (bind(), bind());
        let plane = DataPlane::new(vec![here.clone(), Arc::new(Renamed(bind()))], Vec::new());
        let far = DataPlane::of(there.clone());
        let mut offered = far.endpoints();
        assert_eq!(plane.connect(&offered).await.expect("it listens").why, "");
        assert!(far.accept().await.is_some());
        // The better way leads to nobody.
        offered[0].address = network.bind(address, Arc::new(NoObserver)).expect("a port").offered();
        offered.push(Endpoint::new("quic", there.local_address()));
        let reached = plane.connect(&offered).await.expect("the other way is there");
        assert_eq!(reached.transport, "quic");
        assert!(reached.why.starts_with("local: "), "{}", reached.why);
        let nothing = plane.connect(&[Endpoint::new("pigeon", "roof")]).await.err().expect("no way");
        assert_eq!(nothing.code(), "no_way");
    }

    #[test]
    fn the_local_way_leads_to_the_own_process_alone() {
        let (one, other) = (LocalNetwork::new(), LocalNetwork::new());
        let address = "127.0.0.1:7400".parse().expect("an address");
        let bind = |network: &LocalNetwork| network.bind(address, Arc::new(NoObserver)).expect("it is free");
        let (here, elsewhere) = (bind(&one), bind(&other));
        assert_eq!(here.resolve(&here.offered()), Ok(Some(address)));
        assert_eq!(here.resolve(&elsewhere.offered()), Ok(None), "the same address in another network");
    }

    /// A local transport under another name.
    struct Renamed(Arc<crate::local::LocalTransport>);

    impl Transport for Renamed {
        fn name(&self) -> &'static str {
            "quic"
        }

        fn local_address(&self) -> SocketAddr {
            self.0.local_address()
        }

        fn connect(
            &self,
            address: SocketAddr,
        ) -> futures_util::future::BoxFuture<'_, Result<Arc<dyn Link>, TransportError>> {
            self.0.connect(address)
        }

        fn accept(&self) -> futures_util::future::BoxFuture<'_, Option<Arc<dyn Link>>> {
            self.0.accept()
        }

        fn close(&self) {
            self.0.close();
        }

        fn drained(&self) -> futures_util::future::BoxFuture<'_, ()> {
            self.0.drained()
        }
    }
}
