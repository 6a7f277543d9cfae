package selftest

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// A check that names the right GPU may have judged only that GPU. So each scenario with one faulty GPU
// of eight is also tried with another faulty GPU.

// Moved returns the scenario with another faulty GPU; nil if it does not have one faulty GPU of eight.
func (s *Scenario) Moved(to int) *Scenario {
	gpus := s.listGPUs()
	from := s.findFaulty(gpus)
	if from < 0 || from == to || s.Still {
		return nil
	}
	a, b := gpus[from], gpus[to]
	var pairs []string
	for i := range a {
		pairs = append(pairs, a[i], b[i], b[i], a[i])
	}
	swap := strings.NewReplacer(pairs...).Replace
	m := &Scenario{Check: s.Check, Name: s.Name, Vars: s.Vars, Past: s.Past, Slurm: s.Slurm, Node: s.Node, Error: s.Error, Platform: s.Platform, Job: s.Job.move(from, to)}
	for _, w := range s.Words {
		m.Words = append(m.Words, swap(w))
	}
	for _, f := range s.Lacks {
		m.Lacks = append(m.Lacks, swap(f))
	}
	for _, w := range s.Want {
		w.Device, w.Message = swap(w.Device), swap(w.Message)
		m.Want = append(m.Want, w)
	}
	m.Files, m.Links, m.NVML = swapTable(s.Files, swap), swapTable(s.Links, swap), swapTable(s.NVML, swap)
	return m
}

// move returns the job with one GPU instead of another.
func (j *Job) move(from, to int) *Job {
	if j == nil {
		return nil
	}
	m := *j
	m.GPUs = slices.Clone(j.GPUs)
	for i, n := range m.GPUs {
		switch n {
		case from:
			m.GPUs[i] = to
		case to:
			m.GPUs[i] = from
		}
	}
	return &m
}

// findFaulty returns the only GPU that the check must name, -1 if there is none or more than one.
func (s *Scenario) findFaulty(gpus [][]string) int {
	faulty := -1
	for _, w := range s.Want {
		for i, names := range gpus {
			if slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "0000:") && strings.Contains(w.Device, n) }) {
				if faulty >= 0 && faulty != i {
					return -1
				}
				faulty = i
			}
		}
	}
	return faulty
}

// listGPUs returns the eight GPUs of the node, each with its names in texts and file names; the first is
// the address without the function.
func (s *Scenario) listGPUs() (list [][]string) {
	n, err := ReadNode(s.Node)
	if err != nil {
		return nil
	}
	if n.NVML != nil {
		for i := range n.NVML.GPUs {
			g := &n.NVML.GPUs[i]
			list = append(list, append(listNames(g.PCI, i), g.UUID.Value, g.Serial.Value))
		}
	} else { // from the driver's files, in the order of the addresses
		for _, f := range slices.Sorted(maps.Keys(s.Files)) {
			dir, ok := strings.CutSuffix(f, "/information")
			if _, uuid, found := strings.Cut(s.Files[f], "GPU UUID:"); ok && found {
				uuid, _, _ = strings.Cut(uuid, "\n")
				list = append(list, append(listNames(path.Base(dir), len(list)), strings.TrimSpace(uuid)))
			}
		}
	}
	if len(list) != selftestGPUs {
		return nil
	}
	if _, ok := n.Links["sys/class/nvme/nvme0"]; ok {
		for i := range list {
			list[i] = append(list[i], RailNames(i)...)
		}
	}
	return list
}

// RailNames returns the other names with the number of a GPU on a node where each GPU has an adapter and
// a disk: addresses, names, serial numbers and GUIDs.
func RailNames(i int) (names []string) {
	for _, pattern := range []string{
		"0000:2%d:00", "0000:4%d:00", "0000:3%d:", "0000:5%d:", "0000:6%d:", "pci0000:3%d",
		"mlx5_%d", "ib%d", "rocep%ds0", "eth1%d", "nvme%d", "S6PENN0T00000%d", "00c5:1a0%d", "c5:1a:0%d", "c0a8:0%d01", "0x5a0%d",
	} {
		names = append(names, fmt.Sprintf(pattern, i))
	}
	return names
}

func listNames(pci string, index int) []string {
	return []string{
		strings.TrimSuffix(pci, ".0"),
		fmt.Sprintf("gpu%d", index), fmt.Sprintf("nvidia%d", index), fmt.Sprintf("(%d)", index), fmt.Sprintf("Minor: %d", index),
	}
}

// swapTable returns a table with changed keys and texts.
func swapTable[T any](m map[string]T, swap func(string) string) map[string]T {
	if m == nil {
		return nil
	}
	out := make(map[string]T, len(m))
	for k, v := range m {
		out[swap(k)], _ = swapValue(v, swap).(T)
	}
	return out
}

func swapValue(v any, swap func(string) string) any {
	switch v := v.(type) {
	case string:
		return swap(v)
	case map[string]any:
		return swapTable(v, swap)
	case []any:
		list := slices.Clone(v)
		for i := range list {
			list[i] = swapValue(list[i], swap)
		}
		return list
	}
	return v
}
