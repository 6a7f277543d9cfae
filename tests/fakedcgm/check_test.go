package fakedcgm_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// checkReport is the part of the output of --check --json that the tests need.
type checkReport struct {
	Exit    int
	Results []checkRow
}

type checkRow struct{ Result, Check, Code, Message string }

// verdicts returns each failure and each unknown result, as the health check logs it.
func (r *checkReport) verdicts() (list []string) {
	words := map[string]string{"fail": "failed", "unknown": "unknown"}
	for _, row := range r.Results {
		if word := words[row.Result]; word != "" {
			list = append(list, word+":  "+called.ReplaceAllString(row.Message, ""))
		}
	}
	return list
}

var (
	logged  = regexp.MustCompile(`(?m)^ERROR:  nhc:  Health check (failed|unknown):  (.*)$`)
	called  = regexp.MustCompile(`^check_\w+:  `)                              // has its own column in --check
	changes = regexp.MustCompile(`process \d+|\d+(\.\d+)?m?s\b|worker died.*`) // differs between runs
	inCall  = regexp.MustCompile(`\bin (nvml|dcgm)\w+(\(\d+\))?: `)            // the detail of --check
)

// TestSameTruth compares --check with a health check on nodes whose libraries hang or crash: the
// same rows fail, with the same texts.
func TestSameTruth(t *testing.T) {
	t.Parallel()
	defaults, err := os.ReadFile("../../conf/default.toml")
	if err != nil {
		t.Fatal(err)
	}
	const lines = "* || check_gpu_count 8\n* || check_gpu_recovery\n* || check_dcgm_health\n* || check_file_test -d /\n"
	const calls = "* || { check_gpu_count 8; }\n* || check_file_test -d /\n"
	for _, c := range []struct {
		name, conf, toml string
		nvml, dcgm       []string
		code             string // of one row
		exit             int
	}{
		{name: "NVML hangs at its start", conf: lines, nvml: []string{"- nvmlInit hang"}, code: "probe.hung", exit: 2},
		{name: "NVML hangs in a later call", conf: lines, nvml: []string{"5 nvmlDeviceGetUUID hang"}, code: "probe.hung", exit: 2},
		{name: "NVML crashes", conf: lines, nvml: []string{"5 nvmlDeviceGetUUID crash"}, code: "probe.died", exit: 3},
		{name: "NVML hangs below a shell line", conf: calls, nvml: []string{"- nvmlInit hang"}, code: "probe.hung", exit: 2},
		{name: "DCGM hangs below an engine of its own", conf: "* || export DCGM_MODE=embedded\n" + lines, dcgm: []string{"hang dcgmStartEmbedded"}, code: "probe.hung", exit: 2},
		{name: "DCGM's engine hangs", conf: lines, dcgm: []string{"hang dcgmHealthGet"}, code: "probe.hung", exit: 2},
		{name: "DCGM crashes", conf: lines, dcgm: []string{"crash dcgmHealthCheck"}, code: "probe.died", exit: 3},
		{name: "default NVML hangs", toml: string(defaults), nvml: []string{"- nvmlInit hang"}, code: "probe.hung", exit: 2},
		{name: "default NVML crashes", toml: string(defaults), nvml: []string{"- nvmlInit crash"}, code: "probe.died", exit: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, append([]string{watched}, c.dcgm...)...)
			if _, err := fakenvml.Place(filepath.Join(n.dir, "nvml"), fakenvml.Scenario(fakenvml.H100, 8, c.nvml...)); err != nil {
				t.Fatal(err)
			}
			if err := fakesys.New().Write(filepath.Join(n.dir, "root")); err != nil {
				t.Fatal(err)
			}
			if err := fakenvml.Write(n.dir, map[string]string{"root/tmp/x": "", "root/proc/mounts": "/dev/sda / ext4 rw 0 0\n", "nhc.toml": c.toml}); err != nil {
				t.Fatal(err)
			}
			out, _ := n.run(t, c.conf, "--check", "--json", "-t", "4", "-D", n.dir)
			var report checkReport
			if err := json.Unmarshal([]byte(out), &report); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if report.Exit != c.exit {
				t.Errorf("--check: exit status %d, want %d", report.Exit, c.exit)
			}
			if !slices.ContainsFunc(report.Results, func(row checkRow) bool { return row.Code == c.code }) {
				t.Errorf("%s\nwant a row with the code %s", out, c.code)
			}
			health, _ := n.run(t, c.conf, "-a", "-t", "4", "-D", n.dir)
			var want []string
			for _, m := range logged.FindAllStringSubmatch(health, -1) {
				want = append(want, m[1]+":  "+inCall.ReplaceAllString(called.ReplaceAllString(m[2], ""), ""))
			}
			if diff := cmp.Diff(unchanging(want), unchanging(report.verdicts())); diff != "" {
				t.Errorf("(-health check +--check):\n%s", diff)
			}
			if fails := strings.Contains(health, "Health check failed"); fails != (c.exit == 2) {
				t.Errorf("the health check fails: %v\n%s", fails, health)
			}
		})
	}
}

// unchanging removes parts that differ between runs: a process id, a duration.
func unchanging(list []string) []string {
	out := make([]string, len(list))
	for i, text := range list {
		out[i] = changes.ReplaceAllString(text, "...")
	}
	return out
}
