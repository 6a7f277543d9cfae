package active

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// onSockets returns a node with GPUs on PCIe: n on each socket, each below a root port of its
// own. GPUs on one socket exchange 20 GB/s, on two 14.
func onSockets(title string, sizes []int, lines []string, want ...checks.Finding) checktest.Scenario {
	var socket []int
	for at, size := range sizes {
		socket = append(socket, slices.Repeat([]int{at}, size)...)
	}
	lines = append(checktest.Of("- busbw sendrecv = 20", "- busbw all_reduce = 10"), lines...)
	for i := range socket {
		for j := range i {
			if socket[i] != socket[j] {
				lines = append(lines, fmt.Sprintf("%d pair %d = 14", i, j))
			}
		}
	}
	s := withNCCL(checktest.OnGPUs(title, small("all_reduce"), nil, want...), lines...)
	for len(s.NVML.GPUs) < len(socket) {
		s.NVML.GPUs = append(s.NVML.GPUs, checktest.H100s().GPUs[len(s.NVML.GPUs)%8])
		i := len(s.NVML.GPUs) - 1
		g := &s.NVML.GPUs[i]
		g.Index, g.PCI, g.UUID = i, fakenvml.Address(i), nvml.Known(fakenvml.UUID(i))
	}
	s.NVML.GPUs = s.NVML.GPUs[:len(socket)]
	s.Files = maps.Clone(s.Files)
	maps.Copy(s.Files, fakenvml.Files(fakenvml.H100, len(socket)))
	for i := range socket {
		s.NVML.GPUs[i].NVLinks, s.NVML.GPUs[i].NVLink = nvml.Reading[[]bool]{}, nvml.NVLink{}
		s = below(s, i, fmt.Sprintf("0000:00:%02x.0", i+1), fmt.Sprintf("%d-%d", 8*socket[i], 8*socket[i]+7))
	}
	return s
}

// below puts a GPU below bridges, and near CPUs.
func below(s checktest.Scenario, i int, bridges, cpus string) checktest.Scenario {
	const devices = "sys/bus/pci/devices/"
	address, dir := fakenvml.Address(i), "devices/pci0000:00/"+bridges+"/"+fakenvml.Address(i)
	moved := map[string]string{"sys/" + dir + "/local_cpulist": cpus + "\n"}
	for name, content := range s.Files {
		if rest, ok := strings.CutPrefix(name, devices+address+"/"); ok {
			name = "sys/" + dir + "/" + rest
		}
		moved[name] = content
	}
	s.Links = maps.Clone(s.Links)
	if s.Links == nil {
		s.Links = map[string]string{}
	}
	s.Files, s.Links[devices+address] = moved, "../../../"+dir
	return s
}

var _ = checktest.Table("check_nccl", func(string) []checktest.Scenario {
	const kind = "exchange with each other GPU by pcie near, each way: far from its peers (median 20.0 GB/s)"
	slow := []string{"3 links = 10"}
	near := checks.Finding{Code: "nccl.peers", Severity: checks.Fail, Want: "at least 17.0 GB/s", Got: "10.0 GB/s"}
	far := checktest.GPUFinding(ncclName, 3, checks.Finding{Code: "nccl.peers", Severity: checks.Warn, Want: "at least 11.9 GB/s", Got: "10.0 GB/s"},
		"exchange with each other GPU by pcie far, each way: far from its peers (median 14.0 GB/s) (sockets can be connected differently)")
	warns := near
	warns.Severity = checks.Warn
	list := []checktest.Scenario{onSockets("PCIe, one slow GPU of a socket", []int{8}, slow, checktest.GPUFinding(ncclName, 3, near, kind))}
	for _, sizes := range [][]int{{2, 1}, {3, 1}, {3, 2}, {4, 2}, {4, 3}, {8, 7}, {2, 2}, {5, 5}} {
		list = append(list, onSockets(fmt.Sprintf("PCIe, GPUs of two sockets: %v", sizes), sizes, nil))
	}
	bridged := onSockets("bridges of NVLink, and one GPU left out", []int{3}, checktest.Of("- busbw sendrecv = 200", "2 links = 20"))
	for i, peer := range []string{"gpu1", "gpu0"} {
		bridged.NVML.GPUs[i].NVLink.PeerP2P = nvml.Known(nvml.PeerP2P{peer: nvml.P2POK})
	}
	hidden := onSockets("PCIe, one slow GPU of a virtual machine", []int{8}, slow,
		checktest.GPUFinding(ncclName, 3, warns, kind+" (the kernel does not report the bridges between the GPUs)"))
	hidden.Links, hidden.Files = nil, maps.Clone(withNCCL(checktest.OnGPUs("", nil, nil)).Files)
	lesser := onSockets("PCIe, one GPU in a slower slot", []int{8}, slow,
		checktest.GPUFinding(ncclName, 3, warns, kind+" (its slot is Gen5 x8, that of gpu0 Gen5 x16)"))
	lesser.NVML.GPUs[3].Link.MaxWidth = nvml.Known(8)
	mixed := onSockets("PCIe, two of another model", []int{5}, checktest.Of("0 links = 10", "1 links = 10"),
		ncclSays(ncclName, checks.Finding{Code: "nccl.mixed", Severity: checks.Warn, Want: "one model", Got: "2"}, "GPUs of several models work together"))
	for i := range 2 {
		mixed.NVML.GPUs[i].Name = nvml.Known("NVIDIA A10")
	}
	mesh := withNCCL(checktest.OnGPUs("NVLink of unknown width, one slow GPU", small("all_reduce"), nil, checktest.GPUFinding(ncclName, 3, checks.Finding{Code: "nccl.peers", Severity: checks.Warn, Want: "at least 331.6 GB/s", Got: "60.0 GB/s"},
		"exchange with each other GPU by nvlink of unknown width, each way: far from its peers (median 390.1 GB/s) (the number of NVLinks can differ between pairs)")), "3 links = 60")
	for i := range mesh.NVML.GPUs {
		mesh.NVML.GPUs[i].NVLink.Far, mesh.NVML.GPUs[i].NVLink.FarPCI = nvml.Reading[[]string]{}, nvml.Reading[[]string]{}
	}
	return append(list, bridged, mesh, hidden, lesser, mixed,
		onSockets("PCIe, one slow GPU of eight", []int{4, 4}, slow, far, checktest.GPUFinding(ncclName, 3, near, kind)))
})

// Pairs of a round share no part of their path, and every pair has its round.
func TestPairsApart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gpus, rounds int
		way          func(i, j int) []string
	}{
		"switches of NVLink":       {8, 7, func(int, int) []string { return nil }},
		"each a root port":         {8, 7, func(i, j int) []string { return checktest.Of(fmt.Sprint(i), fmt.Sprint(j)) }},
		"two sockets":              {10, 25, func(i, j int) []string { return across(i/5, j/5, "host") }},
		"two on each switch":       {8, 16, func(i, j int) []string { return across(i/2, j/2, fmt.Sprint(i/2), fmt.Sprint(j/2)) }},
		"unknown, each for itself": {5, 10, func(int, int) []string { return checktest.Of("host") }},
	} {
		met, rounds := map[[2]int]int{}, 0
		for _, round := range pairAll(c.gpus) {
			for _, part := range divideRound(round, c.way) {
				rounds++
				used := map[string]bool{}
				for i, partner := range part {
					if partner < 0 {
						continue
					}
					met[[2]int{i, partner}]++
					if part[partner] != i {
						t.Errorf("%s: %d has %d, which has %d", name, i, partner, part[partner])
					}
					if partner < i {
						continue
					}
					for _, p := range c.way(i, partner) {
						if used[p] {
							t.Errorf("%s: %v share %s", name, part, p)
						}
						used[p] = true
					}
				}
			}
		}
		if rounds != c.rounds {
			t.Errorf("%s: %d rounds, want %d", name, rounds, c.rounds)
		}
		for i := range c.gpus {
			for j := range c.gpus {
				if want := min(1, max(i-j, j-i)); met[[2]int{i, j}] != want {
					t.Errorf("%s: %d and %d meet %d times", name, i, j, met[[2]int{i, j}])
				}
			}
		}
	}
}

// across is a part of the path of pairs across two places only.
func across(i, j int, way ...string) []string {
	if i == j {
		return nil
	}
	return way
}

// A pair can share bridges above one of the two, and the connection of sockets.
func TestWaysOfPairs(t *testing.T) {
	t.Parallel()
	s := below(below(onSockets("", []int{4, 1}, nil), 0, "0000:00:01.0/0000:01:00.0/0000:02:00.0", "0-7"), 1, "0000:00:01.0/0000:01:00.0/0000:02:01.0", "0-7")
	h := probe.NewHost(s.Build(t))
	probe.SetLibraries(h, s.Libraries(t, t.TempDir()))
	driver, err := cuda.Open(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	var gpus []*loadedGPU
	for i, d := range driver.GPUs {
		gpus = append(gpus, &loadedGPU{gpu: &s.NVML.GPUs[i], c: &cuda.Context{GPU: d}})
	}
	for other, want := range map[int]string{
		1: "0000:02:00.0 0000:02:01.0",
		2: "0000:00:01.0 0000:01:00.0 0000:02:00.0 0000:00:03.0",
		4: "0000:00:01.0 0000:01:00.0 0000:02:00.0 0000:00:05.0 host",
	} {
		if got := strings.Join(gpus[0].way(gpus[other]), " "); got != want {
			t.Errorf("to %d by %q, want %q", other, got, want)
		}
	}
	gpus[0].gpu.NVLink.PeerP2P = nvml.Known(nvml.PeerP2P{"gpu4": nvml.P2POK})
	if got := gpus[0].way(gpus[4]); got != nil {
		t.Errorf("by NVLink: %v", got)
	}
}
