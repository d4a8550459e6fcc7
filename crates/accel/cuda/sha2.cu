// SHA-256 and SHA-512 (FIPS 180-4), one message a thread.
__constant__ u32 K256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

DEVICE void sha256_block(u32* h, u32* w) {
    u32 a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
#pragma unroll
    for (int i = 0; i < 64; i++) {
        if (i >= 16) {
            const u32 x = w[(i + 1) & 15], y = w[(i + 14) & 15];
            w[i & 15] += (rotr32(x, 7) ^ rotr32(x, 18) ^ (x >> 3)) + w[(i + 9) & 15] +
                         (rotr32(y, 17) ^ rotr32(y, 19) ^ (y >> 10));
        }
        const u32 t1 = k + (rotr32(e, 6) ^ rotr32(e, 11) ^ rotr32(e, 25)) + ((e & f) ^ (~e & g)) + K256[i] + w[i & 15];
        const u32 t2 = (rotr32(a, 2) ^ rotr32(a, 13) ^ rotr32(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        k = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
    h[5] += f;
    h[6] += g;
    h[7] += k;
}

extern "C" __global__ void __launch_bounds__(128) sha256_messages(Messages all, u8* out) {
    const u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= all.count) return;
    const Message m = message(all, t);
    const u64 total = (u64)m.len + m.slen, blocks = (total + 8) / 64 + 1;
    const bool fast = is_aligned(m.p, 16);
    u32 h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    u32 w[16];
#pragma unroll 1
    for (u64 i = 0; i < blocks; i++) {
        const u64 at = i * 64;
        if (fast && at + 64 <= m.len) {
            const uint4* p = (const uint4*)(m.p + at);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint4 v = p[j];
                w[4 * j] = swap_bytes(v.x);
                w[4 * j + 1] = swap_bytes(v.y);
                w[4 * j + 2] = swap_bytes(v.z);
                w[4 * j + 3] = swap_bytes(v.w);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 16; j++) w[j] = swap_bytes(word_at(m, at + 4 * j, 0x80));
            if (i + 1 == blocks) {
                w[14] = (u32)(total >> 29);
                w[15] = (u32)(total << 3);
            }
        }
        sha256_block(h, w);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) ((u32*)(out + t * 32))[j] = swap_bytes(h[j]);
}

__constant__ u64 K512[80] = {
    0x428a2f98d728ae22ull, 0x7137449123ef65cdull, 0xb5c0fbcfec4d3b2full, 0xe9b5dba58189dbbcull,
    0x3956c25bf348b538ull, 0x59f111f1b605d019ull, 0x923f82a4af194f9bull, 0xab1c5ed5da6d8118ull,
    0xd807aa98a3030242ull, 0x12835b0145706fbeull, 0x243185be4ee4b28cull, 0x550c7dc3d5ffb4e2ull,
    0x72be5d74f27b896full, 0x80deb1fe3b1696b1ull, 0x9bdc06a725c71235ull, 0xc19bf174cf692694ull,
    0xe49b69c19ef14ad2ull, 0xefbe4786384f25e3ull, 0x0fc19dc68b8cd5b5ull, 0x240ca1cc77ac9c65ull,
    0x2de92c6f592b0275ull, 0x4a7484aa6ea6e483ull, 0x5cb0a9dcbd41fbd4ull, 0x76f988da831153b5ull,
    0x983e5152ee66dfabull, 0xa831c66d2db43210ull, 0xb00327c898fb213full, 0xbf597fc7beef0ee4ull,
    0xc6e00bf33da88fc2ull, 0xd5a79147930aa725ull, 0x06ca6351e003826full, 0x142929670a0e6e70ull,
    0x27b70a8546d22ffcull, 0x2e1b21385c26c926ull, 0x4d2c6dfc5ac42aedull, 0x53380d139d95b3dfull,
    0x650a73548baf63deull, 0x766a0abb3c77b2a8ull, 0x81c2c92e47edaee6ull, 0x92722c851482353bull,
    0xa2bfe8a14cf10364ull, 0xa81a664bbc423001ull, 0xc24b8b70d0f89791ull, 0xc76c51a30654be30ull,
    0xd192e819d6ef5218ull, 0xd69906245565a910ull, 0xf40e35855771202aull, 0x106aa07032bbd1b8ull,
    0x19a4c116b8d2d0c8ull, 0x1e376c085141ab53ull, 0x2748774cdf8eeb99ull, 0x34b0bcb5e19b48a8ull,
    0x391c0cb3c5c95a63ull, 0x4ed8aa4ae3418acbull, 0x5b9cca4f7763e373ull, 0x682e6ff3d6b2b8a3ull,
    0x748f82ee5defb2fcull, 0x78a5636f43172f60ull, 0x84c87814a1f0ab72ull, 0x8cc702081a6439ecull,
    0x90befffa23631e28ull, 0xa4506cebde82bde9ull, 0xbef9a3f7b2c67915ull, 0xc67178f2e372532bull,
    0xca273eceea26619cull, 0xd186b8c721c0c207ull, 0xeada7dd6cde0eb1eull, 0xf57d4f7fee6ed178ull,
    0x06f067aa72176fbaull, 0x0a637dc5a2c898a6ull, 0x113f9804bef90daeull, 0x1b710b35131c471bull,
    0x28db77f523047d84ull, 0x32caab7b40c72493ull, 0x3c9ebe0a15c9bebcull, 0x431d67c49c100d4cull,
    0x4cc5d4becb3e42b6ull, 0x597f299cfc657e2aull, 0x5fcb6fab3ad6faecull, 0x6c44198c4a475817ull};

extern "C" __global__ void __launch_bounds__(128) sha512_messages(Messages all, u8* out) {
    const u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= all.count) return;
    const Message m = message(all, t);
    const u64 total = (u64)m.len + m.slen, blocks = (total + 16) / 128 + 1;
    const bool fast = is_aligned(m.p, 16);
    u64 h[8] = {0x6a09e667f3bcc908ull, 0xbb67ae8584caa73bull, 0x3c6ef372fe94f82bull, 0xa54ff53a5f1d36f1ull,
                0x510e527fade682d1ull, 0x9b05688c2b3e6c1full, 0x1f83d9abfb41bd6bull, 0x5be0cd19137e2179ull};
    u64 w[16];
#pragma unroll 1
    for (u64 i = 0; i < blocks; i++) {
        const u64 at = i * 128;
        if (fast && at + 128 <= m.len) {
            const uint4* p = (const uint4*)(m.p + at);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const uint4 v = p[j];
                w[2 * j] = ((u64)swap_bytes(v.x) << 32) | swap_bytes(v.y);
                w[2 * j + 1] = ((u64)swap_bytes(v.z) << 32) | swap_bytes(v.w);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 16; j++)
                w[j] = ((u64)swap_bytes(word_at(m, at + 8 * j, 0x80)) << 32) | swap_bytes(word_at(m, at + 8 * j + 4, 0x80));
            if (i + 1 == blocks) w[15] = total << 3;
        }
        u64 a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
#pragma unroll 16
        for (int r = 0; r < 80; r++) {
            if (r >= 16) {
                const u64 x = w[(r + 1) & 15], y = w[(r + 14) & 15];
                w[r & 15] += (rotr64(x, 1) ^ rotr64(x, 8) ^ (x >> 7)) + w[(r + 9) & 15] +
                             (rotr64(y, 19) ^ rotr64(y, 61) ^ (y >> 6));
            }
            const u64 t1 = k + (rotr64(e, 14) ^ rotr64(e, 18) ^ rotr64(e, 41)) + ((e & f) ^ (~e & g)) + K512[r] + w[r & 15];
            const u64 t2 = (rotr64(a, 28) ^ rotr64(a, 34) ^ rotr64(a, 39)) + ((a & b) ^ (a & c) ^ (b & c));
            k = g;
            g = f;
            f = e;
            e = d + t1;
            d = c;
            c = b;
            b = a;
            a = t1 + t2;
        }
        h[0] += a;
        h[1] += b;
        h[2] += c;
        h[3] += d;
        h[4] += e;
        h[5] += f;
        h[6] += g;
        h[7] += k;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        ((u32*)(out + t * 64))[2 * j] = swap_bytes((u32)(h[j] >> 32));
        ((u32*)(out + t * 64))[2 * j + 1] = swap_bytes((u32)h[j]);
    }
}
