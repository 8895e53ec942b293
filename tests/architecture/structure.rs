//! The rules of structure: no circle of imports inside a folder, few files a folder, one meaning a name, few parameters.
//! Nothing breaks them, and nothing may.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    imports::{self, Imports},
    modules::{self, Crate},
    root,
};

const MOST_FILES: usize = 12;
const MOST_PARAMETERS: usize = 6;

/// The crates of the product.
const CRATES: &[&str] = &["runtime", "actors", "transport", "models", "models/plan", "kernels"];
/// Folders of tests, whose files are counted too.
const TESTS: &[&str] =
    &["tests", "actors/tests", "transport/tests", "models/tests", "kernels/tests", "models/plan/tests"];

fn crates() -> impl Iterator<Item = (&'static str, Crate)> {
    CRATES.iter().map(|name| (*name, modules::read(&root().join(name).join("src/lib.rs"))))
}

fn short(path: &Path) -> String {
    path.strip_prefix(root()).expect("a file of the workspace").display().to_string()
}

/// Holds that nothing breaks a rule.
fn hold(rule: &str, found: BTreeSet<String>, why: &str) {
    let lines: String = found.iter().map(|one| format!("    {one}\n")).collect();
    assert!(found.is_empty(), "{rule}: these break it:\n{lines}{why}");
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let (mut found, mut why) = (BTreeSet::new(), String::new());
    for (_, house) in crates() {
        let imports = imports::of(&house);
        let arrows: Arrows =
            imports.iter().map(|(from, to)| (short(from), to.keys().map(|to| short(to)).collect())).collect();
        for circle in circles(&arrows) {
            why += &explained(&circle, &imports, &|file| Some(short(file)));
            found.extend(circle);
        }
    }
    hold("files that import each other in a circle", found, &why);
}

/// The rooms of a folder are its files and its folders; a file and the folder of its children are one room.
#[test]
fn no_rooms_of_a_folder_import_each_other_in_a_circle() {
    let (mut found, mut why) = (BTreeSet::new(), String::new());
    for (_, house) in crates() {
        let imports = imports::of(&house);
        let folders: BTreeSet<&Path> = house.files.keys().flat_map(|file| file.ancestors().skip(1)).collect();
        for folder in folders.into_iter().filter(|folder| folder.starts_with(root()) && *folder != root()) {
            let room = |file: &Path| {
                let first = file.strip_prefix(folder).ok()?.components().next()?;
                Some(short(&folder.join(Path::new(first.as_os_str()).with_extension(""))))
            };
            let mut arrows = Arrows::new();
            for (from, to) in imports.iter().filter_map(|(from, to)| Some((room(from)?, to))) {
                let others = to.keys().filter_map(|to| room(to)).filter(|to| *to != from);
                arrows.entry(from.clone()).or_default().extend(others);
            }
            for circle in circles(&arrows) {
                why += &explained(&circle, &imports, &room);
                found.extend(circle);
            }
        }
    }
    hold("rooms of one folder that import each other in a circle", found, &why);
}

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Sets of more than one in which each leads to each.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = arrows
        .keys()
        .map(|from| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(at) = next.pop() {
                next.extend(arrows.get(at).into_iter().flatten().filter(|to| reached.insert(*to)));
            }
            (from, reached)
        })
        .collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (from, to) in &reached {
        let circle: BTreeSet<String> = to
            .iter()
            .filter(|to| reached.get(*to).is_some_and(|back| back.contains(from)))
            .map(|to| to.to_string())
            .collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// What ties a circle: who takes which names from whom.
fn explained(circle: &BTreeSet<String>, imports: &Imports, room: &dyn Fn(&Path) -> Option<String>) -> String {
    let mut text = format!("a circle of {}:\n", circle.len());
    for (from, to) in imports {
        for (to, names) in to {
            let (Some(of), Some(at)) = (room(from), room(to)) else { continue };
            if of != at && circle.contains(&of) && circle.contains(&at) {
                text += &format!("    {} -> {}: {names:?}\n", short(from), short(to));
            }
        }
    }
    text
}

#[test]
fn no_folder_holds_too_many_files() {
    let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let sources = CRATES.iter().map(|name| root().join(name).join("src"));
    for folder in sources.chain(TESTS.iter().map(|name| root().join(name))) {
        count(&folder, &mut counts);
    }
    let crowded = counts.into_iter().filter(|(_, files)| *files > MOST_FILES);
    let found = crowded.map(|(folder, files)| format!("{} {files}", short(&folder))).collect();
    hold("folders of more than 12 files of Rust", found, "make rooms of what belongs together");
}

fn count(folder: &Path, counts: &mut BTreeMap<PathBuf, usize>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            count(&path, counts);
        } else if path.extension() == Some(OsStr::new("rs")) {
            *counts.entry(folder.to_path_buf()).or_default() += 1;
        }
    }
}

#[test]
fn no_two_public_types_of_a_crate_have_one_name() {
    let mut found = BTreeSet::new();
    let mut why = String::new();
    for (name, house) in crates() {
        let mut places: BTreeMap<&String, Vec<&PathBuf>> = BTreeMap::new();
        for (file, defines) in &house.files {
            defines.public_types.iter().for_each(|kind| places.entry(kind).or_default().push(file));
        }
        for (kind, files) in places.into_iter().filter(|(_, files)| files.len() > 1) {
            why += &format!("{kind}: {:?}\n", files.iter().map(|file| short(file)).collect::<Vec<_>>());
            found.insert(format!("{name} {kind}"));
        }
    }
    hold("public types of one crate with one name", found, &why);
}

#[test]
fn no_constant_name_of_a_crate_has_two_values() {
    let (mut found, mut why) = (BTreeSet::new(), String::new());
    for (name, house) in crates() {
        let mut values: BTreeMap<&String, BTreeMap<&String, Vec<String>>> = BTreeMap::new();
        for (file, defines) in &house.files {
            for (constant, value) in &defines.constants {
                values.entry(constant).or_default().entry(value).or_default().push(short(file));
            }
        }
        for (constant, values) in values.into_iter().filter(|(_, values)| values.len() > 1) {
            why += &format!("{constant}: {:?}\n", values.values().collect::<Vec<_>>());
            found.insert(format!("{name} {constant}"));
        }
    }
    hold("constants of one crate and name with different values", found, &why);
}

#[test]
fn no_function_has_too_many_parameters() {
    let mut found = BTreeSet::new();
    for (_, house) in crates() {
        for (file, defines) in &house.files {
            let many = defines.functions.iter().filter(|(_, parameters)| *parameters > MOST_PARAMETERS);
            found.extend(many.map(|(name, parameters)| format!("{} {name} {parameters}", short(file))));
        }
    }
    hold("functions of more than six parameters", found, "make a struct of those that go together");
}
