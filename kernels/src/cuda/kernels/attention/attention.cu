// Attention with log-sum-exp on mma.sync: bf16 in, f32 statistics. One kernel in two uses.
// Whole: a block of rows goes through all its keys (prefill). Pieces: keys are cut into pieces of PIECE, each of four quarters;
// a quarter is one running softmax, quarters are merged in order within the piece, pieces by `combine`. What a row is given is
// a function of the row and its keys alone, whatever the tile it falls in.
// The query heads that share a KV head are rows of one tile: packed row r is row r / group of head r % group.
#include "calls.cuh"
#include "rows.cuh"

constexpr int PIECE = 2048, QUARTER = PIECE / 4;

// KEYS: keys of a block. WARPS: warps that share a block of keys, 16 rows each; 1: four warps of the same 16 rows with a
// quarter of the piece and blocks of keys of their own.
// INTO: the whole is merged into the output and log-sum-exp of other keys, which are there.
template <int D, int KEYS, int WARPS, int STAGES, bool WHOLE, bool INTO = false>
__device__ __forceinline__ void attend(const Attention& a, int tile, int piece, int pieces) {
    constexpr int THREADS = WARPS == 1 ? 32 : WARPS * 32;  // that load a block of keys together
    constexpr int CHUNKS = D / 8, BLOCK = KEYS * D;        // 16-byte chunks of a row, elements of a block
    constexpr int TILE = WARPS * 16;
    extern __shared__ __align__(128) bf16 memory[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y;
    int packed = a.rows * a.group;
    bf16* stages = memory + (WARPS == 1 ? warp * STAGES * 2 * BLOCK : 0);
    int loader = threadIdx.x % THREADS;
    int first_row = tile * TILE + (WARPS == 1 ? 0 : warp * 16);
    const bf16 *k = a.k + kv_head * a.kv_head, *v = a.v + kv_head * a.kv_head;

    // The keys of the tile, and of this warp's rows.
    int start = 0, end = a.mask.keys;
    if (!WHOLE) {
        start = piece * PIECE + (WARPS == 1 ? warp * QUARTER : 0);
        end = min(end, start + (WARPS == 1 ? QUARTER : PIECE));
    }
    int last = min(packed, (tile + 1) * TILE) - 1;
    Sight top = sight(a.mask, tile * TILE / a.group), bottom = sight(a.mask, last / a.group);
    end = min(end, bottom.visible);
    int skip_start = (bottom.hidden_start + KEYS - 1) / KEYS, skip_end = min(top.hidden_end, bottom.hidden_end) / KEYS;
    if (a.mask.kind != 3 || skip_end <= skip_start) skip_start = skip_end = 1 << 30;
    auto next = [&](int block) { return block + 1 >= skip_start && block + 1 < skip_end ? skip_end : block + 1; };
    Sight seen[2];
    for (int r = 0; r < 2; r++) {
        int row = first_row + lane / 4 + r * 8;
        if (row < packed) {
            seen[r] = sight(a.mask, row / a.group);
        } else {
            seen[r].visible = seen[r].hidden_start = seen[r].hidden_end = 0;
        }
    }

    // Queries in registers, as the left operand wants them.
    uint32_t q[D / 16][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first_row + lane / 4 + r * 8;
        bool there = row < packed;
        const bf16* from = a.q + (there ? (long long)(kv_head * a.group + row % a.group) * a.q_head + row / a.group * a.q_row : 0);
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            q[step][r] = there ? *(const uint32_t*)(from + step * 16 + lane % 4 * 2) : 0;
            q[step][r + 2] = there ? *(const uint32_t*)(from + step * 16 + 8 + lane % 4 * 2) : 0;
        }
    }

    auto load = [&](int block, int stage) {
        bf16* to = stages + stage * 2 * BLOCK;
        uint32_t at = shared_address(to);
#pragma unroll
        for (int i = 0; i < KEYS * CHUNKS / THREADS; i++) {
            int chunk = loader + i * THREADS, row = chunk / CHUNKS, column = chunk % CHUNKS;
            int key = block * KEYS + row;
            bool there = key < a.mask.keys;
            size_t from = (size_t)(there ? key : 0) * a.kv_row + column * 8;
            uint32_t place = (row * CHUNKS + (column ^ (row & 7))) * 16;
            copy16(at + place, k + from, there);
            copy16(at + BLOCK * 2 + place, v + from, there);
        }
    };
    auto wait_for_others = [&] {
        if (WARPS == 1) __syncwarp();
        else __syncthreads();
    };

    Running<D> part;
    part.clear();
    Running<D> total;  // of the quarters; unused where there is one
    if (!WHOLE && WARPS > 1) total.clear();
    auto merge_part = [&] {
        part.join_lanes();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float f, g;
            merge_statistics(total.max[r], total.sum[r], part.max[r], part.sum[r], f, g);
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                for (int i = 0; i < 2; i++)
                    total.out[n][r * 2 + i] = merge_output(total.out[n][r * 2 + i], part.out[n][r * 2 + i], f, g);
        }
        part.clear();
    };

    int block = start / KEYS, blocks = (end + KEYS - 1) / KEYS;
    if (block >= skip_start && block < skip_end) block = skip_end;
    int fetch = block, stage = 0, quarter = WHOLE || WARPS == 1 ? 0 : start / QUARTER;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (fetch < blocks) load(fetch, s);
        fetch = next(fetch);
        commit();
    }
    for (; block < blocks; block = next(block)) {
        wait_all_but<STAGES - 2>();
        wait_for_others();
        if (fetch < blocks) load(fetch, stage == 0 ? STAGES - 1 : stage - 1);
        fetch = next(fetch);
        commit();
        int first_key = block * KEYS;
        if (!WHOLE && WARPS > 1) {
            for (; quarter < first_key / QUARTER; quarter++) merge_part();
        }
        uint32_t keys = shared_address(stages + stage * 2 * BLOCK), values = keys + BLOCK * 2;
        stage = stage == STAGES - 1 ? 0 : stage + 1;

        float scores[KEYS / 8][4];
        multiply_keys<D, KEYS>(scores, q, keys);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const Sight& s = seen[r];
            if (first_key + KEYS > s.visible || (first_key < s.hidden_end && first_key + KEYS > s.hidden_start)) {
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
                    for (int i = 0; i < 2; i++) {
                        int key = first_key + n * 8 + lane % 4 * 2 + i;
                        if (key >= s.visible || (key >= s.hidden_start && key < s.hidden_end)) scores[n][r * 2 + i] = -INFINITY;
                    }
            }
            soften<D, KEYS>(scores, r, part, a.scale);
        }
        multiply_values<D, KEYS>(scores, values, part);
    }
    wait_all_but<0>();

    if (WHOLE) {
        part.join_lanes();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = first_row + lane / 4 + r * 8;
            if (row >= packed) continue;
            int head = kv_head * a.group + row % a.group, token = row / a.group;
            float* lse = a.lse + head * a.lse_head + token;
            float kept = 0;
            if (INTO) {
                // The four lanes of a row read before one of them writes.
                float before = *lse == -INFINITY ? -INFINITY : *lse / LN2;
                __syncwarp(15u << (lane & ~3));
                float most = fmaxf(before, part.max[r]), own = factor(part.max[r], most);
                kept = factor(before, most);
                part.max[r] = most, part.sum[r] = __fmaf_rn(part.sum[r], own, kept);
#pragma unroll
                for (int n = 0; n < D / 8; n++)
                    for (int i = 0; i < 2; i++) part.out[n][r * 2 + i] *= own;
            }
            float inverse = part.sum[r] > 0 ? 1.f / part.sum[r] : 0.f;
            if (lane % 4 == 0) *lse = log_sum_exp(part.max[r], part.sum[r]);
            size_t at = head * a.out_head + token * a.out_row + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                if (INTO) {
                    __nv_bfloat162 there = *(const __nv_bfloat162*)((const bf16*)a.out + at + n * 8);
                    part.out[n][r * 2] = __fmaf_rn(widen(there.x), kept, part.out[n][r * 2]);
                    part.out[n][r * 2 + 1] = __fmaf_rn(widen(there.y), kept, part.out[n][r * 2 + 1]);
                }
                float x = part.out[n][r * 2] * inverse, y = part.out[n][r * 2 + 1] * inverse;
                if (INTO || a.out_is_bf16) *(uint32_t*)((bf16*)a.out + at + n * 8) = pair(x, y);
                else *(float2*)((float*)a.out + at + n * 8) = make_float2(x, y);
            }
        }
        return;
    }
    // Partials of the piece: maxima and sums (kv head, piece, packed rows), outputs beside them.
    size_t base = ((size_t)kv_head * pieces + piece) * packed;
    if (WARPS > 1) {
        merge_part();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = first_row + lane / 4 + r * 8;
            if (row >= packed) continue;
            if (lane % 4 == 0) a.lse[base + row] = total.max[r], a.sums[base + row] = total.sum[r];
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(float2*)((float*)a.out + (base + row) * D + n * 8 + lane % 4 * 2) =
                    make_float2(total.out[n][r * 2], total.out[n][r * 2 + 1]);
        }
        return;
    }
    // Four warps with a quarter each: through shared memory, in order.
    part.join_lanes();
    __syncthreads();
    float* quarters = (float*)memory;  // (4, 16, D), then maxima and sums (4, 16) each
    float *maxima = quarters + 4 * 16 * D, *sums = maxima + 64;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + r * 8;
        if (lane % 4 == 0) maxima[warp * 16 + row] = part.max[r], sums[warp * 16 + row] = part.sum[r];
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2*)(quarters + (warp * 16 + row) * D + n * 8 + lane % 4 * 2) =
                make_float2(part.out[n][r * 2], part.out[n][r * 2 + 1]);
    }
    __syncthreads();
    for (int at = threadIdx.x; at < 16 * D; at += 128) {
        int row = at / D, place = tile * TILE + row;
        if (place >= packed) continue;
        float max = -INFINITY, sum = 0, out = 0;
        for (int w = 0; w < 4; w++) {
            float f, g;
            merge_statistics(max, sum, maxima[w * 16 + row], sums[w * 16 + row], f, g);
            out = merge_output(out, quarters[w * 16 * D + at], f, g);
        }
        ((float*)a.out)[(base + place) * D + at % D] = out;
        if (at % D == 0) a.lse[base + place] = max, a.sums[base + place] = sum;
    }
}

// A call alone: blocks of threads by tile and piece; whole tiles from the last on, which has the most keys.
template <int D, int KEYS, int WARPS, int STAGES, bool WHOLE, bool INTO = false>
__device__ __forceinline__ void attend_alone(const Attention& a) {
    int tiles = (a.rows * a.group + WARPS * 16 - 1) / (WARPS * 16);
    if (WHOLE) attend<D, KEYS, WARPS, STAGES, true, INTO>(a, tiles - 1 - (int)blockIdx.x, 0, 1);
    else attend<D, KEYS, WARPS, STAGES, false>(a, blockIdx.x % tiles, blockIdx.x / tiles, gridDim.x / tiles);
}

// Calls together: what each block of threads does is listed.
template <int D, int WARPS, int STAGES>
__device__ __forceinline__ void attend_listed(const Attention* calls, const Item* items) {
    follow();
    Item item = items[blockIdx.x];
    const Attention a = calls[item.call];
    attend<D, 32, WARPS, STAGES, false>(a, item.tile, item.piece, item.pieces);
}

#define K extern "C" __global__ void
#define ATTEND(D)                                                                                                        \
    K __launch_bounds__(256, 1) attend_whole_##D(const __grid_constant__ Attention a) {                                  \
        follow();                                                                                                        \
        attend_alone<D, 64, 8, 2, true>(a);                                                                              \
    }                                                                                                                    \
    K __launch_bounds__(128, 3) attend_into_##D(const __grid_constant__ Attention a) {                                   \
        follow();                                                                                                        \
        attend_alone<D, 32, 4, 2, true, true>(a);                                                                        \
    }                                                                                                                    \
    K __launch_bounds__(128, 2) attend_tile_##D(const __grid_constant__ Attention a) {                                   \
        attend_alone<D, 32, 4, 3, false>(a);                                                                             \
    }                                                                                                                    \
    K __launch_bounds__(128, 1) attend_rows_##D(const __grid_constant__ Attention a) {                                   \
        attend_alone<D, 32, 1, 3, false>(a);                                                                             \
    }                                                                                                                    \
    K __launch_bounds__(128, 1) attend_rows_shallow_##D(const __grid_constant__ Attention a) {                           \
        attend_alone<D, 32, 1, 2, false>(a);                                                                             \
    }                                                                                                                    \
    K __launch_bounds__(128, 2) attend_listed_tile_##D(const Attention* calls, const Item* items) {                      \
        attend_listed<D, 4, 3>(calls, items);                                                                            \
    }                                                                                                                    \
    K __launch_bounds__(128, 1) attend_listed_rows_##D(const Attention* calls, const Item* items) {                      \
        attend_listed<D, 1, 3>(calls, items);                                                                            \
    }                                                                                                                    \
    K __launch_bounds__(128, 1) attend_listed_rows_shallow_##D(const Attention* calls, const Item* items) {              \
        attend_listed<D, 1, 2>(calls, items);                                                                            \
    }
#define CARRIED(D)                                                                                                         \
    K __launch_bounds__(128, 2) attend_listed_tile_carried_##D(const __grid_constant__ Carried c, int calls, int items) {  \
        attend_listed<D, 4, 3>(within<Attention>(c, calls), within<Item>(c, items));                                       \
    }                                                                                                                      \
    K __launch_bounds__(128, 1) attend_listed_rows_carried_##D(const __grid_constant__ Carried c, int calls, int items) {  \
        attend_listed<D, 1, 3>(within<Attention>(c, calls), within<Item>(c, items));                                       \
    }                                                                                                                      \
    K __launch_bounds__(128, 1)                                                                                            \
        attend_listed_rows_shallow_carried_##D(const __grid_constant__ Carried c, int calls, int items) {                  \
        attend_listed<D, 1, 2>(within<Attention>(c, calls), within<Item>(c, items));                                       \
    }
ATTEND(64)
ATTEND(128)
CARRIED(64)
CARRIED(128)
