// out = A @ X on CUDA cores, A in compressed rows: the path for windows whose rows share few columns.
//
// One warp sums one row (or a piece of a long one) over a tile of LANES * VEC features. LANES lanes hold one neighbour's
// features, so 32 / LANES neighbours are added side by side and folded by shuffles at the end. Column ids are read 32 at a
// time, one a lane, and handed round by shuffles; UNROLL gathers are in flight.
//
// Compiled once a configuration:
//   TYPE 0 fp32, 1 fp16, 2 bf16, 3 fp64   VEC features a lane holds (aligned to VEC elements)   LANES lanes a neighbour
//   UNROLL neighbours in flight   WEIGHTED 0/1   WARPS warps a block   Index int or long long

typedef unsigned int u32;
typedef unsigned short u16;

#if TYPE == 0
typedef float Element;
typedef float Sum;
#elif TYPE == 3
typedef double Element;
typedef double Sum;
#else
typedef u16 Element;
typedef float Sum;
#endif
#define GROUPS (32 / LANES)

__device__ __forceinline__ Sum to_sum(Element v) {
#if TYPE == 0 || TYPE == 3
    return v;
#elif TYPE == 1
    float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v)); return f;
#else
    return __uint_as_float((u32)v << 16);
#endif
}

__device__ __forceinline__ Element from_sum(Sum f) {
#if TYPE == 0 || TYPE == 3
    return f;
#elif TYPE == 1
    u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h;
#else
    u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h;
#endif
}

struct __align__(VEC * sizeof(Element)) Vector { Element at[VEC]; };

// Grid: x pieces of long rows first, then rows (WARPS a block); y feature tiles; z heads.
// pieces [num_pieces, 4]: row, first entry, end entry, partial row. Rows longer than `longest` are left to their pieces.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
csr_spmm(const Index *rowptr, const int *col, const Element *values, const Index *pieces, long long num_pieces,
         long long longest, const Element *x, long long x_stride, Element *out, long long out_stride, Sum *partial,
         long long num_rows, long long width, long long heads) {
    long long unit = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x & 31, group = lane / LANES;
    long long row, begin, end, part = -1;
    if (unit < num_pieces) {
        row = pieces[unit * 4], begin = pieces[unit * 4 + 1], end = pieces[unit * 4 + 2], part = pieces[unit * 4 + 3];
    } else {
        row = unit - num_pieces;
        if (row >= num_rows) return;
        begin = rowptr[row], end = rowptr[row + 1];
        if (end - begin > longest) return;
    }
    int head = blockIdx.z;
    long long f = (long long)blockIdx.y * (LANES * VEC) + lane % LANES * VEC;
    bool inside = f < width;
    x += head * width + f;

    Sum acc[VEC] = {};
    for (long long first = begin; first < end; first += 32) {
        int count = end - first < 32 ? (int)(end - first) : 32;
        int c = lane < count ? __ldg(col + first + lane) : 0;
#if WEIGHTED
        Sum w = lane < count ? to_sum(values[(first + lane) * heads + head]) : Sum(0);
#endif
        for (int i = 0; i < count; i += GROUPS * UNROLL) {
            Vector v[UNROLL];
            Sum scale[UNROLL];
#pragma unroll
            for (int n = 0; n < UNROLL; ++n) {
                int k = i + n * GROUPS + group;
                int neighbour = __shfl_sync(0xffffffffu, c, k & 31);
#if WEIGHTED
                scale[n] = __shfl_sync(0xffffffffu, w, k & 31);
#else
                scale[n] = Sum(1);
#endif
                if (k < count && inside) v[n] = *(const Vector *)(x + neighbour * x_stride);
                else {
                    v[n] = Vector{};
                    scale[n] = Sum(0);
                }
            }
#pragma unroll
            for (int n = 0; n < UNROLL; ++n)
#pragma unroll
                for (int j = 0; j < VEC; ++j) acc[j] += scale[n] * to_sum(v[n].at[j]);
        }
    }
#pragma unroll
    for (int step = LANES; step < 32; step *= 2)
#pragma unroll
        for (int j = 0; j < VEC; ++j) acc[j] += __shfl_xor_sync(0xffffffffu, acc[j], step);
    if (group != 0 || !inside) return;
    if (part >= 0) {
        Sum *to = partial + (part * heads + head) * width + f;
#pragma unroll
        for (int j = 0; j < VEC; ++j) to[j] = acc[j];
    } else {
        Vector result;
#pragma unroll
        for (int j = 0; j < VEC; ++j) result.at[j] = from_sum(acc[j]);
        *(Vector *)(out + row * out_stride + head * width + f) = result;
    }
}

// Adds the pieces of long rows in their order: deterministic. Grid: x long rows, y blocks of features.
// long_rows [num_long, 3]: row, first and end partial row.
extern "C" __global__ void __launch_bounds__(128)
csr_combine(const Index *long_rows, const Sum *partial, Element *out, long long row_width) {
    const Index *which = long_rows + (long long)blockIdx.x * 3;
    long long f = (long long)blockIdx.y * blockDim.x + threadIdx.x;
    if (f >= row_width) return;
    Sum sum = 0;
    for (Index p = which[1]; p < which[2]; ++p) sum += partial[p * row_width + f];
    out[which[0] * row_width + f] = from_sum(sum);
}
