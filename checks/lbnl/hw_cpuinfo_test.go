package lbnl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// cpuinfo is /proc/cpuinfo of a machine as the kernel writes it on x86.
func cpuinfo(sockets, cores, siblings int) map[string]string {
	var b strings.Builder
	for i := range sockets * siblings {
		fmt.Fprintf(&b, "processor\t: %d\nphysical id\t: %d\nsiblings\t: %d\ncpu cores\t: %d\n\n", i, i/siblings, siblings, cores)
	}
	return map[string]string{"proc/cpuinfo": b.String()}
}

func cpuMismatch(code, what, got, want string) []checks.Finding {
	return []checks.Finding{{
		Code:     code,
		Severity: checks.Fail,
		Message:  fmt.Sprintf("check_hw_cpuinfo:  Actual CPU %s count (%s) does not match expected (%s).", what, got, want),
		Want:     want,
		Got:      got,
	}}
}

func TestHWCPUInfo(t *testing.T) { checktest.Run(t, "check_hw_cpuinfo") }

var _ = checktest.Table("check_hw_cpuinfo", func(string) []checktest.Scenario {
	node := cpuinfo(2, 8, 16)
	arm := map[string]string{"proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n\nprocessor\t: 2\n\n"}
	return []checktest.Scenario{
		{Name: "all right", Files: node, Words: []string{"2", "16", "32"},
			Table: map[string]any{"sockets": int64(2), "cores": int64(16), "threads": int64(32)}},
		{Name: "nothing wanted", Files: node},
		{Name: "empty words and more of them", Files: node, Words: []string{"", "16", "", "64"}},
		{Name: "hexadecimal and octal", Files: node, Words: []string{"0x2", "020", "32"}},
		{Name: "no physical ids", Files: arm, Words: []string{"3", "3", "3"}},
		{Name: "sockets", Files: node, Words: []string{"1", "16", "32"}, Want: cpuMismatch("hw.cpu.sockets", "socket", "2", "1")},
		{Name: "cores", Files: node, Words: []string{"2", "8", "32"}, Want: cpuMismatch("hw.cpu.cores", "core", "16", "8")},
		{Name: "threads", Files: node, Words: []string{"2", "16", "16"}, Want: cpuMismatch("hw.cpu.threads", "thread", "32", "16")},
		{Name: "one socket of two gone", Files: cpuinfo(1, 8, 16), Words: []string{"2", "16", "32"},
			Want: cpuMismatch("hw.cpu.sockets", "socket", "1", "2")},
		{Name: "no number", Files: node, Words: []string{"2", "1x"}, Want: []checks.Finding{{
			Code: "config.value", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "a whole number", Got: "1x",
			Message: `check_hw_cpuinfo:  Invalid core count "1x"; want a whole number.`}}},
		{Name: "no file", Broken: true, Words: []string{"2"}, Want: []checks.Finding{{
			Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/cpuinfo: no such file or directory"}}},
		{Name: "unreadable file", Broken: true, Files: map[string]string{"proc/cpuinfo/": ""}, Words: []string{"2"}, Want: []checks.Finding{{
			Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/cpuinfo: is a directory"}}},
		{Name: "empty file counts as one of each", Broken: true, Files: map[string]string{"proc/cpuinfo": "\n"}, Words: []string{"1", "1", "1"}},
	}
})
