#!/bin/sh
# boot.sh LOWER UPPER WORK SHARE: boots an overlay of LOWER and UPPER with systemd as process 1, in
# namespaces and in a control group of its own, until it powers off. It has SHARE at /mnt. The limit
# is two minutes: systemd as process 1 ignores SIGTERM.
set -eu
if [ "$1" != --inside ]; then
  exec unshare -m "$0" --inside "$@"
fi
shift
root=$3/root
mkdir -p "$root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3/work" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/dev"
mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/mnt" "$root/before"
for node in null:3 zero:5 full:7 random:8 urandom:9 kmsg:11; do
  mknod -m 666 "$root/dev/${node%:*}" c 1 "${node#*:}"
done
mknod -m 600 "$root/dev/console" c 5 1
mount --bind "$4" "$root/mnt"

mount -t cgroup2 cgroup2 "$root/before"
group=$root/before/nhc-gpu-boot.$$
mkdir "$group"
status=0
(
  sh -c 'echo $PPID >"$0/cgroup.procs"' "$group"
  # shellcheck disable=SC2016  # for the inner shell
  exec timeout -s KILL 120 unshare -mpfCiu --kill-child=SIGKILL sh -ec '
    umount "$0/before"
    mount -t sysfs -o ro sysfs "$0/sys"
    mount -t cgroup2 cgroup2 "$0/sys/fs/cgroup"
    cd "$0"
    pivot_root . before
    umount -l before
    exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console' "$root"
) || status=$?
find "$group" -depth -type d -exec rmdir {} +
[ "$status" = 130 ] # the kernel ends the processes of a namespace that powers off with SIGINT
