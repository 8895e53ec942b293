//! The CPU backend on candle-core tensors in main memory, with its own kernels and threads. Reads no file and no configuration.

mod choice;
mod tensor;

use candle_core::Tensor;
use half::{bf16, f16};

use crate::reference::{self, AttentionShape};
use crate::{Backend, DType, Heads, HostTensor, KernelError, Mask, Partial};
pub use choice::KernelChoice;
use choice::KernelSet;
use tensor::Elements;

/// How a [`Cpu`] computes.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Compute type: `F32` or `Bf16`.
    pub dtype: DType,
    /// Threads that compute, the caller included; `None` takes every core.
    pub threads: Option<usize>,
    /// Which instructions to use.
    pub kernels: KernelChoice,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { dtype: DType::F32, threads: None, kernels: KernelChoice::Auto }
    }
}

/// The processor as a backend.
pub struct Cpu {
    dtype: DType,
    _set: KernelSet,
    pool: rayon::ThreadPool,
}

/// A linear layer's weights, `(n, k)` row-major.
pub struct Linear {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    n: usize,
    k: usize,
}

/// Keys and values of one layer.
#[derive(Clone)]
pub struct Kv {
    heads: Vec<(Vec<f32>, Vec<f32>)>,
    dim: usize,
    len: usize,
}

impl Cpu {
    /// Starts the compute threads.
    ///
    /// # Errors
    /// [`KernelError::DType`] for a type that is not computed in, [`KernelError::Unsupported`] for kernels this machine
    /// cannot run, [`KernelError::Threads`] when the threads do not start.
    pub fn new(options: CpuOptions) -> Result<Self, KernelError> {
        if options.dtype == DType::F16 {
            return Err(KernelError::DType { operation: "cpu", got: options.dtype });
        }
        let set = KernelSet::resolve(options.kernels, options.dtype)?;
        let threads = options.threads.unwrap_or(0);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|e| KernelError::Threads { threads, cause: e.to_string() })?;
        Ok(Self { dtype: options.dtype, _set: set, pool })
    }

    fn compute(&self, shape: &[usize], values: Vec<f32>) -> Result<Tensor, KernelError> {
        tensor::tensor(self.dtype, shape, values)
    }

    fn product(&self, x: &Tensor, weight: &Linear) -> Result<(usize, Vec<f32>), KernelError> {
        let (t, k) = matrix("linear", x)?;
        if k != weight.k {
            return Err(KernelError::shape("linear", format!("x (t, {})", weight.k), &[x.dims()]));
        }
        let x = floats(x);
        let n = weight.n;
        let mut y = vec![0.0f32; t * n];
        let threads = self.pool.current_num_threads();
        self.pool.install(|| {
            // SAFETY: the strides describe y (t, n), x (t, k) and weight (n, k), all row-major and long enough.
            unsafe {
                gemm::gemm(
                    t,
                    n,
                    k,
                    y.as_mut_ptr(),
                    1,
                    n as isize,
                    false,
                    x.as_ptr(),
                    1,
                    k as isize,
                    weight.weight.as_ptr(),
                    k as isize,
                    1,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::Rayon(threads),
                );
            }
        });
        if let Some(bias) = &weight.bias {
            y.chunks_exact_mut(n).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
        Ok((t, y))
    }
}

impl Backend for Cpu {
    type Tensor = Tensor;
    type Linear = Linear;
    type Kv = Kv;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Tensor, KernelError> {
        if shape.iter().product::<usize>() != values.len() {
            return Err(KernelError::shape("upload", format!("{} values", values.len()), &[shape]));
        }
        tensor::f32_tensor(shape, values.to_vec())
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>, KernelError> {
        Ok(floats(tensor))
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.dims().to_vec()
    }

    fn cast(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.compute(tensor.dims(), floats(tensor))
    }

    fn weight(&self, tensor: HostTensor<'_>) -> Result<Tensor, KernelError> {
        self.compute(tensor.shape, decode("weight", tensor)?)
    }

    fn linear_weight(&self, parts: &[HostTensor<'_>], biases: &[HostTensor<'_>]) -> Result<Linear, KernelError> {
        let k = parts.first().and_then(|p| p.shape.get(1)).copied().unwrap_or(0);
        let (mut weight, mut bias, mut n) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            if part.shape.len() != 2 || part.shape[1] != k {
                return Err(KernelError::shape("linear_weight", format!("parts (n, {k})"), &[part.shape]));
            }
            n += part.shape[0];
            weight.extend(decode("linear_weight", *part)?);
        }
        for part in biases {
            bias.extend(decode("linear_weight", *part)?);
        }
        if !biases.is_empty() && bias.len() != n {
            return Err(KernelError::shape("linear_weight", format!("biases of {n} in all"), &[&[bias.len()]]));
        }
        let bias = (!biases.is_empty()).then_some(bias);
        Ok(Linear { weight, bias, n, k })
    }

    fn embed(&self, table: &Tensor, ids: &[u32]) -> Result<Tensor, KernelError> {
        let (vocab, e) = matrix("embed", table)?;
        let table = floats(table);
        let mut x = Vec::with_capacity(ids.len() * e);
        for &id in ids {
            if id as usize >= vocab {
                return Err(KernelError::shape("embed", format!("ids below {vocab}"), &[&[id as usize]]));
            }
            x.extend_from_slice(&table[id as usize * e..][..e]);
        }
        self.compute(&[ids.len(), e], x)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor, KernelError> {
        let (t, e) = matrix("rms_norm", x)?;
        if weight.dims() != [e] {
            return Err(KernelError::shape("rms_norm", format!("weight ({e})"), &[weight.dims()]));
        }
        let (mut x, weight) = (floats(x), floats(weight));
        for row in x.chunks_exact_mut(e) {
            let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f32>() / e as f32 + eps).sqrt();
            row.iter_mut().zip(&weight).for_each(|(x, w)| *x = *x * scale * w);
        }
        self.compute(&[t, e], x)
    }

    fn linear(&self, x: &Tensor, weight: &Linear) -> Result<Tensor, KernelError> {
        let (t, y) = self.product(x, weight)?;
        self.compute(&[t, weight.n], y)
    }

    fn linear_add(&self, x: &Tensor, weight: &Linear, residual: Tensor) -> Result<Tensor, KernelError> {
        let (t, mut y) = self.product(x, weight)?;
        if residual.dims() != [t, weight.n] {
            return Err(KernelError::shape("linear_add", format!("residual ({t}, {})", weight.n), &[residual.dims()]));
        }
        y.iter_mut().zip(floats(&residual)).for_each(|(y, r)| *y += r);
        self.compute(&[t, weight.n], y)
    }

    fn gated_silu(&self, gate_up: &Tensor) -> Result<Tensor, KernelError> {
        let (t, f2) = matrix("gated_silu", gate_up)?;
        let f = f2 / 2;
        let mut y = Vec::with_capacity(t * f);
        for row in floats(gate_up).chunks_exact(f2) {
            y.extend(row[..f].iter().zip(&row[f..]).map(|(g, u)| g / (1.0 + (-g).exp()) * u));
        }
        self.compute(&[t, f], y)
    }

    fn rows(&self, x: &Tensor, start: usize, end: usize) -> Result<Tensor, KernelError> {
        let (t, _) = matrix("rows", x)?;
        if start > end || end > t {
            return Err(KernelError::shape("rows", format!("a range within {t} rows"), &[&[start, end]]));
        }
        Ok(x.narrow(0, start, end - start)?)
    }

    fn split_rotate(
        &self,
        qkv: &Tensor,
        heads: Heads,
        positions: &[u32],
        inv_freq: &[f32],
    ) -> Result<(Tensor, Tensor, Tensor), KernelError> {
        let (t, n) = matrix("split_rotate", qkv)?;
        let Heads { query, kv, dim } = heads;
        if n != (query + 2 * kv) * dim || positions.len() != t || inv_freq.len() != dim / 2 {
            let expected = format!("qkv (t, {}), t positions, {} frequencies", (query + 2 * kv) * dim, dim / 2);
            let got: [&[usize]; 3] = [qkv.dims(), &[positions.len()], &[inv_freq.len()]];
            return Err(KernelError::shape("split_rotate", expected, &got));
        }
        let qkv = floats(qkv);
        let mut out = vec![0.0; qkv.len()];
        for head in 0..query + 2 * kv {
            for (i, &position) in positions.iter().enumerate() {
                let from = &qkv[i * n + head * dim..][..dim];
                let to = &mut out[(head * t + i) * dim..][..dim];
                if head >= query + kv {
                    to.copy_from_slice(from);
                    continue;
                }
                for (j, freq) in inv_freq.iter().enumerate() {
                    let (sin, cos) = (position as f32 * freq).sin_cos();
                    let (a, b) = (from[j], from[j + dim / 2]);
                    (to[j], to[j + dim / 2]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        let v = out.split_off((query + kv) * t * dim);
        let k = out.split_off(query * t * dim);
        Ok((self.compute(&[query, t, dim], out)?, self.compute(&[kv, t, dim], k)?, self.compute(&[kv, t, dim], v)?))
    }

    fn kv(&self, k: &Tensor, v: &Tensor) -> Result<Kv, KernelError> {
        let (heads, _, dim) = cube("kv", k)?;
        let mut kv = Kv { heads: vec![Default::default(); heads], dim, len: 0 };
        self.kv_append(&mut kv, k, v)?;
        Ok(kv)
    }

    fn kv_append(&self, kv: &mut Kv, k: &Tensor, v: &Tensor) -> Result<(), KernelError> {
        let (heads, t, dim) = cube("kv_append", k)?;
        if k.dims() != v.dims() || heads != kv.heads.len() || dim != kv.dim {
            let expected = format!("k, v ({}, t, {})", kv.heads.len(), kv.dim);
            return Err(KernelError::shape("kv_append", expected, &[k.dims(), v.dims()]));
        }
        let (k, v) = (floats(k), floats(v));
        for (head, (keys, values)) in kv.heads.iter_mut().enumerate() {
            keys.extend_from_slice(&k[head * t * dim..][..t * dim]);
            values.extend_from_slice(&v[head * t * dim..][..t * dim]);
        }
        kv.len += t;
        Ok(())
    }

    fn kv_rows(&self, kv: &Kv, start: usize, end: usize) -> Result<Kv, KernelError> {
        if start > end || end > kv.len {
            return Err(KernelError::shape("kv_rows", format!("a range within {} rows", kv.len), &[&[start, end]]));
        }
        let cut = |x: &[f32]| x[start * kv.dim..end * kv.dim].to_vec();
        let heads = kv.heads.iter().map(|(k, v)| (cut(k), cut(v))).collect();
        Ok(Kv { heads, dim: kv.dim, len: end - start })
    }

    fn kv_len(&self, kv: &Kv) -> usize {
        kv.len
    }

    fn kv_bytes(&self, kv: &Kv) -> usize {
        kv.heads.iter().map(|(k, v)| (k.capacity() + v.capacity()) * size_of::<f32>()).sum()
    }

    fn attention(&self, q: &Tensor, kv: &Kv, mask: Mask) -> Result<Partial<Tensor>, KernelError> {
        let (query, queries, dim) = cube("attention", q)?;
        let groups = kv.heads.len();
        if dim != kv.dim || !query.is_multiple_of(groups) {
            let expected = format!("q ({groups} x group, t, {})", kv.dim);
            return Err(KernelError::shape("attention", expected, &[q.dims()]));
        }
        let shape = AttentionShape { heads: Heads { query, kv: groups, dim }, queries, keys: kv.len, mask };
        let k: Vec<f32> = kv.heads.iter().flat_map(|(k, _)| k.iter().copied()).collect();
        let v: Vec<f32> = kv.heads.iter().flat_map(|(_, v)| v.iter().copied()).collect();
        let (output, lse) = reference::attention(&floats(q), &k, &v, shape);
        Ok(Partial {
            output: tensor::f32_tensor(&[query, queries, dim], output)?,
            lse: tensor::f32_tensor(&[query, queries], lse)?,
        })
    }

    fn merge(&self, partials: &[Partial<Tensor>]) -> Result<Partial<Tensor>, KernelError> {
        let Some(first) = partials.first() else {
            return Err(KernelError::shape("merge", "at least one partial", &[]));
        };
        let (_, _, dim) = cube("merge", &first.output)?;
        for p in partials {
            if p.output.dims() != first.output.dims() || p.lse.dims() != first.lse.dims() {
                return Err(KernelError::shape("merge", format!("{:?}", first.output), &[p.output.dims()]));
            }
        }
        let parts: Vec<_> = partials.iter().map(|p| (floats(&p.output), floats(&p.lse))).collect();
        let slices: Vec<_> = parts.iter().map(|(o, l)| (o.as_slice(), l.as_slice())).collect();
        let (output, lse) = reference::merge(&slices, dim);
        Ok(Partial {
            output: tensor::f32_tensor(first.output.dims(), output)?,
            lse: tensor::f32_tensor(first.lse.dims(), lse)?,
        })
    }

    fn join_heads(&self, output: &Tensor) -> Result<Tensor, KernelError> {
        let (heads, t, dim) = cube("join_heads", output)?;
        let x = floats(output);
        let mut y = vec![0.0; x.len()];
        for (at, row) in x.chunks_exact(dim).enumerate() {
            y[((at % t) * heads + at / t) * dim..][..dim].copy_from_slice(row);
        }
        self.compute(&[t, heads * dim], y)
    }
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Elements::of(tensor).view().to_f32()
}

fn decode(operation: &'static str, tensor: HostTensor<'_>) -> Result<Vec<f32>, KernelError> {
    let width = if tensor.dtype == DType::F32 { 4 } else { 2 };
    if tensor.bytes.len() != tensor.shape.iter().product::<usize>() * width {
        let expected = format!("the bytes of {:?} in {:?}", tensor.shape, tensor.dtype);
        return Err(KernelError::shape(operation, expected, &[&[tensor.bytes.len()]]));
    }
    let pair = |b: &[u8]| [b[0], b[1]];
    Ok(match tensor.dtype {
        DType::F32 => tensor.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::Bf16 => tensor.bytes.chunks_exact(2).map(|b| bf16::from_le_bytes(pair(b)).to_f32()).collect(),
        DType::F16 => tensor.bytes.chunks_exact(2).map(|b| f16::from_le_bytes(pair(b)).to_f32()).collect(),
    })
}

fn matrix(operation: &'static str, tensor: &Tensor) -> Result<(usize, usize), KernelError> {
    tensor.dims2().map_err(|_| KernelError::shape(operation, "(rows, columns)", &[tensor.dims()]))
}

fn cube(operation: &'static str, tensor: &Tensor) -> Result<(usize, usize, usize), KernelError> {
    tensor.dims3().map_err(|_| KernelError::shape(operation, "(heads, tokens, head dim)", &[tensor.dims()]))
}
