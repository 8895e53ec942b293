// Merge of partials, gather, scores of keys, the largest of them.
#include "common.cuh"

// Exact merge of `n` partials in the order given (Star Attention, algorithm 2, in its max form). One block a row.
template <class T>
__device__ void merge(const T* const* outputs, const float* const* lses, int n, T* out, float* out_lse, int dim) {
    size_t row = blockIdx.x;
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) max = fmaxf(max, lses[i][row]);
    for (int i = 0; i < n; i++) sum += lses[i][row] == -INFINITY ? 0.f : expf(lses[i][row] - max);
    float inverse = sum == 0 ? 0.f : 1.f / sum;
    for (int at = threadIdx.x; at < dim; at += blockDim.x) {
        float total = 0;
        for (int i = 0; i < n; i++) {
            float lse = lses[i][row];
            float weight = lse == -INFINITY ? 0.f : expf(lse - max) * inverse;
            total = fmaf(widen(outputs[i][row * dim + at]), weight, total);
        }
        out[row * dim + at] = narrow<T>(total);
    }
    if (threadIdx.x == 0) out_lse[row] = max == -INFINITY ? max : max + logf(sum);
}
extern "C" __global__ void merge_f32(const float* const* o, const float* const* l, int n, float* out, float* lse, int dim) {
    merge(o, l, n, out, lse, dim);
}
extern "C" __global__ void merge_bf16(const bf16* const* o, const float* const* l, int n, bf16* out, float* lse, int dim) {
    merge(o, l, n, out, lse, dim);
}

// Rows `rows[head]` of each head of (heads, t, dim). One block a row.
template <class T> __device__ void gather(const T* x, const unsigned* rows, T* out, int t, int count, int dim) {
    size_t at = blockIdx.x, head = at / count;
    const T* from = x + (head * t + rows[at]) * dim;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) out[at * dim + i] = from[i];
}
extern "C" __global__ void gather_bf16(const bf16* x, const unsigned* rows, bf16* out, int t, int count, int dim) {
    gather(x, rows, out, t, count, dim);
}
extern "C" __global__ void gather_f32(const float* x, const unsigned* rows, float* out, int t, int count, int dim) {
    gather(x, rows, out, t, count, dim);
}

// Mean of `count` rows of each KV head: one block a KV head.
template <class T> __device__ void mean_rows(const T* q, float* out, int count, int dim) {
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float sum = 0;
        for (int row = 0; row < count; row++) sum += widen(q[((size_t)blockIdx.x * count + row) * dim + i]);
        out[blockIdx.x * dim + i] = sum / count;
    }
}
// One warp a key.
template <class T> __device__ void key_dots(const float* mean, const T* k, float* out, int heads, int t, int dim) {
    long long key = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (key >= (long long)heads * t) return;
    float sum = 0;
    for (int i = threadIdx.x % 32; i < dim; i += 32) sum += mean[key / t * dim + i] * widen(k[key * dim + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) out[key] = sum;
}
extern "C" __global__ void mean_rows_bf16(const bf16* q, float* out, int count, int dim) { mean_rows(q, out, count, dim); }
extern "C" __global__ void mean_rows_f32(const float* q, float* out, int count, int dim) { mean_rows(q, out, count, dim); }
extern "C" __global__ void key_dots_bf16(const float* m, const bf16* k, float* out, int h, int t, int d) {
    key_dots(m, k, out, h, t, d);
}
extern "C" __global__ void key_dots_f32(const float* m, const float* k, float* out, int h, int t, int d) {
    key_dots(m, k, out, h, t, d);
}

// Indices of the `k` largest of each list of `n` scores, ties to the smallest index, ascending. One block of 1,024 threads a
// list: the k-th largest is found digit by digit, then its place among equals, then all are written in order.
extern "C" __global__ __launch_bounds__(1024) void top_k(const float* scores, unsigned* out, int n, int k) {
    __shared__ unsigned counts[256], digit, left, above[32], equal[32], base_above, base_equal;
    const float* list = scores + (size_t)blockIdx.x * n;
    unsigned* to = out + (size_t)blockIdx.x * k;
    unsigned prefix = 0, wanted = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += 1024) counts[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += 1024) {
            unsigned x = ordered(list[i]);
            if (shift == 24 || x >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&counts[x >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned rest = wanted;
            int d = 255;
            for (; d > 0 && counts[d] < rest; d--) rest -= counts[d];
            digit = d;
            left = rest;
        }
        __syncthreads();
        prefix |= digit << shift;
        wanted = left;
        __syncthreads();
    }
    // All above the threshold and the first `wanted` equal to it.
    if (threadIdx.x == 0) base_above = base_equal = 0;
    __syncthreads();
    for (int start = 0; start < n; start += 1024) {
        int i = start + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        unsigned x = i < n ? ordered(list[i]) : 0;
        bool is_above = i < n && x > prefix, is_equal = i < n && x == prefix;
        unsigned a = __ballot_sync(~0u, is_above), e = __ballot_sync(~0u, is_equal), before = (1u << lane) - 1;
        if (lane == 0) above[warp] = __popc(a), equal[warp] = __popc(e);
        __syncthreads();
        unsigned at_above = base_above + __popc(a & before), at_equal = base_equal + __popc(e & before);
        for (int w = 0; w < warp; w++) at_above += above[w], at_equal += equal[w];
        if (is_above) to[at_above + min(at_equal, wanted)] = i;
        if (is_equal && at_equal < wanted) to[at_above + at_equal] = i;
        __syncthreads();
        if (threadIdx.x == 1023) base_above = at_above + is_above, base_equal = at_equal + is_equal;
        __syncthreads();
    }
}

// Merges a second partial into a first, rows of either anywhere. One warp a row of a head.
struct Pair {
    void* out;
    const void* other;
    float* lse;
    const float* other_lse;
    long long out_head, out_row, other_head, other_row, lse_head, other_lse_head;
    int heads, rows, dim, unused;
};
// `V` elements a thread from `i` on; the threads of a row are of one warp, and none writes the statistics before all have read them.
template <int V> __device__ __forceinline__ void merge_into_by(const Pair& p, long long at, int i, int step) {
    bool there = at < (long long)p.heads * p.rows, leads = there && i == 0;
    int head = there ? at % p.heads : 0, row = there ? at / p.heads : 0;
    float *lse = p.lse + head * p.lse_head + row, first = *lse, second = p.other_lse[head * p.other_lse_head + row];
    float max = fmaxf(first, second);
    float a = first == -INFINITY ? 0.f : expf(first - max), b = second == -INFINITY ? 0.f : expf(second - max);
    float inverse = a + b == 0 ? 0.f : 1.f / (a + b);
    typedef Pack<bf16, V> Some;
    bf16* out = (bf16*)p.out + head * p.out_head + row * p.out_row;
    const bf16* other = (const bf16*)p.other + head * p.other_head + row * p.other_row;
    for (; there && i < p.dim; i += step) {
        Some x = *(Some*)(out + i), y = *(const Some*)(other + i);
        for (int j = 0; j < V; j++) x.x[j] = narrow<bf16>((widen(x.x[j]) * a + widen(y.x[j]) * b) * inverse);
        *(Some*)(out + i) = x;
    }
    __syncwarp();
    if (leads) *lse = max == -INFINITY ? max : max + logf(a + b);
}
extern "C" __global__ __launch_bounds__(256) void merge_into(const __grid_constant__ Pair p) {
    follow();
    long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    merge_into_by<2>(p, thread / 32, threadIdx.x % 32 * 2, 64);
}
// Rows of 8, 16 or 32 times eight elements.
extern "C" __global__ __launch_bounds__(256) void merge_into_wide(const __grid_constant__ Pair p) {
    follow();
    long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    int lanes = p.dim / 8;
    merge_into_by<8>(p, thread / lanes, thread % lanes * 8, p.dim);
}

// Packed rows, each of the outputs of all query heads and their log-sum-exps, merged in the order given: row `at` of partials
// `first..first + count` becomes row `to`. One block a row and head. To packed rows again, or to outputs alone.
struct MergedRow {
    int first, count, at, to;
};
template <class T, bool PACKED>
__device__ void merge_packed(const float* const* partials, const MergedRow* rows, T* out, int query, int dim) {
    constexpr int AHEAD = 16;  // elements that a thread has on their way
    const MergedRow r = rows[blockIdx.x];
    extern __shared__ float weights[];
    int head = blockIdx.y;
    size_t stride = (size_t)query * (dim + 1), start = r.at * stride;
    for (int i = threadIdx.x; i < r.count; i += blockDim.x)
        weights[i] = partials[r.first + i][start + query * dim + head];
    __syncthreads();
    float max = -INFINITY, sum = 0;
    for (int i = threadIdx.x % 32; i < r.count; i += 32) max = fmaxf(max, weights[i]);
    max = warp_max(max);
    __syncthreads();
    for (int i = threadIdx.x; i < r.count; i += blockDim.x)
        weights[i] = weights[i] == -INFINITY ? 0.f : expf(weights[i] - max);
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < r.count; i++) sum += weights[i];
    float inverse = sum == 0 ? 0.f : 1.f / sum;
    T* to = out + r.to * (PACKED ? stride : (size_t)query * dim);
    for (int at = threadIdx.x; at < dim; at += blockDim.x) {
        float total = 0, held[AHEAD];
        for (int i = 0; i < r.count; i += AHEAD) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (i + j < r.count) held[j] = partials[r.first + i + j][start + head * dim + at];
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (i + j < r.count) total = fmaf(held[j], weights[i + j] * inverse, total);
        }
        to[head * dim + at] = narrow<T>(total);
    }
    if (PACKED && threadIdx.x == 0) to[query * dim + head] = narrow<T>(max == -INFINITY ? max : max + logf(sum));
}
#define K extern "C" __global__ void
K merge_rows(const float* const* p, const MergedRow* r, float* out, int query, int dim) {
    follow_early();
    merge_packed<float, true>(p, r, out, query, dim);
}
K merge_outputs_bf16(const float* const* p, const MergedRow* r, bf16* out, int query, int dim) {
    follow_early();
    merge_packed<bf16, false>(p, r, out, query, dim);
}
K merge_rows_carried(const __grid_constant__ Carried c, int p, int r, float* out, int query, int dim) {
    follow_early();
    merge_packed<float, true>(within<const float*>(c, p), within<MergedRow>(c, r), out, query, dim);
}
K merge_outputs_carried_bf16(const __grid_constant__ Carried c, int p, int r, bf16* out, int query, int dim) {
    follow_early();
    merge_packed<bf16, false>(within<const float*>(c, p), within<MergedRow>(c, r), out, query, dim);
}
K merge_outputs_carried_f32(const __grid_constant__ Carried c, int p, int r, float* out, int query, int dim) {
    follow_early();
    merge_packed<float, false>(within<const float*>(c, p), within<MergedRow>(c, r), out, query, dim);
}
K merge_outputs_f32(const float* const* p, const MergedRow* r, float* out, int query, int dim) {
    follow_early();
    merge_packed<float, false>(p, r, out, query, dim);
}

// Words that came as an argument: tables among them, which attention reads before it waits.
K put(unsigned* to, const __grid_constant__ Carried from, int count) {
    follow_and_finish();
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from.words[i];
}

// Runs of `steps` 16-byte elements, from anywhere to anywhere, some from f32 to half as many bytes of bf16.
struct Run {
    const void* from;
    void* to;
    int steps, narrows;
};
constexpr int RUNS = 32;
struct Runs {
    Run each[RUNS];
};
K copy_runs(const __grid_constant__ Runs r) {
    follow_early();
    const Run run = r.each[blockIdx.y];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < run.steps; i += gridDim.x * blockDim.x) {
        if (run.narrows) {
            Pack<float, 4> low = ((const Pack<float, 4>*)run.from)[2 * i], high = ((const Pack<float, 4>*)run.from)[2 * i + 1];
            Pack<bf16, 8> x;
            for (int j = 0; j < 4; j++) x.x[j] = narrow<bf16>(low.x[j]), x.x[j + 4] = narrow<bf16>(high.x[j]);
            ((Pack<bf16, 8>*)run.to)[i] = x;
        } else {
            ((uint4*)run.to)[i] = ((const uint4*)run.from)[i];
        }
    }
}

// Runs of whole rows of `row` elements, which lie `pitch` elements from one to the next where they are written.
struct ColumnRuns {
    Run each[RUNS];
    int row, pitch;
};
K copy_columns(const __grid_constant__ ColumnRuns r) {
    follow_early();
    const Run run = r.each[blockIdx.y];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < run.steps; i += gridDim.x * blockDim.x) {
        int line = i / r.row;
        ((uint4*)run.to)[(long long)line * r.pitch + (i - line * r.row)] = ((const uint4*)run.from)[i];
    }
}

// Says in `*found` that there are words that differ.
K differ(const unsigned* a, const unsigned* b, unsigned* found, long long count) {
    bool mine = false;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x)
        mine |= a[i] != b[i];
    if (mine) *found = 1;
}

// A step's rows to where each belongs: keys and values behind those of its sequence, queries to where every layer of the step finds
// them. One block a row, in 16-byte steps; `to` has the place of its key in the first layer.
struct Placed {
    char* k;
    long long value, layer;  // bytes from a key to its value, and from layer to layer
};
K place_rows(const uint4* q, const uint4* k, const uint4* v, uint4* queries, const Placed* to, int q_steps, int kv_steps, int layer) {
    follow_early();
    size_t row = blockIdx.x;
    const Placed place = to[row];
    uint4 *key = (uint4*)(place.k + layer * place.layer), *value = (uint4*)(place.k + layer * place.layer + place.value);
    for (int i = threadIdx.x; i < q_steps; i += blockDim.x) queries[row * q_steps + i] = q[row * q_steps + i];
    for (int i = threadIdx.x; i < kv_steps; i += blockDim.x) {
        key[i] = k[row * kv_steps + i];
        value[i] = v[row * kv_steps + i];
    }
}

// Maps of keys and values, 256 bytes each, to where they are kept: 16 threads a pair.
K keep_maps(const uint4* maps, uint4* const* to, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count * 16) to[at / 16][at % 16] = maps[at];
}
