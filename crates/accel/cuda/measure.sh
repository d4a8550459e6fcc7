#!/bin/sh
# Everything that is to be shown on a GPU, in one command:  measure.sh OUT
#
# Looks for the program and the test program in target/ (or ASHLAR=... and ACCEL_TEST=...), built before by
#     cargo build --release && cargo test -p ashlar-accel --features cuda --no-run
# and for compute-sanitizer in PATH and /usr/local/cuda/bin (or SANITIZER=...). MILLISECONDS (default 500) is
# the time for each figure; all of it takes about five minutes. Ends with 1 if a kernel was wrong; figures are not judged here.
set -u
out=${1:?a folder for the results}
mkdir -p "$out"
root=$(cd "$(dirname "$0")/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
program=${ASHLAR:-$target/release/ashlar}
tests=${ACCEL_TEST:-$(find "$target/debug/deps" -maxdepth 1 -name 'device-*' -perm -u+x ! -name '*.d' -exec ls -t {} + | head -1)}
sanitizer=${SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)}
milliseconds=${MILLISECONDS:-500}
failed=0

{
    date -u
    uname -srm
    nvidia-smi
    git -C "$root" log -1 --format='commit %H'
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.max.sm --format=csv
} >"$out/machine.txt" 2>&1

"$tests" --group machine >"$out/kernels.txt" 2>&1 || failed=1
grep -q 'on the GPU: ' "$out/kernels.txt" || failed=1
grep -E '^(GPU|no GPU|test)' "$out/kernels.txt"

if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck; do
        echo "== $tool"
        timeout 100 "$sanitizer" --tool "$tool" --error-exitcode 9 "$tests" --group machine 2>&1
        result=$?
        # 9: it found something. Others: it could not run here; the text says why.
        [ $result -eq 9 ] && failed=1
    done >"$out/sanitizer.txt"
    grep -E '^(== |========= ERROR|========= RACECHECK)' "$out/sanitizer.txt"
else
    echo 'no compute-sanitizer here' | tee "$out/sanitizer.txt"
fi

bench() {
    file=$1
    shift
    {
        echo "ashlar bench $*"
        "$program" bench "$@" 2>&1
    } | tee -a "$out/$file.txt"
}
bench codec codec --accelerator cuda --time "$milliseconds"
bench digest digest --accelerator cuda --block 4K --block 16K --block 64K --time "$milliseconds"
for batch in 4M 8M 16M; do
    for slots in 4 8; do
        bench sweep codec --accelerator cuda --batch $batch --slots $slots \
            --shape 20+4 --shape 20+8 --shape 20+20 --shape 80+20 --memory 64M --time $((milliseconds / 2))
    done
done
"$program" bench codec --accelerator cuda --time "$milliseconds" -j >"$out/codec.json"
"$program" bench digest --accelerator cuda --time "$milliseconds" -j >"$out/digest.json"
exit $failed
