package faults

// These are the two configurations of most rows: one passes, one fails.
const (
	good = "* || check_file_test -d /\n"
	bad  = "* || check_file_test -d /nowhere\n"
	// shellBad fails in a line of bash.
	shellBad = "* || true; test -d /nowhere\n"
)

const failed = `Health check failed:  check_file_test:  -d /nowhere returned 1`

// confFaults break nhc.conf, its directory, sysconfig and scripts of the site. An unreadable file
// drains no node, and does not resume one.
var confFaults = []fault{
	{name: "conf missing", set: "rm nhc.conf", within: 2},
	{name: "conf empty", conf: "", within: 2},
	{name: "conf without a newline", conf: "* || check_file_test -d /nowhere", exit: 1, within: 2, action: drained, says: failed},
	{name: "conf with CRLF", set: `printf '* || check_file_test -d /nowhere\r\n' >nhc.conf`, exit: 1, within: 2, action: drained},
	{name: "conf of NUL bytes", guard: "A3", set: "head -c 4096 /dev/zero >nhc.conf", exit: 3, within: 2, says: "nhc.conf"},
	{name: "conf with a NUL byte", set: `printf '* || check_file_test -d /nowhere\0\n' >nhc.conf`, exit: 3, within: 2, says: "nhc.conf"},
	{name: "conf of random bytes", guard: "A3", set: "head -c 65536 /dev/urandom >nhc.conf", exit: 3, within: 2, says: "nhc.conf"},
	{name: "conf is a program", set: "cp /bin/true nhc.conf", exit: 3, within: 2, says: "binary"},
	{name: "conf of 1 GB", guard: "A3", set: "rm nhc.conf; truncate -s 1G nhc.conf", exit: 3, within: 7, says: "nhc.conf"},
	{name: "conf with a line of 1 MB", set: `{ printf '* || true '; head -c 1000000 /dev/zero | tr '\0' x; echo; echo '* || check_file_test -d /nowhere'; } >nhc.conf`, exit: 1, within: 7, action: drained},
	{name: "conf of 20000 lines", set: `for i in {1..20000}; do echo "other$i || check_file_test -d /nowhere"; done >nhc.conf; echo '* || check_file_test -d /nowhere' >>nhc.conf`, exit: 1, within: 7, action: drained},
	{name: "conf is a directory", set: "rm nhc.conf; mkdir nhc.conf", within: 2},
	{name: "conf is a fifo", guard: "A3", set: "rm nhc.conf; mkfifo -m 644 nhc.conf", within: 2},
	{name: "conf is a socket", set: `rm nhc.conf; ln -s /dev/log nhc.conf`, exit: 3, within: 2},
	{name: "conf is a device that never ends", guard: "A3", set: "rm nhc.conf; ln -s /dev/zero nhc.conf", within: 2},
	{name: "conf is a loop of links", set: "rm nhc.conf; ln -s nhc.conf nhc.conf", exit: 3, within: 2, says: "nhc.conf"},
	{name: "conf is a link to nothing", set: "rm nhc.conf; ln -s nothing nhc.conf", within: 2},
	{name: "conf is a link to a file", set: "mv nhc.conf real.conf; ln -s real.conf nhc.conf", conf: bad, exit: 1, within: 2, action: drained},
	{name: "conf is world-writable", guard: "B1", conf: "* || touch owned; die 1 forged\n", set: "chmod 666 nhc.conf", exit: 3, within: 2, says: "writable by others"},
	{name: "conf is not root's", guard: "B1", conf: "* || touch owned; die 1 forged\n", set: "chown 65534 nhc.conf", exit: 3, within: 2, says: "nhc.conf"},
	{name: "conf in a directory for all", conf: bad, set: "chmod 777 .", exit: 1, within: 2, action: drained},
	{name: "conf not readable", conf: bad, set: "chmod 0 nhc.conf", exit: 1, within: 2, action: drained},
	{name: "conf that is emptied in mid-run", conf: "* || > nhc.conf\n* || true\n" + bad, exit: 1, within: 2, action: drained},
	{name: "conf that is deleted in mid-run", guard: "A1", conf: "* || rm nhc.conf\n" + bad, exit: 1, within: 2, action: drained},
	{name: "conf that is replaced in mid-run", guard: "A1", conf: "* || echo '* || true' >new; mv new nhc.conf\n" + bad, exit: 1, within: 2, action: drained},
	{name: "conf whose directory is moved in mid-run", set: "mkdir etc; mv nhc.conf etc; ln -s etc/nhc.conf", conf: "* || mv etc gone\n" + bad, exit: 1, within: 2, action: drained},
	{name: "conf with a line that is no line", conf: "this is no line\n" + good, within: 2},
	{name: "conf with an unknown check", conf: "* || check_that_is_none\n", exit: 3, within: 2, says: "there is no command"},
	{name: "conf with an unknown check, CONFIG_ERRORS=drain", conf: "* || check_that_is_none\n", words: "CONFIG_ERRORS=drain", exit: 127, within: 2, action: drained},
	{name: "conf with an unclosed quote", conf: "* || echo \"open\n" + good, exit: 3, within: 2, says: "a quote or a bracket is missing"},
	{name: "conf with a bad expression", conf: `/(n)\\1/ || true` + "\n", exit: 3, within: 2, says: "nhc.conf:1"},
	{name: "conf with a check's bad option", conf: "* || check_fs_mount --nonsense /\n", exit: 3, within: 2, says: "Invalid option"},
	{name: "conf that passes after a failure", guard: "C1", conf: bad, exit: 1, within: 2, action: drained, then: "echo '* || check_file_test -d /' >nhc.conf", thenAction: resumed},
	{name: "conf that is broken after a failure", guard: "A3", conf: bad, exit: 1, within: 2, action: drained, then: "head -c 4096 /dev/urandom >nhc.conf", thenExit: 3},
	{name: "conf whose file has EIO", set: eio + "rm nhc.conf; ln -s eio/mem nhc.conf", exit: 3, within: 2, says: "nhc.conf"},
	{name: "toml is garbage", conf: good, set: "head -c 4096 /dev/urandom >nhc.toml", words: "TOMLFILE=/mnt/nhc.toml", exit: 3, within: 2, says: "nhc.toml"},
	{name: "toml with an unknown key", conf: good, set: "echo 'colour = 1' >nhc.toml", words: "TOMLFILE=/mnt/nhc.toml", exit: 3, within: 2, says: "nhc.toml"},
	{name: "toml is world-writable", guard: "B1", conf: good, set: "echo >nhc.toml; chmod 666 nhc.toml", words: "TOMLFILE=/mnt/nhc.toml", exit: 3, within: 2, says: "writable by others"},
	{name: "sysconfig is garbage", guard: "A3", conf: good, set: "head -c 65536 /dev/urandom >/etc/default/nhc", exit: 3, within: 2},
	{name: "sysconfig is a directory", conf: bad, set: "mkdir /etc/default/nhc", exit: 1, within: 2, action: drained},
	{name: "sysconfig is a fifo", guard: "A4", conf: bad, set: "mkfifo /etc/default/nhc", exit: 1, within: 7, action: drained},
	{name: "sysconfig is world-writable", guard: "B1", conf: bad, set: "echo MARK_OFFLINE=0 >/etc/default/nhc; chmod 666 /etc/default/nhc", exit: 3, within: 2, says: "writable by others"},
	{name: "sysconfig that never ends", conf: bad, set: "ln -s /dev/zero /etc/default/nhc", exit: 1, within: 7, action: drained},
	{name: "sysconfig with a syntax error", conf: bad, set: "echo 'if then ((' >/etc/default/nhc", exit: 3, within: 2},
	{name: "sysconfig with a program", conf: bad, set: "echo 'touch /mnt/owned; sleep 100' >/etc/default/nhc", exit: 3, within: 7},
	{name: "sysconfig with an odd TIMEOUT", conf: bad, set: "echo TIMEOUT=never >/etc/default/nhc", exit: 1, within: 2, action: drained},
	{name: "scripts directory missing", conf: bad, words: "INCDIR=/mnt/none", exit: 1, within: 2, action: drained},
	{name: "script with a syntax error", conf: bad, set: "mkdir inc; echo 'if then ((' >inc/a.nhc", words: "INCDIR=/mnt/inc", exit: 1, within: 7, action: drained},
	{name: "script that hangs", conf: bad, set: "mkdir inc; echo 'sleep 100' >inc/a.nhc", words: "-t 3 INCDIR=/mnt/inc", exit: 142, within: 4.5, action: drained},
	{name: "script that leaves", conf: good, set: "mkdir inc; echo 'exit 7' >inc/a.nhc", words: "INCDIR=/mnt/inc", exit: 7, within: 2},
	{name: "script is world-writable", guard: "B1", conf: good, set: "mkdir inc; echo 'touch owned' >inc/a.nhc; chmod 666 inc/a.nhc", words: "INCDIR=/mnt/inc", exit: 3, within: 2, says: "writable by others"},
	{name: "script is a fifo", conf: bad, set: "mkdir inc; mkfifo inc/a.nhc", words: "-t 3 INCDIR=/mnt/inc", exit: 142, within: 4.5, action: drained},
	{name: "scripts directory is a loop", conf: bad, set: "ln -s inc inc", words: "INCDIR=/mnt/inc", exit: 1, within: 2, action: drained},
	{name: "script with a function of a check's name", guard: "F2", conf: "* || check_hw_topology\n", set: "mkdir inc; echo 'check_hw_topology() { die 1 the site says so; }' >inc/a.nhc", words: "INCDIR=/mnt/inc", exit: 1, within: 2, action: drained, says: "the site says so"},
}

// eio creates eio/mem, whose reads fail with EIO: the memory of a process at address 0.
const eio = "mkdir eio; ln -s /proc/self/mem eio/mem\n"

// logFaults break LOGFILE, syslog and directories that programs usually rely on.
var logFaults = []fault{
	{name: "log in a missing directory", guard: "A8", conf: bad, words: "LOGFILE=/mnt/none/nhc.log", exit: 1, within: 2, action: drained},
	{name: "log in a missing directory, healthy", guard: "A8", conf: good, words: "LOGFILE=/mnt/none/nhc.log", exit: 1, within: 2, says: "(?i)fatal|none/nhc.log"},
	{name: "log on a read-only file system", guard: "A8", conf: bad, set: "mkdir ro; mount -t tmpfs -o ro tmpfs ro", words: "LOGFILE=/mnt/ro/nhc.log", exit: 1, within: 2, action: drained},
	{name: "log on a full file system", guard: "A8", conf: bad, set: "mkdir full; mount -t tmpfs -o size=4k tmpfs full; head -c 4096 /dev/zero >full/x", words: "LOGFILE=/mnt/full/nhc.log", exit: 1, within: 2, action: drained},
	{name: "log is /dev/full", conf: bad, words: "LOGFILE=/dev/full", exit: 1, within: 2, action: drained},
	{name: "log is a directory", conf: bad, set: "mkdir nhc.log", exit: 1, within: 2, action: drained},
	{name: "log is a fifo that nobody reads", guard: "A4", conf: bad, set: "mkfifo nhc.log", words: "-t 6", exit: 1, within: 7.5, action: drained},
	{name: "log is a loop of links", conf: bad, set: "ln -s nhc.log nhc.log", exit: 1, within: 2, action: drained},
	{name: "log is world-writable", conf: bad, set: "touch nhc.log; chmod 666 nhc.log", exit: 1, within: 2, action: drained},
	{name: "log is not root's", conf: bad, set: "touch nhc.log; chown 65534 nhc.log", exit: 1, within: 2, action: drained},
	{name: "log of 2 GB", conf: bad, set: "truncate -s 2G nhc.log", exit: 1, within: 2, action: drained},
	{name: "log beyond RLIMIT_FSIZE", conf: bad, set: "head -c 2048 /dev/zero >nhc.log", wrap: `ulimit -f 1; exec "$@"`, exit: 1, within: 7, action: drained},
	{name: "log that is deleted in mid-run", conf: "* || rm -f nhc.log\n" + bad, exit: 1, within: 2, action: drained},
	{name: "syslog missing", guard: "A4", conf: bad, set: "rm /dev/log", exit: 1, within: 3, action: drained},
	{name: "syslog that does not read", guard: "A4", conf: bad, set: stuckSyslog, words: "-t 6", exit: 1, within: 7.5, action: drained},
	{name: "syslog is a file", conf: bad, set: "rm /dev/log; touch /dev/log", exit: 1, within: 3, action: drained},
	{name: "syslog is a dangling link", conf: bad, set: "rm /dev/log; ln -s /run/none /dev/log", exit: 1, within: 3, action: drained},
}

// stuckSyslog creates a socket that accepts a few messages and reads none.
const stuckSyslog = `rm /dev/log
perl -e 'use Socket; socket(S, AF_UNIX, SOCK_DGRAM, 0); bind(S, pack_sockaddr_un("/dev/log")); open STDOUT, ">/dev/null"; open STDERR, ">/dev/null"; sleep 300' &
until [ -S /dev/log ]; do sleep 0.02; done
`
