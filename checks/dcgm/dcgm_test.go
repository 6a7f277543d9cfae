package dcgm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

func TestDCGMTable(t *testing.T) {
	t.Parallel()
	var table struct {
		Sources map[string]string `toml:"sources"`
	}
	if _, err := toml.Decode(dcgmData, &table); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for i, r := range dcgmRows() {
		again := r.Only != "" // a row with a text stands before another of its code
		if again && dcgmRows()[i+1].Name != r.Name || r.Code != len(names) || r.Name == "" || names[r.Name] || !slices.Contains([]dcgmClass{dcgmFails, dcgmWarns, dcgmInfo}, r.Class) {
			t.Errorf("row %d: %+v", i, r)
		}
		if !again {
			names[r.Name] = true
		}
		if table.Sources[r.Source] == "" {
			t.Errorf("%s: unknown source %q", r.Name, r.Source)
		}
		if r.Class != dcgmFails && r.Remedy != checks.NoRemedy {
			t.Errorf("%s: a remedy, but it does not fail", r.Name)
		}
		if r.Class == dcgmFails && r.Look != "" || strings.HasSuffix(r.Look, ".") {
			t.Errorf("%s: look %q", r.Name, r.Look)
		}
		if WhatToDo(fmt.Sprintf("%s%d", dcgmCode, r.Code)) == "" {
			t.Errorf("%s: no advice", r.Name)
		}
	}
	if len(names) != 134 {
		t.Errorf("%d rows, want the 134 of DCGM 4.6", len(names))
	}
}

// A text matches at most one row.
func TestDCGMTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"Detected 2 volatile double-bit ECC error(s) in GPU 3. Drain the GPU and reset it or reboot the node.": 4,
		"GPU 3's NvLink link 7 is currently down Run a field diagnostic on the GPU.":                           14,
		"GPU 3 had memory errors and row remappings are pending":                                               85,
		"GPU 3 had uncorrectable memory errors and row remapping failed.":                                      80,
		"GPU 0 requires a reset to recover from a fault. Recovery action: 1 (GPU_RESET).":                      125,
		"Detected more than 8 PCIe replays per minute for GPU 3 : 12":                                          -1,
		"GPU 3 had uncorrectable memory errors and 2 rows were remapped":                                       -1,
	} {
		got, found := -1, 0
		for _, r := range dcgmRows() {
			if r.Says != "" && strings.Contains(text, r.Says) {
				got, found = r.Code, found+1
			}
		}
		if got != want || found > 1 {
			t.Errorf("%q: %d rows, the last %d, want %d", text, found, got, want)
		}
	}
}

func TestDCGMClassesOfASite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"[[error]]\nname = \"DCGM_FR_PCI_REPLAY_RATE\"\nclass = \"fail\"\n", "3 fail"},
		{"[[error]]\ncode = 4\nclass = \"info\"\n", "4 info"},
		{"[[error]]\ncode = 123\nclass = \"fail\"\n", "123 fail123 fail"},
		{"[[error]]\ncode = 200\nname = \"NEW\"\nclass = \"fail\"\n", "200 fail"},
		{"[[error]]\ncode = 3\nclass = \"drain\"\n", `f:1: class "drain", want fail, warn or info`},
		{"\n[[error]]\nname = \"NONE\"\nclass = \"warn\"\n", `f:2: DCGM has no error "NONE", want a name such as VOLATILE_DBE_DETECTED, or a code`},
		{"[[error]]\ncode = 3\nclass = \"warn\"\nlevel = 2\n", "f:4: unknown key error.level, want class, code, name"},
		{"[[error]\n", "f:1:9: toml: line 1: expected"},
	} {
		changed, err := applySite(dcgmRows(), "f", c.text)
		got := fmt.Sprint(err)
		if err == nil {
			got = ""
			for i, r := range changed {
				if i >= len(dcgmRows()) || r.Class != dcgmRows()[i].Class {
					got += fmt.Sprintf("%d %s", r.Code, r.Class)
				}
			}
		}
		if got != c.want && (!strings.HasSuffix(c.want, "expected") || err == nil) {
			t.Errorf("%q: %s, want %s", c.text, got, c.want)
		}
	}
}

func TestDCGMSeverity(t *testing.T) {
	t.Parallel()
	got := map[string]checks.Severity{}
	for _, c := range []struct {
		code   int
		failed bool
	}{{4, true}, {4, false}, {3, true}, {27, true}, {999, true}, {-1, true}, {122, true}, {14, true}} {
		got[fmt.Sprint(c.code, c.failed)] = dcgmRows().find(c.code, "").severity(c.failed)
	}
	want := map[string]checks.Severity{"4 true": checks.Fail, "4 false": checks.Warn, "3 true": checks.Warn, "27 true": checks.OK, "999 true": checks.Warn, "-1 true": checks.Warn, "122 true": checks.Warn, "14 true": checks.Warn}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

var errDCGM = errors.New("an error of DCGM")
