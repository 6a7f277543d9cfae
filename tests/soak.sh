#!/bin/sh
# soak.sh RUNS LOAD [ARG...]: runs the whole suite again and again, beside LOAD
# processes that do nothing but compute, and prints what each run took. It ends with
# the first failure. NHC_GPU_TESTS names the tier, ARGs go to go test.
set -eu
cd "$(dirname "$0")/.."
runs=$1 load=$2
shift 2

busy=
trap 'kill $busy 2>/dev/null || :' EXIT
trap 'exit 1' HUP INT TERM
for _ in $(seq "$load"); do
  sh -c 'while :; do :; done' &
  busy="$busy $!"
done

log=$(mktemp)
first=$(date +%s)
for run in $(seq "$runs"); do
  began=$(date +%s)
  if ! "${GO:-go}" test -count=1 "$@" ./... >"$log" 2>&1; then
    cat "$log"
    echo "soak: run $run of $runs failed after $(($(date +%s) - began)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
    exit 1
  fi
  echo "soak: run $run of $runs passed in $(($(date +%s) - began)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
done
rm -f "$log"
echo "soak: $runs runs in a row without a failure in $(($(date +%s) - first)) s, beside $load busy processes on $(nproc) CPUs"
