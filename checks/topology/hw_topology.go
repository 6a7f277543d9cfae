package topology

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
)

// hwTopology checks how GPUs, adapters of the network and NUMA nodes lie to each
// other, by /sys. Each GPU has an adapter near to it: below one PCIe switch, below
// one root port, or on one NUMA node, as -l says, and -g GPUs at most share one;
// what is otherwise fails. Without -l the node's platform says it where the node
// has as many adapters as that has at best; of others one GPU is found that has no
// near adapter where all the rest have; these only warn, as does a NUMA node that
// cannot be true: one that is not told where others are, one that devices below
// one root port do not share, all GPUs of a board with NVSwitches on one of
// several. A virtual machine shows no switches, and is judged by NUMA nodes.
//
// FILE is a topology of NCCL's (NCCL_TOPO_FILE, as Azure has them for its virtual
// machines, or what NCCL_TOPO_DUMP_FILE has left on a good node) or one that lstopo
// wrote (lstopo --of xml FILE). Each GPU, adapter and NVMe disk in it has to be
// there, on its NUMA node, below its bridges as far as the node has them, and with
// as many lanes. What is there and not in it is warned of. NCCL writes NUMA node 0
// where the kernel tells none. AzureHPC's check_hw_topology is this with the FILE
// of its machine; it compares addresses and NUMA nodes.
//
//	gpu* || check_hw_topology
//	gpu* || check_hw_topology -l root-port -g 1
//	nd*  || check_hw_topology /opt/microsoft/ndv5-topo.xml
type hwTopology struct {
	Level string `opt:"l" toml:"level"`        // what a GPU and its adapter have in common: switch, root-port, numa, system (anything)
	Share int    `opt:"g" toml:"gpus_per_nic"` // most GPUs that share an adapter
	File  string `arg:"1" toml:"file"`         // the topology that the node should have
}

const hwTopologyName = "check_hw_topology"

func init() {
	checks.Register(checks.Info{
		Name:    hwTopologyName,
		Usage:   "[-l LEVEL] [-g GPUS] [FILE]",
		Summary: "GPUs, adapters and NUMA nodes lie to each other as they should",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwTopology{} },
		Do: map[string]string{
			"topology.none":       "Nothing: the node has no GPU on its PCI bus. If it should have some say so: check_gpu_count N.",
			"topology.hidden":     "The node shows no PCIe switch, as a virtual machine does not: ask for less, check_hw_topology -l numa, or give the FILE of this kind of machine.",
			"topology.far":        "nhc-gpu topo prints the map. An adapter is missing, or in another slot than on other nodes of this kind: see check_ib_count, lspci -tv. If the node was built so, say so: -l system.",
			"topology.shared":     "nhc-gpu topo prints the map. An adapter is missing, or in another slot than on other nodes of this kind. If the node was built so, say so with -g.",
			"topology.numa":       "The firmware tells a wrong NUMA node: compare the BIOS version and its NUMA settings (SNC, NPS) with those of other nodes; of a virtual machine see its definition, and numa=off on the kernel's command line.",
			"topology.unbalanced": "The firmware tells one NUMA node for all GPUs: compare the BIOS version and its NUMA settings (SNC, NPS) with those of other nodes; of a virtual machine see its definition.",
			"topology.file":       "The file in the line cannot be used: see the line that is named. It has to be XML of NCCL or of lstopo, of this kind of node, and root's. No node is drained for it.",
			"topology.missing":    "See lspci and dmesg: the device has fallen off the bus, its driver or virtual machine has lost it, or it is in another slot than the file has. If the file is of another kind of node, write it anew.",
			"topology.extra":      "The node has a device that the file has not: it is of another kind of node, or was added since. Write the file anew.",
			"topology.place":      "The device is in another slot than the file has: move it back, or write the file anew (nhc-gpu topo prints the map).",
			"topology.width":      "Reseat the device or its riser; compare with its peers (lspci -vv, LnkSta). If it stays the device or the slot is bad.",
		},
	})
}

func (c *hwTopology) Bind(words []string) error {
	if err := checks.BindTags(c, words); err != nil {
		return err
	}
	return c.Validate()
}

func (c *hwTopology) Validate() error {
	if c.Level != "" && c.Level != checks.NearSystem && needed(c.Level) == sameNode {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Level, Want: strings.Join([]string{checks.NearSwitch, checks.NearRootPort, checks.NearNUMA, checks.NearSystem}, ", ")}
	}
	if c.Share < 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Share), Want: "a number of GPUs"}
	}
	return nil
}

// topologyJudge is one run of the check.
type topologyJudge struct {
	*hwTopology

	env      *checks.Env
	gpus     []Located
	nics     []Located      // that carry jobs' traffic
	ports    int            // of them; the planes of one are one, and EFA's are none
	unread   int            // adapters that are there, nobody knows where
	blurred  int            // adapters of which only the bridges are known
	starting *fabric.Fabric // a boot has not brought all of its adapters up yet; else nil
	findings []checks.Finding
}

func (c *hwTopology) Run(_ context.Context, env *checks.Env) []checks.Finding {
	t := &topologyJudge{hwTopology: c, env: env}
	gpus, err := LocateGPUs(env)
	if err != nil {
		return checks.Unreadable(err)
	}
	t.gpus = gpus
	if len(gpus) == 0 && c.File == "" {
		return []checks.Finding{checks.Finding{Code: "topology.none", Severity: checks.Skip}.Describe(hwTopologyName, "no GPU on this node")}
	}
	skip := t.askNICs()
	if c.File != "" {
		t.judgeFile()
	}
	t.unreadGPUs()
	if c.File == "" || c.Level != "" || c.Share > 0 {
		skip = append(skip, t.judgeNear()...)
	}
	if c.File == "" {
		t.judgeNUMA()
	}
	if len(t.findings) == 0 && c.File == "" {
		return skip
	}
	if t.starting != nil {
		return t.starting.Settle(t.findings, "topology.far", "topology.shared", "topology.missing")
	}
	return t.findings
}

// vendorAmazon is the PCI vendor id of EFA.
const vendorAmazon = "1d0f"

// askNICs finds the adapters. What comes back is why there is nothing to judge.
func (t *topologyJudge) askNICs() (skip []checks.Finding) {
	f, findings := fabric.Ask(t.env, hwTopologyName)
	if f == nil {
		return t.sort(findings)
	}
	if _, settling := f.SinceBoot(); settling {
		if lacking, err := f.Lacking(); err != nil || len(lacking) > 0 {
			t.starting = f
		}
	}
	ports, findings := f.Judged(nil, "")
	skip = t.sort(findings)
	for _, p := range ports {
		known := slices.ContainsFunc(t.nics, func(n Located) bool { return n.Name == p.Device })
		if (!known || p.Plane == 0) && p.HCA.Vendor != vendorAmazon {
			t.ports++ // see Platform
		}
		if known {
			continue
		}
		n := LocateDevice(t.env, p.Device, p.HCA.PCI)
		if n.err != nil {
			t.findings = append(t.findings, f.Unknown(fabric.HCADevice(p.HCA), n.err))
		}
		switch {
		case n.err != nil && len(n.Bridges) == 0:
			t.unread++
			continue
		case n.err != nil:
			t.blurred++
		}
		t.nics = append(t.nics, n)
	}
	return skip
}

// sort keeps what could not be read, and hands back why there is nothing.
func (t *topologyJudge) sort(findings []checks.Finding) (skip []checks.Finding) {
	for i := range findings {
		if findings[i].Severity == checks.Skip {
			skip = append(skip, findings[i])
			continue
		}
		t.findings = append(t.findings, findings[i])
		t.unread++
	}
	return skip
}

// unreadGPUs tells of GPUs of which something could not be read.
func (t *topologyJudge) unreadGPUs() {
	for i := range t.gpus {
		if g := &t.gpus[i]; g.err != nil {
			t.findings = append(t.findings, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Device: g.device("gpu")}.
				Describe(hwTopologyName, "could not tell: %v", g.err))
		}
	}
}

func (a *Located) device(kind string) checks.Device {
	return checks.Device{Kind: kind, Name: a.Name, PCI: a.PCI}
}

func (a *Located) String() string { return a.Name + " " + a.PCI }

// report adds a finding about a device.
func (t *topologyJudge) report(d checks.Device, f checks.Finding, format string, args ...any) {
	f.Device = d
	t.findings = append(t.findings, f.Describe(hwTopologyName, format, args...))
}
