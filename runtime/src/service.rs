//! The supervisor and its admin API in this process: the lock, the actor, the listener. Starts no host and prints nothing.

use std::sync::Arc;

use asterism_actors::supervisor::Supervisor;
use tokio::sync::Notify;

use crate::{
    check,
    cluster::Cluster,
    credentials,
    data_dir::{self, Seat},
    error::CliError,
    http::{self, AdminServer, AdminState},
    joining, rotation, wiring,
};

/// A running supervisor.
pub struct Service {
    /// Its actor.
    pub supervisor: Supervisor,
    /// Who serves the cluster, as other commands find it.
    pub record: data_dir::Record,
    admin: AdminServer,
    stop_wanted: Arc<Notify>,
    lock: data_dir::Lock,
}

impl Service {
    /// Takes the cluster's data_dir, starts the supervisor and its admin API, and publishes where they are.
    pub async fn start(cluster: &Cluster) -> Result<Self, CliError> {
        let lock = data_dir::lock(&cluster.data_dir, &cluster.name, Seat::Supervisor)?;
        credentials::provide(cluster, [credentials::SUPERVISOR])?;
        let token = check::admin_token(cluster)?;
        let (supervisor, listen) = wiring::start_supervisor(cluster).await?;
        let joins = joining::open(cluster)?.map(Arc::new);
        rotation::renew_daily(cluster);
        let stop_wanted = Arc::new(Notify::new());
        let state =
            AdminState { supervisor: supervisor.clone(), listen, token, joins, stop_wanted: stop_wanted.clone() };
        let admin = http::serve(cluster.admin_listen, state)?;
        let record = data_dir::Record { pid: std::process::id(), admin: admin.address, listen };
        lock.publish(&record)?;
        Ok(Self { supervisor, record, admin, stop_wanted, lock })
    }

    /// Completes when a client asks for the end.
    pub async fn stop_wanted(&self) {
        self.stop_wanted.notified().await;
    }

    /// Tells every host to end, and ends supervisor and admin API.
    pub async fn stop(self) {
        self.supervisor.shutdown().await;
        self.admin.stop().await;
        drop(self.lock);
    }
}
