package console

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// All text goes to a terminal through the writers of this package.
func TestTextGoesThroughOneWriter(t *testing.T) {
	t.Parallel()
	var files []string
	for _, pattern := range []string{"../../*.go", "../*/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) < 4 {
			t.Fatal(pattern, err, found)
		}
		files = append(files, found...)
	}
	direct := regexp.MustCompile(`os\.Std(out|err)\b|fmt\.Print(ln|f)?\(|\bprintln\(|\.Raw\(`)
	fine := regexp.MustCompile(`JSON|page\.Raw\(|json\.NewEncoder|\.Fd\(\)|out\.Table\(os\.Stdout|c\.Stderr = |Stdout\.Raw\(\[\]byte\("\\x1b|c\.Raw\(\[\]byte\(verdict\.Printable`)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "screen.go" {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(data), "\n") {
			if direct.MatchString(line) && !fine.MatchString(line) {
				t.Errorf("%s:%d: %s: write to Screen, Alerts, Stdout or Stderr of console", name, i+1, strings.TrimSpace(line))
			}
		}
	}
}
