#!/bin/sh
# matrix.sh [RELEASE...]: runs this suite and tests/sweep on the Slurm of other Debian releases, each
# in a tree made by debootstrap and kept for the next time. By default trixie (24.11, which keeps a
# node's reason after RESUME) and forky (26.05, whose slurmd passes on whether the node is healthy).
# The tests and nhc-gpu are built here. The tests of this suite mostly wait, so those of all releases
# run at once; those of tests/sweep measure, and run on their own.
set -eu
cd "$(dirname "$0")/../.."

cache=${XDG_CACHE_HOME:-/var/cache}/nhc-gpu-test
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

say() { echo "test-slurm-matrix: $*"; }

# skip WHY: reports a release that is not tested; CI must not skip one.
skip() { say "$*"; [ "${CI:-}" != true ] || status=1; }

# tree RELEASE: makes $cache/RELEASE, if it is not there yet.
tree() {
  [ -d "$cache/$1" ] && return
  wget -q -O /dev/null --timeout=20 --tries=2 "$mirror/dists/$1/InRelease" || return 3
  rm -rf --one-file-system "$cache/$1.part"
  say "$1: making $cache/$1"
  debootstrap --variant=minbase --include=slurmctld,slurmd,slurm-client,munge \
    "$1" "$cache/$1.part" "$mirror" sid >"$cache/$1.log" 2>&1 ||
    { tail -n 20 "$cache/$1.log"; return 1; }
  rm -rf "$cache/$1.part"/var/cache/apt/archives/*.deb
  mv "$cache/$1.part" "$cache/$1"
}

[ $# -gt 0 ] || set -- trixie forky
status=0 made=
if [ "$(id -u)" != 0 ]; then skip "$*: skipped: not root"; exit $status; fi
if ! command -v debootstrap >/dev/null; then skip "$*: skipped: no debootstrap (tests/install-deps.sh installs it)"; exit $status; fi

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
for release; do
  failed=0; tree "$release" || failed=$?
  case $failed in
    0) say "$release: $(chroot "$cache/$release" slurmctld -V)"; made="$made $release" ;;
    3) skip "$release: skipped: cannot reach $mirror" ;;
    *) say "$release: debootstrap did not make it"; status=1 ;;
  esac
done
exec 9>&-

# suite RELEASE PACKAGE: runs the tests of the package.
suite() {
  NHC_GPU_TESTS=all NHC_GPU_SLURM_ROOT=$cache/$1 ${GO:-go} test -count=1 -timeout=25m -parallel=6 "$2"
}

running= out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for release in $made; do
  suite "$release" ./tests/slurm >"$out/$release" 2>&1 &
  running="$running $!"
done
for pid in $running; do wait "$pid" || status=1; done
for release in $made; do
  say "$release:"; cat "$out/$release"
  suite "$release" ./tests/sweep || status=1
done
exit $status
