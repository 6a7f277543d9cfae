package cpu

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestTriad(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(a, b, c []float64, q float64){"non-temporal": triad, "Go": goTriad} {
		a, b, c := make([]float64, 1<<12), make([]float64, 1<<12), make([]float64, 1<<12)
		for i := range b {
			b[i], c[i] = float64(i), float64(2*i)
		}
		of(a, b, c, 3)
		for i := range a {
			if a[i] != float64(7*i) {
				t.Fatalf("%s: element %d is %v, want %v", name, i, a[i], 7*i)
			}
		}
	}
	triad(nil, nil, nil, 3)
}

// goTriad is the loop in Go.
func goTriad(a, b, c []float64, q float64) {
	b, c = b[:len(a)], c[:len(a)]
	for i := range a {
		a[i] = b[i] + q*c[i]
	}
}

// BenchmarkTriad measures the loops on one core, in MB/s as STREAM counts.
func BenchmarkTriad(b *testing.B) {
	const n = 16 << 20
	x, y, z := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range x {
		x[i], y[i], z[i] = 1, 2, 3
	}
	for _, loop := range []struct {
		name string
		of   func(a, b, c []float64, q float64)
	}{{"nontemporal", triad}, {"go", goTriad}} {
		b.Run(loop.name, func(b *testing.B) {
			b.SetBytes(24 * n)
			for b.Loop() {
				loop.of(x, y, z, 3)
			}
		})
	}
}

func TestStreamHere(t *testing.T) {
	h := probe.NewHost("/")
	p, err := PlanStream(h)
	if errors.Is(err, ErrStreamMemory) {
		t.Skip("too little memory:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Array = 8 << 20 // the rate does not matter
	rates, err := Stream(t.Context(), h, p, time.Now().Add(300*time.Millisecond))
	if err != nil || rates.Total <= 0 || rates.Rounds < 1 || len(rates.Nodes) < 1 {
		t.Fatalf("Stream = %+v, %v", rates, err)
	}
	t.Logf("%d threads: %+v", len(p.Threads), rates)
	for node, rate := range rates.Nodes {
		if len(rates.Nodes) == 1 && rate < rates.Total*0.999 {
			t.Errorf("node %d alone has %f MB/s of %f", node, rate, rates.Total)
		}
	}
}

// It stops wherever it is: while it fills its memory, while it moves memory, and in a round.
func TestStreamStops(t *testing.T) {
	h := probe.NewHost("/")
	p, err := PlanStream(h)
	if errors.Is(err, ErrStreamMemory) {
		t.Skip("too little memory:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.Array = 16 << 20
	pieces := int64(len(p.Threads)) * (p.Array / 8 / streamPiece)
	for _, looks := range []int64{0, 1, 2 * pieces, 3 * pieces, 4 * pieces, 10 * pieces} {
		ctx := &endingContext{Context: t.Context()}
		ctx.left.Store(looks)
		if _, err := Stream(ctx, h, p, time.Now().Add(time.Hour)); !errors.Is(err, errStopped) {
			t.Errorf("stopped after %d looks: %v", looks, err)
		}
		if after := -ctx.left.Load(); after > int64(10*len(p.Threads)) {
			t.Errorf("stopped after %d looks: it looked %d times more", looks, after)
		}
	}
}

var errStopped = errors.New("a job came")

// endingContext ends after a number of looks at it.
type endingContext struct {
	context.Context
	left atomic.Int64
}

func (c *endingContext) Err() error {
	if c.left.Add(-1) < 0 {
		return errStopped
	}
	return nil
}

func TestStreamOnACPUThatIsNot(t *testing.T) {
	t.Parallel()
	p := &StreamPlan{Threads: []StreamThread{{CPU: 0}, {CPU: 5000}}, Array: 1 << 20}
	if _, err := Stream(t.Context(), probe.NewHost("/"), p, time.Now().Add(time.Second)); err == nil {
		t.Error("no error")
	}
}

func TestPlanStream(t *testing.T) {
	t.Parallel()
	tree := map[string]string{
		"sys/devices/system/cpu/online":         "0-3\n",
		"sys/devices/system/node/has_cpu":       "0-1\n",
		"sys/devices/system/node/node0/cpulist": "0,2\n",
		"sys/devices/system/node/node1/cpulist": "1,3\n",
		"proc/meminfo":                          "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n",
	}
	for cpu, siblings := range map[string]string{"0": "0", "1": "1", "2": "2-3", "3": "2-3"} {
		dir := "sys/devices/system/cpu/cpu" + cpu
		tree[dir+"/topology/thread_siblings_list"] = siblings + "\n"
		for index, of := range map[string][3]string{"0": {"1", "32K", siblings}, "3": {"3", "32768K", "0-3"}, "2": {"2", "1024K", siblings}} {
			tree[dir+"/cache/index"+index+"/level"], tree[dir+"/cache/index"+index+"/size"] = of[0]+"\n", of[1]+"\n"
			tree[dir+"/cache/index"+index+"/shared_cpu_list"] = of[2] + "\n"
		}
	}
	host := func(change map[string]string) *probe.Host {
		changed := maps.Clone(tree)
		maps.Copy(changed, change)
		return hostOf(t, changed)
	}
	p, err := PlanStream(host(nil))
	if err != nil || len(p.Threads) != 3 || p.Threads[1] != (StreamThread{1, 1}) || p.Threads[2] != (StreamThread{2, 0}) || p.Array != 44<<20 {
		t.Errorf("PlanStream = %+v, %v", p, err)
	}
	if _, err := PlanStream(host(map[string]string{"proc/meminfo": "MemAvailable: 500000 kB\n"})); !errors.Is(err, ErrStreamMemory) {
		t.Errorf("with little memory: %v", err)
	}
	for _, bad := range []map[string]string{
		{"proc/meminfo": "MemTotal: 1 kB\n"}, {"proc/meminfo": "MemAvailable: x kB\n"}, {"proc/meminfo": "-"},
		{"sys/devices/system/cpu/online": "none"}, {"sys/devices/system/cpu/online": ""}, {"sys/devices/system/cpu/online": "-"},
		{"sys/devices/system/node/has_cpu": "many"},
	} {
		if p, err := PlanStream(host(bad)); err == nil {
			t.Errorf("%v: %+v", bad, p)
		}
	}
	lone := map[string]string{"sys/devices/system/node/has_cpu": "-"}
	for name := range tree {
		if filepath.Base(filepath.Dir(filepath.Dir(name))) == "cache" {
			lone[name] = "-"
		}
	}
	if p, err := PlanStream(host(lone)); err != nil || p.Array != streamLeast || p.Threads[1].NUMA != 0 {
		t.Errorf("of a kernel that tells little: %+v, %v", p, err)
	}
}

// hostOf returns a node with some files. It omits a file with the text "-".
func hostOf(t *testing.T, files map[string]string) *probe.Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if text == "-" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return probe.NewHost(root)
}
