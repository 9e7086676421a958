// out = A @ X on CUDA cores, A in compressed rows: the path for windows whose rows share few columns.
//
// LANES lanes hold one neighbour's features (a tile of LANES * VEC), so a warp serves 32 / LANES neighbours at a time: of as
// many different short rows, or of one long row, whose sums are folded by shuffles at the end. Rows come sorted by length
// (row_plan.py), so the lanes of a warp and the warps of a block end together. UNROLL gathers are in flight. Where the next
// gathers go, and their weights, is fetched meanwhile: by every lane for itself, or, BATCHED, by the lanes of a group for
// each other. A batch is fewer loads and more instructions: it pays for long rows, and for weights.
//
// Compiled once a configuration:
//   TYPE 0 fp32, 1 fp16, 2 bf16, 3 fp64   VEC features a lane holds (rows of X start at multiples of VEC elements)
//   TAIL 0/1: those of the results do not
//   LANES lanes a neighbour   UNROLL   BATCHED 0/1   WEIGHTED 0/1   WIDE_OUT 0/1: fp32 results of 16-bit features
//   WARPS warps a block   Index of entries, Column of ids: int, long long

#include "element.cuh"
#include "out.cuh"

#define GROUPS (32 / LANES)

#define OUT_BYTES (VEC * sizeof(Out))

struct __align__(VEC * sizeof(Element)) Vector { Element at[VEC]; };
struct __align__(OUT_BYTES < 16 ? OUT_BYTES : 16) Result { Out at[VEC]; };

struct Pattern {
    const Column *col;          // null: entry k gathers row k
    const Index *edge;          // null: entry k is edge k
    const Element *weight;      // [num_edges, heads]
    long long heads, head;
};

struct Entry {                  // where a neighbour is; an absent one has no column
    Column column;
#if WEIGHTED
    Sum weight;
#endif
};

__device__ __forceinline__ Entry fetch(const Pattern &p, Index k, Index end) {
    Entry e{-1};
    if (k < end) {
        e.column = p.col ? __ldg(p.col + k) : (Column)k;
#if WEIGHTED
        e.weight = to_sum(p.weight[(long long)(p.edge ? __ldg(p.edge + k) : k) * p.heads + p.head]);
#endif
    }
    return e;
}

__device__ __forceinline__ void gather(Sum (&acc)[VEC], const Entry (&entries)[UNROLL], const Element *x, long long x_stride) {
    Vector v[UNROLL];
#pragma unroll
    for (int n = 0; n < UNROLL; ++n)
        v[n] = entries[n].column >= 0 ? *(const Vector *)(x + (long long)entries[n].column * x_stride) : Vector{};
#pragma unroll
    for (int n = 0; n < UNROLL; ++n)
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
#if WEIGHTED
            if (entries[n].column >= 0) acc[i] += entries[n].weight * to_sum(v[n].at[i]);
#else
            acc[i] += to_sum(v[n].at[i]);
#endif
        }
}

// Grid: x warps: pieces, then wide rows, then GROUPS short rows each; y feature tiles; z heads. Items: row, begin, end.
// A head is x_width features of X, the first `width` of which are summed. Strides are arguments, though heads and widths give
// them: an argument is read where it is needed, a product takes registers or is computed again at every gather.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
csr_spmm(const Index *pieces, long long num_pieces, const Index *wide, long long num_wide, const Index *short_rows,
         long long num_short, const Column *col, const Index *edge, const Element *weight, const Element *x,
         long long x_stride, long long x_width, Out *out, long long out_stride, Sum *partial, long long width,
         long long heads) {
    long long warp = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x & 31, group = lane / LANES, head = blockIdx.z;
    bool alone = warp < num_pieces + num_wide;
    long long shared = (warp - num_pieces - num_wide) * GROUPS + group;
    if (!alone && shared >= num_short) return;
    const Index *item = warp < num_pieces ? pieces + warp * 3
                      : alone ? wide + (warp - num_pieces) * 3 : short_rows + shared * 3;
    Index row = item[0], begin = item[1], end = item[2];
    long long f = (long long)blockIdx.y * (LANES * VEC) + lane % LANES * VEC;
    bool inside = f < width;
    x += head * x_width + (inside ? f : 0);

    // The groups of a warp that is alone with a row take every GROUPS-th entry.
    Pattern pattern{col, edge, weight, heads, head};
    Sum acc[VEC] = {};
#if BATCHED
    int batch = alone ? 32 : LANES, stride = alone ? GROUPS : 1, first = alone ? group : group * LANES;
    u32 mates = alone ? 0xffffffffu : (u32)((1ull << LANES) - 1) << (group * LANES);
    Index k = begin + (alone ? lane : lane % LANES);
    Entry now = fetch(pattern, k, end);
    for (Index left = end - begin; left > 0; left -= batch) {
        Entry next = fetch(pattern, k += batch, end);
        int trips = left < batch ? (int)((left + stride - 1) / stride) : LANES;
        for (int j = 0; j < trips; j += UNROLL) {
            Entry entries[UNROLL];
#pragma unroll
            for (int n = 0; n < UNROLL; ++n) {
                int from = first + (j + n) * stride;
                entries[n].column = __shfl_sync(mates, now.column, from);
#if WEIGHTED
                entries[n].weight = __shfl_sync(mates, now.weight, from);
#endif
            }
            gather(acc, entries, x, x_stride);
        }
        now = next;
    }
#else
    Index step = alone ? GROUPS : 1, k = begin + (alone ? group : 0);
    Entry now[UNROLL], next[UNROLL];
#pragma unroll
    for (int n = 0; n < UNROLL; ++n) now[n] = fetch(pattern, k + n * step, end);
    while (k < end) {
        k += UNROLL * step;
#pragma unroll
        for (int n = 0; n < UNROLL; ++n) next[n] = fetch(pattern, k + n * step, end);
        gather(acc, now, x, x_stride);
#pragma unroll
        for (int n = 0; n < UNROLL; ++n) now[n] = next[n];
    }
#endif
    if (alone) {
#pragma unroll
        for (int distance = LANES; distance < 32; distance *= 2)
#pragma unroll
            for (int j = 0; j < VEC; ++j) acc[j] += __shfl_xor_sync(0xffffffffu, acc[j], distance);
        if (group != 0) return;
    }
    if (!inside) return;
    if (warp < num_pieces) {
        Sum *to = partial + (warp * heads + head) * width + f;
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (!TAIL || f + j < width) to[j] = acc[j];
    } else {
        Out *to = out + row * out_stride + head * width + f;
#if TAIL
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            if (f + j < width) to[j] = to_out(acc[j]);
#else
        Result result;
#pragma unroll
        for (int j = 0; j < VEC; ++j) result.at[j] = to_out(acc[j]);
        *(Result *)to = result;
#endif
    }
}

// Adds the pieces of cut rows in their order: deterministic. Grid: x cut rows, y blocks of features.
extern "C" __global__ void __launch_bounds__(128)
csr_combine(const Index *cut_rows, const Sum *partial, Out *out, long long row_width) {
    const Index *which = cut_rows + (long long)blockIdx.x * 3;
    long long f = (long long)blockIdx.y * blockDim.x + threadIdx.x;
    if (f >= row_width) return;
    Sum sum = 0;
    for (Index p = which[1]; p < which[2]; ++p) sum += partial[p * row_width + f];
    out[which[0] * row_width + f] = to_out(sum);
}
