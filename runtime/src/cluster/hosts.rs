//! The `[[host]]`s of a cluster file: where each runs, on what, in whose company. Starts nothing.

use std::{collections::BTreeMap, net::SocketAddr};

use asterism_actors::supervisor::MODEL_LABEL;
use asterism_kernels::KernelChoice;
use asterism_transport::{Place, PlacePort};

use super::{
    ClusterError, Host, NAME_LABEL,
    clashes::{check_free, check_name, check_ports, check_processes, check_unique},
    host::{LEAST_MEMORY, MOST_THREADS},
};
use crate::cluster::{
    file::{ClusterFile, Device, Devices, HostSection, NodeSection, Role},
    size::Bytes,
};

/// Devices of a host that a refusal repeats.
const SHOWN_DEVICES: usize = 8;

/// The hosts of a file, each on a node of it; `listen` is where the supervisor does.
pub(super) fn resolve(file: &ClusterFile, listen: SocketAddr) -> Result<Vec<Host>, ClusterError> {
    let mut nodes = Vec::new();
    for node in &file.nodes {
        check_name("node.name", &node.name)?;
        check_free("node", &node.name)?;
        if nodes.iter().any(|(known, _): &(&NodeSection, Place)| known.name == node.name) {
            return Err(ClusterError::Duplicate { kind: "node", name: node.name.clone() });
        }
        let address: Place = node.address.parse().map_err(|_| ClusterError::Address {
            key: format!("address of node '{}'", node.name),
            got: node.address.clone(),
            expected: "an IP address such as 127.0.0.1, or a name such as south.example",
        })?;
        labels("node.labels", &node.labels, &node.name)?;
        nodes.push((node, address));
    }
    let hosts = file.hosts.iter().map(|section| host(file, section, &nodes)).collect::<Result<Vec<_>, _>>()?;
    check_unique(&hosts)?;
    check_processes(&hosts)?;
    check_ports(&hosts, listen)?;
    let count = |role| hosts.iter().filter(|host| host.role == role).count();
    match (count(Role::Context), count(Role::Query)) {
        (got @ 0, _) => return Err(ClusterError::Hosts { role: "context", expected: "at least 1", got }),
        (_, got @ 0) => return Err(ClusterError::Hosts { role: "query", expected: "at least 1", got }),
        _ => {}
    }
    for section in file.model.iter() {
        let lacks = |role| !hosts.iter().any(|host| host.role == role && host.model == section.name);
        let lacking = [(Role::Context, "context"), (Role::Query, "query")].into_iter().find(|(role, _)| lacks(*role));
        if let Some((_, role)) = lacking {
            return Err(ClusterError::NoHostOfModel { model: section.name.clone(), role });
        }
    }
    Ok(hosts)
}

fn host(file: &ClusterFile, section: &HostSection, nodes: &[(&NodeSection, Place)]) -> Result<Host, ClusterError> {
    check_name("host.name", &section.name)?;
    let (name, model) = file.model_of(section);
    let model_name = name.map(str::to_owned);
    let device = model
        .ok_or_else(|| ClusterError::UnknownModel {
            host: section.name.clone(),
            model: model_name.clone().unwrap_or_default(),
            known: file
                .model
                .iter()
                .map(|model| model.name.as_deref().unwrap_or("one without a name"))
                .collect::<Vec<_>>()
                .join(", "),
        })?
        .device;
    let (node, address) = match &section.node {
        Some(name) => nodes.iter().find(|(known, _)| known.name == *name).ok_or_else(|| ClusterError::UnknownNode {
            host: section.name.clone(),
            node: name.clone(),
            known: nodes.iter().map(|(node, _)| node.name.as_str()).collect::<Vec<_>>().join(", "),
        })?,
        None => match nodes {
            [only] => only,
            _ => return Err(ClusterError::NoNode { host: section.name.clone(), nodes: nodes.len() }),
        },
    };
    check_free("host", &section.name)?;
    if let Some(process) = &section.process {
        check_name("host.process", process)?;
        check_free("process", process)?;
    }
    if nodes.iter().any(|(node, _)| node.name == section.name) {
        return Err(ClusterError::TakenName { kind: "host", name: section.name.clone(), owner: "a node" });
    }
    if let Some(got) = section.threads.filter(|threads| !(1..=MOST_THREADS).contains(threads)) {
        let expected = format!("expected 1 to {MOST_THREADS}");
        return Err(ClusterError::Value { key: "host.threads", got: got.to_string(), expected });
    }
    let memory_limit = section.memory_limit.map(|Bytes(bytes)| bytes);
    if let Some(got) = memory_limit.filter(|&bytes| bytes < LEAST_MEMORY) {
        let expected = format!("at least 1 MiB ({LEAST_MEMORY} bytes); write a unit, such as \"8GiB\"");
        return Err(ClusterError::Value { key: "host.memory_limit", got: got.to_string(), expected });
    }
    labels("host.labels", &section.labels, &section.name)?;
    let devices = devices(section, device)?;
    let name = (NAME_LABEL.to_owned(), section.name.clone());
    Ok(Host {
        name: section.name.clone(),
        node: node.name.clone(),
        process: section.process.clone().unwrap_or_else(|| section.name.clone()),
        role: section.role,
        model: model_name,
        kernels: kernels(section, &devices)?,
        devices,
        address: PlacePort { place: address.clone(), port: section.port },
        threads: section.threads,
        memory_limit,
        labels: node.labels.clone().into_iter().chain(section.labels.clone()).chain([name]).collect(),
    })
}

/// Refuses labels that a host has of itself, so that a job can ask for one: its model and its name.
fn labels(key: &'static str, labels: &BTreeMap<String, String>, of: &str) -> Result<(), ClusterError> {
    labels.iter().flat_map(|(name, value)| [name, value]).try_for_each(|part| check_name(key, part))?;
    if let Some(got) = labels.get(MODEL_LABEL) {
        let expected = format!("no label '{MODEL_LABEL}': of a host write model = \"{got}\" instead");
        return Err(ClusterError::Value { key, got: format!("{MODEL_LABEL} = {got:?}"), expected });
    }
    if let Some(got) = labels.get(NAME_LABEL) {
        let expected = format!("no label '{NAME_LABEL}' of '{of}': a host's is its own name");
        return Err(ClusterError::Value { key, got: format!("{NAME_LABEL} = {got:?}"), expected });
    }
    Ok(())
}

/// Its own, or that of the model.
fn devices(section: &HostSection, device: Device) -> Result<Devices, ClusterError> {
    let Some(several) = &section.devices else { return Ok(section.device.unwrap_or(device).into()) };
    let refused = |expected: String| ClusterError::Value {
        key: "host.devices",
        got: format!("{} of host '{}'", shown(several), section.name),
        expected,
    };
    match section.device {
        Some(one) => Err(refused(format!("no device = \"{one}\" beside it; leave one of the two out"))),
        None => Devices::of(several.clone()).map_err(refused),
    }
}

/// The first of a host's devices, as the file has them, and how many more it names.
fn shown(devices: &[Device]) -> String {
    let first = devices.iter().take(SHOWN_DEVICES).map(|device| format!("\"{device}\""));
    let more = devices.len().saturating_sub(SHOWN_DEVICES);
    let more = (more > 0).then(|| format!("and {more} more"));
    format!("[{}]", first.chain(more).collect::<Vec<_>>().join(", "))
}

fn kernels(section: &HostSection, devices: &Devices) -> Result<KernelChoice, ClusterError> {
    let Some(name) = &section.kernels else { return Ok(KernelChoice::Auto) };
    let refused = |expected: String| ClusterError::Value { key: "host.kernels", got: format!("{name:?}"), expected };
    match devices.on_cpu() {
        true => name.parse().map_err(|cause: asterism_kernels::KernelError| refused(cause.to_string())),
        false => Err(refused(format!("no such key for '{}', which computes on {devices}", section.name))),
    }
}
