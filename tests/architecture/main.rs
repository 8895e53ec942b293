//! The rules of the house that a machine can check: who imports whom, what a folder holds, what a state machine may touch.

mod imports;
mod lexer;
mod modules;
mod structure;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Crates of the workspace and what each may import of it, outermost first.
const IMPORTS: &[(&str, &[&str])] = &[
    (
        "tests",
        &["asterism", "asterism-actors", "asterism-transport", "asterism-models", "asterism-plan", "asterism-kernels"],
    ),
    ("tests/null-driver", &[]),
    ("runtime", &["asterism-actors", "asterism-transport", "asterism-models", "asterism-plan", "asterism-kernels"]),
    ("actors", &["asterism-transport", "asterism-models", "asterism-plan", "asterism-kernels"]),
    ("models", &["asterism-plan", "asterism-kernels"]),
    ("models/plan", &[]),
    ("kernels", &[]),
    ("transport", &[]),
];

/// Files of the supervisor that do what the others decide, and those that test them.
const SHELLS: &[&str] = &[
    "shell/actor.rs",
    "shell/event_loop.rs",
    "shell/events.rs",
    "shell/feed.rs",
    "shell/lists.rs",
    "shell/measuring.rs",
    "shell/watchdog.rs",
    "shell/writer.rs",
    "fingerprint.rs",
    "tests",
    "tests.rs",
];
/// Rules elsewhere.
const PURE: &[&str] = &[
    "state.rs",
    "context_host/parcels/pieces.rs",
    "query_host/lookup.rs",
    "query_host/schedule.rs",
    "query_host/partials/gather.rs",
    "query_host/partials/layer_step.rs",
    "actors/src/process/cores.rs",
    "actors/src/protocol/authority.rs",
    "actors/src/protocol/ticket.rs",
    "actors/src/protocol/payload.rs",
];
/// Words that no pure file contains.
const IMPURE: &[&str] =
    &["std::fs", "std::net", "std::thread", "tokio", "Instant", "SystemTime", ".await", "println!", "rand::"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace").to_path_buf()
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for (folder, _) in IMPORTS {
        collect(&root().join(folder), &mut found);
    }
    found.sort();
    found.dedup();
    found
}

fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.clone(), fs::read_to_string(&path).expect("UTF-8 source")));
        }
    }
}

/// The part of a file that ships: what stands before its tests.
fn shipped(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"))
}

#[test]
fn imports_run_one_way() {
    for (member, allowed) in IMPORTS {
        let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).expect("a manifest");
        let shipped = manifest.split("[dev-dependencies]").next().expect("a first part");
        let names = shipped.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        for name in names.filter(|name| *name == "asterism" || name.starts_with("asterism-")) {
            assert!(allowed.contains(&name), "{member} imports {name}; it may import {allowed:?}");
        }
    }
}

#[test]
fn state_machines_and_plans_are_pure() {
    let supervisor = root().join("actors/src/supervisor");
    let pure = |path: &Path| match path.strip_prefix(&supervisor) {
        Ok(file) => !SHELLS.iter().any(|shell| file.starts_with(shell)),
        Err(_) => PURE.iter().any(|pure| path.ends_with(pure)) || path.starts_with(root().join("models/plan/src")),
    };
    for (path, text) in sources().iter().filter(|(path, _)| pure(path)) {
        for (at, line) in shipped(text).enumerate() {
            for word in IMPURE {
                assert!(
                    !line.replace("awaited", "").contains(word),
                    "{}:{}: {word} in a pure file: {line}",
                    path.display(),
                    at + 1
                );
            }
        }
    }
}

#[test]
fn the_tensor_library_stays_in_kernels() {
    for (path, text) in sources().iter().filter(|(path, _)| !path.starts_with(root().join("kernels"))) {
        let named = shipped(text).any(|line| line.contains("candle_") && !line.trim_start().starts_with("//"));
        assert!(!named || path.ends_with("architecture/main.rs"), "{} names candle", path.display());
    }
}

#[test]
fn unsafe_stays_where_it_is_explained() {
    for (path, text) in sources().iter().filter(|(path, _)| !path.ends_with("architecture/main.rs")) {
        let lines: Vec<&str> = shipped(text).collect();
        for (at, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if code.contains("unsafe {") {
                let near = lines[at.saturating_sub(6)..=at].iter().any(|line| line.contains("SAFETY"));
                assert!(near, "{}:{}: an unsafe block without a SAFETY line", path.display(), at + 1);
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is() {
    for (path, text) in sources().iter().filter(|(path, _)| !path.ends_with("build.rs")) {
        assert!(text.starts_with("//!"), "{} does not begin with a //! line", path.display());
    }
}

/// A page, and what it names of the repository: targets of its links, and paths in backticks that begin with a folder of it.
fn named(page: &Path, text: &str, folders: &[String]) -> Vec<(usize, PathBuf)> {
    let beside = page.parent().expect("a folder");
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                found.push((at + 1, beside.join(target)));
            }
        }
        let plain = |path: &&str| path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        for path in line.split('`').skip(1).step_by(2).filter(plain) {
            if path.split_once('/').is_some_and(|(first, _)| folders.iter().any(|folder| folder == first)) {
                found.push((at + 1, root().join(path)));
            }
        }
    }
    found
}

#[test]
fn every_path_in_the_documentation_exists() {
    let entries = |folder: PathBuf| fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let folders: Vec<String> = entries(root())
        .filter(|path| path.is_dir() && !path.ends_with("target"))
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    let pages = entries(root().join("docs"))
        .chain(["README.md", "CONTRIBUTING.md", "dashboards/README.md"].map(|page| root().join(page)));
    let mut missing = BTreeMap::new();
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&page).expect("a page");
        for (line, path) in named(&page, &text, &folders).into_iter().filter(|(_, path)| !path.exists()) {
            missing.insert((page.clone(), line), path);
        }
    }
    assert!(missing.is_empty(), "paths that do not exist, by page and line: {missing:?}");
}
