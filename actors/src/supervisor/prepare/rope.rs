//! Sessions of models whose rotary frequencies depend on the length of the prompt: what is held for one length is no other's.

use asterism_plan::Plan;

use crate::error::JobError;

use super::ModelFront;

impl ModelFront {
    /// Refuses a question of `query` tokens to a session whose keys are rotated for shorter prompts than it makes.
    pub(super) fn check_rope(&self, plan: &Plan, query: usize) -> Result<(), JobError> {
        let (lengths, tokens) = (self.config.rope.lengths(), plan.length(query));
        let held = plan.shards.first().map_or(0, |shard| shard.rope_length);
        if lengths.stands_for(tokens) == held {
            return Ok(());
        }
        let most = lengths.threshold().unwrap_or_default();
        Err(JobError::RotatedOtherwise { query, tokens, most, model: self.name.clone() })
    }
}

#[cfg(test)]
mod tests {
    use asterism_kernels::{DType, KvType};
    use asterism_models::{Checkpoint, RopeScaling, TemplateSource};
    use asterism_plan::MethodConfig;
    use serde_json::json;

    use super::*;
    use crate::{
        api::{JobRequest, Prompt},
        supervisor::{config::ContextHosts, tables::prepared::asked_session::AskedSession},
    };

    const ROPE_TEST_HOSTS: ContextHosts =
        ContextHosts { count: 2, one_device: true, kv: KvType::computed(DType::F32), speeds: None };

    fn front(scaling: RopeScaling) -> ModelFront {
        let mut front = ModelFront::load(&Checkpoint::embedded().unwrap(), None, TemplateSource::in_process).unwrap();
        front.config.rope.scaling = scaling;
        front
    }

    fn dense() -> MethodConfig {
        serde_json::from_value(json!({"dense": {}})).unwrap()
    }

    /// Asks a session of so many tokens something of so many.
    fn ask(front: &ModelFront, context: usize, query: usize) -> Result<(), JobError> {
        let request = json!({"name": "book", "context": vec![7; context]});
        let created = front.prepare_session(serde_json::from_value(request).unwrap(), &dense(), &ROPE_TEST_HOSTS)?;
        let session = AskedSession::of(1, &created);
        let query = Prompt::Tokens(vec![9; query]);
        let question = JobRequest { session: Some("book".into()), ..JobRequest::new(None, query) };
        front.prepare(question, &dense(), &ROPE_TEST_HOSTS, Some(&session)).map(|_| ())
    }

    #[test]
    fn no_question_is_asked_of_keys_for_prompts_of_another_length() {
        let long = || vec![2.0; 8];
        let switched =
            front(RopeScaling::LongRope { short: long(), long: long(), original: 64, attention_factor: 1.0 });
        let growing = front(RopeScaling::Dynamic { factor: 2.0, original: 64 });
        for front in [&switched, &growing] {
            ask(front, 40, 24).unwrap();
            let error = ask(front, 40, 25).unwrap_err();
            assert_eq!(error.code(), "context_too_long");
            assert!(
                error.to_string().contains("the prompt has 65") && error.to_string().contains("64 tokens"),
                "{error}"
            );
            assert!(ask(front, 64, 1).is_err(), "no question fits behind it");
        }
        ask(&switched, 65, 30).unwrap();
        assert!(ask(&growing, 65, 1).is_err(), "each length has its own");
        ask(&front(RopeScaling::Plain), 65, 30).unwrap();
    }

    #[test]
    fn a_job_is_encoded_for_its_whole_prompt() {
        let front = front(RopeScaling::Dynamic { factor: 2.0, original: 64 });
        let lengths = |context: usize, query: usize| {
            let (context, query) = (Prompt::Tokens(vec![7; context]), Prompt::Tokens(vec![9; query]));
            let job = front.prepare(JobRequest::new(Some(context), query), &dense(), &ROPE_TEST_HOSTS, None).unwrap();
            match job.source {
                crate::supervisor::tables::job::Source::Context(prepared) => prepared.plan.shards[0].rope_length,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([lengths(40, 24), lengths(40, 25), lengths(80, 1)], [0, 65, 81]);
    }
}
