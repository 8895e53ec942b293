//! One generation, start to end, on a thread of its own: the query step, then token by token.

use asterism_kernels::Backend;
use asterism_models::{ContextKeys, Generator, ModelError, Sampler, Sampling, TextStream};

use crate::{
    host::LoadedModel,
    link::Outbox,
    messages::{Generate, HostMessage},
    query_host::{remote::RemoteContext, state::GenerationEnd},
};

/// Generates until the end of sequence, a stop string or the token limit, telling each token as it comes.
pub fn generate<B: Backend>(
    model: &LoadedModel<B>,
    generate: &Generate,
    mut context: RemoteContext<B>,
    outbox: &Outbox<HostMessage>,
) -> GenerationEnd {
    match run(model, generate, &mut context, outbox) {
        Ok(end) => end,
        Err(ModelError::Cancelled) => GenerationEnd::Stopped,
        Err(error) => failed(&error),
    }
}

/// A generation that an error ended.
pub fn failed(error: &ModelError) -> GenerationEnd {
    GenerationEnd::Failed { code: error.code().to_string(), message: error.to_string() }
}

fn run<B: Backend>(
    model: &LoadedModel<B>,
    generate: &Generate,
    context: &mut RemoteContext<B>,
    outbox: &Outbox<HostMessage>,
) -> Result<GenerationEnd, ModelError> {
    let (decoder, choice, job) = (model.decoder.as_ref(), &generate.choice, generate.job);
    let keys = ContextKeys { count: generate.context_keys as usize, view: generate.view };
    let mut generator = Generator::new(keys, generate.query_start);
    let (temperature, top_p, seed) = (choice.temperature, choice.top_p, choice.seed);
    let mut sampler = Sampler::new(Sampling { temperature, top_p, seed });
    let mut text = TextStream::new(model.tokenizer.clone(), choice.stop.clone());
    let mut ids = generate.query_ids.clone();
    for _ in 0..choice.max_tokens {
        let x = generator.step(decoder, &ids, context)?;
        let id = sampler.next(&decoder.logits(&x)?);
        if !choice.ignore_eos && decoder.config().eos.contains(&id) {
            return Ok(GenerationEnd::Answered { stopped: true, text: text.finish()? });
        }
        let piece = text.push(id)?;
        outbox.send(HostMessage::Token { job, id, text: piece });
        if text.stopped() {
            return Ok(GenerationEnd::Answered { stopped: true, text: String::new() });
        }
        ids = vec![id];
    }
    Ok(GenerationEnd::Answered { stopped: false, text: text.finish()? })
}
