// Rows of 8-bit floats with a scale each.
#pragma once
#include "common.cuh"
#include <cuda_fp8.h>

constexpr float LARGEST = 448.f;  // of e4m3

typedef Pack<bf16, 8> Sixteen;

// Of all threads, to all of them.
__device__ __forceinline__ float block_max(float x) {
    __shared__ float most[32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++) x = fmaxf(x, most[i]);
    return x;
}

// One block a row, whose elements `value(i)` gives eight at a time, twice; `columns` is a multiple of 8.
template <class V> __device__ __forceinline__ void quantize_row(V value, unsigned char* out, float* scales, int columns) {
    float max = 0;
    for (int i = threadIdx.x * 8; i < columns; i += blockDim.x * 8) {
        Sixteen p = value(i);
        for (int j = 0; j < 8; j++) max = fmaxf(max, fabsf(widen(p.x[j])));
    }
    max = block_max(max);
    float by = max > 0 ? LARGEST / max : 1.f;
    if (threadIdx.x == 0) scales[blockIdx.x] = max > 0 ? max / LARGEST : 1.f;
    for (int i = threadIdx.x * 8; i < columns; i += blockDim.x * 8) {
        Sixteen p = value(i);
        Pack<unsigned char, 8> to;
        for (int j = 0; j < 8; j++) to.x[j] = __nv_cvt_float_to_fp8(widen(p.x[j]) * by, __NV_SATFINITE, __NV_E4M3);
        *(Pack<unsigned char, 8>*)(out + (size_t)blockIdx.x * columns + i) = to;
    }
}
