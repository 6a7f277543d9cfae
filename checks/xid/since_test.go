package xid

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// since returns the errors since a mark, in short.
func (m *xidMachine) since(mark checks.LogMark) (seen []string, end checks.LogMark) {
	m.t.Helper()
	list, end, err := Since(m.env(), mark)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, x := range list {
		text := fmt.Sprintf("%s lines %d", x, x.Lines)
		if x.Before {
			text += " before"
		}
		seen = append(seen, text)
	}
	return seen, end
}

// Since returns no older events, marks a burst that began before the mark, and returns
// no events of another boot or without a mark.
func TestXidsSince(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	want := func(what string, mark checks.LogMark, want ...string) checks.LogMark {
		t.Helper()
		got, end := m.since(mark)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		return end
	}
	m.xid(79, "off")
	m.xid(62, "halt")
	mark := want("no mark", checks.LogMark{})
	want("nothing since", mark)
	m.xid(62, "halt")
	m.xid(48, "ecc")
	want("a burst goes on, another begins", mark, "Xid 48 lines 1", "Xid 62 lines 2 before")
	m.look("fail xid.79 reboot-node", "fail xid.48 reset-gpu", "fail xid.62 reset-gpu")
	m.reboot()
	m.xid(54, "power")
	want("of the boot before, what was read then", mark, "Xid 48 lines 1", "Xid 62 lines 2 before")
	want("still no mark", checks.LogMark{})
}
