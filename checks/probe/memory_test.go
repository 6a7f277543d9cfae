package probe

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	file := "MemTotal:       263856120 kB\nMemFree:        200000000 kB\nMemAvailable:   210000000 kB\n" +
		"Buffers:           100000 kB\nCached:           3000000 kB\nSwapCached:            77 kB\n" +
		"SwapTotal:        8388604 kB\nSwapFree:         8000000 kB\nHugePages_Total:       x\n\nHardwareCorrupted:     8 kB\n"
	want := Memory{Total: 263856120, Free: 203100000, SwapTotal: 8388604, SwapFree: 8000000, Corrupted: 8}
	got, err := ReadMemory(NewHost(probetest.Tree(t, map[string]string{"proc/meminfo": file})))
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for content, want := range map[string]string{
		"":                    "read /proc/meminfo: no MemTotal line",
		"MemTotal: lots kB":   "read /proc/meminfo: no MemTotal line",
		"MemFree: 5 kB\n\xff": "read /proc/meminfo: no MemTotal line",
	} {
		if _, err := ReadMemory(NewHost(probetest.Tree(t, map[string]string{"proc/meminfo": content}))); probetest.Message(err) != want {
			t.Errorf("of %q: %v, want %s", content, err, want)
		}
	}
	if _, err := ReadMemory(NewHost(probetest.Tree(t, nil))); probetest.Message(err) != "read /proc/meminfo: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
}
