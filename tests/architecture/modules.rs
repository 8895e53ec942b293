//! The modules of a crate, what each file defines and which paths it names. What a path means is for `imports` to find.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::lexer::{Token, closed, is, shipped};

/// Where a module stands in its crate: `["http", "error"]`.
pub type ModulePath = Vec<String>;

/// What ships of one crate.
pub struct Crate {
    pub modules: BTreeMap<ModulePath, Module>,
    pub files: BTreeMap<PathBuf, File>,
}

/// One module, of an own file or inside one.
#[derive(Default)]
pub struct Module {
    pub file: PathBuf,
    pub items: BTreeSet<String>,
    pub uses: Vec<Use>,
    /// Paths in code.
    pub paths: Vec<Vec<String>>,
}

/// One name that a `use` brings.
pub struct Use {
    pub path: Vec<String>,
    /// What it is called here; `*` for all that is there.
    pub name: String,
    /// Whether it is handed on.
    pub is_public: bool,
}

/// What one file defines.
#[derive(Default)]
pub struct File {
    /// Each word in it outside of `use` lines, with how often it stands there.
    pub words: BTreeMap<String, usize>,
    pub public_types: Vec<String>,
    /// Constants of modules, with their values as written.
    pub constants: Vec<(String, String)>,
    /// Functions with their number of parameters.
    pub functions: Vec<(String, usize)>,
}

/// A crate's modules, from its root file on.
pub fn read(root: &Path) -> Crate {
    let mut found = Crate { modules: BTreeMap::new(), files: BTreeMap::new() };
    let folder = root.parent().expect("a file stands in a folder");
    read_file(root, folder, &Vec::new(), &mut found);
    found
}

/// Reads `file`, whose child modules stand in `folder`.
fn read_file(file: &Path, folder: &Path, module: &ModulePath, found: &mut Crate) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let tokens = shipped(&text);
    let mut reader = Reader { file, tokens: &tokens, defines: File::default(), declared: Vec::new() };
    reader.module(0, tokens.len(), module, found);
    let Reader { defines, declared, .. } = reader;
    found.files.insert(file.to_path_buf(), defines);
    for child in declared {
        let within = child[module.len()..].iter().fold(folder.to_path_buf(), |folder, name| folder.join(name));
        let own = within.with_extension("rs");
        let file = if own.exists() { own } else { within.join("mod.rs") };
        read_file(&file, &within, &child, found);
    }
}

struct Reader<'a> {
    file: &'a Path,
    tokens: &'a [Token],
    defines: File,
    /// Modules that have files of their own.
    declared: Vec<ModulePath>,
}

impl Reader<'_> {
    /// Reads what stands in `from..to` as the items of `module`.
    fn module(&mut self, from: usize, to: usize, module: &ModulePath, found: &mut Crate) {
        let mut here = Module { file: self.file.to_path_buf(), ..Module::default() };
        let (mut at, mut depth, mut is_public) = (from, 0, false);
        while at < to {
            let token = &self.tokens[at];
            let next = self.tokens.get(at + 1).map_or("", |token| &token.text);
            let (is_item, was_public) = (depth == 0, std::mem::take(&mut is_public));
            let mut end = at + 1;
            match token.text.as_str() {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                "pub" => {
                    is_public = true;
                    if next == "(" {
                        end = closed(self.tokens, at + 1);
                    }
                }
                "mod" if is_item => {
                    let child: ModulePath = module.iter().cloned().chain([next.to_string()]).collect();
                    if is(&self.tokens[at + 2..], &[";"]) {
                        self.declared.push(child);
                        end = at + 3;
                    } else {
                        end = closed(self.tokens, at + 2);
                        self.module(at + 3, end - 1, &child, found);
                    }
                }
                "use" if next != "<" => {
                    end = self.use_tree(at + 1, &[], was_public, &mut here.uses) + 1;
                }
                "struct" | "enum" | "union" | "trait" | "type" | "static" | "fn" if is_item => {
                    here.items.insert(next.to_string());
                    let is_type = !["fn", "static"].contains(&token.text.as_str());
                    if is_type && was_public && self.tokens[at - 1].text == "pub" {
                        self.defines.public_types.push(next.to_string());
                    }
                    if token.text == "fn" {
                        self.function(at + 1);
                    }
                }
                "const" if is_item && !["fn", "unsafe"].contains(&next) && !self.is_generic(at) => {
                    here.items.insert(next.to_string());
                    self.constant(at + 1);
                }
                "macro_rules" if is_item => {
                    here.items.insert(self.tokens[at + 2].text.clone());
                }
                "fn" => self.function(at + 1),
                _ if token.is_word() => end = self.path(at, &mut here),
                _ => {}
            }
            // `pub` goes on over the words between it and what it makes public.
            is_public |= was_public && ["async", "unsafe", "const", "extern"].contains(&token.text.as_str());
            at = end;
        }
        found.modules.insert(module.clone(), here);
    }

    /// Takes in what begins at `at` and stands under `prefix`; says where it has ended.
    fn use_tree(&self, mut at: usize, prefix: &[String], is_public: bool, uses: &mut Vec<Use>) -> usize {
        let mut path = prefix.to_vec();
        loop {
            match self.tokens[at].text.as_str() {
                "::" => at += 1,
                "{" => {
                    at += 1;
                    while self.tokens[at].text != "}" {
                        at = self.use_tree(at, &path, is_public, uses);
                        at += usize::from(self.tokens[at].text == ",");
                    }
                    return at + 1;
                }
                "," | ";" | "}" => {
                    if path.last().is_some_and(|last| last == "self") {
                        path.pop();
                    }
                    let name = path.last().cloned().unwrap_or_default();
                    uses.push(Use { path, name, is_public });
                    return at;
                }
                "*" => {
                    uses.push(Use { path, name: "*".into(), is_public });
                    return at + 1;
                }
                "as" => {
                    if path.last().is_some_and(|last| last == "self") {
                        path.pop();
                    }
                    uses.push(Use { path, name: self.tokens[at + 1].text.clone(), is_public });
                    return at + 2;
                }
                word => {
                    path.push(word.to_string());
                    at += 1;
                }
            }
        }
    }

    /// Takes in a word, or a path that begins with it; says where it has ended.
    fn path(&mut self, at: usize, here: &mut Module) -> usize {
        let mut path = vec![self.tokens[at].text.clone()];
        let mut end = at + 1;
        while is(&self.tokens[end..], &["::"]) && self.tokens.get(end + 1).is_some_and(Token::is_word) {
            path.push(self.tokens[end + 1].text.clone());
            end += 2;
        }
        let is_member = at > 0 && self.tokens[at - 1].text == ".";
        if !is_member {
            *self.defines.words.entry(path[0].clone()).or_default() += 1;
            here.paths.push(path);
        }
        end
    }

    /// A function whose name stands at `at`.
    fn function(&mut self, at: usize) {
        let mut open = at + 1;
        let mut angles = 0;
        while let Some(token) = self.tokens.get(open).filter(|token| token.text != "(" || angles > 0) {
            match token.text.as_str() {
                "<" => angles += 1,
                ">" => angles -= 1,
                ";" | "{" => return,
                _ => {}
            }
            open += 1;
        }
        let parameters = self.list(open + 1, closed(self.tokens, open) - 1);
        self.defines.functions.push((self.tokens[at].text.clone(), parameters));
    }

    /// How many parts, divided by commas, stand in `from..to`.
    fn list(&self, mut from: usize, to: usize) -> usize {
        let (mut parts, mut is_begun, mut angles) = (0, false, 0);
        while from < to {
            let text = self.tokens[from].text.as_str();
            match text {
                "<" => angles += 1,
                ">" => angles -= 1,
                _ => {}
            }
            if text == "," && angles == 0 {
                is_begun = false;
            } else if !is_begun {
                (parts, is_begun) = (parts + 1, true);
            }
            from = if ["(", "[", "{"].contains(&text) { closed(self.tokens, from) } else { from + 1 };
        }
        parts
    }

    /// Whether the `const` at `at` is of a parameter of types.
    fn is_generic(&self, at: usize) -> bool {
        at > 0 && ["<", ","].contains(&self.tokens[at - 1].text.as_str())
    }

    /// A constant whose name stands at `at`.
    fn constant(&mut self, at: usize) {
        let mut end = at;
        let mut begins = at;
        while let Some(token) = self.tokens.get(end).filter(|token| token.text != ";") {
            match token.text.as_str() {
                "=" if begins == at => (begins, end) = (end + 1, end + 1),
                "(" | "[" | "{" => end = closed(self.tokens, end),
                _ => end += 1,
            }
        }
        let value: Vec<&str> = self.tokens[begins..end].iter().map(|token| token.text.as_str()).collect();
        if self.tokens[at].text != "_" {
            self.defines.constants.push((self.tokens[at].text.clone(), value.join(" ")));
        }
    }
}
