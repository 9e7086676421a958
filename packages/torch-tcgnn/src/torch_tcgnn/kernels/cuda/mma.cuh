// Tensor-core instructions for the element type: m16n8k8 tf32 for fp32, m16n8k16 for the 16-bit types; fp32 accumulation.

__device__ __forceinline__ u32 to_tf32(u32 f) {
    u32 r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(__uint_as_float(f))); return r;
}

// The same in two instructions, for splits: where it overflows or meets NaN, the rest is not finite.
__device__ __forceinline__ u32 round_tf32(u32 f) { return (f + 0x1000u) & 0xffffe000u; }

// What rounding to tf32 left: f = hi + rest, exactly.
__device__ __forceinline__ u32 rest_of(u32 f, u32 hi) { return __float_as_uint(__uint_as_float(f) - __uint_as_float(hi)); }

__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if TYPE == 0
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#elif TYPE == 1
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
