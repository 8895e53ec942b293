//! Hugging Face folders with quantised weights, against the numbers that their layouts are published to stand for.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use asterism_kernels::{Cpu, CpuOptions, DType};
use asterism_models::{Checkpoint, ContextKeys, Decoder, DecoderParts, Generator, LocalContext, ModelError};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/tiny-llama")
}

/// A tensor to be written.
type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// Numbers at random.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % most
    }

    /// A scale that f16 has exactly.
    fn scale(&mut self) -> f32 {
        (1 + self.below(1023)) as f32 / 65536.0
    }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The tensors that a layer's weight `(n, k)` is stored as, and what they stand for.
type Quantise<'a> = &'a dyn Fn(&mut Draw, &str, [usize; 2]) -> (Vec<Tensor>, Vec<f32>);

/// The tiny model with its projections quantised, and with what these stand for.
fn folders(config: &Value, quantise: Quantise<'_>) -> [TempDir; 2] {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let bytes = fs::read(tiny().join("model.safetensors")).unwrap();
    let (mut written, mut draw) = ([const { Vec::<Tensor>::new() }; 2], Draw(43));
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let (shape, plain) =
            (tensor.shape().to_vec(), (name.clone(), tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec()));
        let Some(layer) = name.strip_suffix(".weight").filter(|layer| layer.ends_with("_proj")) else {
            written.iter_mut().for_each(|tensors| tensors.push(plain.clone()));
            continue;
        };
        let (stored, values) = quantise(&mut draw, layer, [shape[0], shape[1]]);
        written[0].extend(stored);
        written[1].push((name.clone(), Dtype::F32, shape, f32s(&values)));
    }
    for (at, (folder, tensors)) in folders.iter().zip(&written).enumerate() {
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        let mut own: Value = serde_json::from_slice(&fs::read(tiny().join("config.json")).unwrap()).unwrap();
        if at == 0 {
            own["quantization_config"] = config.clone();
        }
        fs::write(folder.path().join("config.json"), own.to_string()).unwrap();
        fs::copy(tiny().join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    }
    folders
}

fn logits(folder: &Path, dtype: DType) -> Vec<f32> {
    let backend = Arc::new(Cpu::new(CpuOptions { dtype, ..CpuOptions::default() }).unwrap());
    let checkpoint = Checkpoint::open(folder).unwrap();
    checkpoint.verify().unwrap();
    let decoder = Decoder::load(backend, &checkpoint, DecoderParts::All).unwrap();
    let mut nowhere = LocalContext::new(decoder.backend(), &[]);
    let ids: Vec<u32> = (0..20).map(|at| at * 37 % 500).collect();
    let x = Generator::new(ContextKeys::default(), 0).step(&decoder, &ids, &mut nowhere).unwrap();
    decoder.all_logits(&x).unwrap()
}

fn is_what_it_stands_for(config: &Value, quantise: Quantise<'_>) {
    let folders = folders(config, quantise);
    for dtype in [DType::F32, DType::Bf16] {
        let [got, expected] = folders.each_ref().map(|folder| logits(folder.path(), dtype));
        assert!(got.iter().all(|logit| logit.is_finite()) && got == expected, "{config} in {dtype:?}");
    }
}

/// E4M3 by its definition.
fn float(bits: u8) -> f32 {
    let (sign, exponent, fraction) =
        (if bits & 0x80 == 0 { 1.0 } else { -1.0 }, i32::from(bits >> 3 & 15), f32::from(bits & 7));
    sign * if exponent == 0 { fraction / 8.0 * 2f32.powi(-6) } else { (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7) }
}

/// Weights of 8-bit floats whose scales are for so many outputs and inputs, in a tensor of that name.
fn eight_bits(
    draw: &mut Draw,
    (layer, scale): (&str, &str),
    [n, k]: [usize; 2],
    shared: [usize; 2],
    shape: Option<Vec<usize>>,
) -> (Vec<Tensor>, Vec<f32>) {
    let [outputs, inputs] = [shared[0].min(n), shared[1].min(k)];
    let [rows, columns] = [n.div_ceil(outputs), k.div_ceil(inputs)];
    let codes: Vec<u8> =
        (0..n * k).map(|_| draw.below(256) as u8).map(|bits| if bits & 0x7f == 0x7f { 0 } else { bits }).collect();
    let scales: Vec<f32> = (0..rows * columns).map(|_| draw.scale() / 64.0).collect();
    let value = |at: usize| float(codes[at]) * scales[at / k / outputs * columns + at % k / inputs];
    let values = (0..n * k).map(value).collect();
    let shape = shape.unwrap_or_else(|| vec![rows, columns]);
    let tensors = vec![
        (format!("{layer}.weight"), Dtype::F8_E4M3, vec![n, k], codes),
        (format!("{layer}.{scale}"), Dtype::F32, shape, f32s(&scales)),
    ];
    (tensors, values)
}

const ALL: usize = usize::MAX;

#[test]
fn floats_of_eight_bits_are_scaled_by_tensor_channel_and_block() {
    let compressed = |strategy: &str| {
        json!({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
               "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8, "strategy": strategy}}}})
    };
    is_what_it_stands_for(
        &json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [48, 80]}),
        &|draw, layer, shape| eight_bits(draw, (layer, "weight_scale_inv"), shape, [48, 80], None),
    );
    is_what_it_stands_for(&json!({"quant_method": "fp8", "activation_scheme": "static"}), &|draw, layer, shape| {
        eight_bits(draw, (layer, "weight_scale"), shape, [ALL, ALL], Some(Vec::new()))
    });
    is_what_it_stands_for(&json!({"quant_method": "fbgemm_fp8"}), &|draw, layer, shape| {
        eight_bits(draw, (layer, "weight_scale"), shape, [1, ALL], None)
    });
    is_what_it_stands_for(&compressed("tensor"), &|draw, layer, shape| {
        eight_bits(draw, (layer, "weight_scale"), shape, [ALL, ALL], Some(vec![1]))
    });
    is_what_it_stands_for(&compressed("channel"), &|draw, layer, shape| {
        eight_bits(draw, (layer, "weight_scale"), shape, [1, ALL], None)
    });
}

/// Codes `(n, k)`, and scales and zeros `(n, groups)`.
struct FourBits {
    codes: Vec<u32>,
    scales: Vec<f32>,
    zeros: Vec<u32>,
    groups: usize,
}

impl FourBits {
    fn drawn(draw: &mut Draw, [n, k]: [usize; 2], group: usize) -> Self {
        let groups = k / group;
        Self {
            codes: (0..n * k).map(|_| draw.below(16)).collect(),
            scales: (0..n * groups).map(|_| draw.scale()).collect(),
            zeros: (0..n * groups).map(|_| 1 + draw.below(15)).collect(),
            groups,
        }
    }

    fn values(&self, k: usize, group_of: impl Fn(usize) -> usize) -> Vec<f32> {
        let value = |at: usize| {
            let group = at / k * self.groups + group_of(at % k);
            self.scales[group] * (self.codes[at] as f32 - self.zeros[group] as f32)
        };
        (0..self.codes.len()).map(value).collect()
    }
}

/// Words of eight codes, of which `code(row, column, place)` tells each.
fn packed(rows: usize, columns: usize, code: impl Fn(usize, usize, usize) -> u32) -> Vec<u8> {
    let word = |at: usize| (0..8).map(|place| code(at / columns, at % columns, place) << (4 * place)).sum();
    words(&(0..rows * columns).map(word).collect::<Vec<u32>>())
}

/// `values (n, m)` as `(m, n)`.
fn turned<T: Copy>(values: &[T], m: usize) -> Vec<T> {
    (0..values.len()).map(|at| values[at % (values.len() / m) * m + at / (values.len() / m)]).collect()
}

#[test]
fn integers_of_four_bits_are_read_as_autoawq_packs_them() {
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    let config = json!({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm"});
    is_what_it_stands_for(&config, &|draw, layer, [n, k]| {
        let four = FourBits::drawn(draw, [n, k], 32);
        let codes = packed(k, n / 8, |row, column, place| four.codes[(8 * column + order[place]) * k + row]);
        let zeros = packed(four.groups, n / 8, |row, column, place| {
            four.zeros[(8 * column + order[place]) * four.groups + row]
        });
        let tensors = vec![
            (format!("{layer}.qweight"), Dtype::I32, vec![k, n / 8], codes),
            (format!("{layer}.qzeros"), Dtype::I32, vec![four.groups, n / 8], zeros),
            (format!("{layer}.scales"), Dtype::F32, vec![four.groups, n], f32s(&turned(&four.scales, four.groups))),
        ];
        (tensors, four.values(k, |input| input / 32))
    });
}

#[test]
fn integers_of_four_bits_are_read_as_gptq_packs_them() {
    for (format, less, by_order) in [("gptq", 1, false), ("gptq_v2", 0, false), ("gptq", 1, true)] {
        let config = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": by_order, "checkpoint_format": format});
        is_what_it_stands_for(&config, &|draw, layer, [n, k]| {
            let four = FourBits::drawn(draw, [n, k], 32);
            let group_of = |input: usize| if by_order { input * 7 % k / 32 } else { input / 32 };
            let codes = packed(k / 8, n, |row, column, place| four.codes[column * k + 8 * row + place]);
            let zeros = packed(four.groups, n / 8, |row, column, place| {
                four.zeros[(8 * column + place) * four.groups + row] - less
            });
            let order: Vec<u32> = (0..k).map(|input| group_of(input) as u32).collect();
            let tensors = vec![
                (format!("{layer}.qweight"), Dtype::I32, vec![k / 8, n], codes),
                (format!("{layer}.qzeros"), Dtype::I32, vec![four.groups, n / 8], zeros),
                (format!("{layer}.scales"), Dtype::F32, vec![four.groups, n], f32s(&turned(&four.scales, four.groups))),
                (format!("{layer}.g_idx"), Dtype::I32, vec![k], words(&order)),
            ];
            (tensors, four.values(k, group_of))
        });
    }
}

#[test]
fn integers_of_four_bits_are_read_as_compressed_tensors_packs_them() {
    for symmetric in [true, false] {
        let weights =
            json!({"type": "int", "num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": symmetric});
        let config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}});
        is_what_it_stands_for(&config, &|draw, layer, [n, k]| {
            let mut four = FourBits::drawn(draw, [n, k], 64);
            if symmetric {
                four.zeros.fill(8);
            }
            let codes = packed(n, k / 8, |row, column, place| four.codes[row * k + 8 * column + place]);
            let zeros =
                packed(n / 8, four.groups, |row, column, place| four.zeros[(8 * row + place) * four.groups + column]);
            let mut tensors = vec![
                (format!("{layer}.weight_packed"), Dtype::I32, vec![n, k / 8], codes),
                (format!("{layer}.weight_scale"), Dtype::F32, vec![n, four.groups], f32s(&four.scales)),
                (
                    format!("{layer}.weight_shape"),
                    Dtype::I64,
                    vec![2],
                    [n as u64, k as u64].iter().flat_map(|axis| axis.to_le_bytes()).collect(),
                ),
            ];
            if !symmetric {
                tensors.push((format!("{layer}.weight_zero_point"), Dtype::I32, vec![n / 8, four.groups], zeros));
            }
            (tensors, four.values(k, |input| input / 64))
        });
    }
}

#[test]
fn a_configuration_that_contradicts_its_tensors_is_refused() {
    let by_channel: Quantise<'_> =
        &|draw, layer, shape| eight_bits(draw, (layer, "weight_scale"), shape, [1, ALL], None);
    let refusal = |config: Value, quantise: Quantise<'_>| {
        let [folder, _] = folders(&config, quantise);
        let verified: Result<(), ModelError> =
            Checkpoint::open(folder.path()).and_then(|checkpoint| checkpoint.verify());
        verified.expect_err("a contradiction").to_string()
    };
    let stated = refusal(json!({"quant_method": "fp8", "weight_block_size": [64, 64]}), by_channel);
    assert!(
        stated.contains("model.safetensors: tensor model.layers.0.") && stated.contains("by quantization_config"),
        "{stated}"
    );
    let stated = refusal(json!({"quant_method": "awq", "bits": 4, "group_size": 32}), by_channel);
    assert_eq!(
        stated,
        "config.json: quantization_config is awq; expected qweight among the weights: take configuration and weights of one model"
    );
    let stated = refusal(json!({"quant_method": "fbgemm_fp8"}), &|draw, layer, shape| {
        let (mut tensors, values) = eight_bits(draw, (layer, "weight_scale"), shape, [1, ALL], None);
        tensors.truncate(1);
        (tensors, values)
    });
    assert!(stated.contains("weight_scale is missing; expected it beside"), "{stated}");
    let stated = refusal(json!({"quant_method": "fp8", "weight_block_size": [64, 64]}), &|draw, layer, shape| {
        let (mut tensors, values) = eight_bits(draw, (layer, "weight_scale_inv"), shape, [64, 64], None);
        tensors[0].3[0] = 0x7f;
        (tensors, values)
    });
    assert!(stated.contains("has NaN at element 0"), "{stated}");
}

/// Opens the tiny model with its projections so and without a word of that in its config.json.
fn unconfigured(quantise: Quantise<'_>) -> String {
    let [folder, plain] = folders(&json!({}), quantise);
    fs::copy(plain.path().join("config.json"), folder.path().join("config.json")).unwrap();
    Checkpoint::open(folder.path()).err().expect("no configuration").to_string()
}

#[test]
fn quantised_tensors_without_a_configuration_name_the_key_that_is_missing() {
    let stated = unconfigured(&|draw, layer, shape| eight_bits(draw, (layer, "weight_scale"), shape, [1, ALL], None));
    let words = "config.json: quantization_config is missing, and tensor model.layers.0.mlp.down_proj.weight is stored as F8_E4M3; \
                 expected what quantised weights stand for";
    assert!(stated.starts_with(words), "{stated}");
    for codes in ["qweight", "weight_packed"] {
        let stated = unconfigured(&|_, layer, [n, k]| {
            let words = vec![0; n * k / 2];
            (vec![(format!("{layer}.{codes}"), Dtype::I32, vec![n, k / 8], words)], vec![0.0; n * k])
        });
        assert!(stated.contains("quantization_config is missing") && stated.contains(codes), "{stated}");
    }
}

/// What tools save beside quantised weights and nothing is computed with: scales of inputs and of keys, and biases of zeros.
#[test]
fn scales_of_inputs_and_biases_of_zeros_beside_quantised_weights_change_nothing() {
    is_what_it_stands_for(&json!({"quant_method": "fp8", "activation_scheme": "static"}), &|draw, layer, shape| {
        let (mut tensors, values) = eight_bits(draw, (layer, "weight_scale"), shape, [ALL, ALL], Some(Vec::new()));
        tensors.push((format!("{layer}.input_scale"), Dtype::F32, Vec::new(), f32s(&[0.5])));
        tensors.push((format!("{layer}.bias"), Dtype::F16, vec![shape[0]], vec![0; 2 * shape[0]]));
        if let Some(attention) = layer.strip_suffix(".k_proj") {
            tensors.push((format!("{attention}.k_scale"), Dtype::F32, Vec::new(), f32s(&[0.25])));
        }
        (tensors, values)
    });
}
