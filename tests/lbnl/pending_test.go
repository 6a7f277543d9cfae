package lbnl

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// pendingList names cases, by id or by the first part of ids followed by a star.
type pendingList []string

// loadPending reads a list, one name a line, with comments after #.
func loadPending(path string) (pendingList, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list pendingList
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, "#")
		if name = strings.TrimSpace(name); name != "" {
			list = append(list, name)
		}
	}
	return list, nil
}

func (l pendingList) has(id string) bool {
	return slices.ContainsFunc(l, func(name string) bool { return nameFits(name, id) })
}

func nameFits(name, id string) bool {
	if prefix, ok := strings.CutSuffix(name, "*"); ok {
		return strings.HasPrefix(id, prefix)
	}
	return name == id
}

// TestPending checks that every line of the list names a case.
func TestPending(t *testing.T) {
	t.Parallel()
	cases, err := loadCases(casesDir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := loadPending(pendingPath)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range list {
		if !slices.ContainsFunc(cases, func(c *recorded) bool { return nameFits(name, c.ID) }) {
			t.Errorf("%s names no case: %s", pendingPath, name)
		}
		if slices.Contains(list[:i], name) {
			t.Errorf("%s has this twice: %s", pendingPath, name)
		}
	}
}

func TestNameFits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, id string
		want     bool
	}{
		{"core-log-q", "core-log-q", true},
		{"core-log-q", "core-log-quiet", false},
		{"core-log-*", "core-log-q", true},
		{"core-log-*", "core-log", false},
		{"*", "core-log", true},
	} {
		if got := nameFits(tt.name, tt.id); got != tt.want {
			t.Errorf("nameFits(%q, %q) = %v, want %v", tt.name, tt.id, got, tt.want)
		}
	}
}
