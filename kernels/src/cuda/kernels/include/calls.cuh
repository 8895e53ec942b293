// What kernels of attention are told, and the arithmetic that they share.
#pragma once
#include "softmax.cuh"

struct Attention {
    const bf16 *q, *k, *v;
    // Whole: rows in `out_type`; pieces: f32 partials (kv head, piece, packed rows, D); one piece that is placed at once: packed rows,
    // `out_row` elements from each to the next, which is 0 for partials
    void* out;
    float *lse, *sums;  // Whole and placed: natural log-sum-exp (query heads, rows); pieces: maxima (base 2) and sums
    long long q_head, q_row, kv_head, kv_row, out_head, out_row, lse_head;
    Mask mask;
    int group, rows, out_is_bf16;
    float scale;  // 1 / sqrt(dim), times log2(e)
};
// Of calls together, what a block of threads does.
struct Item {
    int call, tile, piece, pieces;
};

__device__ __forceinline__ uint32_t pair(float low, float high) {
    __nv_bfloat162 p = __floats2bfloat162_rn(low, high);
    return *(uint32_t*)&p;
}

// `part` merged into a running total, term by term: the same arithmetic wherever it is done.
__device__ __forceinline__ void merge_statistics(float& max, float& sum, float part_max, float part_sum, float& a, float& b) {
    float most = fmaxf(max, part_max);
    a = factor(max, most), b = factor(part_max, most);
    sum = __fmaf_rn(part_sum, b, __fmul_rn(sum, a));
    max = most;
}
__device__ __forceinline__ float merge_output(float out, float part, float a, float b) {
    return __fmaf_rn(part, b, __fmul_rn(out, a));
}
