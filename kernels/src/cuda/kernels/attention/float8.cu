// Attention of many rows with log-sum-exp on Hopper in 8-bit floats (e4m3), for heads of 128 elements.
//
// Queries have a scale each, keys and values one a block of 128. From keys the mean of the first of them is taken before, which all scores
// of a row have in common: it leaves outputs as they are, and log-sum-exps get it back. Scores are summed within a product; weights times values
// of one block go to fresh registers, which are added to the outputs in f32, since tensor cores sum products of 8-bit floats with few bits.
// Sums are of weights before they are rounded. Values lie transposed, with keys in such an order (`place_of_key`) that scores, made weights
// where they are, are the left side of the second product.
//
// A block of threads walks over tiles of rows of one query head: one warpgroup brings blocks of keys and values to a ring in shared
// memory, three others have 64 rows each, and multiply while others make weights.
#include "warpgroups.cuh"
#include "eight.cuh"
#include "softmax.cuh"

constexpr int DIM = 128, KEYS = 128;  // elements of a head; keys of a block
constexpr int GROUPS = 3;              // warpgroups with rows
constexpr int SAMPLE = 1024;           // first keys, of which the mean is: that of others stays as more of them come

// Rows of 128, of each head.
struct Matrix {
    const bf16* at;
    long long head, row;  // elements from one to the next
    int rows;
};
typedef Pack<bf16, 4> Four;

__device__ __forceinline__ void load_row(const Matrix& m, int head, int row, float (&x)[4]) {
    Four four = *(const Four*)(m.at + head * m.head + row * m.row + threadIdx.x % 32 * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = widen(four.x[i]);
}
__device__ __forceinline__ float most_of(const float (&x)[4]) {
    return fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
}
__device__ __forceinline__ float scale_of(float most) { return most > 0 ? most / LARGEST : 1.f; }
// Four floats, the first in the lowest byte.
__device__ __forceinline__ uint32_t pack4(float a, float b, float c, float d) {
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return high << 16 | low;
}

// The mean of the first keys of each head, (kv head, 128). A block of 32 warps a head.
extern "C" __global__ void __launch_bounds__(1024) centre_float8(Matrix keys, float* means) {
    __shared__ float sums[32][DIM];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = min(keys.rows, SAMPLE);
    float sum[4] = {};
#pragma unroll 8
    for (int i = warp; i < count; i += 32) {
        float x[4];
        load_row(keys, blockIdx.x, i, x);
        for (int j = 0; j < 4; j++) sum[j] += x[j];
    }
    for (int j = 0; j < 4; j++) sums[warp][lane * 4 + j] = sum[j];
    __syncthreads();
    if (threadIdx.x >= DIM) return;
    float all = 0;
    for (int i = 0; i < 32; i++) all += sums[i][threadIdx.x];
    means[blockIdx.x * DIM + threadIdx.x] = all / count;
}

// Queries, blocks of eight warps with a row each, grid (rows / 8, heads): to (head, row, 128), and to (head, row) their scales and what the
// mean of the keys adds to their scores.
extern "C" __global__ void __launch_bounds__(256)
    queries_float8(Matrix m, uint32_t* to, float* scales, float* shifts, const float* means, int group, float by) {
    int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= m.rows) return;
    float x[4];
    load_row(m, blockIdx.y, row, x);
    float scale = scale_of(warp_max(most_of(x))), over = 1 / scale;
    const float* mean = means + blockIdx.y / group * DIM + lane * 4;
    float shift = warp_sum(x[0] * mean[0] + x[1] * mean[1] + x[2] * mean[2] + x[3] * mean[3]);
    size_t place = (size_t)blockIdx.y * m.rows + row;
    to[place * 32 + lane] = pack4(x[0] * over, x[1] * over, x[2] * over, x[3] * over);
    if (lane == 0) scales[place] = scale, shifts[place] = shift * by;
}

// A block of 128 rows, from `first` on, in the registers of 256 threads, less `mean` (null: nothing): a warp has the rows warp + 8 i, a
// lane four columns. Returns the scale of all.
__device__ __forceinline__ float load_block(const Matrix& m, int first, const float* mean, float (&x)[16][4]) {
    float most = 0, off[4] = {};
    if (mean)
        for (int j = 0; j < 4; j++) off[j] = mean[blockIdx.y * DIM + threadIdx.x % 32 * 4 + j];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int row = first + threadIdx.x / 32 + i * 8;
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
        if (row >= m.rows) continue;
        load_row(m, blockIdx.y, row, x[i]);
        for (int j = 0; j < 4; j++) x[i][j] -= off[j];
        most = fmaxf(most, most_of(x[i]));
    }
    return scale_of(block_max(most));
}

// Keys less their mean from block `from` on, 256 threads a block, grid (blocks, kv heads): to (kv head, key, 128) and scales (kv head,
// block), with room for so many blocks.
extern "C" __global__ void __launch_bounds__(256) keys_float8(Matrix m, uint32_t* to, float* scales, int from, int blocks, const float* means) {
    int block = from + blockIdx.x;
    float x[16][4], scale = load_block(m, block * KEYS, means, x), over = 1 / scale;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int row = threadIdx.x / 32 + i * 8;
        if (block * KEYS + row < m.rows)
            to[(((size_t)blockIdx.y * blocks + block) * KEYS + row) * 32 + threadIdx.x % 32] =
                pack4(x[i][0] * over, x[i][1] * over, x[i][2] * over, x[i][3] * over);
    }
    if (threadIdx.x == 0) scales[blockIdx.y * blocks + block] = scale;
}

// Where the value of a key lies among 16. A thread of a product has, of two groups of 8 columns, the columns 2 t and 2 t + 1 (t = lane %
// 4); as the left side of the next product these are its columns 4 t to 4 t + 3.
__device__ __forceinline__ int place_of_key(int key) { return key % 8 / 2 * 4 + key / 8 % 2 * 2 + key % 2; }

// Values, likewise, transposed; of keys that are none, zeros up to a whole block: to (kv head, 128, keys of all blocks that there is room for).
extern "C" __global__ void __launch_bounds__(256) values_float8(Matrix m, uint32_t* to, float* scales, int from, int blocks) {
    // Of 128 bytes and four more, so that columns start in different banks.
    __shared__ unsigned char columns[DIM][KEYS + 4];
    int block = from + blockIdx.x;
    float x[16][4], scale = load_block(m, block * KEYS, nullptr, x), over = 1 / scale;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t four = pack4(x[i][0] * over, x[i][1] * over, x[i][2] * over, x[i][3] * over);
        int key = warp + i * 8, place = key / 16 * 16 + place_of_key(key % 16);
#pragma unroll
        for (int j = 0; j < 4; j++) columns[lane * 4 + j][place] = four >> (8 * j);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int column = warp + i * 8;
        to[((size_t)blockIdx.y * DIM + column) * (blocks * 32) + block * 32 + lane] = *(uint32_t*)&columns[column][lane * 4];
    }
    if (threadIdx.x == 0) scales[blockIdx.y * blocks + block] = scale;
}

struct alignas(64) Call {
    TensorMap q, k, v;     // (query head, row, 128), (kv head, key, 128), (kv head, 128, key): maps count two of them as one element
    const float* q_scale;  // (query head, row)
    const float* q_shift;  // natural: what the keys' mean adds to the scores
    const float* k_scale;  // (kv head, block), and so are those of values; above 0
    const float* v_scale;
    bf16* out;             // of the last run of keys; and of those before, (run, row, query head, 128)
    bf16* before;
    float* lse;            // natural, (query head, rows of the call); and (run, query head, row)
    float* before_lse;
    long long out_head, out_row, lse_head;
    int heads, group, rows, keys, causal;  // query heads, and how many share a kv head; causal: rows are the last of the keys
    int first, end;        // tiles that are computed, in their order
    int runs;    // into which keys are cut; each has tiles of its own
    int blocks;  // for which there is room in keys, values and scales
    float scale;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int TILE = 64, ROWS = GROUPS * TILE;  // rows of a warpgroup, of a block of threads
constexpr int STAGES = 5;  // blocks of keys and values that the ring holds
constexpr int TILE_BYTES = TILE * DIM, QUERY_BYTES = ROWS * DIM, BLOCK_BYTES = KEYS * DIM, STAGE_BYTES = 2 * BLOCK_BYTES;
constexpr int DESK = 2 * QUERY_BYTES + STAGES * STAGE_BYTES;
// Weights are at most 2^SHIFT (the largest e4m3 is 448), so that small ones stay above its smallest, 2^-9.
constexpr float SHIFT = 8;
constexpr float NOTHING = -1e30f;  // a maximum of no scores
constexpr float LOG2E = 1.44269504088896340736f;

#define EIGHT(x, at) "+f"(x[at]), "+f"(x[at + 1]), "+f"(x[at + 2]), "+f"(x[at + 3]), "+f"(x[at + 4]), "+f"(x[at + 5]), "+f"(x[at + 6]), "+f"(x[at + 7])
#define PRODUCT(x) EIGHT(x, 0), EIGHT(x, 8), EIGHT(x, 16), EIGHT(x, 24), EIGHT(x, 32), EIGHT(x, 40), EIGHT(x, 48), EIGHT(x, 56)
#define PLACES                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                          \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d (64 rows, 128 columns) = or += a (64 rows, 32) b (128 rows, 32)^T, both in shared memory.
__device__ __forceinline__ void product_of_queries(float (&d)[64], uint32_t a, uint32_t b, int add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" PLACES "}, %64, %65, p, 1, 1; }"
        : PRODUCT(d)
        : "l"(described(a)), "l"(described(b)), "r"(add));
}
// The same with a in registers.
__device__ __forceinline__ void product_of_weights(float (&d)[64], const uint32_t (&a)[4], uint32_t b, int add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %69, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" PLACES "}, {%64, %65, %66, %67}, %68, p, 1, 1; }"
        : PRODUCT(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described(b)), "r"(add));
}

__device__ __forceinline__ int same(int x) { return __shfl_sync(~0u, x, 0); }

struct Desk {
    uint64_t full[STAGES], empty[STAGES], query_full[2], query_empty[2];
    float2 scales[STAGES];  // of keys; and by what outputs so far are multiplied to be in units of these values
    float row_scales[ROWS];
    int first_key[GROUPS];  // of a warpgroup's run
};
__device__ __forceinline__ uint32_t queries_at(uint32_t memory, int buffer) { return memory + buffer * QUERY_BYTES; }
__device__ __forceinline__ uint32_t keys_at(uint32_t memory, int stage) { return memory + 2 * QUERY_BYTES + stage * STAGE_BYTES; }
__device__ __forceinline__ uint32_t values_at(uint32_t memory, int stage) { return keys_at(memory, stage) + BLOCK_BYTES; }

// How many keys a row sees.
__device__ __forceinline__ int visible(const Call& c, int row) {
    if (!c.causal) return c.keys;
    return max(0, min(c.keys, c.keys - c.rows + row + 1));
}

struct Tile {
    int head, first_row, run, first_block, blocks;
};
// The tile of a block of threads in a round. Causal tiles are in order of falling length, and rounds go there and back over the blocks of
// threads, so that all have about the same to do. Without mask, and where there are several runs, those over the same keys are neighbours.
__device__ __forceinline__ bool tile_of_round(const Call& c, int round, Tile& tile) {
    int place = round % 2 ? (int)gridDim.x - 1 - (int)blockIdx.x : (int)blockIdx.x, number = c.first + round * (int)gridDim.x + place;
    int row_tiles = (c.rows + ROWS - 1) / ROWS;
    if (number >= c.end) return false;
    bool falling = c.causal && c.runs == 1;
    int row_tile = falling ? row_tiles - 1 - number / c.heads : number % row_tiles, rest = number / row_tiles;
    tile.head = falling ? number % c.heads : rest / c.runs;
    tile.run = falling ? 0 : rest % c.runs;
    tile.first_row = row_tile * ROWS;
    int run_blocks = ((c.keys + KEYS - 1) / KEYS + c.runs - 1) / c.runs;
    tile.first_block = tile.run * run_blocks;
    int seen = (visible(c, min(c.rows, tile.first_row + ROWS) - 1) + KEYS - 1) / KEYS;
    tile.blocks = max(0, min(run_blocks, seen - tile.first_block));
    return true;
}

// A place in the ring, and how often it came round.
struct Place {
    int stage, parity;
    __device__ __forceinline__ Place next() const { return stage + 1 == STAGES ? Place{0, parity ^ 1} : Place{stage + 1, parity}; }
};

// One thread brings queries, keys and values.
__device__ __forceinline__ void bring(const Call& c, uint32_t memory, Desk& desk) {
    uint32_t full = shared_address(desk.full), empty = shared_address(desk.empty);
    await_map(c.q), await_map(c.k), await_map(c.v);
    Place at{0, 0};
    Tile tile;
    for (int round = 0; tile_of_round(c, round, tile); round++) {
        int buffer = round % 2, kv_head = tile.head / c.group;
        uint32_t query_full = shared_address(desk.query_full + buffer);
        wait_for(shared_address(desk.query_empty + buffer), round / 2 % 2 ^ 1);
        expect(query_full, QUERY_BYTES);
        copy_kept_tile(queries_at(memory, buffer), c.q, query_full, 0, tile.first_row, tile.head);
        float value_scale = 0;
        for (int block = tile.first_block; block < tile.first_block + tile.blocks; block++, at = at.next()) {
            float key_scale = c.k_scale[kv_head * c.blocks + block], before = value_scale;
            value_scale = c.v_scale[kv_head * c.blocks + block];
            uint32_t barrier = full + at.stage * 8;
            wait_for(empty + at.stage * 8, at.parity ^ 1);
            desk.scales[at.stage] = make_float2(key_scale, __fdividef(before, value_scale));
            expect(barrier, STAGE_BYTES);
            copy_kept_tile(keys_at(memory, at.stage), c.k, barrier, 0, block * KEYS, kv_head);
            copy_kept_tile(values_at(memory, at.stage), c.v, barrier, block * KEYS / 2, 0, kv_head);
        }
    }
}

// 2^x of x <= SHIFT with an error of 1e-4, without the unit for powers of two.
__device__ __forceinline__ float exp2_polynomial(float x) {
    constexpr float WHOLE = 12582912.f;  // added to it, a float is rounded to a whole number, which its last bits are
    x = fmaxf(x, -100.f);
    float whole = x + WHOLE, part = x - (whole - WHOLE);
    float y = __fmaf_rn(0.05517167f, part, 0.24261112f);
    y = __fmaf_rn(y, part, 0.69326099f);
    y = __fmaf_rn(y, part, 0.99992807f);
    return __int_as_float(__float_as_int(y) + (__float_as_int(whole) << 23));
}
// The unit makes 16 powers a clock, for which it takes as long as the products do: of eight, two are made elsewhere.
__device__ __forceinline__ float power(float x, int number) { return number % 4 == 3 ? exp2_polynomial(x) : exp2_fast(x); }

// A warpgroup with rows: the running softmax of a thread's part of two rows, 8 apart, and their outputs. Registers of a product: 4 n + 2 r
// + i is row r, and column 8 n + 2 (lane % 4) + i.
struct Group {
    const Call& call;
    Desk& desk;
    uint32_t memory;
    int member;  // which warpgroup
    Place now{0, 0};
    // `base`: what is taken off the scores (base 2) so that no weight is above 2^SHIFT, their maximum less SHIFT.
    float out[DIM / 2], base[2], sum[2];

    __device__ __forceinline__ Group(const Call& c, uint32_t memory, Desk& desk, int member) : call(c), desk(desk), memory(memory), member(member) {}

    __device__ __forceinline__ void release(uint64_t& barrier) {
        if (threadIdx.x % 32 == 0) arrive(shared_address(&barrier));
    }
    // Scores of keys that rows do not see.
    __device__ __forceinline__ void hide(float (&scores)[64], int first_row, int first_key) const {
        first_row += (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4, first_key += (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int sees = visible(call, first_row + r * 8) - first_key;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                for (int i = 0; i < 2; i++)
                    if (n * 8 + i >= sees) scores[n * 4 + r * 2 + i] = -INFINITY;
        }
    }
    // The bases with these scores. `faded`: by what all so far is multiplied.
    __device__ __forceinline__ void raise(const float (&scores)[64], const float (&scale)[2], float (&faded)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float raised = fmaxf(base[r], __fmaf_rn(row_max(scores, r), scale[r], -SHIFT));
            faded[r] = exp2_fast(base[r] - raised);
            base[r] = raised;
            sum[r] *= faded[r];
        }
    }
    // Weights of the scores, as the second product wants them.
    __device__ __forceinline__ void soften(const float (&scores)[64], const float (&scale)[2], uint32_t (&weights)[4][4]) {
#pragma unroll
        for (int half = 0; half < 8; half++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float w[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int at = (half * 2 + i / 2) * 4 + r * 2 + i % 2;
                    w[i] = power(__fmaf_rn(scores[at], scale[r], -base[r]), at);
                }
                weights[half / 2][half % 2 * 2 + r] = pack4(w[0], w[1], w[2], w[3]);
                sum[r] += (w[0] + w[1]) + (w[2] + w[3]);
            }
    }
    // The rows of a tile over its keys, from block `clear` on not all of them.
    __device__ __forceinline__ void walk(uint32_t queries, int first_row, int blocks, int clear) {
        float product[64], scale[2], faded[2];
        uint32_t weights[4][4];
#pragma unroll
        for (int i = 0; i < 64; i++) product[i] = 0;
        for (int block = 0; block < blocks; block++, now = now.next()) {
            wait_for(shared_address(desk.full + now.stage), now.parity);
            uint32_t q = by_rows(queries), k = by_rows(keys_at(memory, now.stage));
            hold(product);
            products_begin();
#pragma unroll
            for (int step = 0; step < DIM / 32; step++) product_of_queries(product, q + step * 2, k + step * 2, step > 0);
            products_end();
            const float* rows = desk.row_scales + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
            float of_keys = desk.scales[now.stage].x;
            scale[0] = rows[0] * of_keys, scale[1] = rows[8] * of_keys;
            products_done<0>();
            hold(product);
            if (block >= clear) hide(product, first_row, desk.first_key[member] + block * KEYS);
            raise(product, scale, faded);
            soften(product, scale, weights);
            uint32_t v = by_rows(values_at(memory, now.stage));
            hold(product);
            products_begin();
#pragma unroll
            for (int step = 0; step < KEYS / 32; step++) product_of_weights(product, weights[step], v + step * 2, step > 0);
            products_end();
            products_done<0>();
            hold(product);
            float ratio = desk.scales[now.stage].y, by[2] = {faded[0] * ratio, faded[1] * ratio};
#pragma unroll
            for (int i = 0; i < DIM / 2; i++) out[i] = __fmaf_rn(out[i], by[i / 2 % 2], product[i]);
            release(desk.empty[now.stage]);
        }
    }
    __device__ __forceinline__ void store(const Tile& tile) {
        int lane = threadIdx.x % 32;
        float unit = tile.blocks > 0 ? call.v_scale[tile.head / call.group * call.blocks + tile.first_block + tile.blocks - 1] : 0;
        bool last = tile.run + 1 == call.runs;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
            int row = tile.first_row + (int)threadIdx.x / 32 * 16 + lane / 4 + r * 8;
            if (row >= call.rows) continue;
            bool any = base[r] != NOTHING;
            float by = any ? __fdividef(unit, sum[r]) : 0.f;
            size_t earlier = (size_t)tile.run * call.rows;
            bf16* to = last ? call.out + tile.head * call.out_head + row * call.out_row
                            : call.before + ((earlier + row) * call.heads + tile.head) * DIM;
            to += lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                *(__nv_bfloat162*)(to + n * 8) = __floats2bfloat162_rn(out[n * 4 + r * 2] * by, out[n * 4 + r * 2 + 1] * by);
            float shift = call.q_shift[(size_t)tile.head * call.rows + row];
            float* lse = last ? call.lse + tile.head * call.lse_head + row : call.before_lse + earlier * call.heads + tile.head * call.rows + row;
            if (lane % 4 == 0) *lse = any ? __fmaf_rn(base[r], LN2, logf(sum[r])) + shift : -INFINITY;
        }
    }
    __device__ __forceinline__ void attend() {
        Tile tile;
        for (int round = 0; tile_of_round(call, round, tile); round++) {
            int first_row = same(tile.first_row + member * TILE), row = first_row + threadIdx.x % 128;
            warpgroup_barrier(1 + member);
            if (threadIdx.x % 128 == 0) desk.first_key[member] = tile.first_block * KEYS;
            if (threadIdx.x % 128 < TILE)
                desk.row_scales[member * TILE + threadIdx.x % 128] =
                    row < call.rows ? call.q_scale[(size_t)tile.head * call.rows + row] * call.scale * LOG2E : 1.f;
            warpgroup_barrier(1 + member);
#pragma unroll
            for (int r = 0; r < 2; r++) base[r] = NOTHING, sum[r] = 0;
#pragma unroll
            for (int i = 0; i < DIM / 2; i++) out[i] = 0;
            wait_for(shared_address(desk.query_full + round % 2), round / 2 % 2);
            walk(same(queries_at(memory, round % 2) + member * TILE_BYTES), first_row, same(tile.blocks),
                 same(visible(call, first_row) / KEYS - tile.first_block));
            release(desk.query_empty[round % 2]);
            tile_of_round(call, round, tile);
            store(tile);
        }
    }
};
#endif

extern "C" __global__ void __launch_bounds__((GROUPS + 1) * 128, 1) attend_float8(const __grid_constant__ Call call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    Desk& desk = *(Desk*)(memory + DESK);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) begin_barrier(shared_address(desk.full + i), 1), begin_barrier(shared_address(desk.empty + i), GROUPS * 4);
        for (int i = 0; i < 2; i++)
            begin_barrier(shared_address(desk.query_full + i), 1), begin_barrier(shared_address(desk.query_empty + i), GROUPS * 4);
        show_to_products();
    }
    __syncthreads();
    int member = same(threadIdx.x / 128);
    if (member == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x % 128 == 0) bring(call, shared_address(memory), desk);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        Group(call, shared_address(memory), desk, member).attend();
    }
#endif
}
