// Multiplication of strips by a matrix over GF(2^8), polynomial 0x11d: encode and decode.
//
// A product by a constant is linear over the bits of the other factor, so it is the sum of three
// lookups: in its bits 0-2 (8 entries), 3-5 (8) and 6-7 (4). A byte permutation looks up four bytes
// at once in 8 bytes held in two registers. Two words of data are interleaved nibble by nibble, so
// that one word holds eight selectors, four in each half; one permutation of each pair of sums puts
// the bytes back in order. Time does not depend on the data.
//
// Each thread makes 16 bytes of up to MT outputs. Coefficients of the tile are in shared memory, `chunk`
// input strips at a time; the sums stay in registers over all chunks.

struct Product {
    const u8* in;       // stripes x k strips
    u8* out;            // stripes x out_rows strips
    const uint4* low;   // [k][out_rows]: tables of bits 0-2 (x, y) and 3-5 (z, w)
    const u32* high;    // [k][out_rows]: table of bits 6-7
    u64 strip;          // bytes
    u32 k;
    u32 rows;           // rows of this tile, at most MT
    u32 row0;           // first row of this tile
    u32 out_rows;       // rows of the matrix
    u32 stripes;
    u32 chunk;          // input strips whose coefficients fit into shared memory
};

// Bytes `at .. at + 16` of a strip, of which `valid` exist; any alignment.
static __device__ OUTLINED uint4 load_bytes(const u8* p, u32 valid) {
    u32 w[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 i = 0; i < 16; i++)
        if (i < valid) w[i / 4] |= (u32)p[i] << (8 * (i % 4));
    uint4 r;
    r.x = w[0];
    r.y = w[1];
    r.z = w[2];
    r.w = w[3];
    return r;
}

static __device__ OUTLINED void store_bytes(u8* p, uint4 v, u32 valid) {
    const u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 i = 0; i < 16; i++)
        if (i < valid) p[i] = (u8)(w[i / 4] >> (8 * (i % 4)));
}

// Three bits of each byte of two words as selectors.
DEVICE u32 pair3(u32 a, u32 b) { return (a & 0x07070707u) | ((b << 4) & 0x70707070u); }

template <int MT, bool WHOLE>
DEVICE void product(const Product& job) {
    DYNAMIC_SHARED(uint4, shared);
    uint4* low = shared;                               // [chunk][MT]
    u32* high = (u32*)(shared + (u64)job.chunk * MT);  // [chunk][MT]
    const u64 units = (job.strip + 15) / 16;
    bool loaded = false;
    for (u32 stripe = blockIdx.y; stripe < job.stripes; stripe += gridDim.y) {
        for (u64 base = (u64)blockIdx.x * blockDim.x; base < units; base += (u64)gridDim.x * blockDim.x) {
            const u64 at = (base + threadIdx.x) * 16;
            const bool active = at < job.strip;
            const u32 valid = WHOLE || job.strip - at >= 16 ? 16 : (u32)(job.strip - at);
            u32 sum[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++) sum[m][0] = sum[m][1] = sum[m][2] = sum[m][3] = 0;
            const u8* source = job.in + (u64)stripe * job.k * job.strip + at;
            for (u32 first = 0; first < job.k; first += job.chunk) {
                const u32 count = job.k - first < job.chunk ? job.k - first : job.chunk;
                if (!loaded || job.chunk < job.k) {
                    __syncthreads();
                    for (u32 t = threadIdx.x; t < count * MT; t += blockDim.x) {
                        const u32 row = t % MT;
                        const u64 from = (u64)(first + t / MT) * job.out_rows + job.row0 + row;
                        const uint4 none = {0, 0, 0, 0};
                        low[t] = row < job.rows ? job.low[from] : none;
                        high[t] = row < job.rows ? job.high[from] : 0;
                    }
                    __syncthreads();
                    loaded = true;
                }
                if (!active) continue;
#pragma unroll 2
                for (u32 j = 0; j < count; j++, source += job.strip) {
                    const uint4 d = WHOLE ? *(const uint4*)source : load_bytes(source, valid);
                    const u32 l0 = pair3(d.x, d.y), l1 = pair3(d.z, d.w);
                    const u32 m0 = ((d.x >> 3) & 0x07070707u) | ((d.y << 1) & 0x70707070u);
                    const u32 m1 = ((d.z >> 3) & 0x07070707u) | ((d.w << 1) & 0x70707070u);
                    const u32 h0 = ((d.x >> 6) & 0x03030303u) | ((d.y >> 2) & 0x30303030u);
                    const u32 h1 = ((d.z >> 6) & 0x03030303u) | ((d.w >> 2) & 0x30303030u);
                    const uint4* row_low = low + (u64)j * MT;
                    const u32* row_high = high + (u64)j * MT;
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        const uint4 t = row_low[m];
                        const u32 u = row_high[m];
                        sum[m][0] ^= __byte_perm(t.x, t.y, l0) ^ __byte_perm(t.z, t.w, m0) ^ __byte_perm(u, u, h0);
                        sum[m][1] ^= __byte_perm(t.x, t.y, l0 >> 16) ^ __byte_perm(t.z, t.w, m0 >> 16) ^
                                     __byte_perm(u, u, h0 >> 16);
                        sum[m][2] ^= __byte_perm(t.x, t.y, l1) ^ __byte_perm(t.z, t.w, m1) ^ __byte_perm(u, u, h1);
                        sum[m][3] ^= __byte_perm(t.x, t.y, l1 >> 16) ^ __byte_perm(t.z, t.w, m1 >> 16) ^
                                     __byte_perm(u, u, h1 >> 16);
                    }
                }
            }
            if (!active) continue;
            u8* target = job.out + ((u64)stripe * job.out_rows + job.row0) * job.strip + at;
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint4 r;
                r.x = __byte_perm(sum[m][0], sum[m][1], 0x6420);
                r.y = __byte_perm(sum[m][0], sum[m][1], 0x7531);
                r.z = __byte_perm(sum[m][2], sum[m][3], 0x6420);
                r.w = __byte_perm(sum[m][2], sum[m][3], 0x7531);
                if (m < (int)job.rows) {
                    if (WHOLE)
                        *(uint4*)(target + m * job.strip) = r;
                    else
                        store_bytes(target + m * job.strip, r, valid);
                }
            }
        }
    }
}

#define PRODUCT(MT) \
    extern "C" __global__ void __launch_bounds__(256) gf_product_##MT(Product job) { product<MT, true>(job); }
PRODUCT(1)
PRODUCT(2)
PRODUCT(4)
PRODUCT(6)
PRODUCT(8)
PRODUCT(10)
// Strips that are no multiple of 16 bytes.
extern "C" __global__ void __launch_bounds__(256) gf_product_any(Product job) { product<4, false>(job); }
