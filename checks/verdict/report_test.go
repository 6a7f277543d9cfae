package verdict

import (
	"bytes"
	"encoding/json"
	"fmt"
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

func printed(r *Report, v View) string {
	var b bytes.Buffer
	_ = r.Table(&b, v)
	return b.String()
}

// eight returns a report with one fault on several GPUs, other results, and facts.
func eight() *Report {
	r := &Report{Version: "1", Node: "n1", From: "f", Facts: []Row{{Name: "gpu0", Message: "0000:10:00.0 NVIDIA H100 " + boardUUID}, {Name: "gpu1", Message: "0000:11:00.0 NVIDIA H100"}, {Severity: checks.Skip, Name: "DCGM", Message: "none"}}}
	r.Rows = append(r.Rows,
		Row{Severity: checks.OK, Name: "check_temp", Line: "check_temp", Fact: "8 GPUs, hottest 61 C"},
		Row{Severity: checks.OK, Name: "check_eth", Line: "check_eth lo", Took: 1500 * time.Millisecond},
		Row{Severity: checks.Skip, Name: "check_s", Message: "no disk"},
		Row{Severity: checks.Warn, Name: "check_w", Message: "odd", Do: "Look twice."},
		Row{Severity: checks.Unknown, Name: "check_u", Message: "could not tell", Do: "Look."},
		Row{Severity: checks.Fail, Name: "check_c", Device: gpu3(), Message: "gpu3 0000:13:00.0: down", Remedy: checks.CheckCable, Do: "Pull it."})
	for i := range 8 {
		d := checks.Device{Kind: "gpu", Name: fmt.Sprint("gpu", i), PCI: fmt.Sprintf("0000:1%d:00.0", i)}
		if i != 2 {
			r.Rows = append(r.Rows, Row{Severity: checks.Fail, Name: "check_ecc", Device: d, Message: d.String() + ": ECC, want on, got off", Remedy: checks.FixConfig, Do: "Turn it on."})
		}
	}
	return r
}

// Failures are first, with the action; devices with the same fault share a row.
func TestTable(t *testing.T) {
	t.Parallel()
	want := `nhc-gpu 1 on n1, checking f

 fail    check_c     gpu3 0000:13:00.0: down
         -> check the cable: Pull it.
 fail    check_ecc   gpu0-1,3-7: ECC, want on, got off
         -> fix the configuration: Turn it on.
 unknown check_u     could not tell
         -> Look.
 warn    check_w     odd
         -> Look twice.

 ok      check_temp  8 GPUs, hottest 61 C
 ok      check_eth   lo (1.5 s)
 skip    check_s     no disk

This node:
 yes gpu0-1  NVIDIA H100
 no  DCGM    none

Devices:
  gpu3 0000:13:00.0, serial 1650000003, UUID ` + boardUUID + `

2 ok, 1 skipped, 1 warn, 1 unknown, 8 fail
`
	r := eight()
	if diff := cmp.Diff(want, printed(r, View{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.Failed = true
	failed := printed(r, View{})
	r.Failed = false
	if strings.Contains(failed, "check_temp") || strings.Contains(failed, "check_s") || strings.Contains(failed, "H100") || !strings.Contains(failed, "check_w") || !strings.HasSuffix(failed, "8 fail\n") {
		t.Errorf("--failed:\n%s", failed)
	}
	quiet := " fail    check_c    gpu3 0000:13:00.0: down\n         -> check the cable: Pull it.\n fail    check_ecc  gpu0-1,3-7: ECC, want on, got off\n" +
		"         -> fix the configuration: Turn it on.\n unknown check_u    could not tell\n         -> Look.\n"
	if diff := cmp.Diff(quiet, printed(r, View{Quiet: true})); diff != "" {
		t.Errorf("-q (-want +got):\n%s", diff)
	}
	for n, exit := range []int{0, 0, 0, 0, 1, 3, 2} {
		if got := (&Report{Rows: r.Rows[:n]}).Exit(); got != exit {
			t.Errorf("%d rows: exit status %d, want %d", n, got, exit)
		}
	}
	if plain := strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(printed(r, View{Coloured: true})); plain != want {
		t.Errorf("with colours:\n%s", plain)
	}
}

// Rows that many checks share are one row, but a failure never is.
func TestTableFolds(t *testing.T) {
	t.Parallel()
	r := &Report{}
	for _, name := range []string{"check_a", "check_b", "check_c", "check_d"} {
		r.Rows = append(r.Rows,
			Row{Severity: checks.Skip, Name: name, Message: "no GPU"},
			Row{Severity: checks.Fail, Name: name, Message: "down", Do: "look"})
	}
	r.Rows = append(r.Rows, Row{Severity: checks.Skip, Name: "check_e", Message: "no driver"})
	text := printed(r, View{})
	if strings.Count(text, "no GPU") != 1 || strings.Count(text, "down") != 4 || strings.Count(text, "-> look") != 1 || !strings.Contains(text, " skip    check_a and 3 more  no GPU") ||
		!strings.Contains(text, "\n0 ok, 5 skipped, 0 warn, 0 unknown, 4 fail\n") {
		t.Error(text)
	}
}

// Only the number of a device may differ in a folded row.
func TestFoldDevices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		texts []string
		want  []string
	}{
		{[]string{"mlx5_0:1 down", "mlx5_1:1 down", "mlx5_10:1 down"}, []string{"mlx5_0-1,10:1 down"}},
		{[]string{"gpu0 has no /dev/nvidia0", "gpu1 has no /dev/nvidia1"}, []string{"gpu0-1 has no /dev/nvidia0-1"}},
		{[]string{"gpu0 has no /dev/nvidia1", "gpu1 has no /dev/nvidia0"}, []string{"gpu0 has no /dev/nvidia1", "gpu1 has no /dev/nvidia0"}},
		{[]string{"hottest 61 C", "hottest 62 C"}, []string{"hottest 61 C", "hottest 62 C"}},
		{[]string{"mlx5_0:1 ok", "mlx5_1:1 ok", "mlx6_1:1 ok"}, []string{"mlx5_0-1:1 ok", "mlx6_1:1 ok"}},
		{[]string{"eth007 up", "eth008 up"}, []string{"eth007 up", "eth008 up"}},
		{[]string{"same", "same"}, []string{"same", "same"}},
	} {
		var rows []Row
		for _, text := range c.texts {
			rows = append(rows, Row{Severity: checks.Fail, Name: "check_x", Message: text})
		}
		var got []string
		for _, row := range fold(rows) {
			got = append(got, row.Message)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// An action that was not carried out is held, not skipped; a report without a row has one blank line.
func TestTableOfHeldAction(t *testing.T) {
	t.Parallel()
	r := &Report{Version: "1", Node: "n1", From: "check_x", Rows: []Row{{Severity: checks.Skip, Name: "check_x", Code: checks.HeldCode, Message: "not done: would create /made"}}}
	const want = "nhc-gpu 1 on n1, checking check_x\n\n held    check_x  not done: would create /made\n\n0 ok, 0 skipped, 0 warn, 0 unknown, 0 fail\n1 action held; --act carries it out\n"
	if diff := cmp.Diff(want, printed(r, View{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	none := &Report{Version: "1", Node: "n1", From: "f", Failed: true, Rows: []Row{{Name: "check_x"}}}
	if diff := cmp.Diff("nhc-gpu 1 on n1, checking f\n\n1 ok, 0 skipped, 0 warn, 0 unknown, 0 fail\n", printed(none, View{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// No line is longer than the terminal, none ends in a blank, and nothing is lost.
func TestTableIsWrapped(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 40)
	r := &Report{Facts: []Row{{Name: "thing", Message: long}}, Rows: []Row{
		{Severity: checks.Fail, Name: "check_gpu_count", Message: long, Do: long, Took: time.Second},
		{Severity: checks.Skip, Name: "check_nccl_allreduce_ib_loopback", Message: "none"},
	}}
	for _, coloured := range []bool{false, true} {
		text := printed(r, View{Width: 80, Coloured: coloured})
		if n := strings.Count(text, "word"); n != 120 {
			t.Errorf("%d words, want 120", n)
		}
		for line := range strings.Lines(strings.NewReplacer("\x1b[31m", "", "\x1b[0m", "").Replace(text)) {
			if line = strings.TrimSuffix(line, "\n"); len(line) > 80 || strings.HasSuffix(line, " ") {
				t.Errorf("%d characters: %q", len(line), line)
			}
		}
	}
}

func TestReportJSON(t *testing.T) {
	t.Parallel()
	r := &Report{Version: "1", Node: "n1", From: "f", Facts: []Row{{Severity: checks.Skip, Name: "NVML", Message: "none <" + boardUUID + ">"}}, Rows: []Row{
		{Severity: checks.OK, Name: "check_a", Line: "check_a 1", Fact: "8 GPUs", Took: 1500 * time.Microsecond},
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
			map[string]any{"result": "ok", "check": "check_a", "line": "check_a 1", "fact": "8 GPUs", "took_ms": 1.5},
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
	if text := printed(r, View{}); strings.Contains(text, "1650000003") || strings.Contains(text, "123456789abc") {
		t.Error(text)
	}
}
