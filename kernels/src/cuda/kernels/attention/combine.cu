// The pieces that attention cut its keys into, put together.
#include "softmax.cuh"

#define K extern "C" __global__ void

// Warps of a block of threads, V * 32 elements of a packed row each.
constexpr int WARPS = 4;

// Partials of the pieces of one call, (kv head, piece, packed rows).
struct Pieces {
    const float *outputs, *maxima, *sums;
    int pieces, packed;
};
// What a warp makes: V elements a lane from `column` on of a packed row `row` of the block of threads `block`.
template <int V, int D> struct Place {
    static constexpr int SHARES = D / (32 * V), ROWS = WARPS / SHARES;
    int row, column;
    __device__ __forceinline__ explicit Place(int block) {
        int warp = threadIdx.x / 32;
        row = block * ROWS + warp / SHARES, column = (warp % SHARES * 32 + threadIdx.x % 32) * V;
    }
};
// Some elements of a packed row, and its log-sum-exp. Outputs of so many pieces are on their way while maxima are compared; of 32 pieces
// at a time each lane has the weight of one.
template <int AHEAD, int V, int D>
__device__ __forceinline__ Pack<float, V> combine_pieces(const Pieces& p, const Place<V, D>& place, int kv_head, float& lse) {
    typedef Pack<float, V> Some;
    int lane = threadIdx.x % 32;
    size_t first = (size_t)kv_head * p.pieces * p.packed + place.row;
    auto output = [&](int piece) { return *(const Some*)(p.outputs + (first + (size_t)piece * p.packed) * D + place.column); };
    Some held[AHEAD], out;
    auto bring = [&](int start) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (start + i < p.pieces) held[i] = output(start + i);
    };
    bring(0);
    float maximum, part;
    auto look = [&](int piece) {
        bool there = piece < p.pieces;
        size_t at = first + (size_t)piece * p.packed;
        maximum = there ? p.maxima[at] : -INFINITY, part = there ? p.sums[at] : 0.f;
    };
    look(lane);
    float max = maximum, sum = 0;
    for (int i = lane + 32; i < p.pieces; i += 32) max = fmaxf(max, p.maxima[first + (size_t)i * p.packed]);
    max = warp_max(max);
#pragma unroll
    for (int j = 0; j < V; j++) out.x[j] = 0;
    float weight = factor(maximum, max);
    for (int start = 0; start < p.pieces; start += AHEAD) {
        if (start > 0) bring(start);
        if (start > 0 && start % 32 == 0) look(start + lane), weight = factor(maximum, max);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (start + i >= p.pieces) break;
            float by = __shfl_sync(~0u, weight, (start + i) % 32);
            sum = __fmaf_rn(__shfl_sync(~0u, part, (start + i) % 32), by, sum);
#pragma unroll
            for (int j = 0; j < V; j++) out.x[j] = __fmaf_rn(held[i].x[j], by, out.x[j]);
        }
    }
    lse = log_sum_exp(max, sum);
#pragma unroll
    for (int j = 0; j < V; j++) out.x[j] = sum > 0 ? out.x[j] / sum : 0.f;
    return out;
}
// A lane's elements to where they may lie side by side anyhow.
template <int V> __device__ __forceinline__ void store(float* to, const Pack<float, V>& x) {
    if ((size_t)to % sizeof(x) == 0) *(Pack<float, V>*)to = x;
    else
        for (int j = 0; j < V; j++) to[j] = x.x[j];
}

struct Combination {
    Pieces pieces;
    void* out;
    float* lse;
    long long out_head, out_row, lse_head;
    int group, dim, out_is_bf16, unused;
};
template <int AHEAD, int V, int D> __device__ __forceinline__ void combine_alone(const Combination& c) {
    follow_early();
    Place<V, D> place(blockIdx.x);
    int row = place.row;
    if (row >= c.pieces.packed) return;
    int kv_head = blockIdx.y, head = kv_head * c.group + row % c.group, token = row / c.group;
    float lse;
    Pack<float, V> out = combine_pieces<AHEAD>(c.pieces, place, kv_head, lse);
    size_t at = head * c.out_head + token * c.out_row + place.column;
    if (c.out_is_bf16) {
        Pack<bf16, V> rounded;
        for (int j = 0; j < V; j++) rounded.x[j] = narrow<bf16>(out.x[j]);
        *(Pack<bf16, V>*)((bf16*)c.out + at) = rounded;
    } else {
        store<V>((float*)c.out + at, out);
    }
    if (place.column == 0) c.lse[head * c.lse_head + token] = lse;
}

// The same of many calls, each to a place of its own, in f32: `row` elements from row to row, of heads one behind the other.
// Blocks in x: calls times those of the packed rows of the largest.
struct PlacedCombination {
    Pieces pieces;
    float *out, *lse;  // log-sum-exps where they are wanted
    long long row;
};
template <int AHEAD, int V, int D>
__device__ __forceinline__ void combine_placed_at(const PlacedCombination* calls, int packed, int group) {
    follow_early();
    int blocks = (packed + Place<V, D>::ROWS - 1) / Place<V, D>::ROWS;
    Place<V, D> place(blockIdx.x % blocks);
    const PlacedCombination c = calls[blockIdx.x / blocks];
    int row = place.row;
    if (row >= c.pieces.packed) return;
    int kv_head = blockIdx.y, head = kv_head * group + row % group;
    float lse;
    Pack<float, V> out = combine_pieces<AHEAD>(c.pieces, place, kv_head, lse);
    store<V>(c.out + row / group * c.row + head * D + place.column, out);
    if (place.column == 0 && c.lse) c.lse[row / group * c.row + head] = lse;
}
// Outputs of rows that few calls answered for, each combined as above and merged as packed rows are: what `combine_placed` and
// `merge_outputs` make of them, without the way through memory. Blocks in x: rows times those of the query heads of a KV head.
struct TopRow {
    int first, count, row, to;  // which of the inputs, its row in their calls, where its outputs go
};
constexpr int INPUTS = 4;
// Outputs of `count` calls by their log-sum-exps, of which `max` is the largest.
template <int MOST, int V>
__device__ __forceinline__ void merge_outputs(
    const Pack<float, V> (&outputs)[MOST], float (&weights)[MOST], float max, int count, Pack<float, V>& total) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        if (i >= count) break;
        weights[i] = weights[i] == -INFINITY ? 0.f : expf(weights[i] - max);
        sum += weights[i];
    }
    float inverse = sum == 0 ? 0.f : 1.f / sum;
#pragma unroll
    for (int j = 0; j < V; j++) total.x[j] = 0;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        if (i >= count) break;
#pragma unroll
        for (int j = 0; j < V; j++) total.x[j] = fmaf(outputs[i].x[j], weights[i] * inverse, total.x[j]);
    }
}
template <int V> __device__ __forceinline__ void round_to(bf16* to, const Pack<float, V>& x) {
    Pack<bf16, V> rounded;
#pragma unroll
    for (int j = 0; j < V; j++) rounded.x[j] = narrow<bf16>(x.x[j]);
    *(Pack<bf16, V>*)to = rounded;
}
template <int AHEAD, int V, int D>
__device__ __forceinline__ void combine_merged_at(
    const PlacedCombination* calls, const TopRow* rows, const int* inputs, bf16* to, int group, int query) {
    follow_early();
    int blocks = (group + Place<V, D>::ROWS - 1) / Place<V, D>::ROWS;
    Place<V, D> place(blockIdx.x % blocks);
    if (place.row >= group) return;
    const TopRow r = rows[blockIdx.x / blocks];
    int kv_head = blockIdx.y, head = kv_head * group + place.row;
    place.row += r.row * group;
    Pack<float, V> outputs[INPUTS], total;
    float weights[INPUTS], max = -INFINITY;
#pragma unroll
    for (int i = 0; i < INPUTS; i++) {
        if (i >= r.count) break;
        outputs[i] = combine_pieces<AHEAD>(calls[inputs[r.first + i]].pieces, place, kv_head, weights[i]);
        max = fmaxf(max, weights[i]);
    }
    merge_outputs<INPUTS>(outputs, weights, max, r.count, total);
    round_to(to + ((size_t)r.to * query + head) * D + place.column, total);
}
// The same of rows of at most two calls of at most two pieces each, in as few steps as memory takes: where all of it lies is known
// before what attends is done, since that is the same in each layer of a step, and all of it is on its way at once.
constexpr int FLAT_INPUTS = 2, FLAT_PIECES = 2;
template <int V, int D>
__device__ __forceinline__ void combine_merged_flat_at(
    const PlacedCombination* calls, const TopRow* rows, const int* inputs, bf16* to, int group, int query) {
    follow_start();
    typedef Pack<float, V> Some;
    int blocks = (group + Place<V, D>::ROWS - 1) / Place<V, D>::ROWS, lane = threadIdx.x % 32;
    Place<V, D> place(blockIdx.x % blocks);
    int kv_head = blockIdx.y, head = kv_head * group + place.row;
    bool is_row = place.row < group;
    TopRow r{};
    Pieces pieces[FLAT_INPUTS];
    if (is_row) r = rows[blockIdx.x / blocks];
#pragma unroll
    for (int i = 0; i < FLAT_INPUTS; i++)
        if (i < r.count) pieces[i] = calls[inputs[r.first + i]].pieces;
    follow_wait();
    if (!is_row) return;
    place.row += r.row * group;
    Some held[FLAT_INPUTS][FLAT_PIECES], outputs[FLAT_INPUTS], total;
    float maximum[FLAT_INPUTS], part[FLAT_INPUTS], weights[FLAT_INPUTS], max = -INFINITY;
#pragma unroll
    for (int i = 0; i < FLAT_INPUTS; i++) {
        maximum[i] = -INFINITY, part[i] = 0;
        if (i >= r.count) break;
        const Pieces& p = pieces[i];
        size_t first = (size_t)kv_head * p.pieces * p.packed + place.row, own = first + (size_t)lane * p.packed;
        if (lane < p.pieces) maximum[i] = p.maxima[own], part[i] = p.sums[own];
#pragma unroll
        for (int piece = 0; piece < FLAT_PIECES; piece++)
            if (piece < p.pieces) held[i][piece] = *(const Some*)(p.outputs + (first + (size_t)piece * p.packed) * D + place.column);
    }
#pragma unroll
    for (int i = 0; i < FLAT_INPUTS; i++) {
        if (i >= r.count) break;
        float most = warp_max(maximum[i]), weight = factor(maximum[i], most), all = 0;
#pragma unroll
        for (int j = 0; j < V; j++) outputs[i].x[j] = 0;
#pragma unroll
        for (int piece = 0; piece < FLAT_PIECES; piece++) {
            if (piece >= pieces[i].pieces) break;
            float by = __shfl_sync(~0u, weight, piece);
            all = __fmaf_rn(__shfl_sync(~0u, part[i], piece), by, all);
#pragma unroll
            for (int j = 0; j < V; j++) outputs[i].x[j] = __fmaf_rn(held[i][piece].x[j], by, outputs[i].x[j]);
        }
        weights[i] = log_sum_exp(most, all);
#pragma unroll
        for (int j = 0; j < V; j++) outputs[i].x[j] = all > 0 ? outputs[i].x[j] / all : 0.f;
        max = fmaxf(max, weights[i]);
    }
    merge_outputs<FLAT_INPUTS>(outputs, weights, max, r.count, total);
    round_to(to + ((size_t)r.to * query + head) * D + place.column, total);
}
// Deep ones are of many pieces: more of them are on their way at a time, to twice as many warps.
#define COMBINE(DEPTH, AHEAD, V, DIM)                                                                                        \
    K __launch_bounds__(32 * WARPS) combine##DEPTH##_##DIM(const __grid_constant__ Combination c) {                           \
        combine_alone<AHEAD, V, DIM>(c);                                                                                     \
    }                                                                                                                        \
    K __launch_bounds__(32 * WARPS)                                                                                           \
        combine_placed##DEPTH##_##DIM(const PlacedCombination* calls, int packed, int group) {                               \
        combine_placed_at<AHEAD, V, DIM>(calls, packed, group);                                                            \
    }                                                                                                                        \
    K __launch_bounds__(32 * WARPS)                                                                                           \
        combine_placed_carried##DEPTH##_##DIM(const __grid_constant__ Carried c, int calls, int packed, int group) {         \
        combine_placed_at<AHEAD, V, DIM>(within<PlacedCombination>(c, calls), packed, group);                              \
    }                                                                                                                        \
    K __launch_bounds__(32 * WARPS) combine_merged##DEPTH##_##DIM(                                                            \
        const PlacedCombination* calls, const TopRow* rows, const int* inputs, bf16* to, int group, int query) {             \
        combine_merged_at<AHEAD, V, DIM>(calls, rows, inputs, to, group, query);                                             \
    }
COMBINE(, 8, 2, 64)
COMBINE(, 8, 4, 128)
COMBINE(_deep, 16, 1, 64)
COMBINE(_deep, 16, 2, 128)
#define FLAT(V, DIM)                                                                                                  \
    K __launch_bounds__(32 * WARPS, 10) combine_merged_flat_##DIM(                                                    \
        const PlacedCombination* calls, const TopRow* rows, const int* inputs, bf16* to, int group, int query) {      \
        combine_merged_flat_at<V, DIM>(calls, rows, inputs, to, group, query);                                        \
    }
FLAT(2, 64)
FLAT(4, 128)
