package checks

import (
	"strings"
	"testing"
)

func TestToleranceOf(t *testing.T) {
	t.Parallel()
	rows, err := parseTolerances(activeData)
	if err != nil {
		t.Fatal(err)
	}
	for test, row := range rows {
		if len(row.Source) < 20 {
			t.Errorf("%q: source %q", test, row.Source)
		}
	}
	if got := toleranceOf("memory_bandwidth"); got.Test != "memory_bandwidth" || got.Peers >= toleranceOf("launch").Peers {
		t.Errorf("%+v", got)
	}
	if got := toleranceOf("one of tomorrow"); got.Test != "" || got.MADs < 1 || got.Peers == 0 || got.Baseline == 0 {
		t.Errorf("the others: %+v", got)
	}
}

func TestWrongTolerances(t *testing.T) {
	t.Parallel()
	const row = "[[tolerance]]\ntest = \"\"\npeers = 0.1\nbaseline = 0.1\nmads = 6\nsource = \"s\"\n"
	for text, want := range map[string]string{
		"":        `no row for test ""`,
		row + row: "is there already",
		"x = 1":   "unknown key x",
		"[":       "expected",
		strings.Replace(row, "peers = 0.1", "peers = 15", 1):       "peers 15, baseline 0.1: want parts of 1",
		strings.Replace(row, "baseline = 0.1", "baseline = 0", 1):  "baseline 0: want parts of 1",
		strings.Replace(row, "mads = 6", "mads = 0", 1):            "mads 0: want 1 or more",
		strings.Replace(row, "source = \"s\"", "source = \"\"", 1): "no source",
	} {
		if _, err := parseTolerances(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
