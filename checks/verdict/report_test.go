package verdict

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

const boardUUID = "GPU-12345678-1234-1234-1234-123456789abc"

func gpu3() checks.Device {
	return checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:13:00.0", Serial: "1650000003", UUID: boardUUID}
}

func printed(r *Report, width int, coloured bool) string {
	var b bytes.Buffer
	r.Table(&b, width, coloured)
	return b.String()
}

func TestTable(t *testing.T) {
	t.Parallel()
	rows := []Row{
		{Severity: checks.OK, Name: "check_a", Line: "check_a 1", Took: 1500 * time.Microsecond},
		{Severity: checks.Unknown, Name: "check_b", Message: "could not tell", Do: "look"},
		{Severity: checks.Fail, Name: "check_c", Device: gpu3(), Message: "gpu3 0000:13:00.0: down", Remedy: checks.CheckCable, Do: "look"},
	}
	for n, exit := range []int{0, 0, 3, 2} {
		r := &Report{Rows: rows[:n]}
		if got := r.Exit(); got != exit {
			t.Errorf("%d rows: exit status %d, want %d", n, got, exit)
		}
	}
	text := printed(&Report{Version: "1", Node: "n1", From: "f", Rows: rows}, 0, false)
	for _, want := range []string{
		"nhc-gpu 1 on n1, checking f\n", " ok       check_a                     check_a 1             1.5 \n", "  gpu3 0000:13:00.0  down  -> check-cable  ",
		"\n1 ok, 0 skipped, 0 warn, 1 unknown, 1 fail\n", "\nDevices:\n  gpu3 0000:13:00.0, serial 1650000003, UUID " + boardUUID + "\n", "\nWhat to do:\n  check_b, check_c: look\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Error("colour where none was wanted")
	}
	warn := &Report{Rows: []Row{{Severity: checks.Warn}}}
	if text := printed(warn, 0, true); warn.Exit() != 1 || !strings.Contains(text, "\x1b") {
		t.Errorf("a coloured warning: exit status %d\n%q", warn.Exit(), text)
	}
}

// Rows with the same message from many checks become one row, and are counted in full; a
// failure is never one of them.
func TestTableFolds(t *testing.T) {
	t.Parallel()
	r := &Report{}
	for _, name := range []string{"check_a", "check_b", "check_c", "check_d"} {
		r.Rows = append(r.Rows,
			Row{Severity: checks.Skip, Name: name, Message: "no GPU"},
			Row{Severity: checks.Fail, Name: name, Message: "down", Do: "look"})
	}
	r.Rows = append(r.Rows, Row{Severity: checks.Skip, Name: "check_e", Message: "no driver"})
	text := printed(r, 0, false)
	if strings.Count(text, "no GPU") != 1 || strings.Count(text, "down") != 4 || !strings.Contains(text, " skip    check_a and 3 more  ") ||
		!strings.Contains(text, "\n0 ok, 5 skipped, 0 warn, 0 unknown, 4 fail\n") || !strings.HasSuffix(text, "  check_a and 3 more: look\n") {
		t.Error(text)
	}
}

// No line is longer than the terminal, and no text is lost.
func TestTableIsWrapped(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 40)
	r := &Report{Facts: []Row{{Name: "thing", Message: long}}, Rows: []Row{{Severity: checks.Fail, Name: "check_gpu_count", Message: long, Do: long, Took: time.Second}}}
	for _, coloured := range []bool{false, true} {
		text := printed(r, 80, coloured)
		if n := strings.Count(text, "word"); n != 120 {
			t.Errorf("%d words, want 120", n)
		}
		for line := range strings.Lines(strings.NewReplacer("\x1b[31m", "", "\x1b[0m", "").Replace(text)) {
			if n := len(strings.TrimRight(line, "\n")); n > 80 {
				t.Errorf("%d characters: %q", n, line)
			}
		}
	}
}

func TestReportJSON(t *testing.T) {
	t.Parallel()
	r := &Report{Version: "1", Node: "n1", From: "f", Facts: []Row{{Severity: checks.Skip, Name: "NVML", Message: "none <" + boardUUID + ">"}}, Rows: []Row{
		{Severity: checks.OK, Name: "check_a", Line: "check_a 1", Took: 1500 * time.Microsecond},
		{Severity: checks.Fail, Name: "check_gpu_x", Line: "check_gpu_x", Code: "gpu.x", Device: gpu3(), Message: "gpu3 0000:13:00.0: x of " + boardUUID,
			Want: "1", Got: "2", Remedy: checks.ResetGPU, Do: "look"},
	}}
	read := func() (out map[string]any, text string) {
		var b bytes.Buffer
		if err := r.JSON(&b); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b.Bytes(), &out); err != nil {
			t.Fatal(err)
		}
		return out, b.String()
	}
	got, _ := read()
	want := map[string]any{
		"version": "1", "node": "n1", "config": "f", "result": "fail", "exit": 2.0, "count": map[string]any{"ok": 1.0, "skip": 0.0, "warn": 0.0, "unknown": 0.0, "fail": 1.0},
		"facts": []any{map[string]any{"thing": "NVML", "found": "no", "detail": "none <" + boardUUID + ">"}},
		"results": []any{
			map[string]any{"result": "ok", "check": "check_a", "line": "check_a 1", "took_ms": 1.5},
			map[string]any{"result": "fail", "check": "check_gpu_x", "line": "check_gpu_x", "code": "gpu.x", "message": "gpu3 0000:13:00.0: x of " + boardUUID, "want": "1", "got": "2",
				"remedy": "reset-gpu", "do": "look", "took_ms": 0.0,
				"device": map[string]any{"kind": "gpu", "name": "gpu3", "pci": "0000:13:00.0", "serial": "1650000003", "uuid": boardUUID}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.Redact()
	if _, text := read(); strings.Contains(text, "1650000003") || strings.Contains(text, "123456789abc") || !strings.Contains(text, `"serial":"redacted"`) ||
		!strings.Contains(text, "x of GPU-redacted") || !strings.Contains(text, "0000:13:00.0") {
		t.Error(text)
	}
	if text := printed(r, 0, false); strings.Contains(text, "1650000003") || strings.Contains(text, "123456789abc") {
		t.Error(text)
	}
}
