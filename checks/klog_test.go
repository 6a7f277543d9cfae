package checks

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// genuineLines are lines of the drivers: for each form of klog.go, in its order, every variant of
// its fields.
var genuineLines = [][]string{
	{
		"NVRM: Xid (PCI:0000:c1:00): 79, pid=4711, name=python, GPU has fallen off the bus.",
		"NVRM: Xid (PCI:0000:c1:00 GPU-I:02 GPU-CI:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008, intr 10000000",
		"NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 94, pid=7194, name=a, Contained: CE User Channel (0x9). RST: No, D-RST: No",
		"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
		"NVRM: Xid (PCI:0000:c5:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0 0x0)",
		"NVRM: Xid (PCI:0000:c1:00): 48, DBE",
	},
	{"NVRM: Xid (0000:03:00): 14, Channel 00000001", "NVRM: Xid (0000:03:00): 79, off"},
	{"NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.", "NVRM: GPU 10000:c1:00.0: GPU has fallen off the bus."},
	{
		`NVRM: The NVIDIA GPU 0000:c1:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`,
		`NVRM: The NVIDIA GPU 0000:04:00.0 (PCI ID: 10de:1b06)\x0aNVRM: installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`,
	},
	{
		"NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874",
		"NVRM: GPU0 nvAssertOkFailed: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from x @ y.c:1",
		"NVRM: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from x @ y.c:1",
	},
	{"NVRM: GPU at PCI:0000:c1:00: GPU-455d8f70-2051-db6c-0430-ffc457bff834"},
	{
		"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.148.08  Release Build",
		"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.161.08  Tue Mar 5 22:42:15 UTC 2024",
	},
	{"NVRM: None of the NVIDIA devices were initialized."},
	{"NVRM: The NVIDIA probe routine failed for 8 device(s)."},
	{
		"nvidia: version magic '5.14.0-427.el9.x86_64 SMP' should be '5.14.0-503.el9.x86_64 SMP'",
		"nvidia: disagrees about version of symbol module_layout", "nvidia: Unknown symbol drm_gem_object_free (err -2)",
	},
	{
		"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 01 LTSSM Fault Up",
		"nvidia-nvswitch11: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
	},
	{
		"vfio-pci 0000:c1:00.0: reset done", "nvidia 0000:c1:00.0: reset done", "pci 0000:c1:00.0: reset done",
		"nvgrace-gpu-vfio-pci 0009:01:00.0: reset done", "nvidia-vgpu-vfio 0000:c1:00.0: reset done", "nouveau 0000:c1:00.0: reset done",
	},
	{
		"mlx5_core 0000:23:00.0 eth13: Link down", "mlx5_core 0000:23:00.1 ib3: Link down", "bnxt_en 0000:23:00.0 eth13: NIC Link is Down",
		"ice 0000:23:00.0 e: NIC Link is Down", "qede 0000:23:00.0 eth13: Link is down", "sfc 0000:23:00.0 eth1: link down",
		"cxgb4 0000:23:00.4 enp35s0f4: link down", "ionic 0000:23:00.0 eth1: Link down", "i40e 0000:23:00.0 eth1: NIC Link is Down",
		"hns3 0000:bd:00.0 eth1: link down", "mana 7870:00:00.0 eth1: Link down", "iavf 0000:23:01.0 eth1: NIC Link is Down",
		"ixgbe 0000:23:00.0 eth1: NIC Link is Down", "enic 0000:23:00.0 eth1: Link down",
	},
	{"mlx5_core 0000:23:00.0: Port module event: module 0, Cable unplugged"},
}

var everySubject = []kernelSubject{AboutGPU, AboutLink, AboutDevice}

// listGenuine returns those lines and those of klog.toml.
func listGenuine() [][]string {
	lines := slices.Clone(genuineLines)
	for i := range MessageTable().Rows {
		lines = append(lines, MessageTable().Rows[i].Lines)
	}
	return lines
}

// The forms of klog.toml meet the same conditions as those of klog.go.
func TestMessageForms(t *testing.T) {
	t.Parallel()
	for i := range MessageTable().Rows {
		for _, line := range MessageTable().Rows[i].Lines {
			for _, about := range everySubject {
				if _, ok := Believe([]byte(line), false, about); ok != (about == AboutDevice) {
					t.Errorf("%s: about %d: %v", line, about, ok)
				}
				if _, ok := Believe([]byte(line), true, about); ok {
					t.Errorf("%s: believed with KERN_CONT", line)
				}
			}
			for _, other := range []string{" " + line, "a" + line, "[1] " + line, "kernel: " + line, strings.ToUpper(line), line[1:]} {
				if _, ok := Believe([]byte(other), false, AboutDevice); ok {
					t.Errorf("%q is believed", other)
				}
			}
		}
	}
}

func TestKernelForms(t *testing.T) {
	t.Parallel()
	if len(genuineLines) != len(kernelForms) {
		t.Fatalf("%d forms, lines of %d: give each form what its driver prints", len(kernelForms), len(genuineLines))
	}
	for i, f := range kernelForms {
		if f.Source == "" || f.Proof == "" {
			t.Errorf("%s: say what prints it, and why no user can", f.Form)
		}
		for _, line := range genuineLines[i] {
			l, ok := Believe([]byte(line), false, f.Subject)
			if !ok || l.kernelForm != &kernelForms[i] {
				t.Errorf("%s: %v, %+v, want form %d", line, ok, l, i)
			}
			for _, about := range everySubject {
				if _, ok := Believe([]byte(line), false, about); ok && about != f.Subject {
					t.Errorf("%s is about something else, too", line)
				}
			}
			if _, ok := Believe([]byte(line), true, f.Subject); ok != f.Cont {
				t.Errorf("%s, printed with KERN_CONT: %v", line, ok)
			}
			for _, other := range []string{" " + line, "a" + line, "[1] " + line, "kernel: " + line, strings.ToUpper(line), line[1:]} {
				if _, ok := Believe([]byte(other), false, f.Subject); ok {
					t.Errorf("%q is believed", other)
				}
			}
		}
	}
}

// userFormats are kernel lines with text that a user chooses:
//
//	{c} a process name, 15 bytes    {f} anything, any length     {g} a cgroup, without "/"
//	{n} an interface                {v} the version of a client  {p} a prefix of netfilter's
var userFormats = strings.Split(strings.TrimSpace(`
{c}[4711]: segfault at 7f1c3 ip 000055d0c0001139 sp 00007ffd error 4 in {f}[55d0c0001000+1000]
{c}[4711]: segfault at 7f1c3 ip 000055d0c0001139 sp 00007ffd error 4 in {f}[139,55d0c0001000+1000] likely on CPU 3 (core 3, socket 0)
{c}[4711]: segfault at 7f1c3 ip 000055d0c0001139 sp 00007ffd error 4
{c}[4711]: segfault (11) at 7f1c3 nip 10000 lr 10000 code 1 in {f}[10000+1000]
{c}[4711]: bad frame in handle_rt_signal64: 7ffd nip 10000 lr 10000
{c}[4711]: unhandled signal 11 at 0000000000000000 nip 10000 lr 10000 code 30001
{c}[4711]: unhandled exception: DABT (lower EL), ESR 0x92000046, level 2 translation fault in {f}[400000+1000]
{c}[4711]: undefined instruction: pc=00000000aa
{c}[4711]: syscall 4096
{c}[4711] trap invalid opcode ip:55d0 sp:7ffd error:0 in {f}[55d0c0001000+1000]
{c}[4711] general protection fault ip:55d0 sp:7ffd error:0 in {f}[55d0c0001000+1000]
{c}[4711] bad frame in rt_sigreturn frame:7ffd ip:55d0 sp:7ffd orax:ffffffffffffffff in {f}[55d0c0001000+1000]
{c}[4711] vsyscall attempted with vsyscall=none ip:ffffffffff600400 cs:33 sp:7ffd ax:0 si:0 di:0
{c}[4711] is installing a program with bpf_probe_write_user helper that may corrupt user memory!
traps: {c}[4711] trap int3 ip:55d0 sp:7ffd error:0 in {f}[55d0c0001000+1000]
traps: {c}[4711] general protection fault ip:55d0 sp:7ffd error:0 in {f}[55d0c0001000+1000]
{c} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
{c} cpuset={g} mems_allowed=0-1
{c} uses obsolete (PF_INET,SOCK_PACKET)
{c} (4711) used greatest stack depth: 11000 bytes left
{c} (4711): Using mlock ulimits for SHM_HUGETLB is obsolete
{c} (4711): drop_caches: 3
{c} (4711): /proc/4711/oom_adj is deprecated, please use /proc/4711/oom_score_adj instead.
{c}(4711): unaligned access to 0x600, ip=0x400
{c}/4711: potentially unexpected fatal signal 11.
{c}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={g},mems_allowed=0
{c}: page allocation stalls for 10000ms, order:0, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={g},mems_allowed=0
{c}: vmalloc error: size 4096, failed to allocate pages, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={g},mems_allowed=0
{c}: Corrupted page table at address 7f1c3
{c}: attempt to access beyond end of device
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={g},mems_allowed=0-1,oom_memcg=/{g},task_memcg=/{g},task={c},pid=4711,uid=1000
Memory cgroup out of memory: Killed process 4711 ({c}) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0
Out of memory: Killed process 4711 ({c}) total-vm:1kB
oom_reaper: reaped process 4711 ({c}), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB
[   4711]  1000  4711   100000    5000        0     0     0             0 {c}
Memory cgroup stats for /{g}:
Task in /{g} killed as a result of limit of /{g}
cgroup: fork rejected by pids controller in /{g}
cgroup: {c} (4711) created nested cgroup for controller "memory" which has incomplete hierarchy support.
cgroup: Unknown subsys name '{f}'
process '{f}' started with executable stack
process '{f}' launched '{f}' with NULL argv: empty string added
process {c} (4711) attempted a POSIX timer syscall while CONFIG_POSIX_TIMERS is not set
process `+"`{c}'"+` used the deprecated sysctl system call with 1.2.
warning: `+"`{c}'"+` uses 32-bit capabilities (legacy support in use)
warning: process `+"`{c}'"+` used the deprecated sysctl system call
INFO: task {c}:4711 blocked for more than 122 seconds.
NMI watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [{c}:4711]
task:{c} state:D stack:0 pid:4711 tgid:4711 ppid:1 flags:0x4006
watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [{c}:4711]
CPU: 3 PID: 4711 Comm: {c} Tainted: P           OE      6.8.0 #1
WARNING: CPU: 3 PID: 4711 at mm/x.c:1 {c}
BUG: Bad page map in process {c}  pte:1 pmd:1
BUG: Bad rss-counter state mm:1 type:MM_FILEPAGES val:1 Comm:{c} Pid:4711
Process {c} (pid: 4711, threadinfo 1, task 1)
x86/split lock detection: #AC: {c}/4711 took a split_lock trap at address: 0x401
audit: type=1701 audit(1790000000.1:1): auid=1000 uid=1000 gid=1000 ses=1 pid=4711 comm="{c}" exe="{f}" sig=11 res=1
audit: type=1400 audit(1790000000.1:1): apparmor="DENIED" operation="open" profile="{f}" name="{f}" pid=4711 comm="{c}" requested_mask="r"
audit: type=1300 audit(1790000000.1:1): {f}
netlink: 4 bytes leftover after parsing attributes in process `+"`{c}'"+`.
ptrace attach of "{f}"[1] was attempted by "{f}"[2]
coredump: 4711({c}): over coredump resource limit, skipping core dump
Process 4711({c}) has RLIMIT_CORE set to 1
random: {c}: uninitialized urandom read (4 bytes read)
capability: warning: `+"`{c}'"+` uses deprecated v2 capabilities in a way that may be insecure
request_module: modprobe {f} cannot be processed, kmod busy with 50 threads for more than 5 seconds now
tmpfs: Unknown parameter '{f}'
overlayfs: failed to resolve '{f}': -2
overlayfs: unrecognized mount option "{f}" or missing value
fuse: Unknown parameter '{f}'
EXT4-fs ({n}): mounted filesystem with ordered data mode. Opts: {f}
EXT4-fs error (device loop0): ext4_lookup:1700: inode #2: comm {c}: deleted inode referenced: 12
XFS (loop0): Mounting V5 Filesystem {f}
BTRFS: device label {f} devid 1 transid 5 /dev/sdb scanned by {c} (4711)
ISO 9660 Extensions: {f}
device-mapper: table: 253:0: {f}: unknown target type
md/raid1:{f}: active with 2 out of 2 mirrors
usb 1-1: Product: {f}
usb 1-1: Manufacturer: {f}
usb 1-1: SerialNumber: {f}
input: {f} as /devices/pci0000:00/0000:00:14.0/usb1/1-1/input/input5
hid-generic 0003:046D:C31C.0001: input,hidraw0: USB HID v1.10 Keyboard [{f}] on usb-0000:00:14.0-1/input0
scsi 0:0:0:0: Direct-Access     {f} 1.00 PQ: 0 ANSI: 4
nfs: server {f} not responding, still trying
NFS: nfs4_discover_server_trunking unhandled error -5. Exiting with error EIO {f}
CIFS: VFS: \\{f} has not responded in 180 seconds. Reconnecting...
{n}: renamed from {n}
{n}: port 1({n}) entered blocking state
br0: port 1({n}) entered disabled state
IPv6: ADDRCONF(NETDEV_CHANGE): {n}: link becomes ready
device {n} entered promiscuous mode
{n}: entered promiscuous mode
{n}: Link down
{n}: link is down
{n} (unregistering): Link down
mlx5_core 0000:23:00.2 {n}: renamed from {n}
mlx5_core 0000:23:00.2 {n}: entered promiscuous mode
TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:80. Sending cookies.  Check SNMP counters.
nf_conntrack: nf_conntrack: table full, dropping packet {c}
{p}IN=lo OUT= MAC=00:00:00:00:00:00 SRC=127.0.0.1 DST=127.0.0.1 LEN=60 TOS=0x00 PREC=0x00 TTL=64 ID=1 DF PROTO=TCP SPT=1 DPT=1
{p}IN= OUT=lo SRC=::1 DST=::1 LEN=60 TC=0 HOPLIMIT=64 FLOWLBL=1 PROTO=TCP SPT=1 DPT=1
{p}IN=lo OUT= ARP HTYPE=1 PTYPE=0x0800 OPCODE=1
{p}IN=lo OUT= MACSRC=00:00:00:00:00:00 MACDST=00:00:00:00:00:00 MACPROTO=88a8
{p} IN=lo OUT= MAC source = 00:00:00:00:00:00 MAC dest = 00:00:00:00:00:00 proto = 0x0800
{p}IN=lo OUT= TRUNCATED
NVRM: API mismatch: the client '{c}' (pid 4711)\x0aNVRM: has the version {v}, but this kernel module has\x0aNVRM: the version 580.65.06.  Please make sure that this\x0aNVRM: kernel module and all NVIDIA driver components\x0aNVRM: have the same version.
`), "\n")

// fills are the slots of userFormats and the bytes that are allowed there.
var fills = map[byte]func(s string) string{
	'c': func(s string) string { return s[:min(len(s), 15)] },
	'f': func(s string) string { return s },
	'g': func(s string) string { return strings.ReplaceAll(s, "/", "_") },
	'n': func(s string) string {
		s = strings.Map(func(r rune) rune {
			if r <= ' ' || r == ':' || r == '/' {
				return -1
			}
			return r
		}, s)
		return s[:min(len(s), maxDev)]
	},
	'v': func(s string) string { return s[:min(len(s), 63)] },
	'p': func(s string) string { return s[:min(len(s), 127)] },
}

// fill replaces the first slot of a format by one text and the others by another.
func fill(format, first, others string) string {
	var b strings.Builder
	text := first
	for i := 0; i < len(format); i++ {
		if format[i] == '{' && i+2 < len(format) && format[i+2] == '}' && fills[format[i+1]] != nil {
			b.WriteString(fills[format[i+1]](text))
			text = others
			i += 2
			continue
		}
		b.WriteByte(format[i])
	}
	return b.String()
}

// ofTasks are the formats that klog.toml has a row for: whatever the name of the task is, the line is the kernel's.
var ofTasks = map[string]string{
	"INFO: task {c}:4711 blocked for more than 122 seconds.":           "kernel.hung",
	"watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [{c}:4711]":     "kernel.softlockup",
	"NMI watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [{c}:4711]": "kernel.softlockup",
}

// isForged reports whether a trusted line with a user's text is another one than that of its format, or passes the
// text on.
func isForged(format string, l KernelLine) bool {
	return ofTasks[format] == "" || l.Row == nil || l.Row.Code != ofTasks[format] || l.PCI+l.Dev+l.Detail+l.Module+l.UUID+l.Rest != ""
}

// A line about a task counts whatever the task's name is.
func TestLinesOfTasks(t *testing.T) {
	t.Parallel()
	for format, code := range ofTasks {
		for _, name := range []string{"", "a", "a:1 b", "kworker/0:1", "x:1 blocked for", "123456789abcdef", `\x5cx0a\x0a`, ": :1 ]:2]"} {
			l, ok := Believe([]byte(strings.Replace(format, "{c}", name, 1)), false, AboutDevice)
			if !ok || isForged(format, l) {
				t.Errorf("%q in %q: %v, want %s", name, format, ok, code)
			}
		}
		if _, ok := Believe([]byte(strings.Replace(format, "{c}", "0123456789abcdef", 1)), false, AboutDevice); ok {
			t.Errorf("%q: a name of 16 bytes", format)
		}
	}
}

// No line with a user's text is trusted, whatever part of a genuine line the text is, at any
// place.
func TestHostileKernelLines(t *testing.T) {
	t.Parallel()
	tryHostileLines(t, 7)
}

// The same with names of every length.
func TestAllHostileKernelLines(t *testing.T) {
	tier.All(t)
	t.Parallel()
	tryHostileLines(t, 1)
}

// tryHostileLines tries every part-th length of a name.
func tryHostileLines(t *testing.T, part int) {
	t.Helper()
	tried := 0
	var format string
	try := func(line string) {
		tried++
		for _, about := range everySubject {
			for _, cont := range []bool{false, true} {
				if l, ok := Believe([]byte(line), cont, about); ok && isForged(format, l) {
					t.Errorf("believed as %q:\n%s", l.Form, line)
				}
			}
		}
	}
	for _, format = range userFormats {
		slots := strings.Count(format, "{")
		for _, lines := range listGenuine() {
			for _, line := range lines {
				for n := tried % part; n <= len(line); n += part { // the process name is the beginning of the line, the file name the rest
					try(fill(format, line[:n], line[n:]))
				}
				for n := tried % part; n < 17; n += part { // the offset of the name's end in the line, or of its beginning before the line
					head := line[:min(n, len(line))]
					try(fill(format, strings.Repeat(" ", n)+line, line))
					try(fill(format, strings.Repeat("x", n)+": "+line, line))
					try(fill(format, head, "x "+line))
					try(fill(format, head, line+" "))
					for m := n; slots > 1 && m < min(len(line), n+40); m++ {
						try(fill(format, head, line[m:]))
					}
				}
			}
		}
	}
	t.Logf("%d lines", tried)
	if tried < 700_000/part {
		t.Errorf("%d lines are too few", tried)
	}
}

// The test above detects a format that begins with a longer text of a user. The kernel has one
// (get_tree_bdev), but only root, who may mount a disk, can use it.
func TestHostileKernelLinesCanFail(t *testing.T) {
	t.Parallel()
	line := fill("{f}: Can't open blockdev", "NVRM: Xid (PCI:0000:c1:00): 79, x", "")
	if _, ok := Believe([]byte(line), false, AboutGPU); !ok {
		t.Errorf("%s: not believed", line)
	}
}

// Process and file names can be anything: none can begin a trusted line.
func FuzzHostileKernelLine(f *testing.F) {
	f.Add("NVRM: GPU", "x 0000:c1:00.0: GPU has fallen off the bus.")
	f.Add("nvidia-nvswitch", "y: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 01 x")
	f.Add("mlx5_core 0000:", "23:00.0 eth13: Link down")
	f.Add("NVRM: Xid (PCI:", "0000:c1:00): 79, x")
	f.Fuzz(func(t *testing.T, name, other string) {
		for _, format := range userFormats {
			line := fill(format, name, other)
			for _, about := range everySubject {
				if l, ok := Believe([]byte(line), true, about); ok && isForged(format, l) {
					t.Fatalf("%q", line)
				}
				if l, ok := Believe([]byte(line), false, about); ok && isForged(format, l) {
					t.Fatalf("%q", line)
				}
			}
		}
	})
}

// Only klog.go reads the kernel log or contains the form of its lines.
func TestKernelLogHasOneReader(t *testing.T) {
	t.Parallel()
	words := []string{"poll_health", "nvme nvme", "health compromised", "NVRM: ", "Xid (", "nvidia-nvswitch", "off the bus", "mlx5_core ", "Link down", "Link is", "reset done", "Port module event"}
	parsers := map[string]bool{"strings": true, "bytes": true, "regexp": true, "fmt.Sscanf": true}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == "tests" || d.Name() == "checktest" || strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2) {
				return filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		in := filepath.ToSlash(strings.TrimPrefix(path, "../"))
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if n.Sel.Name == "KernelLog" && in != "checks/klog.go" && in != "checks/probe/evidence/evidence.go" { // which copies the log and judges nothing
					t.Errorf("%s: Host.KernelLog: use readKernelLog, and give the line a row in klog.go", set.Position(n.Pos()))
				}
			case *ast.BasicLit:
				text, _ := strconv.Unquote(n.Value)
				switch {
				case strings.HasSuffix(text, "dev/kmsg") && n.Kind == token.STRING && in != "checks/probe/kmsg.go" && in != "checks/klog.go",
					(text == "dmesg" || text == "journalctl") && n.Kind == token.STRING && in != "checks/lbnl/cmd_dmesg.go":
					t.Errorf("%s: %s: only klog.go reads the kernel's log", set.Position(n.Pos()), n.Value)
				}
			case *ast.CallExpr:
				called, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || in == "checks/klog.go" {
					return true
				}
				pkg, ok := called.X.(*ast.Ident)
				if !ok || !parsers[pkg.Name] && !parsers[fmt.Sprintf("%s.%s", pkg.Name, called.Sel.Name)] {
					return true
				}
				for _, arg := range n.Args {
					ast.Inspect(arg, func(n ast.Node) bool {
						lit, ok := n.(*ast.BasicLit)
						if !ok || lit.Kind != token.STRING {
							return true
						}
						for _, w := range words {
							if strings.Contains(lit.Value, w) {
								t.Errorf("%s: %s: a line of the kernel's log is matched outside klog.go", set.Position(lit.Pos()), lit.Value)
							}
						}
						return true
					})
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A misspelled field would be the text between the braces.
func TestFieldsOfFormsAreKnown(t *testing.T) {
	t.Parallel()
	known := strings.Fields("pci pcifn mig rest dev br fn at ibdev ctrl text skip uuid hex digits n module word task")
	for _, f := range slices.Concat(kernelForms, MessageTable().Forms) {
		for _, part := range strings.Split(f.Form, "{")[1:] {
			field, _, closed := strings.Cut(part, "}")
			if !closed || !slices.Contains(known, field) && !strings.HasPrefix(field, "code ") && !strings.Contains(field, "|") {
				t.Errorf("%s: no field {%s}", f.Form, field)
			}
		}
	}
}
