// out = A @ X on CUDA cores, A in compressed rows: the path for windows whose rows share few columns.
//
// LANES lanes hold one neighbour's features (a tile of LANES * VEC), so a warp serves 32 / LANES neighbours at a time: of as
// many different short rows, or of one long row, whose sums are folded by shuffles at the end. Rows come sorted by length
// (row_plan.py), so the lanes of a warp and the warps of a block end together. UNROLL gathers are in flight, and the
// column ids of the next UNROLL are fetched meanwhile.
//
// Compiled once a configuration:
//   TYPE 0 fp32, 1 fp16, 2 bf16, 3 fp64   VEC features a lane holds (rows start at multiples of VEC elements)
//   LANES lanes a neighbour   UNROLL   WEIGHTED 0/1   WARPS warps a block   Index of entries, Column of ids: int, long long

#include "element.cuh"

#define GROUPS (32 / LANES)

struct __align__(VEC * sizeof(Element)) Vector { Element at[VEC]; };

struct Entries {                // where UNROLL neighbours are; a missing one has weight 0 and no column
    long long neighbour[UNROLL];
#if WEIGHTED
    Sum weight[UNROLL];
#endif
};

struct Pattern {
    const Column *col;          // null: entry k gathers row k
    const Index *edge;          // null: entry k is edge k
    const Element *weight;      // [num_edges, heads]
    long long heads, head;
};

__device__ __forceinline__ void load_entries(Entries &to, const Pattern &p, Index k, Index end, Index step) {
#pragma unroll
    for (int n = 0; n < UNROLL; ++n, k += step) {
        bool inside = k < end;
        to.neighbour[n] = inside ? (p.col ? (long long)__ldg(p.col + k) : (long long)k) : -1;
#if WEIGHTED
        to.weight[n] = inside ? to_sum(p.weight[(long long)(p.edge ? __ldg(p.edge + k) : k) * p.heads + p.head]) : Sum(0);
#endif
    }
}

// Grid: x warps: pieces, then wide rows, then GROUPS short rows each; y feature tiles; z heads. Items: row, begin, end.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
csr_spmm(const Index *pieces, long long num_pieces, const Index *wide, long long num_wide, const Index *short_rows,
         long long num_short, const Column *col, const Index *edge, const Element *weight, const Element *x,
         long long x_stride, Element *out, long long out_stride, Sum *partial, long long width, long long heads) {
    long long warp = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x & 31, group = lane / LANES, head = blockIdx.z;
    bool alone = warp < num_pieces + num_wide;
    long long shared = (warp - num_pieces - num_wide) * GROUPS + group;
    if (!alone && shared >= num_short) return;
    const Index *item = warp < num_pieces ? pieces + warp * 3
                      : alone ? wide + (warp - num_pieces) * 3 : short_rows + shared * 3;
    Index row = item[0], end = item[2], step = alone ? GROUPS : 1;
    Index k = item[1] + (alone ? group : 0);
    long long f = (long long)blockIdx.y * (LANES * VEC) + lane % LANES * VEC;
    bool inside = f < width;
    x += head * width + (inside ? f : 0);

    Pattern pattern{col, edge, weight, heads, head};
    Sum acc[VEC] = {};
    Entries now, next;
    load_entries(now, pattern, k, end, step);
    for (; k < end; k += UNROLL * step) {
        Vector v[UNROLL];
#pragma unroll
        for (int n = 0; n < UNROLL; ++n)
            v[n] = now.neighbour[n] >= 0 ? *(const Vector *)(x + now.neighbour[n] * x_stride) : Vector{};
        load_entries(next, pattern, k + UNROLL * step, end, step);
#pragma unroll
        for (int n = 0; n < UNROLL; ++n)
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
#if WEIGHTED
                if (now.neighbour[n] >= 0) acc[j] += now.weight[n] * to_sum(v[n].at[j]);
#else
                acc[j] += to_sum(v[n].at[j]);
#endif
            }
        now = next;
    }
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
        for (int j = 0; j < VEC; ++j) to[j] = acc[j];
    } else {
        Vector result;
#pragma unroll
        for (int j = 0; j < VEC; ++j) result.at[j] = from_sum(acc[j]);
        *(Vector *)(out + row * out_stride + head * width + f) = result;
    }
}

// Adds the pieces of cut rows in their order: deterministic. Grid: x cut rows, y blocks of features.
extern "C" __global__ void __launch_bounds__(128)
csr_combine(const Index *cut_rows, const Sum *partial, Element *out, long long row_width) {
    const Index *which = cut_rows + (long long)blockIdx.x * 3;
    long long f = (long long)blockIdx.y * blockDim.x + threadIdx.x;
    if (f >= row_width) return;
    Sum sum = 0;
    for (Index p = which[1]; p < which[2]; ++p) sum += partial[p * row_width + f];
    out[which[0] * row_width + f] = from_sum(sum);
}
