#!/bin/sh
# After a removal. State goes with the package (rpm) or with a purge (dpkg); the site's files and
# the logs stay.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
fi
case ${1:-} in
  0 | purge) rm -rf /run/nhc-gpu /run/nhc-gpu-jobs /run/nhc-gpu-wrap /var/lib/nhc-gpu || : ;;
esac
