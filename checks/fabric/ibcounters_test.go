package fabric

import (
	"flag"
	"fmt"
	"go/format"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

var writeIBCounters = flag.Bool("ibcounters", false, "rewrite checks/fabric/ibcounters_rows.go")

// TestIBCounterRows compares the rows in the program with the file that they are generated from:
// parsing the file would cost more than reading the counters.
func TestIBCounterRows(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("ibcounters.toml")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := parseIBCounters("ibcounters.toml", string(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("// Code generated from ibcounters.toml: go test ./checks/fabric -run IBCounterRows -ibcounters. DO NOT EDIT.\n\npackage fabric\n\n// IBCounterRows are the rows of ibcounters.toml.\nvar IBCounterRows = []IBCounter{\n")
	for _, c := range rows {
		fmt.Fprintf(&b, "\t{\n\t\tName: %q, Bits: %d, Saturates: %v, Per: %q, Warn: %g, Fail: %g, Outlier: %g, Parts: %#v, Again: %d, Link: %v, Layer: %q, Remedy: %q,\n\t\tDo: %q,\n\t\tMeans: %q,\n\t\tSource: %q,\n\t},\n",
			c.Name, c.Bits, c.Saturates, c.Per, c.Warn, c.Fail, c.Outlier, c.Parts, c.Again, c.Link, c.Layer, c.Remedy, c.Do, c.Means, c.Source)
	}
	b.WriteString("}\n")
	want, err := format.Source([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	const path = "ibcounters_rows.go"
	if *writeIBCounters {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not what ibcounters.toml says; go test ./checks/fabric -run IBCounterRows -ibcounters writes it (-want +got):\n%s", path, diff)
	}
}

// Each row has a meaning and the source of its limits, and advice if it has limits.
func TestIBCountersAreTold(t *testing.T) {
	t.Parallel()
	for _, c := range IBCounterRows {
		if len(c.Source) < 20 || c.Means == "" || c.read() != (c.Do != "") {
			t.Errorf("%s: source %q, means %q, do %q", c.Name, c.Source, c.Means, c.Do)
		}
		if c.Saturates != strings.HasPrefix(c.Name, "counters/") {
			t.Errorf("%s: saturates %v", c.Name, c.Saturates)
		}
	}
}

func TestIBCounterRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		per  string
		n    uint64
		over time.Duration
		want float64
	}{
		{inSecond, 300, 5 * time.Minute, 1},
		{inMinute, 10, 5 * time.Minute, 2},
		{inMinute, 10, 30 * time.Second, 10},
		{inHour, 10, 5 * time.Minute, 10},
		{inHour, 10, 5 * time.Hour, 2},
		{inAny, 1, time.Hour, 1},
		{inAny, math.MaxUint64, time.Minute, math.MaxUint64},
	} {
		row := IBCounter{Per: c.per}
		if got := row.rate(checks.Growth{N: c.n, Over: c.over, Known: true}); got != c.want {
			t.Errorf("%d in %v per %s: %g, want %g", c.n, c.over, c.per, got, c.want)
		}
	}
}

func TestIBCounterFile(t *testing.T) {
	t.Parallel()
	rows, err := parseIBCounters("f", `
[[counter]]
name = "symbol_error"
fail = -1
warn = 500
[[counter]]
name = "hw_counters/rx_discards"
per = "second"
warn = 3
source = "ours"
`, IBCounterRows)
	if err != nil {
		t.Fatal(err)
	}
	old, got := IBCounterRows[0], rows[0]
	old.Fail, old.Warn = ibNever, 500
	if diff := cmp.Diff(old, got); diff != "" {
		t.Errorf("a row that is changed (-want +got):\n%s", diff)
	}
	added := IBCounter{Name: "hw_counters/rx_discards", Bits: 64, Per: inSecond, Warn: 3, Fail: ibNever, Outlier: ibNever, Source: "ours"}
	if diff := cmp.Diff(added, rows[len(rows)-1]); diff != "" {
		t.Errorf("a row that is new (-want +got):\n%s", diff)
	}
	if IBCounterRows[0].Warn != ibNever {
		t.Error("the table itself was changed")
	}
	for text, want := range map[string]string{
		"[[counter]]\nname = \"symbol_errors\"\n":                                               `f:1: symbol_errors: name "symbol_errors", want a known counter, or counters/NAME, hw_counters/NAME, device/NAME or net/NAME`,
		"[[counter]]\nname = \"counters/../../x\"\n":                                            `f:1: counters/../../x: name "counters/../../x", want a known counter, or counters/NAME, hw_counters/NAME, device/NAME or net/NAME`,
		"\n[[counter]]\nname = \"symbol_error\"\nper = \"day\"\n":                               `f:2: symbol_error: per "day", want any, second, minute or hour`,
		"[[counter]]\nname = \"symbol_error\"\nwarn = -2\n":                                     "f:1: symbol_error: warn -2, want a number from 0, or -1 for never",
		"[[counter]]\nname = \"symbol_error\"\nwarn = nan\n":                                    "f:1: symbol_error: warn NaN, want a number from 0, or -1 for never",
		"[[counter]]\nname = \"symbol_error\"\nfail = inf\n":                                    "f:1: symbol_error: fail +Inf, want a number from 0, or -1 for never",
		"[[counter]]\nname = \"symbol_error\"\nbits = 65\n":                                     "f:1: symbol_error: bits 65, want 1 to 64",
		"[[counter]]\nname = \"symbol_error\"\nagain = 99\n":                                    "f:1: symbol_error: again 99, want 0 to 12",
		"[[counter]]\nname = \"symbol_error\"\nlayer = \"IB\"\n":                                `f:1: symbol_error: layer "IB", want one or more of InfiniBand, Omni-Path, Ethernet, EFA`,
		"[[counter]]\nname = \"symbol_error\"\nremedy = \"pray\"\n":                             `f:1: symbol_error: remedy "pray", want one of check-cable, check-fabric, fix-config, reboot-node, reseat-or-rma, restart-app`,
		"[[counter]]\nname = \"symbol_error\"\nlimit = 3\n":                                     "f:3: unknown key counter.limit, want again, bits, do, fail, layer, link, means, name, outlier, parts, per, remedy, saturates, source, warn",
		"[[counter]]\nname = \"symbol_error\"\n[[counter]]\nname = \"counters/symbol_error\"\n": "f:3: counters/symbol_error is given twice, want it once",
		"[[counter]]\nname = \"symbol_error\"\noutlier = 5\n":                                   `f:1: symbol_error: outlier with per "hour", want second or minute`,
		"[[counter]]\nname = \"symbol_error\"\nwarn = \"5\"\n":                                  "f:3: counter.warn: want a number, got text in quotes",
		"[[counter]]\nname = \"symbol_error\"\nbits = 1.5\n":                                    "f:3: counter.bits: want a whole number, got a number",
		"[[counter]]\nname = \"symbol_error\"\nlink = \"yes\"\n":                                "f:3: counter.link: want true or false, got text in quotes",
		"counter = 3\n":      "f:1: counter: want a list, got a whole number",
		"[[count]]\nx = 1\n": "f:1: unknown key count, want counter",
		"[[counter]\n":       "f:2: got the end of the line in a header, want [[NAME]]",
	} {
		if _, err := parseIBCounters("f", text, IBCounterRows); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	var many strings.Builder
	for i := range ibMaxCounters {
		fmt.Fprintf(&many, "[[counter]]\nname = \"counters/c%d\"\n", i)
	}
	if _, err := parseIBCounters("f", many.String(), IBCounterRows); err == nil || !strings.Contains(err.Error(), "want at most 96") {
		t.Errorf("too many: %v", err)
	}
}

func FuzzIBCounterFile(f *testing.F) {
	f.Add("[[counter]]\nname = \"symbol_error\"\nwarn = 3\nper = \"second\"\n")
	f.Add("[sources]\na = \"b\"\n[[counter]]\nname = \"hw_counters/x\"\nsource = \"a\"\nbits = 64\nsaturates = true\n")
	f.Fuzz(func(t *testing.T, text string) {
		rows, err := parseIBCounters("f", text, IBCounterRows)
		if err != nil {
			return
		}
		if len(rows) < len(IBCounterRows) || len(rows) > ibMaxCounters {
			t.Fatalf("%d rows", len(rows))
		}
		for i := range rows {
			c := &rows[i]
			if c.sound() != nil || c.rate(checks.Growth{N: 1, Over: time.Minute}) <= 0 || c.full(0) {
				t.Errorf("%+v", c)
			}
		}
	})
}
