package xid

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

func TestNVLink74(t *testing.T) {
	t.Parallel()
	const on = "NVLink: fatal error detected on link 14"
	for text, want := range map[string]string{
		on + "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)":  " reset-gpu if repeated run a field diagnostic",
		on + "(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)":      "IGNORE  can be ignored",
		on + "(0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)": "WATCH  many corrected errors, operation may go on",
		on + "(0x1, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)": "WATCH  can be ignored; many corrected errors, operation may go on",
		on + "(0x1, 0x0, 0x0, 0x0, 0x140000, 0x0, 0x0)": " reset-gpu can be ignored; ECC or parity error; many corrected errors, operation may go on",
		on + "(0x1, 0x0, 0x8, 0x0, 0x0, 0x0, 0x0)":      "  can be ignored", // an unexplained bit
		on + "(0x1, 0x7, 0x0, 0x0, 0x0, 0x3, 0x1)":      "IGNORE  can be ignored",
		on + "(0x200010, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)": " check-cable ECC or parity error; marginal signal, check the connections of the link",
		on + "(0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0)":  " check-fabric follows another error, the fabric has to be reset",
		on + "(0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)":      "  ",
		on:                              "  ",
		on + "(":                        "  ",
		on + "(0x1":                     "  ",
		on + "(1, x)":                   "  ",
		"x(0x1), " + on + "(0x10, 0x0)": " reset-gpu ECC or parity error",
	} {
		class, remedy, what := decodeNVLink74(text)
		if got := fmt.Sprintf("%s %s %s", class, remedy, what); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for i, r := range nvlink74Table() {
		if r.Class != "" && r.Class != checks.XidIgnore && r.Class != checks.XidWatch || r.Says == "" || len(r.Bits) == 0 || r.Register < 1 || r.Register > 5 {
			t.Errorf("row %d: %+v", i, r)
		}
	}
}

// The registers decide whether an error drains the node, also within one burst.
func TestXidRegisters(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(74, "NVLink: fatal error detected on link 4(0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)")
	m.look("warn xid.74  many corrected errors, operation may go on")
	m.xid(74, "NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
	m.look("fail xid.74 check-cable possibly hardware, check the connections of the link")
	m.write("etc/nhc/xid.toml", "[[xid]]\ncode = 74\nclass = \"APP\"\n")
	m.look("ok xid.74 restart-app")
}
