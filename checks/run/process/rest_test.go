package process

import (
	"slices"
	"strings"
	"testing"
)

const smaps = `00400000-00401000 r--p 00000000 fe:00 17 /usr/sbin/nhc-gpu
Rss:                   4 kB
Anonymous:             0 kB
00401000-00e00000 r-xp 00001000 fe:00 17 /usr/sbin/nhc-gpu
Anonymous:             0 kB
VmFlags: rd ex mr mw me
017bd000-017be000 r--p 013bc000 fe:00 17 /usr/sbin/nhc-gpu
Anonymous:             4 kB
017be000-01810000 rw-p 013bd000 fe:00 17 /usr/sbin/nhc-gpu
Anonymous:             0 kB
01810000-01860000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 18 /lib/libc.so.6
Anonymous:             0 kB
`

// Only pages like those of the file are given back: not one that the linker has written before it took the permission.
func TestUnwritten(t *testing.T) {
	t.Parallel()
	if got := unwritten([]byte(smaps), "/usr/sbin/nhc-gpu"); !slices.Equal(got, [][2]uintptr{{0x400000, 0x401000}, {0x401000, 0xe00000}}) {
		t.Errorf("%x", got)
	}
}

// The program goes on with its pages given back.
func TestRest(t *testing.T) {
	if size := giveBack(); size < 100<<10 {
		t.Errorf("%d bytes of the program were given back", size)
	}
	for range 100 { // its code and its constants are still there
		if !strings.Contains(strings.ToUpper("abc"+t.Name()), "ABCTESTREST") {
			t.Fatal("wrong")
		}
	}
}
