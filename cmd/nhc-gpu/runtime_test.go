package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Only the runtime's monitor has the large timer slack: commands would inherit it.
func TestTimerSlack(t *testing.T) {
	t.Parallel()
	slack := func(path string) string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Skip("an old kernel, or no permission:", err)
		}
		return strings.TrimSpace(string(data))
	}
	normal := slack("/proc/1/timerslack_ns")
	large := 0
	for range 100 {
		out, err := exec.Command("cat", "/proc/self/timerslack_ns").Output()
		if got := strings.TrimSpace(string(out)); got != normal || err != nil {
			t.Fatalf("a command has a timer slack of %s ns (%v), want %s", got, err, normal)
		}
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile(filepath.Join("/proc", task.Name(), "timerslack_ns"))
		if got := strings.TrimSpace(string(data)); err == nil && got != normal {
			large++
		}
	}
	if large != 1 {
		t.Errorf("%d threads have another timer slack than %s ns, want the runtime's monitor alone", large, normal)
	}
}
