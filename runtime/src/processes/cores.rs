//! The cores of this machine among the hosts of one node: who computes holds a lock on a file of its own in the data_dir, and all
//! others see that. The system frees it with the process, however that ends. Decides nothing.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use asterism_actors::cores::{self, ComputeKind, Cores};
use asterism_kernels::ThreadLimit;

use crate::{
    cluster::{Cluster, Host, file::Role},
    data_dir::private,
};

/// The cores, as one host of them sees it.
#[derive(Debug)]
pub struct SharedCores {
    cores: usize,
    share: usize,
    /// Of each of its devices.
    limits: Vec<ThreadLimit>,
    locks: Option<HostLocks>,
    works: Mutex<Vec<ComputeKind>>,
}

/// A file for each host of the node.
#[derive(Debug)]
struct HostLocks {
    own: File,
    others: Vec<(Role, File)>,
}

impl SharedCores {
    /// Of `host`, whose devices compute with as many threads as `limits` say, together; of its own share where nothing can be told.
    pub fn new(cluster: &Cluster, host: &Host, cores: usize, limits: Vec<ThreadLimit>) -> Self {
        let share = cluster.threads_of(host, cores);
        deal(&limits, share);
        let locks = HostLocks::open(cluster, host).inspect_err(|error| {
            let folder = folder(cluster);
            tracing::warn!(folder = %folder.display(), %error, "idle cores cannot be told, so that this host leaves them idle");
        });
        Self { cores, share, limits, locks: locks.ok(), works: Mutex::default() }
    }

    fn works(&self) -> MutexGuard<'_, Vec<ComputeKind>> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deals threads out to devices, one at least to each.
fn deal(limits: &[ThreadLimit], threads: usize) {
    limits.iter().for_each(|limit| limit.set(threads / limits.len().max(1)));
}

impl Cores for SharedCores {
    fn begin(&self, work: ComputeKind) {
        let mut works = self.works();
        if work == ComputeKind::Answering || !works.contains(&work) {
            works.push(work);
        }
        let Some(locks) = &self.locks else { return };
        // Who looks at it holds it for a moment: then the next layer tries again.
        let _ = locks.own.try_lock();
        let others = match work {
            ComputeKind::Encoding => locks.taken(|_| true),
            // A query host that generates waits for this.
            ComputeKind::Answering if !works.contains(&ComputeKind::Encoding) => {
                locks.taken(|role| role != Role::Query)
            }
            ComputeKind::Answering | ComputeKind::Generating => return,
        };
        deal(&self.limits, cores::threads(self.cores, self.share, others));
    }

    fn end(&self, work: ComputeKind) {
        let mut works = self.works();
        if let Some(at) = works.iter().position(|other| *other == work) {
            works.swap_remove(at);
        }
        if !works.iter().any(|work| matches!(work, ComputeKind::Encoding | ComputeKind::Answering)) {
            deal(&self.limits, self.share);
        }
        if works.is_empty()
            && let Some(locks) = &self.locks
        {
            let _ = locks.own.unlock();
        }
    }

    fn threads(&self) -> usize {
        self.limits.iter().map(ThreadLimit::now).sum()
    }
}

impl HostLocks {
    fn open(cluster: &Cluster, host: &Host) -> io::Result<Self> {
        let folder = folder(cluster);
        private::make(&folder)?;
        let open =
            |name: &str| private::options().create(true).read(true).write(true).truncate(false).open(folder.join(name));
        let beside = |other: &&Host| other.node == host.node && other.name != host.name && other.devices.on_cpu();
        let others = cluster
            .hosts
            .iter()
            .filter(beside)
            .map(|other| Ok((other.role, open(&other.name)?)))
            .collect::<io::Result<_>>()?;
        Ok(Self { own: open(&host.name)?, others })
    }

    /// How many others of some roles compute.
    fn taken(&self, of: impl Fn(Role) -> bool) -> usize {
        let taken = |lock: &&File| match lock.try_lock_shared() {
            Ok(()) => {
                let _ = lock.unlock();
                false
            }
            Err(error) => matches!(error, TryLockError::WouldBlock),
        };
        self.others.iter().filter(|(role, _)| of(*role)).map(|(_, lock)| lock).filter(taken).count()
    }
}

fn folder(cluster: &Cluster) -> std::path::PathBuf {
    Path::new(&cluster.data_dir).join("cores")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{file as cluster_file, sample::SAMPLE};

    #[test]
    fn a_lone_host_has_the_cores_that_others_leave_idle() {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::resolve(&cluster_file::parse(SAMPLE, []).unwrap(), folder.path()).unwrap();
        cluster.data_dir = folder.path().join("data");
        let of = |name: &str| {
            let host = cluster.host(name).unwrap();
            let most = host.threads.unwrap_or(8);
            SharedCores::new(&cluster, host, 8, vec![ThreadLimit::new(most)])
        };
        let [one, two, query] = ["context-0", "context-1", "query-0"].map(of);
        assert_eq!([one.threads(), query.threads()], [2, 8]);
        one.begin(ComputeKind::Encoding);
        assert_eq!(one.threads(), 8, "nobody else computes");
        two.begin(ComputeKind::Encoding);
        one.begin(ComputeKind::Encoding);
        assert_eq!([one.threads(), two.threads()], [4, 4]);
        query.begin(ComputeKind::Generating);
        one.begin(ComputeKind::Encoding);
        assert_eq!([one.threads(), query.threads()], [2, 8]);
        // A process that dies leaves its cores.
        drop(two);
        query.end(ComputeKind::Generating);
        one.begin(ComputeKind::Encoding);
        assert_eq!(one.threads(), 8);
        one.end(ComputeKind::Encoding);
        assert_eq!(one.threads(), 2, "its share, for small questions");
        // For large ones what other context hosts leave: the query host waits meanwhile.
        let [two, query] = ["context-1", "query-0"].map(of);
        query.begin(ComputeKind::Generating);
        one.begin(ComputeKind::Answering);
        assert_eq!(one.threads(), 8);
        two.begin(ComputeKind::Answering);
        one.begin(ComputeKind::Answering);
        one.end(ComputeKind::Answering);
        assert_eq!([one.threads(), two.threads()], [4, 4], "another answer goes on");
        one.begin(ComputeKind::Encoding);
        one.end(ComputeKind::Answering);
        assert_eq!(one.threads(), 2, "encoding goes on, beside two others");
        one.end(ComputeKind::Encoding);
        assert_eq!(one.threads(), 2);
        // What the file says of a host's threads holds.
        cluster.hosts[0].threads = Some(3);
        let host = cluster.host("context-0").unwrap();
        let fixed = SharedCores::new(&cluster, host, 8, vec![ThreadLimit::new(3)]);
        fixed.begin(ComputeKind::Encoding);
        assert_eq!(fixed.threads(), 3);
    }
}
