package xid

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestExplainXid(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, checktest.XidNode())
	got, err := Explain(env, "Sep 22 n1 kernel: [9.1] "+checktest.OnC1+"145, pid=7, name=a, RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)")
	want := `Xid 145 NVLINK_RLW_ERROR
  device     0000:c1:00.0
  process    7 a
  means      NVLink error, unit RLW
  NVIDIA     WORKFLOW_NVLINK5_ERR / WORKFLOW_NVLINK5_ERR
  class      DECODE: the numbers in its line decide
  this line  RESET: drains the node; a GPU reset or a reboot clears it
  decoded    RLW_RSPCOL on link 5, fatal
  severity   fail
  remedy     reset-gpu
  do         With no job on the node: systemctl stop nvidia-dcgm nvidia-dcgm-exporter nvidia-persistenced (not the fabric manager), nvidia-smi --gpu-reset -i ADDRESS, then start them again. fuser -v /dev/nvidia* shows what else uses the GPU. If the reset fails, reboot. If the error returns, contact the vendor.
  unit       RLW_CTRL: IGNORE 1
  unit       RLW_REMAP: IGNORE 3, RESET_GPU 2, XID_154_EVAL 6
  unit       RLW_RSPCOL: IGNORE 2, RESET_GPU 1
  unit       RLW_RXPIPE: IGNORE 5, RESET_GPU if promoted (action 2) 3
  unit       RLW_SRC_TRACK: IGNORE 2, RESET_GPU 3, XID_154_EVAL 2
  unit       RLW_TAGSTATE: IGNORE 3, RESET_GPU 3
  source     NVIDIA Xid catalogue of 2025-10-29
  override   none
`
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for text, want := range map[string]string{
		"79":         "again      RMA-HOLD, if it returns within a week",
		"xid:74":     "again      RMA-HOLD, if it returns on the same link",
		"Xid 13":     "repeated   DIAG after 2 processes in the same place (GPC and TPC) within 24 hours",
		"63":         "NVML       decides",
		"48":         "NVML       decides if it can be queried: RMA-HOLD if SRAM",
		"162":        "clears     Xid 163",
		"171":        "details    of Xid 48",
		"94":         "class      APP: one warning: the application is the victim and must be restarted",
		"109":        "repeated   RESET after 2 different jobs within 24 hours",
		"145":        "unit       RLW_RXPIPE: IGNORE 5, RESET_GPU if promoted (action 2) 3\n",
		"168":        "class      REBOOT: drains the node; enable ECC (nvidia-smi -i ADDRESS -e 1), then reboot; where ECC is enabled a reboot is enough",
		"110":        "class      RESET: drains the node; power the node off and on",
		"173":        "remedy     power-cycle",
		"175":        "class      RESET",
		"177":        "do         With no job on the node: systemctl stop",
		"12028":      "SXid 12028 NPORT_EGRESS_PRIVRSPERR",
		"sxid:20034": "remedy     reset-gpu",
		"999":        "unknown to this version",
		"95":         "verdict    RESET if the line has RST: Yes or D-RST: Yes, WATCH if it has No twice",
		"NVRM: Xid (PCI:0000:c1:00): 95, Uncontained: LTC (0x2, 0x1). RST: No, D-RST: No":                 "this line  WATCH",
		"NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)": "decoded    the driver requests a reboot of the node",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 24007, Non-fatal, Link 32 x":                          "this line  WATCH",
		"fm: detected NVSwitch fatal error 20034 on x":                                                    "SXid 20034",
	} {
		if got, err := Explain(env, text); err != nil || !strings.Contains(got, want) {
			t.Errorf("%q: %v, want %q in\n%s", text, err, want, got)
		}
	}
	for _, text := range []string{"", "nonsense", "-1", "123456", "NVRM: loading NVIDIA UNIX", "detected NVSwitch fatal error x"} {
		if got, err := Explain(env, text); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// A warning with a remedy, and one whose row says what to do, advises that, and not to watch the node.
func TestWatchAdvice(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	for text, want := range map[string]string{
		"0": "reset it: nvidia-smi", "92": "have it examined", "93": "Ask the vendor", "109": "Inform the owner", "121": "at the next service", "125": "nhc-gpu check gpu_driver",
		"157": "Plan a replacement", "159": "unified memory", "160": "the next reset", "161": "contact the vendor", "163": "Check the cooling", "164": "Expect to replace",
		"165": "Plan a replacement", "sxid:20009": "Check the connectors", "sxid:10004": "Check fans", "65": "Watch it", "999": "Watch it",
	} {
		_, do, _ := strings.Cut(explained(t, env, text), "\n  do         ")
		do, _, _ = strings.Cut(do, "\n")
		k, _ := ParseXidKey(text)
		if !strings.Contains(do, want) || !strings.Contains(checks.WhatToDo(k.Finding()), want) {
			t.Errorf("%s: do %q, advice %q: want %q", text, do, checks.WhatToDo(k.Finding()), want)
		}
	}
	for isSwitch, table := range map[bool]map[int]xidRow{false: xidTable(), true: sxidTable()} {
		for code, r := range table {
			if advice := r.advise(r.Class, isSwitch); r.Remedy != checks.NoRemedy && strings.HasPrefix(advice, "Watch it") {
				t.Errorf("%d: remedy %s, and %q", code, r.Remedy, advice)
			}
			if r.Cure != "" && r.Class != checks.XidWatch && r.Class != checks.XidReboot && r.Remedy != checks.PowerCycle {
				t.Errorf("%d: nothing uses the cure of class %s", code, r.Class)
			}
			if r.Class == checks.XidWatch && r.Cure != "" && r.advise(checks.XidReset, isSwitch) != adviseClass(checks.XidReset, isSwitch) {
				t.Errorf("%d: raised to RESET it has the advice of WATCH", code)
			}
		}
	}
}

func explained(t *testing.T, env *checks.Env, text string) string {
	t.Helper()
	got, err := Explain(env, text)
	if err != nil {
		t.Error(err)
	}
	return got
}

// The driver's own verdict at the end of a line asks for nothing: no remedy.
func TestExplainLowered(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, checktest.XidNode())
	for verdict, remedy := range map[string]string{"RST: No, D-RST: No": "", "RST: Yes, D-RST: No": "  remedy     reset-gpu\n"} {
		got, err := Explain(env, checktest.OnC1+"95, pid=7, name=a, Uncontained: LTC TAG (0x0,0x0). "+verdict)
		if err != nil || (remedy == "") == strings.Contains(got, "  remedy ") || !strings.Contains(got, remedy) {
			t.Errorf("%s: %v\n%s", verdict, err, got)
		}
	}
}

func TestExplainOverride(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, map[string]string{"etc/nhc/xid.toml": "[[xid]]\ncode = 79\nclass = \"APP\"\nwhy = \"because\"\n[class.APP]\nseverity = \"fail\"\n"})
	got, err := Explain(env, "79")
	for _, want := range []string{"class      APP: ", "severity   fail", "override   /etc/nhc/xid.toml: class APP instead of REBOOT, because"} {
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%v, want %q in\n%s", err, want, got)
		}
	}
	env = checktest.ExplainEnv(t, map[string]string{"etc/nhc/xid.toml": "x = 1"})
	if got, err := Explain(env, "79"); err != nil || !strings.Contains(got, "override   not used: /etc/nhc/xid.toml:1: unknown key x") {
		t.Errorf("%v\n%s", err, got)
	}
}

// Every row of both tables has an explanation with advice.
func TestExplainAll(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	for isSwitch, table := range map[bool]map[int]xidRow{false: xidTable(), true: sxidTable()} {
		for code := range table {
			k := checks.XidKey{Switch: isSwitch, Code: code}
			got, err := Explain(env, k.String())
			if err != nil || !strings.HasPrefix(got, k.String()+" ") || strings.Contains(got, "  \n") || checks.WhatToDo(k.Finding()) == "" {
				t.Errorf("%s: %v\n%s", k, err, got)
			}
		}
	}
}

func TestXidCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		key  checks.XidKey
		want bool
	}{
		{"", checks.XidKey{Code: 5}, true},
		{"79", checks.XidKey{Code: 79}, true},
		{"79", checks.XidKey{Switch: true, Code: 79}, false},
		{"48, 62-64", checks.XidKey{Code: 63}, true},
		{"48,62-64", checks.XidKey{Code: 65}, false},
		{"!48,62-64", checks.XidKey{Code: 65}, true},
		{"!48,62-64", checks.XidKey{Code: 48}, false},
		{"sxid:*", checks.XidKey{Switch: true, Code: 12028}, true},
		{"sxid:*", checks.XidKey{Code: 79}, false},
		{"*,sxid:11000-12000", checks.XidKey{Switch: true, Code: 11004}, true},
		{"xid:79", checks.XidKey{Code: 79}, true},
	} {
		codes, err := parseXidCodes(c.text)
		if err != nil || codes.has(c.key) != c.want {
			t.Errorf("%q has %s: %v, %v, want %v", c.text, c.key, codes.has(c.key), err, c.want)
		}
	}
	for _, bad := range []string{",", "79,", "a", "5-3", "-5", "5-", "!", "sxid:", "123456", "1--2"} {
		if codes, err := parseXidCodes(bad); err == nil {
			t.Errorf("%q: %+v", bad, codes)
		}
	}
}

// Invalid arguments are an error of the configuration: they do not drain the node.
func TestXidWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{{"x"}, {"0"}, {"-5"}, {"NaN"}, {"24", "-c", "x"}, {"-n", "-1"}, {"-z"}, {"24", "48"}} {
		if err := checks.Bind(&gpuXid{Hours: "24"}, words); err == nil {
			t.Errorf("%q is taken", words)
		}
	}
	if err := checks.BindTable(&gpuXid{Hours: "24"}, map[string]any{"hours": "soon"}); err == nil {
		t.Error("hours = soon is accepted")
	}
	c := &gpuXid{Hours: "soon"}
	got := c.Run(t.Context(), &checks.Env{})
	want := []checks.Finding{{Code: "config.value", Severity: checks.Unknown, Remedy: checks.FixConfig, Message: `check_gpu_xid:  bad value "soon", want hours, or the path of a log`}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzKernelText(f *testing.F) {
	f.Add("Jan 16 14:04:39 node1 kernel: [44643.002792] " + checktest.OnC1 + "79, x")
	f.Add("2026-01-16T14:04:39+01:00 node1 kernel: " + checktest.OnC1 + "79, x")
	f.Add("<4>[44643.002792] " + checktest.OnC1 + "79, x")
	f.Fuzz(func(t *testing.T, line string) {
		text, at, ok := kernelText([]byte(line))
		if ok && (!strings.HasSuffix(line, string(text)) || at < 0) {
			t.Errorf("%q, %v", text, at)
		}
	})
}
