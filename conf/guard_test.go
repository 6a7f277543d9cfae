package conf

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	defaults := Guard{Enabled: true, Percent: 10, Nodes: 3, RepairPartition: 1, RepairCluster: 2, Jitter: 30 * time.Second, Uncounted: GuardDrains}
	var none *Config
	for _, c := range []*Config{none, {}} {
		if diff := cmp.Diff(defaults, c.Guards()); diff != "" {
			t.Errorf("defaults (-want +got):\n%s", diff)
		}
	}
	c, err := ParseTOML("t.toml", []byte(`
[guard]
enabled = false
percent = 5
nodes = 0
repair_partition = 2
repair_cluster = 8
jitter = 0
exempt = ["gpu.ecc", "check_ps_"]
uncounted = "hold"
`))
	want := Guard{Percent: 5, RepairPartition: 2, RepairCluster: 8, Exempt: []string{"gpu.ecc", "check_ps_"}, Uncounted: GuardHolds}
	if err != nil || !cmp.Equal(c.Guards(), want) {
		t.Errorf("%v\n%s", err, cmp.Diff(want, c.Guards()))
	}
	for text, want := range map[string]string{
		"enabled = 1":            `t.toml:2: guard.enabled: 1: want true or false`,
		"percent = 101":          `t.toml:2: guard.percent: 101: want a whole number, 0 to 100`,
		"percent = 10.5":         `t.toml:2: guard.percent: 10.5: want a whole number, 0 to 100`,
		"nodes = -1":             `t.toml:2: guard.nodes: -1: want a whole number, 0 to 1048576`,
		"jitter = 60":            `t.toml:2: guard.jitter: 60: want a whole number, 0 to 45`,
		`exempt = "gpu"`:         `t.toml:2: guard.exempt: "gpu": want a list of texts`,
		`exempt = [""]`:          `t.toml:2: guard.exempt: [""]: want a list of texts`,
		`uncounted = "Drain"`:    `t.toml:2: guard.uncounted: "Drain": want`,
		"percent = 0\nnodes = 0": `guard.percent and guard.nodes are both 0`,
		"limit = 3":              `t.toml:2: unknown key guard.limit: want`,
		"percent = 0\nnodes = 0\nenabled = false": "",
	} {
		_, err := ParseTOML("t.toml", []byte("[guard]\n"+text+"\n"))
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestGuardPage compares the table of [guard] in docs/reference/nhc-toml.md with the rows, or writes
// it.
func TestGuardPage(t *testing.T) {
	t.Parallel()
	const path, write = "../docs/reference/nhc-toml.md", "NHC_GPU_WRITE=docs go test ./conf -run GuardPage"
	const begin, end = "<!-- guard: " + write + " writes it -->\n", "<!-- end -->\n"
	table := "| key | value | default | reason of the default |\n|---|---|---|---|\n"
	for _, row := range GuardRows {
		table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", row.Key, row.Means, tomltext.Value(row.Default), row.Source)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), begin)
	got, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %s", path, begin)
	}
	if os.Getenv("NHC_GPU_WRITE") == "docs" {
		if err := os.WriteFile(path, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(table, got); diff != "" {
		t.Errorf("%s: %s writes it (-want +got):\n%s", path, write, diff)
	}
}
