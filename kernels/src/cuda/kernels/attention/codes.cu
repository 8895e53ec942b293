// Attention of few rows over keys and values in 8 bits, with log-sum-exp, on mma.sync: bf16 products, f32 statistics. Codes come from
// memory straight to registers and become bf16 there, to the same numbers; a key's scale is multiplied into its scores, a value's into
// its weights. Keys are cut into pieces of PIECE, each of a share for every warp; a share is one running softmax over blocks of KEYS, shares are
// merged in order within the piece, pieces by `combine`. What a row is given is a function of the row and its keys alone.
// Keys, and elements of values, are rows of the left operand; the packed rows of a tile are columns of the right one, GROUPS times eight.
// Queries are f32, turned as keys are (`turn_queries`); they are multiplied as a sum of two bf16.
#include "calls.cuh"
#include "tiles.cuh"

constexpr int PIECE = 2048, WARPS = 8, SHARE = PIECE / WARPS, KEYS = 16;

// Codes (token, kv head, D), and scales (token, kv head).
struct Codes {
    const unsigned char *k, *v;
    const bf16 *k_scales, *v_scales;
};
// A call, whose keys and values are codes, and their scales.
struct Scaled {
    Attention call;
    const bf16 *k_scales, *v_scales;
};
// A call of a step, and where its codes are in a layer. Settled ones were written by none of what may still run: they need not be
// waited for.
struct Laid {
    Attention call;
    long long settled;
};
struct KeptCodes {
    Codes codes;
    unsigned long long unused[28];
};

// Two codes, bytes 0 and 2, as bf16: 128, which `bias` is twice, and the low seven bits, less 128 or, of a negative one, 256.
__device__ __forceinline__ uint32_t exact(uint32_t x, uint32_t bias) {
    uint32_t low = (x & 0x007f007fu) | bias, less = (x & 0x00800080u) | bias;
    __nv_bfloat162 y = __hsub2(*(__nv_bfloat162*)&low, *(__nv_bfloat162*)&less);
    return *(uint32_t*)&y;
}
// What is left of two numbers that were rounded to bf16.
__device__ __forceinline__ uint32_t rest(float low, float high, uint32_t rounded) {
    __nv_bfloat162 p = *(__nv_bfloat162*)&rounded;
    return pair(low - widen(p.x), high - widen(p.y));
}
// An 8 by 8 matrix of a warp, whose lane has two elements of row lane / 4, transposed.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
// Memory that is read once.
__device__ __forceinline__ void fetch(uint32_t (&to)[4], const void* from) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
}
__device__ __forceinline__ void fetch(uint32_t (&to)[2], const void* from) {
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
}
__device__ __forceinline__ void fetch(unsigned short& to, const void* from) {
    asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(to) : "l"(from));
}
__device__ __forceinline__ float scale_of(unsigned short bits) { return __uint_as_float((uint32_t)bits << 16); }

// A block of keys and their values, as the lane 4 g + c multiplies them: of the keys g and g + 8 sixteen bytes of each 64 from 16 c on;
// of the values 2 c, 2 c + 1, 2 c + 8 and 2 c + 9 an eighth, the g-th. Scales are those of the keys g and g + 8.
template <int D> struct Held {
    uint32_t keys[2][D / 64][4], values[4][D / 32];
    unsigned short key_scales[2], value_scales[2];
};

template <int D, int GROUPS>
__device__ __forceinline__ void attend(const Attention& a, const Codes from, bool settled, const Item& item) {
    constexpr int STEPS = D / 16, TILE = 8 * GROUPS, EIGHTH = D / 8;
    extern __shared__ __align__(128) unsigned char memory[];
    uint4* queries = (uint4*)memory;  // (GROUPS, STEPS, lanes)
    Sight* sights = (Sight*)(queries + GROUPS * STEPS * 32);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, kv_head = blockIdx.y;
    int packed = a.rows * a.group, first_row = item.tile * TILE;

    // The blocks of this warp's share that rows of the tile see.
    int start = item.piece * PIECE + warp * SHARE, last = min(packed, first_row + TILE) - 1;
    Sight top = sight(a.mask, first_row / a.group), bottom = sight(a.mask, last / a.group);
    int stop = min(min(start + SHARE, a.mask.keys), bottom.visible);
    int skip_start = (bottom.hidden_start + KEYS - 1) / KEYS, skip_end = min(top.hidden_end, bottom.hidden_end) / KEYS;
    if (a.mask.kind != 3 || skip_end <= skip_start) skip_start = skip_end = 1 << 30;
    // Of keys before this block every row sees every key.
    int clear = a.mask.kind == 3 ? 0 : top.visible / KEYS;
    auto after = [&](int block) { return block + 1 >= skip_start && block + 1 < skip_end ? skip_end : block + 1; };
    int block = start / KEYS, blocks = (stop + KEYS - 1) / KEYS;
    if (block >= skip_start && block < skip_end) block = skip_end;

    Held<D> held;
    unsigned row_bytes = (unsigned)a.kv_row, heads = gridDim.y;
    const unsigned char *k = from.k + kv_head * a.kv_head + c * 16, *v = from.v + kv_head * a.kv_head + g * EIGHTH;
    // What lies beyond the last key is hidden from every row: some key stands for it.
    auto nearest = [&](int key) { return (unsigned)min(key, a.mask.keys - 1); };
    auto load_keys = [&](int of) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned key = nearest(of * KEYS + g + half * 8);
            const unsigned char* row = k + (unsigned long long)key * row_bytes;
#pragma unroll
            for (int i = 0; i < D / 64; i++) fetch(held.keys[half][i], row + i * 64);
            fetch(held.key_scales[half], from.k_scales + (unsigned long long)key * heads + kv_head);
        }
    };
    auto load_values = [&](int of) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned key = nearest(of * KEYS + c * 2 + i % 2 + i / 2 * 8);
            fetch(held.values[i], v + (unsigned long long)key * row_bytes);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned key = nearest(of * KEYS + g + half * 8);
            fetch(held.value_scales[half], from.v_scales + (unsigned long long)key * heads + kv_head);
        }
    };
    if (settled && block < blocks) load_keys(block), load_values(block);
    follow();
    if (!settled && block < blocks) load_keys(block), load_values(block);

    // Queries as the right operand wants them beside what `exact` makes of the bytes of a word: 0 and 2, then 1 and 3.
    for (int at = threadIdx.x; at < GROUPS * STEPS * 32; at += WARPS * 32) {
        int of = at % 32, step = at / 32 % STEPS, row = first_row + at / (32 * STEPS) * 8 + of / 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (row < packed) {
            long long head = kv_head * a.group + row % a.group;
            x = *(const float4*)((const float*)a.q + head * a.q_head + row / a.group * a.q_row + step / 4 * 64 + of % 4 * 16 + step % 4 * 4);
        }
        uint32_t even = pair(x.x, x.z), odd = pair(x.y, x.w);
        queries[at] = make_uint4(even, odd, rest(x.x, x.z, even), rest(x.y, x.w, odd));
    }
    if (threadIdx.x < TILE) {
        Sight s = sight(a.mask, (first_row + (int)threadIdx.x) / a.group);
        if (first_row + (int)threadIdx.x >= packed) s.visible = 0;
        sights[threadIdx.x] = s;
    }
    __syncthreads();

    // Of the packed rows 2 c and 2 c + 1 of each eight: maximum (base 2), sum over this lane's keys, and of their outputs an eighth, the
    // g-th: element 2 t of both, then element 2 t + 1.
    float max[GROUPS][2], sum[GROUPS][2], out[GROUPS][D / 16][4];
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        for (int r = 0; r < 2; r++) max[n][r] = -INFINITY, sum[n][r] = 0;
#pragma unroll
        for (int t = 0; t < D / 16; t++)
            for (int i = 0; i < 4; i++) out[n][t][i] = 0;
    }
    // A constant that the compiler does not see through: of two in one operation it makes two operations.
    uint32_t bias = a.rows < 0 ? 0u : 0x43004300u;
    while (block < blocks) {
        int next = after(block);
        // Scores of the keys g and g + 8, each of the rows 2 c and 2 c + 1.
        float scores[GROUPS][4], small[GROUPS][4];
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
            for (int i = 0; i < 4; i++) scores[n][i] = small[n][i] = 0;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            uint32_t one = held.keys[0][step / 4][step % 4], other = held.keys[1][step / 4][step % 4];
            uint32_t codes[4] = {exact(one, bias), exact(other, bias), exact(one >> 8, bias), exact(other >> 8, bias)};
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
                uint4 q = queries[(n * STEPS + step) * 32 + lane];
                mma(scores[n], codes, q.x, q.y);
                mma(small[n], codes, q.z, q.w);
            }
        }
        float key_scales[2] = {scale_of(held.key_scales[0]) * a.scale, scale_of(held.key_scales[1]) * a.scale};
        if (next < blocks) load_keys(next);
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
            for (int i = 0; i < 4; i++) scores[n][i] = __fmul_rn(__fadd_rn(scores[n][i], small[n][i]), key_scales[i / 2]);
        if (block >= clear) {
#pragma unroll
            for (int n = 0; n < GROUPS; n++)
                for (int i = 0; i < 4; i++) {
                    Sight s = sights[n * 8 + c * 2 + i % 2];
                    int key = block * KEYS + g + i / 2 * 8;
                    if (key >= s.visible || (key >= s.hidden_start && key < s.hidden_end)) scores[n][i] = -INFINITY;
                }
        }
        float value_scales[2] = {scale_of(held.value_scales[0]), scale_of(held.value_scales[1])};
        uint32_t weights[GROUPS][2];
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            float most[2] = {fmaxf(scores[n][0], scores[n][2]), fmaxf(scores[n][1], scores[n][3])};
            // Mostly no maximum grows.
            if (__any_sync(~0u, most[0] > max[n][0] || most[1] > max[n][1])) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 4));
                    most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 8));
                    most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 16));
                    most[r] = fmaxf(max[n][r], most[r]);
                    float fade = factor(max[n][r], most[r]);
                    max[n][r] = most[r], sum[n][r] = __fmul_rn(sum[n][r], fade);
#pragma unroll
                    for (int t = 0; t < D / 16; t++) {
                        out[n][t][r] = __fmul_rn(out[n][t][r], fade);
                        out[n][t][2 + r] = __fmul_rn(out[n][t][2 + r], fade);
                    }
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float each[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float to = max[n][r] == -INFINITY ? 0.f : max[n][r];
                    each[r] = exp2_fast(__fsub_rn(scores[n][half * 2 + r], to));
                    sum[n][r] = __fadd_rn(sum[n][r], each[r]);
                }
                weights[n][half] = transposed(pair(__fmul_rn(each[0], value_scales[half]), __fmul_rn(each[1], value_scales[half])));
            }
        }
#pragma unroll
        for (int t = 0; t < D / 16; t++) {
            unsigned bytes = t % 2 ? 0x7632 : 0x5410;
            uint32_t one = __byte_perm(held.values[0][t / 2], held.values[1][t / 2], bytes);
            uint32_t other = __byte_perm(held.values[2][t / 2], held.values[3][t / 2], bytes);
            uint32_t codes[4] = {exact(one, bias), exact(one >> 8, bias), exact(other, bias), exact(other >> 8, bias)};
#pragma unroll
            for (int n = 0; n < GROUPS; n++) mma(out[n][t], codes, weights[n][0], weights[n][1]);
        }
        if (next < blocks) load_values(next);
        block = next;
    }
#pragma unroll
    for (int n = 0; n < GROUPS; n++)
        for (int r = 0; r < 2; r++)
            for (int step = 4; step < 32; step *= 2) sum[n][r] += __shfl_xor_sync(~0u, sum[n][r], step);

    // The shares of eight rows at a time through shared memory, where queries are needed no more; a warp merges a row.
    typedef Pack<float, D / 32> Some;
    float* shares = (float*)memory;  // (WARPS, 8, D), then maxima and sums (WARPS, 8) each
    float *maxima = shares + WARPS * 8 * D, *sums = maxima + WARPS * 8;
    size_t base = ((size_t)kv_head * item.pieces + item.piece) * packed;
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        if (first_row + n * 8 >= packed) break;
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = warp * 8 + c * 2 + r;
            if (g == 0) maxima[row] = max[n][r], sums[row] = sum[n][r];
#pragma unroll
            for (int t = 0; t < D / 16; t += 2)
                *(float4*)(shares + row * D + g * EIGHTH + t * 2) =
                    make_float4(out[n][t][r], out[n][t][2 + r], out[n][t + 1][r], out[n][t + 1][2 + r]);
        }
        __syncthreads();
        int row = first_row + n * 8 + warp;
        if (row >= packed) continue;
        float most = -INFINITY, all = 0;
        Some total;
        for (int i = 0; i < D / 32; i++) total.x[i] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float f, h;
            merge_statistics(most, all, maxima[w * 8 + warp], sums[w * 8 + warp], f, h);
            Some part = *(const Some*)(shares + (w * 8 + warp) * D + lane * (D / 32));
            for (int i = 0; i < D / 32; i++) total.x[i] = merge_output(total.x[i], part.x[i], f, h);
        }
        *(Some*)((float*)a.out + (base + row) * D + lane * (D / 32)) = total;
        if (lane == 0) a.lse[base + row] = most, a.sums[base + row] = all;
    }
}
__device__ __forceinline__ Codes codes_of(const Scaled& s) {
    return {(const unsigned char*)s.call.k, (const unsigned char*)s.call.v, s.k_scales, s.v_scales};
}
// A call alone: blocks of threads by tile and piece.
template <int D, int GROUPS> __device__ __forceinline__ void attend_alone(const Scaled& s) {
    int tiles = (s.call.rows * s.call.group + 8 * GROUPS - 1) / (8 * GROUPS);
    Item item = {0, (int)blockIdx.x % tiles, (int)blockIdx.x / tiles, (int)gridDim.x / tiles};
    attend<D, GROUPS>(s.call, codes_of(s), false, item);
}
// Calls together: what each block of threads does is listed.
template <int D, int GROUPS> __device__ __forceinline__ void attend_listed(const Scaled* calls, const Item* items, bool lie) {
    if (lie) follow();
    Item item = items[blockIdx.x];
    const Scaled s = calls[item.call];
    attend<D, GROUPS>(s.call, codes_of(s), false, item);
}
// Calls of a step, alike in every layer but for their keys, which lie where `kept` says, a layer behind the other.
template <int D, int GROUPS>
__device__ __forceinline__ void attend_laid(const Laid* calls, const Item* items, const KeptCodes* const* kept, int layer) {
    Item item = items[blockIdx.x];
    const Laid laid = calls[item.call];
    const Codes codes = kept[item.call][layer].codes;
    attend<D, GROUPS>(laid.call, codes, laid.settled != 0, item);
}

#define K extern "C" __global__ void
#define ATTEND(NAME, GROUPS, BLOCKS, D)                                                                                      \
    K __launch_bounds__(WARPS * 32, BLOCKS) attend_##NAME##_##D(const __grid_constant__ Scaled call) {                        \
        attend_alone<D, GROUPS>(call);                                                                                        \
    }                                                                                                                        \
    K __launch_bounds__(WARPS * 32, BLOCKS) attend_listed_##NAME##_##D(const Scaled* calls, const Item* items) {              \
        attend_listed<D, GROUPS>(calls, items, true);                                                                        \
    }                                                                                                                        \
    K __launch_bounds__(WARPS * 32, BLOCKS)                                                                                  \
        attend_listed_##NAME##_carried_##D(const __grid_constant__ Carried c, int calls, int items) {                         \
        attend_listed<D, GROUPS>(within<Scaled>(c, calls), within<Item>(c, items), false);                                   \
    }                                                                                                                        \
    K __launch_bounds__(WARPS * 32, BLOCKS)                                                                                  \
        attend_laid_##NAME##_##D(const Laid* calls, const Item* items, const KeptCodes* const* kept, int layer) {             \
        attend_laid<D, GROUPS>(calls, items, kept, layer);                                                                   \
    }
ATTEND(eight_few, 1, 2, 64)
ATTEND(eight_few, 1, 2, 128)
ATTEND(eight, 4, 1, 64)
ATTEND(eight, 4, 1, 128)
