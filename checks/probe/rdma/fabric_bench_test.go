package rdma

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// BenchmarkHCAs reads state and error counters of all ports.
func BenchmarkHCAs(b *testing.B) {
	names := make([]string, 0, len(fakesys.Counters)+len(fakesys.HWCounters))
	for _, c := range fakesys.Counters {
		names = append(names, "counters/"+c)
	}
	for _, c := range fakesys.HWCounters {
		names = append(names, "hw_counters/"+c)
	}
	for _, ports := range []int{10, 64} {
		root := b.TempDir()
		if err := fakesys.Ports(ports).Write(root); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("state/%d", ports), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if list, err := HCAs(probe.NewHost(root), nil); err != nil || len(list) != ports {
					b.Fatal(len(list), err)
				}
			}
		})
		b.Run(fmt.Sprintf("counters/%d", ports), func(b *testing.B) {
			b.ReportAllocs()
			h := probe.NewHost(root)
			for b.Loop() {
				for i := range ports {
					if counts, err := IBCounters(h, fmt.Sprintf("mlx5_%d", i), "1", nil, names); err != nil || len(counts) != len(names) {
						b.Fatal(len(counts), err)
					}
				}
			}
		})
	}
}
