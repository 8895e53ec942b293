//! Dashboards and rules against the metrics that there are: every name in an expression is one, and each of them is shown.

use std::{collections::BTreeSet, fs, path::PathBuf};

use asterism_actors::metric;
use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../dashboards")
}

fn dashboards() -> Vec<(String, Value)> {
    let files = fs::read_dir(folder()).expect("dashboards").flatten().map(|entry| entry.path());
    let jsons = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a dashboard");
        (path.display().to_string(), serde_json::from_str(&text).expect("JSON"))
    };
    jsons.map(read).collect()
}

/// The metrics that a text names, without what histograms add.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || "_:".contains(letter)));
    let of = words.filter(|word| word.starts_with("asterism_") && !word.contains(':'));
    let base = |word: &str| {
        let known = |name: &str| metric::ALL.iter().any(|(metric, _)| *metric == name);
        let whole =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end).filter(|name| known(name)));
        whole.unwrap_or(word).to_owned()
    };
    of.map(base).collect()
}

fn expressions(dashboard: &Value) -> String {
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    targets.map(|target| target["expr"].as_str().expect("an expression")).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_name_in_an_expression_is_a_metric_and_every_metric_is_shown() {
    let known: BTreeSet<String> = metric::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    let shown: BTreeSet<String> =
        dashboards().iter().flat_map(|(_, dashboard)| names(&expressions(dashboard))).collect();
    let unshown: Vec<_> = known.difference(&shown).collect();
    assert!(unshown.is_empty(), "no panel shows {unshown:?}: add one in dashboards/build.py and run it");
    let unknown: Vec<_> = shown.difference(&known).collect();
    assert!(unknown.is_empty(), "panels ask for {unknown:?}, which are no metrics");
    let rules = fs::read_to_string(folder().join("alerts.yml")).expect("rules");
    let expressions: String = rules.lines().filter(|line| !line.contains("- alert:")).collect::<Vec<_>>().join("\n");
    let of_rules = names(&expressions);
    assert!(of_rules.len() > 8, "{of_rules:?}");
    assert!(of_rules.is_subset(&known), "{:?}", of_rules.difference(&known));
}

#[test]
fn dashboards_have_uids_titles_and_a_data_source_to_choose() {
    let dashboards = dashboards();
    assert_eq!(dashboards.len(), 4);
    for (path, dashboard) in dashboards {
        let stem = PathBuf::from(&path).file_stem().expect("a name").to_string_lossy().into_owned();
        assert_eq!(dashboard["uid"], format!("asterism-{stem}"));
        assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource", "{path}");
        let panels = dashboard["panels"].as_array().expect("panels");
        let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.len(), panels.len(), "{path}: ids are given once");
        for panel in panels {
            let title = panel["title"].as_str().expect("a title");
            assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{path}: {title}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{path}: {title}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{path}: {title}");
        }
    }
}
