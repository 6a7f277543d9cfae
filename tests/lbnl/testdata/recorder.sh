#!/bin/sh
# Stands in for a command: records its name and arguments, prints {DIR}/out/NAME, exits with {DIR}/rc/NAME.
dir=/tmp/nhco
name=${0##*/}
{ printf '%s' "$name"; for a in "$@"; do printf ' [%s]' "$a"; done; printf '\n'; } >> $dir/.calls
[ -f $dir/out/$name ] && cat $dir/out/$name
[ -f $dir/rc/$name ] && exit "$(cat $dir/rc/$name)"
exit 0
