// Attention of few rows with log-sum-exp on Hopper, by warpgroups: what attention.cu does in pieces, for any count of rows. Keys are
// cut into pieces of PIECE, each of two halves; a half is one running softmax over blocks of KEYS, the halves are merged in order,
// pieces by `combine`. What a row is given is a function of the row and its keys alone.
// Narrow: a tile of 64 packed rows, two warpgroups with a half each: bound by memory. Wide: up to four tiles, a warpgroup each, over the
// same keys: bound by products. Keys and values come by the tensor copy engine.
#include "softened.cuh"

constexpr int TILE = 64, TILES = 4;     // packed rows of a warpgroup; warpgroups of a wide block of threads
constexpr int STAGES = 4;               // blocks of keys and values that a wide block of threads holds
constexpr int WIDE = 0;                 // no slots: a wide block of threads

// A call, and where its keys and values lie: (kv head, key, D). Settled ones were written by none of what may still run: they need not
// be waited for.
struct Mapped {
    TensorMap k, v;
    Attention call;
    long long settled;
};

// The same apart: a call of a step, and the maps of its keys and values in a layer.
struct Laid {
    Attention call;
    long long settled;
};
struct KeyMaps {
    TensorMap k, v;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a block of threads is asked, wherever that lies.
struct Asked {
    const TensorMap &k, &v;
    const Attention& call;
    bool settled;
};

// What a block of threads keeps at hand of its work behind the tiles in shared memory, so that registers are left for products.
struct Desk {
    uint64_t full[12], empty[4];
    Item item;
    Blocks blocks[2];
    Sight sights[1];  // of all rows
};

// A tile's queries to shared memory, by 128 * GROUPS threads; rows that are none are zeros.
template <int D, int GROUPS> __device__ __forceinline__ void fetch_queries(const Attention& a, uint32_t to, unsigned first, unsigned thread) {
    constexpr unsigned CHUNKS = D / 8;
#pragma unroll
    for (unsigned at = thread; at < TILE * CHUNKS; at += 128 * GROUPS) {
        unsigned row = first + at / CHUNKS, token = row / a.group, head = blockIdx.y * a.group + row - token * a.group;
        bool there = token < a.rows;
        const bf16* from = a.q + (there ? head * a.q_head + token * a.q_row : 0) + at % CHUNKS * 8;
        copy16(to + swizzled(at / CHUNKS, at % CHUNKS), from, there);
    }
    commit();
    wait_all_but<0>();
    show_to_products();
}
// What so many rows see; rows that are none see nothing.
__device__ __forceinline__ void look(const Attention& a, Sight* sights, int first, int rows) {
    if (threadIdx.x >= rows) return;
    Sight s = sight(a.mask, (first + (int)threadIdx.x) / a.group);
    if (first + (int)threadIdx.x >= a.rows * a.group) s.visible = 0;
    sights[threadIdx.x] = s;
}
// A block of keys or values to shared memory, by one thread; keys that are none are zeros.
template <int D> __device__ __forceinline__ void fetch_block(const TensorMap& map, uint32_t to, uint32_t barrier, int block) {
    for (int panel = 0; panel < D / 64; panel++) copy_tile(to + panel * PANEL, map, barrier, panel * 64, block * KEYS, blockIdx.y);
}

// Keys that rows do not see are hidden; `sights` of this lane's first row, which is eight before its other.
__device__ __forceinline__ void hide(float (&scores)[KEYS / 2], const Sight* sights, int first_key) {
    first_key += threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        Sight s = sights[r * 8];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            for (int i = 0; i < 2; i++) {
                int key = first_key + n * 8 + i;
                if (key >= s.visible || (key >= s.hidden_start && key < s.hidden_end)) scores[n * 4 + r * 2 + i] = -INFINITY;
            }
    }
}

// A warp's rows of a call of one piece to where `combine` would put them, by its arithmetic.
template <int D> __device__ __forceinline__ void place(const Attention& a, const Running<D>& part, int first_row) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first_row + lane / 4 + r * 8, token = row / a.group, head = blockIdx.y * a.group + row - token * a.group;
        if (token >= a.rows) continue;
        float sum = part.sum[r];
        float* to = (float*)a.out + token * a.out_row + head * D + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            for (int i = 0; i < 2; i++) to[n * 8 + i] = sum > 0 ? part.out[n * 4 + r * 2 + i] / sum : 0.f;
        if (lane % 4 == 0 && a.lse) a.lse[token * a.out_row + head] = log_sum_exp(part.max[r], sum);
    }
}
// A warp's rows to the partials of its piece, or to their place.
template <int D> __device__ __forceinline__ void store(const Attention& a, const Running<D>& part, int first_row, const Item& item) {
    if (a.out_row != 0) return place<D>(a, part, first_row);
    int lane = threadIdx.x % 32;
    size_t base = first_partial(a, item);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first_row + lane / 4 + r * 8;
        if (row >= a.rows * a.group) continue;
        if (lane % 4 == 0) a.lse[base + row] = part.max[r], a.sums[base + row] = part.sum[r];
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(float2*)((float*)a.out + (base + row) * D + n * 8 + lane % 4 * 2) =
                make_float2(part.out[n * 4 + r * 2], part.out[n * 4 + r * 2 + 1]);
    }
}

// Of each half of a piece SLOTS blocks of keys or values are held or on their way: 3, or 6 where a processor has one block of threads.
template <int D, int SLOTS> __device__ __forceinline__ void narrow_tile(const Asked& asked, const Item& given) {
    constexpr int BYTES = KEYS * D * 2;
    extern __shared__ __align__(1024) unsigned char memory[];
    const Attention& a = asked.call;
    Desk& desk = *(Desk*)(memory + (1 + 2 * SLOTS) * BYTES);
    unsigned half = same(threadIdx.x / 128), thread = threadIdx.x % 128;
    uint32_t queries = shared_address(memory), ring = queries + BYTES + half * SLOTS * BYTES, full = shared_address(desk.full + half * 6);
    // Slots take turns: keys, their values, the next keys.
    auto load = [&](const TensorMap& map, int block, int slot) {
        expect(full + slot * 8, BYTES);
        fetch_block<D>(map, ring + slot * BYTES, full + slot * 8, block);
    };
    auto begin = [&] {
        Blocks& blocks = desk.blocks[half];
        int block = blocks.first;
        for (int slot = 0; slot < SLOTS && block < blocks.end; slot++) {
            load(slot % 2 ? asked.v : asked.k, block, slot);
            if (slot % 2) block = blocks.after(block);
        }
    };
    if (thread == 0) {
        for (int i = 0; i < SLOTS; i++) begin_barrier(full + i * 8, 1);
        show_to_products();
        int start = given.piece * PIECE + half * HALF;
        desk.blocks[half].set(a, given.tile * TILE, TILE, start, start + HALF);
        if (asked.settled) begin();
    }
    follow();
    if (thread == 0 && !asked.settled) begin();
    fetch_queries<D, 2>(a, queries, given.tile * TILE, threadIdx.x);
    look(a, desk.sights, given.tile * TILE, TILE);
    bool live = given.tile * TILE + thread / 32 * 16 < a.rows * a.group;
    Running<D> part;
    part.clear();
    __syncthreads();
    Blocks blocks = desk.blocks[half].uniform();
    unsigned parities = 0;
    auto wait = [&](int slot) {
        wait_for(full + slot * 8, parities >> slot & 1);
        parities ^= 1 << slot;
    };
    for (int block = blocks.first, slot = 0; block < blocks.end;) {
        int next = blocks.after(block), third = blocks.after(next), fourth = blocks.after(third);
        int values = slot + 1 == SLOTS ? 0 : slot + 1;
        float scores[KEYS / 2], fade[2];
        uint32_t weights[KEYS / 16][4];
        wait(slot);
        score<D>(scores, queries, ring + slot * BYTES);
        products_done<0>();
        hold(scores);
        // Nobody of the warpgroup needs these keys any more.
        warpgroup_barrier(1 + half);
        if (SLOTS == 3 && thread == 0 && next < blocks.end) load(asked.v, next, slot);
        if (SLOTS == 6 && thread == 0 && fourth < blocks.end) load(asked.k, fourth, slot);
        if (block >= blocks.clear) hide(scores, desk.sights + thread / 32 * 16 + thread % 32 / 4, block * KEYS);
        soften<D>(scores, weights, fade, part, a.scale);
        fade_out<D>(fade, part);
        wait(values);
        weigh<D>(weights, ring + values * BYTES, part);
        products_done<0>();
        hold(part.out);
        warpgroup_barrier(1 + half);
        if (SLOTS == 3 && thread == 0 && third < blocks.end) load(asked.k, third, values);
        if (SLOTS == 6 && thread == 0 && fourth < blocks.end) load(asked.v, fourth, values);
        block = next, slot = slot + 2 >= SLOTS ? slot + 2 - SLOTS : slot + 2;
    }
    part.join_lanes();
    // The second half goes to the first through shared memory.
    float* other = (float*)memory + thread;
    __syncthreads();
    if (half == 1 && live) {
#pragma unroll
        for (int i = 0; i < D / 2; i++) other[i * 128] = part.out[i];
        for (int r = 0; r < 2; r++) other[(D / 2 + r) * 128] = part.max[r], other[(D / 2 + 2 + r) * 128] = part.sum[r];
    }
    __syncthreads();
    if (half == 1 || !live) return;
    part.merge([&](int i) { return other[i * 128]; });
    store<D>(a, part, given.tile * TILE + thread / 32 * 16, given);
}

template <int D> __device__ __forceinline__ void wide_tiles(const Asked& asked, const Item& given) {
    constexpr int BYTES = KEYS * D * 2;
    extern __shared__ __align__(1024) unsigned char memory[];
    const Attention& a = asked.call;
    Desk& desk = *(Desk*)(memory + (TILES + STAGES * 2) * BYTES);
    uint32_t stages = shared_address(memory) + TILES * BYTES, full = shared_address(desk.full), empty = shared_address(desk.empty);
    auto load = [&](int block, int number) {
        int stage = number % STAGES;
        if (number >= STAGES) wait_for(empty + stage * 8, (number / STAGES - 1) & 1);
        expect(full + stage * 8, 2 * BYTES);
        fetch_block<D>(asked.k, stages + stage * 2 * BYTES, full + stage * 8, block);
        fetch_block<D>(asked.v, stages + (stage * 2 + 1) * BYTES, full + stage * 8, block);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) begin_barrier(full + i * 8, 1), begin_barrier(empty + i * 8, TILES * 4);
        show_to_products();
        desk.item = given;
        desk.blocks[0].set(a, given.tile * TILES * TILE, TILES * TILE, given.piece * PIECE, (given.piece + 1) * PIECE);
    }
    follow();
    if (threadIdx.x == 0) {
        Blocks& blocks = desk.blocks[0];
        int next = blocks.after(blocks.first);
        if (blocks.first < blocks.end) load(blocks.first, 0);
        if (next < blocks.end) load(next, 1);
    }
    unsigned member = same(threadIdx.x / 128);
    uint32_t queries = shared_address(memory) + member * BYTES;
    bool live = (given.tile * TILES + member) * TILE < a.rows * a.group, stored = false;
    if (live) fetch_queries<D, 1>(a, queries, (given.tile * TILES + member) * TILE, threadIdx.x % 128);
    look(a, desk.sights, given.tile * TILES * TILE, TILES * TILE);
    Running<D> part;
    part.clear();
    __syncthreads();
    Blocks blocks = desk.blocks[0].uniform();
    int half = same(desk.item.piece) * (PIECE / KEYS) + HALF / KEYS;
    for (int block = blocks.first, number = 0; block < blocks.end; block = blocks.after(block), number++) {
        int stage = number % STAGES, ahead = blocks.after(blocks.after(block));
        if (threadIdx.x == 0 && ahead < blocks.end) load(ahead, number + 2);
        __syncwarp();
        wait_for(full + stage * 8, number / STAGES & 1);
        if (live) {
            if (!stored && block >= half) {
                part.join_lanes();
                store<D>(a, part, (desk.item.tile * TILES * 4 + threadIdx.x / 32) * 16, desk.item);
                __syncwarp();
                part.clear();
                stored = true;
            }
            float scores[KEYS / 2], fade[2];
            uint32_t weights[KEYS / 16][4];
            score<D>(scores, queries, stages + stage * 2 * BYTES);
            products_done<0>();
            hold(scores);
            if (block >= blocks.clear) hide(scores, desk.sights + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, block * KEYS);
            soften<D>(scores, weights, fade, part, a.scale);
            fade_out<D>(fade, part);
            weigh<D>(weights, stages + (stage * 2 + 1) * BYTES, part);
            products_done<0>();
            hold(part.out);
        }
        if (threadIdx.x % 32 == 0) arrive(empty + stage * 8);
    }
    int first_row = (desk.item.tile * TILES * 4 + threadIdx.x / 32) * 16;
    part.join_lanes();
    if (stored) part.merge_behind(a, first_row, desk.item);
    store<D>(a, part, first_row, desk.item);
}

template <int D, int SLOTS> __device__ __forceinline__ void attend(const Asked& asked, const Item& item) {
    if constexpr (SLOTS == WIDE) wide_tiles<D>(asked, item);
    else narrow_tile<D, SLOTS>(asked, item);
}
template <int D, int SLOTS> __device__ __forceinline__ void attend(const Mapped& mapped, const Item& item) {
    attend<D, SLOTS>(Asked{mapped.k, mapped.v, mapped.call, mapped.settled != 0}, item);
}
// A call alone: blocks of threads by tile and piece.
template <int D, int SLOTS> __device__ __forceinline__ void attend_alone(const Mapped& mapped) {
    if (threadIdx.x == 0) await_map(mapped.k), await_map(mapped.v);
    constexpr int ROWS = SLOTS == WIDE ? TILES * TILE : TILE;
    int tiles = (mapped.call.rows * mapped.call.group + ROWS - 1) / ROWS;
    attend<D, SLOTS>(mapped, Item{0, (int)blockIdx.x % tiles, (int)blockIdx.x / tiles, (int)gridDim.x / tiles});
}
// Calls together: what each block of threads does is listed.
template <int D, int SLOTS> __device__ __forceinline__ void attend_listed(const Mapped* calls, const Item* items, bool lie) {
    if (lie) follow();
    Item item = items[blockIdx.x];
    if (lie && threadIdx.x % 128 == 0) see_map(calls[item.call].k), see_map(calls[item.call].v);
    attend<D, SLOTS>(calls[item.call], item);
}
// Calls of a step, alike in every layer but for their keys, whose maps lie where `maps` says, a layer behind the other.
template <int D, int SLOTS> __device__ __forceinline__ void attend_laid(const Laid* calls, const Item* items, const KeyMaps* const* maps, int layer) {
    Item item = items[blockIdx.x];
    const KeyMaps& keys = maps[item.call][layer];
    if (threadIdx.x % 128 == 0) see_map(keys.k), see_map(keys.v);
    attend<D, SLOTS>(Asked{keys.k, keys.v, calls[item.call].call, calls[item.call].settled != 0}, item);
}
#else
template <int D, int SLOTS> __device__ __forceinline__ void attend_alone(const Mapped&) {}
template <int D, int SLOTS> __device__ __forceinline__ void attend_listed(const Mapped*, const Item*, bool) {}
template <int D, int SLOTS> __device__ __forceinline__ void attend_laid(const Laid*, const Item*, const KeyMaps* const*, int) {}
#endif

#define K extern "C" __global__ void
#define ATTEND(NAME, SLOTS, THREADS, BLOCKS, D)                                                                              \
    K __launch_bounds__(THREADS, BLOCKS) attend_##NAME##_##D(const __grid_constant__ Mapped mapped) {                         \
        attend_alone<D, SLOTS>(mapped);                                                                                       \
    }                                                                                                                        \
    K __launch_bounds__(THREADS, BLOCKS) attend_listed_##NAME##_##D(const Mapped* calls, const Item* items) {                 \
        attend_listed<D, SLOTS>(calls, items, true);                                                                          \
    }                                                                                                                        \
    K __launch_bounds__(THREADS, BLOCKS)                                                                                     \
        attend_listed_##NAME##_carried_##D(const __grid_constant__ Carried c, int calls, int items) {                         \
        attend_listed<D, SLOTS>(within<Mapped>(c, calls), within<Item>(c, items), false);                                     \
    }                                                                                                                        \
    K __launch_bounds__(THREADS, BLOCKS)                                                                                     \
        attend_laid_##NAME##_##D(const Laid* calls, const Item* items, const KeyMaps* const* maps, int layer) {                          \
        attend_laid<D, SLOTS>(calls, items, maps, layer);                                                                          \
    }                                                                                                                        \
    K __launch_bounds__(THREADS, BLOCKS)                                                                                     \
        attend_laid_##NAME##_carried_##D(const __grid_constant__ Carried c, int calls, int items, int maps, int layer) {      \
        attend_laid<D, SLOTS>(within<Laid>(c, calls), within<Item>(c, items), within<const KeyMaps*>(c, maps), layer);        \
    }
ATTEND(narrow, 3, 256, 2, 64)
ATTEND(narrow, 3, 256, 2, 128)
ATTEND(narrow_deep, 6, 256, 1, 64)
ATTEND(narrow_deep, 6, 256, 1, 128)
ATTEND(wide, WIDE, 512, 1, 64)
ATTEND(wide, WIDE, 512, 1, 128)
