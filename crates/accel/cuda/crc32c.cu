// CRC32C (Castagnoli, reflected 0x82f63b78), one message a warp; the result is 4 bytes, little-endian.
//
// Lane l takes the words l, l + 32, l + 64, ... of the message's whole rows of 128 bytes. Its register is
// moved on by 128 bytes with four table lookups; at the end each lane's register is multiplied by the
// power of x that its distance from the end of the rows makes, and all are added. Lane 0 then takes the
// rest, and the suffix, byte by byte.
//
// `tables` holds 5 x 256 + 32 words: move on by 128 bytes, for each byte of the register; move on by one
// byte; the factor of each lane.

// The product of two polynomials modulo the CRC's, reflected: bit 31 is x^0.
DEVICE u32 multiply(u32 a, u32 b) {
    u32 sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        sum ^= (0u - (a >> 31)) & b;
        a <<= 1;
        b = (b >> 1) ^ ((0u - (b & 1)) & 0x82f63b78u);
    }
    return sum;
}

// The register moved on by 128 bytes.
DEVICE u32 move_row(const u32* table, u32 c) {
    return table[c & 255] ^ table[256 + ((c >> 8) & 255)] ^ table[512 + ((c >> 16) & 255)] ^ table[768 + (c >> 24)];
}

// A CRC begins with all ones, which is the same as inverting the first word.
DEVICE u32 first_inverted(u32 word, u32 number) { return number == 0 ? ~word : word; }

extern "C" __global__ void __launch_bounds__(256) crc32c_messages(Messages all, u8* out, const u32* tables) {
    DYNAMIC_SHARED(u32, table);
    for (u32 i = threadIdx.x; i < 1280; i += blockDim.x) table[i] = tables[i];
    __syncthreads();
    const u32 lane = threadIdx.x & 31, warps = blockDim.x / 32;
    const u32 factor = tables[1280 + lane];
    for (u64 t = (u64)blockIdx.x * warps + threadIdx.x / 32; t < all.count; t += (u64)gridDim.x * warps) {
        const Message m = message(all, t);
        const u32 rows = m.len / 128;
        const bool fast = is_aligned(m.p, 4);
        u32 c = 0;
        if (fast) {
            const u32* words = (const u32*)m.p + lane;
#pragma unroll 8
            for (u32 r = 0; r < rows; r++) c = move_row(table, c) ^ first_inverted(words[r * 32], r | lane);
        } else {
#pragma unroll 1
            for (u32 r = 0; r < rows; r++)
                c = move_row(table, c) ^ first_inverted(word_at(m, (u64)r * 128 + lane * 4, 0), r | lane);
        }
        c = multiply(factor, c);
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) c ^= __shfl_xor_sync(0xffffffffu, c, o);
        if (lane == 0) {
            if (rows == 0) c = 0xffffffffu;
            const u64 total = (u64)m.len + m.slen;
            for (u64 at = (u64)rows * 128; at < total; at++)
                c = table[1024 + ((c ^ byte_at(m, at, 0)) & 255)] ^ (c >> 8);
            *(u32*)(out + t * 4) = ~c;
        }
        __syncwarp();
    }
}
