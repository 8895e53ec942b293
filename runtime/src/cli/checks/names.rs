//! Whether the names of a cluster file's nodes have addresses here.

use asterism_transport::Place;

use super::Judgment;
use crate::cluster::Cluster;

/// A judgment of each name that has none, and one of all where there are names.
pub fn look(cluster: &Cluster) -> Vec<Judgment> {
    let mut names: Vec<&Place> = Vec::new();
    for host in &cluster.hosts {
        if matches!(host.address.place, Place::Name(_)) && !names.contains(&&host.address.place) {
            names.push(&host.address.place);
        }
    }
    let lost: Vec<Judgment> = names.iter().filter_map(|name| Some(judge(name, &name.resolve().err()?))).collect();
    match names.len() {
        0 => Vec::new(),
        all if lost.is_empty() => vec![Judgment::ok("names", format!("all {all} of nodes have addresses"))],
        _ => lost,
    }
}

fn judge(name: &Place, error: &std::io::Error) -> Judgment {
    Judgment::warning(
        "names",
        format!("a node's address '{name}' is a name that has none here: {error}"),
        "correct it, or see that DNS or /etc/hosts has it before the cluster starts",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::checks::Verdict,
        cluster::{file::parse, sample::SAMPLE},
    };

    #[test]
    fn a_name_without_an_address_is_told() {
        let at = |name: &str| {
            let text = SAMPLE.replace("address = \"127.0.0.1\"", &format!("address = \"{name}\""));
            look(&Cluster::resolve(&parse(&text, []).unwrap(), std::path::Path::new("/")).unwrap())
        };
        assert_eq!(at("127.0.0.1"), []);
        assert_eq!(at("localhost")[0].verdict, Verdict::Ok);
        let lost = at("nobody.invalid");
        assert_eq!((lost.len(), lost[0].verdict), (1, Verdict::Warning));
        assert!(lost[0].found.contains("'nobody.invalid'"), "{lost:?}");
    }
}
