package xid

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// floodLines are 29 different lines, as one node has logged them 800,000 times
// (NVSentinel issue 1120).
func floodLines() [][]byte {
	var lines [][]byte
	for i := range 29 {
		lines = append(lines, fmt.Appendf(nil, "NVRM: Xid (PCI:0000:c1:00): 95, pid=%d, name=python, Uncontained: LTC TAG (0x2,0x%x). RST: Yes, D-RST: No", 4000+i, i))
	}
	return lines
}

// The size of the ledger is bounded.
func TestXidFlood(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]func(i int) string{
		"one error": func(int) string { return checktest.OnC1 + "95, x" },
		"far apart": func(int) string { return checktest.OnC1 + "95, x" },
		"places":    func(i int) string { return fmt.Sprintf("%s13, on (GPC %d, TPC %d, x", checktest.OnC1, i%100, i/100) },
		"codes":     func(i int) string { return fmt.Sprintf("%s%d, x", checktest.OnC1, i%10000) },
		"addresses": func(i int) string { return fmt.Sprintf("NVRM: Xid (PCI:%04x:%02x:00): 79, x", i/256, i%256) },
		"uuids":     func(i int) string { return fmt.Sprintf("NVRM: GPU at PCI:%04x:%02x:00: GPU-%d", i/256, i%256, i) },
		"resets":    func(i int) string { return fmt.Sprintf("pci %04x:%02x:00.0: reset done", i/256, i%256) },
		"NVLink5": func(i int) string {
			return fmt.Sprintf("%s145, RLW_CTRL Fatal XC0 i0 Link 1 (0x%x 0x1)", checktest.OnC1, i)
		},
		"one a minute": func(int) string { return checktest.OnC1 + "31, pid=1, name=a, x" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &xidLedger{Boot: "b"}
			scan := newXidScan(l, func() int64 { return 0 })
			step := time.Second
			if name == "far apart" {
				step = time.Hour
			}
			for i := range 5_000 {
				scan.add(probe.KernelRecord{Seq: uint64(i), At: time.Duration(i) * step, Text: []byte(line(i))})
			}
			if len(l.Events) > xidMaxEvents || len(l.UUIDs) > xidMemos || len(l.Resets) > xidMemos || len(scan.memo) > xidMemos {
				t.Errorf("%d events, %d UUIDs, %d resets, %d memos", len(l.Events), len(l.UUIDs), len(l.Resets), len(scan.memo))
			}
			if !l.sound() {
				t.Error("the next run would not believe it")
			}
			for i := range l.Events {
				e := &l.Events[i]
				if at, ok := scan.at[e.place()]; ok && l.Events[at].place() != e.place() {
					t.Fatalf("event %d is found at %d", i, at)
				}
			}
			if len(l.Events) == 0 {
				return
			}
			j := &xidJudge{policy: &xidPolicy{}, ledger: l, now: l.Events[len(l.Events)-1].Last, hours: day}
			if len(j.findCases()) == 0 {
				t.Error("nothing is made of it")
			}
		})
	}
}

// Events that drain the node are dropped last.
func TestXidFloodKeepsTheGrave(t *testing.T) {
	t.Parallel()
	l := &xidLedger{Boot: "b", Driver: "580.1"}
	scan := newXidScan(l, func() int64 { return 0 })
	n := 0
	say := func(line string, args ...any) {
		n++
		scan.add(probe.KernelRecord{Seq: uint64(n), At: time.Duration(n) * time.Second, Text: fmt.Appendf(nil, checktest.OnC1+line, args...)})
	}
	say("54, power")
	say("145, RLW_TAGSTATE Fatal XC0 i0 Link 3 (0x00000008 0x00000002)")
	for i := range 100 {
		say("145, RLW_TAGSTATE Nonfatal XC0 i0 Link 3 (0x00000008 0x00000001 0x%x) Link %d", i, i)
	}
	for i := range 5_000 {
		say("%d, x", 1000+i)
	}
	j := &xidJudge{policy: &xidPolicy{}, ledger: l, now: int64(n), hours: day}
	var got []string
	for _, c := range j.findCases() {
		if c.class.Drains() {
			got = append(got, c.key.String())
		}
	}
	if fmt.Sprint(got) != "[Xid 54 Xid 145]" || !scan.full {
		t.Errorf("%v, want Xid 54 and Xid 145", got)
	}
}

// The goal is 800,000 lines within 2 s and 30 MiB.
func BenchmarkXidFlood(b *testing.B) {
	lines := floodLines()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ReportAllocs()
	for b.Loop() {
		l := &xidLedger{Boot: "b"}
		scan := newXidScan(l, func() int64 { return 0 })
		for i := range 800_000 {
			scan.add(probe.KernelRecord{Seq: uint64(i), At: time.Duration(i) * 10 * time.Millisecond, Text: lines[i%len(lines)]})
		}
		if len(l.Events) != 1 || l.Events[0].Lines != 800_000 {
			b.Fatal(len(l.Events))
		}
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(max(0, int64(after.HeapSys)-int64(before.HeapSys)))/(1<<20), "MiB-heap-growth")
}

// Different lines, to measure the parser itself.
func BenchmarkXidLine(b *testing.B) {
	line := floodLines()[0]
	b.ReportAllocs()
	for b.Loop() {
		if parseXidLine(line).Key.Code != 95 {
			b.Fatal()
		}
	}
}
