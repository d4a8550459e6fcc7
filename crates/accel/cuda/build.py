#!/usr/bin/env python3
"""Compiles the kernels to PTX with pinned tools: python3 crates/accel/cuda/build.py [--check]

The compiler is NVRTC from the wheels in PINNED, put into a virtual environment under target/ (200 MB,
no CUDA installation and no GPU needed). Each PTX file begins with the SHA-256 of what it was made from,
which a test compares with the sources. Every file is then assembled by ptxas for the architectures in
ASSEMBLED: what does not assemble is not written, and registers and spills are printed.

--check compiles and compares with what is committed instead of writing.
"""
import ctypes, hashlib, os, pathlib, re, subprocess, sys, venv

PINNED = ["nvidia-cuda-nvrtc==13.0.88", "nvidia-cuda-nvcc==13.0.88"]
KERNELS = ["gf", "sha2", "sha3", "blake3", "crc32c"]
TARGET = 75
ASSEMBLED = ["sm_75", "sm_80", "sm_90", "sm_100"]
# The kernels use nothing newer than this PTX, so older drivers can load them too.
PTX_VERSION = "6.5"

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def tools():
    at = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "nvrtc"
    if not (at / "bin/python").exists():
        venv.create(at, with_pip=True)
    subprocess.run([at / "bin/pip", "install", "--quiet", *PINNED], check=True)
    found = lambda name: next(at.glob(f"lib/python*/site-packages/nvidia/*/{name}"))
    builtins = found("lib/libnvrtc-builtins.so.13.0")
    ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(found("lib/libnvrtc.so.13"))), found("bin/ptxas")


def compile_source(nvrtc, name, source):
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None) == 0
    options = [f"--gpu-architecture=compute_{TARGET}".encode(), b"-std=c++17", b"--diag-suppress=177"]
    result = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if log.value.strip():
        print(log.value.decode())
    if result:
        sys.exit(1)
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    return text.value.decode()


def lowered(ptx):
    ptx = re.sub(r"^\.version .*$", f".version {PTX_VERSION}", ptx, flags=re.M)
    # A hint of newer versions that changes no result.
    return re.sub(r'^\s*\.pragma "used_bytes_mask.*\n', "", ptx, flags=re.M)


def assemble(ptxas, name, path):
    for architecture in ASSEMBLED:
        done = subprocess.run([ptxas, "-v", f"-arch={architecture}", path, "-o", "/dev/null"],
                              capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} {architecture}: {done.stderr}")
        kernels = re.findall(r"Compiling entry function '(\w+)'.*?Function properties for \1\s+(\d+) bytes stack frame, "
                             r"(\d+) bytes spill stores.*?Used (\d+) registers", done.stderr, flags=re.S)
        for kernel, stack, spills, registers in kernels:
            print(f"{architecture:7} {kernel:20} {registers:>4} registers {stack:>5} bytes of stack {spills:>4} spilled")


def main():
    check = "--check" in sys.argv
    nvrtc, ptxas = tools()
    different = []
    for name in KERNELS:
        source = (HERE / "common.cuh").read_bytes() + (HERE / f"{name}.cu").read_bytes()
        head = (f"// Made by build.py from common.cuh and {name}.cu with {PINNED[0]}; do not edit.\n"
                f"// source-sha256: {hashlib.sha256(source).hexdigest()}\n")
        ptx = head + lowered(compile_source(nvrtc, name + ".cu", source))
        path = HERE / "ptx" / f"{name}.ptx"
        if check:
            if path.read_text() != ptx:
                different.append(name)
            continue
        scratch = path.with_suffix(".new")
        scratch.write_text(ptx)
        assemble(ptxas, name, scratch)
        scratch.replace(path)
    if different:
        sys.exit(f"not what is committed: {', '.join(different)}")


main()
