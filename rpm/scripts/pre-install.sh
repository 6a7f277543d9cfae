#!/bin/sh
# Before an installation or an upgrade by rpm: saves /etc/nhc. rpm renames or deletes the files of a
# package that it removes: those of LBNL NHC, and nhc.conf of an nhc-gpu that owned it. dpkg does not.
set -e
case ${1:-} in
  [0-9]*) ;;
  *) exit 0 ;;
esac
if [ -d /etc/nhc ]; then
  mkdir -p /var/lib/rpm-state/nhc-gpu
  cp -an /etc/nhc /var/lib/rpm-state/nhc-gpu
fi
