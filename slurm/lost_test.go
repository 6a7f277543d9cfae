package slurm

import (
	"errors"
	"strings"
	"testing"
)

// If the memory cannot be read, what drained the node is unknown: a healthy run does not resume it, says so each time, and
// leaves the file alone for a run that can read it.
func TestLostMemoryResumesNothing(t *testing.T) {
	t.Parallel()
	const newer = `{"version":2,"boot_id":"boot-1","told":"drained"}`
	for name, spoil := range map[string]func(s *store){
		"slow":    func(s *store) { s.broken = errors.New("read /run/nhc-gpu/gpu01/slurm.json: no answer within 1.5s") },
		"damaged": func(s *store) { s.data = []byte(`{"version":1,`) },
		"newer":   func(s *store) { s.data = []byte(newer) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{state: "IDLE"}
			c := controller(t, f)
			dir := c.Dir.(*store)
			act(t, c, by("check_gpu_gemm", "wrong"), "read", "DRAIN NHC: wrong")
			good := dir.data
			spoil(dir)
			spoilt := string(dir.data)
			for range 3 {
				o := act(t, c, passing("check_fs_mount", "check_gpu_gemm"), "read")
				if !o.Kept || !strings.Contains(o.Why, "its memory cannot be read: ") || o.Warning == nil {
					t.Errorf("%+v, want it kept, and a warning", o)
				}
			}
			f.is(t, "IDLE+DRAIN", "NHC: wrong")
			if string(dir.data) != spoilt {
				t.Errorf("stored %s, want it as it was", dir.data)
			}

			// The file can be read again.
			dir.broken, dir.data = nil, good
			if o := act(t, c, passing("check_fs_mount"), "read"); !o.Kept || strings.Contains(o.Why, "memory") {
				t.Errorf("%+v, want it kept for check_gpu_gemm", o)
			}

			// A person resumes the node: from then on it is as any other.
			spoil(dir)
			f.state, f.reason = "IDLE", ""
			act(t, c, healthy, "read")
			dir.broken = nil
			act(t, c, failing, "read", "DRAIN "+ourReason)
			act(t, c, healthy, "read", "RESUME")
		})
	}
}

// A run that finds a fault on such a node has something to store. The memory stays lost.
func TestLostMemoryIsStored(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE+DRAIN", reason: "NHC: old", groups: "main|drain|1|gpu01|x\n"}
	c, _ := watched(t, f)
	put(c, "{")
	act(t, c, by("check_fs_mount", "no /home"), "read")
	if m := memoryOf(t, c); m.Lost == "" || len(m.Marks) != 1 {
		t.Errorf("%+v, want it lost, and the mark", m)
	}
	if o := act(t, c, passing("check_fs_mount"), "read"); !o.Kept {
		t.Errorf("%+v, want it kept", o)
	}
	if o := act(t, c, passing("check_fs_mount")); !o.Kept || !strings.Contains(o.Why, "memory cannot be read") {
		t.Errorf("%+v, want it kept without a call", o)
	}
	f.is(t, "IDLE+DRAIN", "NHC: old")

	// No remedy acts on it, and an empty reason is not ours either.
	if p, err := AskPatient(t.Context(), c, defaults, 0, false); err != nil || p.Ours {
		t.Errorf("%+v, %v, want a node that is not ours", p, err)
	}
	if err := Reboot(t.Context(), c); !errors.Is(err, ErrNotOurs) {
		t.Errorf("%v, want no reboot", err)
	}
	f = &fake{state: "IDLE+DRAIN", reason: "none"}
	c = controller(t, f)
	c.Settings.Policy.IgnoreEmptyNote = true
	put(c, "{")
	if o := act(t, c, healthy, "read"); !o.Kept {
		t.Errorf("%+v, want it kept", o)
	}
}

// Slurm does not answer while the memory is lost: the fault is delivered later, and a drain of before stays.
func TestLostMemoryKeepsPending(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", on: always(timeout, "read")}
	c := controller(t, f)
	put(c, "{")
	undelivered(t, c, failing, "read")
	f.on = nil
	act(t, c, failing, "read", "DRAIN "+ourReason)
	act(t, c, healthy, "read", "RESUME")
}

// The memory of another boot is none, whatever its version.
func TestNewerMemoryOfAnotherBoot(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE+DRAIN", reason: "NHC: old"}
	c := controller(t, f)
	put(c, `{"version":2,"boot_id":"boot-0","told":"drained"}`)
	act(t, c, healthy, "read", "RESUME")
}

// A run that is killed while scontrol has its drain leaves a memory with which the next run asks Slurm.
func TestKilledInDrain(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]bool{"carried out": true, "not sent": false} {
		f := &fake{state: "IDLE"}
		c := controller(t, f)
		act(t, c, healthy, "read")
		act(t, c, healthy)
		var left []byte
		f.on = func(f *fake, call string) (Output, error, bool) {
			if strings.HasPrefix(call, "DRAIN") {
				left = c.Dir.(*store).data
			}
			return Output{}, nil, false
		}
		act(t, c, by("check_gpu_gemm", "wrong"), "read", "DRAIN NHC: wrong")
		if m := memoryOf(t, c); m.Reported != ReportedDrained || m.Pending != (Pending{}) || m.Unsettled {
			t.Errorf("%+v, want a settled memory", m)
		}
		f.on = nil
		c.Dir = &store{data: left}
		calls := []string{"read"}
		if !sent {
			f.state, f.reason = "IDLE", ""
			calls = append(calls, "DRAIN NHC: wrong")
		}
		if o := act(t, c, passing("check_fs_mount"), calls...); o.Reported != ReportedDrained {
			t.Errorf("%s: %+v, want it drained by us", name, o)
		}
		f.is(t, "IDLE+DRAIN", "NHC: wrong")
		act(t, c, passing("check_gpu_gemm"), "read", "RESUME")
	}
}

// A run that is killed while scontrol has the new reason of a healthy run leaves no drain to deliver: a person can have
// resumed the node since.
func TestKilledInHealthyRenew(t *testing.T) {
	t.Parallel()
	for _, resumed := range []bool{false, true} {
		f := &fake{state: "IDLE"}
		c := controller(t, f)
		act(t, c, by("check_gpu_gemm", "wrong"), "read", "DRAIN NHC: wrong")
		act(t, c, by("check_fs_mount", "no /home"), "read", "DRAIN NHC: no /home")
		var left []byte
		f.on = func(f *fake, call string) (Output, error, bool) {
			if strings.HasPrefix(call, "DRAIN") {
				left = c.Dir.(*store).data
			}
			return Output{}, nil, false
		}
		act(t, c, passing("check_fs_mount"), "read", "DRAIN NHC: wrong")
		f.on = nil
		c.Dir = &store{data: left}
		if m := memoryOf(t, c); m.Pending != (Pending{}) || !m.Unsettled || len(m.Marks) != 1 || m.Marks[0].Owed {
			t.Errorf("%+v, want nothing owed, and a node that is in doubt", m)
		}
		if resumed {
			f.state, f.reason = "IDLE", ""
		}
		deliver(t, c)
		calls := []string{"read"}
		if !resumed {
			calls = append(calls, "RESUME")
		}
		act(t, c, passing("check_gpu_gemm", "check_fs_mount"), calls...)
		f.is(t, "IDLE", "")
	}
}

// A pending drain without a message, which a run of another version has stored, is none.
func TestPendingWithoutMessage(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	const empty = `{"version":1,"boot_id":"boot-1","told":"","pending":{"message":"","since":"2026-01-02T03:04:05Z"}}`
	put(c, empty)
	deliver(t, c)
	act(t, c, Verdict{Healthy: true, Part: true})
	act(t, c, healthy, "read")
	put(c, empty)
	act(t, c, failing, "read", "DRAIN "+ourReason)
	if m := memoryOf(t, c); m.Reported != ReportedDrained || m.Unsettled {
		t.Errorf("%+v, want a settled memory", m)
	}
}

// crowded is a state directory with little room.
type crowded struct {
	store
	room int
}

func (s *crowded) Save(data []byte) error {
	if len(data) > s.room {
		return errors.New("no space left on device")
	}
	return s.store.Save(data)
}

// If the memory of a drain does not fit, "ok" does not stay: the next run asks, and a drain for an unknown fault stands.
func TestNoRoomForDrain(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	dir := &crowded{room: 1 << 20}
	c.Dir = dir
	act(t, c, healthy, "read")
	dir.room = 200
	if o := act(t, c, by("check_gpu_gemm", strings.Repeat("wrong ", 50)), "read", "DRAIN NHC: "+strings.TrimSpace(strings.Repeat("wrong ", 50))); o.Warning == nil {
		t.Error("no warning")
	}
	if o := act(t, c, passing("check_fs_mount"), "read"); !o.Kept {
		t.Errorf("%+v, want it kept", o)
	}
	dir.room = 1 << 20
	f.state, f.reason = "IDLE", ""
	act(t, c, healthy, "read")
	act(t, c, healthy)
}
