package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// All text goes to a terminal through screen, alerts or console.
func TestTextGoesThroughOneWriter(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 20 {
		t.Fatal(err, files)
	}
	direct := regexp.MustCompile(`os\.Std(out|err)\b|fmt\.Print(ln|f)?\(|\bprintln\(|\.raw\(`)
	fine := regexp.MustCompile(`JSON|json\.NewEncoder|\.Fd\(\)|out\.Table\(os\.Stdout|c\.Stderr = |stdout\.raw\(\[\]byte\("\\x1b|c\.raw\(\[\]byte\(verdict\.Printable`)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "screen.go" {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(data), "\n") {
			if direct.MatchString(line) && !fine.MatchString(line) && !strings.Contains(line, ") raw(") {
				t.Errorf("%s:%d: %s: write to screen, alerts, stdout or stderr", name, i+1, strings.TrimSpace(line))
			}
		}
	}
}
