// A test tool: a stand-in for NVIDIA's driver library with the functions that this crate calls. Kernels run
// in the emulator. It is built by the tests and is no part of the program.
//
// Work on streams is put off: it runs, in random order between streams, only when somebody waits for an
// event or a stream or asks for its state. So a result that is read too early is not there yet, and a
// buffer that is freed too early is used after it was freed, which the address sanitizer reports.
//
// A test can have one call fail (see `standin_fault`) and can count calls and what was not given back.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "emulator.h"

typedef int Result;
typedef unsigned long long Address;
#define API extern "C" __attribute__((visibility("default")))

enum { INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, BAD_ORDINAL = 101, NOT_FOUND = 500, NOT_READY = 600 };
// How a chosen call fails: it returns the error; so do all later ones; its work fails when it runs, and all
// later calls; whoever waits, waits until `standin_release`.
// Or all goes well, and what it copies has a bit changed.
enum Mode { ONCE = 0, STICKY = 1, LATER = 2, HANG = 3, WRONG = 4 };

struct Event {
    bool recorded = true;
    std::chrono::steady_clock::time_point at;
};
struct Op {
    std::function<Result()> run;
};
struct Stream {
    std::deque<Op> ops;
};
struct Module {
    std::string text;
};
struct Function {
    std::string name;
    emulator::Binder bind;
};

namespace {
std::mutex lock;
std::condition_variable released;
std::mt19937_64 rng(1);
std::set<Stream*> streams;
std::map<std::string, long> live;  // what was made and not given back
std::map<void*, size_t> sizes;
size_t memory_used = 0, memory_limit = 1ull << 30;
long calls = 0, fault_at = 0, launches = 0;
int fault_code = 0, fault_mode = 0, sticky = 0, devices = 1;
bool fail_work = false, hung = false, flip = false;
std::string fault_name, failed_call;
std::map<std::string, long> counts;
std::map<std::string, long> kernel_launches;
thread_local void* current_context = nullptr;
char context;

// Counts a call; what it is to return if it is to fail.
Result enter(const char* name) {
    calls++;
    const long count = ++counts[name];
    if (sticky) return sticky;
    const bool now = fault_name.empty() ? calls == fault_at : fault_name == name && count == fault_at;
    if (!now) return 0;
    failed_call = name;
    if (fault_mode == HANG) {
        hung = true;
        return 0;
    }
    if (fault_mode == LATER) {
        fail_work = true;
        return 0;
    }
    if (fault_mode == WRONG) {
        flip = true;
        return 0;
    }
    if (fault_mode == STICKY) sticky = fault_code;
    return fault_code;
}
#define ENTER(name)                         \
    std::unique_lock<std::mutex> held(lock); \
    if (Result failed = enter(name)) return failed;

void put(Stream* stream, std::function<Result()> run) {
    if (fail_work) {
        fail_work = false;
        run = [] { return fault_code; };
    }
    stream->ops.push_back({std::move(run)});
}

// Runs the oldest piece of work of a random stream; false if there is none.
bool step() {
    std::vector<Stream*> ready;
    for (Stream* s : streams)
        if (!s->ops.empty()) ready.push_back(s);
    if (ready.empty() || sticky) return false;
    Stream* chosen = ready[rng() % ready.size()];
    Op op = std::move(chosen->ops.front());
    chosen->ops.pop_front();
    if (Result failed = op.run()) {
        sticky = failed;
        for (Stream* s : streams) s->ops.clear();
    }
    return true;
}

template <class Done>
Result wait_for(std::unique_lock<std::mutex>& held, Done done) {
    for (;;) {
        released.wait(held, [] { return !hung; });
        if (sticky) return sticky;
        if (done()) return 0;
        if (!step()) return sticky ? sticky : 0;
    }
}

Result allocate(void** out, size_t bytes, const char* what, size_t limit) {
    if (bytes == 0) return INVALID;
    if (memory_used + bytes > limit) return NO_MEMORY;
    void* memory = nullptr;
    if (posix_memalign(&memory, 4096, bytes)) return NO_MEMORY;
    memset(memory, 0xcd, bytes);
    sizes[memory] = bytes;
    memory_used += bytes;
    live[what]++;
    *out = memory;
    return 0;
}
Result release(void* memory, const char* what) {
    const auto found = sizes.find(memory);
    if (found == sizes.end()) return INVALID;
    memory_used -= found->second;
    sizes.erase(found);
    live[what]--;
    free(memory);
    return 0;
}
}  // namespace

// For the tests.

// Forgets faults, counts and errors; the order of work comes from `seed`.
API void standin_reset(unsigned long long seed) {
    std::lock_guard<std::mutex> held(lock);
    rng.seed(seed);
    calls = fault_at = launches = 0;
    fault_code = fault_mode = sticky = 0;
    fail_work = hung = flip = false;
    fault_name.clear();
    failed_call.clear();
    counts.clear();
    kernel_launches.clear();
    memory_limit = 1ull << 30;
    devices = 1;
}
// Call number `at` (of `name`, or of all if it is empty) fails with `code` in the given mode.
API void standin_fault(const char* name, long at, int code, int mode) {
    std::lock_guard<std::mutex> held(lock);
    fault_name = name;
    fault_at = at;
    fault_code = code;
    fault_mode = mode;
}
API void standin_release() {
    std::lock_guard<std::mutex> held(lock);
    hung = false;
    released.notify_all();
}
API void standin_machine(int device_count, size_t memory) {
    std::lock_guard<std::mutex> held(lock);
    devices = device_count;
    memory_limit = memory;
}
API long standin_calls(const char* name) {
    std::lock_guard<std::mutex> held(lock);
    return *name ? counts[name] : calls;
}
API long standin_launches(const char* kernel) {
    std::lock_guard<std::mutex> held(lock);
    return kernel_launches[kernel];
}
// How much of everything was made and not given back.
API long standin_live() {
    std::lock_guard<std::mutex> held(lock);
    long sum = 0;
    for (const auto& kind : live) sum += kind.second < 0 ? -kind.second : kind.second;
    return sum;
}
// The call that failed, into `out` (64 bytes); empty if none did.
API void standin_failed(char* out) {
    std::lock_guard<std::mutex> held(lock);
    snprintf(out, 64, "%s", failed_call.c_str());
}

// The driver.

API Result cuInit(unsigned) {
    ENTER("cuInit");
    return devices ? 0 : NO_DEVICE;
}
API Result cuDriverGetVersion(int* version) {
    ENTER("cuDriverGetVersion");
    *version = 13000;
    return 0;
}
API Result cuDeviceGetCount(int* count) {
    ENTER("cuDeviceGetCount");
    *count = devices;
    return 0;
}
API Result cuDeviceGet(int* device, int ordinal) {
    ENTER("cuDeviceGet");
    if (ordinal >= devices) return BAD_ORDINAL;
    *device = ordinal;
    return 0;
}
API Result cuDeviceGetName(char* name, int length, int) {
    ENTER("cuDeviceGetName");
    snprintf(name, (size_t)length, "stand-in (no GPU)");
    return 0;
}
API Result cuDeviceGetAttribute(int* value, int attribute, int) {
    ENTER("cuDeviceGetAttribute");
    *value = attribute == 16 ? 2 : attribute == 75 ? 9 : 0;
    return 0;
}
API Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    ENTER("cuMemGetInfo_v2");
    *total = memory_limit;
    *free_bytes = memory_limit > memory_used ? memory_limit - memory_used : 0;
    return 0;
}
API Result cuDevicePrimaryCtxRetain(void** out, int) {
    ENTER("cuDevicePrimaryCtxRetain");
    live["context"]++;
    *out = &context;
    return 0;
}
API Result cuDevicePrimaryCtxRelease_v2(int) {
    std::unique_lock<std::mutex> held(lock);
    live["context"]--;  // releasing succeeds or does not matter
    return enter("cuDevicePrimaryCtxRelease_v2");
}
API Result cuDevicePrimaryCtxSetFlags_v2(int, unsigned) {
    ENTER("cuDevicePrimaryCtxSetFlags_v2");
    return 0;
}
API Result cuCtxSetCurrent(void* c) {
    ENTER("cuCtxSetCurrent");
    current_context = c;
    return 0;
}
API Result cuCtxSynchronize() {
    ENTER("cuCtxSynchronize");
    return wait_for(held, [] {
        for (Stream* s : streams)
            if (!s->ops.empty()) return false;
        return true;
    });
}
API Result cuStreamCreate(void** out, unsigned) {
    ENTER("cuStreamCreate");
    Stream* s = new Stream;
    streams.insert(s);
    live["stream"]++;
    *out = s;
    return 0;
}
// What gives something back does so even when it fails, as far as the stand-in counts.
API Result cuStreamDestroy_v2(void* stream) {
    std::unique_lock<std::mutex> held(lock);
    streams.erase((Stream*)stream);
    delete (Stream*)stream;
    live["stream"]--;
    return enter("cuStreamDestroy_v2");
}
API Result cuStreamSynchronize(void* stream) {
    ENTER("cuStreamSynchronize");
    return wait_for(held, [stream] { return ((Stream*)stream)->ops.empty(); });
}
API Result cuEventCreate(void** out, unsigned) {
    ENTER("cuEventCreate");
    live["event"]++;
    *out = new Event;
    return 0;
}
API Result cuEventDestroy_v2(void* event) {
    std::unique_lock<std::mutex> held(lock);
    delete (Event*)event;
    live["event"]--;
    return enter("cuEventDestroy_v2");
}
API Result cuEventRecord(void* event, void* stream) {
    ENTER("cuEventRecord");
    Event* e = (Event*)event;
    e->recorded = false;
    put((Stream*)stream, [e] {
        e->recorded = true;
        e->at = std::chrono::steady_clock::now();
        return 0;
    });
    return 0;
}
API Result cuEventSynchronize(void* event) {
    ENTER("cuEventSynchronize");
    return wait_for(held, [event] { return ((Event*)event)->recorded; });
}
API Result cuEventElapsedTime(float* milliseconds, void* a, void* b) {
    ENTER("cuEventElapsedTime");
    if (!((Event*)a)->recorded || !((Event*)b)->recorded) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(((Event*)b)->at - ((Event*)a)->at).count();
    return 0;
}
API Result cuMemAlloc_v2(Address* out, size_t bytes) {
    ENTER("cuMemAlloc_v2");
    return allocate((void**)out, bytes, "device memory", memory_limit);
}
API Result cuMemFree_v2(Address memory) {
    std::unique_lock<std::mutex> held(lock);
    const Result freed = release((void*)memory, "device memory");
    const Result failed = enter("cuMemFree_v2");
    return failed ? failed : freed;
}
API Result cuMemHostAlloc(void** out, size_t bytes, unsigned) {
    ENTER("cuMemHostAlloc");
    return allocate(out, bytes, "pinned memory", memory_limit);
}
API Result cuMemFreeHost(void* memory) {
    std::unique_lock<std::mutex> held(lock);
    const Result freed = release(memory, "pinned memory");
    const Result failed = enter("cuMemFreeHost");
    return failed ? failed : freed;
}
API Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
    ENTER("cuMemcpyHtoDAsync_v2");
    put((Stream*)stream, [=] {
        memcpy((void*)to, from, bytes);
        return 0;
    });
    return 0;
}
API Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
    ENTER("cuMemcpyDtoHAsync_v2");
    const bool wrong = flip;
    flip = false;
    put((Stream*)stream, [=] {
        memcpy(to, (const void*)from, bytes);
        if (wrong) ((unsigned char*)to)[bytes / 2] ^= 4;
        return 0;
    });
    return 0;
}
API Result cuModuleLoadData(void** out, const void* image) {
    ENTER("cuModuleLoadData");
    const char* text = (const char*)image;
    if (!strstr(text, "\n.version ")) return 218;  // invalid PTX
    live["module"]++;
    *out = new Module{text};
    return 0;
}
API Result cuModuleUnload(void* module) {
    std::unique_lock<std::mutex> held(lock);
    delete (Module*)module;
    live["module"]--;
    return enter("cuModuleUnload");
}
// A kernel must be in the PTX that was loaded, and in the emulator.
API Result cuModuleGetFunction(void** out, void* module, const char* name) {
    ENTER("cuModuleGetFunction");
    const std::string entry = std::string(".entry ") + name + "(";
    const emulator::Binder bind = emulator::find(name);
    if (!bind || ((Module*)module)->text.find(entry) == std::string::npos) return NOT_FOUND;
    static std::map<std::string, Function> functions;
    *out = &(functions[name] = Function{name, bind});
    return 0;
}
API Result cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** arguments, void**) {
    ENTER("cuLaunchKernel");
    if (!gx || !gy || gy > 65535 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || shared > 49152) return INVALID;
    const Function* f = (const Function*)function;
    kernel_launches[f->name]++;
    const std::function<void()> body = f->bind(arguments);
    const uint64_t seed = rng();
    put((Stream*)stream, [=] {
        emulator::run({gx, gy, 1}, {bx, 1, 1}, shared, body, seed);
        return 0;
    });
    return 0;
}
API Result cuGetErrorName(Result code, const char** name) {
    static thread_local char text[32];
    snprintf(text, sizeof text, "STAND_IN_ERROR_%d", code);
    *name = text;
    return 0;
}
