// The slow, general attention: any head size up to 256, f32 or bf16, a mask or lists of keys. A block is one row of one head,
// its four warps take 32 keys each in turn.
#include "lists.cuh"

struct Plain {
    const void *q, *k, *v;
    // The last, if it is there, is given each row's highest score.
    float *out, *lse, *maxima;
    // Lists: ranges of (head, row / rows) are ranges[offsets[list]..offsets[list + 1]]; none: the mask.
    const unsigned long long* offsets;
    const Range* ranges;
    long long q_head, q_row, kv_head, kv_row, out_head, out_row;
    Mask mask;
    int group, dim, list_rows, list_groups;
    float scale;
    int unused;
};

template <class T> __device__ void attend(const Plain& a) {
    __shared__ float query[256], outputs[4][256], maxima[4], sums[4];
    int row = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.dim;
    const T* q = (const T*)a.q + head * a.q_head + row * a.q_row;
    const T* k = (const T*)a.k + head / a.group * a.kv_head;
    const T* v = (const T*)a.v + head / a.group * a.kv_head;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) query[i] = widen(q[i]);
    __syncthreads();
    Sight s = sight(a.mask, row);
    unsigned long long list = 0, lists = 2;
    if (a.ranges) {
        unsigned long long at = (unsigned long long)head * a.list_groups + row / a.list_rows;
        list = a.offsets[at], lists = a.offsets[at + 1];
    }
    float max = -INFINITY, sum = 0, out[8] = {};
    int turn = 0;
    for (; list < lists; list++) {
        int start, end;
        if (a.ranges) {
            start = a.ranges[list].start, end = min((int)a.ranges[list].end, row + 1);
        } else {
            start = list == 0 ? 0 : s.hidden_end, end = list == 0 ? s.hidden_start : s.visible;
        }
        for (int first = start; first < end; first += 32) {
            if (turn++ % 4 != warp) continue;
            int key = first + lane, count = min(32, end - first);
            float score = -INFINITY;
            if (lane < count) {
                const T* at = k + (size_t)key * a.kv_row;
                score = 0;
                for (int i = 0; i < dim; i++) score = fmaf(query[i], widen(at[i]), score);
                score *= a.scale;
            }
            float most = fmaxf(max, warp_max(score));
            float fade = max == -INFINITY ? 0.f : expf(max - most);
            float weight = lane < count ? expf(score - most) : 0.f;
            max = most;
            sum = sum * fade + warp_sum(weight);
            for (int j = 0; j < 8; j++) out[j] *= fade;
            for (int i = 0; i < count; i++) {
                float w = __shfl_sync(~0u, weight, i);
                const T* at = v + (size_t)(first + i) * a.kv_row;
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (lane + j * 32 < dim) out[j] = fmaf(w, widen(at[lane + j * 32]), out[j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (lane + j * 32 < dim) outputs[warp][lane + j * 32] = out[j];
    if (lane == 0) maxima[warp] = max, sums[warp] = sum;
    __syncthreads();
    max = fmaxf(fmaxf(maxima[0], maxima[1]), fmaxf(maxima[2], maxima[3]));
    float factors[4];
    sum = 0;
    for (int w = 0; w < 4; w++) {
        factors[w] = maxima[w] == -INFINITY ? 0.f : expf(maxima[w] - max);
        sum += sums[w] * factors[w];
    }
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float total = 0;
        for (int w = 0; w < 4; w++) total = fmaf(outputs[w][i], factors[w], total);
        a.out[head * a.out_head + row * a.out_row + i] = sum > 0 ? total / sum : 0.f;
    }
    if (threadIdx.x == 0) {
        size_t at = (size_t)head * a.mask.queries + row;
        a.lse[at] = sum > 0 ? max + logf(sum) : -INFINITY;
        if (a.maxima) a.maxima[at] = max;
    }
}

extern "C" __global__ __launch_bounds__(128) void attend_plain_bf16(const __grid_constant__ Plain a) { attend<bf16>(a); }
extern "C" __global__ __launch_bounds__(128) void attend_plain_f32(const __grid_constant__ Plain a) { attend<float>(a); }
