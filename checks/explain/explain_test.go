package explain

import (
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"

	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, checktest.XidNode())
	for text, want := range map[string]string{
		"79":             "Xid 79 RC_GPU_HAS_FALLEN_OFF_THE_BUS",
		"gpu.xid.79":     "Xid 79 ",
		"gpu.sxid.20034": "SXid 20034 ",
		"Sep 22 n1 kernel: [9.1] " + checktest.OnC1 + "94, pid=7, name=a, Contained": "the application was hit",
		"[  131.2] " + checktest.Fatal23:                                             "The driver has found the adapter dead (its firmware asks for a reset)",
		"Jan  2 03:04:05 n1 kernel: " + checktest.Shorted23:                          "check_kernel_log: fails while a port of the device is down",
		"mlx5_core 0000:23:00.0 eth13: Link down":                                    "check_ib_link_flapping counts it",
		"nic.heartbeat":     "source     Linux, drivers/net/ethernet/mellanox",
		"gpu.recovery.lost": "means      lost",
		"NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2":    "gpu.recovery.lost\n",
		"check_gpu_xid:  gpu6 0000:c1:00.0: Xid 79 (GPU has fallen off the bus), since x": "Xid 79 ",
		"check_gpu_count:  want 8 GPUs, got 7":                                            "A message of check_gpu_count",
		"symbol_error":                                                                    "fails above 120",
	} {
		if got, err := Explain(env, text); err != nil || !strings.Contains(got, want) {
			t.Errorf("%q: %v, want %q in\n%s", text, err, want, got)
		}
	}
	for _, text := range []string{"", "nonsense", "no.such.code", "check_nothing: x", "mlx5_core 0000:23:00.0: something new"} {
		if got, err := Explain(env, text); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// Every message of the table and every code with words can be explained.
func TestExplainEverything(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	for i := range checks.MessageTable().Rows {
		for _, line := range checks.MessageTable().Rows[i].Lines {
			if got, err := Explain(env, "[1.0] "+line); err != nil || !strings.Contains(got, "  source ") || !strings.Contains(got, "  do ") {
				t.Errorf("%s: %v\n%s", line, err, got)
			}
		}
	}
	for code := range checks.CodeRows().Words {
		if strings.Contains(code, "*") || checks.WhatToDo(code) == "" {
			continue
		}
		if got, err := Explain(env, code); err != nil || !strings.Contains(got, "  do ") {
			t.Errorf("%s: %v\n%s", code, err, got)
		}
	}
}

func FuzzExplain(f *testing.F) {
	f.Add("[  131.2] " + checktest.Fatal23)
	f.Add("NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2")
	f.Add("Xid 99999")
	env := &checks.Env{}
	f.Fuzz(func(_ *testing.T, text string) {
		if _, ok := xid.ParseXidKey(text); ok || strings.Contains(text, "Xid") || strings.Contains(text, "xid") {
			return // reads the site's policy
		}
		_, _ = Explain(env, text)
	})
}
