//! The engine of processors with AMX: tiles by inline assembly, AVX-512 around them.

use std::arch::asm;
use std::arch::x86_64::*;

use super::engine::{BLOCK_SIDE, Engine, Exponentials, LANES, Product, Rows, Sink, Softmax, Target};
use super::panels;
use crate::cpu::lanes::Avx512Codes;
use crate::cpu::tensor::BlockPanels;
use interleaved::InterleavedProducts;
use session::Session;

mod few;
mod interleaved;
mod session;

/// Intel AMX with AVX-512. Suits a machine where `available()` is true.
pub(super) struct Amx;

impl Engine for Amx {
    type Session = Session;

    const FEW: usize = few::MOST_FEW;

    unsafe fn begin() -> Session {
        // SAFETY: the caller's promise.
        unsafe { Session::begin() }
    }

    /// Four tiles of sums, two of each operand.
    #[inline(always)]
    unsafe fn product(session: &mut Session, Product { a, b, steps, c, accumulate, narrow: _, prefetch: _ }: Product) {
        // SAFETY: a session lives.
        unsafe { Self::settle(session) }
        // SAFETY: the caller's panels cover 2 KiB a step and the block 4 KiB (its last 16 rows begin at 2 KiB); a session
        // lives, so tiles are configured; all tiles touched are named as clobbered. `steps` is at least 1.
        unsafe {
            asm!(
                "test {s:e}, {s:e}",
                "jz 2f",
                "tileloadd tmm0, [{c} + {row}*1]",
                "tileloadd tmm1, [{c} + {row}*1 + 64]",
                "tileloadd tmm2, [{c} + {row}*1 + 2048]",
                "tileloadd tmm3, [{c} + {row}*1 + 2112]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "mov {s:e}, 64",
                "4:",
                "tileloadd tmm6, [{b} + {s}*1]",
                "tileloadd tmm4, [{a} + {s}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {s}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a} + {s}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {k}",
                "jnz 4b",
                "tilestored [{c} + {row}*1], tmm0",
                "tilestored [{c} + {row}*1 + 64], tmm1",
                "tilestored [{c} + {row}*1 + 2048], tmm2",
                "tilestored [{c} + {row}*1 + 2112], tmm3",
                row = in(reg) 128usize,
                s = inout(reg) accumulate as usize => _,
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                c = in(reg) c,
                k = inout(reg) steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            )
        }
    }

    unsafe fn product_of_few(x: *const f32, rows: usize, b: *const u16, steps: usize, c: *mut f32) {
        // SAFETY: this engine runs only where AVX-512 is; the rest is the caller's promise.
        unsafe { few::product(x, rows, b, steps, c) }
    }

    unsafe fn exponentials(session: &mut Session, work: Exponentials, products: &[Product]) {
        // SAFETY: this engine runs only where AVX-512 is; the rest is the caller's promise.
        unsafe { exponentials(session, work, products) }
    }

    #[inline(always)]
    unsafe fn settle(session: &mut Session) {
        // SAFETY: the caller's promise.
        unsafe { session.settle() }
    }

    unsafe fn pack_rows(source: Rows, panel: *mut u16) {
        // SAFETY: this engine runs only where AVX-512 is; the rest is the caller's promise.
        unsafe { pack_rows(source, panel) }
    }

    unsafe fn pack_transposed(source: Rows, tile: *mut u16) {
        // SAFETY: as above.
        unsafe { pack_transposed(source, tile) }
    }

    unsafe fn widen(blocks: &BlockPanels, index: usize, panel: *mut u16) {
        // SAFETY: as above.
        unsafe { widen_blocks(blocks, index, panel) }
    }

    unsafe fn transpose(tile: *mut u32) {
        // SAFETY: as above.
        unsafe { transpose(tile) }
    }

    unsafe fn store(block: *const f32, rows: usize, columns: usize, sink: Sink) {
        // SAFETY: as above.
        unsafe { store(block, rows, columns, sink) }
    }

    unsafe fn observe(scores: *const f32, scale: f32, softmax: *mut Softmax) -> bool {
        // SAFETY: as above.
        unsafe { observe(scores, scale, softmax) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack_rows(source: Rows, panel: *mut u16) {
    // SAFETY: the caller's promise.
    unsafe { panels::pack_rows(source, panel) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn widen_blocks(blocks: &BlockPanels, index: usize, panel: *mut u16) {
    // SAFETY: the caller's promise.
    unsafe { panels::widen::<Avx512Codes<true>>(blocks, index, panel) }
}

/// Rows interleaved by twos, then transposed as pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_transposed(source: Rows, tile: *mut u16) {
    let columns: __mmask16 = if source.columns >= LANES { !0 } else { (1 << source.columns) - 1 };
    // SAFETY: only columns of rows that exist are read; a tile is 16 x 16 pairs, aligned.
    unsafe {
        let row = |index: usize| {
            let mask = if index < source.rows { columns } else { 0 };
            let start = source.data.wrapping_add(index * source.stride);
            _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, start.cast()))
        };
        for pair in 0..LANES {
            let both = _mm512_or_si512(row(2 * pair), _mm512_slli_epi32::<16>(row(2 * pair + 1)));
            _mm512_store_si512(tile.add(pair * BLOCK_SIDE).cast(), both);
        }
        transpose(tile.cast());
    }
}

/// Pairs, then quads of rows within each 128-bit lane, then the lanes themselves.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose(tile: *mut u32) {
    let mut rows = [_mm512_setzero_si512(); LANES];
    for (index, row) in rows.iter_mut().enumerate() {
        // SAFETY: 16 aligned rows of 64 bytes belong to the caller.
        *row = unsafe { _mm512_load_si512(tile.add(index * LANES).cast()) };
    }
    let mut quads = [_mm512_setzero_si512(); LANES];
    for group in 0..4 {
        let [a, b, c, d] = [rows[4 * group], rows[4 * group + 1], rows[4 * group + 2], rows[4 * group + 3]];
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (low_next, high_next) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        quads[4 * group] = _mm512_unpacklo_epi64(low, low_next);
        quads[4 * group + 1] = _mm512_unpackhi_epi64(low, low_next);
        quads[4 * group + 2] = _mm512_unpacklo_epi64(high, high_next);
        quads[4 * group + 3] = _mm512_unpackhi_epi64(high, high_next);
    }
    for column in 0..4 {
        let [a, b, c, d] = [quads[column], quads[4 + column], quads[8 + column], quads[12 + column]];
        let (even, even_next) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        let (odd, odd_next) = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d));
        let lanes = [
            _mm512_shuffle_i32x4::<0x88>(even, even_next),
            _mm512_shuffle_i32x4::<0x88>(odd, odd_next),
            _mm512_shuffle_i32x4::<0xdd>(even, even_next),
            _mm512_shuffle_i32x4::<0xdd>(odd, odd_next),
        ];
        for (lane, row) in lanes.into_iter().enumerate() {
            // SAFETY: as for the loads.
            unsafe { _mm512_store_si512(tile.add((4 * lane + column) * LANES).cast(), row) };
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn store(block: *const f32, rows: usize, columns: usize, sink: Sink) {
    let mask: __mmask32 = if columns >= BLOCK_SIDE { !0 } else { (1 << columns) - 1 };
    let halves = [mask as __mmask16, (mask >> LANES) as __mmask16];
    let zero = _mm512_setzero_ps();
    // SAFETY: a bias has 32 elements; the block is aligned; rows of the sink are touched only in the masked columns, which
    // are the caller's.
    unsafe {
        let bias = [0, LANES].map(|half| if sink.bias.is_null() { zero } else { _mm512_loadu_ps(sink.bias.add(half)) });
        for row in 0..rows {
            let line = block.add(row * BLOCK_SIDE);
            let mut low = _mm512_add_ps(_mm512_load_ps(line), bias[0]);
            let mut high = _mm512_add_ps(_mm512_load_ps(line.add(LANES)), bias[1]);
            if !sink.residual.is_null() {
                let residual = _mm512_maskz_loadu_epi16(mask, sink.residual.add(row * sink.stride).cast());
                low = _mm512_add_ps(low, widen(_mm512_castsi512_si256(residual)));
                high = _mm512_add_ps(high, widen(_mm512_extracti64x4_epi64::<1>(residual)));
            }
            match sink.target {
                Target::F32(start) => {
                    let target = start.add(row * sink.stride);
                    _mm512_mask_storeu_ps(target, halves[0], low);
                    _mm512_mask_storeu_ps(target.wrapping_add(LANES), halves[1], high);
                }
                Target::Bf16(start) => {
                    let rounded = narrow(low, high);
                    _mm512_mask_storeu_epi16(start.add(row * sink.stride).cast(), mask, rounded);
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen(bits: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
}

/// 32 f32 as bf16, nearest even.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn narrow(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn observe(scores: *const f32, scale: f32, softmax: *mut Softmax) -> bool {
    let mut peaks = [_mm512_set1_ps(f32::NEG_INFINITY); 4];
    for key in (0..BLOCK_SIDE).step_by(4) {
        for (offset, peak) in peaks.iter_mut().enumerate() {
            // SAFETY: 32 aligned rows of scores belong to the caller.
            *peak = _mm512_max_ps(*peak, unsafe { _mm512_load_ps(scores.add((key + offset) * BLOCK_SIDE)) });
        }
    }
    let peak = _mm512_max_ps(_mm512_max_ps(peaks[0], peaks[1]), _mm512_max_ps(peaks[2], peaks[3]));
    // SAFETY: the caller's state, aligned, which nobody else uses meanwhile.
    let softmax = unsafe { &mut *softmax };
    // SAFETY: 16 aligned f32.
    let reference = unsafe { _mm512_load_ps(softmax.reference.as_ptr()) };
    let passed = _mm512_mul_ps(_mm512_sub_ps(peak, reference), _mm512_set1_ps(scale));
    if _mm512_cmp_ps_mask::<_CMP_GT_OQ>(passed, _mm512_set1_ps(super::engine::SLACK)) == 0 {
        return false;
    }
    let mut highest = [0.0; LANES];
    // SAFETY: 16 f32.
    unsafe { _mm512_storeu_ps(highest.as_mut_ptr(), peak) };
    softmax.advance(&highest, scale)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
unsafe fn exponentials(session: &mut Session, work: Exponentials, products: &[Product]) {
    let pairs = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1,
        16, 0,
    );
    const SLOTS: usize = LANES / 2;
    let mut beside = InterleavedProducts::new(session, products, SLOTS);
    // SAFETY: the caller's state, aligned, 32 rows of scores and a tile; the products are the caller's too.
    unsafe {
        let softmax = &mut *work.softmax;
        let factor = _mm512_set1_ps(work.scale);
        let origin = _mm512_mul_ps(_mm512_load_ps(softmax.reference.as_ptr()), factor);
        let mut sums = [_mm512_setzero_ps(); 4];
        for slot in 0..SLOTS {
            beside.advance();
            for next in 0..2 {
                let pair = 2 * slot + next;
                let scores = work.scores.add(2 * pair * BLOCK_SIDE);
                let even = exp2(_mm512_fmsub_ps(_mm512_load_ps(scores), factor, origin));
                let odd = exp2(_mm512_fmsub_ps(_mm512_load_ps(scores.add(BLOCK_SIDE)), factor, origin));
                sums[2 * next] = _mm512_add_ps(sums[2 * next], even);
                sums[2 * next + 1] = _mm512_add_ps(sums[2 * next + 1], odd);
                let packed = _mm512_permutexvar_epi16(pairs, narrow(even, odd));
                _mm512_store_si512(work.weights.add(pair * BLOCK_SIDE).cast(), packed);
            }
        }
        let sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
        let sum = _mm512_add_ps(_mm512_load_ps(softmax.sum.as_ptr()), sum);
        _mm512_store_ps(softmax.sum.as_mut_ptr(), sum);
    }
}

/// `2^x` to a relative 1e-4, a twentieth of what rounding the result to bf16 costs; 0 for minus infinity. A cubic through
/// the fractional part, scaled by the integer part.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn exp2(x: __m512) -> __m512 {
    const FLOOR: i32 = 0x09; // reduce: x - floor(x), no exceptions
    let fraction = _mm512_reduce_ps::<FLOOR>(x);
    let cubic = _mm512_set1_ps(0.078_024_46);
    let cubic = _mm512_fmadd_ps(cubic, fraction, _mm512_set1_ps(0.226_067_27));
    let cubic = _mm512_fmadd_ps(cubic, fraction, _mm512_set1_ps(0.695_833_5));
    let cubic = _mm512_fmadd_ps(cubic, fraction, _mm512_set1_ps(0.999_925_2));
    _mm512_scalef_ps(cubic, x)
}
