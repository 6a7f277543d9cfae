package checks

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// ticker is a node whose time the test sets.
type ticker struct {
	t    *testing.T
	root string
	boot string
	now  int64 // Unix seconds
}

func newTicker(t *testing.T) *ticker {
	t.Helper()
	return &ticker{t: t, root: t.TempDir(), boot: "a", now: 1767323045}
}

// run is one run of a check that reads a counter of the device d.
func (c *ticker) run(after time.Duration, value uint64, bits int, window time.Duration) Growth {
	c.t.Helper()
	h, env := c.recall(after)
	g := h.Grown("d", "c", value, bits, window)
	h.Add("d", map[string]uint64{"c": value})
	if f := h.Store(env); f != nil {
		c.t.Errorf("store: %v", f)
	}
	return g
}

func (c *ticker) recall(after time.Duration) (*History, *Env) {
	c.t.Helper()
	c.now += int64(after / time.Second)
	const booted = 1767000000
	for name, content := range map[string]string{
		"proc/sys/kernel/random/boot_id": c.boot + "\n", "proc/stat": fmt.Sprintf("cpu 0\nbtime %d\n", booted), "proc/uptime": fmt.Sprintf("%d.00 1.00\n", c.now-booted),
	} {
		if err := writeBelow(c.root, name, content); err != nil {
			c.t.Fatal(err)
		}
	}
	env := &Env{Host: probe.NewHost(c.root)}
	env.Host.SetPast("/past")
	return env.RecallHistory("check_x", "x"), env
}

func TestHistoryGrowth(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	for _, step := range []struct {
		name   string
		window time.Duration
		bits   int
		runs   []uint64 // five minutes apart
		want   Growth   // of the last run
	}{
		{"the first run", 0, 64, []uint64{7}, Growth{}},
		{"nothing grew", 0, 64, []uint64{7, 7}, Growth{N: 0, Over: 300 * time.Second, Known: true}},
		{"since the last run", 0, 64, []uint64{7, 8, 12}, Growth{N: 4, Over: 300 * time.Second, Known: true}},
		{"of an hour, a quarter is known", hour, 64, []uint64{7, 8, 12, 12}, Growth{N: 5, Over: 900 * time.Second, Known: true}},
		{"what is older than an hour does not count", hour, 64, []uint64{0, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 101}, Growth{N: 1, Over: hour, Known: true}},
		{"a reset", 0, 64, []uint64{1000, 3}, Growth{N: 3, Over: 300 * time.Second, Known: true}},
		{"a reset of a counter of 32 bits", 0, 32, []uint64{1000, 3}, Growth{N: 3, Over: 300 * time.Second, Known: true}},
		{"a wrap of one", 0, 32, []uint64{1<<32 - 2, 3}, Growth{N: 5, Over: 300 * time.Second, Known: true}},
		{"the highest of all", 0, 64, []uint64{0, 1<<64 - 1}, Growth{N: 1<<64 - 1, Over: 300 * time.Second, Known: true}},
	} {
		c := newTicker(t)
		var got Growth
		for _, v := range step.runs {
			got = c.run(5*time.Minute, v, step.bits, step.window)
		}
		if diff := cmp.Diff(step.want, got, cmp.AllowUnexported(Growth{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

func TestHistoryPace(t *testing.T) {
	t.Parallel()
	c := newTicker(t)
	c.run(0, 10, 64, 0)
	if g := c.run(10*time.Second, 90, 64, 0); g.Known {
		t.Errorf("too soon: %+v", g)
	}
	if g := c.run(50*time.Second, 100, 64, 0); !g.Known || g.N != 90 || g.Over != time.Minute {
		t.Errorf("a run too soon after another took its past: %+v", g)
	}
	if g := c.run(5*time.Hour, 160, 64, time.Hour); !g.Known || g.N != 60 || g.Over != 5*time.Hour || g.Per(time.Hour) != 12 {
		t.Errorf("a node that was not checked for long: %+v", g)
	}
	c.boot = "b"
	if g := c.run(time.Hour, 500, 64, time.Hour); g.Known {
		t.Errorf("after a boot: %+v", g)
	}
	if g := c.run(-2*time.Hour, 900, 64, time.Hour); g.Known {
		t.Errorf("the clock was set back: %+v", g)
	}
}

// A clock that is set back forgets no device, nor does a boot with a clock that is behind.
func TestHistorySetBack(t *testing.T) {
	t.Parallel()
	c := newTicker(t)
	c.run(0, 10, 64, 0)
	c.run(time.Hour, 10, 64, 0)
	if g := c.run(-time.Hour/2, 500, 64, time.Hour); g.Known {
		t.Errorf("set back: %+v", g)
	}
	if g := c.run(time.Hour/2, 560, 64, time.Hour); !g.Known || g.N != 60 || g.Over != time.Hour/2 {
		t.Errorf("later: %+v", g)
	}
	c.boot = "b"
	if h, _ := c.recall(-time.Hour); h.File.Devices["d"] == nil || h.File.Devices["d"].Seen != c.now {
		t.Errorf("after a boot: %+v", h.File.Devices["d"])
	}
}

// A counter that was unreadable once has not grown when it becomes readable again.
func TestHistoryUnread(t *testing.T) {
	t.Parallel()
	c := newTicker(t)
	c.run(0, 10, 64, 0)
	h, env := c.recall(5 * time.Minute)
	h.Add("d", map[string]uint64{"other": 1})
	h.Store(env)
	if g := c.run(5*time.Minute, 5000, 64, time.Hour); g.Known {
		t.Errorf("%+v", g)
	}
}

// A counter that begins again has not lost what it had counted in this boot.
func TestHistorySinceBoot(t *testing.T) {
	t.Parallel()
	c := newTicker(t)
	for i, r := range []struct {
		boot        string
		value, want uint64
	}{{"a", 2, 2}, {"a", 2, 2}, {"a", 0, 2}, {"a", 1, 3}, {"a", 1<<32 - 1, 1<<32 + 1}, {"a", 1, 1<<32 + 3}, {"b", 1, 1}} {
		c.boot = r.boot
		h, env := c.recall(5 * time.Minute)
		if got := h.SinceBoot("d", "c", r.value, 32); got != r.want {
			t.Errorf("run %d: %d, want %d", i, got, r.want)
		}
		h.Add("d", map[string]uint64{"c": r.value})
		h.Store(env)
	}
}

// A run that says that it could not read all counters keeps the others, with the time at which they were read.
func TestHistoryPart(t *testing.T) {
	t.Parallel()
	c := newTicker(t)
	c.run(0, 10, 64, 0)
	for range 2 {
		h, env := c.recall(5 * time.Minute)
		h.AddPart("d", map[string]uint64{"other": 1})
		h.Store(env)
	}
	h, _ := c.recall(5 * time.Minute)
	want := Growth{N: 90, Over: 15 * time.Minute, Known: true}
	if g, hourly := h.Grown("d", "c", 100, 64, 0), h.Grown("d", "c", 100, 64, time.Hour); g != want || hourly != want {
		t.Errorf("%+v, %+v", g, hourly)
	}
	if at, known := h.LastRead("d", "c"); !known || h.Now.Sub(at) != 15*time.Minute {
		t.Errorf("%v %v", at, known)
	}
	c.run(0, 100, 64, 0)
	if g := c.run(5*time.Minute, 130, 64, 0); g.N != 30 || g.Over != 5*time.Minute {
		t.Errorf("readable again: %+v", g)
	}
}

func TestHistoryMarks(t *testing.T) {
	t.Parallel()
	c := newTicker(t)
	h, env := c.recall(0)
	for i := range 100 {
		h.Mark("d", "flap", h.Now.Add(-time.Duration(i)*time.Minute))
	}
	h.Mark("d", "flap", h.Now)
	h.Store(env)
	c.boot = "b" // a reboot deletes no mark
	h, _ = c.recall(time.Minute)
	if got := h.Marks("d", "flap", 11*time.Minute); len(got) != 11 {
		t.Errorf("%d in the window: %v", len(got), got)
	}
	if got := len(h.Marks("d", "flap", 1000*time.Hour)); got != HistoryMarks {
		t.Errorf("%d are kept, want %d", got, HistoryMarks)
	}
	if got := h.Marks("other", "flap", time.Hour); got != nil {
		t.Errorf("of a device that is not known: %v", got)
	}
}

// A file that cannot be parsed gives one warning, and a new history begins.
func TestHistoryBroken(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		`{"version":1,"boot":"a","devices":{"d":{"seen":17`: "check_x:  /past/x.json is damaged; a new history begins",
		`{"version":7}`: "check_x:  x.json: version 7, want 1; a new history begins",
		`{"version":1,"boot":"a","devices":{"d":{"seen":1,"series":{"c":[[1,-2]]}}}}`: `check_x:  /past/x.json is damaged; a new history begins`,
	} {
		c := newTicker(t)
		if err := writeBelow(c.root, "past/x.json", content); err != nil {
			t.Fatal(err)
		}
		h, env := c.recall(0)
		h.Add("d", map[string]uint64{"c": 1})
		if f := h.Store(env); len(f) != 1 || f[0].Message != want || f[0].Severity != Warn || f[0].Code != "fabric.past" {
			t.Errorf("%s: %v, want %s", content, f, want)
		}
		if g := c.run(5*time.Minute, 2, 64, 0); !g.Known || g.N != 1 {
			t.Errorf("%s: %+v", content, g)
		}
	}
}

// The size of a history is limited.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	c := newTicker(t)
	for i := range 40 {
		h, env := c.recall(time.Minute)
		for d := range historyDevices + 10 {
			if i > 0 && d > 1 {
				break
			}
			values := map[string]uint64{}
			for n := range historyCounters + 10 {
				values[fmt.Sprintf("counter%02d", n)] = uint64(i * n)
			}
			h.Add(fmt.Sprintf("d%d", d), values)
		}
		h.Store(env)
	}
	info, err := os.Stat(filepath.Join(c.root, "past/x.json"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 4<<20 || info.Mode().Perm() != 0o600 {
		t.Errorf("%d bytes, mode %v", info.Size(), info.Mode())
	}
	h, _ := c.recall(time.Minute)
	if n := len(h.File.Devices); n != historyDevices {
		t.Errorf("%d devices, want %d", n, historyDevices)
	}
	if n := len(h.File.Devices["d0"].Series["counter05"]); n != historyPoints {
		t.Errorf("%d points, want %d", n, historyPoints)
	}
	c.now += int64((HistoryAge + time.Hour) / time.Second)
	if h, _ := c.recall(0); len(h.File.Devices) != 0 {
		t.Errorf("devices that no one has seen for a month: %d", len(h.File.Devices))
	}
}

func FuzzHistory(f *testing.F) {
	f.Add(`{"version":1,"boot":"a","devices":{"d":{"seen":1767323000,"series":{"c":[[1767323000,7]]},"marks":{"flap":[1]}}}}`, uint64(9), 32)
	f.Add(`{"version":1,"devices":{"d":null}}`, uint64(1<<63), 64)
	f.Add(`{"devices":{"d":{"seen":-9223372036854775808,"series":{"c":[[9223372036854775807,18446744073709551615]]}}}}`, uint64(0), 8)
	f.Fuzz(func(t *testing.T, text string, now uint64, bits int) {
		h := &History{Check: "check_x", Now: time.Unix(1767323045, 0)}
		if json.Unmarshal([]byte(text), &h.File) != nil {
			return
		}
		for name, d := range h.File.Devices {
			if d == nil || strings.Contains(name, "\x00") {
				return
			}
			for c := range d.Series {
				if g := h.Grown(name, c, now, bits, time.Hour); g.Known && g.Over < MinPast {
					t.Errorf("%s: %+v", text, g)
				}
			}
			h.Marks(name, "flap", time.Hour)
			h.Add(name, map[string]uint64{"c": now})
		}
	})
}

func writeBelow(root, name, content string) error {
	path := filepath.Join(root, name)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
}
