// Products by warpgroups and the tensor copy engine (sm_90a): tiles of 64 rows in shared memory, in panels of 64 columns whose 128-byte
// rows are swizzled.
#pragma once
#include "tiles.cuh"

constexpr int PANEL = 64 * 128;  // bytes

// Where 16-byte chunk `chunk` of a row of a tile lies.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
    return chunk / 8 * PANEL + row * 128 + ((chunk % 8) ^ (row & 7)) * 16;
}

// How a matrix lies, as the driver encodes it for the copy engine.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Names of a tile from `at` on, whose rows are what is not summed over; and of one whose rows are summed over. Places add to them by 16
// bytes.
__device__ __forceinline__ uint32_t by_rows(uint32_t at) { return at >> 4 | 1 << 16; }
__device__ __forceinline__ uint32_t by_columns(uint32_t at) { return at >> 4 | PANEL >> 4 << 16; }
// The name as products take it: groups of eight rows are 1,024 bytes apart, rows of 128 bytes swizzled.
__device__ __forceinline__ uint64_t described(uint32_t name) { return (uint64_t)(64u | 1u << 30) << 32 | name; }
// What ordinary stores and copies wrote becomes seen by products.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void products_done() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Keeps the compiler from moving uses of accumulators across.
template <int N> __device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
// The largest in a row of a product, over the four lanes that share it: 4 n + 2 r + i of a lane's are row r's.
template <int N> __device__ __forceinline__ float row_max(const float (&d)[N], int r) {
    float most = -INFINITY, other = -INFINITY;
#pragma unroll
    for (int n = 0; n < N / 4; n++) most = fmaxf(most, d[n * 4 + r * 2]), other = fmaxf(other, d[n * 4 + r * 2 + 1]);
    most = fmaxf(most, other);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}
__device__ __forceinline__ void wait_for(uint32_t barrier, int parity) {
    asm volatile(
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra AGAIN; DONE: }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void begin_barrier(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Bytes that copies will bring to a barrier, the only arrival of a phase.
__device__ __forceinline__ void expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// A panel of 64 rows and columns from (column, row, matrix) on; what lies beyond the ends is zeros. It is read once, and leaves the
// cache before what is read again.
__device__ __forceinline__ void copy_tile(uint32_t to, const TensorMap& map, uint32_t barrier, int column, int row, int matrix) {
    uint64_t passing;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(passing));
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "l"(passing)
        : "memory");
}
// The same of a map's own count of rows, which others read, too.
__device__ __forceinline__ void copy_kept_tile(uint32_t to, const TensorMap& map, uint32_t barrier, int column, int row, int matrix) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
        : "memory");
}
// A map will be asked for.
__device__ __forceinline__ void await_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
// A map that was written to device memory is seen by the copy engine.
__device__ __forceinline__ void see_map(const TensorMap& map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(&map) : "memory");
}
__device__ __forceinline__ void warpgroup_barrier(int number) { asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory"); }

// d (64 rows, 64 columns) = or += a (64 rows, 16) b (64 rows, 16)^T, both in shared memory by rows.
__device__ __forceinline__ void product_of_rows(float (&d)[32], uint32_t a, uint32_t b, int add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(described(a)), "l"(described(b)), "r"(add));
}
// d (64 rows, 128 columns) += a (64 rows, 16), in registers, b (16 rows, 128).
__device__ __forceinline__ void product_add(float (&d)[64], const uint32_t (&a)[4], uint32_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described(b)));
}
// d (64 rows, 64 columns) += a (64 rows, 16), in registers, b (16 rows, 64).
__device__ __forceinline__ void product_add(float (&d)[32], const uint32_t (&a)[4], uint32_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described(b)));
}
#endif
