// SHA3-256 and SHA3-512 (FIPS 202), one message a thread.
__constant__ u64 ROUND[24] = {
    0x0000000000000001ull, 0x0000000000008082ull, 0x800000000000808aull, 0x8000000080008000ull,
    0x000000000000808bull, 0x0000000080000001ull, 0x8000000080008081ull, 0x8000000000008009ull,
    0x000000000000008aull, 0x0000000000000088ull, 0x0000000080008009ull, 0x000000008000000aull,
    0x000000008000808bull, 0x800000000000008bull, 0x8000000000008089ull, 0x8000000000008003ull,
    0x8000000000008002ull, 0x8000000000000080ull, 0x000000000000800aull, 0x800000008000000aull,
    0x8000000080008081ull, 0x8000000000008080ull, 0x0000000080000001ull, 0x8000000080008008ull};

DEVICE void keccak(u64* s) {
    constexpr int turn[25] = {0,  1,  62, 28, 27, 36, 44, 6,  55, 20, 3,  10, 43,
                              25, 39, 41, 45, 15, 21, 8,  18, 2,  61, 56, 14};
#pragma unroll 1
    for (int r = 0; r < 24; r++) {
        u64 c[5], b[25];
#pragma unroll
        for (int x = 0; x < 5; x++) c[x] = s[x] ^ s[x + 5] ^ s[x + 10] ^ s[x + 15] ^ s[x + 20];
#pragma unroll
        for (int x = 0; x < 5; x++) {
            const u64 q = c[(x + 4) % 5], z = rotl64(c[(x + 1) % 5], 1);
#pragma unroll
            for (int y = 0; y < 25; y += 5) s[x + y] ^= q ^ z;
        }
#pragma unroll
        for (int x = 0; x < 5; x++)
#pragma unroll
            for (int y = 0; y < 5; y++) b[y + 5 * ((2 * x + 3 * y) % 5)] = rotl64(s[x + 5 * y], turn[x + 5 * y]);
#pragma unroll
        for (int y = 0; y < 25; y += 5)
#pragma unroll
            for (int x = 0; x < 5; x++) s[x + y] = b[x + y] ^ (~b[(x + 1) % 5 + y] & b[(x + 2) % 5 + y]);
        s[0] ^= ROUND[r];
    }
}

// RATE and SIZE in 8-byte words.
template <int RATE, int SIZE>
DEVICE void sha3(const Messages& all, u8* out) {
    const u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= all.count) return;
    const Message m = message(all, t);
    const u64 total = (u64)m.len + m.slen, blocks = total / (RATE * 8) + 1;
    const bool fast = is_aligned(m.p, 8);
    u64 s[25];
#pragma unroll
    for (int j = 0; j < 25; j++) s[j] = 0;
#pragma unroll 1
    for (u64 i = 0; i < blocks; i++) {
        const u64 at = i * (RATE * 8);
        if (fast && at + RATE * 8 <= m.len) {
            const u64* p = (const u64*)(m.p + at);
#pragma unroll
            for (int j = 0; j < RATE; j++) s[j] ^= p[j];
        } else {
#pragma unroll
            for (int j = 0; j < RATE; j++)
                s[j] ^= ((u64)word_at(m, at + 8 * j + 4, 6) << 32) | word_at(m, at + 8 * j, 6);
        }
        if (i + 1 == blocks) s[RATE - 1] ^= 0x8000000000000000ull;
        keccak(s);
    }
#pragma unroll
    for (int j = 0; j < SIZE; j++) store_le64(out + t * (SIZE * 8) + j * 8, s[j]);
}

extern "C" __global__ void __launch_bounds__(128) sha3_256_messages(Messages all, u8* out) { sha3<17, 4>(all, out); }
extern "C" __global__ void __launch_bounds__(128) sha3_512_messages(Messages all, u8* out) { sha3<9, 8>(all, out); }
