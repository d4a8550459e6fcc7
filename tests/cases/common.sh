# What every case begins with: the program A, a directory T of its own, a daemon and loop devices that are gone at the
# end, and how a case answers.
A=$(realpath "${A:-target/release/ashlar}"); T=$(mktemp -d); cd "$T"; N=q$$; LOOPS=; KIDS=; D=
export ASHLAR_SOCKET=$T/s
daemon() { "$A" daemon --state "$T/state" --memory 128M "$@" 2>>"$T/log" & D=$!
  for i in {1..100}; do "$A" list >/dev/null 2>&1 && return; sleep .1; done; }
stop() { kill "$D" 2>/dev/null; for i in {1..50}; do kill -0 "$D" 2>/dev/null || return; sleep .1; done; kill -9 "$D"; }
loop() { L=$(losetup -f --show "$@") || exit 77; LOOPS="$LOOPS $L"; }
clean() { for k in $KIDS; do kill -CONT $k; kill $k; done 2>/dev/null; [ "$D" ] && stop; mount | grep -o "$T/[^ ]*" | tac | xargs -r umount -l
  for l in $LOOPS; do losetup -d $l; done 2>/dev/null; cd /; rm -rf "$T"; }
trap clean EXIT; ok() { echo "ok: $*"; exit 0; }; bad() { echo "FAIL: $*"; exit 1; }; need() { for c; do command -v $c >/dev/null || { echo "skip: no $c"; exit 77; }; done; }
