#!/bin/sh
# marked.sh All|Long ARG...: runs go test with these arguments only for the tests of a tier, so that
# a tier does not repeat the one below it.
set -eu
cd "$(dirname "$0")/../.."
mark=tier.$1
shift
files=$(grep -rl --include='*_test.go' "	$mark(t)" . || true)
[ -n "$files" ] || exit 0
# shellcheck disable=SC2086  # a list of words
tests=$(awk -v mark="$mark(t)" '/^func Test/ { sub(/\(.*/, "", $2); name = $2 } $1 == mark { print name }' $files | sort -u | paste -sd'|')
# shellcheck disable=SC2086
packages=$(dirname $files | sort -u)
# go test starts packages in the order of its arguments: those with the longest waits come first.
first=$(echo "$packages" | grep -x -e ./cmd/nhc-gpu -e ./tests/slurm -e ./tests/monitor || true)
# shellcheck disable=SC2086
exec "${GO:-go}" test -count=1 -run "^($tests)\$" "$@" $first $packages
