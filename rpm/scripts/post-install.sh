#!/bin/sh
# After an installation or an upgrade, by rpm and by dpkg. It starts nothing and enables nothing.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
fi
if command -v systemd-tmpfiles >/dev/null; then
  systemd-tmpfiles --create nhc-gpu.conf || :
fi
