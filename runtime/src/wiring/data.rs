//! What tensors travel by: the transports that the cluster file allows and this build has, on a thread of their own, so that a
//! frame that comes wakes that thread alone, which answers it.

use std::{sync::Arc, thread};

use asterism_transport::{DataPlane, Transport};
use tokio::runtime::{Builder, Handle};

use super::{QUIC, bind, counted, no_threads};
use crate::{
    cluster::{Cluster, Host},
    cluster_file::DataTransport,
    error::CliError,
};

/// The ways by which a host's tensors travel.
pub fn plane(cluster: &Cluster, host: &Host) -> Result<Arc<DataPlane>, CliError> {
    let runtime = drive()?;
    let _driven = runtime.enter();
    let quic = bind(cluster, host.member(), host.address, counted(QUIC))?;
    Ok(match cluster.data.transport {
        DataTransport::Quic => DataPlane::of(quic),
        _ => DataPlane::new(vec![quic as Arc<dyn Transport>]),
    })
}

/// A thread that drives transports for as long as the process lives.
fn drive() -> Result<Handle, CliError> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| no_threads(&error))?;
    let handle = runtime.handle().clone();
    let drive = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("data".into()).spawn(drive).map_err(|error| no_threads(&error))?;
    Ok(handle)
}
