package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
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
	now := uint32(probe.SinceBoot() / time.Second)
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
	s := openJobWatch(w)
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

// On a node without Slurm's cgroups the source of jobs sees a job by its slurmstepd, which begins after the source.
func TestJobWatchWithoutCgroups(t *testing.T) {
	t.Parallel()
	w, root := samplesAt(t, map[string]string{"proc/1/status": ""})
	s := openJobWatch(w)
	look := func(want ...string) {
		t.Helper()
		s.listed = max(1, s.listed-processPace)
		if heard, err := s.wait(listen{limit: 0}); err != nil || !slices.Equal(heard.Jobs, want) {
			t.Errorf("%+v, %v, want %v", heard, err, want)
		}
	}
	look()
	probetest.Mkdir(t, filepath.Join(root, "proc/20"))
	write(t, root, "proc/20/status", "Name:\tslurmstepd\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n")
	write(t, root, "proc/20/cmdline", "slurmstepd: [123.batch]\x00")
	look("123")
	if err := os.RemoveAll(filepath.Join(root, "proc/20")); err != nil {
		t.Fatal(err)
	}
	look()
}

// A source of events lives as long as the monitor, and a Host remembers what it has read. So a source may read only
// values that do not change, those of NVML, after which its worker leaves, or its own.
func TestSourcesRememberNothing(t *testing.T) {
	t.Parallel()
	w, root := samplesAt(t, map[string]string{
		"dev/kmsg": "6,1,1,-;hello\n", "proc/1/status": "", "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
		"sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n", "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
		"sys/devices/system/cpu/online": "0-3\n",
	})
	nvml.Set(w.host, nil, nvml.ErrNoGPU)
	for range 2 { // without a job with a cgroup, and with one
		for _, source := range monitor.Sources {
			resp := w.answer(&wire.Request{Op: wire.OpWatch, Name: source, Args: []string{"7"}})
			if resp.Err != "" {
				t.Errorf("%s: %s", source, resp.Err)
			}
		}
		probetest.Mkdir(t, filepath.Join(root, jobDir+"7"))
		write(t, root, jobDir+"7/memory.current", "1048576\n")
		w.watches[monitor.Jobs].(*jobWatch).listed = 1
	}
	jobscan.SystemCPUs(w.host, []int{os.Getpid()})
	may := []string{"boot id", "nvml", "kept nvml guard", "kept looks for slurmstepd"}
	for _, key := range reflect.ValueOf(w.host).Elem().FieldByName("cache").MapKeys() {
		if !slices.Contains(may, key.String()) {
			t.Errorf("a source remembers %q: read it by Host.Apart, or without probe.Once", key)
		}
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

// A node without ports has no samples of them.
func TestNoPorts(t *testing.T) {
	t.Parallel()
	w, _ := samplesAt(t, map[string]string{})
	h, err := newPortWatch(w).wait(listen{limit: 0, jobs: []string{"7"}})
	if _, statErr := os.Stat(filepath.Join(w.vars.State, flight.File(monitor.Ports))); err != nil || len(h.Events) != 0 || len(w.notes) != 0 || statErr == nil {
		t.Errorf("%+v, %v, %q, %v", h, err, w.notes, statErr)
	}
}

// The states of ports are watched also if their samples cannot be written: more ports than a ring has columns for,
// and a state directory that fails.
func TestManyPorts(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	dir := func(i int) string { return fmt.Sprintf("sys/class/infiniband/mlx5_%d/ports/1/", i) }
	for i := range 70 {
		files[dir(i)+"state"], files[dir(i)+"phys_state"], files[dir(i)+"link_layer"] = "4: ACTIVE\n", "5: LinkUp\n", "InfiniBand\n"
		files[dir(i)+"counters/port_xmit_data"], files[dir(i)+"counters/port_rcv_data"] = "1000\n", "1000\n"
	}
	w, root := samplesAt(t, files)
	s := newPortWatch(w)
	change := func(port int, state string) {
		t.Helper()
		write(t, root, dir(port)+"state", state)
		heard, err := s.wait(listen{limit: 0, jobs: []string{"7"}})
		if want := fmt.Sprintf("mlx5_%d:1", port); err != nil || len(heard.Events) != 1 || heard.Events[0].Text != want {
			t.Errorf("%+v, %v, want %s", heard, err, want)
		}
	}
	if _, err := s.wait(listen{limit: 0, jobs: []string{"7"}}); err != nil {
		t.Error(err)
	}
	change(66, "1: DOWN\n")
	names := window(t, w, monitor.Ports).Names(flight.Data)
	if len(names) != 64 || !slices.Contains(names, "mlx5_0:1") || !slices.Contains(names, "mlx5_63:1") || slices.Contains(names, "mlx5_64:1") {
		t.Errorf("%d ports: %v", len(names), names)
	}

	w.vars.State = filepath.Join(w.vars.State, flight.File(monitor.Ports)) // no directory
	s = newPortWatch(w)
	if _, err := s.wait(listen{limit: 0, jobs: []string{"7"}}); err != nil {
		t.Error(err)
	}
	change(3, "1: DOWN\n")
	w.vars.State = filepath.Join(t.TempDir(), "state")
	change(3, "4: ACTIVE\n")
	if _, err := os.Stat(w.vars.State); err == nil {
		t.Error("the ring is opened again at once")
	}
	s.samples.again, s.samples.at = probe.SinceBoot(), 0
	change(3, "1: DOWN\n")
	if names := window(t, w, monitor.Ports).Names(flight.Data); len(names) != 64 {
		t.Errorf("%d ports after a pause", len(names))
	}
}

// Samples that cannot be written cost neither the jobs nor the events, and are a note, as is their return.
func TestSamplesFail(t *testing.T) {
	t.Parallel()
	w, _ := samplesAt(t, map[string]string{jobDir + "7/memory.current": "1048576\n"})
	good := w.vars.State
	write(t, filepath.Dir(good), "file", "")
	write(t, filepath.Dir(good), "file-jobs", "") // where the socket would be
	w.vars.State = filepath.Join(filepath.Dir(good), "file", "state")
	ask := func() *wire.Heard {
		t.Helper()
		return heard(t, w, monitor.Jobs, nil, 600*time.Millisecond).Heard
	}
	h := ask()
	if len(h.Notes) != 2 || !strings.HasPrefix(h.Notes[0], "open the socket for users in ") || !strings.HasPrefix(h.Notes[1], "no samples of jobs: ") || !slices.Equal(h.Jobs, []string{"7"}) {
		t.Errorf("%+v, want the job, and notes about the socket and the samples", h)
	}
	j := w.watches[monitor.Jobs].(*jobWatch)
	if j.samples.again < probe.SinceBoot()+reopenPause-time.Minute {
		t.Error("the file is opened again at once")
	}
	j.samples.again = probe.SinceBoot()
	note := h.Notes[1:]
	if h = ask(); !slices.Equal(h.Notes, note) || j.samples.again <= probe.SinceBoot() {
		t.Errorf("%+v, want %q after a pause", h, note)
	}
	w.vars.State, j.samples.again = good, probe.SinceBoot()
	if h = ask(); j.samples.ring == nil || !slices.Equal(h.Notes, []string{"the samples of jobs are written again"}) {
		t.Errorf("no samples after a pause: %+v, %+v", j.samples, h)
	}
}

// Of many GPUs as many have samples as have columns.
func TestManyGPUs(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]int{8: 8, 16: 16, 20: 16} {
		h := gpuHeader(make([]nvml.GPU, count), make([]float64, count))
		if _, err := h.Encode(); err != nil || len(h.Devices) != want || h.More != count-want || len(h.Columns) != want*len(flight.OfGPU) {
			t.Errorf("%d GPUs: %d devices, %d columns, %v", count, len(h.Devices), len(h.Columns), err)
		}
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
	now := uint32(probe.SinceBoot() / time.Second)
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
