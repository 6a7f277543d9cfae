#!/bin/sh
# Before an installation or an upgrade by rpm: saves /etc/nhc. rpm renames or deletes the files of a
# package that it removes: those of LBNL NHC, and nhc.conf of an nhc-gpu that owned it. dpkg does not.
set -e
case ${1:-} in
  [0-9]*) ;;
  *) exit 0 ;;
esac
saved=/var/lib/rpm-state/nhc-gpu
# Both packages save in one transaction: that of this rpm, by its process ID and start time. A copy
# that an interrupted transaction left has files that the administrator can have deleted since.
transaction=$PPID
if { read -r stat </proc/"$PPID"/stat; } 2>/dev/null; then
  # shellcheck disable=SC2086 # the fields after the name of the process
  set -- ${stat##*)}
  transaction="$PPID ${20}"
fi
[ "$(cat $saved/transaction 2>/dev/null)" != "$transaction" ] || exit 0
rm -rf $saved
if [ -d /etc/nhc ]; then
  mkdir -p $saved/nhc
  cp -a /etc/nhc/. $saved/nhc # also the files of a symbolic link
  echo "$transaction" >$saved/transaction # after the copy: an interrupted one is made again
fi
