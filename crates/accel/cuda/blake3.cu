// BLAKE3, plain or keyed, 32 bytes of output, one message a thread. Messages of up to 4096 chunks of
// 1024 bytes: the stack of chaining values holds 12.
__constant__ u32 BLAKE3_IV[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
enum { CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8, KEYED = 16 };

struct Key {
    u32 words[8];
    u32 flags;  // KEYED or 0
};

DEVICE void mix(u32& a, u32& b, u32& c, u32& d, u32 x, u32 y) {
    a += b + x;
    d = rotr32(d ^ a, 16);
    c += d;
    b = rotr32(b ^ c, 12);
    a += b + y;
    d = rotr32(d ^ a, 8);
    c += d;
    b = rotr32(b ^ c, 7);
}

// The first 8 words of the compression; `cv` is replaced.
DEVICE void compress(u32* cv, const u32* m, u64 counter, u32 len, u32 flags) {
    // Where word i of round r comes from: the permutation of the specification, applied r times.
    constexpr int order[7][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                  {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
                                  {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1},
                                  {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
                                  {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4},
                                  {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
                                  {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13}};
    u32 v[16];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = cv[i];
#pragma unroll
    for (int i = 0; i < 4; i++) v[8 + i] = BLAKE3_IV[i];
    v[12] = (u32)counter;
    v[13] = (u32)(counter >> 32);
    v[14] = len;
    v[15] = flags;
#pragma unroll
    for (int r = 0; r < 7; r++) {
        const int* o = order[r];
        mix(v[0], v[4], v[8], v[12], m[o[0]], m[o[1]]);
        mix(v[1], v[5], v[9], v[13], m[o[2]], m[o[3]]);
        mix(v[2], v[6], v[10], v[14], m[o[4]], m[o[5]]);
        mix(v[3], v[7], v[11], v[15], m[o[6]], m[o[7]]);
        mix(v[0], v[5], v[10], v[15], m[o[8]], m[o[9]]);
        mix(v[1], v[6], v[11], v[12], m[o[10]], m[o[11]]);
        mix(v[2], v[7], v[8], v[13], m[o[12]], m[o[13]]);
        mix(v[3], v[4], v[9], v[14], m[o[14]], m[o[15]]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) cv[i] = v[i] ^ v[8 + i];
}

// The parent of `left` and the node in `cv`, into `cv`.
DEVICE void parent(u32* cv, const u32* left, const Key& key, u32 flags) {
    u32 m[16];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        m[i] = left[i];
        m[8 + i] = cv[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) cv[i] = key.words[i];
    compress(cv, m, 0, 64, key.flags | PARENT | flags);
}

extern "C" __global__ void __launch_bounds__(128) blake3_messages(Messages all, u8* out, Key key) {
    const u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= all.count) return;
    const Message msg = message(all, t);
    const u64 total = (u64)msg.len + msg.slen;
    const u32 chunks = total == 0 ? 1 : (u32)((total + 1023) / 1024);
    const bool fast = is_aligned(msg.p, 16);
    u32 stack[12][8];
    u32 height = 0;
    u32 cv[8];
#pragma unroll 1
    for (u32 c = 0; c < chunks; c++) {
        const u64 start = (u64)c * 1024;
        const u32 size = total - start < 1024 ? (u32)(total - start) : 1024;
        const u32 blocks = size == 0 ? 1 : (size + 63) / 64;
#pragma unroll
        for (int i = 0; i < 8; i++) cv[i] = key.words[i];
#pragma unroll 1
        for (u32 b = 0; b < blocks; b++) {
            const u64 at = start + b * 64;
            u32 m[16];
            if (fast && at + 64 <= msg.len) {
                const uint4* p = (const uint4*)(msg.p + at);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint4 v = p[j];
                    m[4 * j] = v.x;
                    m[4 * j + 1] = v.y;
                    m[4 * j + 2] = v.z;
                    m[4 * j + 3] = v.w;
                }
            } else {
#pragma unroll
                for (int j = 0; j < 16; j++) m[j] = word_at(msg, at + 4 * j, 0);
            }
            u32 flags = key.flags;
            if (b == 0) flags |= CHUNK_START;
            if (b + 1 == blocks) flags |= chunks == 1 ? CHUNK_END | ROOT : CHUNK_END;
            compress(cv, m, c, size - b * 64 < 64 ? size - b * 64 : 64, flags);
        }
        if (c + 1 == chunks) break;
        // As many merges as there are zeros at the end of the number of chunks so far.
#pragma unroll 1
        for (u32 n = c + 1; (n & 1) == 0; n >>= 1) parent(cv, stack[--height], key, 0);
#pragma unroll
        for (int i = 0; i < 8; i++) stack[height][i] = cv[i];
        height++;
    }
#pragma unroll 1
    while (height > 0) {
        height--;
        parent(cv, stack[height], key, height == 0 ? ROOT : 0);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) ((u32*)(out + t * 32))[i] = cv[i];
}
