#!/bin/sh
# soak.sh RUNS LOAD: runs the whole suite repeatedly, beside LOAD processes that only compute, and
# prints the duration of each run. It ends at the first run that fails. It builds the tests once.
# NHC_GPU_TESTS names the tier.
set -eu
cd "$(dirname "$0")/.."
runs=$1 load=$2

busy= dir=$(mktemp -d)
trap 'kill $busy 2>/dev/null || :; rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
go=${GO:-go}
# The package with the longest waits starts first.
for package in ./tests/slurm $($go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...); do
  package=$(cd "$package" && pwd)
  grep -qsx "$package" "$dir/packages" && continue
  echo "$package" >>"$dir/packages"
  mkdir -p "$dir/bin$package"
  $go test -c -ldflags=-w -o "$dir/bin$package/test" "$package"
done

for _ in $(seq "$load"); do
  sh -c 'while :; do :; done' &
  busy="$busy $!"
done

cat >"$dir/one" <<'EOF'
dir=$(dirname "$0") out=$(dirname "$0")/failed$(echo "$1" | tr / -)
cd "$1" && "$dir/bin$1/test" -test.timeout=30m -test.parallel=4 >"$out" 2>&1 && rm "$out"
EOF
first=$(date +%s)
for run in $(seq "$runs"); do
  began=$(date +%s)
  if ! xargs -P 8 -n 1 sh "$dir/one" <"$dir/packages"; then
    cat "$dir"/failed*
    echo "soak: run $run of $runs failed after $(($(date +%s) - began)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
    exit 1
  fi
  echo "soak: run $run of $runs passed in $(($(date +%s) - began)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
done
echo "soak: $runs runs in a row without a failure in $(($(date +%s) - first)) s, beside $load busy processes on $(nproc) CPUs"
