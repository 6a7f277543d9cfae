package cpu

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestMemoryNear(t *testing.T) {
	t.Parallel()
	const dir = "sys/devices/system/node/"
	node := func(id, total, free string) string {
		return "Node " + id + " MemTotal:       " + total + " kB\nNode " + id + " MemFree:        " + free + " kB\nNode " + id + " HugePages_Total:     0\n"
	}
	cached := func(id string, kB ...int) (text string) {
		for i, name := range []string{"Active(file)", "Inactive(file)", "Dirty", "Writeback", "FilePages"} {
			text += fmt.Sprintf("Node %s %s: %d kB\n", id, name, append(kB, 900)[i])
		}
		return text
	}
	files := map[string]string{
		dir + "has_cpu": "0-1\n", dir + "node0/cpulist": "0-1\n", dir + "node1/cpulist": "2-3\n",
		dir + "node0/meminfo": node("0", "1000", "10"), dir + "node1/meminfo": node("1", "2000", "200"),
	}
	for name, c := range map[string]struct {
		cpus   []int
		change map[string]string
		want   NUMAMemory
		known  bool
		err    string
	}{
		"one node":       {cpus: []int{2, 3}, want: NUMAMemory{Total: 2000 << 10, Free: 200 << 10}, known: true},
		"part of a node": {cpus: []int{1}, want: NUMAMemory{Total: 1000 << 10, Free: 10 << 10}, known: true},
		"both":           {cpus: []int{0, 1, 2, 3}, want: NUMAMemory{Total: 3000 << 10, Free: 210 << 10}, known: true},
		"with files": {cpus: []int{1, 2}, change: map[string]string{
			dir + "node0/meminfo": node("0", "1000", "10") + cached("0", 100, 50, 20, 5),
			dir + "node1/meminfo": node("1", "2000", "200") + cached("1", 30, 0, 60, 0), // all of it is dirty
		}, want: NUMAMemory{Total: 3000 << 10, Free: 210 << 10, Cache: 125 << 10, Named: 1800 << 10}, known: true},
		"what the kernel counts": {cpus: []int{1}, change: map[string]string{
			dir + "node0/meminfo": node("0", "1000", "10") + "Node 0 FilePages: 500 kB\nNode 0 AnonPages: 90 kB\nNode 0 Slab: 7 kB\n",
		}, want: NUMAMemory{Total: 1000 << 10, Free: 10 << 10, Named: 597 << 10}, known: true},
		"no such CPU":     {cpus: []int{9}},
		"no CPUs":         {},
		"one is untold":   {cpus: []int{0, 2}, change: map[string]string{dir + "node1/meminfo": "-"}},
		"no nodes":        {cpus: []int{0}, change: map[string]string{dir + "has_cpu": "-"}},
		"garbage":         {cpus: []int{2}, change: map[string]string{dir + "node1/meminfo": "Node 1 MemTotal: x kB\nNode\n"}, err: "read /sys/devices/system/node/node1/meminfo: no MemTotal and MemFree lines"},
		"a list of words": {cpus: []int{2}, change: map[string]string{dir + "has_cpu": "none\n"}, err: "no list of NUMA nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := maps.Clone(files)
			maps.Copy(changed, c.change)
			got, known, err := MemoryNear(hostOf(t, changed), c.cpus)
			if got != c.want || known != c.known || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, %v, %v, want %v, %v, %q", got, known, err, c.want, c.known, c.err)
			}
		})
	}
}
