//! Who leads: a key of etcd that lives as long as a lease which the leader renews. What a leader does is not known here.
//!
//! The revision at which the key came to be is the leader's term: larger than that of every leader before it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use ureq::Agent;

use super::gateway::{Condition, Gateway, GatewayError, Write};
use crate::client;

/// A lease is renewed so many times while it lasts.
const RENEWALS: u32 = 4;
/// Most supervisors of a cluster that are asked whether they lead.
const MOST_SUPERVISORS: usize = 15;
/// How long one of them may take to answer.
const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// Who leads, for whoever looks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// Its machine's name.
    pub machine: String,
    /// Its process.
    pub pid: u32,
    /// Its admin API.
    pub admin: String,
    /// Where hosts reach it.
    pub listen: String,
}

impl std::fmt::Display for LeaderRecord {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { machine, pid, admin, listen } = self;
        write!(formatter, "process {pid} on {machine} (admin API {admin}, hosts at {listen})")
    }
}

/// What is done when somebody else may lead: called once, with the cause.
pub type Deposed = Arc<dyn Fn(&str) + Send + Sync>;

/// What came of an attempt to lead.
pub enum Campaign {
    /// This process leads.
    Won(Lead),
    /// Somebody else does.
    Lost(LeaderRecord),
}

/// The lead, for as long as this lives or until somebody else has it.
pub struct Lead {
    /// The revision at which it began.
    pub term: i64,
    lost: Arc<AtomicBool>,
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

/// Tries once to lead: `key` is made with a lease of so many seconds unless somebody has it. `known`: below which key supervisors are
/// listed by their admin APIs, this one too from then on.
pub fn campaign(
    etcd: &mut Gateway,
    (key, known, own): (&str, &str, &LeaderRecord),
    (seconds, deposed): (u64, Deposed),
) -> Result<Campaign, GatewayError> {
    let mut others = Others { below: known.to_owned(), own: own.admin.clone(), admins: Vec::new() };
    let known = |value: &[u8]| serde_json::from_slice(value).unwrap_or_default();
    let listed = others.key();
    let mut found = etcd.read(&[key, &listed])?.into_iter();
    let (leader, listing) = (found.next().flatten(), found.next().flatten());
    if listing.is_none() {
        etcd.transact(&[], &[Write::Put { key: listed, value: Vec::new(), lease: None }], &[])?;
    }
    if let Some(leader) = leader {
        return Ok(Campaign::Lost(known(&leader.value)));
    }
    // Before it leads: it may be cut off from etcd before it renews its lease for the first time, and then asks these.
    others.look(etcd);
    let lease = etcd.grant(seconds)?;
    let value = serde_json::to_vec(own).expect("plain values are JSON");
    let put = Write::Put { key: key.to_owned(), value: value.clone(), lease: Some(lease) };
    let outcome = match etcd.transact(&[Condition::Created(key, 0)], &[put], &[key]) {
        Ok(outcome) => outcome,
        Err(error) => {
            // It may have been made: nobody is to wait for the end of a lease that nobody renews.
            let _ = etcd.revoke(lease);
            return Err(error);
        }
    };
    let found = outcome.read.into_iter().next().flatten();
    let term = match (outcome.succeeded, found) {
        (true, _) => outcome.revision,
        // Made by a first try whose answer was lost.
        (false, Some(pair)) if pair.value == value && etcd.keep_alive(lease)? => pair.created,
        (false, leader) => {
            etcd.revoke(lease)?;
            return Ok(Campaign::Lost(leader.map(|leader| known(&leader.value)).unwrap_or_default()));
        }
    };
    let lasts = Duration::from_secs(seconds);
    Ok(Campaign::Won(Lead::keep((etcd.clone(), others), (term, lease), (lasts, deposed))))
}

/// The other supervisors of a cluster, as far as they are known.
struct Others {
    below: String,
    own: String,
    admins: Vec<String>,
}

impl Others {
    fn key(&self) -> String {
        format!("{}{}", self.below, self.own)
    }

    /// Takes in who is listed now.
    fn look(&mut self, etcd: &mut Gateway) {
        // The first key that does not begin so.
        let until = format!("{}0", self.below.trim_end_matches('/'));
        if let Ok(page) = etcd.page(&self.below, &until, (MOST_SUPERVISORS, 0)) {
            let admins = page.pairs.iter().filter_map(|pair| pair.key.strip_prefix(&self.below));
            self.admins = admins.filter(|admin| *admin != self.own).map(str::to_owned).collect();
        }
    }

    /// One that leads, as it says itself: those that stand by say so.
    fn leader(&self) -> Option<&String> {
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(ASKED_WITHIN)).build();
        let agent = client::agent(config, None);
        self.admins.iter().find(|admin| {
            let answer = agent.get(format!("{admin}/readyz")).call();
            let text = answer.ok().and_then(|mut answer| answer.body_mut().read_to_string().ok()).unwrap_or_default();
            text.trim_end().lines().next_back().is_some_and(|line| ["ready", "not ready"].contains(&line))
        })
    }
}

impl Lead {
    /// Renews the lease on a thread of its own, which waits for nobody's work.
    fn keep(
        (etcd, others): (Gateway, Others),
        (term, lease): (i64, i64),
        (lasts, deposed): (Duration, Deposed),
    ) -> Self {
        let (stop, stopped) = channel::<()>();
        let lost = Arc::new(AtomicBool::new(false));
        let flag = lost.clone();
        let work = move || {
            let (mut etcd, mut others) = (etcd, others);
            let (mut renewed, mut silent) = (Instant::now(), false);
            loop {
                match stopped.recv_timeout(lasts / RENEWALS) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                        if let Err(error) = etcd.revoke(lease) {
                            tracing::warn!(%error, "the lead ends with its lease");
                        }
                        return;
                    }
                }
                let asked = Instant::now();
                match etcd.keep_alive(lease) {
                    Ok(true) => {
                        if silent {
                            tracing::info!(term, "etcd answers again, and this supervisor leads still");
                        }
                        (renewed, silent) = (asked, false);
                        others.look(&mut etcd);
                    }
                    Ok(false) => {
                        flag.store(true, Ordering::SeqCst);
                        let late = renewed.elapsed().as_secs_f64();
                        return deposed(&format!("its lease ended: it was renewed {late:.1} s ago"));
                    }
                    Err(error) => {
                        if !silent && renewed.elapsed() > lasts {
                            silent = true;
                            tracing::error!(term, %error, "etcd does not answer: what runs goes on, nothing new is taken");
                        }
                        // Cut off from etcd alone, it would keep hosts from whoever leads.
                        if silent && let Some(leader) = others.leader() {
                            flag.store(true, Ordering::SeqCst);
                            return deposed(&format!("etcd is not reached from here, and {leader} leads"));
                        }
                    }
                }
            }
        };
        let keeper = std::thread::Builder::new().name("lead".into()).spawn(work);
        let keeper = keeper.inspect_err(|error| tracing::error!(%error, "no thread renews the lead")).ok();
        Self { term, lost, stop: Some(stop), keeper }
    }

    /// Whether it is known that somebody else may lead.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Lead {
    /// Gives the lead up, so that nobody has to wait for the end of its lease.
    fn drop(&mut self) {
        self.stop = None;
        if let Some(Err(panic)) = self.keeper.take().map(JoinHandle::join) {
            tracing::error!(?panic, "the thread that renewed the lead ended by a panic");
        }
    }
}
