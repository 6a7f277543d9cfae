package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// samplesAt returns a worker of a recorded node that has a state directory.
func samplesAt(t *testing.T, files map[string]string) (w *worker, root string) {
	t.Helper()
	files[bootID] = "boot-1\n"
	w, root = watchAt(t, files)
	w.vars.State = filepath.Join(t.TempDir(), "state")
	return w, root
}

// window returns the last samples of a source.
func window(t *testing.T, w *worker, source string) *flight.Window {
	t.Helper()
	now := uint32(uptime() / time.Second)
	got := flight.NewWindow(now-20, now)
	f, err := os.Open(filepath.Join(w.vars.State, flight.File(source)))
	if err == nil {
		defer f.Close()
		err = got.Load(f, "boot-1")
	}
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const jobDir = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_"

// The source of jobs says which are on the node, and samples them. A job that ends gives up its slot.
func TestJobWatch(t *testing.T) {
	t.Parallel()
	w, root := samplesAt(t, map[string]string{
		jobDir + "7/memory.current": "1048576\n", jobDir + "7/io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\n",
		jobDir + "8/memory.current": "2097152\n",
	})
	s, err := openJobWatch(w)
	if err != nil {
		t.Fatal(err)
	}
	heard, err := s.wait(listen{limit: time.Minute})
	if err != nil || !slices.Equal(heard.Jobs, []string{"7", "8"}) {
		t.Fatalf("%+v, %v", heard, err)
	}
	write(t, root, jobDir+"7/io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=500100\n")
	if heard, err = s.wait(listen{limit: 1500 * time.Millisecond}); err != nil || len(heard.Jobs) != 2 {
		t.Fatalf("%+v, %v", heard, err)
	}
	got := window(t, w, monitor.Jobs)
	slot := got.SlotOf("7")
	if slot != "slot0" || got.SlotOf("8") != "slot1" || got.Last(slot, flight.Resident) != 1 || got.Last("slot1", flight.Resident) != 2 {
		t.Errorf("slots %q, %q, %v MiB", slot, got.SlotOf("8"), got.Last(slot, flight.Resident))
	}
	if high := slices.Max(known(got.Of(slot, flight.StallIO))); high < 5 || high > 100 {
		t.Errorf("I/O pressure %v %%", got.Of(slot, flight.StallIO))
	}
	if err := os.RemoveAll(filepath.Join(root, jobDir+"7")); err != nil {
		t.Fatal(err)
	}
	if heard, err = s.wait(listen{limit: time.Minute}); err != nil || !slices.Equal(heard.Jobs, []string{"8"}) {
		t.Errorf("%+v, %v", heard, err)
	}
}

func known(values []float32) []float32 {
	return append(slices.DeleteFunc(slices.Clone(values), func(v float32) bool { return !(v >= 0) }), 0)
}

// While jobs run, ports are sampled. A port that disappears begins a new ring.
func TestPortSamples(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 4 {
		dir := fmt.Sprintf("sys/class/infiniband/mlx5_%d/ports/1/", i)
		files[dir+"state"], files[dir+"phys_state"], files[dir+"link_layer"] = "4: ACTIVE\n", "5: LinkUp\n", "InfiniBand\n"
		files[dir+"counters/port_xmit_data"], files[dir+"counters/port_rcv_data"] = "1000\n", "1000\n"
		files[dir+"counters/symbol_error"] = "0\n"
	}
	w, root := samplesAt(t, files)
	s := newPortWatch(w)
	jobs := listen{limit: 0, jobs: []string{"7"}}
	wait := func(l listen) {
		if _, err := s.wait(l); err != nil {
			t.Fatal(err)
		}
	}
	wait(jobs)
	write(t, root, "sys/class/infiniband/mlx5_2/ports/1/counters/port_xmit_data", "250001000\n")
	write(t, root, "sys/class/infiniband/mlx5_2/ports/1/counters/symbol_error", "9\n")
	time.Sleep(time.Second)
	wait(jobs)
	got := window(t, w, monitor.Ports)
	if v := got.Last("mlx5_2:1", flight.Data); v < 300 || v > 1001 {
		t.Errorf("%v MB/s, want about 1000", v)
	}
	if v := got.Last("mlx5_1:1", flight.Data); v != 0 || got.Last("mlx5_1:1", flight.Up) != 1 || !(got.Last("mlx5_2:1", flight.Faults) > 2) {
		t.Errorf("%v MB/s, up %v, errors %v", v, got.Last("mlx5_1:1", flight.Up), got.Last("mlx5_2:1", flight.Faults))
	}
	if err := os.RemoveAll(filepath.Join(root, "sys/class/infiniband/mlx5_3")); err != nil {
		t.Fatal(err)
	}
	wait(jobs)
	if names := window(t, w, monitor.Ports).Names(flight.Data); len(names) != 3 {
		t.Errorf("ports %v", names)
	}
}

// A ring outlives its writer, and a new one replaces it for other devices, or if it is damaged.
func TestRingOfUpgrade(t *testing.T) {
	t.Parallel()
	w, _ := samplesAt(t, map[string]string{})
	open := func(devices ...string) *ring {
		r, err := openRing(w, "x", &flight.Header{Columns: flight.Columns(flight.OfPort, devices...)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	now := uint32(uptime() / time.Second)
	r := open("a")
	if err := r.add(now-3, []float32{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	r = open("a")
	if err := r.add(now-2, []float32{5, 6, 7, 8}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if got := known(window(t, w, "x").Of("a", flight.Data)); !slices.Equal(got, []float32{1, 5, 0}) {
		t.Errorf("%v, want the samples of both", got)
	}
	open("b").Close()
	if got := window(t, w, "x"); got.Of("a", flight.Data) != nil {
		t.Error("samples of another device")
	}
	path := filepath.Join(w.vars.State, flight.File("x"))
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	open("b").Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 || st.Size() < flight.HeaderSize {
		t.Errorf("%v, %v", st, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := openRing(w, "x", &flight.Header{}); err == nil {
		t.Error("a link is followed")
	}
}

// The values of a GPU come from the growth of its counters.
func TestValuesOf(t *testing.T) {
	t.Parallel()
	was := &nvml.Sample{NVLink: nvml.Known(uint64(1e9)), Slow: [3]nvml.Reading[int64]{nvml.Known(int64(0)), {}, nvml.Known(int64(5e8))}}
	now := &nvml.Sample{
		NVLink: nvml.Known(uint64(5e9)), Slow: [3]nvml.Reading[int64]{nvml.Known(int64(1e9)), {}, nvml.Known(int64(5e8))},
		Power: nvml.Known(512000), Busy: nvml.Known(97), State: nvml.ErrGPULost, Capped: nvml.Failed[int64](nvml.ErrGPULost),
	}
	v := valuesOf(was, now, 2)
	of := func(name flight.Name) float32 { return v[slices.Index(flight.OfGPU, name)] }
	if len(v) != len(flight.OfGPU) || of(flight.NVLink) != 2000 || of(flight.Slow) != 50 || of(flight.Power) != 512 || of(flight.Busy) != 97 || of(flight.Reached) != 0 {
		t.Errorf("%v", v)
	}
	for _, name := range []flight.Name{flight.PCIe, flight.Capped, flight.Margin, flight.Used} {
		if got := of(name); got == got { //nolint:gocritic // NaN
			t.Errorf("%s: %v, want unknown", name, got)
		}
	}
	if got := valuesOf(&nvml.Sample{}, now, 2)[slices.Index(flight.OfGPU, flight.NVLink)]; got == got { //nolint:gocritic // NaN
		t.Errorf("the first sample: %v, want unknown", got)
	}
}

// Without a job the worker that samples GPUs leaves, so that NVML is closed.
func TestGPUWatchLeaves(t *testing.T) {
	t.Parallel()
	w, _ := samplesAt(t, map[string]string{})
	if resp := w.answer(&wire.Request{Op: wire.OpWatch, Name: monitor.GPUs}); !resp.Worn || resp.Err != "" {
		t.Errorf("%+v", resp)
	}
}
