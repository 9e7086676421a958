// The element type of a compilation: TYPE 0 fp32, 1 fp16, 2 bf16, 3 fp64; sums are fp32, or fp64 for fp64.

typedef unsigned int u32;
typedef unsigned long long u64;
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
