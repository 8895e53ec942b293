//! Steps of several jobs together: what a row is does not depend on its company, and what ends one job ends no other.

use std::sync::Arc;

use asterism_kernels::Cpu;
use asterism_kernels::prelude::*;
use asterism_models::{
    Answers, ContextAttention, Decoder, EncodedShard, Generator, LayerQueries, LocalContext, ModelError, PartAsk,
    PartialRows, ShardPartial, StepError, StepPart, encode_plan, step,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{all_decoders, bits, decoders, packed, plan, star};

/// A job of a batch: its own context, question and answer.
struct Job {
    shards: Arc<Vec<EncodedShard<Cpu>>>,
    generator: Generator<Cpu>,
    /// Tokens that it still goes through, whatever comes of them.
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl Job {
    fn new(decoder: &Decoder<Cpu>, seed: u32) -> Self {
        let context: Vec<u32> = (0..40 + seed * 23).map(|i| (i * 37 + seed) % 512).collect();
        let plan = plan(decoder, &star(32, 16), &context, 4);
        let shards = Arc::new(encode_plan(decoder, &plan, &context, None, &mut |_, _| true).unwrap());
        let ids = (0..9).map(|i| (i * 101 + seed * 7) % 512).collect();
        Self { shards, generator: Generator::of(&plan), ids, logits: Vec::new() }
    }

    /// `rows` at a time, alone.
    fn alone(mut self, decoder: &Decoder<Cpu>, rows: usize) -> Vec<f32> {
        let mut host = LocalContext::new(decoder.backend(), &self.shards);
        let steps = self.ids.chunks(rows).map(|ids| self.generator.step(decoder, ids, &mut host).unwrap());
        steps.flat_map(|x| decoder.all_logits(&x).unwrap()).collect()
    }

    /// Alone, with guesses of what comes behind each token: `dice` say how many of them are right, and how many wrong ones follow.
    fn speculating(mut self, decoder: &Decoder<Cpu>, mut dice: impl Iterator<Item = u32>) -> Vec<f32> {
        let mut host = LocalContext::new(decoder.backend(), &self.shards);
        while !self.ids.is_empty() {
            let [right, wrong] = [(); 2].map(|()| dice.next().unwrap() as usize % 4);
            let right = (1 + right).min(self.ids.len());
            let ids: Vec<u32> = self.ids.drain(..right).chain((0..wrong).map(|at| 7 * at as u32)).collect();
            let x = self.generator.step(decoder, &ids, &mut host).unwrap();
            let rows = decoder.backend().rows(&x, 0, right).unwrap();
            self.logits.extend(decoder.all_logits(&rows).unwrap());
            self.generator.retract(decoder.backend(), wrong).unwrap();
        }
        self.logits
    }
}

/// Goes through what is left of some jobs, in steps of the rows that `choose` says. Parts that `stuck` names by layer leave.
/// Where `exports`, every second answer stays on its device.
fn together(
    (decoder, exports): (&Decoder<Cpu>, bool),
    jobs: &mut [Job],
    choose: &mut dyn FnMut(usize, usize) -> usize,
    stuck: &mut dyn FnMut(usize, &PartAsk) -> bool,
) {
    while jobs.iter().any(|job| !job.ids.is_empty()) {
        let chosen: Vec<usize> =
            jobs.iter().enumerate().map(|(at, job)| choose(at, job.ids.len()).min(job.ids.len())).collect();
        let contexts: Vec<Arc<Vec<EncodedShard<Cpu>>>> =
            jobs.iter().zip(&chosen).filter(|(_, rows)| **rows > 0).map(|(job, _)| job.shards.clone()).collect();
        let (mut parts, mut of) = (Vec::new(), Vec::new());
        for (at, (job, rows)) in jobs.iter_mut().zip(&chosen).enumerate().filter(|(_, (_, rows))| **rows > 0) {
            parts.push(StepPart { generator: &mut job.generator, ids: &job.ids[..*rows] });
            of.push((at, *rows));
        }
        let local =
            LocalContext::of(decoder.backend(), contexts.iter().map(|shards| shards.iter().collect()).collect());
        let mut context = Leaving { context: local, decoder, exports, stuck };
        let ends = step(decoder, &mut parts, &mut context).unwrap();
        for ((at, rows), end) in of.into_iter().zip(ends) {
            if let Ok(x) = end {
                jobs[at].logits.extend(decoder.all_logits(&x).unwrap());
                jobs[at].ids.drain(..rows);
            }
        }
    }
}

struct Leaving<'a> {
    context: LocalContext<'a, Cpu>,
    decoder: &'a Decoder<Cpu>,
    exports: bool,
    stuck: &'a mut dyn FnMut(usize, &PartAsk) -> bool,
}

impl ContextAttention<Cpu> for Leaving<'_> {
    fn ask(&mut self, queries: LayerQueries<'_, Cpu>, asks: &[PartAsk]) -> Result<Answers<'_, Cpu>, ModelError> {
        let layer = queries.layer;
        let mut answers = packed(self.decoder.backend(), &mut self.context, queries, asks);
        if self.exports {
            answers.iter_mut().flatten().flatten().step_by(2).try_for_each(|partial| export(self.decoder, partial))?;
        }
        let leave = |(ask, answer)| if (self.stuck)(layer, ask) { Err(StepError::Later) } else { answer };
        let answers = asks.iter().zip(answers).map(leave).collect();
        Ok(Answers::Coming { on_devices: self.exports, collect: Box::new(|| Ok(answers)) })
    }
}

/// Has the rows of a partial lie on a device, behind others.
fn export(decoder: &Decoder<Cpu>, partial: &mut ShardPartial<'_, Cpu>) -> Result<(), ModelError> {
    let PartialRows::Host(rows) = &partial.rows else { return Ok(()) };
    let (backend, row) = (decoder.backend(), decoder.config().heads.packed_row());
    let (values, rows) = ([&vec![7.0; row], rows.values()].concat(), rows.values().len() / row);
    let exported = backend.export(vec![backend.upload(&[1 + rows, row], &values)?])?;
    partial.rows = PartialRows::Exported(Arc::new(exported), 1..1 + rows);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Jobs join and leave, questions come in pieces, hosts are lost in the middle: every row has the bits that it has alone.
    #[test]
    fn the_company_of_a_row_changes_no_bit(seeds in vec(any::<u32>(), 64), exports: bool) {
        for decoder in all_decoders() {
            let alone: Vec<Vec<u32>> = (0..4).map(|job| bits(&Job::new(decoder, job).alone(decoder, 9))).collect();
            let mut jobs: Vec<Job> = (0..4).map(|job| Job::new(decoder, job)).collect();
            let (mut dice, mut losses) = (seeds.iter().cycle(), seeds.iter().rev().cycle());
            let mut again = [0; 4];
            let mut left = [9; 4];
            let mut choose = |job: usize, ids: usize| {
                // A step that was left is taken again as it was.
                if left[job] != ids || again[job] == 0 {
                    (left[job], again[job]) = (ids, *dice.next().unwrap() as usize % 5);
                }
                again[job]
            };
            let mut stuck = |_: usize, _: &PartAsk| losses.next().unwrap() % 7 == 0;
            together((decoder, exports), &mut jobs, &mut choose, &mut stuck);
            let batched: Vec<Vec<u32>> = jobs.iter().map(|job| bits(&job.logits)).collect();
            prop_assert_eq!(batched, alone);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Rows of guesses, right and wrong ones, change no bit of the rows of an answer.
    #[test]
    fn guesses_change_no_bit(dice in vec(any::<u32>(), 32), seed in 0..4_u32) {
        for decoder in all_decoders() {
            let one_by_one = bits(&Job::new(decoder, seed).alone(decoder, 1));
            let guessed = Job::new(decoder, seed).speculating(decoder, dice.iter().copied().cycle());
            prop_assert_eq!(bits(&guessed), one_by_one);
        }
    }
}

/// A first step that was cut short, at whichever layer, is taken again where its whole context is on the device, which lays it out.
#[test]
fn a_first_step_that_was_cut_short_changes_no_bit_of_the_next() {
    for decoder in all_decoders() {
        let alone = bits(&Job::new(decoder, 1).alone(decoder, 9));
        for cut in 0..decoder.config().layers {
            let mut job = Job::new(decoder, 1);
            let shards = job.shards.clone();
            let context = LocalContext::new(decoder.backend(), &shards);
            let mut stuck = |layer: usize, _: &PartAsk| layer == cut;
            let mut context = Leaving { context, decoder, exports: false, stuck: &mut stuck };
            let mut parts = [StepPart { generator: &mut job.generator, ids: &job.ids }];
            let ends = step(decoder, &mut parts, &mut context).unwrap();
            assert!(matches!(&ends[0], Err(StepError::Later)), "layer {cut}");
            assert_eq!(bits(&job.alone(decoder, 9)), alone, "layer {cut}");
        }
    }
}

/// Whichever layer it is that lacks a key, of a step that is laid out or not.
#[test]
fn a_shard_that_lacks_a_key_ends_its_own_job_only() {
    for decoder in all_decoders() {
        let (backend, layers) = (decoder.backend(), decoder.config().layers);
        let alone = bits(&Job::new(decoder, 1).alone(decoder, 9));
        for layer in 0..layers {
            let (mut good, mut bad) = (Job::new(decoder, 1), Job::new(decoder, 2));
            let (good_shards, mut bad_shards) = (good.shards.clone(), bad.shards.to_vec());
            let kv = &mut bad_shards[0].layers[layer];
            let keys = backend.kv_len(kv);
            backend.kv_truncate(kv, keys - 1).unwrap();
            let contexts = vec![good_shards.iter().collect(), bad_shards.iter().collect()];
            let mut parts = [
                StepPart { generator: &mut good.generator, ids: &good.ids },
                StepPart { generator: &mut bad.generator, ids: &bad.ids },
            ];
            let ends = step(decoder, &mut parts, &mut LocalContext::of(backend, contexts)).unwrap();
            let lacks =
                matches!(&ends[1], Err(StepError::Failed(ModelError::KeyCount { layer: at, .. })) if *at == layer);
            assert!(lacks, "layer {layer}");
            assert_eq!(bits(&decoder.all_logits(ends[0].as_ref().ok().unwrap()).unwrap()), alone, "layer {layer}");
        }
    }
}

#[test]
fn one_bad_token_ends_its_own_job_only() {
    let [decoder, _] = decoders();
    let (mut good, mut bad) = (Job::new(decoder, 1), Job::new(decoder, 2));
    let (good_shards, bad_shards) = (good.shards.clone(), bad.shards.clone());
    let mut context =
        LocalContext::of(decoder.backend(), vec![good_shards.iter().collect(), bad_shards.iter().collect()]);
    let mut parts = [
        StepPart { generator: &mut bad.generator, ids: &[1, 1 << 30] },
        StepPart { generator: &mut good.generator, ids: &good.ids },
    ];
    parts.reverse();
    let ends = step(decoder, &mut parts, &mut context).unwrap();
    assert!(matches!(&ends[1], Err(StepError::Failed(ModelError::TokenId { .. }))));
    let logits = decoder.all_logits(ends[0].as_ref().ok().unwrap()).unwrap();
    assert_eq!(bits(&logits), bits(&Job::new(decoder, 1).alone(decoder, 9)));
}
