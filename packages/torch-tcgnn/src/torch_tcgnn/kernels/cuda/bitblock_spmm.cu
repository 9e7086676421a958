// out = A @ X on tensor cores, A in bit blocks (windows of 8 rows, blocks of 8 condensed columns).
//
// One warp computes one work item, a run of blocks of one window, times a tile of UNITS * 128 bytes of features. The
// product is formed transposed, out^T[f, r] += X^T[f, k] A^T[k, r], so that the window is the 8-wide side of the MMA (the
// swap of FlashSparse, PPoPP 2025) and features are its 16-wide side. Rows of X are gathered by asynchronous copies, 8
// lanes to 128 neighbouring bytes, into a ring of shared memory that the warp owns; fragments are 16-byte reads of the
// ring, free of bank conflicts by a swizzle. Which feature an MMA row stands for is free: lane group g (lane / 4) takes 16
// neighbouring bytes, so the accumulators leave as 16-byte stores, without a transposition.
//
//   fp32:       m16n8k8 tf32, one block a step. IEEE splits x = hi + lo (and a weight likewise): products hi*hi + lo*hi
//               (+ hi*lo where weighted), error about 2^-21. A 0/1 pattern is exact in tf32.
//   fp16, bf16: m16n8k16, two blocks a step, fp32 accumulation.
//
// A zero of the pattern times Inf or NaN would poison rows that have no such neighbour. Poison shows as NaN in the
// accumulators; the warp then recomputes its item entry by entry (rare, and exact in what it touches).
//
// Compiled once a configuration:
//   TYPE 0 fp32, 1 fp16, 2 bf16   UNITS tile in 128 bytes   STAGES of the ring   WEIGHTED 0/1   IEEE 0/1 (fp32 only)
//   TAIL 0/1: rows of results end inside 16 bytes of features; those of X always start at multiples of 16 bytes
//   WARPS warps a block   SlotIndex int or long long   WIDE_OUT 0/1: fp32 results of 16-bit features

#include "element.cuh"
#include "mma.cuh"
#include "out.cuh"

#if TYPE == 0
#define BLOCKS 1                 // blocks of a step
#define VEC 4                    // elements of 16 bytes
#else
#define BLOCKS 2
#define VEC 8
#endif
#define ROWS (8 * BLOCKS)        // feature rows gathered in a step
#define PIECES (8 * UNITS)       // 16-byte pieces of a row of the tile
#define ROW_BYTES (PIECES * 16)
#define STAGE_BYTES (ROWS * ROW_BYTES)
#define COPIES (ROWS * PIECES / 32)
#define MMAS (VEC / 2)           // MMAs of a unit

struct Graph {                   // see bitblock.BitBlocks
    const int *block_col;        // [num_blocks, 8]
    const u64 *block_mask;       // [num_blocks]
    const SlotIndex *block_slot; // [num_blocks + 1]
    const Element *values;       // [num_slots, heads] or null
    const int *row_order;        // [num_rows] or null
    int heads, head;
};

// Byte offset of piece p of row r in a stage: the rows that eight neighbouring lanes read together use different banks.
__device__ __forceinline__ u32 place_of(int r, int p) {
    return r * ROW_BYTES + (p ^ (((TYPE == 0 ? r : r >> 1) & 3) * 2)) * 16;
}

__device__ __forceinline__ int column_of(const Graph &graph, int block, int end, int lane) {
    return lane < ROWS && block + lane / 8 < end ? __ldg(graph.block_col + (long long)block * 8 + lane) : -1;
}

struct Gather {                  // what a lane copies of every step: one piece of COPIES rows
    const char *x;               // its piece in row 0 of X
    u32 stride;                  // bytes of a row of X
    bool inside;                 // whether the piece begins inside the width
    u32 place[COPIES];           // byte offsets in a stage
    int row[COPIES];

    __device__ __forceinline__ Gather(const Element *features, long long x_stride, int tile, int width, int lane) {
        int p = lane % PIECES;
        inside = tile + p * VEC < width;
        x = (const char *)(features + (inside ? tile + p * VEC : 0));
        stride = (u32)x_stride * (u32)sizeof(Element);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            row[i] = (lane + 32 * i) / PIECES;
            place[i] = place_of(row[i], p);
        }
    }

    // Starts copying the rows of one step; pieces of absent columns and past the width become zeros.
    __device__ __forceinline__ void operator()(u32 stage, int columns) const {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            int column = __shfl_sync(0xffffffffu, columns, row[i]);
            bool present = column >= 0 && inside;
            const char *from = x + (u64)(u32)max(column, 0) * stride;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(stage + place[i]), "l"(from), "r"(present ? 16 : 0)
                         : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

#if WEIGHTED
__device__ __forceinline__ Element value_at(const Graph &graph, u64 mask, SlotIndex slot, int bit) {
    int rank = __popcll(mask & ((1ull << bit) - 1));
    return __ldg(graph.values + (long long)(slot + rank) * graph.heads + graph.head);
}
#endif

// The two registers of A^T that a lane feeds to the MMAs of a step.
__device__ __forceinline__ void pattern(u32 (&a)[2], const Graph &graph, int block, int end, int g, int t) {
    a[0] = a[1] = 0;
#if TYPE == 0
    if (block >= end) return;
#if WEIGHTED
    u64 mask = __ldg(graph.block_mask + block);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        int bit = g * 8 + t + 4 * k;
        if ((mask >> bit) & 1) a[k] = __float_as_uint(value_at(graph, mask, __ldg(graph.block_slot + block), bit));
    }
#else
    u32 bits = __ldg((const u32 *)(graph.block_mask + block) + (g >> 2)) >> ((g & 3) * 8 + t);
    a[0] = bits & 1 ? 0x3f800000u : 0;
    a[1] = bits & 16 ? 0x3f800000u : 0;
#endif
#else
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        if (block + k >= end) return;
#if WEIGHTED
        int bit = g * 8 + 2 * t;
        u64 mask = __ldg(graph.block_mask + block + k);
        SlotIndex slot = __ldg(graph.block_slot + block + k);
        if ((mask >> bit) & 1) a[k] = value_at(graph, mask, slot, bit);
        if ((mask >> bit) & 2) a[k] |= (u32)value_at(graph, mask, slot, bit + 1) << 16;
#else
        const u32 one = TYPE == 1 ? 0x3c00u : 0x3f80u;
        u32 bits = __ldg((const u32 *)(graph.block_mask + block + k) + (g >> 2)) >> ((g & 3) * 8 + 2 * t);
        a[k] = (bits & 1) * one + (bits >> 1 & 1) * (one << 16);
#endif
    }
#endif
}

__device__ __forceinline__ uint4 fragment(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

// `stage` points at the lane's first fragment: row t (fp32) or 2t (16-bit), piece g.
__device__ __forceinline__ void multiply(float (&acc)[UNITS][MMAS][4], u32 stage, const u32 (&a)[2]) {
#if TYPE == 0
#if WEIGHTED && IEEE
    u32 b0 = round_tf32(a[0]), b1 = round_tf32(a[1]), rest0 = rest_of(a[0], b0), rest1 = rest_of(a[1], b1);
#elif WEIGHTED
    u32 b0 = to_tf32(a[0]), b1 = to_tf32(a[1]);
#else
    u32 b0 = a[0], b1 = a[1];
#endif
#endif
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
#if TYPE == 0
        uint4 first = fragment(stage + u * 128), second = fragment(stage + u * 128 + 4 * ROW_BYTES);
        const u32 v[2][4] = {{first.x, first.y, second.x, second.y}, {first.z, first.w, second.z, second.w}};
#pragma unroll
        for (int j = 0; j < MMAS; ++j) {
            u32 hi[4];
#if IEEE
#pragma unroll
            for (int i = 0; i < 4; ++i) hi[i] = round_tf32(v[j][i]);
            mma(acc[u][j], rest_of(v[j][0], hi[0]), rest_of(v[j][1], hi[1]), rest_of(v[j][2], hi[2]), rest_of(v[j][3], hi[3]),
                b0, b1);
#if WEIGHTED
            mma(acc[u][j], hi[0], hi[1], hi[2], hi[3], rest0, rest1);
#endif
#else
#pragma unroll
            for (int i = 0; i < 4; ++i) hi[i] = to_tf32(v[j][i]);
#endif
            mma(acc[u][j], hi[0], hi[1], hi[2], hi[3], b0, b1);
        }
#else
        uint4 even0 = fragment(stage + u * 128), odd0 = fragment(stage + u * 128 + ROW_BYTES);
        uint4 even1 = fragment(stage + u * 128 + 8 * ROW_BYTES), odd1 = fragment(stage + u * 128 + 9 * ROW_BYTES);
        const u32 e0[4] = {even0.x, even0.y, even0.z, even0.w}, o0[4] = {odd0.x, odd0.y, odd0.z, odd0.w};
        const u32 e1[4] = {even1.x, even1.y, even1.z, even1.w}, o1[4] = {odd1.x, odd1.y, odd1.z, odd1.w};
#pragma unroll
        for (int j = 0; j < MMAS; ++j)
            mma(acc[u][j], __byte_perm(e0[j], o0[j], 0x5410), __byte_perm(e0[j], o0[j], 0x7632),
                __byte_perm(e1[j], o1[j], 0x5410), __byte_perm(e1[j], o1[j], 0x7632), a[0], a[1]);
#endif
    }
}

struct Output {
    Out *out;                    // first feature of the head
    long long stride;
    float *partial;              // [partial rows * 8, heads, width], of this head
    long long partial_stride;
    const int *row_order;
    int num_rows, width;
};

// Entry by entry, for items that met Inf or NaN; each lane serves the rows and features that its accumulators held.
__device__ __noinline__ void recompute(const Graph &graph, const Output &to, int4 work, const Element *x, long long x_stride,
                                       int feature, int t) {
    for (int n = 0; n < UNITS * VEC * 2; ++n) {
        int f = feature + n / (2 * VEC) * 8 * VEC + n / 2 % VEC, r = 2 * t + (n & 1), place = work.x * 8 + r;
        if (f >= to.width) continue;
        float sum = 0;
        for (int b = work.y; b < work.z; ++b) {
            u64 mask = graph.block_mask[b];
            for (int c = 0; c < 8; ++c) {
                int bit = r * 8 + c;
                if (!((mask >> bit) & 1)) continue;
                float value = to_sum(x[graph.block_col[(long long)b * 8 + c] * x_stride + f]);
#if WEIGHTED
                value *= to_sum(value_at(graph, mask, graph.block_slot[b], bit));
#endif
                sum += value;
            }
        }
        if (work.w >= 0) to.partial[((long long)work.w * 8 + r) * to.partial_stride + f] = sum;
        else if (place < to.num_rows) to.out[(to.row_order ? to.row_order[place] : place) * to.stride + f] = to_out(sum);
    }
}

// Grid: x work items (WARPS a thread block), y feature tiles (slow: one slab of X stays in L2), z heads. A head is x_width
// features of X, the first `width` of which are summed.
// items [num_items, 4]: window, first block, end block, partial row or -1.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
bitblock_spmm(const int *items, long long num_items, const int *block_col, const u64 *block_mask, const SlotIndex *block_slot,
              const Element *values, const int *row_order, const Element *x, long long x_width, Out *out, float *partial,
              long long num_rows, long long width64, long long heads64) {
    extern __shared__ uint4 rings[];
    int width = (int)width64, heads = (int)heads64, head = blockIdx.z;
    long long item = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= num_items) return;
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    Graph graph{block_col, block_mask, block_slot, values, row_order, heads, head};
    int4 work = __ldg((const int4 *)items + item);
    int end = work.z, tile = blockIdx.y * (PIECES * VEC), feature = tile + g * VEC;
    long long x_stride = heads * x_width, out_stride = (long long)heads * width;
    x += head * x_width;
    u32 ring = (u32)__cvta_generic_to_shared(rings) + threadIdx.x / 32 * (STAGES * STAGE_BYTES);
    Gather gather(x, x_stride, tile, width, lane);

    // Columns are fetched a step before their rows, rows STAGES - 1 steps before their product.
    int ahead = work.y, columns = column_of(graph, ahead, end, lane);
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        int current = columns;
        columns = column_of(graph, ahead + BLOCKS, end, lane);
        gather(ring + s * STAGE_BYTES, current);
        ahead += BLOCKS;
    }
    u32 a[2], a_next[2];
    pattern(a, graph, work.y, end, g, t);
    float acc[UNITS][MMAS][4] = {};
    u32 mine = place_of(TYPE == 0 ? t : 2 * t, g), read = 0, write = (STAGES - 1) * STAGE_BYTES;
    for (int block = work.y; block < end; block += BLOCKS) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncwarp();
        int current = columns;
        columns = column_of(graph, ahead + BLOCKS, end, lane);
        gather(ring + write, current);
        ahead += BLOCKS;
        pattern(a_next, graph, block + BLOCKS, end, g, t);
        multiply(acc, ring + read + mine, a);
        a[0] = a_next[0];
        a[1] = a_next[1];
        read = read == (STAGES - 1) * STAGE_BYTES ? 0 : read + STAGE_BYTES;
        write = write == (STAGES - 1) * STAGE_BYTES ? 0 : write + STAGE_BYTES;
    }

    bool poisoned = false;
#pragma unroll
    for (int u = 0; u < UNITS; ++u)
#pragma unroll
        for (int j = 0; j < MMAS; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                poisoned |= acc[u][j][i] != acc[u][j][i] && (!TAIL || feature + u * 8 * VEC + 2 * j + i / 2 < width);
    Output to{out + (long long)head * width, out_stride, partial + (long long)head * width, out_stride, row_order,
              (int)num_rows, width};
    if (__any_sync(0xffffffffu, poisoned)) {
        recompute(graph, to, work, x, x_stride, feature, t);
        return;
    }

#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        int f = feature + u * 8 * VEC;
        if (f >= width) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int place = work.x * 8 + 2 * t + half;
            if (work.w >= 0) {   // part of a split window
                float *row = to.partial + ((long long)work.w * 8 + 2 * t + half) * to.partial_stride + f;
#pragma unroll
                for (int i = 0; i < VEC; ++i)
                    if (!TAIL || f + i < width) row[i] = acc[u][i / 2][2 * (i & 1) + half];
                continue;
            }
            if (place >= num_rows) continue;
            Out *row = to.out + (long long)(row_order ? row_order[place] : place) * to.stride + f;
            __align__(16) Out result[VEC];
#pragma unroll
            for (int i = 0; i < VEC; ++i) result[i] = to_out(acc[u][i / 2][2 * (i & 1) + half]);
#if TAIL
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                if (f + i < width) row[i] = result[i];
#else
#pragma unroll
            for (int i = 0; i < VEC * (int)sizeof(Out) / 16; ++i) ((uint4 *)row)[i] = ((uint4 *)result)[i];
#endif
        }
    }
}

// Adds the partial rows of split windows in their order: deterministic. Grid: x split windows, y 8 rows; threads over
// heads * width.
extern "C" __global__ void __launch_bounds__(128)
bitblock_combine(const int *splits, const float *partial, const int *row_order, Out *out, long long num_rows,
                 long long row_width) {
    int window = splits[blockIdx.x * 3], first = splits[blockIdx.x * 3 + 1], last = splits[blockIdx.x * 3 + 2];
    int place = window * 8 + blockIdx.y;
    if (place >= num_rows) return;
    long long row = row_order ? row_order[place] : place;
    for (long long f = threadIdx.x; f < row_width; f += blockDim.x) {
        float sum = 0;
        for (int p = first; p < last; ++p) sum += partial[((long long)p * 8 + blockIdx.y) * row_width + f];
        out[row * row_width + f] = to_out(sum);
    }
}
