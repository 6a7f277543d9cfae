package active

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/topology"
)

// The plan of check_ib_bw: the ends of each test, and the tests that run at the same time.

// bwTest is one run of perftest.
type bwTest struct {
	from, to *fabric.Port
	near     topology.Nearness // of the GPU to the port, the farther of both
	test     rdma.Perftest
	first    *rdma.PerftestError // the error of the first run, if this is the second
}

// bwStart returns how long a program of perftest takes to start and to end: with a GPU it creates
// a context there.
func (c *ibBW) bwStart() time.Duration {
	switch {
	case c.start > 0:
		return c.start
	case c.GDR:
		return 20 * time.Second
	}
	return 8 * time.Second
}

// plan creates the tests.
func (b *bwRun) plan(ports []*fabric.Port) {
	b.reach = map[*fabric.Port]string{}
	ends := map[*fabric.Port]*rdma.PerftestEnd{}
	near := map[*fabric.Port]topology.Nearness{}
	ports = slices.DeleteFunc(slices.Clone(ports), func(p *fabric.Port) bool {
		end, ok := b.end(p)
		ends[p] = end
		return !ok
	})
	if b.c.GDR {
		ports = b.onGPUs(ports, ends, near)
	}
	b.ports = ports
	add := func(from, to *fabric.Port) {
		b.tests = append(b.tests, bwTest{from: from, to: to, near: min(near[from], near[to]), test: rdma.Perftest{
			Program: b.c.Program, Server: *ends[to], Client: *ends[from], Size: b.c.size(), Duration: b.c.Duration,
			Queues: b.countQueues(), Bidirectional: b.c.Both, Timeout: b.c.Duration + b.c.bwStart(),
		}})
	}
	for _, p := range b.pairUp(ports) {
		add(p[0], p[1])
		if p[0] != p[1] && !b.c.Both {
			add(p[1], p[0])
		}
	}
}

// countQueues returns the number of queue pairs: AzureHPC's floors for host memory were measured with
// two.
func (b *bwRun) countQueues() int {
	if b.c.GDR {
		return 1
	}
	return 2
}

// end returns the arguments for a port. If the port cannot be measured it reports the reason and
// returns false.
func (b *bwRun) end(p *fabric.Port) (*rdma.PerftestEnd, bool) {
	e := &rdma.PerftestEnd{Device: p.Device, Port: p.Port, GID: -1, CPUs: cpu.ParseCPUs(pci.LocalCPUs(b.env.Host, p.PCI))}
	if p.HCA.Driver == "efa" {
		b.report(p.Subject(), checks.Finding{Code: "ib.bw.kind", Severity: checks.Skip, Got: "EFA"}, "not measured: ib_write_bw has no transport for it")
		return e, false
	}
	b.at("read /sys/class/infiniband/%s/ports/%s/gids", p.Device, p.Port)
	if p.Layer != fabric.LayerEth {
		b.reach[p] = b.findIBSubnet(p)
		return e, true
	}
	v4 := func(g rdma.GID) bool { return netip.AddrFrom16(g.ID).Is4In6() }
	fit := func(g rdma.GID) bool { return g.Type == fabric.RoCEv2 && !g.LinkLocal() }
	list, err := rdma.IBGIDs(b.env.Host, p.Device, p.Port, func(g rdma.GID) bool { return fit(g) && v4(g) })
	for _, g := range list {
		if fit(g) && (e.GID < 0 || v4(g)) {
			e.GID = g.Index
			b.reach[p] = b.findSubnet(g)
		}
	}
	if e.GID < 0 {
		b.failures = true
		got := fabric.GidsText(list)
		if err != nil {
			got = checks.OneLine(err)
		}
		b.report(p.Subject(), checks.Finding{Code: "ib.bw.gid", Severity: checks.Unknown, Want: fabric.RoCEv2 + " with an IP address", Got: got}, "not measured: no usable GID")
		return e, false
	}
	return e, true
}

// onGPUs assigns each port its nearest GPU, and of several the one with the fewest ports. It
// returns the ports with a GPU that the test may use.
func (b *bwRun) onGPUs(ports []*fabric.Port, ends map[*fabric.Port]*rdma.PerftestEnd, near map[*fabric.Port]topology.Nearness) (fit []*fabric.Port) {
	gpus, err := topology.LocateGPUs(b.env)
	if err == nil && len(gpus) == 0 {
		err = errors.New("no GPU on the PCI bus")
	}
	if err != nil {
		b.failures = true
		b.report(checks.Device{}, checks.Finding{Code: "ib.bw.gpu", Severity: checks.Unknown, Got: checks.OneLine(err)}, "cannot locate the GPUs")
		return nil
	}
	used := make([]int, len(gpus))
	for _, p := range ports {
		nic := topology.LocateDevice(b.env, p.Device, p.PCI)
		best := 0
		for i := range gpus {
			a, now := gpus[i].Near(&nic), gpus[best].Near(&nic)
			if a > now || a == now && used[i] < used[best] {
				best = i
			}
		}
		used[best]++
		near[p] = gpus[best].Near(&nic)
		g, why := b.findGPU(gpus[best].PCI)
		if why != "" {
			b.report(p.Subject(), checks.Finding{Code: "ib.bw.gpu", Severity: checks.Skip, Got: gpus[best].String()}, "not measured: %s", why)
			continue
		}
		ends[p].GPU, ends[p].Env = b.selectGPU(g)
		fit = append(fit, p)
	}
	return fit
}

// findGPU returns the GPU at a PCI address, or why the test does not use it.
func (b *bwRun) findGPU(address string) (g *nvml.GPU, why string) {
	for _, f := range b.left {
		if f.Device.PCI == address {
			return nil, "its GPU is skipped (" + f.Got + ")"
		}
	}
	at := slices.IndexFunc(b.gpus, func(g *nvml.GPU) bool { return g.PCI == address })
	switch {
	case at < 0:
		return nil, "NVML does not list its GPU"
	case b.gpus[at].Modes.Compute.Value == "exclusive": // server and client are two processes on it
		return nil, "the compute mode of its GPU allows one process, and the test needs two"
	case !b.gpus[at].UUID.Known:
		return nil, "NVML does not report the UUID of its GPU"
	}
	return b.gpus[at], ""
}

// selectGPU returns the options and the environment that select a GPU for perftest: it is the only
// one that CUDA sees. Numbers of CUDA would not do: a GPU on the PCI bus need not have one. It
// overrides settings of a job.
func (b *bwRun) selectGPU(g *nvml.GPU) (args, env []string) {
	args = []string{"--use_cuda=0"}
	if b.byDMABuf() {
		args = append(args, "--use_cuda_dmabuf") // after the GPU: perftest depends on the order
	}
	return args, []string{"CUDA_VISIBLE_DEVICES=" + g.UUID.Value, cuda.NoMPS}
}

// byDMABuf reports whether GPU memory must be shared by dma-buf: no module for the older way is
// loaded, which is perftest's default.
func (b *bwRun) byDMABuf() bool {
	if !strings.Contains(b.help, "--use_cuda_dmabuf") {
		return false
	}
	b.at("read /proc/modules")
	loaded, err := probe.Modules(b.env.Host)
	return err == nil && !slices.ContainsFunc([]string{"nvidia_peermem", "nv_peer_mem"}, func(n string) bool {
		return slices.Contains(loaded, n) || probe.BuiltIn(b.env.Host, n)
	})
}

// nextRound selects tests that do not disturb each other: ports of one card share its PCIe link, and
// ports below one root port share the path to host memory.
func (b *bwRun) nextRound() (round, rest []bwTest) {
	busy := map[string]bool{}
	for _, t := range b.tests {
		keys := append(b.listShared(t.from), b.listShared(t.to)...)
		alone := b.c.Serial || t.first != nil || len(round) > 0 && round[0].first != nil
		if alone && len(round) > 0 || slices.ContainsFunc(keys, func(k string) bool { return busy[k] }) {
			rest = append(rest, t)
			continue
		}
		for _, k := range keys {
			busy[k] = true
		}
		round = append(round, t)
	}
	return round, rest
}

// listShared returns the parts that a port shares with others and that would slow it down.
func (b *bwRun) listShared(p *fabric.Port) []string {
	if p.PCI == "" {
		return []string{p.Device}
	}
	card, _, _ := strings.Cut(p.PCI, ".")
	keys := []string{card}
	if above := topology.LocateDevice(b.env, p.Device, p.PCI).Bridges; len(above) > 0 && !b.c.GDR {
		keys = append(keys, above[0])
	}
	return keys
}
