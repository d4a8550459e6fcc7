// The kernels of ../cuda, compiled for the emulator.
#define ASHLAR_EMULATOR 1
#include "../cuda/common.cuh"
#include "../cuda/gf.cu"
#include "../cuda/sha2.cu"
#include "../cuda/sha3.cu"
#include "../cuda/blake3.cu"
#include "../cuda/crc32c.cu"
EMULATED(gf_product_1)
EMULATED(gf_product_2)
EMULATED(gf_product_4)
EMULATED(gf_product_6)
EMULATED(gf_product_8)
EMULATED(gf_product_10)
EMULATED(gf_product_any)
EMULATED(sha256_messages)
EMULATED(sha512_messages)
EMULATED(sha3_256_messages)
EMULATED(sha3_512_messages)
EMULATED(blake3_messages)
EMULATED(crc32c_messages)
