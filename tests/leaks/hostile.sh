# hostile.sh REPORT PLACE: tries everything with the descriptors that it has inherited and those of
# its parents. It reports the successful attempts.
report=$1 place=$2
say() { echo "$place $*" >>"$report"; }
say "ran as $UID"
for path in /proc/$BASHPID/fd/*; do
    fd=${path##*/}
    # 255 is this file, and bash no longer has the one it listed the folder with
    [[ $fd -gt 2 && -e /proc/$BASHPID/fd/$fd && ! /proc/$BASHPID/fd/$fd -ef $0 ]] || continue
    say "has descriptor $fd: $(readlink "/proc/$BASHPID/fd/$fd")"
    { printf 'echo "$(id -u)" >>%s\n' "$report" >&"$fd"; } 2>/dev/null && say "writes to descriptor $fd"
    { printf 'echo "$(id -u)" >>%s\n' "$report" >"/proc/$BASHPID/fd/$fd"; } 2>/dev/null && say "opens descriptor $fd for writing"
    IFS= read -r -t 0.2 -u "$fd" line 2>/dev/null && say "reads from descriptor $fd: $line"
done
parent=$PPID
while [[ $parent -gt 1 ]]; do
    for path in /proc/$parent/fd/*; do
        { : <"$path"; } 2>/dev/null && say "opens $path"
    done
    while read -r key value; do [[ $key != PPid: ]] || next=$value; done </proc/"$parent"/status
    [[ $next != "$parent" ]] || break
    parent=$next
done
