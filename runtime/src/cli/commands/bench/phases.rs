//! `bench prefill|decode`: methods and lengths, each timed with the model on this machine as hosts would run it.

use std::{fs, path::Path, sync::Arc, time::Instant};

use asterism_kernels::Backend;
use asterism_models::{
    Decoder, DecoderParts, Generator, HeadsFiles, LocalContext, ModelConfig, ModelError, RetainingHeads, Sampler,
    Sampling, TeamContext, TensorParallel, encode_plan, encode_together, synthetic_prompt,
};
use asterism_plan::{Cost, Method, MethodConfig, ModelShape, Plan, PlanRequest};
use serde::Serialize;

use super::{
    BenchArgs, BenchTarget,
    ceiling::{self, Ceiling},
    machine::{BenchBackend, RepetitionSeconds},
    report::{BenchReport, Case, cell, peak, percent, tera},
};
use crate::{
    cluster::{
        file::{ComputeType, Device, Devices},
        size::{count, grouped},
    },
    error::{CliError, Exit},
    globals::Globals,
};

/// What of a job is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The prompt up to the first token.
    Prefill,
    /// So many tokens after the first.
    Decode(usize),
}

/// What was timed, whatever the case.
#[derive(Serialize)]
pub struct PhaseSetup {
    phase: &'static str,
    model: String,
    device: String,
    dtype: &'static str,
    kernels: &'static str,
    threads: usize,
    hosts: usize,
}

/// One case.
#[derive(Serialize)]
pub struct PhaseCase {
    method: String,
    prompt_tokens: usize,
    timed_tokens: usize,
}

/// What came out.
#[derive(Serialize)]
pub struct PhaseTiming {
    #[serde(flatten)]
    seconds: RepetitionSeconds,
    /// At the median.
    tokens_per_s: f64,
    ms_per_token: f64,
    #[serde(flatten)]
    work: PlannedWork,
    /// Operations, or else bytes, a second at the median.
    flops_per_s: Option<f64>,
    bytes_per_s: Option<f64>,
    /// That rate in parts of what all devices give at most.
    share_of_ceiling: Option<f64>,
    peak_memory_bytes: Option<u64>,
    /// Whose memory that is: of the device with the most, or of the process.
    peak_memory_of: &'static str,
    /// Greedy tokens, for comparison with a peer's.
    tokens: Vec<u32>,
}

/// What is computed, by the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct PlannedWork {
    /// Operations up to the first token; none where the method chooses keys as it runs.
    flops: Option<u64>,
    /// Bytes of weights and keys that a token after the first reads.
    bytes_per_token: Option<u64>,
}

impl PlannedWork {
    fn of(phase: Phase, plan: &Plan, (shape, weights): (&ModelShape, u64)) -> Self {
        let cost = Cost::of(plan, shape);
        let sum = |count: fn(&asterism_plan::HostCost) -> u64| cost.hosts.iter().map(count).sum::<u64>();
        match phase {
            Phase::Prefill if cost.at_most => Self::default(),
            Phase::Prefill => {
                let pairs = sum(|host| host.kept_tokens) + 1;
                let last = cost.step_flops_per_token - shape.linear_flops_per_token() + shape.flops(1, pairs);
                Self { flops: Some(sum(|host| host.flops) + last), bytes_per_token: None }
            }
            Phase::Decode(tokens) => {
                // The question's token and, at the median, half of those generated.
                let own = (1 + tokens as u64 / 2) * shape.kv_bytes_per_token();
                Self { flops: None, bytes_per_token: Some(weights + sum(|host| host.kv_bytes) + own) }
            }
        }
    }
}

/// Times every case and prints.
pub fn run<B: BenchBackend>(
    globals: &Globals,
    args: &BenchArgs,
    phase: Phase,
    (given, open): (BenchTarget<'_>, impl Fn(Device, &ModelConfig) -> Result<B, ModelError>),
) -> Result<Exit, CliError> {
    if phase == Phase::Decode(0) {
        return Err(CliError::usage("--max-tokens 0 leaves nothing to time").hint("--max-tokens 32"));
    }
    let methods = args.method.resolve(given.cluster)?;
    let bench = Bench::load(args, given, open)?;
    let prompts = bench.prompts(args)?;
    let setup = bench.setup(phase, args);
    let computing = match bench.given.devices[0] {
        Device::Cpu => count(setup.threads, "thread"),
        Device::Cuda(_) => setup.device.clone(),
    };
    let names = methods.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let PhaseSetup { phase: name, model, hosts, .. } = &setup;
    globals.note(format_args!("{name} of {model} with {names}, {}, {computing}", count(*hosts, "host")));
    let several = methods.len() * prompts.len();
    let ceiling = ceiling::measure(globals, bench.decoders[0].backend());
    let mut report = BenchReport::new(globals, setup, ceiling);
    let cases = methods.iter().flat_map(|method| prompts.iter().map(move |ids| (method, ids)));
    for (at, ((name, method), ids)) in cases.enumerate() {
        if several > 1 {
            globals.note(format_args!("{}/{several} {name}, {}", at + 1, count(ids.len(), "token")));
        }
        let outcome = bench.case(phase, (method, ids), ceiling);
        // What it left queued or kept is not the next one's.
        bench.decoders.iter().try_for_each(|decoder| decoder.backend().finish()).map_err(CliError::usage)?;
        if let (1, Err(error)) = (several, &outcome) {
            return Err(error.clone());
        }
        let timed_tokens = match phase {
            Phase::Prefill => ids.len(),
            Phase::Decode(tokens) => tokens,
        };
        report.add(PhaseCase { method: name.clone(), prompt_tokens: ids.len(), timed_tokens }, outcome)?;
    }
    show(phase, report)
}

fn show(phase: Phase, report: BenchReport<'_, PhaseSetup, PhaseCase, PhaseTiming>) -> Result<Exit, CliError> {
    let rate = if phase == Phase::Prefill { "TFLOP/S" } else { "TB/S" };
    let heads = [
        "PHASE", "METHOD", "DTYPE", "THREADS", "PROMPT", "TIMED", "BEST S", "MEDIAN S", "TOKENS/S", "MS/TOKEN", rate,
        "CEILING", "SHARE", "PEAK", "STATE",
    ];
    report.finish(heads, |report, case: &Case<PhaseCase, PhaseTiming>| {
        let (setup, timed) = (&report.setup, case.timed.as_ref());
        let ceiling = report.ceiling.map(|ceiling| match phase {
            Phase::Prefill => ceiling.product_flops_per_s,
            Phase::Decode(_) => ceiling.copy_bytes_per_s,
        });
        [
            setup.phase.into(),
            case.what.method.clone(),
            setup.dtype.into(),
            setup.threads.to_string(),
            grouped(case.what.prompt_tokens),
            grouped(case.what.timed_tokens),
            cell(timed, |timed| format!("{:.3}", timed.seconds.best_s)),
            cell(timed, |timed| format!("{:.3}", timed.seconds.median_s)),
            cell(timed, |timed| format!("{:.1}", timed.tokens_per_s)),
            cell(timed, |timed| format!("{:.3}", timed.ms_per_token)),
            cell(timed.and_then(|timed| timed.flops_per_s.or(timed.bytes_per_s)), tera),
            cell(ceiling, tera),
            cell(timed.and_then(|timed| timed.share_of_ceiling), percent),
            cell(timed.and_then(|timed| timed.peak_memory_bytes), peak),
            case.state(),
        ]
    })
}

struct Bench<'a, B: Backend> {
    /// One for each device; steps are taken on the first.
    decoders: Vec<Arc<Decoder<B>>>,
    /// Where there are several.
    linear: Option<TensorParallel<B>>,
    model: String,
    repeat: u16,
    given: BenchTarget<'a>,
    heads: HeadsFiles,
}

struct BenchRound {
    prefill_s: f64,
    decode_s: f64,
    tokens: Vec<u32>,
}

impl<'a, B: BenchBackend> Bench<'a, B> {
    fn load(
        args: &BenchArgs,
        given: BenchTarget<'a>,
        open: impl Fn(Device, &ModelConfig) -> Result<B, ModelError>,
    ) -> Result<Self, CliError> {
        let unusable = |error: ModelError| CliError::usage(error).hint("`asterism bench prefill --help`");
        let checkpoint = given.checkpoint(args.machine.model.as_deref()).map_err(unusable)?;
        let load = |(at, device): (usize, &Device)| {
            let parts = if at == 0 { DecoderParts::All } else { DecoderParts::Context };
            Decoder::load(Arc::new(open(*device, checkpoint.config())?), &checkpoint, parts).map(Arc::new)
        };
        let decoders: Vec<_> =
            given.devices.iter().enumerate().map(load).collect::<Result<_, _>>().map_err(unusable)?;
        let linear = (decoders.len() > 1).then(|| TensorParallel::new(decoders.clone()));
        Ok(Self {
            model: checkpoint.name().to_owned(),
            decoders,
            linear: linear.transpose().map_err(unusable)?,
            repeat: args.machine.repeat,
            heads: given.cluster.map(|cluster| cluster.model.heads.clone()).unwrap_or_default(),
            given,
        })
    }

    fn setup(&self, phase: Phase, args: &BenchArgs) -> PhaseSetup {
        let BenchTarget { dtype, threads, hosts, devices, shared, .. } = &self.given;
        let named = devices.iter().map(Device::to_string).collect::<Vec<_>>().join(",");
        PhaseSetup {
            phase: if phase == Phase::Prefill { "prefill" } else { "decode" },
            model: self.model.clone(),
            device: shared.as_ref().map_or(named, Devices::to_string),
            dtype: crate::processes::checkpoint::dtype(*dtype).name(),
            kernels: args.machine.kernels.name(),
            threads: *threads,
            hosts: *hosts,
        }
    }

    /// The prompts that are asked for; what the model does not take is refused before any is timed.
    fn prompts(&self, args: &BenchArgs) -> Result<Vec<Vec<u32>>, CliError> {
        let config = self.decoders[0].config();
        let checked = |tokens: usize| match tokens {
            0 | 1 => Err(CliError::usage("a prompt needs at least 2 tokens").hint("--tokens 8k")),
            tokens if tokens > config.max_position => {
                let (got, most) = (grouped(tokens), grouped(config.max_position));
                let refused = format!("the prompt has {got} tokens, and {} takes at most {most}", self.model);
                Err(CliError::usage(refused).hint("lower --tokens, or name another --model"))
            }
            _ => Ok(()),
        };
        if let Some(path) = &args.prompt_ids {
            let ids = read_ids(path)?;
            return checked(ids.len()).map(|()| vec![ids]);
        }
        args.tokens.iter().try_for_each(|tokens| checked(tokens.0))?;
        Ok(args.tokens.iter().map(|tokens| synthetic_prompt(tokens.0, config.vocab)).collect())
    }

    fn backend(&self) -> &B {
        self.decoders[0].backend()
    }

    /// The plan of one process that encodes all shards, as hosts of one machine would.
    fn plan(&self, method: &MethodConfig, ids: &[u32]) -> Result<Plan, ModelError> {
        let (context, query) = ids.split_at(ids.len() - 1);
        let shape = self.shape();
        let request =
            PlanRequest { context, query, hosts: self.given.hosts, one_device: true, shape: &shape, speeds: None };
        let plan = method.review(&request).and_then(|()| method.plan(&request));
        plan.map_err(|error| ModelError::Unsupported { what: error.to_string() })
    }

    fn shape(&self) -> ModelShape {
        self.decoders[0].config().shape(self.backend().kv_type())
    }

    /// Bytes of the weights that a step reads: all but the table, of which it reads a row.
    fn step_weights(&self) -> u64 {
        let (config, dtype) = (self.decoders[0].config(), self.backend().dtype());
        let table = config.vocab * config.hidden * dtype.size();
        config.weight_bytes(DecoderParts::All, (dtype, self.given.linear() == Some(ComputeType::Fp8))) - table as u64
    }

    /// Rounds of one case. What is timed must be right first: every round makes the same tokens.
    fn case(
        &self,
        phase: Phase,
        (method, ids): (&MethodConfig, &[u32]),
        ceiling: Option<Ceiling>,
    ) -> Result<PhaseTiming, CliError> {
        let plan = self.plan(method, ids).map_err(CliError::usage)?;
        let generated = if let Phase::Decode(tokens) = phase { tokens + 1 } else { 1 };
        self.decoders.iter().for_each(|decoder| decoder.backend().forget_peak());
        let (mut reference, mut seconds) = (None, Vec::new());
        for round in 0..=self.repeat {
            let run = self.round(&plan, ids, generated).map_err(CliError::usage)?;
            match &reference {
                None => reference = Some(run.tokens),
                Some(tokens) if *tokens != run.tokens => {
                    let differs = format!("round {round} made other tokens than the first");
                    return Err(CliError::new(Exit::JobFailed, differs)
                        .hint("the kernels of this machine are not deterministic; try --kernels portable"));
                }
                Some(_) => seconds.push(if phase == Phase::Prefill { run.prefill_s } else { run.decode_s }),
            }
        }
        let work = PlannedWork::of(phase, &plan, (&self.shape(), self.step_weights()));
        let timed_tokens = if phase == Phase::Prefill { ids.len() } else { generated - 1 };
        Ok(self.timed((RepetitionSeconds::of(seconds), timed_tokens), (work, ceiling), reference.unwrap_or_default()))
    }

    fn timed(
        &self,
        (seconds, timed_tokens): (RepetitionSeconds, usize),
        (work, ceiling): (PlannedWork, Option<Ceiling>),
        tokens: Vec<u32>,
    ) -> PhaseTiming {
        let (median_s, devices) = (seconds.median_s, self.decoders.len() as f64);
        let flops_per_s = work.flops.map(|flops| flops as f64 / median_s);
        let bytes_per_s = work.bytes_per_token.map(|bytes| bytes as f64 * timed_tokens as f64 / median_s);
        let share = |ceiling: Ceiling| {
            let of_product = flops_per_s.map(|rate| rate / ceiling.product_flops_per_s);
            Some(of_product.or(bytes_per_s.map(|rate| rate / ceiling.copy_bytes_per_s))? / devices)
        };
        PhaseTiming {
            tokens_per_s: timed_tokens as f64 / median_s,
            ms_per_token: 1e3 * median_s / timed_tokens as f64,
            seconds,
            work,
            flops_per_s,
            bytes_per_s,
            share_of_ceiling: ceiling.and_then(share),
            peak_memory_bytes: self.decoders.iter().filter_map(|decoder| decoder.backend().peak_bytes()).max(),
            peak_memory_of: B::MEMORY,
            tokens,
        }
    }

    /// The prompt but for its last token as context, the last as query, then `generated` greedy tokens.
    fn round(&self, plan: &Plan, ids: &[u32], generated: usize) -> Result<BenchRound, ModelError> {
        let (context, query) = ids.split_at(ids.len() - 1);
        let decoder = &self.decoders[0];
        let load = |name: &str| {
            let path = self.heads.get(name).ok_or_else(|| ModelError::NoRetainingHeads { name: name.into() })?;
            RetainingHeads::load(decoder.backend(), path, decoder.config())
        };
        let heads = plan.exchange.retaining_heads().map(load).transpose()?;
        let started = Instant::now();
        let shards = match &self.decoders[..] {
            [one] => vec![encode_plan(one, plan, context, heads.as_ref(), &mut |_, _| true)?],
            _ if heads.is_some() => {
                let what = "retaining heads on several devices of one process".into();
                return Err(ModelError::Unsupported { what });
            }
            several => encode_together(&several.iter().map(|decoder| &**decoder).collect::<Vec<_>>(), plan, context)?,
        };
        let held =
            self.decoders.iter().zip(&shards).map(|(decoder, shards)| LocalContext::new(decoder.backend(), shards));
        let mut held = TeamContext::new(held.collect());
        if let Some(linear) = &self.linear {
            held = held.sharing(linear);
        }
        let mut generator = Generator::of(plan);
        let mut sampler = Sampler::new(Sampling::default());
        let mut tokens = vec![sampler.next(&decoder.logits(&generator.step(decoder, query, &mut held)?)?)];
        let prefill_s = started.elapsed().as_secs_f64();
        let started = Instant::now();
        while tokens.len() < generated {
            let last = [tokens[tokens.len() - 1]];
            tokens.push(sampler.next(&decoder.logits(&generator.step(decoder, &last, &mut held)?)?));
        }
        Ok(BenchRound { prefill_s, decode_s: started.elapsed().as_secs_f64(), tokens })
    }
}

fn read_ids(path: &Path) -> Result<Vec<u32>, CliError> {
    let refused = |cause: String| {
        CliError::usage(format!("{}: {cause}", path.display())).hint("a JSON array of token ids, such as [1, 523, 88]")
    };
    let bytes = fs::read(path).map_err(|error| refused(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(method: &str, phase: Phase) -> PlannedWork {
        let context = [1; 1000];
        let request = PlanRequest {
            context: &context,
            query: &[1],
            hosts: 2,
            one_device: true,
            shape: &ModelShape::TINY,
            speeds: None,
        };
        let method: MethodConfig = crate::cli::method_spec::parse(method).unwrap();
        PlannedWork::of(phase, &method.plan(&request).unwrap(), (&ModelShape::TINY, 7))
    }

    #[test]
    fn operations_are_those_of_the_plan_and_of_the_last_token() {
        let shape = ModelShape::TINY;
        // Four layers; the last computes queries, keys and values of the context alone.
        let projections = 128 * (8 + 2 * 2) * 16;
        let layer = projections + 128 * 128 + 3 * 128 * 256;
        let pairs = 1000 * 1001 / 2 * 8;
        let context = 1000 * 2 * (3 * layer + projections) + 3 * pairs * 4 * 16;
        let last = 2 * (4 * layer + 128 * 512) + 4 * 1001 * 8 * 4 * 16;
        assert_eq!(work("dense", Phase::Prefill).flops, Some((context + last) as u64));
        assert_eq!(shape.linear_flops_per_token(), (2 * 4 * layer) as u64);
        let blocks = work("star:block_tokens=100:anchor_tokens=16", Phase::Prefill);
        assert!(blocks.flops.is_some() && blocks.flops < work("dense", Phase::Prefill).flops);
        assert_eq!(work("minference", Phase::Prefill), PlannedWork::default());
    }

    #[test]
    fn a_token_reads_the_weights_and_the_keys_once() {
        let keys = 2 * 4 * 2 * 16 * 4;
        let bytes = Some(7 + (1000 + 1 + 5) * keys);
        assert_eq!(work("dense", Phase::Decode(10)), PlannedWork { flops: None, bytes_per_token: bytes });
    }
}
