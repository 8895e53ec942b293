//! Products by weights in blocks: the bits of those by the widened weights, for any number of rows.

use asterism_kernels::prelude::*;
use asterism_kernels::{BlockFormat, DType, HostTensor, Stored};

use super::blocks::{drawn, widened};
use super::{draw, gpu};

#[test]
fn products_by_blocks_are_those_by_their_numbers() {
    let Some(gpu) = gpu() else { return };
    let formats = || BlockFormat::ALL.into_iter();
    // Two formats lie beside each other. Inputs that fill tiles, and that do not.
    for (at, format) in formats().enumerate() {
        let beside = formats().cycle().nth(at + 5).unwrap();
        let small = format.elements().max(beside.elements()) == 32;
        // The last has more outputs than a GPU's processors take at once.
        let sizes = [
            (512usize, [96, 48], true),
            (4096, [1040, 240], false),
            (928, [64, 16], false),
            (256, [12_288, 4096], false),
        ];
        for (k, outputs, biased) in sizes {
            if !small && !k.is_multiple_of(256) {
                continue;
            }
            let shapes = outputs.map(|n| [n, k]);
            let formats = [format, beside];
            let blocks = [0, 1].map(|at| drawn(formats[at], shapes[at][0] * k, 7 + at as u64));
            let numbers = [0, 1].map(|at| widened(formats[at], &blocks[at]));
            let stored = [0, 1].map(|at| HostTensor {
                stored: Stored::Blocks(formats[at]),
                shape: &shapes[at],
                bytes: &blocks[at],
            });
            let plain =
                [0, 1].map(|at| HostTensor { stored: DType::F32.into(), shape: &shapes[at], bytes: &numbers[at] });
            let bias: Vec<u8> = (0..outputs[0] + outputs[1]).flat_map(|at| (at as f32 / 64.0).to_le_bytes()).collect();
            let bias_shapes = outputs.map(|n| [n]);
            let (first, second) = bias.split_at(4 * outputs[0]);
            let biases = [(first, &bias_shapes[0]), (second, &bias_shapes[1])].map(|(bytes, shape)| HostTensor {
                stored: DType::F32.into(),
                shape,
                bytes,
            });
            let biases = if biased { &biases[..] } else { &[] };
            let [by_blocks, by_numbers] = [&stored, &plain].map(|parts| gpu.linear_weight(parts, biases).unwrap());
            assert!(by_blocks.is_in_blocks() && !by_numbers.is_in_blocks());
            let n = outputs[0] + outputs[1];
            let (x, residual) = (draw(gpu, &[300, k], 1).1, draw(gpu, &[300, n], 2).1);
            for rows in [1, 2, 7, 8, 9, 16, 17, 40, 64, 65, 300] {
                let start = 300 - rows;
                let x = x.rows(start, 300).unwrap();
                let host = |y| gpu.device().download(&y).unwrap();
                let [got, expected] = [&by_blocks, &by_numbers].map(|by| host(gpu.linear(&x, by).unwrap()));
                let different = got.iter().zip(&expected).filter(|(got, expected)| got != expected).count();
                assert!(got.iter().all(|y| y.is_finite()));
                assert_eq!(different, 0, "{formats:?}, {rows} rows of {k} to {n}");
                if !biased {
                    let residual = residual.rows(start, 300).unwrap();
                    let [got, expected] =
                        [&by_blocks, &by_numbers].map(|by| host(gpu.linear_add(&x, by, residual.clone()).unwrap()));
                    assert!(got == expected, "{formats:?}, {rows} rows of {k} to {n}, added");
                }
                if rows <= 17 {
                    let part =
                        |by| host(gpu.linear_add_part(&x, (by, &residual.rows(start, 300).unwrap()), 16..n).unwrap());
                    assert!(biased || part(&by_blocks) == part(&by_numbers), "{formats:?}, some of the outputs");
                }
            }
        }
    }
}

#[test]
fn biases_that_do_not_fit_blocks_are_refused() {
    let Some(gpu) = gpu() else { return };
    let format = BlockFormat::Q8_0;
    let (shapes, blocks) = ([[16, 256], [32, 256]], [drawn(format, 16 * 256, 1), drawn(format, 32 * 256, 2)]);
    let parts = [0, 1].map(|at| HostTensor { stored: Stored::Blocks(format), shape: &shapes[at], bytes: &blocks[at] });
    let zeros = [0; 4 * 64];
    for sizes in [[[32], [16]], [[16], [64]]] {
        let biases = [0, 1].map(|at| HostTensor {
            stored: DType::F32.into(),
            shape: &sizes[at],
            bytes: &zeros[..4 * sizes[at][0]],
        });
        assert!(gpu.linear_weight(&parts, &biases).is_err(), "{sizes:?}");
    }
    assert!(gpu.linear_weight(&parts, &[]).unwrap().is_in_blocks());
}

/// A format whose blocks of a row have one factor takes less: scales of more inputs than a block has.
#[test]
fn blocks_that_share_a_factor_have_the_bits_of_those_that_do_not() {
    let Some(gpu) = gpu() else { return };
    let (n, k) = (64, 1024);
    for each in [2, 4, 8, 16] {
        let format = BlockFormat::Q4_0;
        let mut blocks = drawn(format, n * k, 3);
        for (at, block) in blocks.chunks_mut(each * format.bytes()).enumerate() {
            format.set_factors(block, 0.001 * (1 + at % 5) as f32);
        }
        let numbers = widened(format, &blocks);
        let of =
            |stored, bytes: &[u8]| gpu.linear_weight(&[HostTensor { stored, shape: &[n, k], bytes }], &[]).unwrap();
        let linears = [of(Stored::Blocks(format), &blocks), of(DType::F32.into(), &numbers)];
        for rows in [1, 20, 100] {
            let (_, x) = draw(gpu, &[rows, k], 5);
            let [got, expected] =
                linears.each_ref().map(|by| gpu.device().download(&gpu.linear(&x, by).unwrap()).unwrap());
            assert!(got == expected, "{each} blocks share a factor, {rows} rows");
        }
    }
}
