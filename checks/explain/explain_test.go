package explain

import (
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"

	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
)

const notResumedBy = "nhc-gpu:  node n1 is not resumed: drained by check_gpu_gemm (/etc/nhc/nhc-active.conf), "

func TestExplain(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, checktest.XidNode())
	for text, want := range map[string]string{
		"79":             "Xid 79 RC_GPU_HAS_FALLEN_OFF_THE_BUS",
		"gpu.xid.79":     "Xid 79 ",
		"gpu.sxid.20034": "SXid 20034 ",
		"gpu.xid.99999":  "\x00Xid 99999 unknown",
		"Sep 22 n1 kernel: [9.1] " + checktest.OnC1 + "94, pid=7, name=a, Contained": "the application is the victim",
		"[  131.2] " + checktest.Fatal23:                                             "The driver reports the adapter as dead (its firmware asks for a reset)",
		"Jan  2 03:04:05 n1 kernel: " + checktest.Shorted23:                          "check_kernel_log: fails while a port of the device is down",
		"mlx5_core 0000:23:00.0 eth13: Link down":                                    "check_ib_link_flapping counts it",
		"nic.heartbeat":      "source     Linux, drivers/net/ethernet/mellanox",
		"gpu.recovery.lost":  "in reasons lost",
		"nccl.wrong":         "severity   fail",
		"gpu.recovery.reset": "policy     drains the node, and in a prolog also requeues the job (fail-job), at once, ",
		"sweep.tcp.slow":     "in reasons slow TCP",
		"sweep.nccl.slow":    "policy     none: a sweep with --drain drains the node",
		"remedy.hold":        "until a person runs nhc-gpu clear --remedy",
		"drill.gpu.xid.79":   "Xid 79 ",
		"drill.gpu.remap":    "[drill]    no fault of the node",
		"NHC: sweep slow TCP eth1 [sweep.tcp.slow]": "ethtool -S",
		"sweep":             "sweep.nccl.hang",
		"SXid":              "check_gpu_xid",
		"reseat or replace": "gpu.recovery.lost",
		"NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2":    "+2         other failures",
		"check_gpu_xid:  gpu6 0000:c1:00.0: Xid 79 (GPU has fallen off the bus), since x": "Xid 79 ",
		"check_gpu_count:  want 8 GPUs, got 7":                                            "A message of check_gpu_count",
		"+2":                                                                              "other failures of the same run",
		"NHC: [drill] gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost]": "[drill]    no fault of the node",
		"[drill]":                        "nhc-gpu drill --end",
		"[job 1234]":                     "nhc-gpu job 1234",
		"Kill task failed":               "UnkillableStepTimeout",
		"NHC: check_scratch_quota: full": "a script of the site defines it",
		"NHC: Script timed out while executing \"check_fs_mount /home\".":                               "line       check_fs_mount /home",
		"[1] - ERROR:  nhc:  Health check failed:  check_gpu_count:  gpu3 0000:1:00.0: the GPU is lost": "gpu.recovery.lost\n",
		"node n1 is not resumed: drained by root":                                                       "why        drained by root",
		notResumedBy + "whose file this run does not read":                                              "do         Run the file that is named",
		notResumedBy + "which this run skipped or did not finish":                                       "do         Free the GPUs",
		notResumedBy + "which this run does not have":                                                   "do         Add the line to nhc.conf, or, if the fault is gone: scontrol",
		notResumedBy + "in a drill that is not over":                                                    "do         nhc-gpu drill --end",
		notResumedBy + "which has passed in 1 of 3 runs":                                                "do         Wait: ",
		notResumedBy + "and a fault has a strike in this run":                                           "do         See nhc-gpu status",
		"node n1 is not resumed: all checks pass, and the checks after reset-gpu have not run":          "do         See nhc-gpu remedy --dry-run",
		"symbol_error": "fails above 120",
	} {
		if got, err := Explain(env, text); err != nil || !strings.Contains("\x00"+got, want) {
			t.Errorf("%q: %v, want %q in\n%s", text, err, want, got)
		}
	}
	if got, err := Explain(env, "gpu.recovery.fabric"); err != nil || strings.Contains(got, "  policy ") {
		t.Errorf("a code that only warns has a policy: %v\n%s", err, got)
	}
	for _, text := range []string{"", "nonsense", "no.such.code", "drill.no.such.code", "check_nothing: x", "mlx5_core 0000:23:00.0: something new"} {
		if got, err := Explain(env, text); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// Every reason of Slurm is explained, also with the numbers that follow it, and has a source.
func TestSlurmReasons(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	for _, r := range slurmReasons() {
		got, err := Explain(env, r.Reason+" (0 < 8) [slurm@2026-01-02T03:04:05]")
		for _, want := range []string{r.Reason, "  means ", "  do ", "  source     https://slurm.schedmd.com/"} {
			if err != nil || !strings.Contains("\x00"+got, want) {
				t.Errorf("%s: %v, want %q in\n%s", r.Reason, err, want, got)
			}
		}
	}
}

// No code that fails in a test of its check is explained as one that only warns.
func TestExplainSeverities(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	scenarios, err := selftest.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		for _, w := range s.Want {
			if w.Severity != checks.Fail.String() || checks.SharedAdvice()[w.Code] != "" {
				continue
			}
			got, err := Explain(env, w.Code)
			if err != nil || strings.Contains(got, "  found by ") && (!strings.Contains(got, "fail") || !strings.Contains(got, "  policy ")) {
				t.Errorf("%s: fails in %q of %s: %v\n%s", w.Code, s.Name, s.Check, err, got)
			}
		}
	}
	const want = "  severity   warn or fail (drains the node): explain check_gpu_nvlink says when\n"
	if got, err := Explain(env, "gpu.nvlink.errors"); err != nil || !strings.Contains(got, want) {
		t.Errorf("%v, want %q in\n%s", err, want, got)
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

// Every check has an entry, which says what it is for, and every entry a check.
func TestReference(t *testing.T) {
	t.Parallel()
	var got []string
	for _, e := range Reference() {
		got = append(got, e.Names...)
		if e.About == "" {
			t.Errorf("%s: nothing about it", e.Names[0])
		}
		for _, a := range e.Arguments {
			if a.About == "" {
				t.Errorf("%s: nothing about %s", e.Names[0], a.Word)
			}
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(checks.Names(), got); diff != "" {
		t.Errorf("checks with an entry (-want +got):\n%s", diff)
	}
}

func TestExplainCheck(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	for _, text := range []string{"check_gpu_ecc", "gpu_ecc", "gpu* || check_gpu_ecc 20000000", "check_gpu_ecc -r 5"} {
		got, err := Explain(env, text)
		for _, want := range []string{
			"check_gpu_ecc: ECC is on", "\nUsage:\n  check_gpu_ecc [-o] ", "\nArguments:\n", "\n  -r RATE  ", "nhc.toml: rate)",
			"\n  gpu.ecc.off, fail, remedy fix-config\n      example  gpu3 0000:13:00.0: ", "-e 1", "\nExamples:\n  gpu* || check_gpu_ecc",
		} {
			if err != nil || !strings.Contains("\x00"+got, want) {
				t.Errorf("%q: %v, want %q in\n%s", text, err, want, got)
			}
		}
	}
	for _, name := range checks.Names() {
		got, err := Explain(env, name)
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(got) {
			if strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") {
				t.Errorf("%s: blanks at the end of %q", name, line)
			}
		}
	}
}

// What an administrator pastes from a log or from sinfo -R, which cuts the reason.
func TestExplainMessage(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	for text, want := range map[string]string{
		"NHC: check_fs_mount:  /scratch not mounted":                     "fs.mount.missing\n",
		"check_gpu_temp:  gpu5 0000:15:00.0: 95 C, want below the limit": "A message of check_gpu_temp",
		"NHC: gpu3 lost 0000:":                                           "gpu.recovery.lost ",
		"NHC: GPU count 7, wa":                                           "gpu.count ",
		"gpu.ecc":                                                        "\n  gpu.ecc.sram.threshold ",
		"check_ps_service:  Service sshd (process sshd) owned by root not running": "ps.service.down\n",
	} {
		if got, err := Explain(env, text); err != nil || !strings.Contains("\x00"+got, want) {
			t.Errorf("%q: %v, want %q in\n%s", text, err, want, got)
		}
	}
	for text, want := range map[string]string{
		"check_gpu_ec": "did you mean check_gpu_ecc?", "gpu.ec.off": "did you mean gpu.ecc.off?", "NHC: gpu3": "want the name of a check", "NHC: ": "want",
		"Health check unknown": "other messages: /usr/share/doc/nhc-gpu/docs/troubleshooting.md; settings: nhc.conf(5)",
	} {
		if got, err := Explain(env, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q\n%s", text, err, want, got)
		}
	}
}
