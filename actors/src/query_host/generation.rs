//! One generation, start to end, on a thread of its own: the query step, then token by token.

use std::time::Instant;

use asterism_kernels::Backend;
use asterism_models::{ContextKeys, Generator, ModelError, Sampler, Sampling, TextStream};

use crate::{
    host::{LoadedModel, Post},
    messages::Generate,
    query_host::{
        remote::RemoteContext,
        state::{Event, GenerationEnd},
    },
};

/// Generates until the end of sequence, a stop string or the token limit, posting each token as it comes.
///
/// Tokens that another host generated are gone through one step at a time, as they were the first time, so that what
/// follows them is the same to the last bit: the sampler draws, and is overruled.
pub fn generate<B: Backend>(
    model: &LoadedModel<B>,
    generate: &Generate,
    mut context: RemoteContext<B>,
    post: &Post<Event>,
) -> GenerationEnd {
    match run(model, generate, &mut context, post) {
        Ok(Answer { stopped, text }) => GenerationEnd::Answered { stopped, text, times: context.times() },
        Err(ModelError::Cancelled) => GenerationEnd::Stopped,
        Err(error) => GenerationEnd::Failed { code: error.code().to_string(), message: error.to_string() },
    }
}

/// How an answer ended, and the text held back.
struct Answer {
    stopped: bool,
    text: String,
}

fn run<B: Backend>(
    model: &LoadedModel<B>,
    generate: &Generate,
    context: &mut RemoteContext<B>,
    post: &Post<Event>,
) -> Result<Answer, ModelError> {
    let (decoder, choice, job) = (model.decoder.as_ref(), &generate.choice, generate.job);
    let keys = ContextKeys { count: generate.context_keys as usize, view: generate.view };
    let mut generator = Generator::new(keys, generate.query_start);
    let (temperature, top_p, seed) = (choice.temperature, choice.top_p, choice.seed);
    let mut sampler = Sampler::new(Sampling { temperature, top_p, seed });
    let mut text = TextStream::new(model.tokenizer.clone(), choice.stop.clone());
    let mut ids = generate.query_ids.clone();
    for index in 0..choice.max_tokens as usize {
        let began = Instant::now();
        let x = generator.step(decoder, &ids, context)?;
        let drawn = sampler.next(&decoder.logits(&x)?);
        context.stepped(began.elapsed());
        let given = generate.generated.get(index).copied();
        if given.is_none() && !choice.ignore_eos && decoder.config().eos.contains(&drawn) {
            return Ok(Answer { stopped: true, text: text.finish()? });
        }
        let id = given.unwrap_or(drawn);
        let piece = text.push(id)?;
        post(Event::Token { job, id, text: piece });
        if text.stopped() {
            return Ok(Answer { stopped: true, text: String::new() });
        }
        ids = vec![id];
    }
    Ok(Answer { stopped: false, text: text.finish()? })
}
