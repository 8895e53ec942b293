//! Whether a tokenizer, a configuration and weights are of one model, as far as their ids say it. Encodes nothing.

use super::Tokenizer;
use crate::{ModelConfig, ModelError};

impl Tokenizer {
    /// Refuses ids that the model has no embedding of.
    ///
    /// # Errors
    /// [`ModelError::OutsideVocabulary`] with the largest such id.
    pub fn check_ids(&self, config: &ModelConfig) -> Result<(), ModelError> {
        let refuse = |whose: String, id: u32| match id as usize >= config.vocab {
            true => Err(ModelError::OutsideVocabulary { whose, id, vocab: config.vocab }),
            false => Ok(()),
        };
        let largest = self.largest.as_ref();
        largest.map_or(Ok(()), |(token, id)| refuse(format!("tokenizer.json's token {token:?}"), *id))?;
        config.bos.map_or(Ok(()), |id| refuse("bos_token_id".to_owned(), id))?;
        config.eos.iter().try_for_each(|id| refuse("eos_token_id".to_owned(), *id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;

    #[test]
    fn ids_without_an_embedding_are_refused_by_name() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let (tokenizer, config) = (Tokenizer::from_checkpoint(&checkpoint).unwrap(), checkpoint.config().clone());
        tokenizer.check_ids(&config).unwrap();
        let refused = |config: ModelConfig| tokenizer.check_ids(&config).unwrap_err().to_string();
        let small = refused(ModelConfig { vocab: config.vocab - 1, ..config.clone() });
        assert!(
            small.contains("tokenizer.json's token ") && small.contains("4095; expected an id below 4095"),
            "{small}"
        );
        let bos = refused(ModelConfig { bos: Some(4096), ..config.clone() });
        assert!(bos.contains("bos_token_id is 4096; expected an id below 4096"), "{bos}");
        let eos = refused(ModelConfig { eos: vec![1, 128_001], ..config.clone() });
        assert!(eos.contains("eos_token_id is 128001"), "{eos}");
    }
}
