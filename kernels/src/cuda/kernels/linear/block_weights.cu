// Weights in as many bits as a checkpoint has: products of up to 64 rows of bf16 that read them once, and the same weights widened to
// bf16 for products of more. A weight is rounded to bf16 before it is multiplied, and an output is one sum in order of k, sixteen
// products at a time: the bits of the product by the widened weights.
#include "tiles.cuh"
#include <cuda_fp16.h>

constexpr int DEPTH = 256, CHUNKS = DEPTH / 8;  // inputs of a tile; 16-byte chunks of so many elements of a row
constexpr int EACH = 8, SUBS = DEPTH / 32;      // outputs of a tile, and scales of each
constexpr int AHEAD = 4;                        // operands of so many products are held
constexpr int HIGH = EACH * DEPTH / 2;          // where the bits above the lowest four of a tile's codes begin

// Outputs of one format. A tile is the low halves of its codes, the bits above them, scales of each 32 inputs, factors: each for
// output after output but for codes, which lie as tensor cores take them. Of a lane's four inputs of sixteen, the first two lie beside
// each other and the others eight behind them; a word has these of 32 inputs.
struct Section {
    const unsigned char* tiles;
    int end;         // the first output behind it
    int bytes;       // of a tile
    int kind;        // one of those below
    int shared;      // so often doubled, scales of 32 inputs have one factor
    int upper;       // factors are the upper halves of f32, not halves
    int less;        // what a code is more than its value
    unsigned values[4];  // what codes choose, 128 more than it is
    int unused[2];
};

struct Blocks {
    const bf16 *x, *bias, *residual;
    bf16* y;
    int rows, n, k, first, last;  // outputs `first` to `last`
    int out_row, most, sections;  // `most`: bytes of the largest tile
    int tiles, unused;            // of outputs that a block of threads has at a time
    Section of[4];
};

// What formats have in common: bits of a code (4, 6 or 8), whether it chooses one of `values`, scales of 32 inputs (none, one, or one for
// each 16; a byte each, 128 more than it is), whether as many are added, and whether a tile's inputs share one factor.
template <int BITS_, bool CHOSEN_, int SCALES_, bool LOWS_, bool ONE_> struct Kind {
    static constexpr int BITS = BITS_, SCALES = SCALES_, KINDS = 1 + LOWS_, STRIDE = SCALES_ * KINDS;
    static constexpr bool CHOSEN = CHOSEN_, LOWS = LOWS_, ONE = ONE_;
};

__device__ __forceinline__ float of_byte(unsigned bytes, int at, float less) {
    return __uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7540 | at)) - less;
}
__device__ __forceinline__ unsigned rounded(float a, float b) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    return both;
}
// What four codes choose, in the low halves of `codes`.
__device__ __forceinline__ unsigned choose(const unsigned (&values)[4], unsigned codes) {
    unsigned at = codes & 0x7777, first = __byte_perm(values[0], values[1], at), second = __byte_perm(values[2], values[3], at);
    return __byte_perm(first, second, 0x3210 | (codes & 0x8888) >> 1);
}

// COUNT times 32 inputs of a tile from `from` on, for `sink(at, b)`: operands of two products, of sixteen inputs each.
template <class K, int COUNT, class F>
__device__ __forceinline__ void widen_part(const Section& s, const unsigned char* tile, int from, int lane, F sink) {
    int out = lane / 4, word = (from / 4 * 32 + lane) * 16 + from % 4 * 4;
    const unsigned char* scales = tile + HIGH + (K::BITS - 4) * (EACH * DEPTH / 8);
    const unsigned char* factors = scales + EACH * SUBS * K::STRIDE + out * (K::ONE ? 1 : SUBS >> s.shared) * K::KINDS * 2;
    float less = 8388608.f + s.less, by[2] = {};  // 2^23, by which bytes become floats
    Pack<unsigned, COUNT> low = *(const Pack<unsigned, COUNT>*)(tile + word), high;
    Pack<unsigned, COUNT / 2> pairs;
    if constexpr (K::BITS == 8) high = *(const Pack<unsigned, COUNT>*)(tile + HIGH + word);
    if constexpr (K::BITS == 6) pairs = *(const Pack<unsigned, COUNT / 2>*)(tile + HIGH + word / 2);
    constexpr int OWN = COUNT * K::STRIDE;
    unsigned own[(OWN + 3) / 4 + 1];
    scales += (out * SUBS + from) * K::STRIDE;
    if constexpr (OWN == 2) own[0] = *(const unsigned short*)scales;
#pragma unroll
    for (int i = 0; i < OWN / 4; i++) own[i] = *(const unsigned*)(scales + 4 * i);
#pragma unroll
    for (int sub = 0; sub < COUNT; sub++) {
        if (sub == 0 || !K::ONE) {
            const unsigned char* of = factors + (K::ONE ? 0 : (from + sub) >> s.shared) * K::KINDS * 2;
            unsigned bits = K::LOWS ? *(const unsigned*)of : *(const unsigned short*)of;
            by[0] = __half2float(__ushort_as_half((unsigned short)bits)), by[1] = __half2float(__ushort_as_half((unsigned short)(bits >> 16)));
            if (K::CHOSEN && s.upper) by[0] = __uint_as_float(bits << 16);
        }
        // Scales, then what is added.
        float scale[2][2];
#pragma unroll
        for (int kind = 0; kind < 2; kind++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int at = sub * K::STRIDE + kind * K::SCALES + (K::SCALES == 2 ? half : 0);
                bool there = kind == 0 || K::LOWS;
                scale[kind][half] = there ? by[kind] : 0.f;
                if (there && K::SCALES) scale[kind][half] *= of_byte(own[at / 4], at % 4, 8388736.f);
            }
        unsigned w = low.x[sub], even = w & 0x0F0F0F0F, odd = w >> 4 & 0x0F0F0F0F;
        if constexpr (K::BITS == 6) {
            unsigned h = pairs.x[sub / 2] >> (sub % 2 * 4);
            even |= (h & 0x03030303) << 4, odd |= (h >> 2 & 0x03030303) << 4;
        }
        if constexpr (K::BITS == 8) even |= (high.x[sub] & 0x0F0F0F0F) << 4, odd |= high.x[sub] & 0xF0F0F0F0;
        unsigned b[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            unsigned chosen = 0;
            if constexpr (K::CHOSEN) chosen = choose(s.values, i ? w >> 16 : w);
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[j] = K::CHOSEN ? of_byte(chosen, j, less) : of_byte(j % 2 ? odd : even, i * 2 + j / 2, less);
                x[j] = __fmaf_rn(scale[0][i], x[j], scale[1][i]);
            }
            b[i][0] = rounded(x[0], x[1]), b[i][1] = rounded(x[2], x[3]);
        }
        sink(sub, b);
    }
}

template <int COUNT, class F>
__device__ __forceinline__ void widen_any(const Section& s, const unsigned char* tile, int from, int lane, F sink) {
#define KIND(number, ...) \
    case number: widen_part<Kind<__VA_ARGS__>, COUNT>(s, tile, from, lane, sink); break;
    switch (s.kind) {
        KIND(0, 4, false, 0, false, false)
        KIND(1, 4, false, 0, true, false)
        KIND(2, 4, false, 1, true, true)
        KIND(3, 4, false, 1, true, false)
        KIND(4, 4, false, 2, false, true)
        KIND(5, 4, false, 2, true, true)
        KIND(6, 4, true, 0, false, false)
        KIND(7, 4, true, 1, false, true)
        KIND(8, 6, false, 0, false, false)
        KIND(9, 6, false, 0, true, false)
        KIND(10, 6, false, 1, true, true)
        KIND(11, 6, false, 2, false, true)
        KIND(12, 8, false, 0, false, false)
    }
#undef KIND
}

// The section that an output is of, and its first output.
__device__ __forceinline__ Section section_of(const Blocks& f, int out, int& start) {
    Section s = f.of[0];
    start = 0;
#pragma unroll
    for (int at = 1; at < 4; at++)
        if (at < f.sections && out >= f.of[at - 1].end) s = f.of[at], start = f.of[at - 1].end;
    return s;
}

// A row's output, if there are such: its sum of products, and what is added to it.
__device__ __forceinline__ void put_output(const Blocks& f, int row, int output, float sum) {
    if (row >= f.rows || output >= f.last) return;
    if (f.bias) sum += widen(f.bias[output]);
    if (f.residual) sum += widen(f.residual[(size_t)row * f.n + output]);
    f.y[(size_t)row * f.out_row + output - f.first] = narrow<bf16>(sum);
}

// A block of threads has `tiles` tiles of outputs at a time, of ROW_TILES times 16 rows, and goes from group to group of them. Of its warps
// each of the first widens COUNT times 32 inputs of a tile, of all 256; each of the others multiplies what was widened before of PAIR tiles
// with sixteen rows.
template <int ROW_TILES, int PAIR, int COUNT, int STAGES> __device__ __forceinline__ void multiply(const Blocks& f) {
    constexpr int ROW_BYTES = ROW_TILES * 16 * DEPTH * 2, WIDE = EACH * DEPTH * 2;
    extern __shared__ __align__(128) unsigned char memory[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wideners = f.tiles * SUBS / COUNT;
    int stage = ROW_BYTES + f.tiles * f.most, outputs = f.last - f.first, steps = (f.k + DEPTH - 1) / DEPTH;
    int groups = (outputs + f.tiles * EACH - 1) / (f.tiles * EACH), own = (groups - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    int all = own * steps;
    unsigned char* wide = memory + STAGES * stage;  // two of `tiles` widened tiles
    auto first_of = [&](int group) { return f.first + ((int)blockIdx.x + group * (int)gridDim.x) * f.tiles * EACH; };
    if (warp < wideners) {
        // Weights wait for nobody, and those who widen them wait for whoever brings them alone.
        follow();
        int tile = warp * COUNT / SUBS, from = warp * COUNT % SUBS, slot = 0, start;
        const unsigned char* codes = memory + ROW_BYTES + tile * f.most;
        uint2* to = (uint2*)(wide + tile * WIDE) + from * 2 * 32 + lane;
        for (int group = 0; group < own; group++) {
            int out = first_of(group) + tile * EACH;
            const Section s = section_of(f, out, start);
            for (int step = 0; step < steps; step++) {
                __syncthreads();
                if (out < f.last)
                    widen_any<COUNT>(s, codes + slot * stage, from, lane, [&](int sub, const unsigned (&b)[2][2]) {
                        to[sub * 64] = make_uint2(b[0][0], b[0][1]);
                        to[sub * 64 + 32] = make_uint2(b[1][0], b[1][1]);
                    });
                slot = slot + 1 == STAGES ? 0 : slot + 1;
                to += (group * steps + step) % 2 ? -(f.tiles * WIDE / 8) : f.tiles * WIDE / 8;
            }
        }
        __syncthreads();
        return;
    }
    int multiplier = warp - wideners, row_tile = multiplier % ROW_TILES, pair = multiplier / ROW_TILES * PAIR;
    // What is brought: a warp that multiplies brings the weights of a tile, and all of them the rows.
    const unsigned char* weights = nullptr;
    int bytes = 0, group = 0, step = 0, place = 0, column = 0, brought = 0;
    auto begin = [&] {
        int out = first_of(group) + multiplier * EACH, start;
        bytes = 0;
        if (multiplier >= f.tiles || out >= f.last) return;
        const Section s = section_of(f, out, start);
        weights = s.tiles + (size_t)((out - start) / EACH) * steps * s.bytes, bytes = s.bytes;
    };
    auto bring_weights = [&] {
        uint32_t to = shared_address(memory + place * stage + ROW_BYTES + multiplier * f.most);
        for (int i = lane * 16; i < bytes; i += 512) copy16(to + i, weights + i, true);
        weights += bytes, place = place + 1 == STAGES ? 0 : place + 1;
        if (++step == steps) step = 0, group++, begin();
    };
    auto bring_rows = [&] {
        uint32_t to = shared_address(memory + brought * stage);
        int multipliers = blockDim.x / 32 - wideners, chunk = column + lane * 8;
        bool there = chunk < f.k;
        for (int row = multiplier; row < f.rows; row += multipliers)
            copy16(to + (row * CHUNKS + (lane ^ (row & 7))) * 16, f.x + (size_t)row * f.k + (there ? chunk : 0), there);
        column = column + DEPTH < f.k ? column + DEPTH : 0, brought = brought + 1 == STAGES ? 0 : brought + 1;
    };
    begin();
#pragma unroll
    for (int number = 0; number < STAGES - 2; number++)
        if (number < all) bring_weights();
    follow();
#pragma unroll
    for (int number = 0; number < STAGES - 2; number++) {
        if (number < all) bring_rows();
        commit();
    }
    float sums[PAIR][4] = {};
    uint32_t rows = shared_address(memory) + (row_tile * 16 + lane % 16) * (CHUNKS * 16), swizzle = (lane / 16 ^ lane % 8) * 16;
    // What is widened in a round is multiplied in the next.
    for (int number = 0, at = 0, of = 0, slot = 0; number <= all; number++) {
        wait_all_but<STAGES - 3>();
        __syncthreads();
        if (number + STAGES - 2 < all) bring_weights(), bring_rows();
        commit();
        if (number == 0) continue;
        const uint2* b = (const uint2*)(wide + ((number - 1) % 2 * f.tiles + pair) * WIDE) + lane;
        uint32_t from = rows + slot * stage;
        // Operands of the steps that follow come while one is multiplied.
        uint32_t a[AHEAD][4];
        uint2 operands[AHEAD][PAIR];
        auto bring = [&](int k) {
            load4(a[k % AHEAD], from + (k * 32 ^ swizzle));
#pragma unroll
            for (int o = 0; o < PAIR; o++) operands[k % AHEAD][o] = b[o * (WIDE / 8) + k * 32];
        };
#pragma unroll
        for (int k = 0; k < AHEAD - 1; k++) bring(k);
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            if (k + AHEAD - 1 < DEPTH / 16) bring(k + AHEAD - 1);
#pragma unroll
            for (int o = 0; o < PAIR; o++) mma(sums[o], a[k % AHEAD], operands[k % AHEAD][o].x, operands[k % AHEAD][o].y);
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        if (++at < steps) continue;
#pragma unroll
        for (int o = 0; o < PAIR; o++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = row_tile * 16 + lane / 4 + i / 2 * 8, output = first_of(of) + (pair + o) * EACH + lane % 4 * 2 + i % 2;
                float sum = sums[o][i];
                sums[o][i] = 0;
                put_output(f, row, output, sum);
            }
        at = 0, of++;
    }
    wait_all_but<0>();
}

// A warp has a tile's outputs of sixteen rows, which a block's warps share.
template <int STAGES> __device__ __forceinline__ void multiply_alone(const Blocks& f) {
    constexpr int ROW_BYTES = 16 * DEPTH * 2;
    extern __shared__ __align__(128) unsigned char memory[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, start;
    int stage = ROW_BYTES + f.tiles * f.most, out = f.first + ((int)blockIdx.x * f.tiles + warp) * EACH, steps = (f.k + DEPTH - 1) / DEPTH;
    bool works = out < f.last;
    const Section s = section_of(f, works ? out : f.first, start);
    const unsigned char* weights = s.tiles + (size_t)(works ? (out - start) / EACH : 0) * steps * s.bytes;
    auto bring_weights = [&](int number) {
        uint32_t to = shared_address(memory + number % STAGES * stage + ROW_BYTES + warp * f.most);
        for (int i = lane * 16; works && i < s.bytes; i += 512) copy16(to + i, weights + (size_t)number * s.bytes + i, true);
    };
    auto bring_rows = [&](int number) {
        uint32_t to = shared_address(memory + number % STAGES * stage);
        for (int i = threadIdx.x; i < f.rows * CHUNKS; i += blockDim.x) {
            int row = i / CHUNKS, chunk = i % CHUNKS, column = number * DEPTH + chunk * 8;
            bool there = column < f.k;
            copy16(to + (row * CHUNKS + (chunk ^ (row & 7))) * 16, f.x + (size_t)row * f.k + (there ? column : 0), there);
        }
    };
    float sums[4] = {};
#pragma unroll
    for (int number = 0; number < STAGES - 1; number++)
        if (number < steps) bring_weights(number);
    follow();
#pragma unroll
    for (int number = 0; number < STAGES - 1; number++) {
        if (number < steps) bring_rows(number);
        commit();
    }
    for (int number = 0; number < steps; number++) {
        wait_all_but<STAGES - 2>();
        __syncthreads();
        int next = number + STAGES - 1;
        if (next < steps) bring_weights(next), bring_rows(next);
        commit();
        if (!works) continue;
        const unsigned char* from = memory + number % STAGES * stage;
        uint32_t rows = shared_address(from) + lane % 16 * (CHUNKS * 16), swizzle = (lane / 16 ^ lane % 8) * 16;
        // Rows are brought before the weights that they are multiplied by are widened.
        uint32_t a[2][2][4];
        auto bring = [&](int sub) {
#pragma unroll
            for (int i = 0; i < 2; i++) load4(a[sub % 2][i], rows + ((sub * 2 + i) * 32 ^ swizzle));
        };
        bring(0);
#pragma unroll
        for (int half = 0; half < 2; half++)
            widen_any<4>(s, from + ROW_BYTES + warp * f.most, half * 4, lane, [&](int at, const unsigned (&b)[2][2]) {
                int sub = half * 4 + at;
                if (sub + 1 < SUBS) bring(sub + 1);
#pragma unroll
                for (int i = 0; i < 2; i++) mma(sums, a[sub % 2][i], b[i][0], b[i][1]);
            });
    }
    wait_all_but<0>();
    if (!works) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, output = out + lane % 4 * 2 + i % 2;
        put_output(f, row, output, sums[i]);
    }
}

#define K extern "C" __global__ void
K __launch_bounds__(256) linear_blocks_16_alone(const __grid_constant__ Blocks f) { multiply_alone<4>(f); }
K __launch_bounds__(640) linear_blocks_16(const __grid_constant__ Blocks f) { multiply<1, 1, 2, 6>(f); }
K __launch_bounds__(768) linear_blocks_64(const __grid_constant__ Blocks f) { multiply<4, 2, 4, 4>(f); }

// All weights as bf16 `(n, k)` in `y`; a warp has a tile.
K __launch_bounds__(256) widen_blocks(const __grid_constant__ Blocks f) {
    constexpr int ROW = DEPTH + 8;
    __shared__ __align__(16) bf16 memory[8][EACH * ROW];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, out = (blockIdx.x * 8 + warp) * EACH, number = blockIdx.y, start;
    // Products read weights before they wait.
    follow_and_finish();
    if (out >= f.n) return;
    Section s = section_of(f, out, start);
    int tiles = (f.k + DEPTH - 1) / DEPTH;
    const unsigned char* tile = s.tiles + ((size_t)((out - start) / EACH) * tiles + number) * s.bytes;
    bf16* held = memory[warp];
#pragma unroll
    for (int from = 0; from < SUBS; from += 4)
        widen_any<4>(s, tile, from, lane, [&](int sub, const unsigned (&b)[2][2]) {
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    *(unsigned*)(held + lane / 4 * ROW + (from + sub) * 32 + i * 16 + j * 8 + lane % 4 * 2) = b[i][j];
        });
    __syncwarp();
    int column = number * DEPTH + lane * 8;
    for (int i = 0; i < EACH && column < f.k; i++)
        *(uint4*)(f.y + (size_t)(out + i) * f.k + column) = *(const uint4*)(held + i * ROW + lane * 8);
}
