package xid

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

const c1 = "0000:c1:00.0"

// parseXidLine parses a record of the kernel's log. Kind is lineOther for a line that is not trusted or
// not about a GPU or an NVSwitch.
func parseXidLine(record []byte) xidLine {
	l, ok := checks.Believe(record, false, checks.AboutGPU)
	if !ok {
		return xidLine{}
	}
	return readXid(l)
}

func TestXidLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string
		want xidLine
	}{
		{"NVRM: Xid (PCI:0000:c1:00): 79, pid=4711, name=python, GPU has fallen off the bus.",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 79}, PID: "4711", Name: "python", Text: "GPU has fallen off the bus"}},
		{"NVRM: Xid (PCI:0000:C1:00): 79, GPU has fallen off the bus.",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 79}, Text: "GPU has fallen off the bus"}},
		{"NVRM: Xid (PCI:0000:c1:00 GPU-I:02 GPU-CI:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008, intr 10000000",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 31}, Text: "Ch 00000008, intr 10000000"}},
		{"NVRM: Xid (0000:03:00): 14, Channel 00000001",
			xidLine{Kind: lineXid, GPU: "0000:03:00.0", Key: checks.XidKey{Code: 14}, Text: "Channel 00000001"}},
		{"NVRM: Xid (PCI:0000:c1:00.0): 62, pid=1173, 09d4 00000000",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 62}, PID: "1173", Text: "09d4 00000000"}},
		{"NVRM: Xid (PCI:00000008:01:00): 61",
			xidLine{Kind: lineXid, GPU: "0008:01:00.0", Key: checks.XidKey{Code: 61}}},
		{"NVRM: Xid (PCI:0000:c1:00): 13, pid=5, name=a, Graphics SM Warp Exception on (GPC 3, TPC 0, SM 1): Out Of Range Address",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 13}, PID: "5", Name: "a", Place: "GPC 3, TPC 0",
				Text: "Graphics SM Warp Exception on (GPC 3, TPC 0, SM 1): Out Of Range Address"}},
		{"NVRM: Xid (PCI:0000:c1:00): 74, pid=9, NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 74}, PID: "9", Link: "4",
				Text: "NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"}},
		{"NVRM: Xid (PCI:0000:c1:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000)",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 145}, Link: "17", Nonfatal: true,
				Text: "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000)"}},
		{"NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 154}, Action: 2,
				Text: "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"}},
		{"NVRM: Xid (PCI:0000:c1:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 154}, WasReset: true, Text: "GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)"}},
		{"NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x3 (Drain P2P) to 0x0 (None)",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 154}, Text: "GPU recovery action changed from 0x3 (Drain P2P) to 0x0 (None)"}},
		{"NVRM: Xid (PCI:0000:c1:00): 95, pid=5, name=a, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 95}, PID: "5", Name: "a", Asks: asksReset, Text: "Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"}},
		{"NVRM: Xid (PCI:0000:c1:00): 94, pid=5, name=RST: Yes, D-RST, Contained: FB (0x2, 0x1). physAddr: 0x00000001 RST: No, D-RST: Yes",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 94}, PID: "5", Name: "RST: Yes", Asks: asksDrainReset,
				Text: "D-RST, Contained: FB (0x2, 0x1). physAddr: 0x00000001 RST: No, D-RST: Yes"}},
		{"NVRM: Xid (PCI:0000:c1:00): 95, Uncontained. RST: No, D-RST: No", xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 95}, Asks: asksNothing, Text: "Uncontained. RST: No, D-RST: No"}},
		{"NVRM: Xid (PCI:0000:c1:00): 95, Uncontained. RST: No, D-RST: No, and more",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 95}, Text: "Uncontained. RST: No, D-RST: No, and more"}},
		{"NVRM: Xid (PCI:0000:c1:00): 154, something else", xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 154}, Action: -1, Text: "something else"}},
		{"NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 79}, Bare: true, Text: "GPU 0000:c1:00.0: GPU has fallen off the bus"}},
		{"NVRM: The NVIDIA GPU 0000:c1:00.0 NVRM: (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to commands.",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 79}, Bare: true,
				Text: "The NVIDIA GPU 0000:c1:00.0 NVRM: (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to commands"}},
		{`NVRM: The NVIDIA GPU 0000:c1:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`,
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 79}, Bare: true,
				Text: "The NVIDIA GPU 0000:c1:00.0 NVRM: (PCI ID: 10de:2330) installed in this system has NVRM: fallen off the bus and is not responding to commands"}},
		{"NVRM: The NVIDIA GPU 10000:c1:00.0#012NVRM: (PCI ID: 10de:2330) installed in this system has#012NVRM: fallen off the bus and is not responding to commands.",
			xidLine{Kind: lineXid, GPU: "10000:c1:00.0", Key: checks.XidKey{Code: 79}, Bare: true,
				Text: "The NVIDIA GPU 10000:c1:00.0 NVRM: (PCI ID: 10de:2330) installed in this system has NVRM: fallen off the bus and is not responding to commands"}},
		{"NVRM: Xid (PCI:0000:c1:00): 74, pid=9, name=x, link 3, NVLink: fatal error detected on link 4(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 74}, PID: "9", Name: "x", Link: "4",
				Text: "link 3, NVLink: fatal error detected on link 4(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"}},
		{"NVRM: Xid (PCI:0000:c1:00): 154, pid=5, name=x,  to 0x2 y, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)",
			xidLine{Kind: lineXid, GPU: c1, Key: checks.XidKey{Code: 154}, PID: "5", Name: "x", WasReset: true,
				Text: " to 0x2 y, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)"}},
		{"NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874 ",
			xidLine{Kind: lineXid, Text: "nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2874"}},
		{"NVRM: GPU at PCI:0000:c1:00: GPU-455d8f70-2051-db6c-0430-ffc457bff834",
			xidLine{Kind: lineUUID, GPU: c1, UUID: "GPU-455d8f70-2051-db6c-0430-ffc457bff834"}},
		{"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.148.08  Release Build", xidLine{Kind: lineLoad, Driver: "570.148.08"}},
		{"vfio-pci 0000:c1:00.0: reset done", xidLine{Kind: lineReset, GPU: c1}},
		{"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
			xidLine{Kind: lineXid, GPU: "0000:05:00.0", Key: checks.XidKey{Switch: true, Code: 12028}, Link: "32", Nonfatal: true,
				Text: "Non-fatal, Link 32 egress non-posted PRIV error (First)"}},
		{"nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
			xidLine{Kind: lineXid, GPU: "0000:00:00.0", Key: checks.XidKey{Switch: true, Code: 20034}, Link: "30", Text: "Fatal, Link 30 LTSSM Fault Up"}},
		{"nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11021, Correctable, Link 00 x",
			xidLine{Kind: lineXid, GPU: "0000:00:00.0", Key: checks.XidKey{Switch: true, Code: 11021}, Link: "0", Nonfatal: true, Text: "Correctable, Link 00 x"}},
	} {
		if diff := cmp.Diff(c.want, parseXidLine([]byte(c.line))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.line, diff)
		}
	}
}

// Lines that only look like an Xid, and lines of users and other drivers.
func TestXidLineIsNone(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"", "NVRM:", "NVRM: ", "NVRM: Xid", "NVRM: Xid (", "NVRM: Xid (PCI:0000:c1:00)", "NVRM: Xid (PCI:0000:c1:00): ",
		"NVRM: Xid (PCI:0000:c1:00): x79, y", "NVRM: Xid (PCI:0000:c1:00): 79x", "NVRM: Xid (PCI:0000:c1:00): 79999, y",
		"NVRM: Xid (PCI:zzzz:c1:00): 79, y", "NVRM: Xid (PCI:0000:c1): 79, y", "NVRM: Xid (PCI:): 79, y", "NVRM: Xid (PCI:0000:+1:00): 79, y",
		"app: NVRM: Xid (PCI:0000:c1:00): 79, y", " NVRM: Xid (PCI:0000:c1:00): 79, y", "nvrm: xid (PCI:0000:c1:00): 79, y",
		"NVRM: GPU has fallen off the bus.", "NVRM: GPU at PCI:0000:c1:00: nothing", "NVRM: GPU at PCI:0000:c1:00: GPU-1 and more",
		"NVRM: _fabricNotifyEvent: Unable to notify ImexSessionApi", "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed",
		"nvidia-nvswitch: ", "nvidia-nvswitch3: SXid (", "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): abc, Fatal",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000, 0x00140004, 0x00000000}",
		"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 123456, Fatal", "usb 1-1: reset done", "a b c 0000:c1:00.0: reset done",
		"audit: name=\"NVRM: Xid (PCI:0000:c1:00): 79, x\"",
	} {
		if got := parseXidLine([]byte(line)); got.Kind != lineOther {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

// A process can have any name.
func TestXidLineHostileName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a, b", "): 79, x", "Xid (PCI:0000:1", "\\x0aNVRM: Xid", ", , , ", "", "<unknown>", "name=x, pid=1"} {
		line := "NVRM: Xid (PCI:0000:c1:00): 31, pid=7, name=" + name + ", Ch 00000008, MMU Fault"
		got := parseXidLine([]byte(line))
		if got.Key.Code != 31 || got.GPU != c1 || got.PID != "7" || !strings.HasSuffix(got.Text, "MMU Fault") {
			t.Errorf("%q: %+v", name, got)
		}
	}
}

func FuzzXidLine(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:c1:00 GPU-I:02 GPU-CI:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008")
	f.Add("NVRM: Xid (PCI:0000:c1:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
	f.Add("NVRM: Xid (PCI:0000:c1:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000)")
	f.Add("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)")
	f.Add("NVRM: GPU at PCI:0000:c1:00: GPU-455d8f70")
	f.Add("NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.")
	f.Add("vfio-pci 0000:c1:00.0: reset done")
	f.Fuzz(func(t *testing.T, line string) {
		l := parseXidLine([]byte(line))
		if l.Kind == lineOther {
			return
		}
		if l.GPU != "" {
			if again, ok := checks.PCIAddress(l.GPU); !ok || again != l.GPU {
				t.Errorf("address %q", l.GPU)
			}
		}
		if l.Key.Code < 0 || l.Key.Code > 99999 || len(l.Text) > checks.MaxXidText || strings.ContainsAny(l.Text+l.Name, "\n\r\x1b") {
			t.Errorf("%+v", l)
		}
		if class, what := decodeXid(l.Key.Code, l.Text, "580.1"); class.Rank() < 0 || what == "" {
			t.Errorf("%q, %q", class, what)
		}
	})
}

// Both layouts of the same unit, and an unknown driver version.
func TestNVLink5(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code               int
		text, driver, want string
	}{
		{145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0)", "580.65.06", "FOLLOW RLW_SRC_TRACK on link 17, non-fatal"},
		{145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0)", "", "FOLLOW RLW_SRC_TRACK on link 17, non-fatal"},
		{145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0)", "570.1", "WATCH RLW_SRC_TRACK on link 17, Nonfatal, not in NVIDIA's table"},
		{145, "RLW_SRC_TRACK Fatal XC0 i0 Link 00 (0x000000e2 0x00000001 0x0)", "570.1", "RESET RLW_SRC_TRACK on link 0, fatal"},
		{145, "RLW_SRC_TRACK Fatal XC0 i0 Link 00 (0x00000007 0x00000001 0x0)", "575.51.02", "RESET RLW_SRC_TRACK on link 0, fatal"},
		{145, "RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001)", "580.1", "FOLLOW RLW_REMAP on link 0, non-fatal"},
		{144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002 0x0 0x0)", "580.1", "RESET SAW_MVB on link 0, fatal"},
		{144, "SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000001 0x00000004 0x0 0x0)", "580.1", "IGNORE SAW_MVB on link 0, non-fatal"},
		{146, "TLW_RX_PIPE1 Fatal XC0 i0 Link 03 (0x0000000b 0x00000004)", "580.1", "RESET TLW_RX_PIPE1 on link 3, fatal"},
		{146, "TLW_RX/TLW_RX_PIPE0 Nonfatal XC0 i0 Link 03 (0x0000000a 0x00000001)", "580.1", "IGNORE TLW_RX/TLW_RX_PIPE0 on link 3, non-fatal"},
		{147, "TREX Nonfatal XC0 i0 Link 00 (0x0000000e 0x80000000)", "580.1", "IGNORE TREX on link 0, non-fatal"},
		{148, "NVLPW_CTRL Nonfatal XC0 i0 Link 00 (0x0000000f 0x80000000)", "580.1", "IGNORE NVLPW_CTRL on link 0, non-fatal"},
		{149, "NETIR_LINK_DOWN Link Fatal XC0 i0 Link 08 (0x00300011 0x00000000)", "580.1", "WATCH NETIR_LINK_DOWN on link 8, Link Fatal, not in NVIDIA's table"},
		{149, "NETIR_LINK_DOWN Link Fatal XC0 i0 Link 08 (0x00100011 0x00000000)", "580.1", "RESET NETIR_LINK_DOWN on link 8, link fatal"},
		{149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 08 (0x02600011 0x00000000)", "580.1", "WATCH NETIR_LINK_DOWN on link 8, link fatal, INVESTIGATE_SW_USER"},
		{149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 08 (0x00100c06 0x00000000)", "565.1", "WATCH NETIR_LINK_DOWN on link 8, Fatal, not in NVIDIA's table"},
		{149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 08 (0x001001c6 0x00000000)", "565.1", "RESET NETIR_LINK_DOWN on link 8, link fatal"},
		{149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 08 (0x00000013 0x00000001)", "580.1", "WATCH NETIR_BER_EVENT on link 8, non-fatal, INVESTIGATE_LINK_SI_AND_CABLES"},
		{150, "MSE_WATCHDOG Fatal XC0 i0 (0x00000000 0x00000000)", "580.1", "RESET MSE_WATCHDOG, fatal"},
		{150, "MSE Degraded Fatal XC0 i0 (0x00000000 0xffffffff)", "580.1", "RESET MSE Degraded, fatal"},
		{145, "RLW_RXPIPE Nonfatal XC0 i0 Link 05 (0x00000006 0x00000002)", "580.1", "IGNORE RLW_RXPIPE on link 5, non-fatal"},
		{145, "RLW_RXPIPE Fatal XC0 i0 Link 05 (0x00000086 0x00000002)", "580.1", "RESET RLW_RXPIPE on link 5, promoted to fatal"},
		{145, "RLW_RXPIPE Fatal XC0 i0 Link 05 (0x000004c2 0x00000002)", "570.1", "RESET RLW_RXPIPE on link 5, promoted to fatal"},
		{145, "RLW_RXPIPE Nonfatal XC0 i0 Link 05 (0x000000c2 0x00000002)", "570.1", "IGNORE RLW_RXPIPE on link 5, non-fatal"},
		{145, "RLW_RXPIPE Nonfatal XC0 i0 Link 05 (0x00000086 0x00000008)", "580.1", "IGNORE RLW_RXPIPE on link 5, non-fatal"},
		{145, "x, (0x0 0x0), RLW_SRC_TRACK Fatal XC0 i0 Link 00 (0x000000e2 0x00000001 0x0)", "570.1", "RESET RLW_SRC_TRACK on link 0, fatal"},
		{150, "MSE_WATCHDOG Fatal", "580.1", "WATCH cannot be decoded"},
		{150, "MSE_WATCHDOG Fatal (nothing here)", "580.1", "WATCH cannot be decoded"},
		{144, "(0x1 0x2)", "580.1", "WATCH cannot be decoded"},
	} {
		class, what := decodeXid(c.code, c.text, c.driver)
		if got := fmt.Sprint(class, " ", what); got != c.want {
			t.Errorf("%d, %s, driver %q:\n%s, want\n%s", c.code, c.text, c.driver, got, c.want)
		}
	}
}

// Every row is found by numbers made from it, with both layouts.
func TestNVLink5Table(t *testing.T) {
	t.Parallel()
	rows := nvlink5Table()
	if len(rows) != 96 {
		t.Errorf("%d rows, want the 95 of the catalogue, one of which has two statuses", len(rows))
	}
	for i, r := range rows {
		if len(r.V1) != 32 || len(r.V2) != 32 || strings.Trim(r.V1+r.V2, "01-") != "" || r.Unit == "" || r.Investigate == "" || r.Severity == "" {
			t.Errorf("row %d: %+v", i, r)
			continue
		}
		if r.Resolution != "IGNORE" && r.Resolution != "RESET_GPU" && r.Resolution != "XID_154_EVAL" {
			t.Errorf("row %d: resolution %q", i, r.Resolution)
		}
		for driver, pattern := range map[string]string{"570.1": r.V1, "580.1": r.V2} {
			n := nvlink5{Unit: r.Unit, Intr: example(pattern), Status: r.Status}
			if got, ok := decodeNVLink5(r.Xid, n, driver); !ok || got != r {
				t.Errorf("row %d, driver %s: %v, %+v, want %+v", i, driver, ok, got, r)
			}
		}
		if r.Action2 == "" {
			continue
		}
		for driver, pattern := range map[string]string{"570.1": r.Flag1, "580.1": r.Flag2} {
			n := nvlink5{Unit: r.Unit, Intr: example(pattern), Status: r.Status}
			if got, ok := decodeNVLink5(r.Xid, n, driver); !ok || got.Resolution != r.Action2 || r.Action2 == r.Resolution {
				t.Errorf("row %d, driver %s, with its flag: %v, %+v, want %s", i, driver, ok, got, r.Action2)
			}
		}
	}
}

// example returns a number that matches a pattern.
func example(pattern string) (n uint32) {
	for i := range len(pattern) {
		n = n<<1 | uint32(pattern[i]&1) // a dash is an odd byte
	}
	return n
}
