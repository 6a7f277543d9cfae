package checks

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
)

// with gives a node other files; an empty one is taken away.
func with(files map[string]string, more ...string) map[string]string {
	files = maps.Clone(files)
	for i := 0; i < len(more); i += 2 {
		if files[more[i]] = more[i+1]; more[i+1] == "" {
			delete(files, more[i])
		}
	}
	return files
}

// xidFinding is a finding about the GPU of number 6, PCI address c1.
func xidFinding(severity Severity, code int, remedy Remedy, got, message string) Finding {
	return Finding{
		Code: fmt.Sprintf("gpu.xid.%d", code), Severity: severity, Remedy: remedy, Want: fmt.Sprintf("no Xid %d", code), Got: got,
		Device:  Device{Kind: "gpu", Name: "gpu6", PCI: c1, UUID: "GPU-6"},
		Message: "check_gpu_xid:  gpu6 0000:c1:00.0: " + message,
	}
}

const (
	at90k   = "2026-09-22T15:13:20Z" // 90,000 seconds after the boot
	once90k = "1 lines in 1 events, the last " + at90k + ": "
)

// xidClassCases are one event of each class, on one GPU of eight.
func xidClassCases() []scenario {
	return []scenario{
		{name: "IGNORE", files: xidNode("90000 " + onC1 + "37, pid=1, name=a, x")},
		{name: "APP", files: xidNode("90000 " + onC1 + "31, pid=4711, name=python, MMU Fault"), want: []Finding{
			xidFinding(Warn, 31, RestartApp, once90k+"MMU Fault", "Xid 31 (GPU memory page fault), since "+at90k+": a fault of process 4711 python")}},
		{name: "APP without a process", files: xidNode("90000 " + onC1 + "69, pid='<unknown>', name=<unknown>, Class Error"), want: []Finding{
			xidFinding(Warn, 69, RestartApp, once90k+"Class Error", "Xid 69 (graphics engine class error), since "+at90k+": an application's fault")}},
		{name: "FOLLOW alone", files: xidNode("90000 " + onC1 + "45, pid=1, name=a, Ch 1"), want: []Finding{
			xidFinding(Warn, 45, NoRemedy, once90k+"Ch 1", "Xid 45 (channel removed after an earlier error), since "+at90k+": follows an error that the log does not have")}},
		{name: "WATCH", files: xidNode("90000 " + onC1 + "92, SBE"), want: []Finding{
			xidFinding(Warn, 92, NoRemedy, once90k+"SBE", "Xid 92 (high rate of single bit ECC errors), since "+at90k+": watch it")}},
		{name: "STATE", files: xidNode("90000 " + onC1 + "63, Row Remapper: New row"), want: []Finding{
			xidFinding(Warn, 63, NoRemedy, once90k+"Row Remapper: New row", "Xid 63 (GPU memory remapping event), since "+at90k+": it depends on what NVML says, which was not asked")}},
		{name: "CONFIG", files: xidNode("90000 " + onC1 + "78, vGPU"), want: []Finding{
			xidFinding(Warn, 78, FixConfig, once90k+"vGPU", "Xid 78 (vGPU start error), since "+at90k+": see to the driver and its settings")}},
		{name: "DIAG", files: xidNode("90000 "+onC1+"31, pid=1, name=a, x", "95000 "+onC1+"31, pid=2, name=b, y"), want: []Finding{
			xidFinding(Warn, 31, NoRemedy, "2 lines in 2 events, the last 2026-09-22T16:36:40Z: y",
				"Xid 31 (GPU memory page fault), of 2 processes within 24 hours, since "+at90k+": run a diagnosis when the node is idle")}},
		{name: "RESET", files: xidNode("90000 " + onC1 + "62, pid=1, name=a, 09d4"), want: []Finding{
			xidFinding(Fail, 62, ResetGPU, once90k+"09d4", "Xid 62 (internal micro-controller halt), since "+at90k+": a GPU reset or a new boot clears it")}},
		{name: "REBOOT", files: xidNode("90000 " + onC1 + "79, GPU has fallen off the bus."), want: []Finding{
			xidFinding(Fail, 79, RebootNode, once90k+"GPU has fallen off the bus", "Xid 79 (GPU has fallen off the bus), since "+at90k+": a new boot clears it")}},
		{name: "RMA-HOLD", files: xidNode("90000 " + onC1 + "54, power"), want: []Finding{
			xidFinding(Fail, 54, ReseatOrRMA, once90k+"power",
				"Xid 54 (auxiliary power is not connected to the GPU board), since "+at90k+": nhc-gpu clear 0000:c1:00.0 54 clears it")}},
		{name: "AUTHORITY", files: xidNode("90000 " + onC1 + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"), want: []Finding{
			xidFinding(Fail, 154, RebootNode, once90k+"GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
				"Xid 154 (GPU recovery action changed), the driver asks for a reboot of the node, since "+at90k+": a new boot clears it")}},
		{name: "DECODE fatal", files: xidNode("90000 " + onC1 + "145, RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)"), want: []Finding{
			xidFinding(Fail, 145, ResetGPU, once90k+"RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)",
				"Xid 145 (NVLink error, unit RLW), RLW_RSPCOL on link 5, fatal, since "+at90k+": a GPU reset or a new boot clears it")}},
		{name: "DECODE non-fatal", files: xidNode("90000 " + onC1 + "145, RLW_RSPCOL Nonfatal XC0 i0 Link 05 (0x00000005 0x00000001 0x0)")},
		{name: "DECODE unknown numbers", files: xidNode("90000 " + onC1 + "145, RLW_NEW Fatal XC0 i0 Link 05 (0x00000005 0x00000400 0x0)"), want: []Finding{
			xidFinding(Warn, 145, NoRemedy, once90k+"RLW_NEW Fatal XC0 i0 Link 05 (0x00000005 0x00000400 0x0)",
				"Xid 145 (NVLink error, unit RLW), RLW_NEW on link 5, Fatal, not in NVIDIA's table, since "+at90k+": watch it")}},
	}
}

// cutAt is the same log whose line ends too early.
func (s scenario) cutAt(n int) scenario {
	kmsg := s.files["dev/kmsg"]
	s.files = with(s.files, "dev/kmsg", kmsg[:strings.Index(kmsg, onC1)+n])
	s.name, s.want, s.broken = s.name+", the line is cut", nil, true
	return s
}

// withoutDriver is the same log where the driver has been unloaded since: the
// error is no less true, but the GPU has no number.
func (s scenario) withoutDriver() scenario {
	files := maps.Clone(s.files)
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasPrefix(name, "proc/driver/nvidia") })
	s.files, s.name = files, s.name+", the driver is gone"
	want := s.want
	s.want = nil
	for _, f := range want {
		f.Device.Name, f.Device.UUID = "", ""
		f.Message = strings.Replace(f.Message, "gpu6 ", "", 1)
		s.want = append(s.want, f)
	}
	return s
}

var noDriver = []Finding{{Code: "gpu.xid.absent", Severity: Skip, Message: "check_gpu_xid:  no NVIDIA driver is loaded"}}

// loud is a finding that goes to syslog as well, once.
func loud(f Finding) []Finding {
	f.Loud = true
	return []Finding{f}
}

func switchFinding(severity Severity, code int, remedy Remedy, got, message string) Finding {
	return Finding{
		Code: fmt.Sprintf("gpu.sxid.%d", code), Severity: severity, Remedy: remedy, Want: fmt.Sprintf("no SXid %d", code), Got: got,
		Device: Device{Kind: "nvswitch", PCI: "0000:05:00.0"}, Message: "check_gpu_xid:  nvswitch 0000:05:00.0: " + message,
	}
}

func ledgerText(l xidLedger) string {
	data, err := json.Marshal(l)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func TestGPUXid(t *testing.T) { testCheck(t, "check_gpu_xid") }

var _ = table("check_gpu_xid", func(string) (list []scenario) {
	list = append(list, xidClassCases()...)
	for _, s := range xidClassCases() {
		list = append(list, s.cutAt(len(onC1)-10), s.withoutDriver())
	}
	off := "90000 " + onC1 + "79, GPU has fallen off the bus."
	offFound := xidFinding(Fail, 79, RebootNode, once90k+"GPU has fallen off the bus", "Xid 79 (GPU has fallen off the bus), since "+at90k+": a new boot clears it")
	sw := "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "
	watch := "90000 " + onC1 + "92, SBE"
	watched := xidFinding(Warn, 92, NoRemedy, once90k+"SBE", "Xid 92 (high rate of single bit ECC errors), since "+at90k+": watch it")
	strict := watched
	strict.Severity = Fail
	unknown := xidFinding(Warn, 999, NoRemedy, once90k+"new", "Xid 999 (unknown to this version of nhc-gpu), since "+at90k+": watch it")
	syslog := "Sep 22 14:33:20 n1 kernel: [90000.123456] " + onC1 + "79, GPU has fallen off the bus.\nSep 22 14:33:21 n1 user: kernel: " + onC1 + "54, forged\n"
	inFile := xidFinding(Fail, 79, RebootNode, "1 lines, the last: GPU has fallen off the bus", "Xid 79 (GPU has fallen off the bus), in /var/log/syslog: a new boot clears it")
	policy := func(text string) map[string]string { return with(xidNode(off), "etc/nhc/xid.toml", text) }
	overridden := xidFinding(Warn, 79, RebootNode, once90k+"GPU has fallen off the bus", "Xid 79 (GPU has fallen off the bus), since "+at90k+": watch it")

	list = append(list,
		scenario{name: "no errors", files: xidNode("5 NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"), table: map[string]any{}},
		scenario{name: "others' lines", files: xidNode("5 usb 1-1: new device", "6 app: "+onC1+"79, x", "7 NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed",
			"8 NVRM: _fabricNotifyEvent: Unable to notify ImexSessionApi")},
		scenario{name: "a process cannot forge it", files: with(xidNode(), "dev/kmsg", "12,1,90000000000,-;"+onC1+"79, x\n")},
		scenario{name: "no hardware", files: with(xidNode(), "proc/driver/nvidia/version", ""), want: noDriver},
		scenario{name: "no hardware, no log", files: with(xidNode(), "proc/driver/nvidia/version", "", "dev/kmsg", ""), want: noDriver},

		scenario{name: "words", words: of("48", "-c", "79", "-s", "-n", "5"), files: xidNode(watch),
			table: map[string]any{"hours": 48, "codes": "79", "strict": true, "clean_passes": 5}},
		scenario{name: "chosen codes", words: of("-c", "48,79-80"), files: xidNode(off, watch), want: []Finding{offFound}},
		scenario{name: "all but some", words: of("-c", "!79"), files: xidNode(off, watch), want: []Finding{watched}},
		scenario{name: "only switches", words: of("-c", "sxid:*"), files: xidNode(off, "90000 "+sw+"11004, Non-fatal, Link 36 ingress invalid ACL (First)"),
			want: []Finding{switchFinding(Warn, 11004, FixConfig, once90k+"Non-fatal, Link 36 ingress invalid ACL (First)",
				"SXid 11004 (ingress of a port: error), since "+at90k+": see to the driver and its settings")}},
		scenario{name: "strict", words: of("-s"), files: xidNode(watch), want: []Finding{strict}},
		scenario{name: "a memory error blames no application", files: xidNode("90000 " + onC1 + "94, pid=4711, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No"),
			want: []Finding{xidFinding(Warn, 94, RestartApp, once90k+"Contained: CE User Channel (0x9). RST: No, D-RST: No",
				"Xid 94 (contained memory error), since "+at90k+": process 4711 python was hit: restart it")}},
		scenario{name: "a memory error, no process known", files: xidNode("90000 " + onC1 + "94, pid='<unknown>', name=<unknown>, Contained"),
			want: []Finding{xidFinding(Warn, 94, RestartApp, once90k+"Contained", "Xid 94 (contained memory error), since "+at90k+": an application was hit: restart it")}},
		scenario{name: "a bank waits for a reset", files: xidNode("90000 " + onC1 + "177, Bank Remapper: New bank marked for remapping, reset gpu to activate."),
			want: []Finding{xidFinding(Warn, 177, NoRemedy, once90k+"Bank Remapper: New bank marked for remapping, reset gpu to activate",
				"Xid 177 (a memory bank is to be remapped by the next reset), since "+at90k+": reset the GPU when it is idle")}},
		scenario{name: "strict, an unknown code", words: of("-s"), files: xidNode("90000 " + onC1 + "999, new"), want: loud(unknown)},
		scenario{name: "an unknown code is loud", files: xidNode("90000 " + onC1 + "999, new"), want: loud(unknown)},
		scenario{name: "too old to count", words: of("1"), files: xidNode(watch)},
		scenario{name: "old, but it drains", words: of("1"), files: xidNode(off), want: []Finding{offFound}},
		scenario{name: "runs", words: of("-n", "3"), files: xidNode(watch),
			want: []Finding{xidFinding(Warn, 92, NoRemedy, once90k+"SBE", "Xid 92 (high rate of single bit ECC errors), since "+at90k+": watch it, or 3 runs without it")}},

		scenario{name: "the worst comes first", files: xidNode("80000 "+onC1+"62, x", off, watch), want: []Finding{watched, offFound,
			xidFinding(Fail, 62, ResetGPU, "1 lines in 1 events, the last 2026-09-22T12:26:40Z: x",
				"Xid 62 (internal micro-controller halt), since 2026-09-22T12:26:40Z: a GPU reset or a new boot clears it")}},
		scenario{name: "a switch", files: xidNode("90000 " + sw + "20034, Fatal, Link 30 LTSSM Fault Up"), want: []Finding{
			switchFinding(Fail, 20034, ResetGPU, once90k+"Fatal, Link 30 LTSSM Fault Up",
				"SXid 20034 (data layer of a link: the link is down), since "+at90k+": a reset of all GPUs and switches or a new boot clears it")}},
		scenario{name: "a switch, non-fatal", files: xidNode("90000 " + sw + "24007, Non-fatal, Link 30 x"), want: []Finding{
			switchFinding(Warn, 24007, ResetGPU, once90k+"Non-fatal, Link 30 x", "SXid 24007 (source tracking of a port: timeout), since "+at90k+": watch it")}},
		scenario{name: "a switch, fatal although it says otherwise", files: xidNode("90000 " + sw + "12028, Non-fatal, Link 32 x"), want: []Finding{
			switchFinding(Fail, 12028, RebootNode, once90k+"Non-fatal, Link 32 x", "SXid 12028 (egress of a port: error), since "+at90k+": a new boot clears it")}},
		scenario{name: "a switch, unknown", files: xidNode("90000 " + sw + "99999, Fatal, x"), want: loud(
			switchFinding(Warn, 99999, NoRemedy, once90k+"Fatal, x", "SXid 99999 (unknown to this version of nhc-gpu), since "+at90k+": watch it"))},
		scenario{name: "a GPU that the line does not name", files: xidNode("90000 NVRM: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)"), want: []Finding{{
			Code: "gpu.xid.0", Severity: Warn, Remedy: ResetGPU, Want: "no Xid 0", Device: Device{Kind: "gpu"},
			Got:     once90k + "Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)",
			Message: "check_gpu_xid:  a GPU: NV_ERR_RESET_REQUIRED (the driver says that a GPU requires a reset), since " + at90k + ": watch it"}}},

		scenario{name: "the site's word on a code", files: policy("[[xid]]\ncode = 79\nclass = \"WATCH\"\n"), want: []Finding{overridden}},
		scenario{name: "the site's word on a class", files: policy("[class.REBOOT]\nseverity = \"ok\"\n"), want: []Finding{func() Finding {
			f := offFound
			f.Severity = OK
			return f
		}()}},
		scenario{name: "another policy", files: with(xidNode(off), "my.toml", "[[xid]]\ncode = 79\nclass = \"IGNORE\"\n"), vars: map[string]string{"XID_POLICY": "/my.toml"}},
		scenario{name: "a policy that cannot be used", files: policy("[[xid]]\ncode = 79\nclass = \"NONE\"\n"), broken: true, want: []Finding{{
			Code: "gpu.xid.policy", Severity: Warn, Remedy: FixConfig,
			Message: `check_gpu_xid:  policy not used: /etc/nhc/xid.toml:1: Xid 79: class "NONE", want one of [IGNORE FOLLOW APP CONFIG WATCH STATE DIAG RESET REBOOT RMA-HOLD]`}, offFound}},
		scenario{name: "a policy that is not there", files: xidNode(off), vars: map[string]string{"XID_POLICY": "/my.toml"}, broken: true, want: []Finding{{
			Code: "gpu.xid.policy", Severity: Warn, Remedy: FixConfig, Message: "check_gpu_xid:  policy not used: read /my.toml: no such file or directory"}, offFound}},

		scenario{name: "a file in place of the log", words: of("/var/log/syslog"), files: with(xidNode(), "var/log/syslog", syslog),
			table: map[string]any{"hours": "/var/log/syslog"}, want: []Finding{inFile}},
		scenario{name: "a file that is not there", words: of("/var/log/syslog"), files: xidNode(off), want: []Finding{{
			Code: "gpu.xid.file", Severity: Skip, Message: "check_gpu_xid:  read /var/log/syslog: no such file or directory"}}},
		scenario{name: "a file that cannot be read", words: of("/var/log"), files: with(xidNode(), "var/log/", "x"), broken: true,
			want: unreadable(fmt.Errorf("read /var/log: is a directory"))},

		scenario{name: "a container without the log", files: with(xidNode(), "dev/kmsg", ""), broken: true, want: []Finding{{Code: "probe.contained", Severity: Skip,
			Message: "check_gpu_xid:  this container does not show the kernel's log"}}}.contained(),
		scenario{name: "no log", files: with(xidNode(), "dev/kmsg", ""), broken: true, want: unreadable(fmt.Errorf("open /dev/kmsg: no such file or directory"))},
		scenario{name: "no boot time", files: with(xidNode(off), "proc/stat", "garbage\n"), broken: true, want: unreadable(fmt.Errorf("parse /proc/stat: invalid argument"))},
		scenario{name: "no boot time, no errors", files: with(xidNode(), "proc/stat", "garbage\n"), broken: true},
		scenario{name: "fatal after non-fatal", files: xidNode("80000 "+onC1+"145, RLW_RSPCOL Nonfatal XC0 i0 Link 05 (0x00000005 0x00000001 0x0)",
			"90000 "+onC1+"145, RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)"), want: []Finding{
			xidFinding(Fail, 145, ResetGPU, once90k+"RLW_RSPCOL Fatal XC0 i0 Link 05 (0x00000005 0x00000002 0x0)",
				"Xid 145 (NVLink error, unit RLW), RLW_RSPCOL on link 5, fatal, since "+at90k+": a GPU reset or a new boot clears it")}},
		scenario{name: "garbage", files: with(xidNode(), "dev/kmsg", "\xff\x00;;;\n4,1,1;x\n,,,,;"+onC1+"79, x\n"), broken: true},

		scenario{name: "a memory that is no memory", files: with(xidNode(off), "past/xid.json", "{\x00"), past: "/past", broken: true, want: []Finding{{
			Code: "gpu.xid.ledger", Severity: Warn,
			Message: `check_gpu_xid:  what earlier runs have seen is lost: read /past/xid.json: invalid character '\x00' looking for beginning of object key string`}, offFound}},
		scenario{name: "a memory that makes no sense", files: with(xidNode(off), "past/xid.json", `{"events": [{"gpu": "../x"}]}`), past: "/past", broken: true, want: []Finding{{
			Code: "gpu.xid.ledger", Severity: Warn, Message: "check_gpu_xid:  what earlier runs have seen is lost: read the ledger of Xids: it does not make sense"}, offFound}},
		scenario{name: "a memory that cannot be written", files: with(xidNode(off), "past/xid.json/", "x"), past: "/past", broken: true, want: []Finding{{
			Code: "gpu.xid.ledger", Severity: Warn, Message: "check_gpu_xid:  what earlier runs have seen is lost: read /past/xid.json: not a plain file"}, {
			Code: "gpu.xid.ledger", Severity: Warn, Message: "check_gpu_xid:  what was seen is not kept: write /past/xid.json: file exists"}, offFound}},
		scenario{name: "records were lost", files: with(xidNode(), "past/xid.json", ledgerText(xidLedger{Boot: xidBoot, Cursor: 5}), "dev/kmsg", "5,90,1,-;x\n"), past: "/past",
			want: []Finding{{Code: "gpu.xid.lost", Severity: Warn,
				Message: "check_gpu_xid:  records of the kernel's log were overwritten before they were read: an Xid may have been among them"}}},
		scenario{name: "a flood", files: with(xidNode(), "dev/kmsg", floodOfXids()), want: []Finding{{Code: "gpu.xid.flood", Severity: Warn,
			Message: "check_gpu_xid:  the kernel logs more than can be kept: the oldest events are dropped"}}},
	)
	return list
})

// floodOfXids is more different errors than are kept, none of which matters.
func floodOfXids() string {
	var lines []string
	for gpu := range 100 {
		for _, code := range []int{14, 37, 38, 44, 66, 67, 106, 107, 108, 141, 152, 153} {
			lines = append(lines, fmt.Sprintf("90000 NVRM: Xid (PCI:0000:%02x:00): %d, x", gpu, code))
		}
	}
	return kmsgOf(lines...)
}
