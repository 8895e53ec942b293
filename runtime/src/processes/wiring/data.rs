//! What tensors travel by: the transports that the cluster file allows and this build has, on a thread of their own, so that a
//! frame that comes wakes that thread alone, which answers it.

#[cfg(feature = "ucx")]
use std::{collections::BTreeSet, net::IpAddr, slice};

use std::{env, net::SocketAddr, sync::Arc, thread, time::Duration};

use asterism_transport::{
    DataPlane, Transport, TransportError, certificates::Member, local::LocalNetwork, quic::QuicTransport,
};
use tokio::runtime::{Builder, Handle};

use super::listener::{LOCAL, QUIC, bind, counted, here, no_threads, transport_refusal};
use crate::{
    cluster::{
        Cluster, Data, Host,
        file::{DataTransport, SecurityMode},
    },
    error::CliError,
};

#[cfg(feature = "ucx")]
use asterism_transport::ucx::{SHARED_MEMORY, UcxConfig, UcxTransport};

/// How long a thread of a process that has a core to itself looks for the next frame before it sleeps: longer than a query host
/// computes between two layers of a small model.
const AWAKE: Duration = Duration::from_micros(500);

/// Lanes beside the link's own thread: with them two hosts pass each other nearly twice as much.
const LANES: u16 = 3;
/// Cores a host of a machine whose hosts have lanes.
const CORES_WITH_LANES: usize = 6;

/// The ways by which a host's tensors travel; `network` has the other hosts of its process.
pub fn plane(cluster: &Cluster, host: &Host, network: Option<&LocalNetwork>) -> Result<Arc<DataPlane>, CliError> {
    let runtime = drive()?;
    let _driven = runtime.enter();
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let quic = bind(cluster, host.member(), (here(&host.address)?, lanes(cluster, host, cores)), counted(QUIC))?;
    let awake = awake(cluster, host, cores);
    let mut ways: Vec<Arc<dyn Transport>> = Vec::new();
    if let (DataTransport::Auto, Some(network)) = (cluster.data.transport, network) {
        ways.push(local(cluster, host, network)?);
    }
    let plane = match cluster.data.transport {
        DataTransport::Quic => DataPlane::of(quic),
        DataTransport::Auto if !cfg!(feature = "ucx") => DataPlane::new(with(ways, [quic]), Vec::new()),
        // UCX takes what peers say of themselves as it comes.
        DataTransport::Auto if cluster.security.mode == SecurityMode::Insecure => {
            let cause = "it is for clusters with certificates, unless [transport] data = \"ucx\" says otherwise";
            DataPlane::lacking(with(ways, [quic]), "ucx", cause.into())
        }
        wanted => match (wanted, ucx(&quic, cluster, host, awake)) {
            (DataTransport::Ucx, Ok(ucx)) => DataPlane::new(vec![ucx], vec![quic]),
            (DataTransport::Ucx, Err(error)) => return Err(transport_refusal(&error)),
            (_, Ok(ucx)) => DataPlane::new(with(ways, [ucx, quic]), Vec::new()),
            (_, Err(error)) => {
                tracing::warn!(%error, "tensors travel over QUIC alone");
                DataPlane::lacking(with(ways, [quic]), "ucx", error.to_string())
            }
        },
    };
    plane.keep_awake(awake);
    Ok(plane)
}

fn with<const N: usize>(ways: Vec<Arc<dyn Transport>>, others: [Arc<dyn Transport>; N]) -> Vec<Arc<dyn Transport>> {
    ways.into_iter().chain(others).collect()
}

/// Where the other hosts of the process reach this one.
fn local(cluster: &Cluster, host: &Host, network: &LocalNetwork) -> Result<Arc<dyn Transport>, CliError> {
    let address = SocketAddr::new(here(&host.address)?.ip(), 0);
    let transport = network.bind(address, counted(LOCAL)).map_err(|error| transport_refusal(&error))?;
    Ok(Arc::new(match cluster.security.mode {
        SecurityMode::Mtls => {
            let (role, name) = host.member();
            transport.known_as(Member::new(&cluster.name, role, name))
        }
        SecurityMode::Insecure => transport,
    }))
}

/// How long a host's process stays awake: not at all where processes share cores.
fn awake(cluster: &Cluster, host: &Host, cores: usize) -> Duration {
    // One more for the supervisor, and one for the thread that generates.
    if cores > hosts_of_its_node(cluster, host) + 1 { AWAKE } else { Duration::ZERO }
}

/// Lanes of a host, unless the file says how many: some where a GPU computes, so that cores are free, and a machine has enough of them.
fn lanes(cluster: &Cluster, host: &Host, cores: usize) -> u16 {
    let to_spare = !host.devices.on_cpu() && cores >= CORES_WITH_LANES * hosts_of_its_node(cluster, host);
    cluster.data.lanes.unwrap_or(if to_spare { LANES } else { 0 })
}

fn hosts_of_its_node(cluster: &Cluster, host: &Host) -> usize {
    cluster.hosts.iter().filter(|other| other.node == host.node).count()
}

/// A thread that drives transports for as long as the process lives.
fn drive() -> Result<Handle, CliError> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| no_threads(&error))?;
    let handle = runtime.handle().clone();
    let drive = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("data".into()).spawn(drive).map_err(|error| no_threads(&error))?;
    Ok(handle)
}

/// Refuses a transport that this build does not have.
pub fn known(data: &Data) -> Result<(), CliError> {
    match data.transport {
        DataTransport::Ucx if !cfg!(feature = "ucx") => {
            Err(CliError::usage("[transport] data = \"ucx\", and this program was built without UCX")
                .hint("build it with `--features ucx`, or write data = \"auto\""))
        }
        _ => Ok(()),
    }
}

#[cfg(feature = "ucx")]
fn ucx(
    quic: &Arc<QuicTransport>,
    cluster: &Cluster,
    host: &Host,
    spin: Duration,
) -> Result<Arc<dyn Transport>, TransportError> {
    let config = UcxConfig { spin, ..ucx_config(cluster, host) };
    if !config.stays_within() {
        tracing::warn!(
            interfaces = config.interfaces.join(","),
            "UCX takes whatever reaches its ports, unencrypted and from anybody: see that nobody else reaches this network"
        );
    }
    Ok(Arc::new(UcxTransport::bind(config, quic.clone(), counted("ucx"))?))
}

#[cfg(feature = "ucx")]
fn ucx_config(cluster: &Cluster, host: &Host) -> UcxConfig {
    let interfaces = match cluster.data.interfaces.as_slice() {
        // Where the name has no address, nothing can be bound either, which says so.
        [] => host.address.place.resolve().map(interfaces_of).unwrap_or_default(),
        named => named.to_vec(),
    };
    let transports = memory_alone(cluster).then(|| SHARED_MEMORY.to_owned());
    UcxConfig { transports, interfaces, silence: cluster.liveness.dead_after, ..UcxConfig::default() }
}

/// Whether UCX is to take no network, since nobody said of one that it may: its ports take what comes from anybody.
pub fn memory_alone(cluster: &Cluster) -> bool {
    let stated = !cluster.data.interfaces.is_empty() || env::var_os("UCX_TLS").is_some();
    let one_node = cluster.hosts.windows(2).all(|pair| pair[0].node == pair[1].node);
    !stated && (cluster.data.transport == DataTransport::Auto || one_node)
}

/// Tries whether UCX can be had for each of these hosts of this machine, where the cluster file lets them take it: what it
/// finds for them.
#[cfg(feature = "ucx")]
pub fn try_ucx(cluster: &Cluster, hosts: &[&Host]) -> Option<Result<Vec<String>, TransportError>> {
    let wanted = match (cluster.data.transport, cluster.security.mode) {
        (DataTransport::Ucx, _) | (DataTransport::Auto, SecurityMode::Mtls) => !hosts.is_empty(),
        _ => false,
    };
    let mut configs: Vec<UcxConfig> = hosts.iter().map(|host| ucx_config(cluster, host)).collect();
    configs.dedup_by(|one, other| one.interfaces == other.interfaces);
    wanted.then(|| {
        let found = configs.iter().map(|config| UcxTransport::probe(slice::from_ref(config)));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        let all: BTreeSet<String> = found.into_iter().flatten().flatten().collect();
        Ok(all.into_iter().collect())
    })
}

#[cfg(not(feature = "ucx"))]
/// Nothing is tried where UCX is not built in.
pub fn try_ucx(_: &Cluster, _: &[&Host]) -> Option<Result<Vec<String>, TransportError>> {
    None
}

/// Refuses hosts of this machine whose tensors are to travel over UCX alone, where that cannot be had.
pub fn usable(cluster: &Cluster, hosts: &[&Host]) -> Result<(), CliError> {
    if cluster.data.transport != DataTransport::Ucx {
        return Ok(());
    }
    match try_ucx(cluster, hosts) {
        Some(Err(error)) => Err(transport_refusal(&error)),
        _ => Ok(()),
    }
}

/// Refuses hosts of this machine, none of which runs yet, where tensors are to travel over UCX alone and not all of them can have it
/// at once: `/dev/shm` may have room for some.
pub fn all_fit(cluster: &Cluster, hosts: &[&Host]) -> Result<(), CliError> {
    #[cfg(feature = "ucx")]
    if cluster.data.transport == DataTransport::Ucx {
        let configs: Vec<UcxConfig> = hosts.iter().map(|host| ucx_config(cluster, host)).collect();
        return UcxTransport::probe(&configs).map(drop).map_err(|error| transport_refusal(&error));
    }
    #[cfg(not(feature = "ucx"))]
    let _ = (cluster, hosts);
    Ok(())
}

#[cfg(not(feature = "ucx"))]
fn ucx(_: &Arc<QuicTransport>, _: &Cluster, _: &Host, _: Duration) -> Result<Arc<dyn Transport>, TransportError> {
    let (cause, remedy) = ("this program was built without UCX", "build it with `--features ucx`");
    Err(TransportError::Ucx { cause: cause.into(), remedy: remedy.into() })
}

/// The interface that has this address; none, which means all, for an address of every interface.
#[cfg(feature = "ucx")]
fn interfaces_of(address: IpAddr) -> Vec<String> {
    let has = |interface: &nix::ifaddrs::InterfaceAddress| {
        let socket = interface.address.as_ref();
        let four = socket.and_then(|socket| socket.as_sockaddr_in()).map(|socket| IpAddr::V4(socket.ip()));
        let six = socket.and_then(|socket| socket.as_sockaddr_in6()).map(|socket| IpAddr::V6(socket.ip()));
        four.or(six) == Some(address)
    };
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    all.filter(has).map(|interface| interface.interface_name).take(1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::sample::sample;

    #[cfg(feature = "ucx")]
    #[test]
    fn the_interface_is_the_one_that_has_the_address() {
        assert_eq!(interfaces_of("127.0.0.1".parse().unwrap()), ["lo"]);
        assert_eq!(interfaces_of("0.0.0.0".parse().unwrap()), Vec::<String>::new());
    }

    #[test]
    fn who_shares_a_core_sleeps_at_once() {
        let cluster = Cluster::resolve(&sample(), std::path::Path::new(".")).unwrap();
        let hosts = cluster.hosts.len();
        let stays = |cores| !awake(&cluster, &cluster.hosts[0], cores).is_zero();
        assert_eq!((stays(2), stays(hosts + 1), stays(hosts + 2)), (false, false, true));
    }

    #[test]
    fn lanes_are_for_hosts_on_gpus_that_have_cores_to_spare() {
        let mut cluster = Cluster::resolve(&sample(), std::path::Path::new(".")).unwrap();
        let enough = CORES_WITH_LANES * cluster.hosts.len();
        let mut host = cluster.hosts[0].clone();
        assert_eq!(lanes(&cluster, &host, enough), 0, "it computes on these cores");
        host.devices = crate::cluster::file::Device::Cuda(0).into();
        assert_eq!([enough - 1, enough].map(|cores| lanes(&cluster, &host, cores)), [0, LANES]);
        cluster.data.lanes = Some(1);
        assert_eq!(lanes(&cluster, &host, 2), 1, "the file says so");
    }
}
