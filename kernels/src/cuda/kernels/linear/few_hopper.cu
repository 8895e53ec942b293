// y = x W^T + b + residual for up to 64 rows of bf16, or of 8-bit floats with a scale each: the weights go by once, as fast as memory
// gives them. An output is one sum in order of k, 32 bytes of it at a time; whether a library's kernels sum so too is tried where one
// is chosen.
#include "warpgroups.cuh"

constexpr int THREADS = 128 + 32;  // a warpgroup multiplies what a warp brings

// The maps are of bytes taken two at a time, in panels of 64: (panel, row, column). `n` outputs, `panels` of a row.
struct FewRows {
    TensorMap x, w;
    const float *x_scales, *w_scales;
    const bf16 *bias, *residual;
    bf16* y;
    int rows, n, panels, unused[3];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// d (64 rows, N outputs) += a (64 rows, 32 bytes) b (N outputs, 32 bytes)^T, both in shared memory by rows; of 8-bit floats or of bf16.
#define PRODUCT(N, PLACES, A, B, OPERANDS)                                                                            \
    template <bool EIGHT> __device__ __forceinline__ void product_of_bytes(float (&d)[N / 2], uint32_t a, uint32_t b) { \
        if constexpr (EIGHT)                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" PLACES "}, " A ", " B ", 1, 1, 1;" \
                         : OPERANDS                                                                                   \
                         : "l"(described(a)), "l"(described(b)));                                                     \
        else                                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" PLACES "}, " A ", " B ", 1, 1, 1, 0, 0;" \
                         : OPERANDS                                                                                   \
                         : "l"(described(a)), "l"(described(b)));                                                     \
    }
#define FLOATS_8(AT)                                                                                                     \
    "+f"(d[AT]), "+f"(d[AT + 1]), "+f"(d[AT + 2]), "+f"(d[AT + 3]), "+f"(d[AT + 4]), "+f"(d[AT + 5]), "+f"(d[AT + 6]), \
        "+f"(d[AT + 7])
#define FLOATS_16 FLOATS_8(0), FLOATS_8(8)
#define FLOATS_24 FLOATS_16, FLOATS_8(16)
#define FLOATS_32 FLOATS_24, FLOATS_8(24)
#define FLOATS_56 FLOATS_32, FLOATS_8(32), FLOATS_8(40), FLOATS_8(48)
#define PLACES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PLACES_24 PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define PLACES_32 PLACES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define PLACES_56                                                                                                       \
    PLACES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
              "%52, %53, %54, %55"
PRODUCT(32, PLACES_16, "%16", "%17", FLOATS_16)
PRODUCT(48, PLACES_24, "%24", "%25", FLOATS_24)
PRODUCT(64, PLACES_32, "%32", "%33", FLOATS_32)
PRODUCT(112, PLACES_56, "%56", "%57", FLOATS_56)

// What is done to a thread's sums of a tile, at hand before these are: two outputs at a time, of two rows.
template <bool EIGHT, int OUTPUTS> struct Ending {
    static constexpr int PAIRS = OUTPUTS / 8;
    int row, column;
    Pack<float, 2> scales[EIGHT ? PAIRS : 1];
    float row_scales[2];
    Pack<bf16, 2> bias[PAIRS], residual[2][PAIRS];

    __device__ __forceinline__ Ending(int tile) {
        row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = tile * OUTPUTS + threadIdx.x % 4 * 2;
    }
    __device__ __forceinline__ void load(const FewRows& f) {
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            int at = column + j * 8;
            if (row >= f.rows || at >= f.n) continue;
            if constexpr (EIGHT) scales[j] = *(const Pack<float, 2>*)(f.w_scales + at);
            if (f.bias) bias[j] = *(const Pack<bf16, 2>*)(f.bias + at);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int of = row + half * 8;
            if (of >= f.rows) continue;
            if constexpr (EIGHT) row_scales[half] = f.x_scales[of];
            if (!f.residual) continue;
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                int at = column + j * 8;
                if (at < f.n) residual[half][j] = *(const Pack<bf16, 2>*)(f.residual + (size_t)of * f.n + at);
            }
        }
    }
    __device__ __forceinline__ void store(const FewRows& f, const float (&sums)[OUTPUTS / 2]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int of = row + half * 8;
            if (of >= f.rows) continue;
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                int at = column + j * 8;
                if (at >= f.n) continue;
                Pack<bf16, 2> y;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float sum = sums[j * 4 + half * 2 + i];
                    // As the library has it: no product is added without being rounded.
                    if constexpr (EIGHT) sum = __fmul_rn(__fmul_rn(sum, scales[j].x[i]), row_scales[half]);
                    if (f.bias) sum = __fadd_rn(sum, widen(bias[j].x[i]));
                    if (f.residual) sum = __fadd_rn(sum, widen(residual[half][j].x[i]));
                    y.x[i] = narrow<bf16>(sum);
                }
                *(Pack<bf16, 2>*)(f.y + (size_t)of * f.n + at) = y;
            }
        }
    }
};

// Tiles of OUTPUTS outputs of up to ROWS rows; a stage is two panels. Products take 64 rows: those behind ROWS are whatever lies there,
// and go nowhere.
template <bool EIGHT, int ROWS, int OUTPUTS, int STAGES> __device__ __forceinline__ void few(const FewRows& f) {
    constexpr int ROW_PANEL = ROWS * 128, WEIGHT_PANEL = OUTPUTS * 128, BYTES = 2 * (ROW_PANEL + WEIGHT_PANEL);
    static_assert(ROW_PANEL + 2 * WEIGHT_PANEL >= 64 * 128, "a stage has what 64 rows from its second panel on read");
    static_assert(STAGES <= 32 && STAGES * (BYTES + 16) <= 227 << 10, "a lane makes a stage's barriers, and a processor has room");
    extern __shared__ __align__(1024) unsigned char memory[];
    uint32_t ring = shared_address(memory), full = ring + STAGES * BYTES, empty = full + STAGES * 8;
    int stages = (f.panels + 1) / 2, tiles = (f.n + OUTPUTS - 1) / OUTPUTS, lane = threadIdx.x % 32;
    int tile = blockIdx.x, stage = 0;
    int rounds = (tiles - tile + (int)gridDim.x - 1) / (int)gridDim.x, total = rounds * stages, begun = min(total, STAGES);
    auto load_weights = [&](int slot) {
        expect(full + slot * 8, BYTES);
        copy_tile(ring + slot * BYTES + 2 * ROW_PANEL, f.w, full + slot * 8, 0, tile * OUTPUTS, stage * 2);
        if (++stage == stages) stage = 0, tile += gridDim.x;
    };
    if (threadIdx.x >= 128) {
        if (lane == 0) await_map(f.w), await_map(f.x);
        if (lane < STAGES) begin_barrier(full + lane * 8, 1), begin_barrier(empty + lane * 8, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        show_to_products();
        __syncwarp();
        // Weights wait for nobody: they are on their way while what makes the rows is not done.
        if (lane == 0)
            for (int slot = 0; slot < begun; slot++) load_weights(slot);
        __syncwarp();
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        int row_stage = 0;
        auto load_rows = [&](int slot) {
            copy_kept_tile(ring + slot * BYTES, f.x, full + slot * 8, 0, 0, row_stage * 2);
            if (++row_stage == stages) row_stage = 0;
        };
        follow();
        if (lane == 0) {
            for (int slot = 0; slot < begun; slot++) load_rows(slot);
            for (int number = begun, slot = 0, parity = 0; number < total; number++) {
                wait_for(empty + slot * 8, parity);
                load_weights(slot);
                load_rows(slot);
                if (++slot == STAGES) slot = 0, parity ^= 1;
            }
        }
        __syncwarp();
    } else {
        follow();
        for (int round = 0, slot = 0, parity = 0; round < rounds; round++, tile += gridDim.x) {
            Ending<EIGHT, OUTPUTS> ending(tile);
            ending.load(f);
            float sums[OUTPUTS / 2] = {};
            int last = 0;
            for (int at = 0; at < stages; at++) {
                wait_for(full + slot * 8, parity);
                // A name is made once, and known to be the same in all lanes: a place in it is then one addition.
                uint32_t rows = __shfl_sync(~0u, by_rows(ring + slot * BYTES), 0), weights = rows + 2 * ROW_PANEL / 16;
                hold(sums);
                products_begin();
#pragma unroll
                for (int step = 0; step < 8; step++) {
                    int row_place = step / 4 * ROW_PANEL / 16 + step % 4 * 2, place = step / 4 * WEIGHT_PANEL / 16 + step % 4 * 2;
                    product_of_bytes<EIGHT>(sums, rows + row_place, weights + place);
                }
                products_end();
                // The stage before is read once the products of this one are under way.
                products_done<1>();
                if (at > 0 && lane == 0) arrive(empty + last * 8);
                last = slot;
                if (++slot == STAGES) slot = 0, parity ^= 1;
            }
            products_done<0>();
            hold(sums);
            if (lane == 0) arrive(empty + last * 8);
            ending.store(f, sums);
        }
        __syncwarp();
    }
}
#else
template <bool EIGHT, int ROWS, int OUTPUTS, int STAGES> __device__ __forceinline__ void few(const FewRows&) {}
#endif

#define K extern "C" __global__ void
#define TILE(TYPE, IS_EIGHT, ROWS, OUTPUTS, STAGES)                                                              \
    K __launch_bounds__(THREADS) linear_few_##TYPE##_##ROWS##x##OUTPUTS(const __grid_constant__ FewRows f) { \
        few<IS_EIGHT, ROWS, OUTPUTS, STAGES>(f);                                                                 \
    }
#define EIGHT_TILE(ROWS, OUTPUTS, STAGES) TILE(eight, true, ROWS, OUTPUTS, STAGES)
#define BOTH_TILES(ROWS, OUTPUTS, STAGES) \
    TILE(eight, true, ROWS, OUTPUTS, STAGES) TILE(half, false, ROWS, OUTPUTS, STAGES)
EIGHT_TILE(8, 32, 22)
EIGHT_TILE(8, 48, 16)
EIGHT_TILE(16, 32, 18)
EIGHT_TILE(16, 48, 14)
BOTH_TILES(32, 32, 14)
BOTH_TILES(32, 48, 11)
BOTH_TILES(32, 64, 9)
BOTH_TILES(32, 112, 6)
BOTH_TILES(64, 32, 9)
BOTH_TILES(64, 48, 8)
BOTH_TILES(64, 64, 7)
BOTH_TILES(64, 112, 5)
