package plan

import (
	"os"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The example of the manual is right.
func TestDocs(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../../docs/jobs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok := strings.Cut(string(manual), "For example:\n\n")
	example, _, _ = strings.Cut(example, "\n\nA policy")
	if !ok || !strings.Contains(example, "[[check]]") {
		t.Fatal("docs/jobs.md has no example of nhc.toml")
	}
	c, err := conf.ParseTOML("docs/jobs.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if err := UnknownPolicy(c); err != nil {
		t.Error(err)
	}
	if p := BuildTables(c.Checks, Options{Policies: c}); p.Problems != nil || len(p.Steps) == 0 {
		t.Errorf("%d steps, %v", len(p.Steps), p.Problems)
	}
}
