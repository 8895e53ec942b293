// y = x W^T + b + residual for up to 16 rows of bf16: the weights go by once, as fast as memory gives them. An output is one sum
// in order of k, sixteen products at a time; whether a library's kernels sum so too is tried where one is chosen.
#include "tiles.cuh"

constexpr int DEPTH = 256, CHUNKS = DEPTH / 8;  // elements of k in a stage; a row's 16-byte chunks, one a lane
constexpr int OUTPUTS = 16;

// Of gated products the first half of the outputs are gates of the second: what comes out is silu(gate) * up, of values rounded as they
// are where the product is one by itself. A block has eight of either. Weights, bias and residual start at the first output that is
// asked for; `n` are all of the weights' outputs, and rows of what comes out and of the residual are so many elements apart.
struct Few {
    const bf16 *x, *w, *bias, *residual;
    bf16* y;
    int rows, n, k, out_row, residual_row, unused;
};

// A warp alone has OUTPUTS outputs of GROUPS times 8 rows.
template <int GROUPS, int STAGES, bool GATED> __device__ __forceinline__ void few(const Few& f) {
    constexpr int STAGE = (OUTPUTS + GROUPS * 8) * DEPTH;
    extern __shared__ __align__(128) bf16 memory[];
    constexpr int HALF = OUTPUTS / 2;
    int lane = threadIdx.x, first = blockIdx.x * (GATED ? HALF : OUTPUTS), stages = (f.k + DEPTH - 1) / DEPTH;
    const bf16* w = f.w + (size_t)first * f.k;
    // From the first outputs' weights to those of the second eight, less what lies between them anyway.
    size_t apart = GATED ? (size_t)(f.n / 2 - HALF) * f.k : 0;
    auto load_weights = [&](int number) {
        int column = number * DEPTH + lane * 8;
        bool there = column < f.k;
        if (!there) column = 0;
        uint32_t to = shared_address(memory + number % STAGES * STAGE);
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++)
            copy16(to + (i * CHUNKS + (lane ^ (i & 7))) * 16, w + (i < HALF ? 0 : apart) + (size_t)i * f.k + column, there);
    };
    auto load_rows = [&](int number) {
        int column = number * DEPTH + lane * 8;
        bool there = column < f.k;
        if (!there) column = 0;
        uint32_t to = shared_address(memory + number % STAGES * STAGE + OUTPUTS * DEPTH);
#pragma unroll
        for (int i = 0; i < GROUPS * 8; i++)
            if (i < f.rows) copy16(to + (i * CHUNKS + (lane ^ (i & 7))) * 16, f.x + (size_t)i * f.k + column, there);
    };
    float sums[GROUPS][4] = {};
    // Weights wait for nobody: they are on their way while what makes the rows is not done.
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        if (s < stages) load_weights(s);
    follow();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < stages) load_rows(s);
        commit();
    }
    for (int number = 0; number < stages; number++) {
        wait_all_but<STAGES - 2>();
        __syncwarp();
        int next = number + STAGES - 1;
        if (next < stages) load_weights(next), load_rows(next);
        commit();
        uint32_t weights = shared_address(memory + number % STAGES * STAGE), rows = weights + OUTPUTS * DEPTH * 2;
#pragma unroll
        for (int step = 0; step < DEPTH / 16; step += 2) {
            uint32_t a[2][4], b[GROUPS][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int row = lane % 16, chunk = (step + i) * 2 + lane / 16;
                load4(a[i], weights + (row * CHUNKS + (chunk ^ (row & 7))) * 16);
            }
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                int row = lane % 8, chunk = step * 2 + lane / 8;
                load4(b[g], rows + ((g * 8 + row) * CHUNKS + (chunk ^ row)) * 16);
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int g = 0; g < GROUPS; g++) mma(sums[g], a[i], b[g][2 * i], b[g][2 * i + 1]);
        }
    }
    wait_all_but<0>();
    if constexpr (GATED) {
        int column = first + lane / 4, half = f.n / 2;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            for (int i = 0; i < 2; i++) {
                int row = g * 8 + lane % 4 * 2 + i;
                if (row >= f.rows) continue;
                float gate = sums[g][i], up = sums[g][i + 2];
                if (f.bias) gate += widen(f.bias[column]), up += widen(f.bias[half + column]);
                gate = silu(widen(narrow<bf16>(gate))), up = widen(narrow<bf16>(up));
                f.y[(size_t)row * f.out_row + column] = narrow<bf16>(gate * up);
            }
    } else {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            for (int i = 0; i < 4; i++) {
                int row = g * 8 + lane % 4 * 2 + i % 2, column = first + lane / 4 + i / 2 * 8;
                if (row >= f.rows) continue;
                float sum = sums[g][i];
                if (f.bias) sum += widen(f.bias[column]);
                if (f.residual) sum += widen(f.residual[(size_t)row * f.residual_row + column]);
                f.y[(size_t)row * f.out_row + column] = narrow<bf16>(sum);
            }
    }
}

#define K extern "C" __global__ void
K __launch_bounds__(32) linear_few_8(const __grid_constant__ Few f) { few<1, 6, false>(f); }
K __launch_bounds__(32) linear_few_16(const __grid_constant__ Few f) { few<2, 4, false>(f); }
K __launch_bounds__(32) gated_few_8(const __grid_constant__ Few f) { few<1, 6, true>(f); }
K __launch_bounds__(32) gated_few_16(const __grid_constant__ Few f) { few<2, 4, true>(f); }
