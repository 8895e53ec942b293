//! What a model of a hub is called: `ORG/NAME`, perhaps with a revision and a file. Looks nothing up.

use std::{fmt, str::FromStr};

/// `ORG/NAME[@REVISION][:FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// `ORG/NAME`.
    pub repository: String,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// One file of it, or a part of its name that no other file has.
    pub file: Option<String>,
}

/// Longest part of a name.
const LONGEST_PART: usize = 96;

impl FromStr for HubName {
    type Err = String;

    fn from_str(typed: &str) -> Result<Self, String> {
        let (repository, file) = match typed.split_once(':') {
            Some((repository, file)) => (repository, Some(file.to_owned())),
            None => (typed, None),
        };
        let (repository, revision) = repository.split_once('@').unwrap_or((repository, "main"));
        let parts: Vec<&str> = repository.split('/').collect();
        let [org, name] = parts[..] else { return Err("expected ORG/NAME, or ORG/NAME:FILE".to_owned()) };
        for part in [org, name] {
            if !is_part(part) {
                return Err(format!("\"{part}\" is no name of a hub: letters, digits, '-', '_' and '.' are, up to 96"));
            }
        }
        if revision.is_empty() || !revision.split('/').all(is_part) {
            return Err(format!("\"{revision}\" is no branch, tag or commit"));
        }
        if file.as_deref().is_some_and(|file| !is_file(file)) {
            return Err(format!("\"{}\" is no file of a repository", file.unwrap_or_default()));
        }
        Ok(Self { repository: repository.to_owned(), revision: revision.to_owned(), file })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

fn is_part(part: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let hidden = part.starts_with(['.', '-']) || part.ends_with('.') || part.contains("..") || part.contains("--");
    !part.is_empty() && part.len() <= LONGEST_PART && !hidden && part.chars().all(known)
}

/// Whether it names a file of a repository, and nothing outside it. Hubs answer with such names too.
pub(super) fn is_file(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', '\0', ':']);
    name.len() <= 1024 && name.split('/').all(part) && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let name: HubName = "Qwen/Qwen3-0.6B".parse().unwrap();
        assert_eq!((name.repository.as_str(), name.revision.as_str(), &name.file), ("Qwen/Qwen3-0.6B", "main", &None));
        for typed in ["org/name@v1.0:a/b.gguf", "org/name:Q4_K_M", "o/n@refs/pr/1"] {
            assert_eq!(typed.parse::<HubName>().unwrap().to_string(), typed);
        }
        let wrong = [
            "",
            "name",
            "a/b/c",
            "../b",
            "a/..",
            "a/b--c",
            "a/b@",
            "a/b:",
            "a/b:../x",
            "a/b:/etc/passwd",
            "a b/c",
            "a/b:x//y",
        ];
        for typed in wrong {
            assert!(typed.parse::<HubName>().is_err(), "{typed}");
        }
    }
}
