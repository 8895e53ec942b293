//! What the admin API's handlers work with. Handles no request.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use asterism_actors::{JobError, api::ClusterStatus, supervisor::Supervisor};
use asterism_transport::join::JoinListener;
use tokio::sync::Notify;

use crate::{
    api::{
        admin::{door::PeerRefusals, link_bench::LinkBench, running::RunningFile, self_test::SelfTest},
        http::body::intake::Intake,
        openai::Store,
    },
    data_dir::place::Place,
};

/// What handlers work with.
#[derive(Clone)]
pub struct AdminState {
    /// The supervisor.
    pub supervisor: Supervisor,
    /// Its cluster's name.
    pub cluster: String,
    /// Where it keeps what it keeps, as requests name it.
    pub place: Option<Place>,
    /// Where it keeps what is its own alone.
    pub data_dir: PathBuf,
    /// What requests must bear, if anything.
    pub token: Option<String>,
    /// Who called it in vain.
    pub door: Arc<PeerRefusals>,
    /// Where hosts reach the supervisor.
    pub listen: SocketAddr,
    /// Where nodes use join tokens, if anywhere.
    pub joins: Option<Arc<JoinListener>>,
    /// The cluster file, which may change.
    pub file: RunningFile,
    /// What tries whether the cluster answers as it must.
    pub self_test: SelfTest,
    /// What measures links of the cluster.
    pub links: LinkBench,
    /// What bodies of requests may take.
    pub intake: Intake,
    /// What clients of OpenAI's API keep, where there is one.
    pub store: Option<Arc<Store>>,
    /// CallPiece when a client asks for the end.
    pub stop_wanted: Arc<Notify>,
}

impl AdminState {
    /// The cluster, with why hosts are not there.
    pub(crate) async fn topology(&self) -> Result<ClusterStatus, JobError> {
        let mut status = self.supervisor.cluster().await?;
        self.door.explain(&mut status.hosts);
        status.self_test = self.self_test.report().brief();
        status.stored = self.store.as_ref().map(|store| store.stored());
        Ok(status)
    }
}
