// y = x W^T + b + residual for up to 64 rows of 8-bit floats with a scale each: the weights go by once, as fast as memory gives them.
// An output is one sum in order of k, 32 products at a time; whether a library's kernels sum so too is tried where one is chosen.
#include "warpgroups.cuh"

constexpr int DEPTH = 256;         // bytes of k in a stage
constexpr int THREADS = 128 + 32;  // a warpgroup multiplies what a warp brings

// The maps are of bytes taken two at a time; `n`, `k` the weights' sizes.
struct FewEight {
    TensorMap x, w;
    const float *x_scales, *w_scales;
    const bf16 *bias, *residual;
    bf16* y;
    int rows, n, k, unused[3];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// d (64 rows, outputs) += a (64 rows, 32) b (outputs, 32)^T, both in shared memory by rows.
__device__ __forceinline__ void product_of_bytes(float (&d)[16], uint32_t a, uint32_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "l"(described(a)), "l"(described(b)));
}
__device__ __forceinline__ void product_of_bytes(float (&d)[24], uint32_t a, uint32_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n48k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
        "}, %24, %25, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
        : "l"(described(a)), "l"(described(b)));
}
__device__ __forceinline__ void product_of_bytes(float (&d)[32], uint32_t a, uint32_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),
          "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(described(a)), "l"(described(b)));
}

// Tiles of OUTPUTS outputs of up to ROWS rows. Products take 64 rows: those behind ROWS are whatever lies there, and go nowhere.
template <int ROWS, int OUTPUTS, int STAGES> __device__ __forceinline__ void few_eight(const FewEight& f) {
    constexpr int ROW_PANEL = ROWS * 128, WEIGHT_PANEL = OUTPUTS * 128, BYTES = 2 * (ROW_PANEL + WEIGHT_PANEL);
    static_assert(ROW_PANEL + 2 * WEIGHT_PANEL >= 64 * 128, "a stage has what 64 rows from its second panel on read");
    extern __shared__ __align__(1024) unsigned char memory[];
    uint32_t ring = shared_address(memory), full = ring + STAGES * BYTES, empty = full + STAGES * 8;
    int stages = (f.k + DEPTH - 1) / DEPTH, tiles = (f.n + OUTPUTS - 1) / OUTPUTS;
    int total = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * stages;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < STAGES; slot++) begin_barrier(full + slot * 8, 1), begin_barrier(empty + slot * 8, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        if (threadIdx.x > 128) return;
        int tile = blockIdx.x, stage = 0;
        auto load_weights = [&](int slot) {
            expect(full + slot * 8, BYTES);
            for (int panel = 0; panel < 2; panel++)
                copy_tile(ring + slot * BYTES + 2 * ROW_PANEL + panel * WEIGHT_PANEL, f.w, full + slot * 8, stage * (DEPTH / 2) + panel * 64, tile * OUTPUTS, 0);
            if (++stage == stages) stage = 0, tile += gridDim.x;
        };
        int row_stage = 0;
        auto load_rows = [&](int slot) {
            for (int panel = 0; panel < 2; panel++)
                copy_kept_tile(ring + slot * BYTES + panel * ROW_PANEL, f.x, full + slot * 8, row_stage * (DEPTH / 2) + panel * 64, 0, 0);
            if (++row_stage == stages) row_stage = 0;
        };
        // Weights wait for nobody: they are on their way while what makes the rows is not done.
        int begun = min(total, STAGES);
        for (int slot = 0; slot < begun; slot++) load_weights(slot);
        follow();
        for (int slot = 0; slot < begun; slot++) load_rows(slot);
        for (int number = begun, slot = 0, parity = 0; number < total; number++) {
            wait_for(empty + slot * 8, parity);
            load_weights(slot);
            load_rows(slot);
            if (++slot == STAGES) slot = 0, parity ^= 1;
        }
        return;
    }
    follow();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = 0, parity = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sums[OUTPUTS / 2] = {};
        int last = 0;
        for (int stage = 0; stage < stages; stage++) {
            wait_for(full + slot * 8, parity);
            // A name is made once, and known to be the same in all lanes: a place in it is then one addition.
            uint32_t rows = __shfl_sync(~0u, by_rows(ring + slot * BYTES), 0), weights = rows + 2 * ROW_PANEL / 16;
            hold(sums);
            products_begin();
#pragma unroll
            for (int step = 0; step < DEPTH / 32; step++)
                product_of_bytes(sums, rows + step / 4 * ROW_PANEL / 16 + step % 4 * 2, weights + step / 4 * WEIGHT_PANEL / 16 + step % 4 * 2);
            products_end();
            // The stage before is read once the products of this one are under way.
            products_done<1>();
            if (stage > 0 && lane == 0) arrive(empty + last * 8);
            last = slot;
            if (++slot == STAGES) slot = 0, parity ^= 1;
        }
        products_done<0>();
        hold(sums);
        if (lane == 0) arrive(empty + last * 8);
        if (warp * 16 >= f.rows) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = warp * 16 + lane / 4 + half * 8;
            if (row >= f.rows) continue;
            float row_scale = f.x_scales[row];
#pragma unroll
            for (int j = 0; j < OUTPUTS / 8; j++) {
                int column = tile * OUTPUTS + j * 8 + lane % 4 * 2;
                if (column >= f.n) continue;
                size_t to = (size_t)row * f.n + column;
                Pack<bf16, 2> y;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    // As the library has it: no product is added without being rounded.
                    float sum = __fmul_rn(__fmul_rn(sums[j * 4 + half * 2 + i], f.w_scales[column + i]), row_scale);
                    if (f.bias) sum = __fadd_rn(sum, widen(f.bias[column + i]));
                    if (f.residual) sum = __fadd_rn(sum, widen(f.residual[to + i]));
                    y.x[i] = narrow<bf16>(sum);
                }
                *(Pack<bf16, 2>*)(f.y + to) = y;
            }
        }
    }
}
#else
template <int ROWS, int OUTPUTS, int STAGES> __device__ __forceinline__ void few_eight(const FewEight&) {}
#endif

#define K extern "C" __global__ void
#define FEW(NAME, ROWS, OUTPUTS, STAGES) \
    K __launch_bounds__(THREADS) linear_few_eight_##NAME(const __grid_constant__ FewEight f) { few_eight<ROWS, OUTPUTS, STAGES>(f); }
FEW(8x32, 8, 32, 22)
FEW(8x48, 8, 48, 16)
FEW(16x32, 16, 32, 18)
FEW(16x48, 16, 48, 14)
FEW(32x64, 32, 64, 9)
FEW(64x64, 64, 64, 7)
