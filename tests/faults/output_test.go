package faults

// output writes an nhc.toml with outputs and without a wait of the guard, and runs commands afterwards.
// The directory /etc/default belongs to root alone.
func output(settings, commands string) string {
	return "cat >nhc.toml <<'END'\n[guard]\njitter = 0\n[output]\n" + settings + "\nEND\n" + commands
}

const (
	toJSONL    = `jsonl = "/etc/default/nhc.jsonl"`
	toTextfile = `textfile = "/etc/default/nhc.prom"`
	withTOML   = "TOMLFILE=/mnt/nhc.toml"
	full       = "mount -t tmpfs -o size=4k,mode=755 tmpfs /etc/default; cat /dev/zero >/etc/default/x || true; "
)

// outputFaults break the outputs of the event. The verdict and the drain stay the same, and the run
// ends in time.
var outputFaults = []fault{
	{name: "jsonl is a fifo without a reader", guard: "A8", conf: bad, set: output(toJSONL, "mkfifo /etc/default/nhc.jsonl"), words: withTOML, exit: 1, within: 3.5, action: drained, says: "output jsonl: write /etc/default/nhc.jsonl: no answer within 1", then: "rm /etc/default/nhc.jsonl; echo '* || check_file_test -d /' >nhc.conf", thenAction: resumed},
	{name: "jsonl is a fifo without a reader, in a prolog", guard: "A8", conf: bad, set: output(toJSONL, "mkfifo /etc/default/nhc.jsonl"), words: "--prolog " + withTOML, env: "SLURM_JOB_ID=7", exit: 1, within: 3, action: drained, says: "output jsonl: "},
	{name: "jsonl on a full file system", guard: "A8", conf: bad, set: output(toJSONL, full), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output jsonl: .*no space left"},
	{name: "jsonl on a read-only file system", conf: bad, set: output(toJSONL, "mount -t tmpfs -o ro tmpfs /etc/default"), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output jsonl: .*read-only"},
	{name: "jsonl in a missing directory", conf: bad, set: output(`jsonl = "/etc/default/none/nhc.jsonl"`, ""), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output jsonl: .*no such file"},
	{name: "jsonl is a directory", guard: "A8", conf: bad, set: output(toJSONL, "mkdir /etc/default/nhc.jsonl"), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output jsonl: .*is a directory"},
	{name: "jsonl is a link of another user", guard: "B1", conf: bad, set: output(`jsonl = "/mnt/theirs/nhc.jsonl"`, "mkdir theirs; echo precious >precious; ln -s /mnt/precious theirs/nhc.jsonl; chown -h 65534 theirs theirs/nhc.jsonl"), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output jsonl: .*symbolic link of uid 65534"},
	{name: "jsonl without an end", conf: bad, set: output(`jsonl = "/dev/zero"`, ""), words: withTOML, exit: 1, within: 2.5, action: drained},
	{name: "textfile is a directory", guard: "A8", conf: bad, set: output(toTextfile, "mkdir /etc/default/nhc.prom"), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output textfile: .*is a directory"},
	{name: "textfile on a full file system", conf: bad, set: output(toTextfile, full), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output textfile: .*no space left"},
	{name: "textfile is a fifo", conf: bad, set: output(toTextfile, "mkfifo /etc/default/nhc.prom"), words: withTOML, exit: 1, within: 2.5, action: drained, mute: "output textfile"},
	{name: "textfile is a link of another user", guard: "B1", conf: bad, set: output(`textfile = "/mnt/theirs/nhc.prom"`, "mkdir theirs; echo precious >precious; ln -s /mnt/precious theirs/nhc.prom; chown -h 65534 theirs theirs/nhc.prom"), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output textfile: .*symbolic link of uid 65534"},
	{name: "output syslog of a failure", guard: "A8", conf: bad, set: output("syslog = true", ""), words: withTOML, exit: 1, within: 2.5, action: drained, says: `syslog: <27>1 20[0-9T:.-]+Z node1 nhc [0-9]+ health \[nhc@32473 schema="1" node="node1" .*code="file.test".*\] check_file_test: -d /nowhere returned 1`},
	{name: "output journald of a failure", guard: "A8", conf: bad, set: output("journald = true", ""), words: withTOML, exit: 1, within: 2.5, action: drained, says: `(?s)journal: .*NHC_CODE=file.test\n`, mute: "output journald"},
	{name: "no syslog for the output", conf: bad, set: output("syslog = true", "rm /dev/log"), words: withTOML, exit: 1, within: 3.5, action: drained, says: "output syslog: "},
	{name: "no journald for the output", conf: bad, set: output("journald = true", "rm /run/systemd/journal/socket"), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output journald: write to the journal: "},
	{name: "output command that hangs", guard: "A8", conf: bad, set: output("command = [\"/bin/sleep\", \"100\"]\ncommand_timeout = 1", ""), words: withTOML, exit: 1, within: 4, action: drained, says: "output command: run /bin/sleep: no end within 1s"},
	{name: "output command that ignores signals and its input", conf: bad, set: output("command = [\"/mnt/bin/deaf\"]\ncommand_timeout = 1", "printf '#!/bin/bash\\ntrap \"\" TERM INT HUP; while :; do sleep 1; done\\n' >bin/deaf; chmod 755 bin/deaf"), words: withTOML, exit: 1, within: 6, action: drained, says: "output command: run /mnt/bin/deaf: no (end|answer) "},
	{name: "output command without an end of its output", conf: bad, set: output("command = [\"/usr/bin/yes\"]\ncommand_timeout = 1", ""), words: withTOML, exit: 1, within: 4, action: drained, says: "output command: run /usr/bin/yes: "},
	{name: "output command that is missing", conf: bad, set: output(`command = ["/nowhere/ticket"]`, ""), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output command: run /nowhere/ticket: .*no such file"},
	{name: "output command that fails", guard: "A8", conf: bad, set: output(`command = ["/bin/false"]`, ""), words: withTOML, exit: 1, within: 2.5, action: drained, says: "output command: run /bin/false: exit status 1"},
	{name: "output command that ends its parents", conf: bad, set: output("command = [\"/mnt/bin/kill\"]\ncommand_timeout = 1", "printf '#!/bin/bash\\nkill -9 $PPID; sleep 100\\n' >bin/kill; chmod 755 bin/kill"), words: withTOML, exit: 1, within: 4, action: drained, says: "output command: run /mnt/bin/kill: "},
	{name: "history is a directory", conf: bad, set: "mkdir -p -m 700 /var/lib/nhc-gpu/node1/history.jsonl", exit: 1, within: 2.5, action: drained},
	{name: "history is a fifo", guard: "A4", conf: bad, set: "mkdir -p -m 700 /var/lib/nhc-gpu/node1; mkfifo /var/lib/nhc-gpu/node1/history.jsonl", exit: 1, within: 3.5, action: drained},
	{name: "last event is a fifo", guard: "A4", conf: bad, set: "mkdir -p -m 700 /var/lib/nhc-gpu/node1; mkfifo /var/lib/nhc-gpu/node1/run-healthcheck.json", exit: 1, within: 3.5, action: drained},
	{name: "last event is garbage", conf: bad, set: "mkdir -p -m 700 /var/lib/nhc-gpu/node1; head -c 4096 /dev/urandom >/var/lib/nhc-gpu/node1/run-healthcheck.json", exit: 1, within: 2.5, action: drained},
	{name: "last event of 1 GB", guard: "A4", conf: bad, set: "mkdir -p -m 700 /var/lib/nhc-gpu/node1; truncate -s 1G /var/lib/nhc-gpu/node1/run-healthcheck.json", exit: 1, within: 3.5, action: drained},
	{name: "history on a full disk", guard: "A4", conf: bad, set: "mkdir -p /var/lib/nhc-gpu; mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs /var/lib/nhc-gpu", exit: 1, within: 2.5, action: drained},
}
