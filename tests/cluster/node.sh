#!/bin/sh
# node.sh NODE [OPTION]: becomes the slurmd of NODE. It runs in its own UTS and mount namespaces,
# so that the host name and these directories belong only to the node.
set -eu
node=$1
files=/run/cluster/nodes/$node
echo "$node" >/proc/sys/kernel/hostname
mount --bind "$files/nhc" /etc/nhc
mount --bind "$files/default" /etc/default
mount --bind "$files/log" /var/log
mount --bind "$files/state" /run/nhc-gpu
mount --bind "$files/past" /var/lib/nhc-gpu
[ ! -e "$files/boot_id" ] || mount --bind "$files/boot_id" /proc/sys/kernel/random/boot_id
if [ -e "$files/network" ]; then # its own: /sys shows the interfaces of the namespace that mounts it
  mount --rbind /sys/fs/cgroup "$files/network"
  mount -t sysfs sysfs /sys
  mount --rbind "$files/network" /sys/fs/cgroup
fi
exec slurmd -D -N "$node" ${2+"$2"}
