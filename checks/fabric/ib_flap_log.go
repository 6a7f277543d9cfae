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

// Log lines about a lost link. checks/klog.go decides which lines of the kernel are genuine. In
// other lines a word is an interface only at the place where the program of the line prints it:
// hosts and processes can be named ib-something, too.

// flapLine is a log line about a lost link of a device.
type flapLine struct {
	Source string // program that wrote the line
	PCI    string // 0000:23:00.0; "" if unknown
	Dev    string // network interface; "" if unknown
	At     time.Time
}

// about reports whether the line belongs to a port.
func (l *flapLine) about(q *flapPort) bool {
	switch {
	case l.PCI != "" && !slices.Contains(q.pci, l.PCI):
		return false
	case l.Dev == "":
		return len(q.HCA.Ports) == 1
	}
	return slices.Contains(q.devs, l.Dev)
}

// flapOf converts a genuine kernel line about a link:
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

// endsIn quickly rejects other lines; word is in lower case.
func endsIn(text []byte, word string) bool {
	return len(text) >= len(word) && strings.EqualFold(string(text[len(text)-len(word):]), word)
}

// parseSyslogFlap parses a line that syslog has written, with a time of either form; a time without a
// year is within the last twelve months.
//
//	Jan  2 03:01:05 gpu01 systemd-networkd[1587]: ib3: Lost carrier
//	2026-01-02T03:01:05.123456+00:00 gpu01 kernel: [44643.002] mlx5_core 0000:23:00.0 eth13: Link down
func parseSyslogFlap(line []byte, now time.Time) (l flapLine, ok bool) {
	line = bytes.TrimRight(line, "\r ")
	if len(line) > 400 || !endsIn(line, "carrier") && !endsIn(line, "down") && !endsIn(line, "unplugged") {
		return l, false
	}
	at, rest, ok := parseSyslogTime(string(line), now)
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

// parseSyslogTime splits the time from a line.
func parseSyslogTime(line string, now time.Time) (at time.Time, rest string, ok bool) {
	if stamp, rest, _ := strings.Cut(line, " "); len(stamp) > 15 {
		at, err := time.Parse(time.RFC3339Nano, stamp)
		return at, rest, err == nil
	}
	const form = "Jan _2 15:04:05"
	if len(line) <= len(form) || line[len(form)] != ' ' {
		return at, "", false
	}
	at, err := time.ParseInLocation("2006 "+form, now.Format("2006 ")+line[:len(form)], now.Location())
	if err != nil { // also the 29th of February in a year without one
		return at, "", false
	}
	if at.After(now.Add(24 * time.Hour)) {
		at = at.AddDate(-1, 0, 0)
	}
	return at, line[len(form)+1:], true
}

// Limits of reading and keeping a log.
const (
	flapLogMost = 8 << 20 // bytes, the last ones
	flapLines   = 4096
)

// linkLog has the lost links in the kernel's log.
type linkLog struct {
	lines []flapLine
	boot  time.Time // the zero of the log's times
	end   probe.KernelLogEnd
}

// readLinkLog reads the kernel's log.
func readLinkLog(env *checks.Env) (log linkLog, err error) {
	epoch, err := probe.LogEpoch(env.Host)
	if err != nil {
		return log, err
	}
	log.boot = time.Unix(epoch, 0)
	log.end, err = checks.ReadKernelLog(env, 0, checks.AboutLink, func(r probe.KernelRecord, line checks.KernelLine) {
		l := flapOf(line)
		l.At = log.boot.Add(r.At)
		log.lines = append(dropOldest(log.lines), l)
	})
	return log, err
}

// decides reports whether the log has the losses of a port's link since a time. The carrier of an interface
// then decides nothing: mlx5 also takes it down, and up again, for another MTU, ring size or number of
// channels (mlx5e_switch_priv_channels in drivers/net/ethernet/mellanox/mlx5/core/en_main.c). A link that
// is back before the driver asks for its state (mlx5e_update_carrier_work) moves the carrier and logs
// "Link up" alone. So does an interface that is closed and opened, if the adapter keeps its link: neither
// counts.
func (l *linkLog) decides(q *flapPort, since time.Time) bool {
	return q.Layer == LayerEth && checks.LogsLinkLoss(q.HCA.Driver) && l.end.Complete(since.Add(-flapSame).Sub(l.boot))
}

// readSyslogFlaps returns the lost links in a log file.
func readSyslogFlaps(env *checks.Env, path string) (list []flapLine, err error) {
	now := probe.Now(env.Host)
	env.At("read %s", path)
	err = env.Host.LastLines(path, flapLogMost, func(line []byte) bool {
		if l, ok := parseSyslogFlap(line, now); ok {
			l.Source = path + " " + l.Source
			list = append(dropOldest(list), l)
		}
		return true
	})
	return list, err
}

// dropOldest drops the older half of a full list: interfaces of containers can fill most of it.
func dropOldest(list []flapLine) []flapLine {
	if len(list) >= flapLines {
		list = slices.Delete(list, 0, flapLines/2)
	}
	return list
}

// moveLogsLast inserts the default figures where a path takes their place.
func moveLogsLast(words []string, hours float64, count int) []string {
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
