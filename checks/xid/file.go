package xid

import (
	"bytes"
	"errors"
	"io/fs"
	"strconv"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// runFile judges a log file of syslog or dmesg.
func (c *gpuXid) runFile(env *checks.Env) []checks.Finding {
	path := env.Abs(c.Hours)
	ledger := &xidLedger{}
	scan := newXidScan(ledger, func() int64 { return 0 })
	env.At("read %s", path)
	n := uint64(0)
	err := env.Host.Lines(path, func(line []byte) bool {
		if text, at, ok := kernelText(line); ok {
			n++
			scan.add(probe.KernelRecord{Seq: n, At: at, Text: text})
		}
		return true
	})
	switch {
	case errors.Is(err, fs.ErrNotExist): // AzureHPC's check passes then
		return []checks.Finding{checks.Finding{Code: "gpu.xid.file", Severity: checks.Skip}.Describe("check_gpu_xid", "%v", err)}
	case err != nil:
		return checks.Unreadable(err)
	}
	identifyXids(env, ledger)
	var notes []checks.Finding
	found := c.judge(env, ledger, &notes)
	return append(notes, found...)
}

// kernelText returns the kernel's message in a line of a log:
//
//	Jan 16 14:04:39 node1 kernel: [44643.002792] NVRM: Xid ...
//	2026-01-16T14:04:39.123+01:00 node1 kernel: NVRM: Xid ...
//	[44643.002792] NVRM: Xid ...
//
// at is the time in brackets, 0 without one.
func kernelText(line []byte) (text []byte, at time.Duration, ok bool) {
	text = line
	if len(text) > 0 && text[0] == '<' { // <4>[44643.002792]
		_, rest, _ := bytes.Cut(text, []byte(">"))
		text = rest
	}
	if _, whole := checks.Believe(text, false, checks.AboutGPU); whole {
		return text, 0, true
	}
	if len(text) > 0 && text[0] != '[' {
		if text, ok = cutTag(text); !ok {
			return nil, 0, false
		}
	}
	if len(text) > 0 && text[0] == '[' {
		stamp, rest, found := bytes.Cut(text[1:], []byte("]"))
		if !found {
			return nil, 0, false
		}
		if seconds, err := strconv.ParseFloat(string(bytes.TrimSpace(stamp)), 64); err == nil && seconds >= 0 && seconds < 1e9 {
			at = time.Duration(seconds * float64(time.Second))
		}
		text = bytes.TrimPrefix(rest, []byte(" "))
	}
	return text, at, true
}

// cutTag returns the text after the tag "kernel:" of a syslog line. The tag follows the host's name: it
// is the third word of the new format, the fifth of the old one.
func cutTag(line []byte) (text []byte, ok bool) {
	rest := line
	for n := 1; n <= 5; n++ {
		rest = bytes.TrimLeft(rest, " ")
		word, after, found := bytes.Cut(rest, []byte(" "))
		if !found {
			return nil, false
		}
		if (n == 3 || n == 5) && string(word) == "kernel:" {
			return after, true
		}
		rest = after
	}
	return nil, false
}
