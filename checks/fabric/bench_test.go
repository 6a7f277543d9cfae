package fabric

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// fabricBench are all passive checks of the fabric that need no GPU driver.
var fabricBench = []string{
	"check_ib_ports", "check_ib_errors", "check_ib_link_flapping", "check_ib_pkey 0xffff", "check_ib_gid", "check_ib_firmware", "check_ib_pcie", "check_ib_modules",
	"check_ib_count", "check_eth_link", "check_net_route -d default", "check_pcie nvme", "check_pcie_aer", "check_nvme_count 8", "check_nvme", "check_hw_topology",
}

// BenchmarkFabricChecks measures the whole fabric of a node with 8 GPUs and 10 adapters in one
// worker, and each check alone, which then reads the shared data itself.
func BenchmarkFabricChecks(b *testing.B) {
	sys := fakesys.DGXH200()
	sys.Files["dev/kmsg"] = "6,1,1000000,-;Linux version\n"
	root := b.TempDir()
	if err := sys.Write(root); err != nil {
		b.Fatal(err)
	}
	run := func(b *testing.B, lines []string) {
		b.ReportAllocs()
		for b.Loop() {
			host := probe.NewHost(root)
			host.SetPast("/past")
			for _, line := range lines {
				words := strings.Fields(line)
				info, _ := checks.Lookup(words[0])
				c := info.New()
				if err := checks.Bind(c, words[1:]); err != nil {
					b.Fatal(err)
				}
				env := &checks.Env{Host: host, Line: line, Doing: func(string) {}, Vars: map[string]string{}}
				if found := c.Run(b.Context(), env); checks.Worst(found) > checks.Skip {
					b.Fatal(fmt.Sprint(found))
				}
			}
		}
	}
	b.Run("all", func(b *testing.B) { run(b, fabricBench) })
	for _, line := range fabricBench {
		b.Run(strings.Fields(line)[0], func(b *testing.B) { run(b, []string{line}) })
	}
}
