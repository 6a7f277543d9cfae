package probe

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestGroupName(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"etc/group": "root:x:0:\nhpc users:x:7001:alice,bob\nagain:x:7001\n:x:5:\nshort\nbad:x:y:\n"}))
	for gid, want := range map[uint32]string{0: "root", 7001: "hpc users", 5: "", 6999: ""} {
		if got := GroupName(h, gid); got != want {
			t.Errorf("GroupName(%d) = %q, want %q", gid, got, want)
		}
	}
	if got := GroupName(NewHost(probetest.Tree(t, map[string]string{"etc/": ""})), 0); got != "" {
		t.Errorf("without /etc/group: %q", got)
	}
	live := NewHost("/")
	if got := GroupName(live, 0); got != "root" {
		t.Errorf("this machine's group 0 is %q", got)
	}
	if got := GroupName(live, 4294967290); got != "" {
		t.Errorf("a group that no one has is %q", got)
	}
}

func FuzzGroup(f *testing.F) {
	f.Add([]byte("root:x:0:\n"))
	f.Add([]byte("::\n:x:4294967296:\na:b:+1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for gid, name := range parseGroup(data) {
			if name == "" || strings.ContainsAny(name, ":\n") {
				t.Errorf("gid %d has the name %q", gid, name)
			}
		}
	})
}
