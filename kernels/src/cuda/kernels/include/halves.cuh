// What Hopper's kernels of few rows have of a half of a piece: the running softmax of its rows, and which blocks of keys they see.
#pragma once
#include "calls.cuh"

constexpr int PIECE = 2048, HALF = PIECE / 2, KEYS = 64;

// The first row of a piece's partials.
__device__ __forceinline__ size_t first_partial(const Attention& a, const Item& item) {
    return ((size_t)blockIdx.y * item.pieces + item.piece) * a.rows * a.group;
}

// The running softmax of a warp's 16 rows: maximum (base 2) and sum of the rows lane / 4 and lane / 4 + 8, and their outputs.
template <int D> struct Running {
    float max[2], sum[2], out[D / 2];
    __device__ __forceinline__ void clear() {
        for (int r = 0; r < 2; r++) max[r] = -INFINITY, sum[r] = 0;
#pragma unroll
        for (int i = 0; i < D / 2; i++) out[i] = 0;
    }
    // Sums over the four lanes that share a row.
    __device__ __forceinline__ void join_lanes() {
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        }
    }
    // The half that comes behind is merged in: its outputs, maxima and sums by number.
    template <class Half> __device__ __forceinline__ void merge(Half half) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float f, g;
            merge_statistics(max[r], sum[r], half(D / 2 + r), half(D / 2 + 2 + r), f, g);
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                for (int i = 0; i < 2; i++) {
                    int at = n * 4 + r * 2 + i;
                    out[at] = merge_output(out[at], half(at), f, g);
                }
        }
    }
    // This is merged behind the half whose partials were stored by the same threads.
    __device__ __forceinline__ void merge_behind(const Attention& a, int first_row, const Item& item) {
        int lane = threadIdx.x % 32;
        size_t base = first_partial(a, item);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int packed_row = first_row + lane / 4 + r * 8;
            if (packed_row >= a.rows * a.group) continue;
            size_t row = base + packed_row;
            float f, g, most = a.lse[row], all = a.sums[row];
            merge_statistics(most, all, max[r], sum[r], f, g);
            max[r] = most, sum[r] = all;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                float2 half = *(float2*)((float*)a.out + row * D + n * 8 + lane % 4 * 2);
                out[n * 4 + r * 2] = merge_output(half.x, out[n * 4 + r * 2], f, g);
                out[n * 4 + r * 2 + 1] = merge_output(half.y, out[n * 4 + r * 2 + 1], f, g);
            }
        }
        __syncwarp();
    }
};

__device__ __forceinline__ int same(int x) { return __shfl_sync(~0u, x, 0); }

// The keys that a tile's rows see between `start` and `stop`, in blocks; those that streaming rows all skip are left out. Of those before
// `clear` every row sees every key.
struct Blocks {
    int first, end, clear, skip_start, skip_end;
    __device__ __forceinline__ void set(const Attention& a, int first_row, int rows, int start, int stop) {
        int last = min(a.rows * a.group, first_row + rows) - 1;
        Sight top = sight(a.mask, first_row / a.group), bottom = sight(a.mask, last / a.group);
        stop = min(min(stop, a.mask.keys), bottom.visible);
        skip_start = (bottom.hidden_start + KEYS - 1) / KEYS, skip_end = min(top.hidden_end, bottom.hidden_end) / KEYS;
        if (a.mask.kind != 3 || skip_end <= skip_start) skip_start = skip_end = 1 << 30;
        clear = a.mask.kind == 3 ? 0 : top.visible / KEYS;
        first = start / KEYS, end = (stop + KEYS - 1) / KEYS;
        if (first >= skip_start && first < skip_end) first = skip_end;
    }
    // The same, known to be the same in all lanes.
    __device__ __forceinline__ Blocks uniform() const {
        return {same(first), same(end), same(clear), same(skip_start), same(skip_end)};
    }
    __device__ __forceinline__ int after(int block) const {
        return block + 1 >= skip_start && block + 1 < skip_end ? skip_end : block + 1;
    }
};
