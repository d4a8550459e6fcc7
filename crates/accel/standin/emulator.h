// A test tool: enough of CUDA's device language for the kernels of this crate, in plain C++. It says
// whether a kernel computes the right bytes inside its memory; it says nothing about speed, about races
// between warps that only a GPU's memory model allows, or about what ptxas makes of the code.
//
// Every thread of a block is a fiber; the fibers of a block run one at a time in random order between
// barriers, the blocks of a grid one at a time in random order. Shared memory begins as noise. A barrier
// that some threads never reach ends the process with a message.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define __device__
#define __global__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(T, name) T* name = (T*)emulator::shared_memory()

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
};

namespace emulator {
struct Indices {
    dim3 thread, block, block_size, grid_size;
};
extern Indices current;
void* shared_memory();
void wait_block();
void wait_warp();
unsigned lane();
uint32_t& exchange(unsigned lane);

// Runs a grid; `body` is the kernel with its arguments.
void run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body, uint64_t seed);

// Makes a body of a kernel and the arguments of a launch, which are copied.
using Binder = std::function<void()> (*)(void** arguments);
struct Registered {
    Registered(const char* name, Binder bind);
};
Binder find(const char* name);

template <class... A, size_t... I>
std::function<void()> captured(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    std::tuple<A...> copied(*(std::remove_cv_t<A>*)arguments[I]...);
    return [kernel, copied] { std::apply(kernel, copied); };
}
template <class... A>
std::function<void()> captured(void (*kernel)(A...), void** arguments) {
    return captured(kernel, arguments, std::index_sequence_for<A...>{});
}
}  // namespace emulator

#define EMULATED(kernel) \
    static emulator::Registered registered_##kernel(#kernel, [](void** a) { return emulator::captured(&kernel, a); });

#define threadIdx (emulator::current.thread)
#define blockIdx (emulator::current.block)
#define blockDim (emulator::current.block_size)
#define gridDim (emulator::current.grid_size)

static inline void __syncthreads() { emulator::wait_block(); }
static inline void __syncwarp() { emulator::wait_warp(); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned selector = selectors >> (4 * i) & 15;
        unsigned byte = bytes >> (8 * (selector & 7)) & 255;
        if (selector & 8) byte = byte & 0x80 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    n &= 31;
    return n ? high << n | low >> (32 - n) : high;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    n &= 31;
    return n ? low >> n | high << (32 - n) : low;
}
static inline unsigned __shfl_xor_sync(unsigned, unsigned value, int mask) {
    const unsigned lane = emulator::lane();
    emulator::exchange(lane) = value;
    emulator::wait_warp();
    const unsigned result = emulator::exchange(lane ^ mask);
    emulator::wait_warp();
    return result;
}
