#!/bin/sh
# Before a removal, by rpm (0) and by dpkg (remove). An upgrade leaves units and runs alone.
set -e
case ${1:-} in
  0 | remove) ;;
  *) exit 0 ;;
esac
command -v systemctl >/dev/null || exit 0
systemctl --no-reload disable nhc-gpu.timer nhc-gpu-active.timer nhc-gpu-sweep.timer nhc-gpu-boot.service nhc-gpu-monitor.service >/dev/null 2>&1 || :
if [ -d /run/systemd/system ]; then
  systemctl stop nhc-gpu.timer nhc-gpu-active.timer nhc-gpu-sweep.timer nhc-gpu-boot.service nhc-gpu-monitor.service nhc-gpu.service nhc-gpu-active.service nhc-gpu-sweep.service || :
fi
