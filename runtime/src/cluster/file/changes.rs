//! What one cluster file says otherwise than another, and what has to be started again for it. Pure: reads no file, changes no cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::ClusterFile;

/// Keys that a cluster takes while it runs.
const LIVE: &[&str] = &[
    "api.max_queue",
    "api.max_queue_bytes",
    "cluster.mixed_numerics",
    "observability.log",
    "serving.max_generating",
    "serving.speculation",
    "sessions.default_ttl_s",
    "sessions.max_pinned_bytes",
    "supervisor.avoid_stragglers",
    "supervisor.ready_when",
    "supervisor.rebalance",
];
/// Keys of a host, and of a node, that are taken while it runs.
const LIVE_OF_HOST: &[&str] = &["labels", "memory_limit"];
const LIVE_OF_NODE: &[&str] = &["labels"];
/// Keys of a host that it reads when it is started.
const READ_BY_HOST: &[&str] = &["device", "devices", "kernels", "port", "threads"];
/// Sections and keys that the supervisor alone reads.
const READ_BY_SUPERVISOR: &[&str] =
    &["api", "attention", "standby", "supervisor.self_test", "security.token_file", "security.join_listen"];

/// A difference between two cluster files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// What is meant: `SECTION.KEY`, `node.NAME`, `model.NAME`, `host.NAME` or `host.NAME.KEY`.
    pub key: String,
    /// What stood there; none: nothing, or a default that has no value.
    pub before: Option<String>,
    /// What stands there now.
    pub after: Option<String>,
    /// How it comes into force.
    pub takes: Takes,
}

/// What has to be started again for a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// The host of this name, in its turn: until then it works as before.
    Host(String),
    /// The supervisor; hosts go on.
    Supervisor,
    /// Every process of the cluster: `down`, and a start as before.
    Cluster,
}

impl Takes {
    /// Whether a cluster takes the change while it runs.
    pub fn while_it_runs(&self) -> bool {
        matches!(self, Self::Nothing | Self::Host(_))
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => formatter.write_str("at once"),
            Self::Host(host) => write!(formatter, "after `asterism host restart {host}`"),
            Self::Supervisor => formatter.write_str("needs a restart of the supervisor"),
            Self::Cluster => formatter.write_str("needs `asterism down` and a start"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, after, takes } = self;
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".into());
        write!(formatter, "{key}: {} -> {}, {takes}", value(before), value(after))
    }
}

/// What `after` says otherwise than `before`: sections in the order of their names, then nodes and hosts.
pub fn changes(before: &ClusterFile, after: &ClusterFile) -> Vec<Change> {
    let (mut old, mut new) = (values(before), values(after));
    let of_models = of_models(&mut old, &mut new);
    let lists = ["node", "host"].map(|kind| (kind, named(&mut old, kind), named(&mut new, kind)));
    let (old, new) = (leaves(&old), leaves(&new));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let of_sections = keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).map(|key| Change {
        key: key.clone(),
        before: old.get(key).cloned(),
        after: new.get(key).cloned(),
        takes: of_section(key),
    });
    of_models
        .into_iter()
        .chain(of_sections)
        .chain(lists.iter().flat_map(|(kind, old, new)| of_list(kind, old, new)))
        .collect()
}

/// The file's values; a host names its model where that has a name.
fn values(file: &ClusterFile) -> Table {
    let mut file = file.clone();
    if let Some(first) = file.model.first.name.clone() {
        file.hosts.iter_mut().for_each(|host| host.model = host.model.take().or_else(|| Some(first.clone())));
    }
    Table::try_from(&file).expect("the typed file is TOML")
}

/// Takes models out of both files: those that come and go, while a cluster runs, what is said of one otherwise, and which is the
/// first. Where both have one without a name, that stays.
fn of_models(old: &mut Table, new: &mut Table) -> Vec<Change> {
    let [(old_unnamed, old_named, old_first), (new_unnamed, new_named, new_first)] =
        [&mut *old, &mut *new].map(|file| {
            let entries = match file.remove("model") {
                Some(Value::Array(entries)) => entries,
                entry => entry.into_iter().collect(),
            };
            let first = entries
                .first()
                .map(|first| first.get("name").map_or("the one without a name".into(), Value::to_string));
            let (named, mut unnamed): (Vec<Value>, Vec<Value>) =
                entries.into_iter().partition(|entry| entry.get("name").is_some());
            let mut table = Table::from_iter([("model".to_owned(), Value::Array(named))]);
            (unnamed.pop(), self::named(&mut table, "model"), first)
        });
    let mut changes = of_list("model", &old_named, &new_named);
    match (old_unnamed, new_unnamed) {
        (Some(before), Some(after)) => {
            old.insert("model".into(), before);
            new.insert("model".into(), after);
        }
        (before, after) if before.is_some() || after.is_some() => changes.push(Change {
            key: "model".into(),
            before: before.map(|before| before.to_string()),
            after: after.map(|after| after.to_string()),
            takes: Takes::Nothing,
        }),
        _ => {}
    }
    if old_first != new_first {
        let (key, takes) = ("model.first".into(), Takes::Nothing);
        changes.push(Change { key, before: old_first, after: new_first, takes });
    }
    changes
}

/// Takes a list out of the file: its entries by name.
fn named(file: &mut Table, kind: &str) -> BTreeMap<String, Table> {
    let Some(Value::Array(entries)) = file.remove(kind) else { return BTreeMap::new() };
    let entry = |value: Value| match value {
        Value::Table(mut entry) => {
            let name = entry.remove("name").and_then(|name| name.as_str().map(str::to_owned))?;
            Some((name, entry))
        }
        _ => None,
    };
    entries.into_iter().filter_map(entry).collect()
}

/// Every value that is no table, by its path. An attention method is named by the table that it is.
fn leaves(table: &Table) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if inner.is_empty() => drop(found.insert(key.clone(), "{}".into())),
            Value::Table(inner) => {
                found.extend(leaves(inner).into_iter().map(|(rest, value)| (format!("{key}.{rest}"), value)));
            }
            value => drop(found.insert(key.clone(), value.to_string())),
        }
    }
    found
}

fn is_of(key: &str, known: &[&str]) -> bool {
    known.iter().any(|known| key == *known || key.strip_prefix(known).is_some_and(|rest| rest.starts_with('.')))
}

fn of_section(key: &str) -> Takes {
    match key {
        key if is_of(key, LIVE) => Takes::Nothing,
        key if is_of(key, READ_BY_SUPERVISOR) => Takes::Supervisor,
        _ => Takes::Cluster,
    }
}

fn of_list(kind: &str, old: &BTreeMap<String, Table>, new: &BTreeMap<String, Table>) -> Vec<Change> {
    let words = |entry: &Table| leaves(entry).into_iter().map(|(key, value)| format!("{key} = {value}"));
    let words = |entry: &Table| words(entry).collect::<Vec<_>>().join(", ");
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut changes = Vec::new();
    for name in names {
        let path = format!("{kind}.{name}");
        match (old.get(name), new.get(name)) {
            (Some(before), Some(after)) => {
                let (before, after) = (leaves(before), leaves(after));
                let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
                changes.extend(keys.into_iter().filter(|key| before.get(*key) != after.get(*key)).map(|key| Change {
                    key: format!("{path}.{key}"),
                    before: before.get(key).cloned(),
                    after: after.get(key).cloned(),
                    takes: match kind {
                        "host" if is_of(key, LIVE_OF_HOST) => Takes::Nothing,
                        "node" if is_of(key, LIVE_OF_NODE) => Takes::Nothing,
                        "host" if is_of(key, READ_BY_HOST) => Takes::Host(name.clone()),
                        _ => Takes::Cluster,
                    },
                }));
            }
            (before, after) => changes.push(Change {
                key: path,
                before: before.map(words),
                after: after.map(words),
                takes: Takes::Nothing,
            }),
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{file::parse, sample::SAMPLE};

    fn file(edits: &[(&str, &str)]) -> ClusterFile {
        let text = edits.iter().fold(SAMPLE.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        });
        parse(&text, []).expect("the edits are valid")
    }

    #[test]
    fn each_change_says_what_it_takes() {
        let first = file(&[("[api]", "[api]\nmax_queue = 9")]);
        assert_eq!(changes(&first, &first), []);
        let second = file(&[
            ("[api]", "[supervisor]\nrebalance = false\nmax_restarts = 3\n\n[observability]\nlog = \"debug\"\n\n[api]"),
            ("name = \"context-0\"\nrole = \"context\"", "name = \"west-0\"\nrole = \"context\"\nthreads = 2"),
            ("name = \"context-1\"\n", "name = \"context-1\"\nlabels = { rack = \"a\" }\nmemory_limit = \"8GiB\"\n"),
            ("name = \"context-2\"\n", "name = \"context-2\"\nthreads = 3\n"),
            ("name = \"context-3\"\nrole = \"context\"", "name = \"context-3\"\nrole = \"spare\""),
            ("[attention.auto]", "[attention.dense]"),
            ("[[node]]", "[[node]]\nname = \"west\"\naddress = \"10.0.0.3\"\n\n[[node]]"),
            ("name = \"local\"", "name = \"local\"\nlabels = { rack = \"r1\" }"),
            ("127.0.0.1:8000", "127.0.0.1:8001"),
        ]);
        let found = changes(&first, &second);
        let words: Vec<String> = found.iter().map(Change::to_string).collect();
        let expected = [
            "api.listen: \"127.0.0.1:8000\" -> \"127.0.0.1:8001\", needs a restart of the supervisor",
            "api.max_queue: 9 -> 1024, at once",
            "supervisor.max_restarts: 20 -> 3, needs `asterism down` and a start",
            "supervisor.rebalance: true -> false, at once",
            "node.local.labels.rack: nothing -> \"r1\", at once",
            "host.context-1.labels.rack: nothing -> \"a\", at once",
            "host.context-2.threads: nothing -> 3, after `asterism host restart context-2`",
            "host.context-3.role: \"context\" -> \"spare\", needs `asterism down` and a start",
        ];
        for line in expected {
            assert!(words.iter().any(|word| word == line), "{line} in {words:#?}");
        }
        let of = |key: &str| found.iter().find(|change| change.key == key).expect(key);
        assert_eq!(of("observability.log").takes, Takes::Nothing);
        assert_eq!(of("host.context-1.memory_limit").takes, Takes::Nothing);
        assert!(of("host.context-0").after.is_none() && of("host.west-0").before.is_none());
        assert!(of("node.west").after.as_deref().is_some_and(|words| words.contains("10.0.0.3")));
        let attention = found.iter().filter(|change| change.key.starts_with("attention."));
        assert!(attention.clone().count() > 0 && attention.clone().all(|change| change.takes == Takes::Supervisor));
        let back = changes(&second, &first);
        assert_eq!(back.len(), found.len(), "what was added is what is missing");
        assert!(back.iter().zip(changes(&first, &second)).all(|(back, there)| {
            (&back.key, &back.before, &back.after) == (&there.key, &there.after, &there.before)
        }));
    }

    #[test]
    fn models_come_and_go_alive_and_one_that_stays_is_as_it_was() {
        let file = |models: &str| {
            parse(&format!("version = 1\n{models}[[host]]\nname = \"c\"\nrole = \"context\"\n"), []).unwrap()
        };
        let takes = |before: &str, after: &str| -> Vec<(String, Takes)> {
            changes(&file(before), &file(after)).into_iter().map(|change| (change.key, change.takes)).collect()
        };
        let alive = |keys: &[&str]| -> Vec<_> { keys.iter().map(|key| (key.to_string(), Takes::Nothing)).collect() };
        let one = "[model]\npath = \"/a\"\n";
        let b = "[[model]]\nname = \"b\"\npath = \"/b\"\n";
        let both = format!("[[model]]\npath = \"/a\"\n{b}");
        assert_eq!(takes(one, "[[model]]\npath = \"/a\"\n"), [], "one is one, however it is written");
        assert_eq!([takes(one, &both), takes(&both, one)], [alive(&["model.b"]), alive(&["model.b"])]);
        assert_eq!(takes(&both, &both.replace("/b", "/c")), [("model.b.path".to_owned(), Takes::Cluster)]);
        assert_eq!(takes(&both, &both.replace("/a", "/c")), [("model.path".to_owned(), Takes::Cluster)]);
        let gone = takes(&both, b);
        assert!(gone.starts_with(&alive(&["model", "model.first"])), "{gone:?}");
        assert!(gone.contains(&("host.c.model".to_owned(), Takes::Cluster)), "its host would hold another: {gone:?}");
        let swapped = takes(&format!("{b}{}", b.replace("b\"", "d\"")), &format!("{}{b}", b.replace("b\"", "d\"")));
        assert!(swapped.starts_with(&alive(&["model.first"])), "{swapped:?}");
    }

    #[test]
    fn every_live_key_is_one_of_the_file() {
        let every = leaves(&values(&ClusterFile::default()));
        let absent = [
            "standby",
            "sessions.max_pinned_bytes",
            "serving.max_generating",
            "serving.speculation",
            "security.token_file",
            "security.join_listen",
        ];
        for key in LIVE.iter().chain(READ_BY_SUPERVISOR) {
            let known = absent.contains(key) || every.keys().any(|known| is_of(known, &[key]));
            assert!(known, "{key} is no key of the cluster file");
        }
    }
}
