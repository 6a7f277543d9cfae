package cpu

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// numaFake is a machine with two NUMA nodes of two CPUs. It has the location of each thread's 12
// MiB, and the result of moving them.
type numaFake struct {
	at    map[int]map[int]int64 // by thread: MiB by node
	moved map[int]int           // calls by node
	err   error
	stick bool // no page can be moved
	held  bool // no time is left to move pages
}

const fakeArray = 4 << 20

func (f *numaFake) places(t *testing.T, memory map[int]NUMAMemory, change map[string]string) *streamPlaces {
	t.Helper()
	tree := map[string]string{
		"sys/devices/system/node/has_cpu": "0-1\n", "sys/devices/system/node/node0/cpulist": "0,2\n", "sys/devices/system/node/node1/cpulist": "1,3\n",
	}
	maps.Copy(tree, change)
	p := &StreamPlan{Array: fakeArray}
	for cpu := range 4 {
		p.Threads = append(p.Threads, StreamThread{CPU: cpu, NUMA: cpu % 2})
	}
	s := newStreamPlaces(p, hostOf(t, tree))
	s.before = memory
	s.memory = func(node int) (NUMAMemory, error) {
		if m, ok := memory[node]; ok {
			return m, nil
		}
		return NUMAMemory{}, errors.New("no such node")
	}
	f.moved = map[int]int{}
	s.where = func(memory []byte) (map[int]int64, error) { // the first byte of a memory is its thread, the second its array
		at := map[int]int64{}
		if memory[1] == 0 { // in the first of the arrays
			for node, n := range f.at[int(memory[0])] {
				at[node] = n << 20
			}
		}
		return at, f.err
	}
	s.send = func(memory []byte, node int) {
		f.moved[node]++
		if !f.stick {
			f.at[int(memory[0])] = map[int]int64{node: 12}
		}
	}
	return s
}

// run does the work of the threads one after another.
func (f *numaFake) run(s *streamPlaces) []StreamFar {
	memories := map[int][][]byte{}
	for i := range s.home {
		for k := range 3 {
			memory := make([]byte, fakeArray)
			memory[0], memory[1] = byte(i), byte(k)
			memories[i] = append(memories[i], memory)
		}
		s.look(i, memories[i])
	}
	s.decide()
	for i := range s.home {
		s.bring(i, memories[i], func() bool { return f.held })
	}
	return s.listFar()
}

func TestStreamPlaces(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	much := NUMAMemory{Total: 1000 * mib, Free: 100 * mib}
	cached := NUMAMemory{Total: 1000 * mib, Free: 2 * mib, Cache: 60 * mib}
	full := NUMAMemory{Total: 1000 * mib, Free: 12 * mib, Cache: 10 * mib}
	well := map[int]map[int]int64{0: {0: 12}, 1: {1: 12}, 2: {0: 12}, 3: {1: 12}}
	away := func() map[int]map[int]int64 {
		at := maps.Clone(well)
		at[1], at[3] = map[int]int64{0: 12}, map[int]int64{1: 2, 0: 10}
		return at
	}
	for name, c := range map[string]struct {
		fake   numaFake
		memory map[int]NUMAMemory
		change map[string]string
		moved  bool // to node 1
		want   []StreamFar
	}{
		"all is where it belongs":         {fake: numaFake{at: well}, memory: map[int]NUMAMemory{0: much, 1: much}},
		"and nothing was free":            {fake: numaFake{at: well}, memory: map[int]NUMAMemory{0: full, 1: full}},
		"a few pages":                     {fake: numaFake{at: map[int]map[int]int64{1: {0: 0, 1: 12}}}, memory: map[int]NUMAMemory{1: much}},
		"the page cache gives it":         {fake: numaFake{at: away()}, memory: map[int]NUMAMemory{0: much, 1: cached}, moved: true},
		"no memory there":                 {fake: numaFake{at: away()}, memory: map[int]NUMAMemory{0: much, 1: full}, want: []StreamFar{{1, 0, 22}}},
		"it does not move":                {fake: numaFake{at: away(), stick: true}, memory: map[int]NUMAMemory{0: much, 1: cached}, moved: true, want: []StreamFar{{1, 0, 22}}},
		"no time to move it":              {fake: numaFake{at: away(), held: true}, memory: map[int]NUMAMemory{1: cached}, want: []StreamFar{{1, 0, 22}}},
		"its memory is not told":          {fake: numaFake{at: away()}, memory: map[int]NUMAMemory{0: much}, want: []StreamFar{{1, 0, 22}}},
		"the node is too small":           {fake: numaFake{at: away()}, memory: map[int]NUMAMemory{0: much, 1: {Total: 16 * mib, Free: mib}}},
		"on two others":                   {fake: numaFake{at: map[int]map[int]int64{1: {2: 4, 3: 8}}}, memory: map[int]NUMAMemory{1: full}, want: []StreamFar{{1, 3, 8}, {1, 2, 4}}},
		"not told where, much was free":   {fake: numaFake{at: away(), err: unix.EPERM}, memory: map[int]NUMAMemory{0: much, 1: much}},
		"not told where, little was free": {fake: numaFake{at: away(), err: unix.EPERM}, memory: map[int]NUMAMemory{0: much, 1: cached}, want: []StreamFar{{1, -1, 24}}},
		"not told where, nor the memory":  {fake: numaFake{at: away(), err: unix.EPERM}},
		"no NUMA nodes are told":          {fake: numaFake{at: away()}, memory: map[int]NUMAMemory{0: much, 1: cached}, change: map[string]string{"sys/devices/system/node/has_cpu": "-"}},
		"CPUs of a node are not told":     {fake: numaFake{at: away()}, memory: map[int]NUMAMemory{0: much, 1: cached}, change: map[string]string{"sys/devices/system/node/node1/cpulist": "-"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.fake.run(c.fake.places(t, c.memory, c.change))
			if !slices.Equal(got, c.want) || (c.fake.moved[1] > 0) != c.moved || c.fake.moved[0] > 0 {
				t.Errorf("far %v, want %v; moved to nodes %v", got, c.want, c.fake.moved)
			}
		})
	}
}

// The rates of a run include the location of its memory.
func TestStreamTellsFar(t *testing.T) {
	t.Parallel()
	h := probe.NewHost("/")
	cpus, err := AllowedCPUs(h)
	if err != nil {
		t.Fatal(err)
	}
	p := &StreamPlan{Threads: []StreamThread{{CPU: cpus[0]}}, Array: 1 << 20}
	s := newStream(t.Context(), p, time.Now().Add(time.Minute), h)
	s.places = newStreamPlaces(p, h)
	s.places.home[0], s.places.before = 7, nil
	s.places.where = func(memory []byte) (map[int]int64, error) { return map[int]int64{8: int64(len(memory))}, nil }
	sent := 0
	s.places.memory = func(int) (NUMAMemory, error) { return NUMAMemory{Free: 6 << 20}, nil }
	s.places.send = func(memory []byte, node int) {
		if sent++; node != 7 || len(memory) != 1<<20 {
			t.Errorf("%d bytes to node %d", len(memory), node)
		}
	}
	rates, err := s.run()
	if want := []StreamFar{{7, 8, 3}}; err != nil || !slices.Equal(rates.Far, want) || sent != 3 {
		t.Errorf("%+v, %v, moved %d times", rates, err, sent)
	}
}

// On this machine the kernel returns the location of touched pages only, and accepts a request to
// move them.
func TestPagesHere(t *testing.T) {
	t.Parallel()
	memory, err := unix.Mmap(-1, 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE)
	clear(memory[:4<<20])
	at, err := locatePages(memory)
	if err != nil {
		t.Skip("a kernel for one node, or a container:", err)
	}
	var sum int64
	for node, bytes := range at {
		sum += bytes
		movePages(memory, node)
	}
	if sum != 4<<20 || len(at) < 1 {
		t.Errorf("4 MiB lie at %v", at)
	}
	movePages(memory, 1000) // no such node
	if again, err := locatePages(memory); err != nil || len(again) == 0 {
		t.Errorf("%v, %v", again, err)
	}
	if at, err := locatePages(nil); err != nil || len(at) > 0 {
		t.Errorf("of no memory: %v, %v", at, err)
	}
}
