// Weights in as many bits as a checkpoint has: products of up to 64 rows of bf16 that read them once, and the same weights widened to
// bf16 for products of more. A weight is rounded to bf16 before it is multiplied, and an output is one sum in order of k, sixteen
// products at a time: the bits of the product by the widened weights.
#include "tiles.cuh"
#include <cuda_fp16.h>

constexpr int DEPTH = 256, CHUNKS = DEPTH / 8;  // inputs of a tile; 16-byte chunks of so many elements of a row
constexpr int EACH = 8;                         // outputs of a tile
constexpr int HIGH = EACH * DEPTH / 2;          // where the bits above the lowest four of a tile's codes begin

// Outputs of one format. A tile is the low halves of its codes, the bits above them, scales of each 32 inputs, factors: each for
// output after output but for codes, which lie as tensor cores take them. Of a lane's four inputs of sixteen, the first two lie beside
// each other and the others eight behind them; a word has these of 32 inputs.
struct Section {
    const unsigned char* tiles;
    int end;         // the first output behind it
    int bytes;       // of a tile
    int bits;        // of a code: 4, 6 or 8
    int scales;      // of 32 inputs: none, one, or one for each 16; a byte each, 128 more than it is
    int lows;        // whether as many are added
    int groups;      // factors of a tile's inputs, for scales, and as many for what is added
    int upper;       // factors are the upper halves of f32, not halves
    int chosen;      // codes choose one of `values`, 128 more than they are
    int less;        // what a code is more than its value
    int unused;
    unsigned values[4];
};

struct Blocks {
    const bf16 *x, *bias, *residual;
    bf16* y;
    int rows, n, k, first, last, out_row, most, sections;  // outputs `first` to `last`; `most`: bytes of the largest tile
    Section of[4];
};

__device__ __forceinline__ float of_byte(unsigned bytes, int at, float less) {
    return __uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7540 | at)) - less;
}
__device__ __forceinline__ float factor(const unsigned char* from, int upper) {
    unsigned short bits = *(const unsigned short*)from;
    return upper ? __uint_as_float((unsigned)bits << 16) : __half2float(__ushort_as_half(bits));
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

// A tile's inputs, 32 at a time, for `sink(sub, b)`: operands of two products, of sixteen inputs each.
template <int BITS, bool CHOSEN, class F>
__device__ __forceinline__ void widen_tile(const Section& s, const unsigned char* tile, int lane, F sink) {
    int out = lane / 4, kinds = 1 + s.lows, stride = s.scales * kinds, of_group = 8 / s.groups;
    const unsigned char* scales = tile + HIGH + (BITS - 4) * (EACH * DEPTH / 8);
    const unsigned char* factors = scales + EACH * 8 * stride + out * s.groups * kinds * 2;
    scales += out * 8 * stride;
    // 2^23, by which bytes become floats.
    float less = 8388608.f + (CHOSEN ? 128 : s.less), by = 0, low_by = 0;
    unsigned values[4] = {s.values[0], s.values[1], s.values[2], s.values[3]};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 four = *(const uint4*)(tile + (half * 32 + lane) * 16), more = {};
        if constexpr (BITS == 8) more = *(const uint4*)(tile + HIGH + (half * 32 + lane) * 16);
        if constexpr (BITS == 6) {
            uint2 two = *(const uint2*)(tile + HIGH + (half * 32 + lane) * 8);
            more.x = two.x, more.y = two.y;
        }
        unsigned words[4] = {four.x, four.y, four.z, four.w}, above[4] = {more.x, more.y, more.z, more.w};
#pragma unroll
        for (int at = 0; at < 4; at++) {
            int sub = half * 4 + at;
            if (sub % of_group == 0) {
                const unsigned char* from = factors + sub / of_group * kinds * 2;
                by = factor(from, s.upper);
                if (s.lows) low_by = factor(from + 2, s.upper);
            }
            float scale[2] = {by, by}, low[2] = {low_by, low_by};
            if (s.scales) {
                const unsigned char* from = scales + sub * stride;
                scale[0] = by * of_byte(from[0], 0, 8388736.f);
                scale[1] = s.scales == 2 ? by * of_byte(from[1], 0, 8388736.f) : scale[0];
                if (s.lows) {
                    low[0] = low_by * of_byte(from[s.scales], 0, 8388736.f);
                    low[1] = s.scales == 2 ? low_by * of_byte(from[3], 0, 8388736.f) : low[0];
                }
            }
            unsigned w = words[at];
            float x[2][4];
            if constexpr (CHOSEN) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    unsigned bytes = choose(values, i ? w >> 16 : w);
#pragma unroll
                    for (int j = 0; j < 4; j++) x[i][j] = of_byte(bytes, j, less);
                }
            } else {
                unsigned even = w & 0x0F0F0F0F, odd = w >> 4 & 0x0F0F0F0F;
                if constexpr (BITS == 6) {
                    unsigned h = above[at / 2] >> (at % 2 * 4);
                    even |= (h & 0x03030303) << 4, odd |= (h >> 2 & 0x03030303) << 4;
                }
                if constexpr (BITS == 8) even |= (above[at] & 0x0F0F0F0F) << 4, odd |= above[at] & 0xF0F0F0F0;
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) x[i][j] = of_byte(j % 2 ? odd : even, i * 2 + j / 2, less);
            }
            unsigned b[2][2];
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    b[i][j] = rounded(__fmaf_rn(scale[i], x[i][2 * j], low[i]), __fmaf_rn(scale[i], x[i][2 * j + 1], low[i]));
            sink(sub, b);
        }
    }
}

template <class F> __device__ __forceinline__ void widen_any(const Section& s, const unsigned char* tile, int lane, F sink) {
    if (s.bits == 4 && !s.chosen) widen_tile<4, false>(s, tile, lane, sink);
    else if (s.bits == 4) widen_tile<4, true>(s, tile, lane, sink);
    else if (s.bits == 6) widen_tile<6, false>(s, tile, lane, sink);
    else widen_tile<8, false>(s, tile, lane, sink);
}

// The section that an output is of, and its first output.
__device__ __forceinline__ const Section& section_of(const Blocks& f, int out, int& start) {
    int at = 0;
    start = 0;
    while (at < f.sections - 1 && out >= f.of[at].end) start = f.of[at++].end;
    return f.of[at];
}

// A warp has a tile's outputs of TILES times 16 rows, which a block's warps share.
template <int TILES, int STAGES> __device__ __forceinline__ void multiply(const Blocks& f) {
    constexpr int ROW_BYTES = TILES * 16 * DEPTH * 2;
    extern __shared__ __align__(128) unsigned char memory[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, start;
    int stage = ROW_BYTES + warps * f.most, out = f.first + (blockIdx.x * warps + warp) * EACH;
    const Section& s = section_of(f, out, start);
    int tiles = (f.k + DEPTH - 1) / DEPTH;
    bool works = out < f.last;
    const unsigned char* weights = s.tiles + (size_t)((out - start) / EACH) * tiles * s.bytes;
    auto load_weights = [&](int number) {
        uint32_t to = shared_address(memory + number % STAGES * stage + ROW_BYTES + warp * f.most);
        for (int i = lane * 16; works && i < s.bytes; i += 512) copy16(to + i, weights + (size_t)number * s.bytes + i, true);
    };
    auto load_rows = [&](int number) {
        uint32_t to = shared_address(memory + number % STAGES * stage);
        for (int i = threadIdx.x; i < f.rows * CHUNKS; i += blockDim.x) {
            int row = i / CHUNKS, chunk = i % CHUNKS, column = number * DEPTH + chunk * 8;
            bool there = column < f.k;
            copy16(to + (row * CHUNKS + (chunk ^ (row & 7))) * 16, f.x + (size_t)row * f.k + (there ? column : 0), there);
        }
    };
    float sums[TILES][4] = {};
    // Weights wait for nobody: they are on their way while what makes the rows is not done.
#pragma unroll
    for (int number = 0; number < STAGES - 1; number++)
        if (number < tiles) load_weights(number);
    follow();
#pragma unroll
    for (int number = 0; number < STAGES - 1; number++) {
        if (number < tiles) load_rows(number);
        commit();
    }
    for (int number = 0; number < tiles; number++) {
        wait_all_but<STAGES - 2>();
        __syncthreads();
        int next = number + STAGES - 1;
        if (next < tiles) load_weights(next), load_rows(next);
        commit();
        if (!works) continue;
        const unsigned char* from = memory + number % STAGES * stage;
        uint32_t rows = shared_address(from);
        widen_any(s, from + ROW_BYTES + warp * f.most, lane, [&](int sub, const unsigned (&b)[2][2]) {
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    uint32_t a[4];
                    int row = tile * 16 + lane % 16, chunk = (sub * 2 + i) * 2 + lane / 16;
                    load4(a, rows + (row * CHUNKS + (chunk ^ (row & 7))) * 16);
                    mma(sums[tile], a, b[i][0], b[i][1]);
                }
        });
    }
    wait_all_but<0>();
    if (!works) return;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        for (int i = 0; i < 4; i++) {
            int row = tile * 16 + lane / 4 + i / 2 * 8, column = out + lane % 4 * 2 + i % 2;
            if (row >= f.rows) continue;
            float sum = sums[tile][i];
            if (f.bias) sum += widen(f.bias[column]);
            if (f.residual) sum += widen(f.residual[(size_t)row * f.n + column]);
            f.y[(size_t)row * f.out_row + column - f.first] = narrow<bf16>(sum);
        }
}

#define K extern "C" __global__ void
K __launch_bounds__(256) linear_blocks_16(const __grid_constant__ Blocks f) { multiply<1, 4>(f); }
K __launch_bounds__(256) linear_blocks_64(const __grid_constant__ Blocks f) { multiply<4, 3>(f); }

// All weights as bf16 `(n, k)` in `y`; a warp has a tile.
K __launch_bounds__(256) widen_blocks(const __grid_constant__ Blocks f) {
    constexpr int ROW = DEPTH + 8;
    __shared__ __align__(16) bf16 memory[8][EACH * ROW];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, out = (blockIdx.x * 8 + warp) * EACH, number = blockIdx.y, start;
    follow();
    if (out >= f.n) return;
    const Section& s = section_of(f, out, start);
    int tiles = (f.k + DEPTH - 1) / DEPTH;
    const unsigned char* tile = s.tiles + ((size_t)((out - start) / EACH) * tiles + number) * s.bytes;
    bf16* held = memory[warp];
    widen_any(s, tile, lane, [&](int sub, const unsigned (&b)[2][2]) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                *(unsigned*)(held + lane / 4 * ROW + sub * 32 + i * 16 + j * 8 + lane % 4 * 2) = b[i][j];
    });
    __syncwarp();
    int column = number * DEPTH + lane * 8;
    for (int i = 0; i < EACH && column < f.k; i++)
        *(uint4*)(f.y + (size_t)(out + i) * f.k + column) = *(const uint4*)(held + i * ROW + lane * 8);
}
