package run

import (
	"crypto/sha256"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// In the table of the real files each check is built in, and each line is complete.
func TestLBNLFiles(t *testing.T) {
	t.Parallel()
	versions := map[string]int{}
	for line := range strings.Lines(wire.LBNLFiles) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		if len(f) < 4 || len(f[0]) != sha256.Size*2 || f[1] != "nhc" && !strings.HasSuffix(f[1], ".nhc") {
			t.Errorf("%s: want sha256, file, versions and functions", line)
		}
		for v := range strings.SplitSeq(f[2], ",") {
			versions[v]++
		}
		for _, name := range f[3:] {
			if _, ok := checks.Lookup(name); strings.HasPrefix(name, "check_") && !ok {
				t.Errorf("%s is no check of this program", name)
			}
		}
	}
	if want := map[string]int{"1.4.1": 12, "1.4.2": 12, "1.4.3": 13, "1.4.4-dev": 13, "dev": 13}; !maps.Equal(versions, want) {
		t.Errorf("files by version: %v, want %v", versions, want)
	}
}
