package main

import "testing"

func TestOwnRights(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		uid, euid, gid, egid int
		secure, want         bool
	}{
		{0, 0, 0, 0, false, true},
		{1000, 1000, 1000, 1000, false, true},
		{0, 0, 0, 0, true, true}, // a transition of SELinux
		{1000, 0, 1000, 1000, true, false},
		{0, 1000, 0, 0, false, false},
		{1000, 1000, 1000, 0, false, false},
		{1000, 1000, 1000, 1000, true, false}, // file capabilities
	} {
		if err := ownRights(c.uid, c.euid, c.gid, c.egid, c.secure); (err == nil) != c.want {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}
