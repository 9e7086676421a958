// out = A @ X on tensor cores, A in bit blocks (windows of 8 rows, blocks of 8 condensed columns).
//
// One warp computes one work item: up to 32 blocks of one window, times a tile of UNITS * 8 * VEC features. The product
// is formed transposed, out^T[f, r] += X^T[f, k] A^T[k, r], so that the window is the 8-wide side of the MMA (the swap of
// FlashSparse, PPoPP 2025) and features are its 16-wide side. Which feature an MMA row stands for is free: lane group g
// (lane / 4) takes VEC neighbouring features 8-fold strided, so that X is gathered straight into fragments with full-width
// loads, 8 lanes a row, and the accumulators leave as full-width stores: no shared memory, no transposition.
//
//   fp32:       m16n8k8 tf32, one block a step. IEEE splits x = hi + lo (and a weight likewise): products hi*hi + lo*hi
//               (+ hi*lo where weighted), error about 2^-21. A 0/1 pattern is exact in tf32.
//   fp16, bf16: m16n8k16, two blocks a step, fp32 accumulation.
//
// A zero of the pattern times Inf or NaN would poison rows that have no such neighbour. Poison shows as NaN in the
// accumulators; the warp then recomputes its item entry by entry (rare, and exact in what it touches).
//
// Compiled once a configuration:
//   TYPE 0 fp32, 1 fp16, 2 bf16   VEC features a lane owns   UNITS groups of 8*VEC features   STEP k-steps in flight
//   WEIGHTED 0/1   IEEE 0/1 (fp32 only)   ALIGNED 0/1: rows start at multiples of VEC elements' bytes

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#if TYPE == 0
typedef float Element;
#define BLOCKS 1   // blocks of a k-step
#else
typedef u16 Element;
#define BLOCKS 2
#endif
#define ROWS_LOADED (2 * BLOCKS)              // feature rows that one lane gathers in a k-step
#if TYPE == 0
#define WORDS VEC       // 32-bit registers of one lane's features of one row
#else
#define WORDS (VEC / 2)
#endif
#define MMAS (VEC / 2)                         // MMAs of a unit

__device__ __forceinline__ float to_float(Element v) {
#if TYPE == 0
    return v;
#elif TYPE == 1
    float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v)); return f;
#else
    return __uint_as_float((u32)v << 16);
#endif
}

__device__ __forceinline__ Element from_float(float f) {
#if TYPE == 0
    return f;
#elif TYPE == 1
    u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h;
#else
    u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h;
#endif
}

__device__ __forceinline__ u32 to_tf32(float f) {
    u32 r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(f)); return r;
}

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if TYPE == 0
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#elif TYPE == 1
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Graph {                  // see bitblock.BitBlocks
    const int *items;           // [num_items, 4] window, first block, end block, partial row
    const int *block_col;       // [num_blocks, 8]
    const u64 *block_mask;      // [num_blocks]
    const SlotIndex *block_slot;// [num_blocks + 1]
    const Element *values;      // [num_slots, heads] or null
    const int *row_order;       // [num_rows] or null
};

struct Meta {                   // pattern of STEP k-steps, as one lane needs it
    int col[STEP][ROWS_LOADED];
    u64 mask[STEP][BLOCKS];
#if WEIGHTED
    SlotIndex slot[STEP][BLOCKS];
#endif
};

struct Tile {                   // gathered features and pattern values of STEP k-steps
    u32 x[STEP][ROWS_LOADED][UNITS][WORDS];
    u32 a[STEP][2];             // fp32: bits of float; 16-bit types: two packed values
};

// Condensed columns that this lane gathers: fp32 t and t + 4 of one block, 16-bit 2t and 2t + 1 of two blocks.
__device__ __forceinline__ int condensed(int row, int t) {
    return BLOCKS == 1 ? t + 4 * row : 2 * t + (row & 1);
}

__device__ __forceinline__ void load_meta(Meta &m, const Graph &graph, int block, int end, int t) {
#pragma unroll
    for (int s = 0; s < STEP; ++s) {
#pragma unroll
        for (int k = 0; k < BLOCKS; ++k) {
            int b = block + s * BLOCKS + k;
            m.mask[s][k] = b < end ? __ldg(graph.block_mask + b) : 0;
#if WEIGHTED
            m.slot[s][k] = b < end ? __ldg(graph.block_slot + b) : 0;
#endif
        }
#pragma unroll
        for (int r = 0; r < ROWS_LOADED; ++r) {
            int b = block + s * BLOCKS + (BLOCKS == 1 ? 0 : r / 2);
            m.col[s][r] = b < end ? __ldg(graph.block_col + (long long)b * 8 + condensed(r, t)) : -1;
        }
    }
}

__device__ __forceinline__ void load_features(u32 (&words)[WORDS], const Element *row, int feature, int width) {
#if ALIGNED
    if (feature < width) {
#if WORDS == 4
        uint4 v = __ldg((const uint4 *)(row + feature));
        words[0] = v.x; words[1] = v.y; words[2] = v.z; words[3] = v.w;
#elif WORDS == 2
        uint2 v = __ldg((const uint2 *)(row + feature));
        words[0] = v.x; words[1] = v.y;
#else
        words[0] = __ldg((const u32 *)(row + feature));
#endif
    }
#else
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        if (feature + i < width) {
#if TYPE == 0
            words[i] = __float_as_uint(__ldg(row + feature + i));
#else
            words[i / 2] |= (u32)__ldg(row + feature + i) << (16 * (i & 1));
#endif
        }
    }
#endif
}

#if WEIGHTED
__device__ __forceinline__ Element value_at(const Graph &graph, u64 mask, SlotIndex slot, int bit, int head, int heads) {
    int rank = __popcll(mask & ((1ull << bit) - 1));
    return __ldg(graph.values + (long long)(slot + rank) * heads + head);
}
#endif

__device__ __forceinline__ void load_tile(Tile &tile, const Meta &m, const Graph &graph, const Element *x,
                                          long long x_stride, int feature, int width, int g, int t, int head, int heads) {
#pragma unroll
    for (int s = 0; s < STEP; ++s) {
#pragma unroll
        for (int r = 0; r < ROWS_LOADED; ++r) {
            const Element *row = x + m.col[s][r] * x_stride;
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
#pragma unroll
                for (int w = 0; w < WORDS; ++w) tile.x[s][r][u][w] = 0;
                if (m.col[s][r] >= 0) load_features(tile.x[s][r][u], row, feature + u * 8 * VEC, width);
            }
        }
#if TYPE == 0
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            int bit = g * 8 + t + 4 * k;
            bool present = (m.mask[s][0] >> bit) & 1;
#if WEIGHTED
            tile.a[s][k] = present ? __float_as_uint(value_at(graph, m.mask[s][0], m.slot[s][0], bit, head, heads)) : 0;
#else
            tile.a[s][k] = present ? 0x3f800000u : 0;
#endif
        }
#else
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            int bit = g * 8 + 2 * t;
            u32 low = (u32)(m.mask[s][k] >> bit) & 1, high = (u32)(m.mask[s][k] >> (bit + 1)) & 1;
#if WEIGHTED
            u32 v = 0;
            if (low) v = value_at(graph, m.mask[s][k], m.slot[s][k], bit, head, heads);
            if (high) v |= (u32)value_at(graph, m.mask[s][k], m.slot[s][k], bit + 1, head, heads) << 16;
            tile.a[s][k] = v;
#else
            const u32 one = TYPE == 1 ? 0x3c00u : 0x3f80u;
            tile.a[s][k] = low * one + high * (one << 16);
#endif
        }
#endif
    }
}

__device__ __forceinline__ void multiply(float (&acc)[UNITS][MMAS][4], const Tile &tile) {
#pragma unroll
    for (int s = 0; s < STEP; ++s) {
#if TYPE == 0
#if WEIGHTED
        float w0 = __uint_as_float(tile.a[s][0]), w1 = __uint_as_float(tile.a[s][1]);
        u32 b0 = to_tf32(w0), b1 = to_tf32(w1);
#if IEEE
        u32 rest0 = to_tf32(w0 - __uint_as_float(b0)), rest1 = to_tf32(w1 - __uint_as_float(b1));
#endif
#else
        u32 b0 = tile.a[s][0], b1 = tile.a[s][1];
#endif
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
#pragma unroll
            for (int j = 0; j < MMAS; ++j) {
                float v[4] = {__uint_as_float(tile.x[s][0][u][2 * j]), __uint_as_float(tile.x[s][0][u][2 * j + 1]),
                              __uint_as_float(tile.x[s][1][u][2 * j]), __uint_as_float(tile.x[s][1][u][2 * j + 1])};
                u32 hi[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) hi[i] = to_tf32(v[i]);
#if IEEE
                u32 lo[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) lo[i] = __float_as_uint(v[i] - __uint_as_float(hi[i]));
                mma(acc[u][j], lo, b0, b1);
#if WEIGHTED
                mma(acc[u][j], hi, rest0, rest1);
#endif
#endif
                mma(acc[u][j], hi, b0, b1);
            }
        }
#else
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
#pragma unroll
            for (int j = 0; j < MMAS; ++j) {
                u32 a[4] = {__byte_perm(tile.x[s][0][u][j], tile.x[s][1][u][j], 0x5410),
                            __byte_perm(tile.x[s][0][u][j], tile.x[s][1][u][j], 0x7632),
                            __byte_perm(tile.x[s][2][u][j], tile.x[s][3][u][j], 0x5410),
                            __byte_perm(tile.x[s][2][u][j], tile.x[s][3][u][j], 0x7632)};
                mma(acc[u][j], a, tile.a[s][0], tile.a[s][1]);
            }
        }
#endif
    }
}

struct Output {
    Element *out;               // first feature of the head
    long long stride;
    float *partial;             // [partial rows * 8, heads, width], of this head
    long long partial_stride;
    const int *row_order;
    int num_rows, width;
};

// Entry by entry, for items that met Inf or NaN; each lane serves the rows and features that its accumulators held.
__device__ __noinline__ void recompute(const Graph &graph, const Output &to, int4 work, const Element *x, long long x_stride,
                                       int feature, int t, int head, int heads) {
    for (int n = 0; n < UNITS * VEC * 2; ++n) {
        int f = feature + n / (2 * VEC) * 8 * VEC + n / 2 % VEC, r = 2 * t + (n & 1), place = work.x * 8 + r;
        if (f >= to.width) continue;
        float sum = 0;
        for (int b = work.y; b < work.z; ++b) {
            u64 mask = graph.block_mask[b];
            for (int c = 0; c < 8; ++c) {
                int bit = r * 8 + c;
                if (!((mask >> bit) & 1)) continue;
                float value = to_float(x[graph.block_col[(long long)b * 8 + c] * x_stride + f]);
#if WEIGHTED
                value *= to_float(value_at(graph, mask, graph.block_slot[b], bit, head, heads));
#endif
                sum += value;
            }
        }
        if (work.w >= 0) to.partial[((long long)work.w * 8 + r) * to.partial_stride + f] = sum;
        else if (place < to.num_rows) to.out[(to.row_order ? to.row_order[place] : place) * to.stride + f] = from_float(sum);
    }
}

// Grid: x work items (WARPS a thread block), y feature tiles (slow: one slab of X stays in L2), z heads.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
bitblock_spmm(const int *items, long long num_items, const int *block_col, const u64 *block_mask, const SlotIndex *block_slot,
              const Element *values, const int *row_order, const Element *x, long long x_stride, Element *out,
              long long out_stride, float *partial, long long num_rows, long long width64, long long heads64) {
    int width = (int)width64, heads = (int)heads64;
    int item = blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= num_items) return;
    Graph graph{items, block_col, block_mask, block_slot, values, row_order};
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, head = blockIdx.z;
    int4 work = __ldg((const int4 *)items + item);
    int window = work.x, begin = work.y, end = work.z;
    int feature = blockIdx.y * (UNITS * 8 * VEC) + g * VEC;
    x += (long long)head * width;
    out += (long long)head * width;
    partial += (long long)head * width;

    float acc[UNITS][MMAS][4] = {};
    Meta meta;
    Tile now, next;
    load_meta(meta, graph, begin, end, t);
    load_tile(now, meta, graph, x, x_stride, feature, width, g, t, head, heads);
    load_meta(meta, graph, begin + STEP * BLOCKS, end, t);
    for (int block = begin; block < end; block += STEP * BLOCKS) {
        load_tile(next, meta, graph, x, x_stride, feature, width, g, t, head, heads);
        load_meta(meta, graph, block + 2 * STEP * BLOCKS, end, t);
        multiply(acc, now);
        now = next;
    }

    bool poisoned = false;
#pragma unroll
    for (int u = 0; u < UNITS; ++u)
#pragma unroll
        for (int j = 0; j < MMAS; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) poisoned |= acc[u][j][i] != acc[u][j][i];
    Output to{out, out_stride, partial, (long long)heads * width, row_order, (int)num_rows, width};
    if (__any_sync(0xffffffffu, poisoned)) {
        recompute(graph, to, work, x, x_stride, feature, t, head, heads);
        return;
    }

#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        int f = feature + u * 8 * VEC;
        if (f >= width) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int place = window * 8 + 2 * t + half;
            if (work.w < 0 && place >= num_rows) continue;
            if (work.w >= 0) {   // part of a split window: [partial row, heads, width] float
                float *row = to.partial + ((long long)work.w * 8 + 2 * t + half) * to.partial_stride + f;
#pragma unroll
                for (int i = 0; i < VEC; ++i)
                    if (ALIGNED || f + i < width) row[i] = acc[u][i / 2][2 * (i & 1) + half];
                continue;
            }
            Element *row = to.out + (long long)(row_order ? row_order[place] : place) * to.stride + f;
#if ALIGNED
            u32 words[WORDS];
#pragma unroll
            for (int w = 0; w < WORDS; ++w) {
#if TYPE == 0
                words[w] = __float_as_uint(acc[u][w / 2][2 * (w & 1) + half]);
#else
                words[w] = (u32)from_float(acc[u][w][half]) | (u32)from_float(acc[u][w][2 + half]) << 16;
#endif
            }
#if WORDS == 4
            *(uint4 *)row = make_uint4(words[0], words[1], words[2], words[3]);
#elif WORDS == 2
            *(uint2 *)row = make_uint2(words[0], words[1]);
#else
            *(u32 *)row = words[0];
#endif
#else
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                if (f + i < width) row[i] = from_float(acc[u][i / 2][2 * (i & 1) + half]);
#endif
        }
    }
}

// Adds the partial rows of split windows in their order: deterministic. Grid: x split windows, y 8 rows; threads over
// heads * width.
extern "C" __global__ void __launch_bounds__(128)
bitblock_combine(const int *splits, const float *partial, const int *row_order, Element *out, long long num_rows,
                 long long row_width) {
    int window = splits[blockIdx.x * 3], first = splits[blockIdx.x * 3 + 1], last = splits[blockIdx.x * 3 + 2];
    int place = window * 8 + blockIdx.y;
    if (place >= num_rows) return;
    long long row = row_order ? row_order[place] : place;
    for (long long f = threadIdx.x; f < row_width; f += blockDim.x) {
        float sum = 0;
        for (int p = first; p < last; ++p) sum += partial[((long long)p * 8 + blockIdx.y) * row_width + f];
        out[row * row_width + f] = from_float(sum);
    }
}
