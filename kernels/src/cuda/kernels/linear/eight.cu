// 8-bit floats: rows with a scale each, and what is added to a product that takes nothing else.
#include "eight.cuh"
#include "normed.cuh"

#define K extern "C" __global__ __launch_bounds__(256) void
K quantize(const bf16* x, unsigned char* out, float* scales, int columns) {
    follow_early();
    const bf16* row = x + (size_t)blockIdx.x * columns;
    quantize_row([&](int i) { return *(const Sixteen*)(row + i); }, out, scales, columns);
}

// Of what `rms_norm` gives, with its arithmetic.
K quantize_norm(const bf16* x, const bf16* weight, unsigned char* out, float* scales, int columns, float eps) {
    follow_early();
    const bf16* row = x + (size_t)blockIdx.x * columns;
    float sum = 0;
    for (int i = threadIdx.x * 8; i < columns; i += 256 * 8) sum = squares(sum, *(const Sixteen*)(row + i));
    float factor = norm_factor(sum, columns, eps);
    auto value = [&](int i) { return normed(*(const Sixteen*)(row + i), factor, *(const Sixteen*)(weight + i)); };
    quantize_row(value, out, scales, columns);
}

// Of what `gated_silu` gives for rows of gate and up, with its arithmetic; a row lies in shared memory meanwhile.
K quantize_gated(const bf16* gate_up, unsigned char* out, float* scales, int columns) {
    follow_early();
    extern __shared__ __align__(16) bf16 gated[];
    const bf16* row = gate_up + (size_t)blockIdx.x * 2 * columns;
    for (int i = threadIdx.x * 8; i < columns; i += 256 * 8) {
        Sixteen g = *(const Sixteen*)(row + i), u = *(const Sixteen*)(row + columns + i);
        for (int j = 0; j < 8; j++) {
            float x = widen(g.x[j]);
            g.x[j] = narrow<bf16>(x / (1.0f + expf(-x)) * widen(u.x[j]));
        }
        *(Sixteen*)(gated + i) = g;
    }
    // Each thread reads what it wrote.
    quantize_row([&](int i) { return *(const Sixteen*)(gated + i); }, out, scales, columns);
}

// `residual (rows, columns)` and `bias (columns)`, where there are, added to `out`; `columns` is a multiple of 8.
K add_bf16(bf16* out, const bf16* residual, const bf16* bias, int columns, long long count) {
    follow();
    for (long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 8; at < count;
         at += (long long)gridDim.x * blockDim.x * 8) {
        Sixteen x = *(Sixteen*)(out + at);
        float sums[8];
        for (int j = 0; j < 8; j++) sums[j] = widen(x.x[j]);
        if (bias) {
            Sixteen b = *(const Sixteen*)(bias + at % columns);
            for (int j = 0; j < 8; j++) sums[j] += widen(b.x[j]);
        }
        if (residual) {
            Sixteen r = *(const Sixteen*)(residual + at);
            for (int j = 0; j < 8; j++) sums[j] += widen(r.x[j]);
        }
        for (int j = 0; j < 8; j++) x.x[j] = narrow<bf16>(sums[j]);
        *(Sixteen*)(out + at) = x;
    }
}
