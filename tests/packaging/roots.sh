#!/bin/sh
# roots.sh RELEASE[-slurm]: makes a system of this release by debootstrap, kept for the next time, and
# prints its path. The one with -slurm has Slurm and Prometheus. Exit status 3: the mirror cannot be
# reached.
set -eu
cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-/var/cache}/nhc-gpu-test/packaging
release=${1%-slurm} script=${1%-slurm} components=main
case $release in
  bookworm)
    # systemd to enable units, python3 for Ansible, logrotate
    mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian} include=systemd,python3,python3-apt,logrotate
    keys=/usr/share/keyrings/debian-archive-keyring.gpg ;;
  noble)
    mirror=http://archive.ubuntu.com/ubuntu include=ca-certificates script=gutsy # debootstrap of Debian 12 does not know noble
    rpm/sysroot/unpack.sh tests/packaging/testdata/ubuntu-keyring.debs "$cache/ubuntu-keyring" >&2 || exit 3
    keys=$cache/ubuntu-keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg ;;
esac
if [ "$1" != "$release" ]; then
  components=main,universe # Debian has no universe
  include=$include,slurmctld,slurmd,slurm-client,munge,prometheus,prometheus-node-exporter,iproute2,procps
fi
mkdir -p "$cache"
exec 9>"$cache/$1.lock"
flock 9
if [ ! -d "$cache/$1" ]; then
  curl -fsS --max-time 20 --retry 2 -o /dev/null "$mirror/dists/$release/InRelease" 9>&- || exit 3
  rm -rf --one-file-system "$cache/$1.part"
  debootstrap --variant=minbase --keyring="$keys" --components=$components --include="$include" "$release" "$cache/$1.part" "$mirror" "/usr/share/debootstrap/scripts/$script" >"$cache/$1.log" 2>&1 9>&- ||
    { tail -n 20 "$cache/$1.log" >&2; exit 1; }
  rm -rf "$cache/$1.part"/var/cache/apt/archives/*.deb
  mv "$cache/$1.part" "$cache/$1"
fi
echo "$cache/$1"
