//! Names and ports of a cluster file: which are free, and which two would meet.

use std::{collections::HashSet, net::SocketAddr};

use asterism_transport::{Place, PlacePort};

use super::{ClusterError, Host};

/// Certificates and logs are found by name, so that these two are the supervisor's and `up`'s own.
pub(super) fn check_free(kind: &'static str, name: &str) -> Result<(), ClusterError> {
    let owner = match name {
        "supervisor" => "the supervisor",
        "up" => "what `asterism up` logs to",
        _ => return Ok(()),
    };
    Err(ClusterError::TakenName { kind, name: name.to_owned(), owner })
}

pub(super) fn check_tcp_ports(listeners: [(&'static str, Option<SocketAddr>); 3]) -> Result<(), ClusterError> {
    let listeners: Vec<_> = listeners.into_iter().filter_map(|(key, address)| Some((key, address?))).collect();
    for (at, (second, address)) in listeners.iter().enumerate() {
        if let Some((first, _)) = listeners[..at].iter().find(|(_, other)| overlap(*other, *address)) {
            let [first, second] = [first, second].map(|key| (*key).to_owned());
            return Err(ClusterError::PortTaken { first, second, address: (*address).into() });
        }
    }
    Ok(())
}

/// Whether two processes could not listen at both. What a name stands for is not known here.
fn meet(one: &PlacePort, other: &PlacePort) -> bool {
    match (&one.place, &other.place) {
        (Place::Address(a), Place::Address(b)) => {
            overlap(SocketAddr::new(*a, one.port), SocketAddr::new(*b, other.port))
        }
        _ => one == other && one.port != 0,
    }
}

/// Whether two processes of one machine could not listen at both.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let [a, b] = [one.ip(), other.ip()];
    let wide =
        (a.is_unspecified() && (b.is_loopback() || b.is_unspecified())) || (b.is_unspecified() && a.is_loopback());
    one.port() != 0 && one.port() == other.port() && (a == b || wide)
}

pub(super) fn check_unique(hosts: &[Host]) -> Result<(), ClusterError> {
    let mut seen = HashSet::new();
    match hosts.iter().find(|host| !seen.insert(host.name.as_str())) {
        Some(host) => Err(ClusterError::Duplicate { kind: "host", name: host.name.clone() }),
        None => Ok(()),
    }
}

/// Logs are found by the name of a process, too.
pub(super) fn check_processes(hosts: &[Host]) -> Result<(), ClusterError> {
    for (at, host) in hosts.iter().enumerate() {
        let refused = |expected| ClusterError::Value { key: "host.process", got: host.process.clone(), expected };
        if let Some(owner) = hosts.iter().find(|other| other.name == host.process && other.process != host.process) {
            let cause = format!("the name of host '{}', which is in process '{}'", owner.name, owner.process);
            return Err(refused(format!("{cause}; choose another")));
        }
        if let Some(other) = hosts[..at].iter().find(|other| other.process == host.process && other.model != host.model)
        {
            return Err(refused(format!(
                "hosts '{}' and '{}' name it and hold different models; a process holds one",
                other.name, host.name
            )));
        }
        if let Some(apart) = hosts[..at].iter().find(|other| other.process == host.process && other.node != host.node) {
            return Err(refused(format!(
                "hosts '{}' and '{}' name it and are on the nodes '{}' and '{}'; a process runs on one",
                apart.name, host.name, apart.node, host.node
            )));
        }
    }
    Ok(())
}

pub(super) fn check_ports(hosts: &[Host], listen: SocketAddr) -> Result<(), ClusterError> {
    let mut taken = vec![("cluster.listen", PlacePort::from(listen))];
    for host in hosts.iter().filter(|host| host.address.port != 0) {
        if let Some((first, address)) = taken.iter().find(|(_, address)| meet(address, &host.address)) {
            let (first, address) = ((*first).to_owned(), address.clone());
            return Err(ClusterError::PortTaken { first, second: host.name.clone(), address });
        }
        taken.push((&host.name, host.address.clone()));
    }
    Ok(())
}

/// Names become file names, certificate names and metric labels.
pub(crate) fn check_name(key: &'static str, name: &str) -> Result<(), ClusterError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.bytes().all(plain)
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.len() < 64
    {
        return Ok(());
    }
    Err(ClusterError::Value {
        key,
        got: format!("{name:?}"),
        expected: "up to 63 letters, digits, '-', '_' and '.', beginning with a letter or digit".into(),
    })
}
