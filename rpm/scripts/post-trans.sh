#!/bin/sh
# After rpm has installed and removed all packages: restores the files of /etc/nhc that are gone.
saved=/var/lib/rpm-state/nhc-gpu
[ -d $saved/nhc ] || exit 0
cp -an $saved/nhc /etc/ || exit 1
rm -rf $saved
find /etc/nhc -name '*.rpmsave' | while read -r f; do
  ! cmp -s "$f" "${f%.rpmsave}" || rm -f "$f"
done
exit 0
