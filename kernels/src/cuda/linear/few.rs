//! Products of few rows by an own kernel that reads the weights once and at full speed. Where it gives a row the library's bits,
//! and is faster, it is chosen.

use std::ops::Range;

use super::super::device::{Device, LaunchShape, launch};
use super::product::{Key, Operands};
use crate::KernelError;

/// Most rows that it takes.
pub const FEW_PRODUCT_ROWS: usize = 16;
/// Outputs of a block of threads, as the kernel has it.
const OUTPUTS: usize = 16;
/// Inputs that are multiplied at a time.
const INPUT_STEP: usize = 32;

/// As `few.cu` declares it.
#[repr(C)]
struct Few {
    x: u64,
    weight: u64,
    bias: u64,
    residual: u64,
    out: u64,
    rows: i32,
    n: i32,
    k: i32,
    out_row: i32,
    residual_row: i32,
    unused: i32,
}

/// Whether the kernel takes a product of up to so many rows.
pub fn takes(key: Key, rows: usize) -> bool {
    let even = key.n.is_multiple_of(OUTPUTS) && key.k.is_multiple_of(INPUT_STEP);
    rows <= FEW_PRODUCT_ROWS && even && !key.eight && !(key.bias && key.residual)
}

/// Whether some of the outputs are whole blocks of threads.
pub fn divides(outputs: &Range<usize>, gated: bool) -> bool {
    let each = if gated { OUTPUTS / 2 } else { OUTPUTS };
    outputs.start.is_multiple_of(each) && outputs.len().is_multiple_of(each)
}

/// Queues some outputs of a product that the kernel takes, or of what is left of one whose first half of outputs are gates of the
/// second; operands are those of all, but for what comes out.
pub fn multiply(
    device: &Device,
    key: Key,
    (rows, gated): (usize, bool),
    operands: Operands,
    outputs: Range<usize>,
) -> Result<(), KernelError> {
    let Key { n, k, bias, .. } = key;
    let from = |pointer: u64, each: usize| if pointer == 0 { 0 } else { pointer + 2 * (each * outputs.start) as u64 };
    let few = Few {
        x: operands.x,
        weight: from(operands.weight, k),
        bias: if bias { from(operands.bias, 1) } else { 0 },
        residual: from(operands.residual, 1),
        out: operands.out,
        rows: rows as i32,
        n: n as i32,
        k: k as i32,
        out_row: outputs.len() as i32,
        residual_row: n as i32,
        unused: 0,
    };
    // Stages of 256 inputs of the outputs' weights and of the rows, as the kernel has them.
    let (version, stages, held) = if rows <= 8 { ("8", 6, 8) } else { ("16", 4, 16) };
    let name = format!("{}_few_{version}", if gated { "gated" } else { "linear" });
    let shared = stages * (OUTPUTS + held) * 256 * 2;
    let blocks = outputs.len() / if gated { OUTPUTS / 2 } else { OUTPUTS };
    let spread = device.room().evenly(LaunchShape { blocks: (blocks, 1), threads: 32, shared });
    launch!(device, &name, spread, few)
}
