#!/bin/bash
# acceptance.sh exercises nhc-gpu on a machine with one real NVIDIA GPU, as root, in less than nine
# minutes, without network. make device-kit puts it, with the files that it needs, into one
# directory:
#
#   ./acceptance.sh [OUT]      OUT: where the results go, acceptance-RESULTS by default
#
# OUT/summary.txt has a line for each result: PASS; FAIL; LOOK, which a person should judge; INFO.
# The other files are raw logs. Serials, UUIDs and the host's name are replaced in all of them.
# It changes no setting of the GPU and does not reset the GPU. It must be free of other work.
# The exit status is 0, 1 if there is a FAIL, 3 if there is no GPU.
#
# For the test over fake libraries: WORDS (settings for nhc-gpu), SMI (nvidia-smi), FAKE=1 (small
# sizes, short waits).
set -u
here=$(dirname "$(readlink -f "$0")")
NHC=$here/nhc-gpu YARD=$here/yardstick READ=$here/readings
SMI=${SMI:-nvidia-smi} FAKE=${FAKE:-}
read -ra words <<<"${WORDS:-}"
out=${1:-acceptance-results}
mkdir -p "$out" || exit 1
out=$(readlink -f "$out")
summary=$out/summary.txt
: >"$summary"
tmp=$(mktemp -d)
node=nhc-gpu-acceptance # keeps its memory apart from the node's own
trap 'rm -rf "$tmp" "/run/nhc-gpu/$node" "/var/lib/nhc-gpu/$node"' EXIT

budget=520 # seconds
limit=150  # of one active test
hold=12 during=25 soak=15 settle=3
sizes=() matrix=() square=()
if [ -n "$FAKE" ]; then
  limit=60 hold=4 during=20 soak=3 settle=1 sizes=(-b 64K) square=(-n 128) matrix=(-n 128 -t 0.05)
fi

say() { printf '%-4s %4ds %s\n' "$1" "$SECONDS" "${*:2}" | tee -a "$summary"; }
# is TEXT COMMAND...: PASS if the command succeeds
is() { if "${@:2}" >/dev/null 2>&1; then say PASS "$1"; else say FAIL "$1"; fi; }
isnt() { if "${@:2}" >/dev/null 2>&1; then say FAIL "$1"; else say PASS "$1"; fi; }
# at_least TEXT VALUE YARDSTICK PART: PASS if VALUE is at least that part of the yardstick
at_least() {
  if [ -z "$2" ] || [ -z "$3" ]; then
    say LOOK "$1: ${2:-nothing measured}, the yardstick has ${3:-nothing}"
  elif awk -v v="$2" -v y="$3" -v p="$4" 'BEGIN { exit !(v + 0 >= p * y) }'; then
    say PASS "$1: $2, the yardstick has $3 (want $4 of it)"
  else
    say FAIL "$1: $2, the yardstick has $3 (want $4 of it)"
  fi
}
time_left() { [ $((budget - SECONDS)) -gt "$1" ] || { say LOOK "left out for lack of time: $2"; return 1; }; }

# Run it as slurmd does, with variables that it must ignore.
nhc() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin CUDA_VISIBLE_DEVICES=7 NVIDIA_VISIBLE_DEVICES=none \
    NCCL_ALGO=none LD_LIBRARY_PATH=/nonexistent "$NHC" "$@" SLURMD_NODENAME=$node "${words[@]}"
}
smi() { "$SMI" --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -1; }
settings() { smi persistence_mode,compute_mode,power.limit,ecc.mode.current,clocks.max.sm,clocks.applications.gr,mig.mode.current; }
xids() { dmesg 2>/dev/null | grep -c 'NVRM: Xid'; }
# holders: processes of this nhc-gpu that have a library of the driver loaded
holders() {
  local maps
  for maps in $(grep -lE 'libcuda|libnvidia-ml' /proc/[0-9]*/maps 2>/dev/null); do
    [ "$(readlink "${maps%maps}exe")" = "$NHC" ] && echo "$maps"
  done
  true
}

# 1. Is there a GPU?
say INFO "$("$NHC" --version 2>&1 | head -1), $(getconf GNU_LIBC_VERSION), kernel $(uname -r), $(nproc) CPUs"
"$SMI" -q -x >"$tmp/q.xml" 2>"$tmp/smi.err" || cat "$tmp/q.xml" >>"$tmp/smi.err"
# shellcheck disable=SC2024  # the redirection is meant to be this user's
{ uname -a; cat /etc/os-release; "$SMI"; "$SMI" -q; "$SMI" topo -m; "$SMI" nvlink -s; ldconfig -p | grep -E 'cuda|nvidia|nccl|cublas'; dmesg | grep -iE 'nvrm|nvidia' | tail -50; } >"$out/node.txt" 2>&1
look() {
  nhc --check --json -e 'check_gpu_count' >"$tmp/first.json" 2>"$tmp/first.err"
  "$READ" rows "$tmp/first.json" >"$tmp/first"
}
look
# A library elsewhere needs a setting: nhc-gpu ignores LD_LIBRARY_PATH, and does not search the
# packages of pip.
if grep -qE '^fact no (NVML library|CUDA library|cuBLASLt|NCCL):' "$tmp/first" && [[ ${words[*]} != *LIBRARY_DIRS=* ]]; then
  dirs=${LD_LIBRARY_PATH:-}
  for dir in /usr/local/lib/python3*/*-packages/nvidia/*/lib /usr/lib/python3*/*-packages/nvidia/*/lib /opt/*/lib/python3*/site-packages/nvidia/*/lib; do
    [ -d "$dir" ] && dirs=$dirs${dirs:+:}$dir
  done
  if [ -n "$dirs" ]; then
    words+=("LIBRARY_DIRS=$dirs")
    say LOOK "a library is not in ld.so's paths nor in a known place: this run adds LIBRARY_DIRS=${dirs:0:200}"
    look
  fi
fi
if ! grep -q '^fact yes gpu0' "$tmp/first"; then
  say LOOK "no GPU: nvidia-smi says \"$(head -c 100 "$tmp/smi.err" | tr '\n' ' ')\", nhc-gpu: $(grep -m1 ' NVML: ' "$tmp/first")"
  say LOOK "nothing was tested: this kit needs a machine with an NVIDIA GPU and its driver"
  exit 3
fi
gpus=$(grep -c '^fact yes gpu[0-9]' "$tmp/first")
say INFO "$gpus GPU: $(smi name), driver $(smi driver_version), VBIOS $(smi vbios_version), $(smi memory.used) MiB in use"
[ "$gpus" = 1 ] || say LOOK "$gpus GPUs: the tests of processes and of settings look at the first alone"
CUDA=$(sed -n 's/^fact yes CUDA library: \([^,( ]*\).*/\1/p' "$tmp/first")
grep -E '^fact (yes|no) (NVML library|CUDA library|cuBLASLt|NCCL|DCGM library|perftest)' "$tmp/first" | while read -r _ found text; do
  say INFO "library, found: $found, ${text:0:150}"
done
is "libcuda is found: $CUDA" test -e "$CUDA"
has_lt=$(grep -c '^fact yes cuBLASLt' "$tmp/first")
[ "$has_lt" -gt 0 ] || say LOOK "cuBLASLt is not found: LIBRARY_DIRS=DIR in WORDS names its directory"
before_settings=$(settings) before_xids=$(xids) before_memory=$(smi memory.used)

# 2. What needs no load
is "the binary runs on the node" nhc --version
if [ -z "$FAKE" ]; then
  timeout 90 "$NHC" selftest >"$tmp/selftest" 2>&1
  code=$?
  is "selftest: $(tail -1 "$tmp/selftest" | cut -c1-120)" test $code = 0
fi
checks="count driver recovery ecc remap mode persistence vbios temp power clocks throttle pcie nvlink fabric procs xid"
for c in $checks; do echo "* || check_gpu_$c"; done >"$tmp/passive.conf"
printf '* || %s\n' check_pcie_aer check_hw_topology check_ib_ports check_dcgm_health check_hw_mcelog check_hw_edac >>"$tmp/passive.conf"
{ nhc topo; nhc platforms | head -60; nhc plan -c "$tmp/passive.conf"; } >"$out/passive.log" 2>&1
for round in 1 2 3; do
  began=$SECONDS
  nhc --check --json -c "$tmp/passive.conf" -t 60 >"$tmp/passive.json" 2>>"$out/passive.log"
  code=$?
  "$READ" rows "$tmp/passive.json" >"$tmp/passive"
  cat "$tmp/passive" "$tmp/passive.json" >>"$out/passive.log"
  say INFO "passive checks, run $round: exit status $code, $((SECONDS - began)) s, $(grep -c '^ok' "$tmp/passive") ok, $(grep -c '^skip' "$tmp/passive") skipped"
done
is "passive checks: a result of each" test "$(grep -cE '^(ok|skip|warn|fail|unknown) ' "$tmp/passive")" -ge "$(wc -l <"$tmp/passive.conf")"
grep -E '^(warn|fail|unknown) ' "$tmp/passive" | while read -r line; do say LOOK "passive check on a GPU that should be healthy: ${line:0:180}"; done
is "the platform is recognised" grep -q '^fact yes platform' "$tmp/passive"

# 3. Every value of NVML against nvidia-smi
nvml=$(printf '%s\n' "${words[@]}" | sed -n 's/^NVML_LIBRARY=//p')
nvml=${nvml:-$(sed -n 's/^fact yes NVML library: \([^,( ]*\).*/\1/p' "$tmp/first")}
"$SMI" -q -x >"$tmp/q.xml" 2>>"$out/passive.log"
"$READ" compare "$nvml" "$tmp/q.xml" "$out/nvml.json" >"$tmp/compare" 2>&1
is "NVML is read and compared" grep -q '^INFO nvml: [1-9]' "$tmp/compare"
while read -r verdict text; do say "$verdict" "$text"; done <"$tmp/compare"
cp "$tmp/q.xml" "$out/nvidia-smi.xml"

# 4. Yardsticks
if [ -n "$FAKE" ]; then "$YARD" "$CUDA" bw 4; else "$YARD" "$CUDA" bw; fi >"$tmp/yardstick" 2>&1
is "the yardstick runs" grep -q '^launch' "$tmp/yardstick"
cat "$tmp/yardstick" >"$out/active.log"
yard() { awk -v name="$1" '$1 == name { print $2 }' "$tmp/yardstick"; }
say INFO "yardstick: cuInit $(yard cuinit) s, context $(yard context) s, from the host $(yard h2d), to the host $(yard d2h), within $(yard d2d) GB/s, launch $(yard launch) us, JIT $(yard jit) ms"
torch=
if [ -z "$FAKE" ] && command -v python3 >/dev/null; then
  torch=$(timeout 60 python3 - 2>>"$tmp/yardstick" <<'PY'
import time
import torch as t
a = t.randint(-255, 256, (8192, 8192), device="cuda").bfloat16()
b = t.randint(-255, 256, (8192, 8192), device="cuda").bfloat16()
for _ in range(20): a @ b
t.cuda.synchronize()
began = time.time()
for _ in range(60): a @ b
t.cuda.synchronize()
print("%.1f" % (2 * 8192**3 * 60 / (time.time() - began) / 1e12))
PY
  )
  say INFO "yardstick: PyTorch bf16, n = 8192: ${torch:-not there} TFLOP/s"
fi

# 5. Each active test
# act CHECK...: runs it; its results are in $tmp/rows
act() {
  local began=$SECONDS code
  nhc --check --json -t "$limit" -e "$*" >"$tmp/act.json" 2>"$tmp/act.err"
  code=$?
  "$READ" rows "$tmp/act.json" | grep -v '^fact' >"$tmp/rows"
  { echo "=== $*: exit status $code, $((SECONDS - began)) s"; cat "$tmp/rows" "$tmp/act.json" "$tmp/act.err"; } >>"$out/active.log"
  say INFO "$*: exit status $code, $((SECONDS - began)) s; $(grep -vE '^ok' "$tmp/rows" | head -2 | cut -c1-170 | tr '\n' ';')"
}
rate() { grep -F "$1" "$tmp/rows" | grep -oE 'gpu0 [0-9.]+' | head -1 | cut -d' ' -f2; }
failed() { grep -qE '^(fail|unknown)' "$tmp/rows"; }

act check_gpu_bandwidth "${sizes[@]}"
isnt "bandwidth: no failure" failed
at_least "from the host, GB/s" "$(rate 'copy from the host')" "$(yard h2d)" 0.95
at_least "to the host, GB/s" "$(rate 'copy to the host')" "$(yard d2h)" 0.95
act check_gpu_membw "${sizes[@]}"
isnt "memory bandwidth: no failure" failed
at_least "copy kernel, GB/s" "$(rate 'by copy')" "$(yard d2d)" 0.95
at_least "triad kernel, GB/s" "$(rate 'by triad')" "$(yard d2d)" 0.90
act check_gpu_memtest
isnt "memory test: no failure" failed
read -r tested of <<<"$(grep -oE '[0-9]+ MiB of [0-9]+' "$tmp/rows" | head -1 | awk '{ print $1, $4 }')"
at_least "memory tested, MiB" "${tested:-}" "${of:-}" 0.90
act check_gpu_launch
isnt "launch: no failure" failed
at_least "launch latency of the yardstick, us, against nhc-gpu's" "$(yard launch)" "$(rate 'launch of an empty kernel, us')" 0.70
act check_gpu_gemm --own "${matrix[@]}"
isnt "own GEMM: no failure, no wrong product" failed
at_least "own bf16, TFLOP/s (today's kernel is bound by shared memory on Hopper)" "$(rate 'bf16 own')" "${torch:-}" 0.30
if [ "$has_lt" -gt 0 ]; then
  act check_gpu_gemm "${matrix[@]}"
  isnt "cuBLASLt GEMM: no failure, no wrong product" failed
  at_least "cuBLASLt bf16, TFLOP/s" "$(rate 'bf16 cublaslt')" "${torch:-}" 0.90
fi
grep -hoE '(fp64|fp32|tf32|bf16|fp16|fp8) (own|cublaslt), n [0-9]+, TFLOP/s: gpu0 [0-9.]+' "$out/active.log" | sort -u | while read -r line; do say INFO "rate: $line"; done

# Power that a soak draws, and the counters of what held the clocks down
counters() { "$SMI" -q -x 2>/dev/null | sed -n 's/.*<clocks_event_reasons_counters_\(sw_power_cap\|sw_thermal_slowdown\)> *\([0-9]*\).*/\1 \2/p'; }
counters >"$tmp/counters.before"
(while [ ! -e "$tmp/soaked" ]; do smi power.draw; sleep 0.5; done >"$tmp/watts") &
sampler=$!
act check_gpu_soak "${square[@]}" $soak
touch "$tmp/soaked"
wait "$sampler"
counters >"$tmp/counters.after"
isnt "soak: no failure" failed
at_least "highest power of the soak, W, against the limit" "$(sort -n "$tmp/watts" | tail -1)" "$(smi power.limit)" 0.80
read -r capped heated <<<"$(awk 'NR == FNR { old[$1] = $2; next } { d[$1] = $2 - old[$1] } END { print d["sw_power_cap"] + 0, d["sw_thermal_slowdown"] + 0 }' "$tmp/counters.before" "$tmp/counters.after")"
say INFO "during the soak: $capped us held by the power cap, $heated us by software's thermal limit"
if [ ! -s "$tmp/counters.after" ]; then
  say LOOK "nvidia-smi does not show the counters of the power cap and of heat"
elif [ "$capped" -gt 1000 ] && awk -v a="$capped" -v b="$heated" 'BEGIN { exit !(b > 0.9 * a && b < 1.1 * a) }'; then
  say LOOK "both counters move alike: this driver reports the power cap as heat"
else
  say PASS "the counters of the power cap and of heat differ, or stand still"
fi

printf '* || %s\n' "check_gpu_membw ${sizes[*]}" "check_gpu_gemm --types bf16 ${matrix[*]}" check_gpu_launch "check_gpu_gemm --types fp64 ${matrix[*]}" "check_gpu_bandwidth ${sizes[*]}" >"$tmp/all.conf"
nhc --check --json -a -t 200 -c "$tmp/all.conf" >"$tmp/act.json" 2>>"$out/active.log"
"$READ" rows "$tmp/act.json" | grep -v '^fact' >"$tmp/rows"
cat "$tmp/rows" >>"$out/active.log"
isnt "five active tests in one worker: no failure" failed
for line in "check_nccl all_reduce" check_comp_comm_overlap check_ib_bw "check_dcgm_diag 1" "check_cpu_stream -t 15" "check_disk_write -s 256M $tmp"; do
  [ -n "$FAKE" ] && [[ $line != check_nccl* && $line != check_comp* ]] && continue
  time_left 60 "$line" || continue
  read -ra argv <<<"$line"
  act "${argv[@]}"
  isnt "${argv[0]} on this machine: no failure" grep -q '^fail' "$tmp/rows"
done

# 6. Other processes; tests that are killed or stopped
left_over() {
  local end=$((SECONDS + 15))
  while [ -n "$(holders)" ] && [ $SECONDS -lt $end ]; do sleep 0.2; done
  is "$1: none of its processes is left" test -z "$(holders)"
  sleep "$settle"
  is "$1: the GPU's memory is free again ($(smi memory.used) MiB, before $before_memory)" test "$(smi memory.used)" -le $((before_memory + 64))
}
# begin: starts a long memory test and finds its worker
begin() {
  nhc --check --json -t 100 -e "check_gpu_memtest -n 100000 -t 60" >"$tmp/victim" 2>>"$out/safety.log" &
  job=$! main='' worker=''
  local end=$((SECONDS + 30)) p
  while [ -z "$worker" ] && [ $SECONDS -lt $end ]; do
    sleep 0.2
    for p in $(holders); do
      p=${p%/maps}
      p=${p#/proc/}
      grep -q libcuda "/proc/$p/maps" 2>/dev/null && worker=$p main=$(awk '/^PPid/ { print $2 }' "/proc/$p/status")
    done
  done
  is "a memory test runs (process $main, worker $worker)" test -n "$worker"
  sleep "$settle"
}
if [ -n "$CUDA" ] && time_left 130 "processes and signals"; then
  "$YARD" "$CUDA" hold $hold >>"$out/safety.log" &
  sleep "$settle"
  act check_gpu_launch
  is "a GPU that another process uses is left alone" grep -qE '^skip active\.(left|busy)' "$tmp/rows"
  wait $!
  began=$SECONDS
  nhc --check --json -t 100 -e "check_gpu_memtest -n 100000 -t $during" >"$tmp/act.json" 2>>"$out/safety.log" &
  job=$!
  sleep 5
  "$YARD" "$CUDA" hold $hold >>"$out/safety.log" &
  wait $job
  "$READ" rows "$tmp/act.json" | grep -v '^fact' | tee "$tmp/rows" >>"$out/safety.log"
  wait
  is "a test stops when another process comes ($((SECONDS - began)) s): $(head -1 "$tmp/rows" | cut -c1-120)" grep -q '^skip active\.stopped' "$tmp/rows"
  isnt "no GPU fails for it" grep -q '^fail' "$tmp/rows"
  for signal in KILL TERM; do
    begin
    kill -$signal "${main:-$job}" 2>/dev/null
    wait $job
    cat "$tmp/victim" >>"$out/safety.log"
    left_over "SIG$signal of nhc-gpu in a test"
  done
  begin
  kill -KILL "${worker:-$job}" 2>/dev/null
  wait $job
  cat "$tmp/victim" >>"$out/safety.log"
  "$READ" rows "$tmp/victim" | grep -v '^fact' >"$tmp/rows"
  is "SIGKILL of its worker is reported: $(head -1 "$tmp/rows" | cut -c1-120)" grep -qE '^(unknown|fail) probe\.died' "$tmp/rows"
  left_over "SIGKILL of its worker"
  if time_left 80 "SIGSTOP"; then
    nhc --check --json -t 100 -e "check_gpu_memtest -n 100000 -t 9" >"$tmp/victim" 2>>"$out/safety.log" &
    job=$! began=$SECONDS worker=''
    while [ -z "$worker" ] && [ $((SECONDS - began)) -lt 20 ]; do
      sleep 0.2
      worker=$(holders | grep -oE '[0-9]+' | while read -r p; do grep -q libcuda "/proc/$p/maps" 2>/dev/null && echo "$p"; done | head -1)
    done
    kill -STOP "${worker:-$job}" 2>/dev/null
    wait $job
    cat "$tmp/victim" >>"$out/safety.log"
    is "SIGSTOP of its worker: the run ends ($((SECONDS - began)) s)" test $((SECONDS - began)) -lt 60
    left_over "SIGSTOP of its worker"
  fi
fi

# 7. Leftovers
after_xids=$(xids)
dmesg 2>/dev/null | grep NVRM | tail -30 >>"${out}/safety.log"
if dmesg >/dev/null 2>&1; then is "no new Xid: $before_xids before, $after_xids now" test "$before_xids" = "$after_xids"; else say LOOK "the kernel's log cannot be read"; fi
is "the GPU's settings are what they were: $before_settings" test "$before_settings" = "$(settings)"
is "the test took $SECONDS s, want less than 540" test $SECONDS -lt 540
tail -n +1 "/var/lib/nhc-gpu/$node"/*.json >"$out/memory.txt" 2>/dev/null
say INFO "done: $(grep -c ^PASS "$summary") PASS, $(grep -c ^FAIL "$summary") FAIL, $(grep -c ^LOOK "$summary") LOOK"
"$READ" redact "$tmp/q.xml" "$out"/*
! grep -q ^FAIL "$summary"
