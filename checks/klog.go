package checks

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file alone decides which lines of the kernel's log are believed, and why.
// A check that wants another line adds a row to kernelForms or, if it is a message of a
// driver about its device, to klog.toml; the test beside it then tries to forge the row
// with every line that carries a user's text.
//
// What a user can put into a record of facility 0 (a process cannot write one, not
// even root, by /dev/kmsg):
//
//   - a process name, up to 15 bytes of anything, even as the first bytes of the
//     record: "NAME[PID]: segfault at ...". One of "[", ":", " ", "/" and "(" follows;
//   - a file's name, a cgroup's, a label, a mount option: any length, never first;
//   - the name of a network interface: 15 bytes without blank, colon and slash;
//   - the version string of a client of the NVIDIA driver, 63 bytes behind
//     "NVRM: API mismatch: the client ";
//   - a prefix of netfilter's, 127 bytes and first, where net.netfilter.nf_log_all_netns
//     lets user namespaces log: see netfilterLine;
//   - the name of a cpuset as a fragment of its own, which [probe.KernelLog] holds
//     back.
//
// So a form is matched from the first byte of the record to its last, and its fixed
// bytes go on behind the first 15.

// kernelSubject is the subject of a form.
type kernelSubject int

// The subjects.
const (
	AboutGPU kernelSubject = iota
	AboutLink
	AboutDevice // a network adapter or a disk: klog.toml
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
	SaysNoDriver
	saysLinkDown
	SaysUnplugged
	saysMessage // a row of klog.toml
)

// kernelForm is one form of the lines that are believed. Form may contain
//
//	{pci}     a PCI address; {pcifn} one with its function
//	{mig}     nothing, or the parts of MIG: " GPU-I:02 GPU-CI:00"
//	{code N}  a number of up to N digits, and behind a comma any text
//	{rest}    any text
//	{dev}     a network interface
//	{a|b}     one of these
//	{br}      a line break, as the kernel or syslog writes it, with the driver's prefix
//	{fn}      nothing, or which GPU and which function: "GPU0 nvAssertFailed: "
//	{at}      nothing, or function, line and process: "poll_health:174:(pid 0): "
//	{ibdev}   nothing, or a blank and an RDMA device
//	{ctrl}    a disk's controller: nvme0
//	{text}    any text up to what follows it in the form
//	{uuid} {hex} {digits} {n} {module} {word}
type kernelForm struct {
	Subject kernelSubject
	Kind    kernelKind
	Cont    bool // also in a record of flag c: the driver prints with KERN_CONT
	Form    string
	Source  string // the function that prints it
	Proof   string // why no user can print it
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
		`"NVRM: Xid (PCI:" is 15 bytes: a name ends there at the latest, and no format goes on with a hexadecimal digit`,
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
		`a name ends at "NVRM: The NVIDI" at the latest, where no format goes on with "A"`,
	},
	{
		AboutGPU, SaysResetRequired, true, "NVRM: {fn}Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x{hex}){rest}",
		"NVIDIA open-gpu-kernel-modules, src/nvidia/src/libraries/utils/nvassert.c, nvAssertOkFailed",
		`a name ends within "NVRM: Assertion" at the latest or in the name of the function, which no format completes: each has a byte that no function's name has, or a blank and other words behind its colon`,
	},
	{
		AboutGPU, SaysUUID, true, "NVRM: GPU at PCI:{pci}: {uuid}",
		"NVIDIA open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/rc/kernel_rc.c, _krcLogUuidOnce",
		`a name ends at "NVRM: GPU at PC" at the latest, where no format goes on with "I"`,
	},
	{
		AboutGPU, SaysLoad, true, "NVRM: loading NVIDIA UNIX {rest}",
		"NVIDIA open-gpu-kernel-modules, kernel-open/nvidia/nv.c, nvidia_init_module",
		`a name ends at "NVRM: loading N" at the latest, where no format goes on with "V"`,
	},
	{
		AboutGPU, SaysNoDriver, true, "NVRM: None of the NVIDIA devices were initialized.",
		"NVIDIA open-gpu-kernel-modules, kernel-open/nvidia/nv.c, nvidia_init_module",
		`a name ends at "NVRM: None of t" at the latest, where no format goes on with "h"`,
	},
	{
		AboutGPU, SaysNoDriver, true, "NVRM: The NVIDIA probe routine failed for {digits} device(s).",
		"the same",
		`a name ends at "NVRM: The NVIDI" at the latest, where no format goes on with "A"`,
	},
	{
		AboutGPU, SaysNoDriver, false, "nvidia: {version magic|disagrees about version of symbol|Unknown symbol} {rest}",
		"Linux, kernel/module/main.c and version.c, check_modinfo, check_version and simplify_symbols",
		`a name ends at "nvidia: version", "nvidia: disagre" or "nvidia: Unknown" at the latest, where no format goes on with these words`,
	},
	{
		AboutGPU, SaysSXid, false, "nvidia-nvswitch{digits}: SXid (PCI:{pci}): {code 5}",
		"NVIDIA open-gpu-kernel-modules, src/common/nvswitch/kernel/inc/common_nvswitch.h, NVSWITCH_PRINT_SXID",
		`"nvidia-nvswitch" is 15 bytes: a name ends there at the latest, and no format goes on with a digit`,
	},
	{
		AboutGPU, SaysReset, false, resetDrivers + " {pcifn}: reset done",
		"Linux, drivers/pci/pci.c, pci_dev_restore",
		`the shortest, "pci 0000:c1:00.0", is 16 bytes: a name ends in the address, and no format goes on with what is left of it`,
	},
	{
		AboutLink, saysLinkDown, false, linkDrivers + " {pcifn} {dev}: " + linkTexts,
		"Linux, netdev_info of drivers/net/ethernet/.../ (mlx5_core: en_main.c, mlx5e_update_carrier)",
		`the shortest, "ice 0000:23:00.0", is 16 bytes: a name ends in the address, and no format goes on with what is left of it; an interface's name has no blank`,
	},
	{
		AboutLink, SaysUnplugged, false, "mlx5_core {pcifn}: Port module event: module {digits}, Cable unplugged",
		"Linux, drivers/net/ethernet/mellanox/mlx5/core/events.c, port_module",
		`a name ends at "mlx5_core 0000:" at the latest, where two hexadecimal digits follow`,
	},
}

// KernelLine is a line that is believed.
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

	Row *MessageRow // of a line about a device
}

// Words is the line without the driver's name and without line breaks.
func (l KernelLine) Words() string {
	return XidText(lineBreaks.Replace(strings.TrimPrefix(l.Text, "NVRM: ")))
}

// lineBreaks are those of a record of several lines, as /dev/kmsg and as rsyslog
// write them.
var lineBreaks = strings.NewReplacer(`\x0a`, " ", "#012", " ", "\n", " ")

// ReadKernelLog gives the believed lines of the kernel's own log about a subject, from
// record number from on.
func ReadKernelLog(env *Env, from uint64, about kernelSubject, each func(probe.KernelRecord, KernelLine)) (probe.KernelLogEnd, error) {
	env.At("read /dev/kmsg")
	return probe.KernelLog(env.Host, from, func(r probe.KernelRecord) {
		if l, ok := Believe(r.Text, r.Cont, about); ok {
			each(r, l)
		}
	})
}

// UnreadableLog returns the finding of a kernel's log that cannot be read. A container that
// was not given the log is skipped.
func UnreadableLog(env *Env, check string, err error) []Finding {
	if env.Host.InContainer() && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
		return []Finding{Finding{Code: "probe.contained", Severity: Skip}.Describe(check, "this container does not show the kernel's log")}
	}
	return Unreadable(err)
}

// Believe matches the text of a record of facility 0. Any user can write text of another
// origin, such as a file of syslog: the result is then only what the line would mean.
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

// maxKernelLine is the largest length of a line, bytes: a record ends there.
const maxKernelLine = 8 << 10

// Match matches the whole of a text.
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
		if text, ok = l.field(field, text); !ok {
			return l, false
		}
	}
	return l, text == "" && !netfilterLine(l.Rest)
}

// field takes a field off the text.
func (l *KernelLine) field(name, text string) (rest string, ok bool) {
	n := 0
	switch name {
	case "pci", "pcifn":
		n = addressLength(text)
		l.PCI, ok = PCIAddress(text[:n])
		return text[n:], ok && (name == "pci" || strings.Contains(text[:n], "."))
	case "code 4", "code 5":
		n = span(text, isDigit)
		if n == 0 || n > int(name[5]-'0') || n < len(text) && text[n] != ',' {
			return "", false
		}
		l.Code, l.Rest = text[:n], strings.TrimPrefix(strings.TrimPrefix(text[n:], ","), " ")
		return "", true
	case "rest":
		l.Rest = text
		return "", true
	case "dev":
		n = span(text, func(c byte) bool { return c > ' ' && c != ':' && c != '/' && c != 0x7f })
		l.Dev = text[:n]
		return text[n:], n > 0 && n <= maxDev
	case "uuid":
		n = span(text, func(c byte) bool { return IsHex(c) || c == '-' || c == 'G' || c == 'P' || c == 'U' })
		l.UUID = text[:n]
		return text[n:], n <= 64 && strings.HasPrefix(l.UUID, "GPU-")
	case "hex":
		n = span(text, IsHex)
		return text[n:], n > 0
	case "digits":
		n = span(text, isDigit)
		return text[n:], n > 0 && n <= 4
	case "mig":
		for _, part := range []string{" GPU-I:", " GPU-CI:"} {
			if after, ok := strings.CutPrefix(text, part); ok {
				text = after[span(after, isDigit):]
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
			n = span(after, func(c byte) bool { return c > ' ' && c != ':' && c != '/' && c != 0x7f })
			return after[n:], n > 0 && n <= 64
		}
		return text, true
	case "ctrl":
		after, ok := strings.CutPrefix(text, "nvme")
		n = span(after, isDigit)
		l.Dev = text[:len(text)-len(after)+n]
		return after[n:], ok && n > 0 && n <= 4
	case "n", "module":
		if n = span(text, isDigit); n == 0 || n > 10 {
			return "", false
		}
		if name == "n" {
			l.Number = text[:n]
		} else {
			l.Module = text[:n]
		}
		return text[n:], true
	case "word":
		n = span(text, func(c byte) bool { return c > ' ' && c != 0x7f })
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

const maxDev = 15 // IFNAMSIZ without its end

// cutFunction takes "GPU0 " and "nvAssertOkFailedNoLog: " off, if they are there.
func cutFunction(text string) string {
	if after, ok := strings.CutPrefix(text, "GPU"); ok {
		if n := span(after, isDigit); n > 0 && strings.HasPrefix(after[n:], " ") {
			text = after[n+1:]
		}
	}
	n := span(text, isWordByte)
	if after, ok := strings.CutPrefix(text[n:], ": "); ok && n > 0 {
		return after
	}
	return text
}

// cutPlace takes "poll_health:174:(pid 0): " off, if it is there; some kernels leave the
// process out.
func cutPlace(text string) string {
	n := span(text, isWordByte)
	after, ok := strings.CutPrefix(text[n:], ":")
	digits := span(after, isDigit)
	after, ok2 := strings.CutPrefix(after[digits:], ":")
	if !ok || !ok2 || n == 0 || digits == 0 {
		return text
	}
	if rest, ok := strings.CutPrefix(after, "(pid "); ok {
		rest = rest[span(rest, isDigit):]
		if after, ok = strings.CutPrefix(rest, "):"); !ok {
			return text
		}
	}
	if after, ok = strings.CutPrefix(after, " "); ok {
		return after
	}
	return text
}

func isWordByte(c byte) bool { return c == '_' || isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z' }

// addressLength returns the number of leading bytes that may be a PCI address.
func addressLength(text string) int {
	n := span(text, func(c byte) bool { return IsHex(c) || c == ':' })
	if n+1 < len(text) && text[n] == '.' && IsHex(text[n+1]) {
		return n + 2
	}
	if n > 0 && text[n-1] == ':' { // the one behind it
		return n - 1
	}
	return n
}

// span returns the number of leading bytes of a kind.
func span(text string, is func(byte) bool) int {
	n := 0
	for n < len(text) && is(text[n]) {
		n++
	}
	return n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// IsHex says whether c is a hexadecimal digit.
func IsHex(c byte) bool {
	return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f'
}

// netfilterLine reports whether a text has the fields that netfilter writes behind a rule's prefix,
// "IN=lo OUT= ... PREC=0x00": with nf_log_all_netns the prefix is a user's. The name
// of a process is too short to hold as much, so that no user can hide a line.
func netfilterLine(text string) bool {
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

// LogReader is a check that can judge by files of syslog.
type LogReader interface {
	// LogFiles returns the files.
	LogFiles() []string
}

// UserWritten returns the files of syslog that a check judges by. Any user can write to
// them with logger(1), but not to the kernel's own log.
func UserWritten(name string, args []string, table map[string]any) []string {
	info, ok := Lookup(name)
	if !ok {
		return nil
	}
	c, ok := info.New().(LogReader)
	if !ok {
		return nil
	}
	bind := func() error { return Bind(c.(Check), args) }
	if table != nil {
		bind = func() error { return BindTable(c.(Check), table) }
	}
	if bind() != nil {
		return nil
	}
	return c.LogFiles()
}

// PastedLine finds a driver's text about a subject in a line that a person pasted, with
// or without what dmesg and syslog write before it. It serves to explain, not to judge.
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

// XidText keeps what can stand in one line of a log.
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

// MaxXidText bounds what is kept of a line, bytes.
const MaxXidText = 160
