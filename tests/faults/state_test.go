package faults

// memory writes a slurm.json of this boot with some fields.
func memory(fields string) string {
	return `mkdir -p -m 700 /run/nhc-gpu/node1; echo '{"version":1,"boot_id":"'$(cat /proc/sys/kernel/random/boot_id)'",` + fields + `}' >/run/nhc-gpu/node1/slurm.json; chmod 600 /run/nhc-gpu/node1/slurm.json
`
}

const (
	noScontrol = "mv bin/scontrol bin/was\n"
	// pending is a failed run without scontrol: its drain waits on the disk.
	pending = noScontrol + "cp nhc.conf was.conf; echo '" + "* || check_file_test -d /nowhere" + "' >nhc.conf; SLURMD_NODENAME=node1 sbin/nhc-gpu -c nhc.conf LOGFILE=- NHC_RM=slurm SLURM_SCONTROL=/mnt/bin/scontrol || true; cp was.conf nhc.conf; mv bin/was bin/scontrol\n"
	// ours is a node that a run has drained.
	ours = "cp nhc.conf was.conf; echo '" + "* || check_file_test -d /nowhere" + "' >nhc.conf; SLURMD_NODENAME=node1 sbin/nhc-gpu -c nhc.conf LOGFILE=- NHC_RM=slurm SLURM_SCONTROL=/mnt/bin/scontrol || true; cp was.conf nhc.conf; > updates\n"
)

// stateFaults break the memory of runs in /run/nhc-gpu and /var/lib/nhc-gpu. No such fault prevents
// a drain, and none resumes a node without a check.
var stateFaults = []fault{
	{name: "state on a full disk", guard: "A4", conf: bad, set: "mkdir -p /run/nhc-gpu; mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs /run/nhc-gpu", exit: 1, within: 2, action: drained},
	{name: "full disk with a pending drain, and all is well by now", conf: good, set: pending + "cat /dev/zero >/run/x || true", within: 2},
	{name: "full disk with a pending drain", guard: "A4, issue", conf: bad, set: pending + "cat /dev/zero >/run/x || true", exit: 1, within: 2, action: drained},
	{name: "full disk with a pending drain, and the configuration broken by then", guard: "A4, issue", conf: good, set: pending + "cat /dev/zero >/run/x || true; head -c 4096 /dev/zero >nhc.conf", exit: 3, within: 2, action: drained},
	{name: "full disk without any file of ours", guard: "A4", conf: bad, set: "rm -rf /run/nhc-gpu/node1; mkdir -m 700 /run/nhc-gpu/node1; cat /dev/zero >/run/x || true", exit: 1, within: 2, action: drained},
	{name: "full disk while a drain becomes pending", guard: "A4", conf: bad, set: noScontrol + "mkdir -p /run/nhc-gpu; mount -t tmpfs -o size=4k,nr_inodes=2 tmpfs /run/nhc-gpu", exit: 1, within: 2, action: kept, then: "mv bin/was bin/scontrol", thenExit: 1, thenAction: drained},
	{name: "state read-only", guard: "A4", conf: bad, set: "mkdir -p /run/nhc-gpu; mount -t tmpfs -o ro tmpfs /run/nhc-gpu", exit: 1, within: 2, action: drained},
	{name: "state read-only with a drain of ours", conf: good, set: ours + "mount -o remount,ro /run", within: 2, action: resumed},
	{name: "state directory is a file", conf: bad, set: "rm -rf /run/nhc-gpu; touch /run/nhc-gpu", exit: 1, within: 2, action: drained},
	{name: "state directory is a link", guard: "B1", conf: bad, set: "rm -rf /run/nhc-gpu; mkdir -m 777 /run/theirs; ln -s theirs /run/nhc-gpu", exit: 1, within: 2, action: drained},
	{name: "state directory is not root's", guard: "B1", conf: bad, set: "mkdir -p /run/nhc-gpu; chown 65534 /run/nhc-gpu", exit: 1, within: 2, action: drained},
	{name: "state directory is world-writable", guard: "B1", conf: bad, set: "mkdir -p /run/nhc-gpu; chmod 777 /run/nhc-gpu", exit: 1, within: 2, action: drained},
	{name: "no /run", conf: bad, set: "mount -t tmpfs -o ro tmpfs /run", exit: 1, within: 2, action: drained},
	{name: "no /var/lib", conf: bad, set: "mount -t tmpfs -o ro tmpfs /var/lib", exit: 1, within: 2, action: drained},
	{name: "memory is garbage", guard: "A4", conf: bad, set: "mkdir -p -m 700 /run/nhc-gpu/node1; head -c 4096 /dev/urandom >/run/nhc-gpu/node1/slurm.json", exit: 1, within: 2, action: drained},
	{name: "memory is half of what it was", conf: bad, set: ours + "echo IDLE >state; truncate -s 40 /run/nhc-gpu/node1/slurm.json", exit: 1, within: 2, action: drained},
	{name: "memory of another version", conf: bad, set: "mkdir -p -m 700 /run/nhc-gpu/node1; echo '{\"version\":99,\"told\":\"drained\"}' >/run/nhc-gpu/node1/slurm.json", exit: 1, within: 2, action: drained},
	{name: "memory of another boot", conf: bad, set: "mkdir -p -m 700 /run/nhc-gpu/node1; echo '{\"version\":1,\"boot_id\":\"x\",\"told\":\"drained\"}' >/run/nhc-gpu/node1/slurm.json", exit: 1, within: 2, action: drained},
	{name: "memory is a directory", conf: bad, set: "mkdir -p /run/nhc-gpu/node1/slurm.json; chmod 700 /run/nhc-gpu/node1", exit: 1, within: 2, action: drained},
	{name: "memory is a fifo", guard: "A4", conf: bad, set: "mkdir -p -m 700 /run/nhc-gpu/node1; mkfifo -m 600 /run/nhc-gpu/node1/slurm.json", words: "-t 6", exit: 1, within: 7.5, action: drained},
	{name: "memory is a link to another file", guard: "B1", conf: bad, set: "mkdir -p -m 700 /run/nhc-gpu/node1; echo precious >precious; ln -s /mnt/precious /run/nhc-gpu/node1/slurm.json", exit: 1, within: 2, action: drained},
	{name: "memory of 1 GB", guard: "A4", conf: bad, set: "mkdir -p -m 700 /run/nhc-gpu/node1; truncate -s 1G /run/nhc-gpu/node1/slurm.json", words: "-t 6", exit: 1, within: 7.5, action: drained},
	{name: "memory that says in service, and the node is drained by hand", guard: "C1", conf: bad, set: memory(`"told":"ok"`) + "echo 'IDLE+DRAIN by hand' >state", exit: 1, within: 2},
	{name: "memory that says drained, and the node was resumed by hand", guard: "C2", conf: bad, set: ours + "echo IDLE >state; rm -rf /run/nhc-gpu/node1", exit: 1, within: 2, action: drained},
	{name: "ledger is garbage", conf: bad, set: "mkdir -p -m 700 /run/nhc-gpu/node1; echo garbage >/run/nhc-gpu/node1/ledger.json", exit: 1, within: 2, action: drained},
	{name: "ledger names every process", guard: "A4", conf: bad, set: `mkdir -p -m 700 /run/nhc-gpu/node1; echo '{"version":1,"corpses":[{"pid":1,"lane":"local"}]}' >/run/nhc-gpu/node1/ledger.json`, exit: 1, within: 2, action: drained},
	{name: "ledger of 100 MB", conf: bad, set: `mkdir -p -m 700 /run/nhc-gpu/node1; truncate -s 100M /run/nhc-gpu/node1/ledger.json`, words: "-t 6", exit: 1, within: 7.5, action: drained},
	{name: "state directory that is deleted in mid-run", conf: "* || rm -rf /run/nhc-gpu\n" + bad, exit: 1, within: 2, action: drained},
	{name: "boot id cannot be read", conf: bad, set: "mount --bind /dev/null /proc/sys/kernel/random/boot_id", exit: 1, within: 2, action: drained},
}
