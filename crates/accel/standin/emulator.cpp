// The fibers behind emulator.h. One grid runs at a time; the caller sees to that.
#include "emulator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
static void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
static void __asan_unpoison_memory_region(const void*, size_t) {}
#endif

// A context is where a stack stands. Switching saves the registers that a call keeps, on the stack.
#if defined(__x86_64__)
typedef void* Context;
extern "C" void emulator_switch(Context* from, Context to);
asm(R"(
    .text
    .type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulator_switch, . - emulator_switch
)");
static void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
    uintptr_t* top = (uintptr_t*)(((uintptr_t)stack + bytes) & ~(uintptr_t)15);
    *--top = 0;  // nothing to return to
    *--top = (uintptr_t)entry;
    for (int i = 0; i < 6; i++) *--top = 0;
    context = top;
}
static void change(Context& from, Context& to) { emulator_switch(&from, to); }
#else
#include <ucontext.h>
typedef ucontext_t Context;
static void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
static void change(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

namespace emulator {
Indices current;

namespace {
constexpr size_t STACK = 64 << 10;
enum class State { ready, at_block, at_warp, done };

struct Fiber {
    Context context;
    State state;
    void* fake_stack = nullptr;
    std::unique_ptr<char[]> stack{new char[STACK]};
};

std::vector<Fiber> fibers;
std::vector<uint32_t> exchanged;
std::unique_ptr<char[]> shared;
Context scheduler;
void* scheduler_fake_stack;
const void* scheduler_stack;
size_t scheduler_stack_size;
unsigned running;
const std::function<void()>* body_now;

void leave(State state) {
    Fiber& fiber = fibers[running];
    fiber.state = state;
    const Indices mine = current;
    __sanitizer_start_switch_fiber(state == State::done ? nullptr : &fiber.fake_stack, scheduler_stack,
                                   scheduler_stack_size);
    change(fiber.context, scheduler);
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack, &scheduler_stack_size);
    current = mine;
}

void enter() {
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
    (*body_now)();
    leave(State::done);
}

void resume(unsigned id) {
    running = id;
    Fiber& fiber = fibers[id];
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber.stack.get(), STACK);
    change(scheduler, fiber.context);
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
}

void run_block(dim3 grid, dim3 block, dim3 where, std::mt19937_64& random) {
    const unsigned threads = block.x;
    while (fibers.size() < threads) fibers.emplace_back();
    exchanged.assign((threads + 31) / 32 * 32, 0);
    std::vector<unsigned> order(threads);
    for (unsigned i = 0; i < threads; i++) {
        order[i] = i;
        Fiber& fiber = fibers[i];
        // What the last one to use this stack left there is no frame any more.
        __asan_unpoison_memory_region(fiber.stack.get(), STACK);
        prepare(fiber.context, fiber.stack.get(), STACK, enter);
        fiber.state = State::ready;
    }
    for (;;) {
        std::shuffle(order.begin(), order.end(), random);
        bool moved = false;
        for (unsigned i : order) {
            if (fibers[i].state != State::ready) continue;
            current = {{i, 0, 0}, where, block, grid};
            resume(i);
            moved = true;
        }
        unsigned alive = 0, waiting = 0;
        for (unsigned first = 0; first < threads; first += 32) {
            const unsigned end = std::min(first + 32, threads);
            unsigned here = 0, at_warp = 0;
            for (unsigned i = first; i < end; i++) {
                here += fibers[i].state != State::done;
                at_warp += fibers[i].state == State::at_warp;
                waiting += fibers[i].state == State::at_block;
            }
            alive += here;
            if (at_warp == 0 || at_warp != here) continue;
            for (unsigned i = first; i < end; i++)
                if (fibers[i].state == State::at_warp) fibers[i].state = State::ready;
            moved = true;
        }
        if (alive == 0) return;
        if (waiting == alive) {
            for (unsigned i = 0; i < threads; i++)
                if (fibers[i].state == State::at_block) fibers[i].state = State::ready;
            moved = true;
        }
        if (!moved) {
            fprintf(stderr, "emulator: threads wait at a barrier that others never reach\n");
            abort();
        }
    }
}

std::map<std::string, Binder>& registry() {
    static std::map<std::string, Binder> kernels;
    return kernels;
}
}  // namespace

void* shared_memory() { return shared.get(); }
void wait_block() { leave(State::at_block); }
void wait_warp() { leave(State::at_warp); }
unsigned lane() { return running % 32; }
uint32_t& exchange(unsigned lane) { return exchanged[running / 32 * 32 + lane % 32]; }

void run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<unsigned> order(grid.x * grid.y);
    for (unsigned i = 0; i < order.size(); i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    body_now = &body;
    for (unsigned i : order) {
        shared.reset(new char[shared_bytes]);
        for (size_t b = 0; b < shared_bytes; b++) shared[b] = (char)random();
        run_block(grid, block, {i % grid.x, i / grid.x, 0}, random);
    }
}

Registered::Registered(const char* name, Binder bind) { registry()[name] = bind; }
Binder find(const char* name) {
    const auto found = registry().find(name);
    return found == registry().end() ? nullptr : found->second;
}
}  // namespace emulator
