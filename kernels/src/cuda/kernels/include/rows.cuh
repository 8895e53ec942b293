// What a warp does with 16 rows and a block of keys and values in shared memory, on mma.sync: 16-byte chunk c of row r lies at
// chunk r * D / 8 + (c ^ r % 8).
#pragma once
#include "calls.cuh"
#include "tiles.cuh"

// A warp's 16 rows: running maximum (base 2), sum and output of the rows lane / 4 and lane / 4 + 8.
template <int D> struct Running {
    float max[2], sum[2], out[D / 8][4];
    __device__ __forceinline__ void clear() {
        for (int r = 0; r < 2; r++) max[r] = -INFINITY, sum[r] = 0;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            for (int i = 0; i < 4; i++) out[n][i] = 0;
    }
    // Sums over the four lanes that share a row.
    __device__ __forceinline__ void join_lanes() {
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        }
    }
};

// Scores of the rows, in registers as the left operand wants them, and a block of keys.
template <int D, int KEYS>
__device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 8][4], const uint32_t (&q)[D / 16][4], uint32_t keys) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        for (int i = 0; i < 4; i++) scores[n][i] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; step++)
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            int row = n * 16 + lane / 16 * 8 + lane % 8, column = step * 2 + lane / 8 % 2;
            uint32_t b[4];
            load4(b, keys + (row * (D / 8) + (column ^ (row & 7))) * 16);
            mma(scores[2 * n], q[step], b[0], b[1]);
            mma(scores[2 * n + 1], q[step], b[2], b[3]);
        }
}
// Scores of the row lane / 4 + 8 r become weights, and what is there fades to the new maximum.
template <int D, int KEYS>
__device__ __forceinline__ void soften(float (&scores)[KEYS / 8][4], int r, Running<D>& part, float scale) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) most = fmaxf(most, fmaxf(scores[n][r * 2], scores[n][r * 2 + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    most = fmaxf(part.max[r], most * scale);
    float from = most == -INFINITY ? 0.f : most, fade = factor(part.max[r], most);
    part.max[r] = most;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        for (int i = 0; i < 2; i++) {
            float weight = exp2_fast(__fmaf_rn(scores[n][r * 2 + i], scale, -from));
            scores[n][r * 2 + i] = weight;
            sum += weight;
        }
    part.sum[r] = __fmaf_rn(part.sum[r], fade, sum);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        for (int i = 0; i < 2; i++) part.out[n][r * 2 + i] *= fade;
}
// Weights and a block of values.
template <int D, int KEYS>
__device__ __forceinline__ void multiply_values(const float (&weights)[KEYS / 8][4], uint32_t values, Running<D>& part) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        const float(&one)[4] = weights[2 * step], (&two)[4] = weights[2 * step + 1];
        uint32_t p[4] = {pair(one[0], one[1]), pair(one[2], one[3]), pair(two[0], two[1]), pair(two[2], two[3])};
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            int row = step * 16 + lane / 8 % 2 * 8 + lane % 8, column = n * 2 + lane / 16;
            uint32_t b[4];
            load4_transposed(b, values + (row * (D / 8) + (column ^ (row & 7))) * 16);
            mma(part.out[2 * n], p, b[0], b[1]);
            mma(part.out[2 * n + 1], p, b[2], b[3]);
        }
    }
}
