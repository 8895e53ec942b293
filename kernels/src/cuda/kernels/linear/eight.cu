// 8-bit floats: rows with a scale each, and what is added to a product that takes nothing else.
#include "common.cuh"
#include <cuda_fp8.h>

constexpr float LARGEST = 448.f;  // of e4m3

typedef Pack<bf16, 8> Sixteen;

// Of 256 threads, to all of them.
__device__ __forceinline__ float block_max(float x) {
    __shared__ float most[8];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < 8; i++) x = fmaxf(x, most[i]);
    return x;
}

// One block a row, whose elements `value(i)` gives eight at a time, twice; `columns` is a multiple of 8.
template <class V> __device__ __forceinline__ void quantize_row(V value, unsigned char* out, float* scales, int columns) {
    float max = 0;
    for (int i = threadIdx.x * 8; i < columns; i += 256 * 8) {
        Sixteen p = value(i);
        for (int j = 0; j < 8; j++) max = fmaxf(max, fabsf(widen(p.x[j])));
    }
    max = block_max(max);
    float by = max > 0 ? LARGEST / max : 1.f;
    if (threadIdx.x == 0) scales[blockIdx.x] = max > 0 ? max / LARGEST : 1.f;
    for (int i = threadIdx.x * 8; i < columns; i += 256 * 8) {
        Sixteen p = value(i);
        Pack<unsigned char, 8> to;
        for (int j = 0; j < 8; j++) to.x[j] = __nv_cvt_float_to_fp8(widen(p.x[j]) * by, __NV_SATFINITE, __NV_E4M3);
        *(Pack<unsigned char, 8>*)(out + (size_t)blockIdx.x * columns + i) = to;
    }
}

#define K extern "C" __global__ __launch_bounds__(256) void
K quantize(const bf16* x, unsigned char* out, float* scales, int columns) {
    follow_early();
    const bf16* row = x + (size_t)blockIdx.x * columns;
    quantize_row([&](int i) { return *(const Sixteen*)(row + i); }, out, scales, columns);
}

// Of what `rms_norm` gives, with its arithmetic.
K quantize_norm(const bf16* x, const bf16* weight, unsigned char* out, float* scales, int columns, float eps) {
    follow_early();
    __shared__ float sums[8];
    const bf16* row = x + (size_t)blockIdx.x * columns;
    float sum = 0;
    for (int i = threadIdx.x * 8; i < columns; i += 256 * 8) {
        Sixteen p = *(const Sixteen*)(row + i);
        for (int j = 0; j < 8; j++) sum += widen(p.x[j]) * widen(p.x[j]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++) sum += sums[i];
    float scale = 1.0f / sqrtf(sum / columns + eps);
    auto value = [&](int i) {
        Sixteen p = *(const Sixteen*)(row + i), w = *(const Sixteen*)(weight + i);
        for (int j = 0; j < 8; j++) p.x[j] = narrow<bf16>(widen(p.x[j]) * scale * widen(w.x[j]));
        return p;
    };
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
