// Attention of bf16 rows over lists of keys, on mma.sync: rows of a query head that share a list, in tiles of TILE, over the listed keys in
// blocks of KEYS that are put together in shared memory. What a row is given is a function of the row, its list and its keys alone.
#include "rows.cuh"
#include "selected.cuh"

constexpr int KEYS = 64, WARPS = TILE / 16;  // keys of a block, warps of a block of threads

template <int D> __device__ __forceinline__ void attend(const Selected& a) {
    constexpr int CHUNKS = D / 8, BLOCK = KEYS * D;
    extern __shared__ __align__(128) bf16 memory[];
    int* numbers = (int*)(memory + 4 * BLOCK);  // the keys of three blocks
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    follow();
    Walk walk(a);
    int start = walk.start, end = walk.end, blocks = (walk.keys + KEYS - 1) / KEYS;
    if (start >= end) return;
    // Which keys a block is of, each found by a thread.
    auto number = [&](int block) {
        if (threadIdx.x < KEYS) numbers[block % 3 * KEYS + threadIdx.x] = walk.key<KEYS>(block * KEYS + threadIdx.x);
    };
    const bf16 *k = a.k + head / a.group * a.kv_head, *v = a.v + head / a.group * a.kv_head;
    auto load = [&](int block) {
        uint32_t at = shared_address(memory + block % 2 * 2 * BLOCK);
#pragma unroll
        for (int i = 0; i < KEYS * CHUNKS / (32 * WARPS); i++) {
            int chunk = threadIdx.x + i * 32 * WARPS, row = chunk / CHUNKS, column = chunk % CHUNKS;
            int key = numbers[block % 3 * KEYS + row];
            bool there = key != NONE;
            size_t from = (size_t)(there ? key : 0) * a.kv_row + column * 8;
            uint32_t place = (row * CHUNKS + (column ^ (row & 7))) * 16;
            copy16(at + place, k + from, there);
            copy16(at + BLOCK * 2 + place, v + from, there);
        }
    };
    int first_row = start + warp * 16;
    uint32_t q[D / 16][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first_row + lane / 4 + r * 8;
        bool there = row < end;
        const bf16* from = a.q + head * a.q_head + (there ? row : 0) * a.q_row;
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            q[step][r] = there ? *(const uint32_t*)(from + step * 16 + lane % 4 * 2) : 0;
            q[step][r + 2] = there ? *(const uint32_t*)(from + step * 16 + 8 + lane % 4 * 2) : 0;
        }
    }
    Running<D> part;
    part.clear();
    number(0);
    __syncthreads();
    load(0);
    commit();
    number(1);
    for (int block = 0; block < blocks; block++) {
        wait_all_but<0>();
        __syncthreads();
        if (block + 1 < blocks) load(block + 1);
        commit();
        number(block + 2);
        uint32_t at = shared_address(memory + block % 2 * 2 * BLOCK);
        const int* own = numbers + block % 3 * KEYS;
        float scores[KEYS / 8][4];
        multiply_keys<D, KEYS>(scores, q, at);
        bool hides = own[KEYS - 1] > first_row;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = first_row + lane / 4 + r * 8;
            if (hides) {
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
                    for (int i = 0; i < 2; i++)
                        if (own[n * 8 + lane % 4 * 2 + i] > row) scores[n][r * 2 + i] = -INFINITY;
            }
            soften<D, KEYS>(scores, r, part, a.scale);
        }
        multiply_values<D, KEYS>(scores, at + BLOCK * 2, part);
    }
    wait_all_but<0>();
    part.join_lanes();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first_row + lane / 4 + r * 8;
        if (row >= end) continue;
        float inverse = part.sum[r] > 0 ? 1.f / part.sum[r] : 0.f;
        if (lane % 4 == 0)
            a.lse[(size_t)head * a.tokens + row] = log_sum_exp(part.max[r], part.sum[r]);
        if (lane % 4 == 0 && a.maxima) a.maxima[(size_t)head * a.tokens + row] = part.max[r] * LN2;
        float* to = a.out + head * a.out_head + row * a.out_row + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2*)(to + n * 8) = make_float2(part.out[n][r * 2] * inverse, part.out[n][r * 2 + 1] * inverse);
    }
}

extern "C" __global__ __launch_bounds__(128, 2) void attend_selected_64(const __grid_constant__ Selected a) { attend<64>(a); }
extern "C" __global__ __launch_bounds__(128, 2) void attend_selected_128(const __grid_constant__ Selected a) { attend<128>(a); }
