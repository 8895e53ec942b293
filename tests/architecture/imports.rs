//! Which file of a crate imports which: a path is followed to the file that defines what it names, through whoever hands it on.
//! A parent that only declares modules and hands on what is theirs imports nothing by that.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use crate::modules::{Crate, ModulePath};

/// For each file those that it imports, each with the names it takes from there.
pub type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

/// What a path leads to.
enum Target {
    Module(ModulePath),
    Item(PathBuf),
}

/// How often names are handed on at most.
const HANDED_ON: usize = 8;

/// Who imports whom in a crate.
pub fn of(house: &Crate) -> Imports {
    let mut found = Imports::new();
    for (path, module) in &house.modules {
        let words = &house.files[&module.file].words;
        let mut add = |target: Option<Target>, name: &str| {
            if let Some(Target::Item(file)) = target.filter(|_| !name.is_empty()) {
                let imports = found.entry(module.file.clone()).or_default();
                if file != module.file {
                    imports.entry(file).or_default().insert(name.to_string());
                }
            }
        };
        for used in &module.uses {
            if used.name == "*" && !used.is_public {
                for word in words.keys() {
                    let whole: Vec<String> = used.path.iter().chain([word]).cloned().collect();
                    if defines(house, path, &whole, 0) {
                        add(resolve(house, path, &whole, 0), word);
                    }
                }
            } else if !used.is_public || words.contains_key(&used.name) {
                add(resolve(house, path, &used.path, 0), &used.name);
            }
        }
        for named in module.paths.iter().filter(|named| named.len() > 1) {
            add(resolve(house, path, named, 0), &named[named.len() - 1]);
        }
    }
    found
}

/// Whether a path ends in what its module defines or hands on.
fn defines(house: &Crate, from: &ModulePath, path: &[String], handed_on: usize) -> bool {
    let (last, module) = path.split_last().expect("a path has a last part");
    match resolve(house, from, module, handed_on) {
        Some(Target::Module(module)) => house.modules.get(&module).is_some_and(|module| {
            module.items.contains(last) || module.uses.iter().any(|used| used.is_public && used.name == *last)
        }),
        _ => false,
    }
}

fn resolve(house: &Crate, from: &ModulePath, path: &[String], handed_on: usize) -> Option<Target> {
    let (first, rest) = path.split_first().filter(|_| handed_on < HANDED_ON)?;
    let parent = |module: &ModulePath| module.split_last().map(|(_, parent)| parent.to_vec());
    let begins = match first.as_str() {
        "crate" => Target::Module(Vec::new()),
        "self" => Target::Module(from.clone()),
        "super" => Target::Module(parent(from)?),
        name => step(house, from, name, handed_on)?,
    };
    rest.iter().try_fold(begins, |target, name| match target {
        Target::Module(module) if name == "super" => parent(&module).map(Target::Module),
        Target::Module(module) => step(house, &module, name, handed_on)
            .or_else(|| Some(Target::Item(house.modules.get(&module)?.file.clone()))),
        Target::Item(file) => Some(Target::Item(file)),
    })
}

/// What a module calls `name`.
fn step(house: &Crate, module: &ModulePath, name: &str, handed_on: usize) -> Option<Target> {
    let here = house.modules.get(module)?;
    let child: ModulePath = module.iter().cloned().chain([name.to_string()]).collect();
    if here.items.contains(name) {
        return Some(Target::Item(here.file.clone()));
    }
    if house.modules.contains_key(&child) {
        return Some(Target::Module(child));
    }
    let named = here.uses.iter().filter(|used| used.name == name && used.path != [name]);
    if let Some(target) = named.filter_map(|used| resolve(house, module, &used.path, handed_on + 1)).next() {
        return Some(target);
    }
    let globs = here.uses.iter().filter(|used| used.name == "*");
    globs
        .filter_map(|used| {
            let whole: Vec<String> = used.path.iter().cloned().chain([name.to_string()]).collect();
            defines(house, module, &whole, handed_on + 1).then(|| resolve(house, module, &whole, handed_on + 1))?
        })
        .next()
}
