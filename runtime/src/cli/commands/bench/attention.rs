//! `bench attention`: attention alone, of a model's heads: causal over a whole prompt, and few rows on many keys as a step asks
//! for it. Numbers are random; what is timed is compared with the reference first.

use asterism_kernels::{
    DType, Heads, KernelError, Mask, Partial, Rotary,
    reference::{self, AttentionShape},
};
use clap::Args;
use serde::Serialize;

use super::{
    BenchTarget, MachineArgs,
    ceiling::{self, Ceiling},
    machine::{BenchBackend, RepetitionSeconds, random, seconds},
    report::{BenchReport, Case, cell, peak, percent, tera},
};
use crate::{
    cluster::{
        file::Device,
        size::{Tokens, grouped, up_to},
    },
    error::{CliError, Exit},
    globals::Globals,
};

/// Most tokens: more than any context, and few enough for their bytes to be counted.
const MOST_BENCH_TOKENS: usize = 1 << 24;
/// Rows that are drawn; longer tensors repeat them. No kernel's tiles are in step with it.
const PERIOD: usize = 6997;

/// What is timed.
#[derive(Args, Debug)]
pub struct AttentionArgs {
    /// Keys; several with commas
    #[arg(long, value_name = "TOKENS", default_value = "8k", value_delimiter = ',')]
    pub tokens: Vec<Tokens>,
    /// Rows that see all keys, as in a step, beside the causal attention of every token; several with commas
    #[arg(long, value_name = "N", default_value = "1,4,16,64", value_delimiter = ',', value_parser = up_to::<512>)]
    pub rows: Vec<usize>,
    /// Where to compute: cpu, or cuda:N [default: the cluster file's first context host's, cpu without one]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Device>,
    /// The machine
    #[command(flatten)]
    pub machine: MachineArgs,
}

#[derive(Serialize)]
struct Setup {
    phase: &'static str,
    model: String,
    device: String,
    dtype: &'static str,
    kernels: &'static str,
    threads: usize,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

/// One call of attention.
#[derive(Clone, Copy, Debug, Serialize)]
struct AttentionCase {
    /// `causal` or `none`.
    mask: &'static str,
    rows: usize,
    tokens: usize,
}

#[derive(Serialize)]
struct Timed {
    #[serde(flatten)]
    seconds: RepetitionSeconds,
    /// Of the two products, hidden pairs not counted.
    flops: u64,
    flops_per_s: f64,
    /// Keys and values.
    bytes: u64,
    bytes_per_s: f64,
    share_of_product: Option<f64>,
    share_of_copy: Option<f64>,
    peak_memory_bytes: Option<u64>,
    peak_memory_of: &'static str,
    /// Relative distance of the rows that were compared with the reference.
    distance: f64,
}

impl AttentionCase {
    fn mask(self) -> Mask {
        if self.mask == "causal" { Mask::Causal } else { Mask::None }
    }

    /// Operations of a call, a multiply-add as two, and bytes of the keys and values it reads.
    fn work(self, heads: Heads, dtype: DType) -> (u64, u64) {
        let (rows, tokens) = (self.rows as u64, self.tokens as u64);
        let pairs = if self.mask() == Mask::Causal { tokens * (tokens + 1) / 2 } else { rows * tokens };
        let element = dtype.size() as u64;
        (4 * (heads.query * heads.dim) as u64 * pairs, 2 * tokens * (heads.kv * heads.dim) as u64 * element)
    }
}

/// Checks, times and prints every case.
pub fn run<B: BenchBackend>(
    globals: &Globals,
    args: &AttentionArgs,
    given: &BenchTarget<'_>,
    open: impl Fn(Device) -> Result<B, asterism_models::ModelError>,
) -> Result<Exit, CliError> {
    checked(args)?;
    let unusable =
        |error: asterism_models::ModelError| CliError::usage(error).hint("`asterism bench attention --help`");
    let checkpoint = given.checkpoint(args.machine.model.as_deref()).map_err(unusable)?;
    let heads = checkpoint.config().heads;
    let backend = open(given.devices[0]).map_err(unusable)?;
    let setup = Setup {
        phase: "attention",
        model: checkpoint.name().to_owned(),
        device: given.devices[0].to_string(),
        dtype: crate::processes::checkpoint::dtype(given.dtype).name(),
        kernels: args.machine.kernels.name(),
        threads: given.threads,
        query_heads: heads.query,
        kv_heads: heads.kv,
        head_dim: heads.dim,
    };
    let Heads { query, kv, dim } = heads;
    globals.note(format_args!("attention of {}: {query} query heads, {kv} KV heads of {dim}", setup.model));
    let ceiling = ceiling::measure(globals, &backend);
    let mut report = BenchReport::new(globals, setup, ceiling);
    for &Tokens(tokens) in &args.tokens {
        let few = args.rows.iter().map(|rows| AttentionCase { mask: "none", rows: *rows, tokens });
        let cases = std::iter::once(AttentionCase { mask: "causal", rows: tokens, tokens }).chain(few);
        let mut operands = None;
        for what in cases {
            globals.note(format_args!("{} rows on {} keys", grouped(what.rows), grouped(tokens)));
            let timed = match &operands {
                Some(operands) => Ok(operands),
                None => Operands::new(&backend, heads, tokens).map(|made| &*operands.insert(made)),
            }
            .map_err(CliError::usage)
            .and_then(|operands| case(operands, what, (args.machine.repeat, ceiling)));
            backend.finish().map_err(CliError::usage)?;
            report.add(what, timed)?;
        }
    }
    show(report)
}

fn checked(args: &AttentionArgs) -> Result<(), CliError> {
    let most = args.rows.iter().max().copied().unwrap_or(1);
    match args.tokens.iter().find(|tokens| tokens.0 < most || tokens.0 > MOST_BENCH_TOKENS) {
        Some(Tokens(tokens)) => {
            let range = format!("--tokens {tokens}: from as many as --rows, {most}, to {}", grouped(MOST_BENCH_TOKENS));
            Err(CliError::usage(range).hint("--tokens 8k,32k --rows 1,4"))
        }
        None => Ok(()),
    }
}

fn show(report: BenchReport<'_, Setup, AttentionCase, Timed>) -> Result<Exit, CliError> {
    let heads = [
        "MASK",
        "ROWS",
        "KEYS",
        "DTYPE",
        "BEST MS",
        "MEDIAN MS",
        "TFLOP/S",
        "PRODUCT",
        "SHARE",
        "TB/S",
        "COPY",
        "SHARE",
        "PEAK",
        "STATE",
    ];
    report.finish(heads, |report, case: &Case<AttentionCase, Timed>| {
        let timed = case.timed.as_ref();
        [
            case.what.mask.into(),
            grouped(case.what.rows),
            grouped(case.what.tokens),
            report.setup.dtype.into(),
            cell(timed, |timed| format!("{:.3}", 1e3 * timed.seconds.best_s)),
            cell(timed, |timed| format!("{:.3}", 1e3 * timed.seconds.median_s)),
            cell(timed, |timed| tera(timed.flops_per_s)),
            cell(report.ceiling, |ceiling| tera(ceiling.product_flops_per_s)),
            cell(timed.and_then(|timed| timed.share_of_product), percent),
            cell(timed, |timed| tera(timed.bytes_per_s)),
            cell(report.ceiling, |ceiling| tera(ceiling.copy_bytes_per_s)),
            cell(timed.and_then(|timed| timed.share_of_copy), percent),
            cell(timed.and_then(|timed| timed.peak_memory_bytes), peak),
            case.state(),
        ]
    })
}

/// Checks and times one call.
fn case<B: BenchBackend>(
    operands: &Operands<'_, B>,
    what: AttentionCase,
    (repeat, ceiling): (u16, Option<Ceiling>),
) -> Result<Timed, CliError> {
    let Operands { backend, kv, heads, .. } = operands;
    backend.forget_peak();
    let few = operands.backend.narrow(&operands.q, 1, 0, what.rows).map_err(CliError::usage)?;
    let q = if what.rows == what.tokens { &operands.q } else { &few };
    let distance = operands.distance(what, &backend.attention(q, kv, what.mask()).map_err(CliError::usage)?);
    let distance = distance.map_err(CliError::usage)?;
    // What rounding leaves of sums of so many.
    let most = if backend.dtype() == DType::F32 { 1e-4 } else { 1e-2 };
    if distance.is_nan() || distance > most {
        let wrong = format!("{distance:.1e} from the reference, where {most:.0e} is rounding");
        return Err(CliError::new(Exit::JobFailed, wrong));
    }
    let seconds = seconds(*backend, repeat, || backend.attention(q, kv, what.mask()).map(drop));
    let seconds = seconds.map_err(CliError::usage)?;
    let (flops, bytes) = what.work(*heads, backend.dtype());
    let (flops_per_s, bytes_per_s) = (flops as f64 / seconds.median_s, bytes as f64 / seconds.median_s);
    Ok(Timed {
        flops,
        flops_per_s,
        bytes,
        bytes_per_s,
        share_of_product: ceiling.map(|ceiling| flops_per_s / ceiling.product_flops_per_s),
        share_of_copy: ceiling.map(|ceiling| bytes_per_s / ceiling.copy_bytes_per_s),
        peak_memory_bytes: backend.peak_bytes(),
        peak_memory_of: B::MEMORY,
        distance,
        seconds,
    })
}

/// Queries and keys as a decoder has them, and the rows that they repeat on the host.
struct Operands<'a, B: BenchBackend> {
    backend: &'a B,
    heads: Heads,
    q: B::Tensor,
    kv: B::Kv,
    /// Queries, keys and values `(heads, period, dim)`.
    drawn: [Vec<f32>; 3],
    period: usize,
}

impl<'a, B: BenchBackend> Operands<'a, B> {
    fn new(backend: &'a B, heads: Heads, tokens: usize) -> Result<Self, KernelError> {
        let (period, columns) = (tokens.min(PERIOD), (heads.query + 2 * heads.kv) * heads.dim);
        let projected = backend.upload(&[period, columns], &random(1, period * columns))?;
        // At position 0 nothing turns.
        let (positions, inv_freq) = (vec![0; period], vec![1.0; heads.dim / 2]);
        let (q, k, v) =
            backend.split_rotate(&backend.cast(&projected)?, heads, &positions, Rotary::plain(&inv_freq))?;
        let drawn = [backend.download(&q)?, backend.download(&k)?, backend.download(&v)?];
        let repeated = |x: B::Tensor| {
            let mut parts = vec![x.clone(); tokens / period];
            if !tokens.is_multiple_of(period) {
                parts.push(backend.narrow(&x, 1, 0, tokens % period)?);
            }
            backend.concat(&parts, 1)
        };
        let kv = backend.kv(&repeated(k)?, &repeated(v)?)?;
        Ok(Self { backend, heads, q: repeated(q)?, kv, drawn, period })
    }

    /// Relative distance of the first, the middle and the last row of the first and the last head from the reference.
    fn distance(&self, what: AttentionCase, got: &Partial<B::Tensor>) -> Result<f64, KernelError> {
        let Heads { query, kv, dim } = self.heads;
        let [mut of, mut from] = [0.0; 2];
        let [mut lse_of, mut lse_from] = [0.0; 2];
        let mut rows = vec![0, what.rows / 2, what.rows - 1];
        rows.dedup();
        for row in rows {
            let output = self.backend.download(&self.backend.narrow(&got.output, 1, row, row + 1)?)?;
            let lse = self.backend.download(&self.backend.narrow(&got.lse, 1, row, row + 1)?)?;
            for head in if query > 1 { vec![0, query - 1] } else { vec![0] } {
                let keys = if what.mask() == Mask::Causal { row + 1 } else { what.tokens };
                let heads = Heads { query: 1, kv: 1, dim };
                let shape = AttentionShape { heads, queries: 1, keys, mask: Mask::None };
                let kv_head = head / (query / kv);
                let [q, k, v] =
                    [(0, head, row..row + 1), (1, kv_head, 0..keys), (2, kv_head, 0..keys)].map(|of| self.drawn(of));
                let (expected, expected_lse) = reference::attention(&q, &k, &v, shape);
                for (got, expected) in output[head * dim..][..dim].iter().zip(&expected) {
                    of += f64::from(got - expected).powi(2);
                    from += f64::from(*expected).powi(2);
                }
                lse_of += f64::from(lse[head] - expected_lse[0]).powi(2);
                lse_from += f64::from(expected_lse[0]).powi(2);
            }
        }
        Ok((of / from).max(lse_of / lse_from).sqrt())
    }

    /// Rows of a head of what was drawn.
    fn drawn(&self, (which, head, rows): (usize, usize, std::ops::Range<usize>)) -> Vec<f32> {
        let (period, dim) = (self.period, self.heads.dim);
        let row = |row: usize| &self.drawn[which][(head * period + row % period) * dim..][..dim];
        rows.flat_map(row).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { query: 4, kv: 2, dim: 16 };

    #[test]
    fn work_counts_pairs_that_are_seen_and_keys_once() {
        let causal = AttentionCase { mask: "causal", rows: 100, tokens: 100 };
        assert_eq!(causal.work(HEADS, DType::Bf16), (4 * 4 * 16 * 5050, 2 * 100 * 2 * 16 * 2));
        let few = AttentionCase { mask: "none", rows: 3, tokens: 100 };
        assert_eq!(few.work(HEADS, DType::F32), (4 * 4 * 16 * 300, 2 * 100 * 2 * 16 * 4));
        let shape = AttentionShape { heads: HEADS, queries: 100, keys: 100, mask: Mask::Causal };
        assert_eq!(shape.flops(), causal.work(HEADS, DType::F32).0 as f64);
    }

    #[test]
    fn what_differs_from_the_reference_is_not_timed() {
        let cpu = crate::processes::checkpoint::cpu(
            (crate::cluster::file::DType::F32, Default::default()),
            1,
            Default::default(),
        )
        .unwrap();
        let mut operands = Operands::new(&cpu, HEADS, PERIOD + 40).unwrap();
        let cases = [
            AttentionCase { mask: "causal", rows: PERIOD + 40, tokens: PERIOD + 40 },
            AttentionCase { mask: "none", rows: 5, tokens: PERIOD + 40 },
        ];
        for what in cases {
            assert!(case(&operands, what, (1, None)).unwrap_or_else(|error| panic!("{error}")).distance < 1e-4);
        }
        operands.drawn[1][7] += 3.0;
        assert!(case(&operands, cases[1], (1, None)).is_err_and(|error| error.message.contains("from the reference")));
    }
}
