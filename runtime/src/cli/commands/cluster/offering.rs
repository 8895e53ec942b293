//! `node --hosts`: what a node says of hosts that are in no cluster file. Joins nobody.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
};

use asterism_transport::PlacePort;

use crate::{
    cluster::{Cluster, file::JoinedNodes},
    error::CliError,
    globals,
};

/// Most hosts of one `--hosts`, as of one request for certificates.
const MOST_OFFERED: usize = 31;

/// A node with hosts of its own, as this machine sees the cluster then.
pub struct Offering {
    /// The cluster with the node in it.
    pub cluster: Cluster,
    /// The text of a cluster file that says so.
    pub text: String,
    /// What the supervisor is told: the text of `[[host]]` sections.
    pub hosts: String,
}

impl Offering {
    /// Of the node `name`, at `address` or at the one that this machine calls `supervisor` from, beside what the cluster file says.
    pub fn new(
        (text, directory): (&str, &Path),
        (name, address): (&str, Option<IpAddr>),
        (specs, supervisor): (&[String], &PlacePort),
    ) -> Result<Self, CliError> {
        let refused = |cause: &dyn std::fmt::Display| {
            CliError::usage(format!("--hosts: {cause}")).hint("such as --hosts 'context x2, device=cpu' --hosts query")
        };
        let hosts = sections(name, specs).map_err(|cause| refused(&cause))?;
        let base = globals::as_typed(text).map_err(CliError::usage)?;
        let address = address.map_or_else(|| address_towards(supervisor), Ok)?;
        let joined = JoinedNodes::default().with(&base, (name, address), &hosts).map_err(|cause| refused(&cause))?;
        let text = toml::to_string_pretty(&joined.laid_over(&base)).expect("the typed file is TOML");
        Ok(Self { cluster: globals::resolved(&text, directory)?, text, hosts })
    }
}

/// The address of this machine that packets to another leave from.
fn address_towards(other: &PlacePort) -> Result<IpAddr, CliError> {
    let address = other.resolve().and_then(|other| {
        let any: SocketAddr = if other.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any)?;
        socket.connect(other)?;
        socket.local_addr()
    });
    address.map(|address| address.ip()).map_err(|error| {
        CliError::usage(format!("it is not known which address of this machine reaches {other}: {error}"))
            .hint("add --address with the address that other machines reach this one at")
    })
}

/// `[[host]]` sections of what `ROLE [xN][, KEY=VALUE]...` say, each named by the node, its role and a number.
fn sections(node: &str, specs: &[String]) -> Result<String, String> {
    let (mut text, mut hosts) = (String::new(), 0);
    for spec in specs {
        let (first, keys) = spec.split_once(',').unwrap_or((spec, ""));
        let mut words = first.split_whitespace();
        let role = words.next().unwrap_or_default();
        let count = match (words.next(), words.next()) {
            (None, _) => 1,
            (Some(times), None) => times
                .strip_prefix('x')
                .and_then(|count| count.parse().ok())
                .filter(|count| (1..=MOST_OFFERED).contains(count))
                .ok_or_else(|| format!("'{times}' in '{spec}', expected x1 to x{MOST_OFFERED}"))?,
            (Some(_), Some(more)) => return Err(format!("'{more}' in '{spec}', expected a comma before it")),
        };
        for _ in 0..count {
            let number = text.matches(&format!("name = \"{node}-{role}-")).count();
            text += &format!("[[host]]\nname = \"{node}-{role}-{number}\"\nrole = \"{role}\"\n");
            for key in keys.split(',').map(str::trim).filter(|key| !key.is_empty()) {
                let (key, value) = key
                    .split_once('=')
                    .map(|(key, value)| (key.trim(), value.trim()))
                    .ok_or_else(|| format!("'{key}' in '{spec}', expected KEY=VALUE"))?;
                let value = match value.parse::<u64>() {
                    Ok(number) => number.to_string(),
                    Err(_) => toml::Value::String(value.to_owned()).to_string(),
                };
                text += &format!("{key} = {value}\n");
            }
        }
        hosts += count;
    }
    match hosts <= MOST_OFFERED {
        true => Ok(text),
        false => Err(format!("{hosts} hosts, expected at most {MOST_OFFERED} a node")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::sample::SAMPLE;

    fn offering(specs: &[&str]) -> Result<Offering, CliError> {
        let specs: Vec<String> = specs.iter().map(|spec| (*spec).to_owned()).collect();
        let node = ("west", Some("10.0.0.3".parse().unwrap()));
        Offering::new((SAMPLE, Path::new("/")), node, (&specs, &"10.0.0.1:7400".parse().unwrap()))
    }

    #[test]
    fn hosts_are_named_by_node_and_role() {
        let offered = offering(&["context x2, device=cpu, threads=2", "query", "context, memory_limit=8GiB"]).unwrap();
        let own = offered.cluster.hosts.iter().filter(|host| host.node == "west");
        let told: Vec<_> = own.map(|host| (host.name.as_str(), host.threads, host.memory_limit)).collect();
        let expected = [
            ("west-context-0", Some(2), None),
            ("west-context-1", Some(2), None),
            ("west-query-0", None, None),
            ("west-context-2", None, Some(8 << 30)),
        ];
        assert_eq!(told, expected);
        assert_eq!(offered.cluster.hosts.len(), 9, "beside those of the file");
        assert_eq!(globals::resolved(&offered.text, Path::new("/")).unwrap(), offered.cluster);
    }

    #[test]
    fn what_is_no_host_is_refused_by_what_it_is() {
        let wrong = [
            ("context y2", "'y2' in 'context y2', expected x1 to x31"),
            ("context x99", "'x99' in 'context x99', expected x1 to x31"),
            ("context x2 device=cpu", "'device=cpu' in 'context x2 device=cpu', expected a comma before it"),
            ("context, device", "'device' in 'context, device', expected KEY=VALUE"),
            ("contxt", "unknown value 'contxt'; did you mean 'context'?"),
            ("context, colour=red", "unknown key 'colour'"),
        ];
        for (spec, words) in wrong {
            let error = offering(&[spec]).err().expect(spec).message;
            assert!(error.starts_with("--hosts: ") && error.contains(words), "{error}");
        }
    }
}
