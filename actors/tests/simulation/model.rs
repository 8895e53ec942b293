//! The model of all simulated clusters, and what it answers where nothing goes wrong: computed here, without any host.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use asterism_actors::{
    LoadedModel,
    api::{JobRequest, Prompt},
    cores::{ComputeKind, Cores},
    machine,
    supervisor::ModelFront,
};
use asterism_kernels::{Cpu, CpuOptions};
use asterism_models::{
    Checkpoint, ContextKeys, Decoder, DecoderParts, Generator, HeadsFiles, LocalContext, ModelDigest, RetainingHeads,
    Sampler, TemplateSource, Tokenizer, encode_alone, encode_plan,
};
use asterism_plan::Plan;

/// What the retaining heads are called.
pub const HEADS: &str = "trained";
const NAME: &str = "tiny-qwen2";

/// A model and its front; all clusters share the weights.
pub struct Model {
    pub decoder: Arc<Decoder<Cpu>>,
    pub front: Arc<ModelFront>,
    tokenizer: Tokenizer,
    files: HeadsFiles,
    heads: RetainingHeads<Cpu>,
}

impl Model {
    /// Read once.
    pub fn shared() -> &'static Self {
        static MODEL: OnceLock<Model> = OnceLock::new();
        MODEL.get_or_init(Self::load)
    }

    fn load() -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models").join(NAME);
        let checkpoint = Checkpoint::open(&folder).expect("the fixtures have it");
        let backend = Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).expect("kernels");
        let decoder = Decoder::load(Arc::new(backend), &checkpoint, DecoderParts::All).expect("weights");
        let path = folder.join("retaining_heads.safetensors");
        let heads = RetainingHeads::load(decoder.backend(), &path, decoder.config()).expect("retaining heads");
        let files: HeadsFiles = [(HEADS.to_string(), path)].into();
        let front =
            ModelFront::load(&checkpoint, None, TemplateSource::in_process).and_then(|front| front.with_heads(&files));
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("a tokenizer");
        Self { decoder: Arc::new(decoder), front: Arc::new(front.expect("a front")), tokenizer, files, heads }
    }

    /// As a host loads it that computes a layer in so long.
    pub fn loaded(&self, layer: Duration) -> LoadedModel<Cpu> {
        LoadedModel {
            decoder: self.decoder.clone(),
            tokenizer: self.tokenizer.clone(),
            digest: ModelDigest { front: self.front.digest.clone(), ..ModelDigest::default() },
            heads: self.files.clone(),
            cores: Arc::new(TakesTime(layer)),
        }
    }

    /// The answer to a request whose context is planned so.
    pub fn answer(&self, plan: &Plan, context: &[u32], request: &JobRequest) -> Vec<u32> {
        let shards = encode_plan(&self.decoder, plan, context, Some(&self.heads), &mut |_, _| true).expect("a plan");
        let mut sampler = Sampler::new(request.sampling.clone());
        let (mut ids, mut tokens) = (ids(&request.query).to_vec(), Vec::new());
        let (mut generator, mut known) = (Generator::of(plan), LocalContext::new(self.decoder.backend(), &shards));
        // A session does not know its questions: they get some of its context anew.
        if let Some(refresh) = request.session.as_ref().and_then(|_| plan.refresh(context, &ids)) {
            let keys =
                ContextKeys { shards: refresh.left_of(plan.kept_shards()), view: plan.view, fan_in: plan.fan_in };
            let input = refresh.shard.input(context).expect("its tokens are in the context");
            let fresh = encode_alone(&self.decoder, (&refresh.shard, &input), &mut |_, _| true).expect("fresh keys");
            (generator, known) = (Generator::new(keys, plan.query_start), known.without(0, &refresh.hidden));
            generator.refresh(fresh);
        }
        while tokens.len() < request.max_tokens {
            let row = generator.step(&self.decoder, &ids, &mut known).expect("a step");
            let logits = self.decoder.last_logits(&[&row]).expect("logits").remove(0).expect("a row");
            tokens.push(sampler.next(&logits));
            ids = tokens[tokens.len() - 1..].to_vec();
        }
        tokens
    }
}

/// The ids of a prompt of ids.
pub fn ids(prompt: &Prompt) -> &[u32] {
    match prompt {
        Prompt::Tokens(ids) => ids,
        _ => unreachable!("every prompt here is token ids"),
    }
}

/// Cores that take so long for a layer of phase 1.
#[derive(Debug)]
struct TakesTime(Duration);

impl Cores for TakesTime {
    fn begin(&self, work: ComputeKind) {
        if work == ComputeKind::Encoding {
            machine::block_on(tokio::time::sleep(self.0));
        }
    }

    fn end(&self, _: ComputeKind) {}

    fn threads(&self) -> usize {
        1
    }
}
