// AnchorAttention's second pass: which keys outside a group's anchor region its pooled queries select.
#include "common.cuh"

constexpr int KEYS = 128, QUERIES = 8, MOST = 256;  // of a block: keys, pooled queries at a time, elements of a head

struct Pool {
    const void* q;
    const float* maxima;
    // (heads, blocks, dim) and, of maxima that are there, (heads, blocks): means over the rows of a block.
    float *queries, *anchors;
    long long q_head, q_row;
    int tokens, rows, blocks, dim;
};

template <class T> __device__ void pool(const Pool& a) {
    int block = blockIdx.x, head = blockIdx.y, start = block * a.rows, end = min(a.tokens, start + a.rows);
    size_t at = (size_t)head * a.blocks + block;
    float count = (float)(end - start);
    const T* q = (const T*)a.q + head * a.q_head;
    for (int i = threadIdx.x; i < a.dim; i += blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (int row = start; row < end; row++) sum += widen(q[row * a.q_row + i]);
        a.queries[at * a.dim + i] = sum / count;
    }
    if (a.maxima && threadIdx.x < 32) {
        float sum = 0;
        for (int row = start + threadIdx.x; row < end; row += 32) sum += a.maxima[(size_t)head * a.tokens + row];
        sum = warp_sum(sum);
        if (threadIdx.x == 0) a.anchors[at] = sum / count;
    }
}

struct Find {
    const void* k;
    const float *queries, *anchors;
    // A bit for each key of each of these lists, lowest first.
    unsigned* found;
    long long kv_head, kv_row;
    // What KeySets and StripeRule say: list = head * groups + group.
    int groups, group, tokens, words, blocks, step, span, first, dim;
    float scale, theta;
};

// Sixteen bytes of a row at a time, where rows are so aligned.
template <class T, int N> __device__ void find(const Find& a) {
    __shared__ __align__(16) float queries[MOST][QUERIES];
    __shared__ float anchors[QUERIES];
    int list = (int)blockIdx.x, head = list / a.groups, group = list % a.groups;
    int start = (int)blockIdx.y * KEYS, key = start + (int)threadIdx.x, end = min(group * a.span, a.tokens);
    bool candidate = key >= a.first && key < end;
    float least = INFINITY;
    if (start < end && start + KEYS > a.first) {
        const T* k = (const T*)a.k + head / a.group * a.kv_head + (size_t)(candidate ? key : 0) * a.kv_row;
        int last = min(a.blocks, (group + 1) * a.step);
        for (int block = group * a.step; block < last; block += QUERIES) {
            int count = min(QUERIES, last - block);
            size_t at = (size_t)head * a.blocks + block;
            __syncthreads();
            for (int i = threadIdx.x; i < QUERIES * a.dim; i += KEYS) {
                int j = i / a.dim, element = i % a.dim;
                queries[element][j] = j < count ? a.queries[(at + j) * a.dim + element] : 0.f;
            }
            if (threadIdx.x < count) anchors[threadIdx.x] = a.anchors[at + threadIdx.x];
            __syncthreads();
            float scores[QUERIES] = {};
            for (int i = 0; i < a.dim; i += N) {
                Pack<T, N> some = *(const Pack<T, N>*)(k + i);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    float x = widen(some.x[n]);
#pragma unroll
                    for (int j = 0; j < QUERIES; j++) scores[j] = fmaf(queries[i + n][j], x, scores[j]);
                }
            }
#pragma unroll
            for (int j = 0; j < QUERIES; j++) {
                float difference = j < count ? anchors[j] - scores[j] * a.scale : INFINITY;
                least = difference < least ? difference : least;
            }
        }
    }
    unsigned bits = __ballot_sync(~0u, candidate && least <= a.theta);
    int word = key / 32;
    if (threadIdx.x % 32 == 0 && word < a.words) a.found[(size_t)blockIdx.x * a.words + word] = bits;
}

extern "C" __global__ __launch_bounds__(128) void pool_queries_bf16(const __grid_constant__ Pool a) { pool<bf16>(a); }
extern "C" __global__ __launch_bounds__(128) void pool_queries_f32(const __grid_constant__ Pool a) { pool<float>(a); }
extern "C" __global__ __launch_bounds__(128) void find_stripes_bf16(const __grid_constant__ Find a) { find<bf16, 1>(a); }
extern "C" __global__ __launch_bounds__(128) void find_stripes_f32(const __grid_constant__ Find a) { find<float, 1>(a); }
extern "C" __global__ __launch_bounds__(128) void find_stripes_wide_bf16(const __grid_constant__ Find a) { find<bf16, 8>(a); }
extern "C" __global__ __launch_bounds__(128) void find_stripes_wide_f32(const __grid_constant__ Find a) { find<float, 4>(a); }
