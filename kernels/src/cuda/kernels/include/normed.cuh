// Norms of rows, each by a block of threads.
#pragma once
#include "common.cuh"

// What a row's elements are multiplied by, of each thread's sum of the squares of its own.
__device__ __forceinline__ float norm_factor(float sum, int columns, float eps) {
    __shared__ float sums[32];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < (int)blockDim.x / 32; i++) sum += sums[i];
    return 1.0f / sqrtf(sum / columns + eps);
}
template <class T, int V> __device__ __forceinline__ float squares(float sum, const Pack<T, V>& p) {
    for (int j = 0; j < V; j++) sum += widen(p.x[j]) * widen(p.x[j]);
    return sum;
}
template <class T, int V> __device__ __forceinline__ Pack<T, V> normed(Pack<T, V> p, float factor, const Pack<T, V>& weights) {
    for (int j = 0; j < V; j++) p.x[j] = narrow<T>(widen(p.x[j]) * factor * widen(weights.x[j]));
    return p;
}
