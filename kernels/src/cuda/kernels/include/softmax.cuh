// Powers of two and factors of partial softmaxes.
#pragma once
#include "common.cuh"

constexpr float LN2 = 0.69314718055994530942f;

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The logarithm of a sum of powers of e, of a maximum (base 2) and the sum over it; nothing was summed: -inf.
__device__ __forceinline__ float log_sum_exp(float max, float sum) { return sum > 0 ? __fmaf_rn(max, LN2, logf(sum)) : -INFINITY; }
// Factor of a part with maximum `m` in a sum with maximum `max`.
__device__ __forceinline__ float factor(float m, float max) { return m == -INFINITY ? 0.f : exp2_fast(m - max); }
