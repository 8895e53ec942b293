//! Every command line of README.md and of docs, in the order of each page, in a folder a page, with the binary under test; and
//! docs/reference.md against what there is.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use asterism::api::openai;
use asterism_actors::{
    authority::{Action, Party, TABLE},
    metric,
};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

/// Longest that one command may take, in seconds.
const LIMIT_S: &str = "240";

/// Pages with commands, and whether a cluster runs before the first of them.
const PAGES: &[(&str, bool)] = &[
    ("README.md", false),
    ("docs/first-hour.md", false),
    ("docs/sessions.md", true),
    ("docs/openai.md", true),
    ("docs/methods.md", true),
    ("docs/security.md", true),
    ("docs/operations.md", false),
    ("docs/deploy.md", false),
    ("docs/measuring.md", true),
];

/// Lines that are not run as they stand: how they begin, what runs instead, if anything, and why.
const INSTEAD: &[(&str, Option<&str>, &str)] = &[
    ("cargo run --release -- demo", Some("asterism demo --tokens 1k"), "builds for minutes; 16k tokens twice"),
    ("cargo test --workspace", None, "runs this test"),
    ("cargo install --path runtime", None, "builds for minutes"),
    ("asterism chaos --rounds 30", Some("asterism chaos --rounds 1"), "half an hour in this profile"),
    ("asterism doctor", Some("asterism doctor --help"), "judges the machine; tests/hostile runs it"),
    ("asterism supervisor", Some(JOINABLE), "stays, and has no hosts"),
    (
        "asterism node --join 10.0.0.1:7400",
        Some("asterism node --help"),
        "further machines; netns.sh and survival run it",
    ),
    (
        "asterism cert token --node south",
        Some("asterism cert token --node local --ttl 1h > join-token"),
        "the sample's node",
    ),
    ("asterism node --join one.room:7400", None, "further machines; tests/quickstart.sh runs it"),
    (
        "asterism cert token --node two",
        Some("asterism cert token --node local --ttl 1h > two-token"),
        "the sample's node; tests/quickstart.sh runs it",
    ),
    ("asterism cert token --node three", None, "tests/quickstart.sh runs it"),
    ("scp ", None, "further machines; tests/quickstart.sh copies"),
    ("prometheus ", None, "stays; tests/quickstart.sh runs it"),
    ("curl -s 'http://127.0.0.1:9090/", None, "that Prometheus; tests/quickstart.sh asks it"),
    ("sbatch ", Some("asterism launch slurm --help"), "a Slurm; tests/slurm.sh runs it on one"),
    ("srun ", None, "a Slurm; tests/slurm.sh runs it on one"),
    ("deploy/slurm/interactive", None, "a Slurm; tests/slurm.sh runs it on one"),
    ("cargo build --profile dist", None, "builds for minutes"),
    ("deploy/kubernetes/image", None, "needs umoci; deploy/kubernetes/check runs it"),
    ("skopeo copy", None, "a registry"),
    ("kubectl ", None, "a Kubernetes; deploy/kubernetes/check and tests/kubernetes.rs hold the manifests to it"),
    ("asterism eval ruler", Some(RULER), "300 questions"),
    ("asterism eval real", Some(REAL), "160 questions"),
    ("asterism eval niah", Some(NIAH), "30 questions, half of them of 16k tokens"),
    ("asterism eval report", Some("asterism eval report run.jsonl --fail-below 1"), "one question is no score"),
];

/// What the text before asks of the cluster file.
const JOINABLE: &str = "sed -i '/^.security/a join_listen = \"127.0.0.1:0\"' cluster.toml && asterism up --detach";
/// Where OpenAI's API listens in the pages, and where it does here: at any free port.
const API: &str = "http://127.0.0.1:8000/";
const API_HERE: &str = r#"http://$(sed 's/.*"api":"\([^"]*\)".*/\1/' .asterism/asterism/supervisor.json)/"#;
const RULER: &str = "asterism eval ruler --methods dense,star,pulsar --lengths 1k --tasks niah_single_1 --samples 1 \
                     --save run.jsonl --chart ruler.svg";
const REAL: &str = "asterism eval real --methods dense,auto --lengths 1k --tasks lex --samples 1";
const NIAH: &str = "asterism eval niah --methods dense,pulsar --lengths 1k --depths 1 --samples 1 --chart niah.svg";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace").to_path_buf()
}

/// A folder with what a clone has that commands name, `asterism` on its path. No cluster outlives it.
struct Clone {
    folder: tempfile::TempDir,
}

impl Clone {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let cluster = fs::read_to_string(root().join("cluster.toml")).expect("the sample");
        // Other clusters may run here: any free port.
        fs::write(
            at("cluster.toml"),
            [":7400", ":7401", ":8000"].iter().fold(cluster, |text, port| text.replace(port, ":0")),
        )
        .expect("a cluster file");
        fs::create_dir(at("bin")).expect("a folder");
        symlink(BINARY, at("bin/asterism")).expect("a link");
        symlink(root().join("examples"), at("examples")).expect("a link");
        Self { folder }
    }

    fn run(&self, line: &str) -> Output {
        let path = format!("{}/bin:{}", self.folder.path().display(), std::env::var("PATH").expect("a path"));
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", LIMIT_S, "sh", "-c", line])
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command.env("PATH", path).env_remove("ASTERISM_SERVER").output().expect("a shell")
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        self.run("asterism down");
    }
}

/// Lines of the file's shell blocks, without comments.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for block in text.split("```sh\n").skip(1) {
        let block = block.split("```").next().expect("a first part");
        lines.extend(block.lines().map(|line| line.split(" #").next().unwrap_or(line).trim().to_owned()));
    }
    lines.retain(|line| !line.is_empty());
    lines
}

#[test]
fn every_command_of_the_documentation_works() {
    let pages: Vec<_> = PAGES
        .iter()
        .map(|&(page, running)| (page, running, lines(&fs::read_to_string(root().join(page)).expect("a page"))))
        .collect();
    for (begins, ..) in INSTEAD {
        let there = pages.iter().any(|(_, _, lines)| lines.iter().any(|line| line.starts_with(begins)));
        assert!(there, "no page has `{begins}` any more");
    }
    for (page, running, lines) in pages {
        assert!(!lines.is_empty(), "{page} has no commands any more");
        let clone = Clone::new();
        assert!(!running || clone.run("asterism up --detach").status.success(), "no cluster for {page}");
        for line in lines {
            let instead = INSTEAD.iter().find(|(begins, ..)| line.starts_with(begins));
            let here = line.replace(API, API_HERE);
            let Some(runs) = instead.map_or(Some(here.as_str()), |(_, runs, _)| *runs) else { continue };
            let output = clone.run(runs);
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{page}: `{runs}` for `{line}`: {}\n{printed}", output.status);
            let refused = line.contains(API) && String::from_utf8_lossy(&output.stdout).contains("\"error\":{");
            assert!(!refused, "{page}: `{line}` answers {}", String::from_utf8_lossy(&output.stdout));
            if line.contains("harbour-lantern") {
                let answer = String::from_utf8_lossy(&output.stdout);
                assert!(answer.contains("4817263"), "{page}: `{line}` answers {answer}");
                assert!(!printed.contains("benchmark tasks only"), "{page}: {printed}");
            }
        }
    }
}

#[test]
fn the_overview_is_short() {
    let words = fs::read_to_string(root().join("README.md")).expect("a README").split_whitespace().count();
    assert!(words <= 1000, "README.md has {words} words: what is not an overview stands in docs");
}

/// Pages with commands that no test runs would go stale.
#[test]
fn every_page_with_commands_is_run() {
    let docs = fs::read_dir(root().join("docs")).expect("docs").flatten().map(|entry| entry.path());
    for page in docs.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let name = format!("docs/{}", page.file_name().expect("a file").to_string_lossy());
        let commands = !lines(&fs::read_to_string(&page).expect("a page")).is_empty();
        assert_eq!(PAGES.iter().any(|(page, _)| *page == name), commands, "{name} in PAGES");
    }
}

#[test]
fn the_reference_has_every_metric_and_every_endpoint() {
    let page = fs::read_to_string(root().join("docs/reference.md")).expect("a page");
    for (name, help) in metric::ALL {
        let row = format!("| `{name}` | {} |\n", help.trim());
        assert!(page.contains(&row), "docs/reference.md has no row\n{row}");
    }
    assert_eq!(page.matches("| `asterism_").count(), metric::ALL.len(), "a metric that there is not");
    let endpoints = TABLE.iter().filter_map(|rule| match rule.act {
        Action::Http(method, path) => Some((method, path, rule.by.contains(&Party::Stranger))),
        _ => None,
    });
    for (method, path, open) in endpoints {
        let row = format!("| `{method} {path}` | {} |", if open { "anybody" } else { "the token" });
        assert!(page.contains(&row), "docs/reference.md has no row beginning\n{row}");
    }
    for (method, path) in openai::ENDPOINTS {
        let by = if openai::FOR_EVERYBODY.contains(path) { "everybody" } else { "a key" };
        let row = format!("| `{method} {path}` | {by} |");
        assert!(page.contains(&row), "docs/reference.md has no row beginning\n{row}");
    }
}

/// What stands in quotes before each colon of the script's dictionary of that name.
fn keys_of(script: &str, name: &str) -> Vec<String> {
    let (_, rest) = script.split_once(&format!("\n{name} = {{")).expect("a dictionary");
    let (entries, _) = rest.split_once('}').expect("its end");
    let key = |entry: &str| entry.split_once(':').expect("a key").0.trim().trim_matches('"').to_owned();
    entries.split(',').map(key).collect()
}

#[test]
fn the_table_of_clients_has_each_that_is_run_in_the_version_that_is_run() {
    let script = fs::read_to_string(root().join("tests/clients.py")).expect("a script");
    let page = fs::read_to_string(root().join("docs/openai.md")).expect("a page");
    let (_, table) = page.split_once("<!-- clients: written by tests/clients.py -->\n").expect("a table");
    let (table, _) = table.split_once("<!-- end of clients -->").expect("its end");
    let rows: Vec<Vec<&str>> =
        table.lines().skip(2).map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let clients = [keys_of(&script, "CLIENTS"), keys_of(&script, "NODE_CLIENTS")].concat();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), clients);
    for row in rows {
        let (client, version) = (row[0], row[1]);
        let names = [
            format!("[\"{client}=="),
            format!(" \"{client}=="),
            format!("[\"{client}[api]=="),
            format!("[\"{client}@"),
        ];
        let pinned = names.iter().find_map(|name| script.split_once(name.as_str())?.1.split('"').next());
        assert_eq!(pinned, Some(version), "{client}");
        assert_eq!(row[3], "yes", "{client}");
    }
}

#[test]
fn the_embedded_model_says_what_it_does_not_know() {
    let clone = Clone::new();
    assert!(clone.run("asterism up --detach").status.success());
    let asked =
        clone.run("asterism job submit --context examples/harbour.txt --query 'Who won the regatta?' --max-tokens 4");
    let printed = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(printed.matches("knows the questions of its benchmark tasks only").count(), 1, "{printed}");
}
