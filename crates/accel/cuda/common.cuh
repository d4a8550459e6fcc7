// What every kernel file begins with. The same text is compiled by NVRTC for a GPU and, with
// ASHLAR_EMULATOR, by the host compiler for the tests.
//
// Messages: a digest kernel hashes `count` messages. The first `count0` lie in the strips at
// `base0`, the others in those at `base1`. A strip is cut into `per_strip` blocks of `block` bytes,
// the last one shorter where the strip is no multiple. A message is its block followed by
// `suffix_len` bytes at `suffix + t * suffix_stride`; stride 0 gives all messages one suffix. With
// SUFFIX_VARIES for the length, the last byte of each stride says how many of the others count.
#ifdef ASHLAR_EMULATOR
#include "emulator.h"
#define OUTLINED __attribute__((noinline))
#else
#define DYNAMIC_SHARED(T, name) extern __shared__ __align__(16) T name[]
#define OUTLINED __noinline__
#endif
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE static __device__ __forceinline__

enum : u32 { SUFFIX_VARIES = 0xffffffff };

struct Messages {
    const u8* base0;
    const u8* base1;
    u64 count0;
    u64 count;
    u64 strip;
    const u8* suffix;
    u32 block;
    u32 per_strip;
    u32 suffix_len;
    u32 suffix_stride;
};

// One message: `len` bytes at `p`, then `slen` bytes at `s`.
struct Message {
    const u8* p;
    const u8* s;
    u32 len;
    u32 slen;
};

DEVICE Message message(const Messages& all, u64 t) {
    const bool first = t < all.count0;
    const u64 local = first ? t : t - all.count0;
    const u64 strip = local / all.per_strip;
    const u64 start = (local - strip * all.per_strip) * all.block;
    const u64 left = all.strip - start;
    Message m;
    m.p = (first ? all.base0 : all.base1) + strip * all.strip + start;
    m.len = left < all.block ? (u32)left : all.block;
    m.s = all.suffix + t * all.suffix_stride;
    m.slen = all.suffix_len == SUFFIX_VARIES ? m.s[all.suffix_stride - 1] : all.suffix_len;
    return m;
}

DEVICE bool is_aligned(const void* p, u32 to) { return ((u64)p & (to - 1)) == 0; }

// Byte `at` of the message, then `pad` once, then zeros.
DEVICE u32 byte_at(const Message& m, u64 at, u32 pad) {
    if (at < m.len) return m.p[at];
    at -= m.len;
    if (at < m.slen) return m.s[at];
    return at == m.slen ? pad : 0;
}

// Four bytes from `at` on, little-endian: the slow way that any length and alignment take.
static __device__ OUTLINED u32 word_at(const Message m, u64 at, u32 pad) {
    u32 word = 0;
#pragma unroll 1
    for (u32 i = 0; i < 4; i++) word |= byte_at(m, at + i, pad) << (8 * i);
    return word;
}

DEVICE u32 swap_bytes(u32 x) { return __byte_perm(x, 0, 0x0123); }

// Stores 8 bytes of which the alignment is 4.
DEVICE void store_le64(u8* out, u64 v) {
    ((u32*)out)[0] = (u32)v;
    ((u32*)out)[1] = (u32)(v >> 32);
}

// 64-bit rotation to the left by a constant.
DEVICE u64 rotl64(u64 x, int n) {
    u32 low = (u32)x, high = (u32)(x >> 32);
    if (n >= 32) {
        const u32 t = low;
        low = high;
        high = t;
        n -= 32;
    }
    if (n == 0) return ((u64)high << 32) | low;
    return ((u64)__funnelshift_l(low, high, n) << 32) | __funnelshift_l(high, low, n);
}
DEVICE u64 rotr64(u64 x, int n) { return rotl64(x, 64 - n); }
DEVICE u32 rotr32(u32 x, int n) { return __funnelshift_r(x, x, n); }
