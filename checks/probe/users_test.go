package probe

import (
	"bytes"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestUsers(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n" +
		"toor:x:0:0::/:\n# a comment\n+::::::\nalice:x:5001:100::/home/alice:/bin/bash\n" +
		"alice:x:5002:100:::\nbroken:x:many:1:::\nshort:x\n"}))
	for uid, want := range map[uint32]string{0: "root", 5001: "alice", 5002: "alice", 6789: ""} {
		if got := UserName(h, uid); got != want {
			t.Errorf("UserName(%d) = %q, want %q", uid, got, want)
		}
	}
	if got := UserName(NewHost(probetest.Tree(t, nil)), 0); got != "" {
		t.Errorf("UserName(0) without passwd = %q", got)
	}
}

func TestUsersOfThisMachine(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	if got := UserName(h, 0); got != "root" {
		t.Errorf("UserName(0) = %q, want root", got)
	}
	const nobody = 4000123456
	if got := UserName(h, nobody); got != "" {
		t.Errorf("UserName(%d) = %q, want none", uint32(nobody), got)
	}
}

// No line of a passwd file defines a user without a name, or a name that it does not contain.
func FuzzPasswd(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/bash\nalice:x:5001:5001::/:/bin/sh\n"))
	f.Add([]byte("+::::::\n:x:0:0\na:x:-1:0\nb:x:4294967296:0\nc:x:1\n"))
	f.Add([]byte("a:x:1:1\nb:x:1:1\na:x:2:2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for uid, name := range parsePasswd(data) {
			if name == "" || bytes.ContainsAny([]byte(name), ":\n") || !bytes.Contains(data, []byte(name+":")) {
				t.Errorf("uid %d is %q", uid, name)
			}
		}
	})
}

func TestSetPasswd(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"etc/passwd": "root:x:0:0::/:\n", "site/passwd": "boss:x:0:0::/:\n"}))
	if name := UserName(h, 0); name != "root" {
		t.Errorf("UserName(0) = %q, want root", name)
	}
	SetPasswd(h, "/site/passwd")
	if name := UserName(h, 0); name != "boss" {
		t.Errorf("with another file UserName(0) = %q, want boss", name)
	}
}
