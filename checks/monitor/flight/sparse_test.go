package flight

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// losses lose samples, as a driver or a kernel that answers slowly does. of returns whether the sample of a device,
// or of the node ("") at a time is lost.
var losses = map[string]func(n *node) func(device string, t uint32) bool{
	"half at random": func(n *node) func(string, uint32) bool {
		return func(string, uint32) bool { return n.rand.Float64() < 0.5 }
	},
	"five of six at random": func(n *node) func(string, uint32) bool {
		return func(string, uint32) bool { return n.rand.Float64() < 5.0/6 }
	},
	"GPUs every 10 s": func(*node) func(string, uint32) bool {
		return func(device string, t uint32) bool { return strings.HasPrefix(device, "gpu") && t%10 != 0 }
	},
	"one GPU every 10 s": func(*node) func(string, uint32) bool {
		return func(device string, t uint32) bool { return device == "gpu3" && t%10 != 0 }
	},
	"the first GPU every 7 to 10 s": func(n *node) func(string, uint32) bool {
		next := uint32(0)
		return func(device string, t uint32) bool {
			if device != "gpu0" || t >= next {
				if device == "gpu0" {
					next = t + 7 + n.rand.Uint32N(4)
				}
				return false
			}
			return true
		}
	},
	"gaps of a minute": func(n *node) func(string, uint32) bool {
		return func(_ string, t uint32) bool { return t%300 < 60 || n.rand.Float64() < 0.3 }
	},
}

// lose loses the samples of a second.
func (n *node) lose(t uint32, lost func(device string, t uint32) bool) {
	for _, gpu := range n.gpus {
		if lost(gpu, t) {
			for _, name := range OfGPU {
				if n.Of(gpu, name) != nil {
					n.Set(gpu, name, t, Unknown)
				}
			}
		}
	}
	for _, p := range n.Names(Data) {
		if lost(p, t) {
			n.Set(p, Data, t, Unknown)
		}
	}
	if lost("", t) {
		for _, name := range []Name{StallIO, StallMem, Blocked, Stopped, Processes} {
			n.Set(Slot(0), name, t, Unknown)
		}
	}
}

// Samples that are lost make no healthy workload look faulty.
func TestSparse(t *testing.T) {
	t.Parallel()
	testSparse(t, 1)
}

// The same for 24 hours.
func TestSparseDay(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	testSparse(t, 24)
}

// A hang is found with a sample of each GPU every 10 s, too, and not before it has lasted a minute.
func TestSparseHang(t *testing.T) {
	t.Parallel()
	const begin = 2000
	n := newNode(begin-Seconds, begin+120, 1)
	jobs := []Job{{ID: "7", GPUs: n.gpus, All: true, OneNode: true}}
	for at := n.From; at <= n.To; at++ {
		n.add(at, Slot(0), "7", func(int) load { return map[bool]load{true: spin, false: work}[at >= begin] }, 0.5, 20)
		n.lose(at, losses["GPUs every 10 s"](n))
	}
	found := uint32(0)
	for end := uint32(begin); end <= begin+100 && found == 0; end++ {
		if list := Detect(n.Part(end-Seconds+1, end), jobs); len(list) > 0 {
			if found = end - begin; list[0].Code != "job.hang" || len(list) > 1 {
				t.Errorf("%+v", list)
			}
		}
	}
	if found < 60 || found > 75 {
		t.Errorf("found after %d s", found)
	}
}

func testSparse(t *testing.T, hours int) {
	t.Helper()
	all := []Job{{ID: "7", GPUs: newNode(1, 1, 0).gpus, All: true, OneNode: true}}
	fills := maps.Clone(special)
	for name, of := range healthy {
		fills[name] = func(n *node, at uint32) {
			n.add(at, Slot(0), "7", func(gpu int) load { return of(n, at, gpu) }, 0.5, 20)
		}
	}
	for name, fill := range fills {
		for how, loss := range losses {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				all := slices.Clone(all)
				all[0].OneNode = !strings.Contains(name, "another node")
				var begun *node
				var lost func(string, uint32) bool
				if seen := day(t, hours, all, func(n *node, at uint32) {
					if begun != n {
						begun, lost = n, loss(n)
					}
					fill(n, at)
					n.lose(at, lost)
				}); len(seen) > 0 {
					t.Errorf("%v", seen)
				}
			})
		}
	}
}
