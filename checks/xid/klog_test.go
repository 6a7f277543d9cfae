package xid

import "testing"

// A process name cannot hide a line about the process.
func TestNetfilterHidesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"IN= OUT= PREC=0x", "IN= OUT=ARP HTYPE=", "IN= OUT= HTYPE=", "IN= OUT=TRUNCATED", " OUT= TRUNCATED", "IN= OUT=MACPROTO="} {
		line := "NVRM: Xid (PCI:0000:c1:00): 79, pid=7, name=" + name[:min(len(name), 15)] + ", GPU has fallen off the bus."
		if l := parseXidLine([]byte(line)); l.Key.Code != 79 || l.GPU != c1 {
			t.Errorf("%s: %+v", line, l)
		}
	}
}
