package faults

// cgroup puts the run into its own control group.
func cgroup(controller, limit, value string) string {
	return `d=/sys/fs/cgroup/` + controller + `/nhc-gpu-fault-$$-$RANDOM; mkdir $d 2>/dev/null || { echo no cgroup; exit 77; }
echo ` + value + ` >$d/` + limit + `; (echo $BASHPID >$d/cgroup.procs; exec "$@"); rc=$?
for i in {1..100}; do rmdir $d 2>/dev/null && break; sleep 0.05; done; exit $rc`
}

const needCgroup = "[ -d /sys/fs/cgroup/pids ] || { printf 'skip: needs cgroup v1 with pids'; exit 1; }\n"

const needRealTime = "chrt -r 1 true 2>/dev/null || { printf 'skip: real-time scheduling is not allowed'; exit 1; }\n"

// startFaults are about the start of the program, and the environment that it finds.
var startFaults = []fault{
	{name: "no standard input", conf: bad, wrap: `exec "$@" <&-`, exit: 1, within: 2, action: drained},
	{name: "no standard output", conf: bad, wrap: `exec "$@" >&-`, exit: 1, within: 2, action: drained},
	{name: "no standard error", conf: bad, wrap: `exec "$@" 2>&-`, exit: 1, within: 2, action: drained},
	{name: "no descriptor at all", guard: "A4", conf: bad, wrap: `exec "$@" <&- >&- 2>&-`, exit: 1, within: 2, action: drained},
	{name: "output that is full", guard: "A4", conf: "* || echo one; echo two\n" + bad, wrap: `exec "$@" >/dev/full 2>&1`, exit: 1, within: 2, action: drained},
	{name: "output that nobody reads", guard: "A4", conf: "* || yes | head -c 1000000\n" + bad, wrap: `mkfifo full; exec 8<>full; "$@" >&8 2>&8 8>&-; exit $?`, words: "-v -t 6", exit: 1, within: 7.5, action: drained},
	{name: "output whose reader is gone", conf: "* || echo one; echo two\n" + bad, wrap: `"$@" 2>&1 | true; exit ${PIPESTATUS[0]}`, words: "-v", exit: 1, within: 3, action: drained},
	{name: "descriptors that were leaked", guard: "B1", conf: "* || ls /proc/self/fd | grep -q '^1[0-9]$' && die 9 leaked; true\n" + bad, wrap: `exec 10>secret 11</etc/shadow 12>&1; "$@"`, exit: 1, within: 2, action: drained, mute: "leaked"},
	{name: "few descriptors", conf: bad, wrap: `ulimit -n 64; exec "$@"`, exit: 1, within: 3, action: drained},
	{name: "too few descriptors", conf: bad, wrap: `ulimit -n 8; exec "$@"`, exit: 2, within: 3, dies: true},
	{name: "2000 leaked descriptors", guard: "B1", conf: bad, wrap: `ulimit -n 4096; for i in {1..2000}; do eval "exec {f}</dev/null"; done; exec "$@"`, exit: 1, within: 3, action: drained},
	{name: "little address space", conf: bad, wrap: `ulimit -v 400000; exec "$@"`, exit: 2, within: 3, dies: true},
	{name: "no core files, no files", conf: bad, wrap: `ulimit -c 0 -f 0; exec "$@"`, exit: 1, within: 3, action: either},
	{name: "little CPU time", conf: "* || while :; do :; done\n", wrap: `ulimit -t 1; exec "$@"`, words: "-a -t 40", exit: 3, within: 41.5},
	{name: "one process allowed", guard: "A6", conf: bad, set: needCgroup, wrap: cgroup("pids", "pids.max", "2"), exit: 3, within: 5, mute: "goroutine"},
	{name: "few processes allowed", guard: "A6", conf: shellBad, set: needCgroup, wrap: cgroup("pids", "pids.max", "8"), exit: 3, within: 7},
	{name: "no capabilities", conf: bad, wrap: `exec setpriv --bounding-set=-all --inh-caps=-all "$@"`, exit: 1, within: 3, action: drained},
	{name: "not root", conf: bad, set: "chmod 777 .", wrap: `exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"`, words: "LOGFILE=- MARK_OFFLINE=0", exit: 1, within: 3},
	{name: "a setuid copy", guard: "B6", conf: bad, set: "cp sbin/nhc-gpu sbin/suid; chmod 4755 sbin/suid; chmod 755 .", wrap: `shift; exec setpriv --reuid 65534 --regid 65534 --clear-groups sbin/suid -e 'touch /mnt/owned; id -u' MARK_OFFLINE=0`, exit: 3, within: 3, says: "refused"},
	{name: "no environment", conf: bad, wrap: `exec env -i "$@"`, exit: 1, within: 2, action: drained},
	{name: "a huge environment", conf: bad, wrap: `for i in {1..20}; do export V$i=$(head -c 100000 /dev/zero | tr '\0' x); done; exec "$@"`, exit: 1, within: 7, action: drained},
	{name: "a hostile environment", guard: "B1", conf: "* || true; true\n" + bad, set: "echo 'touch /mnt/owned' >env; chmod 644 env", wrap: `export BASH_ENV=/mnt/env ENV=/mnt/env LD_PRELOAD=/mnt/none.so SHELLOPTS PS4='$(touch /mnt/owned)' IFS=/ GODEBUG=x GOGC=1 LD_LIBRARY_PATH=/mnt; "$@"; rc=$?; [ -e owned ] && echo it was run; exit $rc`, exit: 1, within: 7, action: drained, mute: "it was run"},
	{name: "an environment with functions", guard: "B1", conf: "* || true; test -d /\n" + bad, wrap: `test() { touch /mnt/owned; }; die() { touch /mnt/owned; }; export -f test die; "$@"; rc=$?; [ -e owned ] && echo it was run; exit $rc`, exit: 1, within: 3, action: drained, mute: "it was run"},
	{name: "an environment with settings", guard: "B1", conf: bad, env: "CONFFILE=/mnt/other OFFLINE_NODE=/mnt/other LOGFILE=/mnt/other HOSTROOT=/mnt/other", exit: 1, within: 2, action: drained},
	{name: "a time zone that is none", conf: bad, env: "TZ=:/dev/zero", exit: 1, within: 3, action: drained},
	{name: "a locale that is none", conf: "* || true; true\n" + bad, env: "LC_ALL=xx_XX.nonsense LANG=xx", exit: 1, within: 3, action: drained},
	{name: "called by no name", conf: bad, wrap: `exec -a '' "$@"`, exit: 1, within: 2, action: drained},
	{name: "called by a long name", conf: bad, wrap: `exec -a $(head -c 5000 /dev/zero | tr '\0' n) "$@"`, exit: 3, within: 3},
	{name: "a working directory that is gone", guard: "A1", conf: bad, wrap: `mkdir gone; cd gone; rmdir ../gone; exec "$@"`, exit: 1, within: 2, action: drained},
	{name: "no /tmp", conf: bad, set: "mount -t tmpfs -o ro,size=4k tmpfs /var/tmp; mkdir -p /tmp; mount -t tmpfs -o ro,size=4k tmpfs /tmp", exit: 1, within: 2, action: drained},
	{name: "no /dev/null", guard: "A4", conf: "* || true; true\n" + bad, set: "rm /dev/null", exit: 3, within: 3, says: "/dev/null"},
	{name: "/dev/null is a file", conf: bad, set: "rm /dev/null; touch /dev/null", exit: 1, within: 3, action: drained},
	{name: "no /dev/kmsg", conf: good, set: "rm /dev/kmsg", within: 2},
	{name: "no /proc", guard: "A2", conf: bad, set: "mount -t tmpfs tmpfs /proc", exit: 3, within: 3, leaves: true},
	{name: "/proc is read-only", conf: bad, set: "mount -o remount,ro /proc", exit: 1, within: 2, action: drained},
	{name: "/proc hides processes", conf: "* || check_ps_daemon nosuchd\n", set: "mount -o remount,hidepid=2 /proc", exit: 1, within: 3, action: drained},
	{name: "no /etc/passwd", conf: bad, set: "mount --bind /dev/null /etc/passwd", exit: 1, within: 2, action: drained},
	{name: "a host name of 63 letters", conf: bad, set: "hostname $(head -c 63 /dev/zero | tr '\\0' h)", exit: 1, within: 2, action: drained},
	{name: "a host name with dots", conf: "node1* || check_file_test -d /nowhere\n", set: "hostname node1.cluster.example", exit: 1, within: 2, action: drained},
	{name: "a node name with slashes", guard: "B1", conf: bad, env: "SLURMD_NODENAME=../../etc", exit: 1, within: 3, says: `SLURMD_NODENAME is "../../etc"`},
	{name: "nice 19", conf: bad, wrap: `exec nice -n 19 "$@"`, exit: 1, within: 5, action: drained},
	{name: "signals blocked", conf: "* || trap '' PIPE CHLD; true\n" + bad, wrap: `trap '' PIPE CHLD ALRM TERM; exec "$@"`, exit: 1, within: 3, action: drained},
}

// interrupted sends a signal some time after the start.
func interrupted(signal, after string) string {
	return "sleep " + after + "; kill -" + signal + " $pid"
}

// begun sends a signal when the first line runs.
func begun(signal string) string {
	return "until [ -e begun ]; do sleep 0.02; done; kill -" + signal + " $pid"
}

const slow = "* || touch begun; sleep 100\n"

// signalFaults end the run early. It drains the node as LBNL NHC does, and leaves nothing behind.
var signalFaults = []fault{
	{name: "TERM at once", guard: "A11", conf: slow, with: interrupted("TERM", "0"), words: "-t 20", exit: 143, within: 3, action: either},
	{name: "TERM after 10 ms", guard: "A11", conf: slow, with: interrupted("TERM", "0.01"), words: "-t 20", exit: 143, within: 3, action: either},
	{name: "TERM after 30 ms", conf: slow, with: interrupted("TERM", "0.03"), words: "-t 20", exit: 143, within: 3, action: either},
	{name: "TERM in a line", guard: "A7", conf: slow, with: begun("TERM"), words: "-t 20", exit: 143, within: 3, action: drained},
	{name: "INT in a line", conf: slow, with: begun("INT"), wrap: `exec env --default-signal=INT "$@"`, words: "-t 20", exit: 130, within: 3, action: drained},
	{name: "INT after 10 ms", guard: "A11", conf: slow, with: interrupted("INT", "0.01"), wrap: `exec env --default-signal=INT "$@"`, words: "-t 20", exit: 130, within: 3, action: either},
	{name: "HUP in a line", conf: slow, with: begun("HUP"), words: "-t 20", exit: 129, within: 3, action: drained},
	{name: "HUP after 10 ms", guard: "A11", conf: slow, with: interrupted("HUP", "0.01"), words: "-t 20", exit: 129, within: 3, action: either},
	{name: "QUIT in a line", conf: slow, with: begun("QUIT"), words: "-t 20", exit: 131, within: 3, action: drained},
	{name: "ALRM in a line", conf: slow, with: begun("ALRM"), words: "-t 20", exit: 142, within: 3, action: drained},
	{name: "KILL in a line", guard: "A7", conf: slow, with: begun("KILL"), words: "-t 20", exit: 137, within: 3},
	{name: "ABRT in a line", guard: "A7", conf: slow, with: begun("ABRT"), words: "-t 20", exit: 3, within: 3, dies: true},
	{name: "STOP and CONT in a line", conf: "* || touch begun; sleep 0.5\n" + bad, with: begun("STOP") + "; sleep 1; kill -CONT $pid", words: "-t 20", exit: 1, within: 5, action: drained},
	{name: "USR1 and WINCH in a line", conf: "* || touch begun; sleep 0.5\n" + bad, with: begun("USR1") + "; kill -WINCH $pid; kill -PIPE $pid; kill -URG $pid", words: "-t 20", exit: 1, within: 5, action: drained},
	{name: "KILL of the worker in a command", conf: "* || check_cmd_status -t 5 bash -c 'touch /mnt/begun; sleep 100'\n", with: "until [ -e begun ]; do sleep 0.02; done; pkill -KILL -f ^nhc-gpu-worker", words: "-t 6", exit: 3, within: 7.5},
	{name: "KILL of a command in a line", conf: slow, with: "until pkill -KILL -fx 'sleep 100'; do sleep 0.02; done", words: "-t 6", exit: 137, within: 7.5, action: drained},
	{name: "KILL of bash in a line", conf: "* || echo $BASHPID >pid; mv pid begun; sleep 100\n", with: "until [ -e begun ]; do sleep 0.02; done; kill -KILL $(<begun)", words: "-t 6", exit: 3, within: 7.5, says: `bash died: signal: killed`},
	{name: "TERM while scontrol hangs", conf: bad, set: hook("touch /mnt/begun; sleep 100"), with: begun("TERM"), words: "-t 20", exit: 1, within: 9, action: kept},
}
