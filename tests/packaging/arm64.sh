#!/bin/sh
# arm64.sh COMMAND...: runs a command that starts arm64 programs. Started as root of a user namespace
# and a mount namespace of its own, it makes the kernel start them by qemu there, and only there. It
# needs Linux 6.7.
set -eu
loader=/usr/aarch64-linux-gnu/lib
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
# F: qemu is opened now; O, C: credentials of the program; P: argv[0] stays, by which a worker knows
# itself. The magic is the header of an ELF for AArch64.
printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:FCOP' >/proc/sys/fs/binfmt_misc/register
# A worker has no QEMU_LD_PREFIX, so the libraries are at their own paths. The whole of /usr is
# mounted, since an overlay of /usr, as the recorded cases have it, shows no mount below /usr.
extra=/mnt
mount -t tmpfs tmpfs $extra
mkdir "$extra/lib"
ln -s "$loader/ld-linux-aarch64.so.1" "$extra/lib"
ln -s "$loader" "$extra/lib/aarch64-linux-gnu"
mount -t overlay overlay -o "lowerdir=$extra:/usr" /usr
exec "$@"
