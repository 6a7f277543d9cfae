package topo

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/topology"
)

// Names from the kernel cannot control the terminal, and paths of any length are drawn.
func TestTopologyOfOddNode(t *testing.T) {
	t.Parallel()
	far := topology.Located{Name: "gpu0", PCI: "0000:c9:00.0", NUMA: 5, Bridges: []string{"0000:c0:01.0", "0000:c1:00.0", "0000:c2:00.0", "0000:c3:00.0", "0000:c4:00.0"}}
	soft := topology.LocatedNIC{Located: topology.Located{Name: "rxe\x1b[2J\xff", NUMA: -1}, Ports: []topology.LocatedPort{{Name: "rxe0:1", State: "\x07ACTIVE", Left: "in software"}}}
	var b bytes.Buffer
	if err := writeTopology(&b, &topology.Topology{GPUs: []topology.Located{far}, NICs: []topology.LocatedNIC{soft}, Near: [][]string{{"SYS"}}, Doubts: []string{"read /x\n: \x1b"}}); err != nil {
		t.Fatal(err)
	}
	want := `no NVMe disk
NUMA node 5
  root port 0000:c0:01.0
    switch 0000:c1:00.0
      switch 0000:c3:00.0
        gpu0      0000:c9:00.0
NUMA node unknown
  rxe?[2J?
    rxe0:1 ?ACTIVE; ignored: in software

      rxe?[2J?  NUMA  CPUS
gpu0  SYS       5
connected through: PIX a PCIe switch, PXB a root port, PHB a PCIe host bridge, NODE a NUMA node, SYS only the node
? read /x?: ?
`
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
