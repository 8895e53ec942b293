// y = x W^T + b + residual for shapes and types that the library is not asked for. Each output is one sum in order of k, so
// that a row does not depend on its company.
#include "common.cuh"

constexpr int TILE = 64, DEPTH = 16;

template <class T>
__device__ void linear(const T* x, const T* w, const T* bias, const T* residual, T* y, int rows, int n, int k) {
    __shared__ float xs[DEPTH][TILE + 4], ws[DEPTH][TILE + 4];
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sums[4][4] = {};
    for (int start = 0; start < k; start += DEPTH) {
        for (int at = threadIdx.x; at < TILE * DEPTH; at += 256) {
            int row = at / DEPTH, depth = at % DEPTH, column = start + depth;
            bool in = column < k;
            xs[depth][row] = in && first_row + row < rows ? widen(x[(size_t)(first_row + row) * k + column]) : 0.f;
            ws[depth][row] = in && first_column + row < n ? widen(w[(size_t)(first_column + row) * k + column]) : 0.f;
        }
        __syncthreads();
        for (int depth = 0; depth < DEPTH; depth++) {
            float a[4], b[4];
            for (int i = 0; i < 4; i++) a[i] = xs[depth][ty * 4 + i], b[i] = ws[depth][tx * 4 + i];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sums[i][j] = __fmaf_rn(a[i], b[j], sums[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int row = first_row + ty * 4 + i, column = first_column + tx * 4 + j;
            if (row >= rows || column >= n) continue;
            float sum = sums[i][j];
            if (bias) sum += widen(bias[column]);
            if (residual) sum += widen(residual[(size_t)row * n + column]);
            y[(size_t)row * n + column] = narrow<T>(sum);
        }
}

extern "C" __global__ __launch_bounds__(256) void linear_bf16(
    const bf16* x, const bf16* w, const bf16* b, const bf16* r, bf16* y, int rows, int n, int k) {
    linear(x, w, b, r, y, rows, n, k);
}
extern "C" __global__ __launch_bounds__(256) void linear_f32(
    const float* x, const float* w, const float* b, const float* r, float* y, int rows, int n, int k) {
    linear(x, w, b, r, y, rows, n, k);
}
