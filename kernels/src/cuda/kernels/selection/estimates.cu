// What the last rows of each query head attend to: from this keys are chosen. Every sum has one order.
#include "rows.cuh"

constexpr int KEYS = 64, MOST = 128, STRIDE = KEYS + 8, THREADS = 256;  // of a block of threads: keys, rows; weights of a row; threads

struct Masses {
    const void *q, *k;
    // (query heads, rows): natural log-sum-exp of the last rows.
    const float* lse;
    // (query heads, tokens), and (query heads, blocks of keys, rows + KEYS - 1) by row - key.
    float *columns, *diagonals;
    long long q_head, q_row, kv_head, kv_row;
    // Of `first` keys the mass is infinite.
    int tokens, rows, group, dim, first, unused;
    float scale, unused_too;  // 1 / sqrt(dim), times log2(e)
};

// The weight of each of the block's rows and keys to shared memory, from which columns and diagonals are summed.
__device__ __forceinline__ float weight(const Masses& a, float score, float log, int row, int key) {
    return key > a.tokens - a.rows + row ? 0.f : exp2_fast(__fmaf_rn(score, a.scale, -log));
}
__device__ __forceinline__ float log_of(const Masses& a, int row) { return a.lse[(size_t)blockIdx.y * a.rows + row] / LN2; }
__device__ __forceinline__ void sum(const Masses& a, const float* weights) {
    int head = blockIdx.y, first = blockIdx.x * KEYS, at = threadIdx.x;
    __syncthreads();
    if (at < KEYS) {
        float sum = 0;
#pragma unroll 8
        for (int row = 0; row < a.rows; row++) sum += weights[row * STRIDE + at];
        if (first + at < a.tokens) a.columns[(size_t)head * a.tokens + first + at] = first + at < a.first ? INFINITY : sum;
        return;
    }
    int diagonal = at - KEYS, count = a.rows + KEYS - 1;
    if (diagonal >= count) return;
    float sum = 0;
#pragma unroll 8
    for (int row = max(0, diagonal - KEYS + 1); row <= min(a.rows - 1, diagonal); row++)
        sum += weights[row * STRIDE + row + KEYS - 1 - diagonal];
    a.diagonals[((size_t)head * gridDim.x + blockIdx.x) * count + diagonal] = sum;
}

template <int D> __device__ __forceinline__ void masses_tiled(const Masses& a) {
    constexpr int CHUNKS = D / 8;
    extern __shared__ __align__(128) bf16 memory[];
    float* weights = (float*)(memory + KEYS * D);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, first = blockIdx.x * KEYS;
    uint32_t at = shared_address(memory);
    const bf16* k = (const bf16*)a.k + head / a.group * a.kv_head;
    for (int chunk = threadIdx.x; chunk < KEYS * CHUNKS; chunk += THREADS) {
        int row = chunk / CHUNKS, column = chunk % CHUNKS;
        bool there = first + row < a.tokens;
        copy16(at + (row * CHUNKS + (column ^ (row & 7))) * 16, k + (size_t)(there ? first + row : 0) * a.kv_row + column * 8, there);
    }
    commit();
    uint32_t q[D / 16][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = warp * 16 + lane / 4 + r * 8;
        bool there = row < a.rows;
        const bf16* from = (const bf16*)a.q + head * a.q_head + (there ? row : 0) * a.q_row;
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            q[step][r] = there ? *(const uint32_t*)(from + step * 16 + lane % 4 * 2) : 0;
            q[step][r + 2] = there ? *(const uint32_t*)(from + step * 16 + 8 + lane % 4 * 2) : 0;
        }
    }
    wait_all_but<0>();
    __syncthreads();
    if (warp * 16 < a.rows) {
        float scores[KEYS / 8][4];
        multiply_keys<D, KEYS>(scores, q, at);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = warp * 16 + lane / 4 + r * 8;
            if (row >= a.rows) continue;
            float log = log_of(a, row);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                int column = n * 8 + lane % 4 * 2, key = first + column;
                *(float2*)(weights + row * STRIDE + column) =
                    make_float2(weight(a, scores[n][r * 2], log, row, key), weight(a, scores[n][r * 2 + 1], log, row, key + 1));
            }
        }
    }
    sum(a, weights);
}
template <class T> __device__ __forceinline__ void masses_plain(const Masses& a) {
    __shared__ float weights[MOST * STRIDE];
    int head = blockIdx.y, first = blockIdx.x * KEYS;
    for (int at = threadIdx.x; at < a.rows * KEYS; at += THREADS) {
        int row = at / KEYS, column = at % KEYS, key = min(first + column, a.tokens - 1);
        const T *q = (const T*)a.q + head * a.q_head + row * a.q_row, *k = (const T*)a.k + head / a.group * a.kv_head + key * a.kv_row;
        float score = 0;
        for (int i = 0; i < a.dim; i++) score = fmaf(widen(q[i]), widen(k[i]), score);
        weights[row * STRIDE + column] = weight(a, score, log_of(a, row), row, first + column);
    }
    sum(a, weights);
}

struct Offsets {
    const float* diagonals;
    float* offsets;  // (query heads, tokens): by how far the key lies before the row
    int tokens, rows, blocks, first;
};
extern "C" __global__ __launch_bounds__(256) void join_diagonals(const __grid_constant__ Offsets a) {
    int offset = blockIdx.x * 256 + threadIdx.x, head = blockIdx.y, count = a.rows + KEYS - 1;
    if (offset >= a.tokens) return;
    // Diagonal 0 of block 0, and the blocks that have the offset.
    int zero = offset - (a.tokens - a.rows) + KEYS - 1, block = zero < 0 ? (-zero + KEYS - 1) / KEYS : 0;
    float sum = 0;
    for (; block < a.blocks && zero + block * KEYS < count; block++)
        sum += a.diagonals[((size_t)head * a.blocks + block) * count + zero + block * KEYS];
    a.offsets[(size_t)head * a.tokens + offset] = offset < a.first ? INFINITY : sum;
}

#define K extern "C" __global__ __launch_bounds__(THREADS) void
K masses_64(const __grid_constant__ Masses a) { masses_tiled<64>(a); }
K masses_128(const __grid_constant__ Masses a) { masses_tiled<128>(a); }
K plain_masses_bf16(const __grid_constant__ Masses a) { masses_plain<bf16>(a); }
K plain_masses_f32(const __grid_constant__ Masses a) { masses_plain<float>(a); }
