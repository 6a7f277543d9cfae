package checks

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file alone decides which lines of the kernel log are trusted, and why. To use another
// line, add a row to kernelForms or, for a driver's message about its device, to klog.toml. The
// test of this file then tries to forge the row with every line that contains a user's text.
//
// A process cannot write a record of facility 0, not even root through /dev/kmsg. But such a
// record can contain text that a user chooses:
//
//   - a process name, up to 15 arbitrary bytes, also as the first bytes of the
//     record: "NAME[PID]: segfault at ...". One of "[", ":", " ", "/" and "(" follows;
//   - the name of a file or a cgroup, a label, a mount option: any length, never first;
//   - the name of a network interface: 15 bytes without blank, colon and slash;
//   - the version string of a client of the NVIDIA driver, 63 bytes after
//     "NVRM: API mismatch: the client ";
//   - a prefix of netfilter, 127 bytes, first, if net.netfilter.nf_log_all_netns
//     lets user namespaces log: see netfilterLine;
//   - the name of a cpuset as a separate fragment, which [probe.KernelLog] removes.
//
// Therefore a form must match the whole record, from the first byte to the last, and must have
// fixed bytes after the first 15.

// kernelSubject is the subject of a form.
type kernelSubject int

// The subjects.
const (
	AboutGPU kernelSubject = iota
	AboutLink
	AboutDevice // a network adapter, a disk, or a task or CPU that hangs: klog.toml
)

// kernelKind is the meaning of a form's lines.
type kernelKind int

// The meanings.
const (
	SaysXid kernelKind = iota
	SaysSXid
	SaysLost
	SaysLostLong
	SaysResetRequired
	SaysUUID
	SaysLoad
	SaysReset
	SaysNoModule
	SaysProbeFailed
	saysLinkDown
	SaysUnplugged
	saysMessage // a row of klog.toml
)

// kernelForm is the form of one kind of trusted line. Form can contain
//
// {pci}     a PCI address; {pcifn} one with its function
// {mig}     nothing, or the MIG instances: " GPU-I:02 GPU-CI:00"
// {code N}  a number of up to N digits, followed by a comma and any text
// {rest}    any text
// {dev}     a network interface
// {a|b}     one of these
// {br}      a line break, as the kernel or syslog writes it, with the driver's prefix
// {fn}      nothing, or a GPU and a function: "GPU0 nvAssertFailed: "
// {at}      nothing, or function, line and process: "poll_health:174:(pid 0): "
// {ibdev}   nothing, or a blank and an RDMA device
// {ctrl}    a disk's controller: nvme0
// {text}    any text up to the next part of the form; {skip} the same, but not kept
// {uuid}    a GPU's UUID
// {hex}     a hexadecimal number
// {digits}  a number of up to 4 digits
// {n}       a number of up to 10 digits; {module} the same
// {word}    any text up to a blank
// {task}    the name of a task, which a user chooses, and its PID: python:4711
type kernelForm struct {
	Subject kernelSubject
	Kind    kernelKind
	Cont    bool // also in a record with flag c: the driver prints with KERN_CONT
	Form    string
	Source  string // the kernel or driver function that prints it
	Proof   string // why no user can forge it
}

// Drivers whose messages name a GPU's reset or a lost link.
const (
	resetDrivers = "{nvidia|vfio-pci|nvgrace-gpu-vfio-pci|nvidia-vgpu-vfio|nouveau|pci}"
	linkDrivers  = "{mlx5_core|bnxt_en|ice|i40e|ixgbe|iavf|qede|ionic|cxgb4|hns3|sfc|enic|mana}"
	linkTexts    = "{Link down|Link is down|Link is Down|NIC Link is Down|link down|link is down}"
)

var kernelForms = []kernelForm{
	{
		AboutGPU, SaysXid, true, "NVRM: Xid (PCI:{pci}{mig}): {code 4}",
		"NVIDIA open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/rc/kernel_rc.c, krcReportXid",
		`"NVRM: Xid (PCI:" is 15 bytes: a name ends there at the latest, and no format continues with a hexadecimal digit`,
	},
	{
		AboutGPU, SaysXid, true, "NVRM: Xid ({pci}{mig}): {code 4}",
		"the same of drivers before 361",
		`a name ends in the address at the latest ("NVRM: Xid (0000"), where ":" and two hexadecimal digits follow; a format has a blank behind its colon`,
	},
	{
		AboutGPU, SaysLost, true, "NVRM: GPU {pci}: GPU has fallen off the bus.",
		"NVIDIA open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/osinit.c, osHandleGpuLost",
		`a name ends in the address at the latest ("NVRM: GPU 0000:"), where two hexadecimal digits follow`,
	},
	{
		AboutGPU, SaysLostLong, true,
		"NVRM: The NVIDIA GPU {pci}{br}(PCI ID: {hex}:{hex}){br}installed in this system has{br}fallen off the bus and is not responding to commands.",
		"NVIDIA open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/osapi.c, rm_is_supported_device",
		`a name ends at "NVRM: The NVIDI" at the latest, where no format continues with "A"`,
	},
	{
		AboutGPU, SaysResetRequired, true, "NVRM: {fn}Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x{hex}){rest}",
		"NVIDIA open-gpu-kernel-modules, src/nvidia/src/libraries/utils/nvassert.c, nvAssertOkFailed",
		`a name ends within "NVRM: Assertion" at the latest or in the name of the function, which no format completes: each has a byte that no function's name has, or a blank and other words behind its colon`,
	},
	{
		AboutGPU, SaysUUID, true, "NVRM: GPU at PCI:{pci}: {uuid}",
		"NVIDIA open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/rc/kernel_rc.c, _krcLogUuidOnce",
		`a name ends at "NVRM: GPU at PC" at the latest, where no format continues with "I"`,
	},
	{
		AboutGPU, SaysLoad, true, "NVRM: loading NVIDIA UNIX {rest}",
		"NVIDIA open-gpu-kernel-modules, kernel-open/nvidia/nv.c, nvidia_init_module",
		`a name ends at "NVRM: loading N" at the latest, where no format continues with "V"`,
	},
	{
		AboutGPU, SaysProbeFailed, true, "NVRM: None of the NVIDIA devices were initialized.",
		"NVIDIA open-gpu-kernel-modules, kernel-open/nvidia/nv.c, nvidia_init_module",
		`a name ends at "NVRM: None of t" at the latest, where no format continues with "h"`,
	},
	{
		AboutGPU, SaysProbeFailed, true, "NVRM: The NVIDIA probe routine failed for {digits} device(s).",
		"the same",
		`a name ends at "NVRM: The NVIDI" at the latest, where no format continues with "A"`,
	},
	{
		AboutGPU, SaysNoModule, false, "nvidia: {version magic|disagrees about version of symbol|Unknown symbol} {rest}",
		"Linux, kernel/module/main.c and version.c, check_modinfo, check_version and simplify_symbols",
		`a name ends at "nvidia: version", "nvidia: disagre" or "nvidia: Unknown" at the latest, where no format continues with these words`,
	},
	{
		AboutGPU, SaysSXid, false, "nvidia-nvswitch{digits}: SXid (PCI:{pci}): {code 5}",
		"NVIDIA open-gpu-kernel-modules, src/common/nvswitch/kernel/inc/common_nvswitch.h, NVSWITCH_PRINT_SXID",
		`"nvidia-nvswitch" is 15 bytes: a name ends there at the latest, and no format continues with a digit`,
	},
	{
		AboutGPU, SaysReset, false, resetDrivers + " {pcifn}: reset done",
		"Linux, drivers/pci/pci.c, pci_dev_restore",
		`the shortest, "pci 0000:c1:00.0", is 16 bytes: a name ends in the address, and no format continues with the rest of it`,
	},
	{
		AboutLink, saysLinkDown, false, linkDrivers + " {pcifn} {dev}: " + linkTexts,
		"Linux, netdev_info of drivers/net/ethernet/.../ (mlx5_core: en_main.c, mlx5e_update_carrier)",
		`the shortest, "ice 0000:23:00.0", is 16 bytes: a name ends in the address, and no format continues with the rest of it; an interface's name has no blank`,
	},
	{
		AboutLink, SaysUnplugged, false, "mlx5_core {pcifn}: Port module event: module {digits}, Cable unplugged",
		"Linux, drivers/net/ethernet/mellanox/mlx5/core/events.c, port_module",
		`a name ends at "mlx5_core 0000:" at the latest, where two hexadecimal digits follow`,
	},
}

// LogsLinkLoss reports whether a driver is known to write a line for each link that it finds lost:
// mlx5e_update_carrier in drivers/net/ethernet/mellanox/mlx5/core/en_main.c.
func LogsLinkLoss(driver string) bool { return driver == "mlx5_core" }

// KernelLine is a trusted line.
type KernelLine struct {
	*kernelForm

	PCI    string // 0000:c1:00.0
	Dev    string // of {dev} and {ctrl}
	Code   string
	UUID   string
	Rest   string // of {code} and {rest}
	Detail string // of {text}
	Number string // of {n}
	Module string
	Text   string // the whole line

	Row *MessageRow // the row of klog.toml that matched
}

// Words returns the line without the driver's name and without line breaks.
func (l KernelLine) Words() string {
	return XidText(lineBreaks.Replace(strings.TrimPrefix(l.Text, "NVRM: ")))
}

// lineBreaks replaces the line breaks of a multi-line record, as /dev/kmsg and rsyslog write
// them.
var lineBreaks = strings.NewReplacer(`\x0a`, " ", "#012", " ", "\n", " ")

// ReadKernelLog calls each with the trusted lines of the kernel log about a subject, starting
// at the record number from.
func ReadKernelLog(env *Env, from uint64, about kernelSubject, each func(probe.KernelRecord, KernelLine)) (probe.KernelLogEnd, error) {
	env.At("read /dev/kmsg")
	return probe.KernelLog(env.Host, from, func(r probe.KernelRecord) {
		if l, ok := Believe(r.Text, r.Cont, about); ok {
			each(r, l)
		}
	})
}

// UnreadableLog returns the finding for a kernel log that cannot be read. In a container
// without the log, the check is skipped.
func UnreadableLog(env *Env, check string, err error) []Finding {
	if env.Host.InContainer() && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
		return []Finding{Finding{Code: "probe.contained", Severity: Skip}.Describe(check, "this container has no access to the kernel log")}
	}
	return Unreadable(err)
}

// Believe matches the text of a record of facility 0. If the text has another origin, such as a
// syslog file, any user could have written it: the caller must not trust the result.
func Believe(text []byte, cont bool, about kernelSubject) (KernelLine, bool) {
	if len(text) == 0 || len(text) > maxKernelLine {
		return KernelLine{}, false
	}
	forms := kernelForms
	if about == AboutDevice {
		if !OfDevice(text) {
			return KernelLine{}, false
		}
		forms = MessageTable().Forms
	}
	for i := range forms {
		f := &forms[i]
		if f.Subject != about || cont && !f.Cont || f.Form[0] != '{' && f.Form[0] != text[0] {
			continue
		}
		if l, ok := f.Match(strings.TrimRight(string(text), "\r\n ")); ok {
			if about == AboutDevice {
				l.Row = MessageTable().RowOf[i]
			}
			return l, true
		}
	}
	return KernelLine{}, false
}

// maxKernelLine is the maximum length of a record, in bytes.
const maxKernelLine = 8 << 10

// Match matches the whole text.
func (f *kernelForm) Match(text string) (l KernelLine, ok bool) {
	l = KernelLine{kernelForm: f, Text: text}
	for form := f.Form; form != ""; {
		fixed, field, more := strings.Cut(form, "{")
		if !strings.HasPrefix(text, fixed) {
			return l, false
		}
		text = text[len(fixed):]
		if !more {
			break
		}
		field, form, _ = strings.Cut(field, "}")
		if field == "text" || field == "skip" {
			next, _, _ := strings.Cut(form, "{")
			i := strings.Index(text, next)
			if i < 0 || next == "" {
				return l, false
			}
			if field == "text" {
				l.Detail = text[:i]
			}
			text = text[i:]
			continue
		}
		if text, ok = l.takeField(field, text); !ok {
			return l, false
		}
	}
	return l, text == "" && !isNetfilterLine(l.Rest)
}

// takeField matches one field at the beginning of the text and returns the rest.
func (l *KernelLine) takeField(name, text string) (rest string, ok bool) {
	n := 0
	switch name {
	case "pci", "pcifn":
		n = countAddress(text)
		l.PCI, ok = PCIAddress(text[:n])
		return text[n:], ok && (name == "pci" || strings.Contains(text[:n], "."))
	case "code 4", "code 5":
		n = countWhile(text, isDigit)
		if n == 0 || n > int(name[5]-'0') || n < len(text) && text[n] != ',' {
			return "", false
		}
		l.Code, l.Rest = text[:n], strings.TrimPrefix(strings.TrimPrefix(text[n:], ","), " ")
		return "", true
	case "rest":
		l.Rest = text
		return "", true
	case "dev":
		n = countWhile(text, isDevByte)
		l.Dev = text[:n]
		return text[n:], n > 0 && n <= maxDev
	case "uuid":
		n = countWhile(text, func(c byte) bool { return IsHex(c) || c == '-' || c == 'G' || c == 'P' || c == 'U' })
		l.UUID = text[:n]
		return text[n:], n <= 64 && strings.HasPrefix(l.UUID, "GPU-")
	case "hex":
		n = countWhile(text, IsHex)
		return text[n:], n > 0
	case "digits":
		n = countWhile(text, isDigit)
		return text[n:], n > 0 && n <= 4
	case "mig":
		for _, part := range []string{" GPU-I:", " GPU-CI:"} {
			if after, ok := strings.CutPrefix(text, part); ok {
				text = after[countWhile(after, isDigit):]
			}
		}
		return text, true
	case "br":
		for _, br := range []string{`\x0a`, "#012", "\n", " "} {
			if after, ok := strings.CutPrefix(text, br); ok {
				return strings.TrimPrefix(after, "NVRM: "), true
			}
		}
		return "", false
	case "fn":
		return cutFunction(text), true
	case "at":
		return cutPlace(text), true
	case "ibdev":
		if after, ok := strings.CutPrefix(text, " "); ok {
			n = countWhile(after, isDevByte)
			return after[n:], n > 0 && n <= 64
		}
		return text, true
	case "ctrl":
		after, ok := strings.CutPrefix(text, "nvme")
		n = countWhile(after, isDigit)
		l.Dev = text[:len(text)-len(after)+n]
		return after[n:], ok && n > 0 && n <= 4
	case "n", "module":
		if n = countWhile(text, isDigit); n == 0 || n > 10 {
			return "", false
		}
		if name == "n" {
			l.Number = text[:n]
		} else {
			l.Module = text[:n]
		}
		return text[n:], true
	case "task":
		return cutTask(text)
	case "word":
		n = countWhile(text, func(c byte) bool { return c > ' ' && c != 0x7f })
		return text[n:], n > 0
	}
	best := ""
	for word := range strings.SplitSeq(name, "|") {
		if strings.HasPrefix(text, word) && len(word) > len(best) {
			best = word
		}
	}
	return text[len(best):], best != ""
}

const (
	maxDev  = 15 // IFNAMSIZ without its end
	maxTask = 15 // TASK_COMM_LEN without its end
)

// cutTask cuts off the name of a task and its PID: "kworker/0:1:4711". The kernel writes a byte that cannot be printed
// as four: \x0a.
func cutTask(text string) (rest string, ok bool) {
	for n, at := 0, 0; n <= maxTask && at < len(text); n++ {
		if text[at] == ':' {
			digits := countWhile(text[at+1:], isDigit)
			if after := text[at+1+digits:]; digits > 0 && digits <= 10 && (strings.HasPrefix(after, " ") || after == "]") {
				rest, ok = after, true // the last one: a name can look like this, too
			}
		}
		if strings.HasPrefix(text[at:], `\x`) {
			at += 4
		} else {
			at++
		}
	}
	return rest, ok
}

// cutFunction cuts off "GPU0 " and "nvAssertOkFailedNoLog: " if present.
func cutFunction(text string) string {
	if after, ok := strings.CutPrefix(text, "GPU"); ok {
		if n := countWhile(after, isDigit); n > 0 && strings.HasPrefix(after[n:], " ") {
			text = after[n+1:]
		}
	}
	n := countWhile(text, isWordByte)
	if after, ok := strings.CutPrefix(text[n:], ": "); ok && n > 0 {
		return after
	}
	return text
}

// cutPlace cuts off "poll_health:174:(pid 0): " if present; some kernels omit the
// process.
func cutPlace(text string) string {
	n := countWhile(text, isWordByte)
	after, ok := strings.CutPrefix(text[n:], ":")
	digits := countWhile(after, isDigit)
	after, ok2 := strings.CutPrefix(after[digits:], ":")
	if !ok || !ok2 || n == 0 || digits == 0 {
		return text
	}
	if rest, ok := strings.CutPrefix(after, "(pid "); ok {
		rest = rest[countWhile(rest, isDigit):]
		if after, ok = strings.CutPrefix(rest, "):"); !ok {
			return text
		}
	}
	if after, ok = strings.CutPrefix(after, " "); ok {
		return after
	}
	return text
}

// isDevByte reports whether c can be in the name of a device.
func isDevByte(c byte) bool { return c > ' ' && c != ':' && c != '/' && c != 0x7f }

func isWordByte(c byte) bool { return c == '_' || isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z' }

// countAddress returns the number of leading bytes that can be a PCI address.
func countAddress(text string) int {
	n := countWhile(text, func(c byte) bool { return IsHex(c) || c == ':' })
	if n+1 < len(text) && text[n] == '.' && IsHex(text[n+1]) {
		return n + 2
	}
	if n > 0 && text[n-1] == ':' { // the one behind it
		return n - 1
	}
	return n
}

// countWhile returns the number of leading bytes that satisfy is.
func countWhile(text string, is func(byte) bool) int {
	n := 0
	for n < len(text) && is(text[n]) {
		n++
	}
	return n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// IsHex reports whether c is a hexadecimal digit.
func IsHex(c byte) bool {
	return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f'
}

// isNetfilterLine reports whether a text has the fields that netfilter writes after a rule's
// prefix, "IN=lo OUT= ... PREC=0x00": with nf_log_all_netns a user chooses the prefix. A process
// name is too short for these fields, so a user cannot make a real line look like netfilter's.
func isNetfilterLine(text string) bool {
	_, text, ok := strings.Cut(text, "IN=")
	if !ok {
		return false
	}
	if _, text, ok = strings.Cut(text, " OUT="); !ok {
		return false
	}
	for _, mark := range []string{" PREC=0x", " HOPLIMIT=", "ARP HTYPE=", "MACPROTO=", "MAC source = ", "TRUNCATED"} {
		if strings.Contains(text, mark) {
			return true
		}
	}
	return false
}

// LogReader is a check that can read syslog files.
type LogReader interface {
	// LogFiles returns the files.
	LogFiles() []string
}

// UserWritten returns the syslog files that a check reads. Any user can write to
// them with logger(1), but not to the kernel log.
func UserWritten(name string, args []string, table map[string]any) []string {
	info, ok := Lookup(name)
	if !ok {
		return nil
	}
	c, ok := info.New().(LogReader)
	if !ok {
		return nil
	}
	if BindLine(c.(Check), args, table) != nil {
		return nil
	}
	return c.LogFiles()
}

// PastedLine finds a driver's message about a subject in a line that a user pasted, with
// or without the prefix of dmesg or syslog. Use it to explain a line, not to judge a node.
func PastedLine(text string, about kernelSubject) (KernelLine, bool) {
	starts := map[kernelSubject][]string{
		AboutGPU: {"NVRM: ", "nvidia-nvswitch", "vfio-pci ", "nvidia ", "pci "}, AboutLink: strings.Split(strings.Trim(linkDrivers, "{}"), "|"), AboutDevice: deviceDrivers,
	}
	for _, start := range starts[about] {
		if i := strings.Index(text, start); i >= 0 {
			if l, ok := Believe([]byte(text[i:]), false, about); ok {
				return l, true
			}
		}
	}
	return KernelLine{}, false
}

// XidText turns s into one printable line of at most MaxXidText bytes.
func XidText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	s = strings.TrimRight(s, ". ")
	return s[:min(len(s), MaxXidText)]
}

// MaxXidText is the maximum length of a stored line, in bytes.
const MaxXidText = 160
