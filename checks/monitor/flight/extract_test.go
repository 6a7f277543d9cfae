package flight

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// file is a ring in memory.
type file []byte

func (f *file) WriteAt(p []byte, at int64) (int, error) {
	if need := int(at) + len(p); need > len(*f) {
		*f = append(*f, make([]byte, need-len(*f))...)
	}
	return copy((*f)[at:], p), nil
}

// record writes a ring of some columns, whose values are the time.
func record(t *testing.T, h *Header, from, to uint32) *file {
	t.Helper()
	head, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	f := file(head)
	_, _ = f.WriteAt(make([]byte, h.Size()-HeaderSize), HeaderSize)
	r := Record(&f, h)
	for at := from; at <= to; at++ {
		values := make([]float32, len(h.Columns))
		for i := range values {
			values[i] = float32(at) + float32(i)/10
		}
		if err := r.Add(at, values); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return &f
}

// A new version of the program, with other columns, goes on with the samples of the old one.
func TestAdopt(t *testing.T) {
	t.Parallel()
	old := &Header{Boot: "b", Columns: []Column{{"gpu0", Busy}, {"gpu1", Busy}, {"gpu1", Power}}}
	before := record(t, old, 10_000, 11_000)
	h := &Header{Boot: "b", Columns: []Column{{"gpu0", Busy}, {"gpu0", SM}, {"gpu1", Power}}}
	head, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	now := file(head)
	_, _ = now.WriteAt(make([]byte, h.Size()-HeaderSize), HeaderSize)
	r := Record(&now, h)
	if err := r.Adopt(bytes.NewReader(*before), old); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(11_001, []float32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	w, day := NewWindow(10_402, 11_001), NewMinutes(9_000, 11_001)
	for _, window := range []*Window{w, day} {
		if err := window.Load(bytes.NewReader(now), "b"); err != nil {
			t.Fatal(err)
		}
	}
	busy, power, sm := w.Of("gpu0", Busy), w.Of("gpu1", Power), w.Of("gpu0", SM)
	if busy[0] != 10_402 || power[0] != 10_402.2 || known(sm[0]) || busy[599] != 1 || sm[599] != 2 {
		t.Errorf("first %v, %v, %v, last %v, %v", busy[0], power[0], sm[0], busy[599], sm[599])
	}
	if mean := day.Of("gpu1", Power)[30]; mean < 10_829 || mean > 10_831 { // minute 10,800 to 10,859
		t.Errorf("a minute's mean is %v, want 10829.7", mean)
	}
	other := &Header{Boot: "c", Columns: h.Columns}
	fresh := file(head)
	_, _ = fresh.WriteAt(make([]byte, h.Size()-HeaderSize), HeaderSize)
	if err := Record(&fresh, other).Adopt(bytes.NewReader(*before), old); err != nil || bytes.ContainsFunc(fresh[HeaderSize:], func(r rune) bool { return r != 0 }) {
		t.Errorf("samples of another boot were adopted, %v", err)
	}
}

// The format of another version is no ring of this one, and not garbage.
func TestFormat(t *testing.T) {
	t.Parallel()
	data := []byte(strings.Repeat("\x00", HeaderSize))
	copy(data, "NHCFLT2\n")
	if _, err := ReadHeader(bytes.NewReader(data)); !errors.Is(err, ErrFormat) {
		t.Errorf("%v, want %v", err, ErrFormat)
	}
	copy(data, "XXXXXXX\n")
	if _, err := ReadHeader(bytes.NewReader(data)); !errors.Is(err, ErrNoRing) {
		t.Errorf("%v, want %v", err, ErrNoRing)
	}
}

// nodeOf returns the extract of a node with 8 GPUs and 2 ports, in which change sets values of the last 200 seconds.
func nodeOf(change func(gpu int, set func(name Name, v float32))) *Extract {
	w := NewWindow(50_000, 50_599)
	for i := range 8 {
		gpu := fmt.Sprintf("gpu%d", i)
		w.Add(Device{Name: gpu, Limit: 700, Minor: i})
		for t := w.From; t <= w.To; t++ {
			for name, v := range map[Name]float32{Busy: 98, Memory: 40, Tensor: 50, Power: 620, Clock: 1700, NVLink: 100_000, PCIe: 4000, Slow: 0, Reached: 1} {
				w.Set(gpu, name, t, v)
			}
			if change != nil && t > w.To-200 {
				change(i, func(name Name, v float32) { w.Set(gpu, name, t, v) })
			}
		}
	}
	for t := w.From; t <= w.To; t++ {
		w.Set(Slot(3), ID, t, Number("42"))
		w.Set(Slot(3), Resident, t, 1000)
		for _, port := range []string{"mlx5_0:1", "mlx5_1:1"} {
			w.Set(port, Data, t, 20_000)
		}
	}
	w.Add(Device{Name: "mlx5_0:1"})
	w.Add(Device{Name: "mlx5_1:1"})
	job := Job{ID: "42", GPUs: w.Names(Busy), All: true}
	return NewExtract(job, w)
}

func spinning(set func(Name, float32)) {
	for name, v := range map[Name]float32{Busy: 100, Power: 120, Tensor: 0, Memory: 0, NVLink: 0, PCIe: 1} {
		set(name, v)
	}
}

// sent returns an extract as another node reads it.
func sent(t *testing.T, e *Extract) *Extract {
	t.Helper()
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseExtract(data)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Over four nodes the one that holds the others up is named.
func TestLast(t *testing.T) {
	t.Parallel()
	wait := func(_ int, set func(Name, float32)) { spinning(set) }
	for name, test := range map[string]struct {
		usual, third func(gpu int, set func(Name, float32))
		want         string
	}{
		"healthy":  {nil, nil, "no node and no GPU stands out"},
		"all wait": {wait, wait, "all 32 GPUs of 4 nodes wait, and none stands out: see NCCL's RAS (docs/monitor.md)"},
		"one works": {wait, func(gpu int, set func(Name, float32)) {
			if gpu != 5 {
				spinning(set)
			}
		}, "last: node n3: the 24 GPUs of the other nodes wait, and on it gpu5 works (620 W)"},
		"a node without work": {wait, func(_ int, set func(Name, float32)) {
			spinning(set)
			set(Busy, 0)
		}, "last: node n3: the 24 GPUs of the other nodes wait, and on it gpu0 runs no kernel, gpu1 runs no kernel, gpu2 runs no kernel, gpu3 runs no kernel"},
		"a straggler": {nil, func(gpu int, set func(Name, float32)) {
			if gpu == 6 {
				set(Clock, 900)
			}
		}, "last: n3 gpu6: the clock of this GPU is lower than that of the other GPUs of the job, want 1700 MHz, as the others, got 900 MHz [job.straggler]"},
		"heat": {nil, func(gpu int, set func(Name, float32)) {
			if gpu == 6 {
				set(Slow, 40)
			}
		}, "last: n3 gpu6: heat or the power supply slows this GPU down, and not the other GPUs of the job, want at most 2 % of the time, got 40 % [job.throttle]"},
	} {
		nodes := map[string]*Extract{}
		for i := range 4 {
			change := test.usual
			if i == 2 {
				change = test.third
			}
			nodes[fmt.Sprintf("n%d", i+1)] = sent(t, nodeOf(change))
		}
		if got := strings.Join(Last("42", nodes, nil), "\n"); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		if text := Compare("42", nodes, nil); !strings.Contains(text, "n3    8     ") || strings.Count(text, "\n") != 6 {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// Nodes that have sent no samples, too few, or those of a stopped job, leave open whether the job hangs.
func TestLastUnsure(t *testing.T) {
	t.Parallel()
	const none = "no node and no GPU stands out"
	for name, test := range map[string]struct {
		change func(third *Extract, nodes map[string]*Extract)
		want   string
	}{
		"all":     {func(*Extract, map[string]*Extract) {}, "all 24 GPUs of 3 nodes wait, and none stands out: see NCCL's RAS (docs/monitor.md)"},
		"none":    {func(_ *Extract, nodes map[string]*Extract) { nodes["n4"] = &Extract{Job: "42"} }, none + "; there are no samples of n4: look there first"},
		"no GPUs": {func(third *Extract, _ map[string]*Extract) { third.Devices = nil }, none + "; there are no samples of n3: look there first"},
		"too few": {func(third *Extract, _ map[string]*Extract) { third.Partial = true }, "n3: the job is not judged for a hang: some of its GPUs have no samples\n" + none},
		"stopped": {func(third *Extract, _ map[string]*Extract) {
			third.Seconds.Series["job"][Stopped] = slices.Repeat(Values{9}, third.Seconds.Len)
			third.Seconds.Series["job"][Processes] = slices.Repeat(Values{10}, third.Seconds.Len)
			third.Seconds.Series["gpu5"][Busy] = slices.Repeat(Values{0}, third.Seconds.Len)
		}, "n3: the job is not judged for a hang: most of its processes are stopped\n" + none},
	} {
		nodes := map[string]*Extract{}
		for i := range 3 {
			nodes[fmt.Sprintf("n%d", i+1)] = nodeOf(func(_ int, set func(Name, float32)) { spinning(set) })
		}
		test.change(nodes["n3"], nodes)
		for node, e := range nodes {
			nodes[node] = sent(t, e)
		}
		if got := strings.Join(Last("42", nodes, nil), "\n"); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// A node that did not answer is the first suspect, and the others do not count as all.
func TestLastMissing(t *testing.T) {
	t.Parallel()
	const hint = "; there are no samples of n4: look there first"
	works := func(int, func(Name, float32)) {}
	for name, test := range map[string]struct {
		third func(gpu int, set func(Name, float32))
		since uint32 // seconds for which the others wait
		want  string
	}{
		"maybe a checkpoint": {nil, 200, "no node and no GPU stands out" + hint},
		"all others wait":    {nil, 400, "all 24 GPUs of 3 nodes wait" + hint},
		"one works":          {works, 200, "last: node n3: the 16 GPUs of the other nodes with samples wait, and on it gpu0 works (620 W), gpu1 works (620 W), gpu2 works (620 W), gpu3 works (620 W)" + hint},
	} {
		nodes := map[string]*Extract{}
		for i := range 3 {
			e := nodeOf(nil)
			for gpu := range 8 {
				set := func(name Name, v float32) {
					values := e.Seconds.Series[fmt.Sprintf("gpu%d", gpu)][name]
					for at := len(values) - int(test.since); at < len(values); at++ {
						values[at] = v
					}
				}
				if i == 2 && test.third != nil {
					test.third(gpu, set)
				} else {
					spinning(set)
				}
			}
			nodes[fmt.Sprintf("n%d", i+1)] = sent(t, e)
		}
		if got := strings.Join(Last("42", nodes, []string{"n4"}), "\n"); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// A driver that answers slowly, so that there is a sample every 8 seconds, hides no hang; one sample is not enough.
func TestFewSamples(t *testing.T) {
	t.Parallel()
	for every, want := range map[uint32]int{1: 1, 8: 1, 40: 0} {
		w := NewWindow(1000, 1599)
		job := Job{ID: "1", All: true}
		for i := range 8 {
			gpu := fmt.Sprintf("gpu%d", i)
			w.Add(Device{Name: gpu, Limit: 700})
			job.GPUs = append(job.GPUs, gpu)
			for at := w.From; at <= w.To; at += every {
				spinning(func(name Name, v float32) { w.Set(gpu, name, at, v) })
			}
		}
		for at := w.From; at <= w.To; at++ {
			w.Set(Slot(0), ID, at, Number("1"))
		}
		if list := Detect(w, []Job{job}); len(list) != want {
			t.Errorf("a sample every %d s: %+v, want %d findings", every, list, want)
		}
	}
}

// The text of an extract is that of the window, and a job with a part of the node sees no more.
func TestExtract(t *testing.T) {
	t.Parallel()
	e := sent(t, nodeOf(nil))
	for _, want := range []string{"means of the last 60 seconds", "gpu7  98 %", "mlx5_1:1  20000 MB/s", "42   1000 MiB"} {
		if text := e.Text(); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	w := nodeOf(nil).Window(nodeOf(nil).Seconds)
	part := NewExtract(Job{ID: "42", GPUs: []string{"gpu2"}}, w)
	if data, _ := json.Marshal(part); strings.Contains(string(data), "mlx5") || strings.Contains(string(data), "gpu3") || !strings.Contains(string(data), "gpu2") {
		t.Errorf("a job with gpu2 alone sees %.300s", data)
	}
	for _, bad := range []string{
		``, `[]`, `{"devices":[{"name":"gpu0\u001b[2J"}]}`, `{"seconds":{"len":2,"step":1,"series":{"gpu0":{"busy":[1]}}}}`,
		`{"seconds":{"len":99999999,"step":1}}`, `{"seconds":{"len":1,"step":7}}`, `{"seconds":{"len":1,"step":1,"series":{"gpu0":{"busy":["x"]}}}}`,
	} {
		if e, err := ParseExtract([]byte(bad)); err == nil {
			t.Errorf("%s: %+v, want an error", bad, e)
		}
	}
	if e, err := ParseExtract([]byte(`{"findings":[{"text":"a\u001b[2Jb"}]}`)); err != nil || e.Findings[0].Text != "a?[2Jb" {
		t.Errorf("%+v, %v", e, err)
	}
}

// A job sees nothing of the jobs that had its GPUs and its slot before, or whose GPUs are only taken for its own.
func TestExtractOfStay(t *testing.T) {
	t.Parallel()
	const begin, end, secret = 50_580, 50_599, 111
	w, day := NewWindow(50_000, end), NewMinutes(0, end)
	w.Add(Device{Name: "gpu0"})
	w.Add(Device{Name: "p:1"})
	fill := func(w *Window, at uint32, value float32) {
		for _, c := range slices.Concat(Columns(OfGPU, "gpu0"), Columns(OfPort, "p:1"), Columns(OfJob, Slot(0))) {
			w.Set(c.Device, c.Name, at, value)
		}
	}
	for at := w.From; at <= end; at++ {
		fill(w, at, map[bool]float32{true: secret, false: 5}[at <= begin]) // the first sample is of the second before, too
		w.Set(Slot(0), ID, at, Number(map[bool]string{true: "1", false: "2"}[at < begin]))
		if at >= begin {
			for _, name := range OfJob[1:] {
				w.Set(Slot(0), name, at, 5)
			}
		}
	}
	for at := day.From; at <= day.To; at += 60 {
		fill(day, at, secret)
		day.Set(Slot(0), ID, at, Number(map[bool]string{true: "1", false: "2"}[at < day.To])) // the first minute of the job has the mean of both
	}
	job := Job{ID: "2", GPUs: []string{"gpu0"}, All: true}
	data, _ := json.Marshal(NewExtract(job, w, day))
	var e *Extract
	if err := json.Unmarshal(data, &e); err != nil || strings.Contains(string(data), "111") || e.Seconds == nil || e.Seconds.Len != 20 || e.Minutes != nil {
		t.Fatalf("%v: %.400s", err, data)
	}
	if gpu, own := e.Seconds.Series["gpu0"][Power], e.Seconds.Series[jobSlot][Resident]; known(gpu[0]) || gpu[1] != 5 || own[0] != 5 {
		t.Errorf("power %v, memory of the job %v", gpu, own)
	}
	for at := uint32(begin); at <= begin+10; at++ { // another job is beside it until then
		fill(w, at, secret)
		w.Set(Slot(1), ID, at, Number("3"))
		w.Set(Slot(0), ID, at, Number("2"))
	}
	w.Set("gpu0", Power, begin+11, secret) // the first sample of the time alone
	for _, name := range slices.Concat(OfGPU, OfPort) {
		w.Set("gpu0", name, begin+11, secret)
		w.Set("p:1", name, begin+11, secret)
	}
	job.Guess = true
	if data, _ = json.Marshal(NewExtract(job, w)); strings.Contains(string(data), "111") || !strings.Contains(string(data), `"len":9`) {
		t.Errorf("GPUs that are a guess: %.400s", data)
	}
	if e := NewExtract(Job{ID: "9", GPUs: []string{"gpu0"}, All: true}, w, day); e.Seconds != nil || e.Minutes != nil || len(e.Devices) > 0 {
		t.Errorf("a job that was not there: %+v", e)
	}
}

// The samples of the whole node have those of its jobs, too, and say which job had a slot.
func TestExtractOfNode(t *testing.T) {
	t.Parallel()
	w := NewWindow(1000, 1599)
	for at := w.From; at <= w.To; at++ {
		job := map[bool]string{true: "4711", false: "67108863"}[at < 1300]
		if at < 1300 || at >= 1310 {
			w.Set(Slot(2), ID, at, Number(job))
			w.Set(Slot(2), StallIO, at, 98)
		}
	}
	e := sent(t, NewExtract(Job{All: true}, w))
	want := []Stay{{"4711", "slot2", 1000, 1299}, {"67108863", "slot2", 1310, 1599}}
	if io := e.Seconds.Series["slot2"][StallIO]; !slices.Equal(e.Seconds.Jobs, want) || len(io) != 600 || io[0] != 98 || known(io[305]) {
		t.Errorf("jobs %+v, pressure %v", e.Seconds.Jobs, io)
	}
	if data, _ := json.Marshal(nodeOf(nil)); strings.Contains(string(data), "slot") || strings.Contains(string(data), `"jobs"`) {
		t.Errorf("the samples of a job: %.300s", data)
	}
}

func FuzzParseExtract(f *testing.F) {
	data, _ := json.Marshal(nodeOf(nil))
	f.Add(data)
	f.Add([]byte(`{"job":"1","known":true,"devices":[{"name":"gpu0"},{"name":"a:1"}],"seconds":{"from":1,"step":1,"len":1,"series":{"gpu0":{"busy":[null]},"job":{"io":[1e38]}}}}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if e, err := ParseExtract(data); err == nil {
			_ = e.Text()
			_ = Compare(e.Job, map[string]*Extract{"a": e, "b": e}, []string{"c"})
		}
	})
}
