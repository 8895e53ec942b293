// The pieces that attention cut its keys into, put together.
#include "softmax.cuh"

#define K extern "C" __global__ void

// Partials of the pieces of one call, (kv head, piece, packed rows).
struct Pieces {
    const float *outputs, *maxima, *sums;
    int pieces, packed;
};
// An element, a thread each, of the output of a packed row, and the row's log-sum-exp. So many pieces are asked for ahead.
template <int AHEAD>
__device__ __forceinline__ float combine_pieces(const Pieces& p, int row, int kv_head, int dim, float* weights, float& lse) {
    size_t first = (size_t)kv_head * p.pieces * p.packed + row;
    if (p.pieces == 1) {
        float max = p.maxima[first], weight = factor(max, max), sum = p.sums[first] * weight;
        lse = sum > 0 ? __fmaf_rn(max, LN2, logf(sum)) : -INFINITY;
        return sum > 0 ? p.outputs[first * dim + threadIdx.x] * weight / sum : 0.f;
    }
    // The first ones are on their way while the maxima are compared.
    float sums[AHEAD], outputs[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        size_t at = first + (size_t)i * p.packed;
        bool there = i < p.pieces;
        sums[i] = there ? p.sums[at] : 0.f, outputs[i] = there ? p.outputs[at * dim + threadIdx.x] : 0.f;
    }
    float max = -INFINITY;
    for (int i = threadIdx.x; i < p.pieces; i += blockDim.x) {
        weights[i] = p.maxima[first + (size_t)i * p.packed];
        max = fmaxf(max, weights[i]);
    }
    __shared__ float most[32];
    max = warp_max(max);
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = max;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++) max = fmaxf(max, most[i]);
    for (int i = threadIdx.x; i < p.pieces; i += blockDim.x) weights[i] = factor(weights[i], max);
    __syncthreads();
    float sum = 0, out = 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < p.pieces) sum = __fmaf_rn(sums[i], weights[i], sum), out = __fmaf_rn(outputs[i], weights[i], out);
#pragma unroll AHEAD
    for (int i = AHEAD; i < p.pieces; i++) {
        size_t at = first + (size_t)i * p.packed;
        sum = __fmaf_rn(p.sums[at], weights[i], sum);
        out = __fmaf_rn(p.outputs[at * dim + threadIdx.x], weights[i], out);
    }
    lse = sum > 0 ? __fmaf_rn(max, LN2, logf(sum)) : -INFINITY;
    return sum > 0 ? out / sum : 0.f;
}

// One block a packed row and KV head, a thread an element.
struct Combination {
    Pieces pieces;
    void* out;
    float* lse;
    long long out_head, out_row, lse_head;
    int group, dim, out_is_bf16, unused;
};
template <int AHEAD> __device__ __forceinline__ void combine_alone(const Combination& c, float* weights) {
    follow_early();
    int row = blockIdx.x, kv_head = blockIdx.y, head = kv_head * c.group + row % c.group, token = row / c.group;
    float lse, out = combine_pieces<AHEAD>(c.pieces, row, kv_head, c.dim, weights, lse);
    size_t at = head * c.out_head + token * c.out_row + threadIdx.x;
    if (c.out_is_bf16) ((bf16*)c.out)[at] = narrow<bf16>(out);
    else ((float*)c.out)[at] = out;
    if (threadIdx.x == 0) c.lse[head * c.lse_head + token] = lse;
}

// The same of many calls, each to a place of its own, in f32: `row` elements from row to row, of heads one behind the other.
// Blocks in x: calls times the packed rows of the largest.
struct PlacedCombination {
    Pieces pieces;
    float *out, *lse;  // log-sum-exps where they are wanted
    long long row;
};
template <int AHEAD>
__device__ __forceinline__ void combine_placed_at(const PlacedCombination* calls, float* weights, int packed, int group, int dim) {
    follow_early();
    const PlacedCombination c = calls[blockIdx.x / packed];
    int row = blockIdx.x % packed, kv_head = blockIdx.y, head = kv_head * group + row % group;
    if (row >= c.pieces.packed) return;
    float lse, out = combine_pieces<AHEAD>(c.pieces, row, kv_head, dim, weights, lse);
    c.out[row / group * c.row + head * dim + threadIdx.x] = out;
    if (threadIdx.x == 0 && c.lse) c.lse[row / group * c.row + head] = lse;
}
// Deep ones are of many pieces.
#define COMBINE(DEPTH, AHEAD)                                                                                                \
    K combine##DEPTH(const __grid_constant__ Combination c) {                                                                \
        extern __shared__ float weights[];                                                                                   \
        combine_alone<AHEAD>(c, weights);                                                                                    \
    }                                                                                                                        \
    K combine_placed##DEPTH(const PlacedCombination* calls, int packed, int group, int dim) {                                \
        extern __shared__ float weights[];                                                                                   \
        combine_placed_at<AHEAD>(calls, weights, packed, group, dim);                                                        \
    }                                                                                                                        \
    K combine_placed_carried##DEPTH(const __grid_constant__ Carried c, int calls, int packed, int group, int dim) {          \
        extern __shared__ float weights[];                                                                                   \
        combine_placed_at<AHEAD>(within<PlacedCombination>(c, calls), weights, packed, group, dim);                          \
    }
COMBINE(, 8)
COMBINE(_deep, 16)
