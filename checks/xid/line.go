package xid

import (
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// The NVIDIA driver's lines in the kernel's log. [checks.Believe] decides which lines are trusted.

// xidLine is the meaning of a line.
type xidLine struct {
	Kind xidLineKind
	GPU  string // PCI address: 0000:c1:00.0; "" if the line has none
	Key  checks.XidKey
	Text string // after the code, without the process
	PID  string // of the process, "": unknown to the driver
	Name string // of the process

	UUID     string // lineUUID
	Driver   string // lineLoad
	Action   int    // of Xid 154: the recovery action; -1 if the line cannot be read
	WasReset bool   // of Xid 154: the action None shows that the GPU was reset
	Place    string // of Xid 13: "GPC 3, TPC 0"
	Link     string // the number of the NVLink
	Asks     string // of Xid 94 and 95: what the driver asks for, see asksReset; "" if the line has no verdict
	Nonfatal bool   // the line reports a non-fatal error
	Bare     bool   // the line reports a lost GPU, and has no number
}

type xidLineKind int

const (
	lineOther xidLineKind = iota
	lineXid               // an Xid or SXid
	lineUUID              // the UUID of a GPU
	lineLoad              // the module was loaded: this resets every GPU
	lineReset             // a GPU was reset
)

// readXid parses a trusted line.
func readXid(l checks.KernelLine) xidLine {
	switch l.Kind {
	case checks.SaysXid:
		return parseXid(l)
	case checks.SaysSXid:
		return parseSXid(l)
	case checks.SaysLost, checks.SaysLostLong:
		return xidLine{Kind: lineXid, GPU: l.PCI, Key: checks.XidKey{Code: xidOffTheBus}, Text: l.Words(), Bare: true}
	case checks.SaysResetRequired:
		return xidLine{Kind: lineXid, Text: l.Words()}
	case checks.SaysUUID:
		return xidLine{Kind: lineUUID, GPU: l.PCI, UUID: l.UUID}
	case checks.SaysLoad:
		return xidLine{Kind: lineLoad, Driver: probe.ParseDriverVersion(l.Text)}
	case checks.SaysReset:
		return xidLine{Kind: lineReset, GPU: l.PCI}
	}
	return xidLine{}
}

// parseXid parses an Xid. Examples from "PCI:" on:
//
//	PCI:0000:c1:00): 79, pid=4711, name=python, GPU has fallen off the bus.
//	PCI:0000:c1:00 GPU-I:02 GPU-CI:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008, ...
//	0000:03:00): 14, Channel 00000001
func parseXid(line checks.KernelLine) xidLine {
	l := xidLine{Kind: lineXid, GPU: line.PCI}
	l.Key.Code, _ = strconv.Atoi(line.Code)
	rest := l.cutProcess(line.Rest)
	l.Text = checks.XidText(rest)
	switch l.Key.Code {
	case xidRecoveryAction:
		l.Action, l.WasReset = parseRecoveryAction(rest)
	case xidGraphics:
		l.Place = parsePlace(rest)
	case xidContained, xidUncontained:
		l.Asks = parseVerdict(rest)
	}
	l.Link = parseLink(rest)
	l.Nonfatal = strings.Contains(rest, " Nonfatal ") || strings.Contains(rest, " Non-fatal ")
	return l
}

// cutProcess removes "pid=4711, name=python, ". A user can choose the name, up to 15 arbitrary bytes:
// too few to forge the text that follows.
func (l *xidLine) cutProcess(text string) (rest string) {
	after, ok := strings.CutPrefix(text, "pid=")
	if !ok {
		return text
	}
	pid, rest, _ := strings.Cut(after, ",")
	if len(pid) <= 10 && strings.Trim(pid, "0123456789") == "" {
		l.PID = pid
	}
	rest = strings.TrimPrefix(rest, " ")
	after, ok = strings.CutPrefix(rest, "name=")
	if !ok {
		return rest
	}
	name, rest, _ := strings.Cut(after, ", ")
	if name != "<unknown>" {
		l.Name = checks.XidText(name)
	}
	return rest
}

// parseSXid parses an SXid:
//
//	nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
//
// The lines with registers that follow have its number, but not its severity:
//
//	nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
//	nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000, 0x00140004, ...}
func parseSXid(line checks.KernelLine) xidLine {
	rest := line.Rest
	if strings.HasPrefix(rest, "Severity ") || strings.HasPrefix(rest, "Data {") {
		return xidLine{}
	}
	l := xidLine{Kind: lineXid, GPU: line.PCI, Key: checks.XidKey{Switch: true}}
	l.Key.Code, _ = strconv.Atoi(line.Code)
	l.Nonfatal = strings.HasPrefix(rest, "Non-fatal,") || strings.HasPrefix(rest, "Correctable,")
	l.Text, l.Link = checks.XidText(rest), parseLink(rest)
	return l
}

// Xids with code of their own.
const (
	xidGraphics       = 13
	xidOffTheBus      = 79
	xidContained      = 94
	xidUncontained    = 95
	xidSecurityFault  = 110
	xidRecoveryAction = 154
)

// What the driver asks for after a memory error: a reset, a reset when the jobs on the GPU have ended, or no reset.
const (
	asksReset      = "reset"
	asksDrainReset = "drain-reset"
	asksNothing    = "nothing"
)

// parseVerdict returns what the driver asks for at the end of an Xid 94 or 95: "... RST: Yes, D-RST: No"
// (kern_gpu_error_cont_ga100.c, _gpuGenerateErrorLog). Older drivers and other GPUs log none.
func parseVerdict(text string) string {
	text = strings.TrimRight(text, " \n")
	switch {
	case strings.HasSuffix(text, " RST: Yes, D-RST: No"), strings.HasSuffix(text, " RST: Yes, D-RST: Yes"):
		return asksReset
	case strings.HasSuffix(text, " RST: No, D-RST: Yes"):
		return asksDrainReset
	case strings.HasSuffix(text, " RST: No, D-RST: No"):
		return asksNothing
	}
	return ""
}

// parsePlace returns the "GPC 3, TPC 0" of an Xid 13: the last one, because a process name with a comma
// comes before it.
func parsePlace(text string) string {
	at := strings.LastIndex(text, "(GPC ")
	if at < 0 {
		return ""
	}
	gpc, rest := cutDigits(text[at+len("(GPC "):])
	rest, ok := strings.CutPrefix(rest, ", TPC ")
	tpc, _ := cutDigits(rest)
	if !ok || gpc == "" || tpc == "" {
		return ""
	}
	return "GPC " + gpc + ", TPC " + tpc
}

// parseLink returns the number of the NVLink: "Link 32", "on link 4(0x0". It is the last one, because a
// process name with a comma comes before it.
func parseLink(text string) string {
	text = strings.ToLower(text)
	for at := strings.LastIndex(text, "link "); at >= 0; at = strings.LastIndex(text, "link ") {
		if n, _ := cutDigits(text[at+len("link "):]); n != "" {
			if n = strings.TrimLeft(n, "0"); n == "" {
				n = "0"
			}
			return n
		}
		text = text[:at]
	}
	return ""
}

// cutDigits splits off up to four digits.
func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && i < 4 && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}
