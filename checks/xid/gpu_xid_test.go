package xid

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// with changes files of a node; an empty content removes the file.
func with(files map[string]string, more ...string) map[string]string {
	files = maps.Clone(files)
	for i := 0; i < len(more); i += 2 {
		if files[more[i]] = more[i+1]; more[i+1] == "" {
			delete(files, more[i])
		}
	}
	return files
}

// xidFinding makes a finding about gpu6, PCI address c1.
func xidFinding(severity checks.Severity, code int, remedy checks.Remedy, got, message string) checks.Finding {
	return checks.Finding{
		Code: fmt.Sprintf("gpu.xid.%d", code), Severity: severity, Remedy: remedy, Want: fmt.Sprintf("no Xid %d", code), Got: got,
		Device:  checks.Device{Kind: "gpu", Name: "gpu6", PCI: c1, UUID: "GPU-6"},
		Message: "check_gpu_xid:  gpu6 0000:c1:00.0: " + message,
	}
}

const (
	at90k   = "2026-09-22T15:13:20Z" // 90,000 seconds after the boot
	once90k = "1 lines in 1 events, the last " + at90k + ": "
)

// xidClassCases returns one event of each class, on one GPU of eight.
func xidClassCases() []checktest.Scenario {
	return []checktest.Scenario{
		{Name: "IGNORE", Files: checktest.XidNode("90000 " + checktest.OnC1 + "37, pid=1, name=a, x")},
		{Name: "APP", Files: checktest.XidNode("90000 " + checktest.OnC1 + "31, pid=4711, name=python, MMU Fault"), Want: []checks.Finding{
			xidFinding(checks.Warn, 31, checks.RestartApp, once90k+"MMU Fault", "Xid 31 (GPU memory page fault), since "+at90k+": a fault of process 4711 python")}},
		{Name: "APP without a process", Files: checktest.XidNode("90000 " + checktest.OnC1 + "69, pid='<unknown>', name=<unknown>, Class Error"), Want: []checks.Finding{
			xidFinding(checks.Warn, 69, checks.RestartApp, once90k+"Class Error", "Xid 69 (graphics engine class error), since "+at90k+": an application's fault")}},
		{Name: "FOLLOW alone", Files: checktest.XidNode("90000 " + checktest.OnC1 + "45, pid=1, name=a, Ch 1"), Want: []checks.Finding{
			xidFinding(checks.Warn, 45, checks.NoRemedy, once90k+"Ch 1", "Xid 45 (channel removed after an earlier error), since "+at90k+": follows an error that is not in the log")}},
		{Name: "WATCH", Files: checktest.XidNode("90000 " + checktest.OnC1 + "92, SBE"), Want: []checks.Finding{
			xidFinding(checks.Warn, 92, checks.NoRemedy, once90k+"SBE", "Xid 92 (high rate of single bit ECC errors), since "+at90k+": watch it")}},
		{Name: "STATE", Files: checktest.XidNode("90000 " + checktest.OnC1 + "63, Row Remapper: New row"), Want: []checks.Finding{
			xidFinding(checks.Warn, 63, checks.NoRemedy, once90k+"Row Remapper: New row", "Xid 63 (GPU memory remapping event), since "+at90k+": NVML decides, but it was not queried")}},
		{Name: "CONFIG", Files: checktest.XidNode("90000 " + checktest.OnC1 + "78, vGPU"), Want: []checks.Finding{
			xidFinding(checks.Warn, 78, checks.FixConfig, once90k+"vGPU", "Xid 78 (vGPU start error), since "+at90k+": check the driver and its settings")}},
		{Name: "DIAG", Files: checktest.XidNode("90000 "+checktest.OnC1+"31, pid=1, name=a, x", "95000 "+checktest.OnC1+"31, pid=2, name=b, y"), Want: []checks.Finding{
			advised(xidFinding(checks.Warn, 31, checks.NoRemedy, "2 lines in 2 events, the last 2026-09-22T16:36:40Z: y",
				"Xid 31 (GPU memory page fault), of 2 processes within 24 hours, since "+at90k+": run a diagnostic when the node is idle"),
				"GPU memory page fault. When the node is idle, run dcgmi diag -r 3 on the GPU. (nhc-gpu xid explain 31)")}},
		{Name: "RESET", Files: checktest.XidNode("90000 " + checktest.OnC1 + "62, pid=1, name=a, 09d4"), Want: []checks.Finding{
			xidFinding(checks.Fail, 62, checks.ResetGPU, once90k+"09d4", "Xid 62 (internal micro-controller halt), since "+at90k+": a GPU reset or a reboot clears it")}},
		{Name: "REBOOT", Files: checktest.XidNode("90000 " + checktest.OnC1 + "79, GPU has fallen off the bus."), Want: []checks.Finding{
			xidFinding(checks.Fail, 79, checks.RebootNode, once90k+"GPU has fallen off the bus", "Xid 79 (GPU has fallen off the bus), since "+at90k+": a reboot clears it")}},
		{Name: "RMA-HOLD", Files: checktest.XidNode("90000 " + checktest.OnC1 + "54, power"), Want: []checks.Finding{
			xidFinding(checks.Fail, 54, checks.ReseatOrRMA, once90k+"power",
				"Xid 54 (auxiliary power is not connected to the GPU board), since "+at90k+": nhc-gpu clear 0000:c1:00.0 54 clears it")}},
		{Name: "AUTHORITY", Files: checktest.XidNode("90000 " + checktest.OnC1 + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"), Want: []checks.Finding{
			xidFinding(checks.Fail, 154, checks.RebootNode, once90k+"GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
				"Xid 154 (GPU recovery action changed), the driver requests a reboot of the node, since "+at90k+": a reboot clears it")}},
		{Name: "DECODE fatal", Files: checktest.XidNode("90000 " + checktest.OnC1 + "145, RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)"), Want: []checks.Finding{
			xidFinding(checks.Fail, 145, checks.ResetGPU, once90k+"RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)",
				"Xid 145 (NVLink error, unit RLW), RLW_RSPCOL on link 5, fatal, since "+at90k+": a GPU reset or a reboot clears it")}},
		{Name: "DECODE non-fatal", Files: checktest.XidNode("90000 " + checktest.OnC1 + "145, RLW_RSPCOL Nonfatal XC0 i0 Link 05 (0x00000005 0x00000001 0x0)")},
		{Name: "DECODE unknown numbers", Files: checktest.XidNode("90000 " + checktest.OnC1 + "145, RLW_NEW Fatal XC0 i0 Link 05 (0x00000005 0x00000400 0x0)"), Want: []checks.Finding{
			xidFinding(checks.Warn, 145, checks.NoRemedy, once90k+"RLW_NEW Fatal XC0 i0 Link 05 (0x00000005 0x00000400 0x0)",
				"Xid 145 (NVLink error, unit RLW), RLW_NEW on link 5, Fatal, not in NVIDIA's table, since "+at90k+": watch it")}},
	}
}

// cutAt returns the same log with a truncated line.
func cutAt(s checktest.Scenario, n int) checktest.Scenario {
	kmsg := s.Files["dev/kmsg"]
	s.Files = with(s.Files, "dev/kmsg", kmsg[:strings.Index(kmsg, checktest.OnC1)+n])
	s.Name, s.Want, s.Broken = s.Name+", the line is cut", nil, true
	return s
}

// withoutDriver returns the same log after the driver was unloaded: the
// error still counts, but the GPU has no number.
func withoutDriver(s checktest.Scenario) checktest.Scenario {
	files := maps.Clone(s.Files)
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasPrefix(name, "proc/driver/nvidia") })
	s.Files, s.Name = files, s.Name+", the driver is gone"
	want := s.Want
	s.Want = nil
	for _, f := range want {
		f.Device.Name, f.Device.UUID = "", ""
		f.Message = strings.Replace(f.Message, "gpu6 ", "", 1)
		s.Want = append(s.Want, f)
	}
	return s
}

var noDriver = []checks.Finding{{Code: "gpu.xid.absent", Severity: checks.Skip, Message: "check_gpu_xid:  no NVIDIA driver is loaded"}}

// loud marks a finding that also goes to syslog, once.
func loud(f checks.Finding) []checks.Finding {
	f.Loud = true
	return []checks.Finding{f}
}

func switchFinding(severity checks.Severity, code int, remedy checks.Remedy, got, message string) checks.Finding {
	return checks.Finding{
		Code: fmt.Sprintf("gpu.sxid.%d", code), Severity: severity, Remedy: remedy, Want: fmt.Sprintf("no SXid %d", code), Got: got,
		Device: checks.Device{Kind: "nvswitch", PCI: "0000:05:00.0"}, Message: "check_gpu_xid:  nvswitch 0000:05:00.0: " + message,
	}
}

// advised gives a finding the advice of another class than that of its row.
func advised(f checks.Finding, do string) checks.Finding {
	f.Do = do
	return f
}

func ledgerText(l xidLedger) string {
	data, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func TestGPUXid(t *testing.T) { checktest.Run(t, "check_gpu_xid") }

var _ = checktest.Table("check_gpu_xid", func(string) (list []checktest.Scenario) {
	list = append(list, xidClassCases()...)
	for _, s := range xidClassCases() {
		list = append(list, cutAt(s, len(checktest.OnC1)-10), withoutDriver(s))
	}
	off := "90000 " + checktest.OnC1 + "79, GPU has fallen off the bus."
	offFound := xidFinding(checks.Fail, 79, checks.RebootNode, once90k+"GPU has fallen off the bus", "Xid 79 (GPU has fallen off the bus), since "+at90k+": a reboot clears it")
	sw := "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "
	watch := "90000 " + checktest.OnC1 + "92, SBE"
	watched := xidFinding(checks.Warn, 92, checks.NoRemedy, once90k+"SBE", "Xid 92 (high rate of single bit ECC errors), since "+at90k+": watch it")
	strict := watched
	strict.Severity = checks.Fail
	unknown := xidFinding(checks.Warn, 999, checks.NoRemedy, once90k+"new", "Xid 999 (unknown to this version of nhc-gpu), since "+at90k+": watch it")
	syslog := "Sep 22 14:33:20 n1 kernel: [90000.123456] " + checktest.OnC1 + "79, GPU has fallen off the bus.\nSep 22 14:33:21 n1 user: kernel: " + checktest.OnC1 + "54, forged\n"
	inFile := xidFinding(checks.Fail, 79, checks.RebootNode, "1 lines, the last: GPU has fallen off the bus", "Xid 79 (GPU has fallen off the bus), in /var/log/syslog: a reboot clears it")
	policy := func(text string) map[string]string { return with(checktest.XidNode(off), "etc/nhc/xid.toml", text) }
	overridden := xidFinding(checks.Warn, 79, checks.NoRemedy, once90k+"GPU has fallen off the bus", "Xid 79 (GPU has fallen off the bus), since "+at90k+": watch it")

	list = append(list,
		checktest.Scenario{Name: "no errors", Files: checktest.XidNode("5 NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"), Table: map[string]any{}},
		checktest.Scenario{Name: "lines of other drivers", Files: checktest.XidNode("5 usb 1-1: new device", "6 app: "+checktest.OnC1+"79, x", "7 NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed",
			"8 NVRM: _fabricNotifyEvent: Unable to notify ImexSessionApi")},
		checktest.Scenario{Name: "a line of a process", Files: with(checktest.XidNode(), "dev/kmsg", "12,1,90000000000,-;"+checktest.OnC1+"79, x\n")},
		checktest.Scenario{Name: "no hardware", Files: with(checktest.XidNode(), "proc/driver/nvidia/version", ""), Want: noDriver},
		checktest.Scenario{Name: "no hardware, no log", Files: with(checktest.XidNode(), "proc/driver/nvidia/version", "", "dev/kmsg", ""), Want: noDriver},

		checktest.Scenario{Name: "words", Words: checktest.Of("48", "-c", "79", "-s", "-n", "5"), Files: checktest.XidNode(watch),
			Table: map[string]any{"hours": 48, "codes": "79", "strict": true, "clean_passes": 5}},
		checktest.Scenario{Name: "chosen codes", Words: checktest.Of("-c", "48,79-80"), Files: checktest.XidNode(off, watch), Want: []checks.Finding{offFound}},
		checktest.Scenario{Name: "all codes but one", Words: checktest.Of("-c", "!79"), Files: checktest.XidNode(off, watch), Want: []checks.Finding{watched}},
		checktest.Scenario{Name: "only switches", Words: checktest.Of("-c", "sxid:*"), Files: checktest.XidNode(off, "90000 "+sw+"11004, Non-fatal, Link 36 ingress invalid ACL (First)"),
			Want: []checks.Finding{switchFinding(checks.Warn, 11004, checks.FixConfig, once90k+"Non-fatal, Link 36 ingress invalid ACL (First)",
				"SXid 11004 (ingress of a port: error), since "+at90k+": check the driver and its settings")}},
		checktest.Scenario{Name: "strict", Words: checktest.Of("-s"), Files: checktest.XidNode(watch), Want: []checks.Finding{strict}},
		checktest.Scenario{Name: "a memory error blames no application", Files: checktest.XidNode("90000 " + checktest.OnC1 + "94, pid=4711, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No"),
			Want: []checks.Finding{xidFinding(checks.Warn, 94, checks.RestartApp, once90k+"Contained: CE User Channel (0x9). RST: No, D-RST: No",
				"Xid 94 (contained memory error), since "+at90k+": process 4711 python was hit: restart it")}},
		checktest.Scenario{Name: "a memory error, no process known", Files: checktest.XidNode("90000 " + checktest.OnC1 + "94, pid='<unknown>', name=<unknown>, Contained"),
			Want: []checks.Finding{xidFinding(checks.Warn, 94, checks.RestartApp, once90k+"Contained", "Xid 94 (contained memory error), since "+at90k+": an application was hit: restart it")}},
		checktest.Scenario{Name: "a bank needs a reset", Files: checktest.XidNode("90000 " + checktest.OnC1 + "177, Bank Remapper: New bank marked for remapping, reset gpu to activate."),
			Want: []checks.Finding{xidFinding(checks.Warn, 177, checks.NoRemedy, once90k+"Bank Remapper: New bank marked for remapping, reset gpu to activate",
				"Xid 177 (a memory bank is to be remapped by the next reset), since "+at90k+": reset the GPU when it is idle")}},
		checktest.Scenario{Name: "strict, an unknown code", Words: checktest.Of("-s"), Files: checktest.XidNode("90000 " + checktest.OnC1 + "999, new"), Want: loud(unknown)},
		checktest.Scenario{Name: "an unknown code is loud", Files: checktest.XidNode("90000 " + checktest.OnC1 + "999, new"), Want: loud(unknown)},
		checktest.Scenario{Name: "too old to count", Words: checktest.Of("1"), Files: checktest.XidNode(watch)},
		checktest.Scenario{Name: "old, but it drains", Words: checktest.Of("1"), Files: checktest.XidNode(off), Want: []checks.Finding{offFound}},
		checktest.Scenario{Name: "runs", Words: checktest.Of("-n", "3"), Files: checktest.XidNode(watch),
			Want: []checks.Finding{xidFinding(checks.Warn, 92, checks.NoRemedy, once90k+"SBE", "Xid 92 (high rate of single bit ECC errors), since "+at90k+": watch it, or 3 runs without it")}},

		checktest.Scenario{Name: "the worst comes first", Files: checktest.XidNode("80000 "+checktest.OnC1+"62, x", off, watch), Want: []checks.Finding{watched, offFound,
			xidFinding(checks.Fail, 62, checks.ResetGPU, "1 lines in 1 events, the last 2026-09-22T12:26:40Z: x",
				"Xid 62 (internal micro-controller halt), since 2026-09-22T12:26:40Z: a GPU reset or a reboot clears it")}},
		checktest.Scenario{Name: "a switch", Files: checktest.XidNode("90000 " + sw + "20034, Fatal, Link 30 LTSSM Fault Up"), Want: []checks.Finding{
			switchFinding(checks.Fail, 20034, checks.ResetGPU, once90k+"Fatal, Link 30 LTSSM Fault Up",
				"SXid 20034 (data layer of a link: the link is down), since "+at90k+": a reset of all GPUs and switches or a reboot clears it")}},
		checktest.Scenario{Name: "a switch, non-fatal", Files: checktest.XidNode("90000 " + sw + "24007, Non-fatal, Link 30 x"), Want: []checks.Finding{
			advised(switchFinding(checks.Warn, 24007, checks.NoRemedy, once90k+"Non-fatal, Link 30 x", "SXid 24007 (source tracking of a port: timeout), since "+at90k+": watch it"),
				"Source tracking of a port: timeout. Watch it: the node is not drained. If it occurs often, contact the vendor. (nhc-gpu xid explain sxid:24007)")}},
		checktest.Scenario{Name: "a switch, fatal by the table, non-fatal by the line", Files: checktest.XidNode("90000 " + sw + "12028, Non-fatal, Link 32 x"), Want: []checks.Finding{
			switchFinding(checks.Fail, 12028, checks.RebootNode, once90k+"Non-fatal, Link 32 x", "SXid 12028 (egress of a port: error), since "+at90k+": a reboot clears it")}},
		checktest.Scenario{Name: "a switch, unknown", Files: checktest.XidNode("90000 " + sw + "99999, Fatal, x"), Want: loud(
			switchFinding(checks.Warn, 99999, checks.NoRemedy, once90k+"Fatal, x", "SXid 99999 (unknown to this version of nhc-gpu), since "+at90k+": watch it"))},
		checktest.Scenario{Name: "a line without a GPU", Files: checktest.XidNode("90000 NVRM: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)"), Want: []checks.Finding{{
			Code: "gpu.xid.0", Severity: checks.Warn, Remedy: checks.ResetGPU, Want: "no Xid 0", Device: checks.Device{Kind: "gpu"},
			Got:     once90k + "Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)",
			Message: "check_gpu_xid:  a GPU: NV_ERR_RESET_REQUIRED (the driver says that a GPU requires a reset), since " + at90k + ": watch it"}}},

		checktest.Scenario{Name: "the site overrides a code", Files: policy("[[xid]]\ncode = 79\nclass = \"WATCH\"\n"), Want: []checks.Finding{overridden}},
		checktest.Scenario{Name: "the site overrides a class", Files: policy("[class.REBOOT]\nseverity = \"ok\"\n"), Want: []checks.Finding{func() checks.Finding {
			f := offFound
			f.Severity = checks.OK
			return f
		}()}},
		checktest.Scenario{Name: "another policy", Files: with(checktest.XidNode(off), "my.toml", "[[xid]]\ncode = 79\nclass = \"IGNORE\"\n"), Vars: map[string]string{"XID_POLICY": "/my.toml"}},
		checktest.Scenario{Name: "an unusable policy", Files: policy("[[xid]]\ncode = 79\nclass = \"NONE\"\n"), Broken: true, Want: []checks.Finding{{
			Code: "gpu.xid.policy", Severity: checks.Warn, Remedy: checks.FixConfig,
			Message: `check_gpu_xid:  the site's Xid policy is not used: /etc/nhc/xid.toml:1: Xid 79: class "NONE", want one of IGNORE, FOLLOW, APP, CONFIG, WATCH, STATE, DIAG, RESET, REBOOT, RMA-HOLD`}, offFound}},
		checktest.Scenario{Name: "a missing policy", Files: checktest.XidNode(off), Vars: map[string]string{"XID_POLICY": "/my.toml"}, Broken: true, Want: []checks.Finding{{
			Code: "gpu.xid.policy", Severity: checks.Warn, Remedy: checks.FixConfig, Message: "check_gpu_xid:  the site's Xid policy is not used: read /my.toml: no such file or directory"}, offFound}},

		checktest.Scenario{Name: "a file instead of the log", Words: checktest.Of("/var/log/syslog"), Files: with(checktest.XidNode(), "var/log/syslog", syslog),
			Table: map[string]any{"hours": "/var/log/syslog"}, Want: []checks.Finding{inFile}},
		checktest.Scenario{Name: "a missing file", Words: checktest.Of("/var/log/syslog"), Files: checktest.XidNode(off), Want: []checks.Finding{{
			Code: "gpu.xid.file", Severity: checks.Skip, Message: "check_gpu_xid:  read /var/log/syslog: no such file or directory"}}},
		checktest.Scenario{Name: "an unreadable file", Words: checktest.Of("/var/log"), Files: with(checktest.XidNode(), "var/log/", "x"), Broken: true,
			Want: checks.Unreadable(fmt.Errorf("read /var/log: is a directory"))},

		checktest.Scenario{Name: "a container without the log", Files: with(checktest.XidNode(), "dev/kmsg", ""), Broken: true, Want: []checks.Finding{{Code: "probe.contained", Severity: checks.Skip,
			Message: "check_gpu_xid:  this container has no access to the kernel log"}}}.Contained(),
		checktest.Scenario{Name: "no log", Files: with(checktest.XidNode(), "dev/kmsg", ""), Broken: true, Want: checks.Unreadable(fmt.Errorf("open /dev/kmsg: no such file or directory"))},
		checktest.Scenario{Name: "no boot time", Files: with(checktest.XidNode(off), "proc/stat", "garbage\n"), Broken: true, Want: checks.Unreadable(fmt.Errorf("parse /proc/stat: invalid argument"))},
		checktest.Scenario{Name: "no boot time, no errors", Files: with(checktest.XidNode(), "proc/stat", "garbage\n"), Broken: true},
		checktest.Scenario{Name: "fatal after non-fatal", Files: checktest.XidNode("80000 "+checktest.OnC1+"145, RLW_RSPCOL Nonfatal XC0 i0 Link 05 (0x00000005 0x00000001 0x0)",
			"90000 "+checktest.OnC1+"145, RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)"), Want: []checks.Finding{
			xidFinding(checks.Fail, 145, checks.ResetGPU, once90k+"RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)",
				"Xid 145 (NVLink error, unit RLW), RLW_RSPCOL on link 5, fatal, since "+at90k+": a GPU reset or a reboot clears it")}},
		checktest.Scenario{Name: "garbage", Files: with(checktest.XidNode(), "dev/kmsg", "\xff\x00;;;\n4,1,1;x\n,,,,;"+checktest.OnC1+"79, x\n"), Broken: true},

		checktest.Scenario{Name: "a damaged record", Files: with(checktest.XidNode(off), "past/xid.json", "{\x00"), Past: "/past", Broken: true, Want: []checks.Finding{{
			Code: "gpu.xid.ledger", Severity: checks.Warn,
			Message: `check_gpu_xid:  the record of earlier Xids is lost: /past/xid.json is damaged`}, offFound}},
		checktest.Scenario{Name: "a record with invalid data", Files: with(checktest.XidNode(off), "past/xid.json", `{"events": [{"gpu": "../x"}]}`), Past: "/past", Broken: true, Want: []checks.Finding{{
			Code: "gpu.xid.ledger", Severity: checks.Warn, Message: "check_gpu_xid:  the record of earlier Xids is lost: it is damaged"}, offFound}},
		checktest.Scenario{Name: "a record that cannot be written", Files: with(checktest.XidNode(off), "past/xid.json/", "x"), Past: "/past", Broken: true, Want: []checks.Finding{{
			Code: "gpu.xid.ledger", Severity: checks.Warn, Message: "check_gpu_xid:  the record of earlier Xids is lost: read /past/xid.json: not a regular file"}, {
			Code: "gpu.xid.ledger", Severity: checks.Warn, Message: "check_gpu_xid:  the record of Xids cannot be written: write /past/xid.json: file exists"}, offFound}},
		checktest.Scenario{Name: "records were lost", Files: with(checktest.XidNode(), "past/xid.json", ledgerText(xidLedger{Boot: checktest.XidBoot, Cursor: 5}), "dev/kmsg", "5,90,1,-;x\n"), Past: "/past",
			Want: []checks.Finding{{Code: "gpu.xid.lost", Severity: checks.Warn,
				Message: "check_gpu_xid:  the kernel has overwritten records of its log before they were read: Xids may be lost"}}},
		checktest.Scenario{Name: "a flood", Files: with(checktest.XidNode(), "dev/kmsg", floodOfXids()), Want: []checks.Finding{{Code: "gpu.xid.flood", Severity: checks.Warn,
			Message: "check_gpu_xid:  the kernel logs more Xids than the check can record: the oldest ones are dropped"}}},
	)
	return list
})

// floodOfXids returns more different errors than the ledger keeps, all harmless.
func floodOfXids() string {
	var lines []string
	for gpu := range 100 {
		for _, code := range []int{14, 37, 38, 44, 66, 67, 106, 107, 108, 141, 152, 153} {
			lines = append(lines, fmt.Sprintf("90000 NVRM: Xid (PCI:0000:%02x:00): %d, x", gpu, code))
		}
	}
	return checktest.KmsgOf(lines...)
}
