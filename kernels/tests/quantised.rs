//! Blocks against what the published `gguf` package makes of them (`kernels/tests/quantised.py`).

#[path = "common/blocks.rs"]
mod blocks;

use asterism_kernels::prelude::*;
use asterism_kernels::{BlockFormat, Cpu, CpuOptions, DType, HostTensor, KernelChoice, Stored};
use blocks::{drawn, widened};
use proptest::prelude::*;

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn every_format_has_the_values_that_are_published() {
    let published = include_str!("quantised.txt");
    let mut seen = 0;
    for line in published.lines() {
        let mut words = line.split(' ');
        let (name, bytes, values) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let format = BlockFormat::GGML.into_iter().find(|format| format.name() == name).unwrap();
        let expected: Vec<f32> =
            unhex(values).chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        let mut got = vec![0.0; expected.len()];
        format.dequantize(&unhex(bytes), &mut got);
        assert!(expected.iter().any(|value| *value != 0.0) && got == expected, "{name}: {got:?}, not {expected:?}");
        seen += 1;
    }
    assert_eq!(seen, BlockFormat::GGML.len());
}

#[test]
fn rows_that_are_no_whole_blocks_have_no_bytes() {
    let q4 = Stored::Blocks(BlockFormat::Q4K);
    assert_eq!((q4.bytes_of(512), q4.bytes_of(100), q4.bytes_of(0)), (Some(288), None, Some(0)));
    assert_eq!((Stored::from(DType::Bf16).bytes_of(3), Stored::from(DType::F32).bytes_of(usize::MAX)), (Some(6), None));
    assert_eq!(q4.byte_range(256..768), 144..432);
}

fn every_cpu() -> Vec<Cpu> {
    let sets =
        [KernelChoice::Portable, KernelChoice::Avx2, KernelChoice::Avx512, KernelChoice::Avx512Bf16, KernelChoice::Amx];
    let each = sets.into_iter().flat_map(|kernels| [DType::F32, DType::Bf16].map(|dtype| (kernels, dtype)));
    each.filter_map(|(kernels, dtype)| {
        Cpu::new(CpuOptions { dtype, threads: Some(2), kernels, ..CpuOptions::default() }).ok()
    })
    .collect()
}

#[test]
fn products_by_blocks_are_those_by_their_numbers_to_the_last_bit() {
    let k = 512;
    for (at, format) in BlockFormat::ALL.into_iter().enumerate() {
        // Two formats beside each other; the last part fills no panel.
        let formats = [format, BlockFormat::ALL[(at + 5) % BlockFormat::ALL.len()]];
        let shapes = [[96, k], [41, k]];
        let blocks = [0, 1].map(|at| drawn(formats[at], shapes[at][0] * k, 7 + at as u64));
        let plain = [0, 1].map(|at| widened(formats[at], &blocks[at]));
        let stored =
            [0, 1].map(|at| HostTensor { stored: Stored::Blocks(formats[at]), shape: &shapes[at], bytes: &blocks[at] });
        let numbers = [0, 1].map(|at| HostTensor { stored: DType::F32.into(), shape: &shapes[at], bytes: &plain[at] });
        for cpu in every_cpu() {
            let linears = [&stored, &numbers].map(|parts| cpu.linear_weight(parts, &[]).unwrap());
            for rows in [1, 3, 40, 300] {
                let x: Vec<f32> = (0..rows * k).map(|at| ((at * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect();
                let x = cpu.cast(&cpu.upload(&[rows, k], &x).unwrap()).unwrap();
                let [got, expected] =
                    linears.each_ref().map(|linear| cpu.download(&cpu.linear(&x, linear).unwrap()).unwrap());
                assert!(
                    got.iter().all(|y| y.is_finite()) && got == expected,
                    "{formats:?}, {rows} rows: {}",
                    cpu.numerics()
                );
                let last = cpu.narrow(&x, 0, rows - 1, rows).unwrap();
                let alone = cpu.download(&cpu.linear(&last, &linears[0]).unwrap()).unwrap();
                assert_eq!(alone, got[(rows - 1) * 137..], "{formats:?}: a row alone: {}", cpu.numerics());
            }
        }
    }
}

/// One row is multiplied otherwise than several: all shapes of both, with what is added to them.
#[test]
fn odd_shapes_by_blocks_have_the_bits_of_their_numbers() {
    for (at, format) in BlockFormat::ALL.into_iter().enumerate() {
        for (number, n) in [1, 15, 16, 33, 70, 129].into_iter().enumerate() {
            let (k, seed) = (256 * (1 + (at + number) % 3), (7 * at + number) as u64);
            let (shape, mut blocks) = ([n, k], drawn(format, n * k, seed));
            if format == BlockFormat::Mxfp4 && number == 2 {
                // Numbers below the normal ones.
                blocks.chunks_exact_mut(format.bytes()).for_each(|block| block[0] %= 4);
            }
            let numbers = widened(format, &blocks);
            let bias: Vec<u8> = (0..n).flat_map(|at| (at as f32 / 7.0 - 3.0).to_le_bytes()).collect();
            let biases = [HostTensor { stored: DType::F32.into(), shape: &[n], bytes: &bias }];
            for cpu in every_cpu() {
                let of = |stored, bytes| {
                    cpu.linear_weight(&[HostTensor { stored, shape: &shape, bytes }], &biases[..number % 2]).unwrap()
                };
                let weights = [of(Stored::Blocks(format), &blocks), of(DType::F32.into(), &numbers)];
                for rows in (1..=17).chain([29, 40]) {
                    let draw = |columns: usize, by: usize| {
                        let values: Vec<f32> =
                            (0..rows * columns).map(|at| ((at * by + 11) % 101) as f32 / 50.0 - 1.0).collect();
                        cpu.cast(&cpu.upload(&[rows, columns], &values).unwrap()).unwrap()
                    };
                    let (x, residual) = (draw(k, 37), draw(n, 29));
                    let [got, expected] = weights.each_ref().map(|weight| {
                        let plain = cpu.linear(&x, weight).unwrap();
                        let added = cpu.linear_add(&x, weight, residual.clone()).unwrap();
                        [plain, added]
                            .map(|y| cpu.download(&y).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>())
                    });
                    assert_eq!(got, expected, "{format}, {rows} x {k} x {n}: {}", cpu.numerics());
                }
            }
        }
    }
}

#[test]
fn rows_of_a_table_in_blocks_are_those_of_its_numbers() {
    for format in BlockFormat::ALL {
        let (shape, bytes) = ([7, 256], drawn(format, 7 * 256, 3));
        let numbers = widened(format, &bytes);
        for cpu in every_cpu() {
            let stored = HostTensor { stored: Stored::Blocks(format), shape: &shape, bytes: &bytes };
            let plain = HostTensor { stored: DType::F32.into(), shape: &shape, bytes: &numbers };
            let rows = [stored, plain].map(|table| cpu.embed(&cpu.weight(table).unwrap(), &[6, 0, 3]).unwrap());
            let [got, expected] = rows.map(|rows| cpu.download(&rows).unwrap());
            assert_eq!(got, expected, "{format}: {}", cpu.numerics());
        }
    }
}

#[test]
fn powers_of_two_are_finite_where_their_products_are() {
    for exponent in 0..=u8::MAX {
        for code in 0..16_u8 {
            let block: Vec<u8> = [exponent].into_iter().chain([code; 16]).collect();
            let mut values = [0.0; 32];
            BlockFormat::Mxfp4.dequantize(&block, &mut values);
            let got = BlockFormat::Mxfp4.first_not_finite(&block);
            assert_eq!(
                got.is_none(),
                values[0].is_finite(),
                "2^({exponent} - 127), code {code}: {got:?}, {}",
                values[0]
            );
        }
    }
}

proptest! {
    /// Whatever the bytes are, a block that is said to be finite is, and one that is not names an element of it.
    #[test]
    fn scales_that_are_no_numbers_are_found(at in 0..BlockFormat::ALL.len(), seed in any::<u64>()) {
        let format = BlockFormat::ALL[at];
        let mut state = seed;
        let mut draw = || { state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (state >> 33) as u8 };
        let bytes: Vec<u8> = (0..3 * format.bytes()).map(|_| draw()).collect();
        let mut values = vec![0.0; 3 * format.elements()];
        format.dequantize(&bytes, &mut values);
        let wrong = values.iter().position(|value| !value.is_finite());
        match format.first_not_finite(&bytes) {
            None => prop_assert_eq!(wrong, None),
            Some((element, _)) => prop_assert!(wrong.is_none_or(|wrong| wrong / format.elements() == element / format.elements())),
        }
    }
}
