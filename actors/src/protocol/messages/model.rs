//! The digest of a host's model on the wire, and what of it is taken for one. Compares nothing.

use asterism_models::{FrontDigest, Hash, ModelDigest, WeightsDigest};
use rkyv::{Archive, Deserialize, Serialize};

/// More keys, files and tensors than any model has, and most bytes of a name and of a value.
const MOST: usize = 1 << 16;
const NAME_BYTES: usize = 512;
const VALUE_BYTES: usize = 1 << 16;

/// [`ModelDigest`] on the wire.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct ModelReport {
    configuration: Vec<(String, String)>,
    tokenizer: Vec<(String, Hash)>,
    tensors: Vec<(String, Hash)>,
}

impl From<ModelDigest> for ModelReport {
    fn from(digest: ModelDigest) -> Self {
        let ModelDigest { front: FrontDigest { configuration, tokenizer }, weights } = digest;
        Self { configuration, tokenizer, tensors: weights.tensors }
    }
}

impl ModelReport {
    /// The digest, if it may be one of a model.
    ///
    /// # Errors
    /// What is too much of it.
    pub fn check(self) -> Result<ModelDigest, String> {
        let Self { configuration, tokenizer, tensors } = self;
        let plain = |text: &str, most| text.len() <= most && !text.contains(char::is_control);
        let lists = [configuration.len(), tokenizer.len(), tensors.len()];
        let hashed = tokenizer.iter().chain(&tensors).all(|(name, _)| plain(name, NAME_BYTES));
        let reported = configuration.iter().all(|(key, value)| plain(key, NAME_BYTES) && plain(value, VALUE_BYTES));
        if lists.iter().any(|count| *count > MOST) || !hashed || !reported {
            return Err(format!(
                "the digest of its model has {lists:?} keys, files and tensors, expected at most {MOST} each, of printable names \
                 of at most {NAME_BYTES} bytes; run the same version of asterism on every host"
            ));
        }
        let weights = WeightsDigest { tensors };
        Ok(ModelDigest { front: FrontDigest { configuration, tokenizer }, weights })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_arrives_as_it_was_said_and_nothing_else_does() {
        let named = |name: &str| vec![(name.to_string(), [1; 32])];
        let digest = ModelDigest {
            front: FrontDigest { configuration: vec![("a".into(), "1".into())], tokenizer: named("b") },
            weights: WeightsDigest { tensors: named("c") },
        };
        assert_eq!(ModelReport::from(digest.clone()).check(), Ok(digest));
        for tensors in [named("a\nb"), named(&"a".repeat(NAME_BYTES + 1)), vec![Default::default(); MOST + 1]] {
            let stated = ModelReport { tensors, ..ModelReport::default() };
            assert!(stated.check().is_err());
        }
        let configuration = vec![("a".to_string(), "\u{1b}[2J".to_string())];
        assert!(ModelReport { configuration, ..ModelReport::default() }.check().is_err());
    }
}
