package bench

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// fabricChecks are all passive checks of the fabric that need no GPU's driver.
const fabricChecks = `
* || check_ib_ports
* || check_ib_errors
* || check_ib_link_flapping
* || check_ib_pkey 0xffff
* || check_ib_gid
* || check_ib_firmware
* || check_ib_pcie
* || check_ib_modules
* || check_ib_count
* || check_eth_link
* || check_net_route -d default
* || check_pcie nvme
* || check_pcie_aer
* || check_nvme_count 8
* || check_nvme
* || check_hw_topology
`

// fabricWords run a configuration on a node that is a tree.
func fabricWords(b *testing.B, node *fakesys.Node, conf string) []string {
	b.Helper()
	root := b.TempDir()
	node.Files["dev/kmsg"] = "6,1,1000000,-;Linux version\n"
	if err := node.Write(root); err != nil {
		b.Fatal(err)
	}
	return append(words(confFile(b, conf)), "HOSTROOT="+root)
}

// BenchmarkFabric is the whole fabric of a node with 8 GPUs and 10 HCAs in one run;
// what it costs above an empty configuration is the difference to /empty.
func BenchmarkFabric(b *testing.B) {
	for name, conf := range map[string]string{"empty": "\n", "all": fabricChecks} {
		b.Run(name, func(b *testing.B) {
			argv := fabricWords(b, fakesys.DGXH200(), conf)
			measure(b, argv...)
			if n, err := processes(argv); err == nil {
				b.ReportMetric(float64(n), "processes/run")
			}
		})
	}
}

// BenchmarkFabricPorts shows how state and counters of ports grow with their number.
func BenchmarkFabricPorts(b *testing.B) {
	for _, ports := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(ports), func(b *testing.B) {
			measure(b, fabricWords(b, fakesys.Ports(ports), "* || check_ib_ports\n* || check_ib_errors\n")...)
		})
	}
}

// BenchmarkIbstat runs the tools that other health checks ask for the same node: its
// /sys lies in the place of this machine's.
func BenchmarkIbstat(b *testing.B) {
	for _, tool := range []string{"ibstat", "ibstatus"} {
		b.Run(tool, func(b *testing.B) {
			if _, err := exec.LookPath(tool); err != nil {
				b.Skipf("skip: %v", err)
			}
			dir := b.TempDir()
			done := make(chan error)
			go func() { // its thread sees another /sys, and ends with it
				err := fakesys.DGXH200().Mount(dir)
				if err == nil {
					measure(b, tool)
				}
				done <- err
			}()
			if err := <-done; err != nil {
				b.Skipf("skip: %v", err)
			}
		})
	}
}
