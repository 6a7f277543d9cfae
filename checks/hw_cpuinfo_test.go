package checks

import (
	"fmt"
	"strings"
	"testing"
)

// cpuinfo is /proc/cpuinfo of a machine as the kernel writes it on x86.
func cpuinfo(sockets, cores, siblings int) map[string]string {
	var b strings.Builder
	for i := range sockets * siblings {
		fmt.Fprintf(&b, "processor\t: %d\nphysical id\t: %d\nsiblings\t: %d\ncpu cores\t: %d\n\n", i, i/siblings, siblings, cores)
	}
	return map[string]string{"proc/cpuinfo": b.String()}
}

func cpuMismatch(code, what, got, want string) []Finding {
	return []Finding{{
		Code:     code,
		Severity: Fail,
		Message:  fmt.Sprintf("check_hw_cpuinfo:  Actual CPU %s count (%s) does not match expected (%s).", what, got, want),
		Want:     want,
		Got:      got,
	}}
}

func TestHWCPUInfo(t *testing.T) { testCheck(t, "check_hw_cpuinfo") }

var _ = table("check_hw_cpuinfo", func(string) []scenario {
	node := cpuinfo(2, 8, 16)
	arm := map[string]string{"proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n\nprocessor\t: 2\n\n"}
	return []scenario{
		{name: "all right", files: node, words: []string{"2", "16", "32"},
			table: map[string]any{"sockets": int64(2), "cores": int64(16), "threads": int64(32)}},
		{name: "nothing wanted", files: node},
		{name: "empty words and more of them", files: node, words: []string{"", "16", "", "64"}},
		{name: "hexadecimal and octal", files: node, words: []string{"0x2", "020", "32"}},
		{name: "no physical ids", files: arm, words: []string{"3", "3", "3"}},
		{name: "sockets", files: node, words: []string{"1", "16", "32"}, want: cpuMismatch("hw.cpu.sockets", "socket", "2", "1")},
		{name: "cores", files: node, words: []string{"2", "8", "32"}, want: cpuMismatch("hw.cpu.cores", "core", "16", "8")},
		{name: "threads", files: node, words: []string{"2", "16", "16"}, want: cpuMismatch("hw.cpu.threads", "thread", "32", "16")},
		{name: "one socket of two gone", files: cpuinfo(1, 8, 16), words: []string{"2", "16", "32"},
			want: cpuMismatch("hw.cpu.sockets", "socket", "1", "2")},
		{name: "no number", files: node, words: []string{"2", "1x"}, want: []Finding{{
			Code: "config.value", Severity: Fail, Remedy: FixConfig, Want: "a whole number", Got: "1x",
			Message: `check_hw_cpuinfo:  Invalid core count "1x"; want a whole number.`}}},
		{name: "no file", broken: true, words: []string{"2"}, want: []Finding{{
			Code: "probe.unreadable", Severity: Unknown, Message: "read /proc/cpuinfo: no such file or directory"}}},
		{name: "unreadable file", broken: true, files: map[string]string{"proc/cpuinfo/": ""}, words: []string{"2"}, want: []Finding{{
			Code: "probe.unreadable", Severity: Unknown, Message: "read /proc/cpuinfo: is a directory"}}},
		{name: "empty file counts as one of each", broken: true, files: map[string]string{"proc/cpuinfo": "\n"}, words: []string{"1", "1", "1"}},
	}
})
