//! Compiles the forms of answers, beside the thread that generates. Masks nothing.

use std::sync::{Arc, Mutex, PoisonError, atomic::Ordering};

use asterism_kernels::Backend;
use asterism_models::{Constraint, Guide, Guides, ModelError};

use super::background::{BackgroundWorker, PendingOrder};
use crate::compute::LoadedModel;

/// Makes what holds answers to forms.
pub type FormWorker = BackgroundWorker<Constraint, Guide>;

/// What holds an answer to its form, on its way.
pub type PendingGuide = PendingOrder<Guide>;

/// Threads that compile: one key has two of them at most.
const FORM_THREADS: usize = 3;

/// Starts the threads; the model's tokens are sorted when the first form comes.
pub fn start<B: Backend>(model: Arc<LoadedModel<B>>) -> FormWorker {
    let guides: Mutex<Option<Arc<Guides>>> = Mutex::new(None);
    let guide = move |constraint: &Constraint| {
        // Who comes meanwhile waits: nothing can be compiled before.
        let sorted = || -> Result<Arc<Guides>, ModelError> {
            let mut guides = guides.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(guides) = &*guides {
                return Ok(guides.clone());
            }
            let config = model.decoder.config();
            Ok(guides.insert(Arc::new(Guides::new(&model.tokenizer, config.vocab, &config.eos)?)).clone())
        };
        sorted()?.guide(constraint)
    };
    BackgroundWorker::start(("forms", FORM_THREADS), move |constraint, given_up| {
        let made = if given_up.load(Ordering::Relaxed) { Err(ModelError::Cancelled) } else { guide(&constraint) };
        made.map_err(|error| (error.code().to_owned(), error.to_string()))
    })
}
