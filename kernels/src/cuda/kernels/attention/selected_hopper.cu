// What selected.cu does, by a warpgroup on Hopper: of three blocks of keys and values in turn one is multiplied, two are on their way.
#include "selected.cuh"
#include "softened.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int D> __device__ __forceinline__ void attend(const Selected& a) {
    constexpr int CHUNKS = D / 8, BYTES = KEYS * D * 2;
    extern __shared__ __align__(1024) unsigned char memory[];
    int* numbers = (int*)(memory + 4 * BYTES);  // the keys of three blocks
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    follow();
    Walk walk(a);
    int start = walk.start, end = walk.end, blocks = (walk.keys + KEYS - 1) / KEYS;
    if (start >= end) return;
    // Which keys a block is of, each found by a thread.
    auto number = [&](int block) {
        if (threadIdx.x < KEYS) numbers[block % 3 * KEYS + threadIdx.x] = walk.key<KEYS>(block * KEYS + threadIdx.x);
    };
    uint32_t queries = shared_address(memory);
    auto slot = [&](int turn) { return queries + (1 + turn % 3) * BYTES; };
    const bf16 *k = a.k + head / a.group * a.kv_head, *v = a.v + head / a.group * a.kv_head;
    auto load = [&](const bf16* from, int block, uint32_t to) {
        // A thread has the same chunk of each STEP-th row, which are multiples of eight apart.
        constexpr int STEP = 128 / CHUNKS;
        int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const int* keys = numbers + block % 3 * KEYS;
        to += swizzled(row, chunk), from += chunk * 8;
        if (block >= blocks) {
        } else if (keys[KEYS - 1] - keys[0] == KEYS - 1) {
            from += (size_t)(keys[0] + row) * a.kv_row;
#pragma unroll
            for (int i = 0; i < KEYS; i += STEP, from += STEP * a.kv_row) copy16(to + i * 128, from, true);
        } else {
#pragma unroll
            for (int i = 0; i < KEYS; i += STEP) {
                int key = keys[row + i];
                bool there = key != NONE;
                copy16(to + i * 128, from + (size_t)(there ? key : 0) * a.kv_row, there);
            }
        }
        commit();
    };
    // All but the last that was asked for is there, and seen by all.
    auto arrived = [&] {
        wait_all_but<1>();
        show_to_products();
        __syncthreads();
    };
#pragma unroll
    for (int i = 0; i < TILE * CHUNKS / 128; i++) {
        int row = (threadIdx.x + i * 128) / CHUNKS, chunk = threadIdx.x % CHUNKS;
        bool there = start + row < end;
        copy16(queries + swizzled(row, chunk), a.q + head * a.q_head + (there ? start + row : start) * a.q_row + chunk * 8, there);
    }
    int first_row = start + warp * 16;
    Running<D> part;
    part.clear();
    number(0);
    number(1);
    __syncthreads();
    load(k, 0, slot(0));
    load(v, 0, slot(1));
    for (int block = 0; block < blocks; block++) {
        const int* own = numbers + block % 3 * KEYS;
        float scores[KEYS / 2], fade[2];
        uint32_t weights[KEYS / 16][4];
        arrived();
        load(k, block + 1, slot(2 * block + 2));
        score<D>(scores, queries, slot(2 * block));
        products_done<0>();
        hold(scores);
        if (own[KEYS - 1] > first_row) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                for (int i = 0; i < 4; i++)
                    if (own[n * 8 + lane % 4 * 2 + i % 2] > first_row + lane / 4 + i / 2 * 8) scores[n * 4 + i] = -INFINITY;
        }
        soften<D>(scores, weights, fade, part, a.scale);
        fade_out<D>(fade, part);
        arrived();
        load(v, block + 1, slot(2 * block + 3));
        number(block + 2);
        weigh<D>(weights, slot(2 * block + 1), part);
        products_done<0>();
        hold(part.out);
    }
    wait_all_but<0>();
    part.join_lanes();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first_row + lane / 4 + r * 8;
        if (row >= end) continue;
        float inverse = part.sum[r] > 0 ? 1.f / part.sum[r] : 0.f;
        size_t at = (size_t)head * a.tokens + row;
        if (lane % 4 == 0) a.lse[at] = log_sum_exp(part.max[r], part.sum[r]);
        if (lane % 4 == 0 && a.maxima) a.maxima[at] = part.max[r] * LN2;
        float* to = a.out + head * a.out_head + row * a.out_row + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2*)(to + n * 8) = make_float2(part.out[n * 4 + r * 2] * inverse, part.out[n * 4 + r * 2 + 1] * inverse);
    }
}
#else
template <int D> __device__ __forceinline__ void attend(const Selected&) {}
#endif

extern "C" __global__ __launch_bounds__(128, 3) void attend_selected_warpgroup_64(const __grid_constant__ Selected a) { attend<64>(a); }
extern "C" __global__ __launch_bounds__(128, 3) void attend_selected_warpgroup_128(const __grid_constant__ Selected a) { attend<128>(a); }
