//! Whether the addresses of this machine that a cluster file names can be listened on. Keeps none of them.

use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
};

use super::Judgment;
use crate::{
    cluster::{Cluster, Host},
    data_dir::{self, ServerRecord},
};

/// An address of the file: its key, whether it is TCP's.
type Wanted = (String, SocketAddr, bool);

pub fn look(cluster: &Cluster) -> Vec<Judgment> {
    let served = data_dir::served(&cluster.data_dir);
    wanted(cluster).into_iter().map(|wanted| judge(&wanted, bind(&wanted), served.as_ref())).collect()
}

fn wanted(cluster: &Cluster) -> Vec<Wanted> {
    let api = cluster.api.as_ref().map(|api| ("api.listen".to_owned(), api.listen, true));
    let join = cluster.security.join_listen.map(|join| ("security.join_listen".to_owned(), join, false));
    // A name without an address is another machine's, which is not up.
    let at = |host: &Host| Some((format!("port of {}", host.name), host.address.resolve().ok()?, false));
    let hosts = cluster.hosts.iter().filter_map(at);
    [("cluster.listen".to_owned(), cluster.listen, false), ("api.admin_listen".to_owned(), cluster.admin_listen, true)]
        .into_iter()
        .chain(api)
        .chain(join)
        .chain(hosts.filter(|(_, address, _)| address.port() != 0))
        .collect()
}

fn bind((_, address, is_tcp): &Wanted) -> io::Result<()> {
    if *is_tcp { TcpListener::bind(address).map(drop) } else { UdpSocket::bind(address).map(drop) }
}

fn judge((key, address, is_tcp): &Wanted, bound: io::Result<()>, served: Option<&ServerRecord>) -> Judgment {
    let found = format!("{key} {address} ({})", if *is_tcp { "TCP" } else { "UDP" });
    let Err(error) = bound else { return Judgment::ok("port", format!("{found} is free")) };
    match (error.kind(), served) {
        (io::ErrorKind::AddrInUse, Some(record)) => {
            Judgment::ok("port", format!("{found} is taken, and this cluster runs (process {})", record.pid))
        }
        (io::ErrorKind::AddrInUse, None) => Judgment::error(
            "port",
            format!("{found} is taken by another process"),
            format!("end that (`ss -lnp | grep :{}`), or give another port, 0 for one that is free", address.port()),
        ),
        // The part of the cluster that is elsewhere.
        (io::ErrorKind::AddrNotAvailable, _) => Judgment::ok("port", format!("{found} is not of this machine")),
        (io::ErrorKind::PermissionDenied, _) => Judgment::error(
            "port",
            format!("{found} may not be listened on"),
            "give a port of 1024 or above, or CAP_NET_BIND_SERVICE to the service",
        ),
        _ => Judgment::error("port", format!("{found}: {error}"), "give another address"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{super::Verdict, *};
    use crate::cluster::file::parse;

    #[test]
    fn a_port_is_free_taken_or_not_here() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let wanted: Wanted = ("api.admin_listen".into(), address, true);
        let other = judge(&wanted, bind(&wanted), None);
        assert_eq!(other.verdict, Verdict::Error);
        assert!(other.found.contains("is taken") && other.remedy.unwrap().contains(&address.port().to_string()));
        let record =
            ServerRecord { pid: 7, admin: address, admin_tls: false, api: None, api_tls: false, listen: address };
        assert_eq!(judge(&wanted, bind(&wanted), Some(&record)).verdict, Verdict::Ok, "it is its own");
        drop(taken);
        assert_eq!(judge(&wanted, bind(&wanted), None).verdict, Verdict::Ok);
        let elsewhere: Wanted = ("cluster.listen".into(), "192.0.2.1:7400".parse().unwrap(), false);
        assert_eq!(judge(&elsewhere, bind(&elsewhere), None).verdict, Verdict::Ok);
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(judge(&wanted, denied(), None).verdict, Verdict::Error);
    }

    #[test]
    fn every_port_of_the_file_is_looked_at() {
        let text = include_str!("../../../../cluster.toml").replacen(
            "role = \"context\"",
            "role = \"context\"\nport = 7410",
            1,
        );
        let cluster = Cluster::resolve(&parse(&text, []).unwrap(), Path::new("/")).unwrap();
        let keys: Vec<String> = wanted(&cluster).into_iter().map(|(key, ..)| key).collect();
        assert_eq!(keys, ["cluster.listen", "api.admin_listen", "api.listen", "port of context-0"]);
    }
}
