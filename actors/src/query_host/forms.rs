//! Compiles the forms of answers, beside the thread that generates. Masks nothing.

use std::sync::{Arc, atomic::Ordering};

use asterism_kernels::Backend;
use asterism_models::{Constraint, Guide, Guides, ModelError};

use super::background::{BackgroundWorker, PendingOrder};
use crate::compute::LoadedModel;

/// Makes what holds answers to forms.
pub type FormWorker = BackgroundWorker<Constraint, Guide>;

/// What holds an answer to its form, on its way.
pub type PendingGuide = PendingOrder<Guide>;

/// Starts the thread; it sorts the model's tokens when the first form comes.
pub fn start<B: Backend>(model: Arc<LoadedModel<B>>) -> FormWorker {
    let mut guides: Option<Arc<Guides>> = None;
    let mut guide = move |constraint: &Constraint| {
        let guides = match &guides {
            Some(guides) => guides,
            None => {
                let config = model.decoder.config();
                &*guides.insert(Arc::new(Guides::new(&model.tokenizer, config.vocab, &config.eos)?))
            }
        };
        guides.guide(constraint)
    };
    BackgroundWorker::start("forms", move |constraint, given_up| {
        let made = if given_up.load(Ordering::Relaxed) { Err(ModelError::Cancelled) } else { guide(&constraint) };
        made.map_err(|error| (error.code().to_owned(), error.to_string()))
    })
}
