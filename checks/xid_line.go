package checks

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// The lines of the NVIDIA driver in the kernel's log. They are read from their
// first byte on, for further behind stand names that users give to processes.

// xidLine is what one line says.
type xidLine struct {
	Kind xidLineKind
	GPU  string // PCI address: 0000:c1:00.0; "" of a line that is not about one
	Key  xidKey
	Text string // behind the code, without process
	PID  string // of the process, "" if the driver does not know it
	Name string // of the process

	UUID     string // lineUUID
	Driver   string // lineLoad
	Action   int    // of Xid 154: the recovery action; -1 if the line cannot be read
	Place    string // of Xid 13: "GPC 3, TPC 0"
	Link     string // the number of the NVLink
	Nonfatal bool   // the line itself says so
}

type xidLineKind int

const (
	lineOther xidLineKind = iota
	lineXid               // an Xid or SXid
	lineUUID              // tells the UUID of a GPU
	lineLoad              // the module is loaded: every GPU begins anew
	lineReset             // a GPU was reset
)

// maxXidText bounds what is kept of a line, bytes.
const maxXidText = 160

// mayBeXid is quick to refuse the lines of everybody else.
func mayBeXid(text []byte) bool {
	return bytes.HasPrefix(text, []byte("NVRM: ")) || bytes.HasPrefix(text, []byte("nvidia-nvswitch")) ||
		bytes.HasSuffix(text, []byte(": reset done"))
}

// parseXidLine reads a record of the kernel's log. Kind is lineOther of all
// that is none of ours.
func parseXidLine(record []byte) xidLine {
	if !mayBeXid(record) {
		return xidLine{}
	}
	text := string(record)
	if rest, ok := strings.CutPrefix(text, "NVRM: Xid ("); ok {
		return parseXid(rest)
	}
	if rest, ok := strings.CutPrefix(text, "NVRM: "); ok {
		return parseNVRM(rest)
	}
	if rest, ok := strings.CutPrefix(text, "nvidia-nvswitch"); ok {
		return parseSXid(rest)
	}
	words := strings.Fields(strings.TrimSuffix(text, ": reset done")) // "vfio-pci 0000:c1:00.0: reset done"
	if len(words) == 2 {
		if gpu, ok := pciAddress(words[1]); ok {
			return xidLine{Kind: lineReset, GPU: gpu}
		}
	}
	return xidLine{}
}

// parseXid reads what follows "NVRM: Xid (":
//
//	PCI:0000:c1:00): 79, pid=4711, name=python, GPU has fallen off the bus.
//	PCI:0000:c1:00 GPU-I:02 GPU-CI:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008, ...
//	0000:03:00): 14, Channel 00000001
func parseXid(rest string) xidLine {
	address, rest, ok := strings.Cut(rest, "): ")
	if !ok {
		return xidLine{}
	}
	address, _, _ = strings.Cut(strings.TrimPrefix(address, "PCI:"), " ")
	gpu, ok := pciAddress(address)
	if !ok {
		return xidLine{}
	}
	l := xidLine{Kind: lineXid, GPU: gpu}
	if rest, ok = l.cutCode(rest, 4); !ok {
		return xidLine{}
	}
	rest = l.cutProcess(rest)
	l.Text = xidText(rest)
	switch l.Key.Code {
	case xidRecoveryAction:
		l.Action = parseRecoveryAction(rest)
	case xidGraphics:
		l.Place = parsePlace(rest)
	}
	l.Link = parseLink(rest)
	l.Nonfatal = strings.Contains(rest, " Nonfatal ") || strings.Contains(rest, " Non-fatal ")
	return l
}

// cutCode takes the number off. Only digits, a comma or the end behind them.
func (l *xidLine) cutCode(text string, digits int) (rest string, ok bool) {
	i := 0
	for i < len(text) && text[i] >= '0' && text[i] <= '9' {
		i++
	}
	if i == 0 || i > digits || i < len(text) && text[i] != ',' {
		return "", false
	}
	l.Key.Code, _ = strconv.Atoi(text[:i])
	return strings.TrimPrefix(strings.TrimPrefix(text[i:], ","), " "), true
}

// cutProcess takes "pid=4711, name=python, " off. A name is the user's choice,
// up to 15 bytes of anything: too little to make up what is read further on.
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
		l.Name = xidText(name)
	}
	return rest
}

// parseNVRM reads the driver's other lines that matter: which GPU has which
// UUID, that the module is loaded, and two faults without a number.
func parseNVRM(text string) xidLine {
	switch {
	case strings.HasPrefix(text, "GPU at PCI:"): // "GPU at PCI:0000:5c:00: GPU-<uuid>"
		address, uuid, _ := strings.Cut(strings.TrimPrefix(text, "GPU at PCI:"), ": ")
		gpu, ok := pciAddress(address)
		if ok && strings.HasPrefix(uuid, "GPU-") && len(uuid) <= 64 && !strings.Contains(uuid, " ") {
			return xidLine{Kind: lineUUID, GPU: gpu, UUID: uuid}
		}
	case strings.HasPrefix(text, "loading NVIDIA UNIX "):
		return xidLine{Kind: lineLoad, Driver: probe.ParseDriverVersion(text)}
	case strings.Contains(text, "allen off the bus"): // "GPU 0000:01:00.0: GPU has fallen off the bus."
		text = lineBreaks.Replace(text)
		for word := range strings.FieldsSeq(text) {
			if gpu, ok := pciAddress(strings.TrimSuffix(word, ":")); ok {
				return xidLine{Kind: lineXid, GPU: gpu, Key: xidKey{Code: xidOffTheBus}, Text: xidText(text)}
			}
		}
	case strings.Contains(text, "[NV_ERR_RESET_REQUIRED]"):
		return xidLine{Kind: lineXid, Text: xidText(text)}
	}
	return xidLine{}
}

// lineBreaks are those of a record of several lines, as /dev/kmsg and as rsyslog
// write them.
var lineBreaks = strings.NewReplacer(`\x0a`, " ", "#012", " ", "\n", " ")

// parseSXid reads what follows "nvidia-nvswitch":
//
//	3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
//
// The lines of registers behind it bear its number, but not how bad it is:
//
//	3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
//	3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000, 0x00140004, ...}
func parseSXid(rest string) xidLine {
	_, rest, ok := strings.Cut(rest, ": SXid (")
	if !ok {
		return xidLine{}
	}
	address, rest, ok := strings.Cut(rest, "): ")
	if !ok {
		return xidLine{}
	}
	gpu, ok := pciAddress(strings.TrimPrefix(address, "PCI:"))
	if !ok {
		return xidLine{}
	}
	l := xidLine{Kind: lineXid, GPU: gpu, Key: xidKey{Switch: true}}
	if rest, ok = l.cutCode(rest, 5); !ok {
		return xidLine{}
	}
	if strings.HasPrefix(rest, "Severity ") || strings.HasPrefix(rest, "Data {") {
		return xidLine{}
	}
	l.Nonfatal = strings.HasPrefix(rest, "Non-fatal,") || strings.HasPrefix(rest, "Correctable,")
	l.Text, l.Link = xidText(rest), parseLink(rest)
	return l
}

// pciAddress makes 0000:c1:00.0 of an address as the driver prints it, in
// either case and without the function.
func pciAddress(s string) (string, bool) {
	s, function, has := strings.Cut(s, ".")
	if !has {
		function = "0"
	}
	domain, rest, ok1 := strings.Cut(s, ":")
	bus, slot, ok2 := strings.Cut(rest, ":")
	if !ok1 || !ok2 || len(bus) != 2 || len(slot) != 2 || len(function) != 1 || len(domain) < 4 || len(domain) > 8 {
		return "", false
	}
	n, err := strconv.ParseUint(domain, 16, 32)
	for _, part := range []string{bus, slot, function} {
		if _, bad := strconv.ParseUint(part, 16, 8); bad != nil {
			return "", false
		}
	}
	if err != nil {
		return "", false
	}
	return strings.ToLower(fmt.Sprintf("%04x:%s:%s.%s", n, bus, slot, function)), true
}

// xidText keeps what can stand in one line of a log.
func xidText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	s = strings.TrimRight(s, ". ")
	return s[:min(len(s), maxXidText)]
}

// Xids that the code knows by number.
const (
	xidGraphics       = 13
	xidOffTheBus      = 79
	xidRecoveryAction = 154
)

// parseRecoveryAction reads the action of "GPU recovery action changed from 0x0
// (None) to 0x2 (Node Reboot Required)"; -1 if it does not say.
func parseRecoveryAction(text string) int {
	_, change, _ := strings.Cut(text, "recovery action changed from ")
	_, to, ok := strings.Cut(change, " to 0x")
	if !ok {
		return -1
	}
	end := 0
	for end < len(to) && isHex(to[end]) {
		end++
	}
	n, err := strconv.ParseUint(to[:end], 16, 31)
	if err != nil {
		return -1
	}
	return int(n)
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

// parsePlace finds the "GPC 3, TPC 0" of an Xid 13: the last one, for a name
// that holds a comma stands before it.
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

// parseLink finds the number of the NVLink: "Link 32", "on link 4(0x0". It is the
// last one, for a name that holds a comma stands before it.
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

// cutDigits takes up to four digits off.
func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && i < 4 && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}
