package fabric

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Lines of logs that say that a link was lost. Which lines of the kernel are believed
// is decided in klog.go. In the others an interface is one only where the line's own
// program puts it: hosts and processes are called ib-something, too.

// flapLine is such a line: a link of a device was lost.
type flapLine struct {
	Source string // which program says so
	PCI    string // 0000:23:00.0; "" if it does not tell
	Dev    string // network interface; "" if it does not tell
	At     time.Time
}

// about says whether it is a port's.
func (l *flapLine) about(q *flapPort) bool {
	switch {
	case l.PCI != "" && !slices.Contains(q.pci, l.PCI):
		return false
	case l.Dev == "":
		return len(q.HCA.Ports) == 1
	}
	return slices.Contains(q.devs, l.Dev)
}

// flapOf returns what a believed line says about a link:
//
//	mlx5_core 0000:23:00.0 eth13: Link down
//	mlx5_core 0000:23:00.0: Port module event: module 0, Cable unplugged
//	bnxt_en 0000:23:00.0 eth13: NIC Link is Down
func flapOf(l checks.KernelLine) flapLine {
	if l.Kind == checks.SaysUnplugged {
		return flapLine{Source: "module", PCI: l.PCI}
	}
	return flapLine{Source: "kernel", PCI: l.PCI, Dev: l.Dev}
}

// endsIn is quick to refuse the lines of everybody else; word is in lower case.
func endsIn(text []byte, word string) bool {
	return len(text) >= len(word) && strings.EqualFold(string(text[len(text)-len(word):]), word)
}

// syslogFlap reads a line of a log that syslog has written, with a time of either
// form; one without a year is in the last twelve months.
//
//	Jan  2 03:01:05 gpu01 systemd-networkd[1587]: ib3: Lost carrier
//	2026-01-02T03:01:05.123456+00:00 gpu01 kernel: [44643.002] mlx5_core 0000:23:00.0 eth13: Link down
func syslogFlap(line []byte, now time.Time) (l flapLine, ok bool) {
	line = bytes.TrimRight(line, "\r ")
	if len(line) > 400 || !endsIn(line, "carrier") && !endsIn(line, "down") && !endsIn(line, "unplugged") {
		return l, false
	}
	at, rest, ok := syslogTime(string(line), now)
	if !ok {
		return l, false
	}
	_, rest, _ = strings.Cut(rest, " ") // the host
	tag, rest, _ := strings.Cut(rest, " ")
	tag, ok = strings.CutSuffix(tag, ":")
	if !ok {
		return l, false
	}
	if tag == "kernel" {
		if strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "] ")
		}
		line, ok := checks.Believe([]byte(rest), false, checks.AboutLink)
		if ok {
			l = flapOf(line)
			l.At = at
		}
		return l, ok
	}
	program, _, _ := strings.Cut(tag, "[")
	dev, what, found := strings.Cut(rest, ": ")
	if program != "systemd-networkd" || !found || dev == "" || strings.ContainsAny(dev, " /") || !strings.EqualFold(what, "lost carrier") {
		return l, false
	}
	return flapLine{Source: program, Dev: dev, At: at}, true
}

// syslogTime takes the time off a line.
func syslogTime(line string, now time.Time) (at time.Time, rest string, ok bool) {
	if stamp, rest, _ := strings.Cut(line, " "); len(stamp) > 15 {
		at, err := time.Parse(time.RFC3339Nano, stamp)
		return at, rest, err == nil
	}
	const form = "Jan _2 15:04:05"
	if len(line) <= len(form) || line[len(form)] != ' ' {
		return at, "", false
	}
	at, err := time.ParseInLocation("2006 "+form, now.Format("2006 ")+line[:len(form)], now.Location())
	if err != nil { // the 29th of February, too, of a year that has none
		return at, "", false
	}
	if at.After(now.Add(24 * time.Hour)) {
		at = at.AddDate(-1, 0, 0)
	}
	return at, line[len(form)+1:], true
}

// Bounds of what is read of a log and kept of it.
const (
	flapLogMost = 8 << 20 // bytes, the last ones
	flapLines   = 4096
)

// kernelFlaps are the links that the kernel's log says were lost.
func kernelFlaps(env *checks.Env) (list []flapLine, err error) {
	epoch, err := probe.LogEpoch(env.Host)
	if err != nil {
		return nil, err
	}
	_, err = checks.ReadKernelLog(env, 0, checks.AboutLink, func(r probe.KernelRecord, line checks.KernelLine) {
		l := flapOf(line)
		l.At = time.Unix(epoch, 0).Add(r.At)
		list = append(latest(list), l)
	})
	return list, err
}

// syslogFlaps are those that a file says were lost.
func syslogFlaps(env *checks.Env, path string) (list []flapLine, err error) {
	now := probe.Now(env.Host)
	env.At("read %s", path)
	err = env.Host.LastLines(path, flapLogMost, func(line []byte) bool {
		if l, ok := syslogFlap(line, now); ok {
			l.Source = path + " " + l.Source
			list = append(latest(list), l)
		}
		return true
	})
	return list, err
}

// latest forgets the older half of a list that is full: what containers' interfaces
// have lost may be most of it.
func latest(list []flapLine) []flapLine {
	if len(list) >= flapLines {
		list = slices.Delete(list, 0, flapLines/2)
	}
	return list
}

// pathsLast puts the usual figures where a path stands in their place.
func pathsLast(words []string, hours float64, count int) []string {
	at := 0
	for at+1 < len(words) && strings.HasPrefix(words[at], "-d") {
		if words[at] == "-d" {
			at++
		}
		at++
	}
	head, rest := words[:at:at], words[at:]
	for i, usual := range []string{fmt.Sprint(hours), fmt.Sprint(count)} {
		if i < len(rest) && strings.HasPrefix(rest[i], "/") {
			rest = slices.Insert(slices.Clone(rest), i, usual)
		}
	}
	return append(head, rest...)
}
