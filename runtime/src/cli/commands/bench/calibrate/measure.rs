//! How fast this machine is at what a plan's cost counts, measured as a cluster runs it. Writes no file.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use asterism_kernels::prelude::*;
use asterism_kernels::{Cpu, KernelChoice, KvFormat, Mask};
use asterism_models::{Checkpoint, Decoder, DecoderParts, ModelError, encode_plan, synthetic_prompt};
use asterism_plan::{Calibration, Cost, Method, MethodConfig, Plan, PlanRequest};

use super::{
    steps::{self, Known, Steps},
    wire::{self, LinkMeasurement},
};
use crate::{
    error::CliError,
    globals::Globals,
    processes::{calibration::CalibrationSetup, checkpoint},
};

/// Rounds of each measurement. The best counts: whatever else the machine does only adds time.
const ROUNDS: usize = 5;
/// Seconds that a host computes in a round.
const ROUND: Duration = Duration::from_millis(600);
/// A measured call is made longer until it takes this.
const LONG_ENOUGH: Duration = Duration::from_millis(300);
/// Tokens of a shard too short to compute much: what it takes is overhead.
const FEW_TOKENS: usize = 16;
const MOST_MEASURED_TOKENS: usize = 8192;

/// Measures, and says what comes next.
pub fn measure(globals: &Globals, setup: &CalibrationSetup, checkpoint: &Checkpoint) -> Result<Calibration, CliError> {
    let progress = |next| globals.note(next);
    progress("1/4 loading the model once a context host");
    let load = |_| -> Result<Decoder<Cpu>, ModelError> {
        let backend = checkpoint::cpu((setup.dtype, KvFormat::Computed), setup.threads_alone, KernelChoice::Auto)?;
        Decoder::load(Arc::new(backend), checkpoint, DecoderParts::Context)
    };
    let contexts: Vec<_> = (0..setup.context_hosts).map(load).collect::<Result<_, _>>().map_err(unusable)?;
    progress("2/4 phase 1, one host alone and all of this machine at once");
    let Phase1Speeds { linear_s_per_flop, attention_s_per_pair, layer_s, full_speed_hosts, full_speed_answers } =
        phase1(&contexts, [setup.threads_alone, setup.threads]).map_err(unusable)?;
    drop(contexts);
    progress("3/4 transport");
    let config = checkpoint.config();
    let [question, answer] =
        [config.heads.query * config.heads.dim * 4, config.heads.query * (config.heads.dim + 1) * 4];
    let LinkMeasurement { round_trip_s, bytes_per_s: wire_bytes_per_s } =
        wire::measure(setup.context_hosts, [question, answer])?;
    progress("4/4 phase 2, jobs of a cluster of these hosts");
    let row_bytes = config.layers * setup.context_hosts * (question + answer);
    let known = Known {
        trips_s: config.layers as f64 * round_trip_s,
        row_s: row_bytes as f64 / wire_bytes_per_s,
        crowd: (setup.context_hosts as f64 / full_speed_answers).max(1.0),
    };
    let Steps { start_s, step, key } = steps::measure(globals, setup, (config.vocab, config.max_position), known)?;
    Ok(Calibration {
        linear_s_per_flop,
        attention_s_per_pair,
        layer_s,
        full_speed_hosts,
        full_speed_answers,
        start_s,
        step,
        key,
        wire_bytes_per_s,
        round_trip_s,
    })
}

fn unusable(error: ModelError) -> CliError {
    CliError::usage(error).hint("correct [model] in the cluster file")
}

struct Phase1Speeds {
    linear_s_per_flop: f64,
    attention_s_per_pair: f64,
    layer_s: f64,
    full_speed_hosts: f64,
    full_speed_answers: f64,
}

/// With threads of a host that computes alone, and of each when all do.
fn phase1(contexts: &[Decoder<Cpu>], [most, share]: [usize; 2]) -> Result<Phase1Speeds, ModelError> {
    let limit = |threads| contexts.iter().for_each(|host| host.backend().thread_limit().set(threads));
    let alone = &contexts[0];
    let shape = alone.config().shape(alone.backend().kv_type());
    let tokens = long_enough(alone, |tokens| seconds(|| Shard::of(alone, tokens)?.encode(alone)))?;
    let rows = long_enough(alone, |rows| {
        let layer = Layer::of(alone, rows)?;
        seconds(|| layer.attend(alone))
    })?;
    let (short, long) = (Shard::of(alone, FEW_TOKENS)?, Shard::of(alone, tokens)?);
    let layer = Layer::of(alone, rows)?;
    let [mut shorts, mut attentions, mut ones, mut shares, mut all] = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        shorts.push(seconds(|| short.encode(alone))?);
        attentions.push(seconds(|| layer.attend(alone))?);
        ones.push(1.0 / rate(&contexts[..1], &long)?);
        limit(share);
        shares.push(1.0 / rate(&contexts[..1], &long)?);
        all.push(1.0 / rate(contexts, &long)?);
        limit(most);
    }
    let (one, all) = (best(ones), best(all));
    let attention_s_per_pair = best(attentions) / (shape.query_heads * rows * (rows + 1) / 2) as f64;
    // What a shard takes but for its attention: overhead, and linear layers in proportion to its tokens.
    let [few, many] = [(&short, best(shorts)), (&long, one)].map(|(shard, taken)| {
        let host = &Cost::of(&shard.plan, &shape).hosts[0];
        let pairs = host.attention_pairs as f64;
        (host.flops as f64 - pairs * shape.attention_flops_per_pair() as f64, taken - pairs * attention_s_per_pair)
    });
    // Times that contradict each other on a busy machine must not make anything free.
    let slope = (many.1 - few.1) / (many.0 - few.0);
    let linear_s_per_flop = if slope > 0.0 { slope } else { many.1.max(f64::MIN_POSITIVE) / many.0 };
    let layer_s = ((few.1 - few.0 * linear_s_per_flop) / shape.layers as f64).max(0.0);
    let [full_speed_hosts, full_speed_answers] =
        [one, best(shares)].map(|alone| (alone / all).clamp(1.0, contexts.len() as f64));
    Ok(Phase1Speeds { linear_s_per_flop, attention_s_per_pair, layer_s, full_speed_hosts, full_speed_answers })
}

/// Shards that these hosts encode in a second when all do at once.
fn rate(hosts: &[Decoder<Cpu>], shard: &Shard) -> Result<f64, ModelError> {
    let start = &Barrier::new(hosts.len());
    let work = |host| -> Result<f64, ModelError> {
        start.wait();
        let (started, mut done) = (Instant::now(), 0.0);
        while done == 0.0 || started.elapsed() < ROUND {
            shard.encode(host)?;
            done += 1.0;
        }
        Ok(done / started.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let working: Vec<_> = hosts.iter().map(|host| scope.spawn(move || work(host))).collect();
        let rates = working.into_iter().map(|host| host.join().expect("encoding does not panic"));
        rates.sum()
    })
}

/// One shard without prefix.
struct Shard {
    context: Vec<u32>,
    plan: Plan,
}

impl Shard {
    fn of(decoder: &Decoder<Cpu>, tokens: usize) -> Result<Self, ModelError> {
        let shape = decoder.config().shape(decoder.backend().kv_type());
        let context = synthetic_prompt(tokens, decoder.config().vocab);
        let request =
            PlanRequest { context: &context, query: &[0], hosts: 1, one_device: true, shape: &shape, speeds: None };
        let dense: MethodConfig = "dense".parse().expect("a method of this name");
        let plan = dense.plan(&request).map_err(|error| ModelError::Unsupported { what: error.to_string() })?;
        Ok(Self { context, plan })
    }

    fn encode(&self, decoder: &Decoder<Cpu>) -> Result<(), ModelError> {
        encode_plan(decoder, &self.plan, &self.context, None, &mut |_: usize, _: usize| true).map(drop)
    }
}

/// Queries and keys of one layer.
struct Layer {
    q: <Cpu as TensorOps>::Tensor,
    kv: <Cpu as KvOps>::Kv,
}

impl Layer {
    fn of(decoder: &Decoder<Cpu>, rows: usize) -> Result<Self, ModelError> {
        let ids = synthetic_prompt(rows, decoder.config().vocab);
        let positions: Vec<u32> = (0..rows as u32).collect();
        let projected = decoder.rotate(0, &decoder.project(0, &decoder.embed(&ids)?)?, &positions, 0)?;
        Ok(Self { kv: decoder.backend().kv(&projected.k, &projected.v)?, q: projected.q })
    }

    /// Its queries over its keys.
    fn attend(&self, decoder: &Decoder<Cpu>) -> Result<(), ModelError> {
        decoder.backend().attention(&self.q, &self.kv, Mask::Causal)?;
        Ok(())
    }
}

/// Tokens for which `run` takes long enough to be timed, found by doubling.
fn long_enough(
    decoder: &Decoder<Cpu>,
    mut run: impl FnMut(usize) -> Result<f64, ModelError>,
) -> Result<usize, ModelError> {
    let most = MOST_MEASURED_TOKENS.min(decoder.config().max_position);
    let mut tokens = 8 * FEW_TOKENS;
    while tokens * 2 <= most && run(tokens)? < LONG_ENOUGH.as_secs_f64() {
        tokens *= 2;
    }
    Ok(tokens)
}

fn seconds(run: impl FnOnce() -> Result<(), ModelError>) -> Result<f64, ModelError> {
    let started = Instant::now();
    run()?;
    Ok(started.elapsed().as_secs_f64())
}

fn best(seconds: Vec<f64>) -> f64 {
    seconds.into_iter().fold(f64::INFINITY, f64::min)
}
