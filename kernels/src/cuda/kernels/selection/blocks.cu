// FlexPrefill's choice among blocks of 128 rows and keys, from what `estimates.cu` sums. Every sum has one order.
#include "common.cuh"

constexpr int THREADS = 1024, BLOCK = 128;  // of a block of threads; rows and keys of a block

struct Means {
    // (query heads, rows, dim) and (kv heads, keys, dim).
    const float *queries, *keys;
    // Of each query head, whether it is wanted; none: all are.
    const unsigned* wanted;
    // Of each query head from `first` on: rows of all keys, or of the keys up to the row's own, one behind the other.
    float* weights;
    int rows, count, group, dim, all, first;
    float scale, unused;
};
// Softmax of a row's scaled scores.
extern "C" __global__ __launch_bounds__(128) void attend_means(const __grid_constant__ Means a) {
    __shared__ __align__(16) float query[256];
    __shared__ float parts[4];
    int row = blockIdx.x, head = a.first + (int)blockIdx.y, keys = a.all ? a.count : row + 1;
    if (a.wanted && !a.wanted[head]) return;
    size_t whole = a.all ? (size_t)a.rows * a.count : (size_t)a.rows * (a.rows + 1) / 2;
    float* to = a.weights + blockIdx.y * whole + (a.all ? (size_t)row * a.count : (size_t)row * (row + 1) / 2);
    const float* k = a.keys + (size_t)(head / a.group) * a.count * a.dim;
    for (int i = threadIdx.x; i < a.dim; i += 128) query[i] = a.queries[((size_t)head * a.rows + row) * a.dim + i];
    __syncthreads();
    float most = -INFINITY;
    for (int key = threadIdx.x; key < keys; key += 128) {
        const float* at = k + (size_t)key * a.dim;
        float score = 0;
        if (a.dim % 4 == 0) {
            for (int i = 0; i < a.dim; i += 4) {
                float4 x = *(const float4*)(at + i), y = *(const float4*)(query + i);
                score = fmaf(x.x, y.x, score), score = fmaf(x.y, y.y, score), score = fmaf(x.z, y.z, score), score = fmaf(x.w, y.w, score);
            }
        } else {
            for (int i = 0; i < a.dim; i++) score = fmaf(at[i], query[i], score);
        }
        to[key] = score *= a.scale;
        most = fmaxf(most, score);
    }
    auto over = [&](float x, bool sums) {
        x = sums ? warp_sum(x) : warp_max(x);
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
        __syncthreads();
        return sums ? parts[0] + parts[1] + parts[2] + parts[3] : fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
    };
    most = over(most, false);
    float total = 0;
    for (int key = threadIdx.x; key < keys; key += 128) total += to[key] = expf(to[key] - most);
    total = over(total, true);
    for (int key = threadIdx.x; key < keys; key += 128) to[key] /= total;
}

// Sums over all threads, for each of them.
template <int N> __device__ void sum_all(double (&x)[N]) {
    __shared__ double parts[N][32];
    auto of_warp = [&] {
        for (int lane = 16; lane > 0; lane /= 2)
            for (int n = 0; n < N; n++) x[n] += __shfl_xor_sync(~0u, x[n], lane);
    };
    of_warp();
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        for (int n = 0; n < N; n++) parts[n][threadIdx.x / 32] = x[n];
    __syncthreads();
    for (int n = 0; n < N; n++) x[n] = parts[n][threadIdx.x % 32];
    of_warp();
}

// Which of a list of values are kept: those above one, and of those equal to it the first. By their total order.
struct Cut {
    unsigned above, before;
    __device__ __forceinline__ bool keeps(float x, unsigned at) const {
        unsigned own = ordered(x);
        return own > above || (own == above && at < before);
    }
};

// The place of the equal of `value` before which there are `wanted` of them.
__device__ unsigned place_of(const float* list, unsigned count, unsigned value, unsigned wanted) {
    __shared__ unsigned equals[32], place;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (unsigned start = 0, seen = 0; seen <= wanted; start += THREADS) {
        unsigned at = start + threadIdx.x;
        bool equal = at < count && ordered(list[at]) == value;
        unsigned own = __ballot_sync(~0u, equal), rank = seen + __popc(own & ((1u << lane) - 1));
        if (lane == 0) equals[warp] = __popc(own);
        __syncthreads();
        for (int other = 0; other < 32; other++) {
            if (other < warp) rank += equals[other];
            seen += equals[other];
        }
        if (equal && rank == wanted) place = at;
        __syncthreads();
    }
    return place;
}

// The largest of `count` values whose weights, none below zero, sum to no more than `limit`; and how many they are.
template <class Weight>
__device__ Cut largest(const float* list, unsigned count, double limit, Weight weight, unsigned& kept) {
    // The largest value with which those that are not below it have more, two bits of it at a time.
    unsigned value = 0;
    for (int shift = 30; shift >= 0; shift -= 2) {
        double sums[3] = {};
        for (unsigned at = threadIdx.x; at < count; at += THREADS) {
            float x = list[at];
            unsigned own = ordered(x);
#pragma unroll
            for (unsigned digit = 1; digit < 4; digit++) sums[digit - 1] += own >= (value | digit << shift) ? weight(x) : 0;
        }
        sum_all(sums);
        unsigned digit = 0;
        for (double sum : sums) digit += !(sum <= limit);
        value |= digit << shift;
    }
    // Of those above it the weight and the number; of its equals the number.
    double sums[3] = {};
    for (unsigned at = threadIdx.x; at < count; at += THREADS) {
        float x = list[at];
        unsigned own = ordered(x);
        if (own > value) sums[0] += weight(x), sums[1] += 1;
        sums[2] += own == value;
    }
    sum_all(sums);
    double one = weight(of_ordered(value)), fit = one > 0 ? fmin(floor((limit - sums[0]) / one), sums[2]) : 0;
    kept = (unsigned)(sums[1] + fit);
    return {value, fit == sums[2] ? count : fit > 0 ? place_of(list, count, value, (unsigned)fit) : 0};
}

struct Choice {
    // (2, heads, tokens): sums of the last BLOCK rows' weights, by key and by how far it lies before the row.
    const float* masses;
    // (heads, blocks): attention of these rows' mean to the mean keys.
    const float* last;
    // Of each head from `first` on: each block's mean query's attention to the mean keys up to its own, row after row.
    const float* weights;
    // (2, heads, blocks): the masses of blocks, a mean over the rows.
    float* pooled;
    // (2, heads, words): a bit for each column of blocks, and for each diagonal.
    unsigned* lines;
    // (heads): whether blocks are kept by their means, too; and which of these weights are.
    unsigned* aware;
    Cut* cuts;
    // (heads, blocks, words): a bit for each block that is kept.
    unsigned* bits;
    int heads, tokens, blocks, words, least, first;
    // Mass that is covered at most: of a row, of all blocks.
    float row, whole, tau;
    int unused;
};

__device__ __forceinline__ float pool(const Choice& a, const float* masses, int block) {
    float sum = 0;
#pragma unroll 8
    for (int at = block * BLOCK; at < min(a.tokens, (block + 1) * BLOCK); at++) sum += masses[at] / BLOCK;
    return sum;
}
// Whether the last rows' attention to blocks is what their mean's is: by the root of the Jensen-Shannon divergence.
__device__ bool is_aware(const Choice& a, int head) {
    double sum[1] = {};
    for (int block = threadIdx.x; block < a.blocks; block += THREADS) {
        float x = a.last[(size_t)head * a.blocks + block], y = pool(a, a.masses + (size_t)head * a.tokens, block), mid = (x + y) / 2;
        sum[0] += (x > 0 ? x * logf(x / mid) : 0.f) + (y > 0 ? y * logf(y / mid) : 0.f);
    }
    sum_all(sum);
    return sqrt(fmax(sum[0] / 2, 0.)) < a.tau;
}

// The columns and diagonals of blocks that are kept. A block of threads for either, of each head.
extern "C" __global__ __launch_bounds__(THREADS) void choose_lines(const __grid_constant__ Choice a) {
    int head = blockIdx.x, side = blockIdx.y;
    size_t list = (size_t)side * a.heads + head;
    const float* masses = a.masses + list * a.tokens;
    float* pooled = a.pooled + list * a.blocks;
    bool aware = is_aware(a, head);
    if (threadIdx.x == 0 && side == 0) a.aware[head] = aware;
    unsigned kept, budget = a.least;
    if (!aware) {
        largest(masses, a.tokens, a.row, [](float mass) { return (double)(mass / BLOCK); }, kept);
        budget = min(max((kept + 1) / BLOCK + 1, (unsigned)a.least), (unsigned)a.blocks);
    }
    // The first column and the main diagonal come before all others.
    for (int block = threadIdx.x; block < a.blocks; block += THREADS) pooled[block] = block == 0 ? INFINITY : pool(a, masses, block);
    __syncthreads();
    Cut cut = largest(pooled, a.blocks, budget, [](float) { return 1.; }, kept);
    for (int start = 0; start < a.blocks; start += THREADS) {
        int block = start + (int)threadIdx.x;
        unsigned bits = __ballot_sync(~0u, block < a.blocks && cut.keeps(pooled[block], block));
        if (threadIdx.x % 32 == 0 && block < a.blocks) a.lines[list * a.words + block / 32] = bits;
    }
}

// Which weights of means are kept. A block of threads a head.
extern "C" __global__ __launch_bounds__(THREADS) void cover_means(const __grid_constant__ Choice a) {
    int head = a.first + (int)blockIdx.x;
    if (!a.aware[head]) return;
    unsigned each = (unsigned)((size_t)a.blocks * (a.blocks + 1) / 2), kept;
    Cut cut = largest(a.weights + (size_t)blockIdx.x * each, each, a.whole, [](float weight) { return (double)weight; }, kept);
    if (threadIdx.x == 0) a.cuts[head] = cut;
}

// The bits of a row of blocks. A block of 128 threads each, of each head.
extern "C" __global__ __launch_bounds__(128) void mark_blocks(const __grid_constant__ Choice a) {
    int row = blockIdx.x, head = a.first + (int)blockIdx.y, lane = threadIdx.x % 32;
    const unsigned *columns = a.lines + (size_t)head * a.words, *diagonals = columns + (size_t)a.heads * a.words;
    size_t before = (size_t)row * (row + 1) / 2;
    const float* weights = a.weights + (size_t)blockIdx.y * ((size_t)a.blocks * (a.blocks + 1) / 2) + before;
    bool aware = a.aware[head];
    Cut cut = aware ? a.cuts[head] : Cut{~0u, 0};
    auto has = [](const unsigned* bits, int at) { return bits[at / 32] >> at % 32 & 1; };
    for (int word = threadIdx.x / 32; word < a.words; word += 4) {
        int key = word * 32 + lane;
        bool keep = key <= row && (has(columns, key) || has(diagonals, row - key) || (aware && cut.keeps(weights[key], (unsigned)before + key)));
        unsigned bits = __ballot_sync(~0u, keep);
        if (lane == 0) a.bits[((size_t)head * a.blocks + row) * a.words + word] = bits;
    }
}
