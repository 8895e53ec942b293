// What a warpgroup does with its 64 rows and a block of keys and values.
#pragma once
#include "halves.cuh"
#include "warpgroups.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Begins to multiply queries and keys.
template <int D> __device__ __forceinline__ void score(float (&scores)[KEYS / 2], uint32_t queries, uint32_t keys) {
    uint32_t q = by_rows(queries), k = by_rows(keys);
    hold(scores);
    products_begin();
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        int at = (step / 4 * PANEL + step % 4 * 32) / 16;
        product_of_rows(scores, q + at, k + at, step > 0);
    }
    products_end();
}

// Weights of scores, as products want them on their left, and by what factors what is there fades to the new maximum.
template <int D>
__device__ __forceinline__ void soften(
    const float (&scores)[KEYS / 2], uint32_t (&weights)[KEYS / 16][4], float (&fade)[2], Running<D>& part, float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = fmaxf(part.max[r], row_max(scores, r) * scale);
        float from = most == -INFINITY ? 0.f : most, sum = 0, sums = 0;
        fade[r] = factor(part.max[r], most);
        part.max[r] = most;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            float one = exp2_fast(__fmaf_rn(scores[n * 4 + r * 2], scale, -from));
            float two = exp2_fast(__fmaf_rn(scores[n * 4 + r * 2 + 1], scale, -from));
            weights[n / 2][n % 2 * 2 + r] = pair(one, two);
            sum += one, sums += two;
        }
        part.sum[r] = __fmaf_rn(part.sum[r], fade[r], sum + sums);
    }
}
template <int D> __device__ __forceinline__ void fade_out(const float (&fade)[2], Running<D>& part) {
    // Mostly no maximum grows.
    if (__any_sync(~0u, fade[0] != 1.f || fade[1] != 1.f)) {
#pragma unroll
        for (int i = 0; i < D / 2; i++) part.out[i] *= fade[i / 2 % 2];
    }
}
// Begins to multiply weights and values.
template <int D> __device__ __forceinline__ void weigh(const uint32_t (&weights)[KEYS / 16][4], uint32_t values, Running<D>& part) {
    uint32_t v = by_columns(values);
    hold(part.out);
    products_begin();
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) product_add(part.out, weights[step], v + step * 16 * 128 / 16);
    products_end();
}
#endif
