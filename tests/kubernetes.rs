//! The manifests of deploy/kubernetes against the code: ports, paths, metrics, names, arguments and keys are those that there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use asterism::{
    cli::Cli,
    cluster::{
        Cluster,
        file::{self, Role},
    },
};
use asterism_actors::{
    authority::{Action, Party, TABLE},
    metric,
};
use asterism_transport::Place;
use clap::Parser;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes")
}

fn read(path: &str) -> String {
    let path = folder().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every manifest by its path.
fn manifests() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()) {
            match entry.extension() {
                _ if entry.is_dir() => folders.push(entry),
                Some(extension) if extension == "yaml" => {
                    let text = fs::read_to_string(&entry).expect("a manifest");
                    found.push((entry, text));
                }
                _ => {}
            }
        }
    }
    found
}

/// What stands behind `key:` on each line, in order.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let line = line.trim_start().trim_start_matches("- ");
        Some(line.strip_prefix(key)?.strip_prefix(": ")?.trim().trim_matches('"'))
    })
}

/// Numbers by the name that stands on the line before.
fn named(text: &str, key: &str) -> BTreeMap<String, u16> {
    let lines: Vec<&str> = text.lines().collect();
    let of_pair = |pair: &[&str]| {
        let number = values(pair[1], key).next()?.parse().ok()?;
        Some((values(pair[0], "name").next()?.to_owned(), number))
    };
    lines.windows(2).filter_map(of_pair).collect()
}

/// The arguments of each container: in brackets, or a line each.
fn arguments(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(rest) = line.trim_start().strip_prefix("args:") else { continue };
        let rest = rest.trim().trim_matches(['[', ']']);
        let mut words: Vec<String> = rest
            .split(',')
            .map(|word| word.trim().trim_matches('"').to_owned())
            .filter(|word| !word.is_empty())
            .collect();
        while let Some(word) =
            lines.peek().and_then(|line| line.trim_start().strip_prefix("- ")).filter(|_| rest.is_empty())
        {
            words.push(word.to_owned());
            lines.next();
        }
        found.push(words);
    }
    found
}

fn settings(kustomization: &str) -> Vec<(String, String)> {
    let lines = kustomization.lines().filter_map(|line| line.trim().strip_prefix("- ASTERISM__"));
    let pairs = lines.map(|line| line.split_once('=').expect("a value"));
    pairs.map(|(key, value)| (format!("ASTERISM__{key}"), value.to_owned())).collect()
}

/// The cluster of a kustomization's pods.
fn cluster(kustomizations: &[&str]) -> Cluster {
    let settings = kustomizations.iter().flat_map(|path| settings(&read(path)));
    let file = file::parse(&read("base/cluster.toml"), settings).expect("the cluster file parses");
    Cluster::resolve(&file, Path::new("/etc/asterism/cluster")).expect("the cluster file resolves")
}

#[test]
fn ports_are_those_of_the_cluster_file() {
    let cluster = cluster(&["base/kustomization.yaml"]);
    let wanted = BTreeMap::from([
        ("hosts".to_owned(), cluster.listen.port()),
        ("join".to_owned(), cluster.security.join_listen.expect("nodes join").port()),
        ("admin".to_owned(), cluster.admin_listen.port()),
        ("api".to_owned(), cluster.api.as_ref().expect("OpenAI's API").listen.port()),
    ]);
    let supervisor = read("base/supervisor.yaml");
    assert_eq!(named(&supervisor, "containerPort"), wanted);
    assert_eq!(named(&supervisor, "port"), wanted, "services");
    let unnamed = values(&supervisor, "port").filter(|port| port.parse::<u16>().is_err());
    assert!(unnamed.collect::<BTreeSet<_>>().is_subset(&BTreeSet::from(["admin"])), "probes ask the admin API");
    for path in ["base/context.yaml", "base/query.yaml"] {
        let text = read(path);
        for (option, port) in [("--join=", "hosts"), ("--token-from=", "join"), ("--server=http://", "admin")] {
            let word = format!("{option}asterism-supervisor:{}\n", wanted[port]);
            assert!(text.contains(&word), "{path} has no {word}");
        }
    }
    assert_eq!(values(&read("overlays/monitored/monitor.yaml"), "port").next(), Some("admin"));
}

#[test]
fn probes_and_scrapers_ask_what_anybody_may() {
    let open: BTreeSet<&str> = TABLE
        .iter()
        .filter(|rule| rule.by.contains(&Party::Stranger))
        .filter_map(|rule| if let Action::Http("GET", path) = rule.act { Some(path) } else { None })
        .collect();
    let mut asked = BTreeSet::new();
    for (_, text) in manifests() {
        asked.extend(values(&text, "path").filter(|path| !path.starts_with("/spec/")).map(str::to_owned));
    }
    let asked: BTreeSet<&str> = asked.iter().map(String::as_str).collect();
    assert_eq!(asked, BTreeSet::from(["/livez", "/metrics", "/readyz"]));
    assert!(asked.is_subset(&open), "{open:?}");
}

#[test]
fn metrics_are_those_that_there_are() {
    let known = |name: &str| metric::ALL.iter().any(|(metric, _)| *metric == name);
    let mut seen = 0;
    for (path, text) in manifests() {
        for word in text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')) {
            if word.starts_with("asterism_") {
                assert!(known(word), "{}: {word} is no metric", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "an autoscaler asks for a metric");
}

#[test]
fn every_pod_is_a_node_at_its_own_name() {
    let cluster = cluster(&["base/kustomization.yaml"]);
    for (path, role) in [("base/context.yaml", Role::Context), ("base/query.yaml", Role::Query)] {
        let text = read(path);
        let service = values(&text, "serviceName").next().expect("a headless service");
        let replicas: usize = values(&text, "replicas").next().and_then(|count| count.parse().ok()).expect("replicas");
        let hosts: Vec<_> = cluster.with_role(role).collect();
        assert!(replicas <= hosts.len(), "{path}: {replicas} pods and {} hosts", hosts.len());
        for (at, host) in hosts.iter().enumerate() {
            assert_eq!(host.node, format!("{service}-{at}"), "StatefulSets count their pods");
            assert_eq!(host.address.place, Place::Name(format!("{service}-{at}.{service}")));
        }
        let grace: u64 =
            values(&text, "terminationGracePeriodSeconds").next().and_then(|s| s.parse().ok()).expect("it");
        assert!(
            grace > cluster.stop_grace.as_secs() + 3,
            "{path}: a pod is killed before its host has given its work away"
        );
    }
    let autoscaler = read("overlays/monitored/autoscaler.yaml");
    let most: usize = values(&autoscaler, "maxReplicas").next().and_then(|count| count.parse().ok()).expect("a bound");
    assert_eq!(most, cluster.with_role(Role::Context).count());
}

#[test]
fn what_pods_run_is_a_command_line_and_what_they_read_is_mounted() {
    let mut verbs = BTreeSet::new();
    for path in ["base/supervisor.yaml", "base/context.yaml", "base/query.yaml"] {
        let text = read(path);
        let mounts: Vec<&str> = values(&text, "mountPath").collect();
        for words in arguments(&text) {
            let words = words.iter().map(|word| word.replace("$(POD)", "asterism-query-0"));
            let cli = Cli::try_parse_from(["asterism".to_owned()].into_iter().chain(words.clone()))
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            verbs.extend(words.take(1));
            for file in cli.global.file.iter().chain(&cli.global.token_file) {
                assert!(mounts.iter().any(|mount| file.starts_with(mount)), "{path}: nothing is mounted at {file:?}");
            }
        }
        let cluster = cluster(&["base/kustomization.yaml"]);
        let mut files = vec![cluster.data_dir];
        if path.contains("supervisor") {
            files.extend(cluster.security.token_file.into_iter().chain(cluster.api.and_then(|api| api.key_file)));
        }
        for file in files {
            assert!(mounts.iter().any(|mount| file.starts_with(mount)), "{path}: nothing is mounted at {file:?}");
        }
    }
    assert_eq!(verbs.into_iter().collect::<Vec<_>>(), ["cert", "node", "supervisor"]);
}

#[test]
fn pods_have_no_rights() {
    for path in ["base/supervisor.yaml", "base/context.yaml", "base/query.yaml"] {
        let text = read(path);
        let containers = values(&text, "image").count();
        assert!(containers > 0);
        for line in ["readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "drop: [\"ALL\"]"] {
            assert_eq!(text.matches(line).count(), containers, "{path}: {line}");
        }
        assert!(text.contains("runAsNonRoot: true") && text.contains("type: RuntimeDefault"), "{path}");
    }
}

#[test]
fn overlays_change_keys_that_there_are() {
    let on_gpu = cluster(&["base/kustomization.yaml", "overlays/gpu/kustomization.yaml"]);
    assert!(on_gpu.hosts.iter().all(|host| host.devices.to_string() == "cuda:0"));
    let gpu = read("overlays/gpu/kustomization.yaml");
    let model = settings(&gpu).into_iter().find(|(key, _)| key == "ASTERISM__MODEL__PATH").expect("a model").1;
    assert!(values(&gpu, "mountPath").any(|mount| model.starts_with(mount)), "{model} is mounted");
}
