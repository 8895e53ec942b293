//! What tells one model from another: its configuration, the files of its tokenizer, and a hash of each tensor. Reads no
//! checkpoint and refuses nobody: who has another model is for the supervisor to say.

mod configuration;

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Display},
    fs::File,
    path::PathBuf,
};

use crate::ModelError;

pub(crate) use configuration::configuration;

/// Files of retaining heads by the names that requests use.
pub type HeadsFiles = BTreeMap<String, PathBuf>;

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// Differences of one kind that are named; of more it is said how many.
const NAMED_DIFFERENCES: usize = 3;

/// What tokens and plans depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontDigest {
    /// What the configuration resolves to, by key.
    pub configuration: Vec<(String, String)>,
    /// The files that text becomes tokens by, and back.
    pub tokenizer: Vec<(String, Hash)>,
}

/// What is computed with: a hash of each tensor's type, shape and bytes, ascending by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsDigest {
    /// Name and hash.
    pub tensors: Vec<(String, Hash)>,
}

/// One model, whatever its folder is called and however its weights are cut into files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelDigest {
    /// Configuration and tokenizer.
    pub front: FrontDigest,
    /// Weights.
    pub weights: WeightsDigest,
}

/// Names a digest, or a part of one, in 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DigestId(u64);

impl DigestId {
    /// The id of a model whose parts have these.
    pub fn of_model(front: Self, weights: Self) -> Self {
        Self::of([front, weights].iter().map(|part| part.0.to_le_bytes()))
    }

    pub(crate) fn of<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            // With its length, so that no two lists of parts read alike.
            hasher.update(&(part.as_ref().len() as u64).to_le_bytes()).update(part.as_ref());
        }
        let hash: Hash = hasher.finalize().into();
        Self(u64::from_be_bytes(*hash.first_chunk().expect("eight of 32 bytes")))
    }
}

impl Display for DigestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FrontDigest {
    /// Its id.
    pub fn id(&self) -> DigestId {
        let keys = self.configuration.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]);
        DigestId::of(keys.chain(self.tokenizer.iter().flat_map(|(file, hash)| [file.as_bytes(), &hash[..]])))
    }

    /// How `got` differs from this, in words.
    pub fn difference(&self, got: &Self) -> Option<String> {
        let keys = differences(&self.configuration, &got.configuration).map(|(key, ours, theirs)| {
            let shown = |value: Option<&String>| value.map_or("absent".to_owned(), |value| shortened(value));
            format!("{key} {} vs {} at the supervisor", shown(theirs), shown(ours))
        });
        let files = differences(&self.tokenizer, &got.tokenizer).map(|(file, ours, theirs)| match (ours, theirs) {
            (None, _) => format!("{file}, which the supervisor has not"),
            (_, None) => format!("no {file}"),
            _ => file.to_owned(),
        });
        let (keys, files) = (listed(keys.collect()), listed(files.collect()));
        let words = [
            keys.map(|keys| format!("configuration differs: {keys}")),
            files.map(|files| format!("tokenizer differs: {files}")),
        ];
        joined(words)
    }
}

impl WeightsDigest {
    /// With retaining heads: they choose what is kept of a context.
    ///
    /// # Errors
    /// [`ModelError::Unreadable`] when one of the files cannot be read to its end.
    pub fn with_heads(mut self, files: &HeadsFiles) -> Result<Self, ModelError> {
        for (name, path) in files {
            let mut hasher = blake3::Hasher::new();
            let read = File::open(path).and_then(|file| hasher.update_reader(file).map(drop));
            read.map_err(|cause| ModelError::Unreadable { path: path.display().to_string(), cause })?;
            self.tensors.push((format!("retaining heads {name}"), hasher.finalize().into()));
        }
        Ok(self)
    }

    /// Its id.
    pub fn id(&self) -> DigestId {
        DigestId::of(self.tensors.iter().flat_map(|(name, hash)| [name.as_bytes(), &hash[..]]))
    }

    /// How `got` differs from this, in words.
    pub fn difference(&self, got: &Self) -> Option<String> {
        let mut names = differences(&self.tensors, &got.tensors).map(|(name, ours, theirs)| match (ours, theirs) {
            (None, _) => format!("{name}, which the supervisor has not"),
            (_, None) => format!("{name}, which is missing"),
            _ => name.to_owned(),
        });
        let first = names.next()?;
        let count = 1 + names.count();
        let tensors = if count == 1 { "tensor" } else { "tensors" };
        Some(format!("weights differ in {count} {tensors}, first {first}"))
    }
}

impl ModelDigest {
    /// Its id.
    pub fn id(&self) -> DigestId {
        DigestId::of_model(self.front.id(), self.weights.id())
    }

    /// How `got` differs from this, in words.
    pub fn difference(&self, got: &Self) -> Option<String> {
        joined([self.front.difference(&got.front), self.weights.difference(&got.weights)])
    }
}

fn joined(words: [Option<String>; 2]) -> Option<String> {
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join("; "))
}

fn listed(all: Vec<String>) -> Option<String> {
    let (more, named) =
        (all.len().saturating_sub(NAMED_DIFFERENCES), all.iter().take(NAMED_DIFFERENCES).cloned().collect::<Vec<_>>());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| named.join(", ") + &more)
}

fn shortened(value: &str) -> String {
    const SHOWN_CHARACTERS: usize = 60;
    match value.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

/// Names whose values are not the same in both, or that one has not: ours in our order, then those that are theirs alone.
fn differences<'a, T: PartialEq>(
    ours: &'a [(String, T)],
    theirs: &'a [(String, T)],
) -> impl Iterator<Item = (&'a str, Option<&'a T>, Option<&'a T>)> {
    let by_name =
        |all: &'a [(String, T)]| all.iter().map(|(name, value)| (name.as_str(), value)).collect::<HashMap<_, _>>();
    let (our, their) = (by_name(ours), by_name(theirs));
    let of_ours = ours.iter().map(move |(name, value)| (name.as_str(), Some(value), their.get(name.as_str()).copied()));
    let of_theirs = theirs
        .iter()
        .filter(move |(name, _)| !our.contains_key(name.as_str()))
        .map(|(name, value)| (name.as_str(), None, Some(value)));
    of_ours.chain(of_theirs).filter(|(_, ours, theirs)| ours != theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<T: Clone>(values: &[(&str, T)]) -> Vec<(String, T)> {
        values.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
    }

    fn weights(tensors: &[(&str, u8)]) -> WeightsDigest {
        WeightsDigest { tensors: tensors.iter().map(|(name, byte)| (name.to_string(), [*byte; 32])).collect() }
    }

    #[test]
    fn tensors_that_differ_are_counted_and_the_first_is_named() {
        let ours = weights(&[("a", 1), ("b", 2), ("c", 3)]);
        assert_eq!(ours.difference(&ours), None);
        let stated = |theirs: &[(&str, u8)]| ours.difference(&weights(theirs)).unwrap();
        assert_eq!(stated(&[("a", 1), ("b", 3), ("c", 2)]), "weights differ in 2 tensors, first b");
        assert_eq!(stated(&[("a", 1), ("b", 2)]), "weights differ in 1 tensor, first c, which is missing");
        let more = stated(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
        assert_eq!(more, "weights differ in 1 tensor, first d, which the supervisor has not");
    }

    #[test]
    fn keys_and_files_that_differ_are_told_with_both_values() {
        let front = |theta: &str, hash: u8| FrontDigest {
            configuration: named(&[("layers", "2".to_owned()), ("rope_theta", theta.to_owned())]),
            tokenizer: named(&[("tokenizer.json", [hash; 32])]),
        };
        let stated = front("500000.0", 1).difference(&front("10000.0", 2)).unwrap();
        assert_eq!(
            stated,
            "configuration differs: rope_theta 10000.0 vs 500000.0 at the supervisor; tokenizer differs: tokenizer.json"
        );
        let bare = FrontDigest::default();
        let stated = front("1.0", 1).difference(&bare).unwrap();
        assert!(stated.contains("rope_theta absent vs 1.0 at the supervisor"), "{stated}");
        assert!(stated.ends_with("tokenizer differs: no tokenizer.json"), "{stated}");
    }

    #[test]
    fn what_differs_much_is_told_in_few_words() {
        let many: Vec<(String, String)> = (0..9).map(|key| (format!("k{key}"), "1".repeat(1000))).collect();
        let stated =
            FrontDigest { configuration: many, ..Default::default() }.difference(&FrontDigest::default()).unwrap();
        assert!(stated.ends_with("and 6 more") && stated.len() < 400, "{stated}");
    }

    #[test]
    fn an_id_is_of_the_parts_and_where_they_begin() {
        let [a, b] = [&["ab", "c"], &["a", "bc"]].map(|parts| DigestId::of(parts.iter()));
        assert_ne!(a, b);
        assert_eq!(a.to_string().len(), 16);
        let model = ModelDigest { weights: weights(&[("a", 1)]), ..Default::default() };
        assert_eq!(model.id(), DigestId::of_model(model.front.id(), model.weights.id()));
        assert_ne!(model.id(), ModelDigest::default().id());
    }
}
