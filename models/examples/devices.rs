//! Times of both phases on GPUs of one process, a model of random weights: what `bench` does not ask for, such as several rows and
//! several jobs in a step.
//!
//!     cargo run --release -p asterism-models --features cuda --example devices -- OUT.jsonl llama-3.1-8b[+fp8][+fa8][+q8][,MODEL] 0[,1] CASE...
//!
//! `+fp8` computes linear layers in 8-bit floats, `+fa8` attention of many rows, `+q8` keeps keys and values in 8 bits, `+q4_k`, `+int4` or another format of blocks has
//! the weights stored in it. Of several models, such as
//! `llama-3.1-8b,llama-3.1-8b+q8`, one is loaded after the other and asked all cases. `0,1` are GPUs that each hold the model; `0+1` are
//! GPUs that share it, as those of one host, which keep keys as they are computed.
//!
//! A case is `prefill/METHOD/TOKENS`, `decode/METHOD/TOKENS` (one row, then 16 rows in a step, and after how long the host had
//! queued all of it but the output head), `shared/METHOD/TOKENS` (the same, linear layers shared by the GPUs),
//! `jobs/COUNT/TOKENS` (a row of each, the next token chosen on the device), `drawn/COUNT/TOKENS` (the same, each token drawn),
//! `shaped/COUNT/TOKENS` (drawn of half of the tokens, 200 of them less likely), `guesses/METHOD/TOKENS` (whether rows have the same bits
//! in steps that bring wrong guesses behind them, and what a step takes by its rows) or
//! `company/METHOD/TOKENS`: whether the shards of a plan for twelve hosts have the same bits whoever encodes them. METHOD is a
//! name or JSON, such as `{"pulsar": {"block_tokens": 2048}}`.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use asterism_kernels::{
    Backend, BlockFormat, Cuda, CudaOptions, DType, DeviceGroup, KvFormat, LogitChange, NucleusCut, RowChoice,
    RowShape, RowToken, TokenChoice,
};
use asterism_models::{
    Checkpoint, Decoder, DecoderParts, EncodedShard, Generator, KnownShape, LocalContext, StepPart, TeamContext,
    TensorParallel, Watch, encode_plan, encode_together, step, synthetic_prompt,
};
use asterism_plan::{Method, MethodConfig, Plan, PlanRequest};
use serde_json::{Value, json};

/// Runs of a prefill, and steps of a run.
const RUNS: usize = 4;
const STEPS: usize = 32;
/// Steps that some jobs take alone again.
const ALONE: usize = 6;
/// Rows that are right and wrong guesses behind them, of steps that speculate.
const SPECULATING: [[usize; 2]; 8] = [[1, 3], [2, 0], [1, 15], [4, 4], [1, 0], [16, 0], [7, 9], [3, 1]];
/// Rows of steps of one job that are timed.
const ROWS_TIMED: [usize; 6] = [1, 2, 4, 8, 16, 24];
/// Tokens that are made less likely where rows are changed.
const LESS_LIKELY: usize = 200;
/// Tokens of a question, as the plan is made for it.
const QUERY: usize = 16;

/// How tokens of jobs are chosen.
#[derive(Clone, Copy)]
enum Choosing {
    Likeliest,
    Drawn,
    Shaped,
}

/// Pairs of a row and a key that one GPU attended to.
struct Pairs(u64);

impl Watch for Pairs {
    fn layer(&mut self, _: usize, _: usize) -> bool {
        true
    }

    fn pairs(&mut self, _: usize, pairs: u64) {
        self.0 += pairs;
    }
}

/// Decoders, one for each GPU, or one for GPUs that share the model.
struct Devices<B: Backend>(Vec<Arc<Decoder<B>>>);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [out, models, gpus, cases @ ..] = &arguments[..] else { bail!("OUT.jsonl MODEL GPUS CASE...") };
    let out = std::fs::File::options().create(true).append(true).open(out)?;
    let used = |gpu: &Cuda| -> Result<usize> { Ok(gpu.device().memory().map(|(free, all)| (all - free) >> 30)?) };
    models.split(',').try_for_each(|model| match gpus.contains('+') {
        false => run(&Devices::open(model, gpus)?, (&out, model, gpus), cases, |gpu| Ok(vec![used(gpu)?])),
        true => run(&Devices::shared(model, gpus)?, (&out, model, gpus), cases, |group| {
            group.members().iter().map(|gpu| used(gpu)).collect()
        }),
    })
}

/// Times the cases; `used` says how many GiB are taken on each GPU of a decoder.
fn run<B: Backend>(
    devices: &Devices<B>,
    (mut out, model, gpus): (&std::fs::File, &str, &str),
    cases: &[String],
    used: impl Fn(&B) -> Result<Vec<usize>>,
) -> Result<()> {
    let loaded = used(devices.home().backend())?;
    for case in cases {
        let [what, how, tokens] = case.splitn(3, '/').collect::<Vec<_>>()[..] else { bail!("{case}: WHAT/HOW/TOKENS") };
        let tokens: usize = tokens.parse()?;
        let timed = match what {
            "prefill" => devices.prefill(method(how)?, tokens)?,
            "decode" => devices.decode(method(how)?, tokens, false)?,
            "shared" => devices.decode(method(how)?, tokens, true)?,
            "jobs" => devices.jobs(how.parse()?, tokens, Choosing::Likeliest)?,
            "drawn" => devices.jobs(how.parse()?, tokens, Choosing::Drawn)?,
            "shaped" => devices.jobs(how.parse()?, tokens, Choosing::Shaped)?,
            "guesses" => devices.guesses(method(how)?, tokens)?,
            "company" => devices.company(method(how)?, tokens)?,
            _ => bail!("{case}: prefill, decode, shared, jobs, drawn, shaped, guesses or company"),
        };
        let used = used(devices.home().backend())?;
        let line = json!({
            "case": case, "model": model, "gpus": gpus, "timed": timed, "loaded_gb": loaded, "used_gb": used,
        });
        println!("{line}");
        writeln!(out, "{line}")?;
        devices.0.iter().try_for_each(|decoder| decoder.backend().finish())?;
    }
    Ok(())
}

fn method(text: &str) -> Result<MethodConfig> {
    Ok(if text.starts_with('{') { serde_json::from_str(text)? } else { text.parse()? })
}

/// Thousandths of a second, the smallest and the median of some.
fn spread(mut seconds: Vec<f64>) -> Value {
    seconds.sort_by(f64::total_cmp);
    let milliseconds = |seconds: f64| (1e6 * seconds).round() / 1e3;
    json!({"least_ms": milliseconds(seconds[0]), "median_ms": milliseconds(seconds[seconds.len() / 2])})
}

/// The checkpoint that is called so, and how GPUs compute it.
fn checkpoint(model: &str) -> Result<(Checkpoint, CudaOptions)> {
    let mut options = CudaOptions::plain(0, DType::Bf16);
    let (mut name, mut stored) = (model, None);
    while let Some((before, how)) = name.rsplit_once('+') {
        match how {
            "fp8" => options.eight_bits = true,
            "fa8" => options.float8_attention = true,
            "q8" => options.kept = KvFormat::Q8,
            _ => {
                let format = BlockFormat::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(how));
                stored = Some(format.with_context(|| format!("{model}: +fp8, +fa8, +q8 or +FORMAT"))?);
            }
        }
        name = before;
    }
    let checkpoint = match name {
        "embedded" => Checkpoint::embedded()?,
        name => Checkpoint::random_in(name.parse::<KnownShape>().ok().context("no such model")?, stored)?,
    };
    Ok((checkpoint, options))
}

impl Devices<Cuda> {
    fn open(model: &str, gpus: &str) -> Result<Self> {
        let (checkpoint, options) = checkpoint(model)?;
        let load = |(at, gpu): (usize, &str)| -> Result<Arc<Decoder<Cuda>>> {
            let options = CudaOptions { device: gpu.parse()?, ..options };
            let parts = if at == 0 { DecoderParts::All } else { DecoderParts::Context };
            Ok(Arc::new(Decoder::load(Arc::new(Cuda::new(options)?), &checkpoint, parts)?))
        };
        Ok(Self(gpus.split(',').enumerate().map(load).collect::<Result<_>>()?))
    }
}

impl Devices<DeviceGroup<Cuda>> {
    fn shared(model: &str, gpus: &str) -> Result<Self> {
        let (checkpoint, options) = checkpoint(model)?;
        if options.kept != KvFormat::Computed {
            bail!("{model}: GPUs that share a model keep keys as they are computed");
        }
        let open = |gpu: &str| -> Result<Cuda> { Ok(Cuda::new(CudaOptions { device: gpu.parse()?, ..options })?) };
        let gpus = gpus.split('+').map(open).collect::<Result<Vec<_>>>()?;
        let group = Cuda::group(gpus, checkpoint.config().heads)?;
        Ok(Self(vec![Arc::new(Decoder::load(Arc::new(group), &checkpoint, DecoderParts::All)?)]))
    }
}

impl<B: Backend> Devices<B> {
    fn home(&self) -> &Decoder<B> {
        &self.0[0]
    }

    fn plan(&self, method: &MethodConfig, context: &[u32]) -> Result<Plan> {
        let shape = self.home().config().shape(DType::Bf16);
        let query = &context[..QUERY];
        let hosts = self.0.len();
        Ok(method.plan(&PlanRequest { context, query, hosts, one_device: true, shape: &shape, speeds: None })?)
    }

    fn encode(&self, plan: &Plan, context: &[u32]) -> Result<(Vec<Vec<EncodedShard<B>>>, f64)> {
        self.watched(plan, context, &mut Pairs(0))
    }

    fn watched(&self, plan: &Plan, context: &[u32], watch: &mut dyn Watch) -> Result<(Vec<Vec<EncodedShard<B>>>, f64)> {
        let started = Instant::now();
        let shards = match &self.0[..] {
            [one] => vec![encode_plan(one, plan, context, None, watch)?],
            several => encode_together(&several.iter().map(|decoder| &**decoder).collect::<Vec<_>>(), plan, context)?,
        };
        self.0.iter().try_for_each(|decoder| decoder.backend().mark()?())?;
        Ok((shards, started.elapsed().as_secs_f64()))
    }

    fn prompt(&self, tokens: usize) -> Vec<u32> {
        synthetic_prompt(tokens, self.home().config().vocab)
    }

    fn prefill(&self, method: MethodConfig, tokens: usize) -> Result<Value> {
        let context = self.prompt(tokens);
        let plan = self.plan(&method, &context)?;
        // Many tokens take a while, and the first of very many no longer than the others.
        let runs = match tokens {
            ..0x1_0000 => RUNS,
            0x1_0000..0x8_0000 => 2,
            _ => 1,
        };
        let mut pairs = Pairs(0);
        let runs: Vec<f64> =
            (0..runs).map(|_| Ok(self.watched(&plan, &context, &mut pairs)?.1)).collect::<Result<_>>()?;
        // The last layer's rows feed nothing, so that it attends to nothing.
        let config = self.home().config();
        let dense = ((config.layers - 1) * config.heads.query * runs.len()) as f64 * (tokens * (tokens + 1) / 2) as f64;
        let kept = (self.0.len() == 1).then(|| (1e3 * pairs.0 as f64 / dense).round() / 1e3);
        let (first_ms, encode) = (1e3 * runs[0], spread(runs[runs.len().min(2) - 1..].to_vec()));
        Ok(json!({"shards": plan.shards.len(), "first_ms": first_ms, "encode": encode, "kept": kept}))
    }

    fn decode(&self, method: MethodConfig, tokens: usize, share: bool) -> Result<Value> {
        let context = self.prompt(tokens);
        let plan = self.plan(&method, &context)?;
        let (shards, _) = self.encode(&plan, &context)?;
        let held = self.0.iter().zip(&shards).map(|(decoder, shards)| LocalContext::new(decoder.backend(), shards));
        let parallel = share.then(|| TensorParallel::new(self.0.clone())).transpose()?;
        let mut held = TeamContext::new(held.collect());
        if let Some(parallel) = &parallel {
            held = held.sharing(parallel);
        }
        let (home, mut generator) = (self.home(), Generator::of(&plan));
        let mut steps = |ids: &[u32]| -> Result<Value> {
            let (mut seconds, mut queued, mut digest) = (Vec::new(), Vec::new(), 0xcbf2_9ce4_8422_2325_u64);
            for _ in 0..STEPS + 2 {
                let started = Instant::now();
                let rows = generator.step(home, ids, &mut held)?;
                queued.push(started.elapsed().as_secs_f64());
                let logits = home.logits(&rows)?;
                seconds.push(started.elapsed().as_secs_f64());
                let bits = logits.iter().map(|logit| u64::from(logit.to_bits()));
                digest = bits.fold(digest, |digest, bits| (digest ^ bits).wrapping_mul(0x0100_0000_01b3));
            }
            let (step, queued) = (spread(seconds.split_off(2)), spread(queued.split_off(2)));
            Ok(json!({"step": step, "queued": queued, "digest": format!("{digest:016x}")}))
        };
        Ok(json!({"shards": plan.shards.len(), "one": steps(&context[..1])?, "sixteen": steps(&context[..QUERY])?}))
    }

    /// The digest of logits after the plan's shards were encoded by so many at a time.
    fn company(&self, method: MethodConfig, tokens: usize) -> Result<Value> {
        let (home, context) = (self.home(), self.prompt(tokens));
        let shape = home.config().shape(DType::Bf16);
        let request = PlanRequest {
            context: &context,
            query: &context[..QUERY],
            hosts: 12,
            one_device: true,
            shape: &shape,
            speeds: None,
        };
        let plan = method.plan(&request)?;
        let digest = |members: usize| -> Result<String> {
            let shards = encode_together(&vec![home; members], &plan, &context)?;
            let shards: Vec<_> = shards.into_iter().flatten().collect();
            let (mut held, mut generator) = (LocalContext::new(home.backend(), &shards), Generator::of(&plan));
            let mut digest = 0xcbf2_9ce4_8422_2325_u64;
            for ids in [&context[..QUERY], &context[..1], &context[1..2]] {
                let logits = home.logits(&generator.step(home, ids, &mut held)?)?;
                let bits = logits.iter().map(|logit| u64::from(logit.to_bits()));
                digest = bits.fold(digest, |digest, bits| (digest ^ bits).wrapping_mul(0x0100_0000_01b3));
            }
            Ok(format!("{members}: {digest:016x}"))
        };
        let digests = [1, 2, 3, 4, 6, 12, 1].into_iter().map(digest).collect::<Result<Vec<_>>>()?;
        Ok(json!({"shards": plan.shards.len(), "digests": digests}))
    }

    /// Where rows have other bits in steps that speculate than one by one, and what steps of several rows take.
    fn guesses(&self, method: MethodConfig, tokens: usize) -> Result<Value> {
        let (home, context) = (self.home(), self.prompt(tokens));
        let plan = self.plan(&method, &context)?;
        let (shards, _) = self.encode(&plan, &context)?;
        let held = self.0.iter().zip(&shards).map(|(decoder, shards)| LocalContext::new(decoder.backend(), shards));
        let mut held = TeamContext::new(held.collect());
        let rows: usize = SPECULATING.iter().map(|[right, _]| right).sum();
        let mut generator = Generator::of(&plan);
        let mut alone = Vec::with_capacity(rows);
        for id in &context[..rows] {
            alone.push(home.logits(&generator.step(home, std::slice::from_ref(id), &mut held)?)?);
        }
        let (mut generator, mut differ, mut at) = (Generator::of(&plan), Vec::new(), 0);
        for [right, wrong] in SPECULATING {
            let ids = [&context[at..at + right], &context[tokens - wrong..]].concat();
            let x = generator.step(home, &ids, &mut held)?;
            let together = home.all_logits(&home.backend().rows(&x, 0, right)?)?;
            let rows = together.chunks_exact(home.config().vocab).zip(&alone[at..]).enumerate();
            let wrong_rows =
                rows.filter(|(_, (row, alone))| row.iter().map(|x| x.to_bits()).ne(alone.iter().map(|x| x.to_bits())));
            differ.extend(wrong_rows.map(|(row, _)| json!({"at": at + row, "right": right, "wrong": wrong})));
            generator.retract(home.backend(), wrong)?;
            at += right;
        }
        let mut steps = Vec::new();
        for rows in ROWS_TIMED {
            let mut seconds = Vec::new();
            for _ in 0..STEPS / 2 {
                let started = Instant::now();
                let x = generator.step(home, &context[..rows], &mut held)?;
                let rows_of = (0..rows).map(|row| home.backend().rows(&x, row, row + 1));
                let each = rows_of.collect::<Result<Vec<_>, _>>()?;
                home.choose_last(&each.iter().collect::<Vec<_>>(), &vec![RowChoice::likeliest(); rows])?;
                seconds.push(started.elapsed().as_secs_f64());
                generator.retract(home.backend(), rows)?;
            }
            steps.push(json!({"rows": rows, "step": spread(seconds.split_off(2))}));
        }
        Ok(json!({"rows": rows, "differ": differ, "steps": steps}))
    }

    /// Half of the tokens, another one for each job, and what makes some of them less likely.
    fn half(&self, job: usize) -> RowShape {
        let vocab = self.home().config().vocab;
        let words = (0..vocab.div_ceil(32)).map(|at| if (at + job).is_multiple_of(2) { u32::MAX } else { 0 });
        let less = |at: usize| LogitChange { presence: 0.5, ..LogitChange::none((at * (vocab / LESS_LIKELY)) as u32) };
        RowShape { changes: (0..LESS_LIKELY).map(less).collect(), allowed: Some(words.collect()) }
    }

    /// Steps of several jobs together, whose tokens are chosen on the device, greedily or drawn with probabilities of five others told;
    /// whether some of them have the same bits alone.
    fn jobs(&self, count: usize, tokens: usize, choosing: Choosing) -> Result<Value> {
        let cut = NucleusCut { temperature: 0.8, top_k: 0, top_p: 0.95, min_p: 0.0 };
        let part = |at: usize, job: usize| ((at * count + job) as f64 * 0.618_033_988_749_895).fract();
        let drawn = |at: usize, job: usize| TokenChoice::Drawn(cut, part(at, job));
        let choice = |at: usize, job: usize| match choosing {
            Choosing::Likeliest => RowChoice::likeliest(),
            Choosing::Drawn => RowChoice { token: drawn(at, job), shape: None, top: 5 },
            Choosing::Shaped => RowChoice { token: drawn(at, job), shape: Some(self.half(job)), top: 0 },
        };
        let choices = |at: usize| -> Vec<RowChoice> { (0..count).map(|job| choice(at, job)).collect() };
        let home = self.home();
        let context = self.prompt(tokens + count);
        let (mut shards, mut plans) = (Vec::new(), Vec::new());
        for job in 0..count {
            let context = &context[job..job + tokens];
            plans.push(self.plan(&"dense".parse()?, context)?);
            shards.push(encode_plan(home, &plans[job], context, None, &mut |_, _| true)?);
        }
        let mut generators: Vec<_> = plans.iter().map(Generator::of).collect();
        let mut held = LocalContext::of(home.backend(), shards.iter().map(|shards| shards.iter().collect()).collect());
        let (mut seconds, mut queued, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
        for at in 0..STEPS + 2 {
            let started = Instant::now();
            let mut parts: Vec<_> =
                generators.iter_mut().map(|generator| StepPart { generator, ids: &context[at..at + 1] }).collect();
            let ends = step(home, &mut parts, &mut held)?;
            let rows: Vec<_> = ends.iter().filter_map(|end| end.as_ref().ok()).collect();
            queued.push(started.elapsed().as_secs_f64());
            let tokens = home.choose_last(&rows, &choices(at))?.into_iter().collect::<Result<Vec<_>, _>>()?;
            seconds.push(started.elapsed().as_secs_f64());
            chosen.push(tokens.iter().map(bits).collect::<Vec<_>>());
        }
        let mut differ = Vec::new();
        for job in [0, count / 2, count - 1] {
            let (mut generator, mut held) =
                (Generator::of(&plans[job]), LocalContext::new(home.backend(), &shards[job]));
            for (at, together) in chosen.iter().enumerate().take(ALONE) {
                let x = generator.step(home, &context[at..at + 1], &mut held)?;
                let alone = bits(&home.choose_last(&[&x], &choices(at)[job..=job])?.remove(0)?);
                if alone != together[job] {
                    differ.push(json!({"job": job, "step": at, "alone": alone, "together": together[job]}));
                }
            }
        }
        let digest =
            chosen.iter().flatten().flatten().fold(0xcbf2_9ce4_8422_2325_u64, |digest, bits| {
                (digest ^ u64::from(*bits)).wrapping_mul(0x0100_0000_01b3)
            });
        let (step, queued) = (spread(seconds.split_off(2)), spread(queued.split_off(2)));
        Ok(json!({"step": step, "queued": queued, "digest": format!("{digest:016x}"), "differ_alone": differ}))
    }
}

/// What a row's bits are compared by.
fn bits(row: &RowToken) -> [u32; 3] {
    [row.token, row.logit.to_bits(), (row.log_probability(row.logit) as f32).to_bits()]
}
