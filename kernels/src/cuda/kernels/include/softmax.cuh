// Powers of two and factors of partial softmaxes.
#pragma once
#include "common.cuh"

constexpr float LN2 = 0.69314718055994530942f;

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Factor of a part with maximum `m` in a sum with maximum `max`.
__device__ __forceinline__ float factor(float m, float max) { return m == -INFINITY ? 0.f : exp2_fast(m - max); }
