package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// crash ends a process at a step.
type crash struct{}

// fakeCluster is a Slurm with a reservation and drains.
type fakeCluster struct {
	reserved map[string][]string
	reasons  map[string]string // of drained nodes
	calls    []string
	refuse   string // a call that fails
	step     int    // the steps until now, of journal and calls
	crashAt  int
	late     bool // crash after the step, not before it
	journal  bytes.Buffer
}

// do makes a step, or crashes.
func (f *fakeCluster) do(name string, change func()) error {
	f.step++
	if f.step == f.crashAt && !f.late {
		panic(crash{})
	}
	f.calls = append(f.calls, name)
	if name == f.refuse {
		return errors.New("refused: " + name)
	}
	change()
	if f.step == f.crashAt {
		panic(crash{})
	}
	return nil
}

func (f *fakeCluster) reserve(name string, nodes []string, _ bool) error {
	return f.do("reserve", func() { f.reserved[name] = nodes })
}

func (f *fakeCluster) release(name string) error {
	return f.do("release", func() { delete(f.reserved, name) })
}

func (f *fakeCluster) resume(node string) error {
	return f.do("resume "+node, func() {
		if len(f.reserved) == 0 {
			panic("node " + node + " is put into service without a reservation")
		}
		delete(f.reasons, node)
	})
}

func (f *fakeCluster) drain(node, reason string) (instead string, err error) {
	err = f.do("drain "+node, func() {
		if now, drained := f.reasons[node]; drained && now != reason {
			instead = "drained meanwhile: " + now
		} else {
			f.reasons[node] = reason
		}
	})
	return instead, err
}

func (f *fakeCluster) drained() (map[string]string, error) { return maps.Clone(f.reasons), nil }

func (f *fakeCluster) cancel(string) error { return f.do("cancel", func() {}) }

// write writes a line of the journal; a crash before its end leaves a part of it.
func (f *fakeCluster) write(e entry) error {
	data, _ := json.Marshal(e)
	f.step++
	if f.step == f.crashAt && !f.late {
		f.journal.Write(data[:len(data)/2])
		panic(crash{})
	}
	f.journal.Write(append(data, '\n'))
	if f.step == f.crashAt {
		panic(crash{})
	}
	return nil
}

var oldReasons = map[string]string{"gpu02": "bad fan, RMA 17", "gpu03": "NHC: gpu3 lost (check_gpu_count) [gpu.recovery.lost]"}

// maintain runs a maintenance until its end or a crash.
func maintain(f *fakeCluster, keep map[string]bool) (crashed bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(crash); !ok {
				panic(p)
			}
			crashed = true
		}
	}()
	m := &maintenance{debts: debts{nodes: map[string]string{}}, keeper: f, write: f.write}
	if err := m.begin("nhc-gpu-sweep-1", []string{"gpu01", "gpu02", "gpu03"}, oldReasons); err != nil {
		return false, err
	}
	if err := m.note(entry{Job: "7"}); err != nil {
		return false, err
	}
	return false, m.end(keep)
}

func newFakeCluster() *fakeCluster {
	return &fakeCluster{reserved: map[string][]string{}, reasons: maps.Clone(oldReasons)}
}

// TestCrashes ends the launcher before and after each step of a maintenance, and each repair the same
// way. After the last repair all drained nodes are drained with their reasons, and no reservation is
// left. At no time is a node that was drained in service without a reservation.
func TestCrashes(t *testing.T) {
	t.Parallel()
	healthy := newFakeCluster()
	if crashed, err := maintain(healthy, nil); err != nil || crashed {
		t.Fatalf("without a crash: %v", err)
	}
	want := []string{"reserve", "resume gpu02", "resume gpu03", "cancel", "drain gpu02", "drain gpu03", "release"}
	if diff := cmp.Diff(want, healthy.calls); diff != "" {
		t.Fatalf("calls (-want +got)\n%s", diff)
	}
	for at := 1; at <= healthy.step; at++ {
		for again := range 12 { // the repair crashes, too; 0: it does not
			for _, late := range []bool{false, true} {
				f := newFakeCluster()
				f.crashAt, f.late = at, late
				if crashed, _ := maintain(f, nil); !crashed {
					t.Fatalf("no crash at step %d", at)
				}
				name := fmt.Sprintf("crash at step %d (after it: %v), repair crashes at its step %d", at, late, again)
				for try := range 3 {
					f.step, f.crashAt = 0, 0
					if try == 0 {
						f.crashAt = again
					}
					f.inService(t, name)
					func() {
						defer func() {
							if p := recover(); p != nil {
								if _, ok := p.(crash); !ok {
									panic(p)
								}
							}
						}()
						if n := f.journal.Len(); n > 0 && f.journal.Bytes()[n-1] != '\n' {
							f.journal.WriteByte('\n') // as record.appendLine does
						}
						d, err := readJournal(f.journal.Bytes())
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
						m := &maintenance{debts: d, keeper: f, write: f.write}
						if err := m.end(nil); err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}()
				}
				if diff := cmp.Diff(oldReasons, f.reasons); diff != "" || len(f.reserved) > 0 {
					t.Errorf("%s: reservations %v, drains (-want +got)\n%s", name, f.reserved, diff)
				}
			}
		}
	}
}

// A journal that a disk has damaged is still repaired as far as it is legible, and is not forgotten.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	reserve, resume, other := `{"reserve":"r"}`+"\n", `{"resume":"gpu02","reason":"bad fan"}`+"\n", `{"resume":"gpu03","reason":"x"}`+"\n"
	for name, tt := range map[string]struct {
		text  string
		nodes int
		bad   bool
	}{
		"whole":              {reserve + resume + other, 2, false},
		"cut off at its end": {reserve + resume + other[:9], 1, false},
		"cut off in between": {reserve + resume[:20] + "\n" + other, 1, false},
		"zeros":              {reserve + "\x00\x00\n" + other + "\x00", 1, false},
		"damaged":            {reserve + "#" + resume + other, 1, true},
		"damaged at its end": {reserve + resume + `{"restored":"gpu02"}x`, 1, true},
		"of another kind":    {reserve + resume + `{"restored":7}` + "\n", 1, true},
	} {
		base := filepath.Join(t.TempDir(), "s")
		r, err := create(base, Meta{ID: "1"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(r.dir, journalFile), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := r.debts()
		if len(d.nodes) != tt.nodes || d.reservation != "r" || (err != nil) != tt.bad {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		r.close()
		if list, err := List(base); len(list) != 1 || !list[0].Unsettled {
			t.Errorf("%s: list %+v, %v", name, list, err)
		}
	}
}

// inService fails if a node that was drained is in service without a reservation.
func (f *fakeCluster) inService(t *testing.T, when string) {
	t.Helper()
	for node := range oldReasons {
		if _, drained := f.reasons[node]; !drained && len(f.reserved) == 0 {
			t.Errorf("%s: node %s is in service", when, node)
		}
	}
}

// A node that passes stays in service if it is to be resumed; a node that cannot be drained keeps its
// reservation.
func TestEndOfMaintenance(t *testing.T) {
	t.Parallel()
	f := newFakeCluster()
	if _, err := maintain(f, map[string]bool{"gpu03": true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"gpu02": oldReasons["gpu02"]}, f.reasons); diff != "" || len(f.reserved) > 0 {
		t.Errorf("kept gpu03: reservations %v, drains (-want +got)\n%s", f.reserved, diff)
	}
	for _, refuse := range []string{"reserve", "resume gpu03", "drain gpu02"} {
		f := newFakeCluster()
		f.refuse = refuse
		_, err := maintain(f, nil)
		if err == nil {
			t.Errorf("%s is refused: no error", refuse)
		}
		f.inService(t, refuse+" is refused")
		d, _ := readJournal(f.journal.Bytes())
		if refuse == "drain gpu02" && (d.nodes["gpu02"] != oldReasons["gpu02"] || d.reservation == "") {
			t.Errorf("%s is refused: the journal has nothing to repair: %+v", refuse, d)
		}
	}
}

// A node that someone else has drained during the test is left alone, and named, also by a second end.
func TestDrainedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFakeCluster()
	m := &maintenance{debts: debts{nodes: map[string]string{}}, keeper: f, write: f.write}
	if err := m.begin("nhc-gpu-sweep-1", []string{"gpu01", "gpu02", "gpu03"}, oldReasons); err != nil {
		t.Fatal(err)
	}
	f.reasons = map[string]string{"gpu02": "bad fan", "gpu03": "bad PSU"}
	for range 2 {
		if err := m.end(map[string]bool{"gpu03": true}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{"gpu02": "drained meanwhile: bad fan", "gpu03": "drained meanwhile: bad PSU"}
	drains := map[string]string{"gpu02": "bad fan", "gpu03": "bad PSU"}
	if diff := cmp.Diff(want, m.instead) + cmp.Diff(drains, f.reasons); diff != "" || !m.settled() {
		t.Errorf("settled %v (-want +got)\n%s", m.settled(), diff)
	}
}

// Drains are repeated while slurmctld does not answer or refuses them, but not without end for each node. The
// journal keeps the others.
func TestSilentSlurmctld(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"hang-sinfo", "denied"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir, o := fakeSlurm(t, 2)
			put(t, dir, how, "")
			m := newManager(o.Settings, nil)
			m.limit = 100 * time.Millisecond
			left := &maintenance{debts: debts{reservation: "r", nodes: map[string]string{}}, keeper: m, write: func(entry) error { return nil }}
			for i := range 20 {
				left.nodes[fmt.Sprintf("gpu%02d", i)] = "bad fan"
			}
			err := left.end(nil)
			if err == nil || len(left.nodes) != 20 {
				t.Fatalf("%v, %d nodes left", err, len(left.nodes))
			}
			lines := strings.Split(err.Error(), "\n")
			last, isLast := strings.CutPrefix(lines[len(lines)-1], "slurmctld has done nothing for ")
			_, last, _ = strings.Cut(last, ": ")
			if !isLast || last != "it is asked no more; reservation r stays: nhc-gpu sweep --repair drains the nodes again" {
				t.Error(err)
			}
			if n := strings.Count(calls(t, dir), "sinfo"); n > 10 {
				t.Errorf("slurmctld was asked %d times", n)
			}
		})
	}
}

// Who has drained a node during the test decides about its reason.
func TestDrainAgain(t *testing.T) {
	t.Parallel()
	const ib0, gpu = "NHC: ib0 down (check_net_link) [net.link.down]", "NHC: check_fs_mount:  /home not mounted"
	const bySweep, person, asOurs = "NHC: sweep slow TCP eth1 [sweep.tcp.slow]", "bad fan", "NHC: bob waits for a part"
	for name, tt := range map[string]struct {
		state, now, before string
		drains             bool
		instead            string
	}{
		"in service":                              {"idle", "none", ib0, true, ""},
		"drained with it":                         {"drain", ib0, ib0, false, ""},
		"by a person":                             {"drain", person, ib0, false, "drained meanwhile: " + person},
		"by a health check":                       {"drain", gpu, ib0, false, "drained meanwhile: " + gpu},
		"by a health check, draining":             {"drng", ib0, gpu, false, "drained meanwhile: " + ib0},
		"by a health check, before by a person":   {"drain", gpu, person, true, ""},
		"by a health check, before by a sweep":    {"drain", gpu, bySweep, true, ""},
		"by a health check, before as if by ours": {"drain", gpu, asOurs, true, ""},
		"by a sweep, before by a health check":    {"drain", bySweep, ib0, true, ""},
		"without a reason":                        {"drain", "none", ib0, true, ""},
		"removed from slurm.conf":                 {"", "", ib0, true, "not drained again: Slurm does not know it any more"},
	} {
		dir, o := fakeSlurm(t, 1)
		if tt.state == "" {
			put(t, dir, "removed-gpu02", "")
		} else {
			put(t, dir, "nodes", "gpu01|idle|main*,up|(null)|none\ngpu02|"+tt.state+"|main*,up|(null)|"+tt.now+"\n")
		}
		if instead, err := newManager(o.Settings, nil).drain("gpu02", tt.before); err != nil || instead != tt.instead {
			t.Errorf("%s: %v, %q, want %q", name, err, instead, tt.instead)
		}
		if got := strings.Contains(calls(t, dir), "update NodeName=gpu02 State=DRAIN Reason="+tt.before); got != tt.drains {
			t.Errorf("%s: drained again %v, want %v", name, got, tt.drains)
		}
	}
}

// A file system that reports no size has no known free space, and refuses no maintenance.
func TestFreeOf(t *testing.T) {
	t.Parallel()
	for want, st := range map[string]unix.Statfs_t{
		"0 false":     {Bsize: 4096, Frsize: 4096},
		"0 true":      {Bsize: 4096, Frsize: 4096, Blocks: 10},
		"40960 true":  {Bsize: 1 << 20, Frsize: 4096, Blocks: 100, Bavail: 10},
		"409600 true": {Bsize: 4096, Blocks: 1000, Bavail: 100},
	} {
		free, known := freeOf(&st)
		if got := fmt.Sprint(free, known); got != want {
			t.Errorf("%+v: got %s, want %s", st, got, want)
		}
	}
	if err := checkRoom(filepath.Join(t.TempDir(), "none"), 1, roomPerNode); err != nil {
		t.Errorf("a directory without statfs: %v", err)
	}
}
