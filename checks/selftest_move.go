package checks

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// A check that names the right GPU may have looked at no other: each scenario in
// which one GPU of eight is ill is tried with others in its place.

// moved is the scenario with another GPU for the one that is ill; nil if it is
// not about one GPU of a node whose GPUs are known.
func (s *Selftest) moved(to int) *Selftest {
	n, err := selftestNode(s.Node)
	if err != nil || n.nvml == nil || len(n.nvml.GPUs) != selftestGPUs {
		return nil
	}
	from := s.ill(n.nvml.GPUs)
	if from < 0 || from == to {
		return nil
	}
	a, b := names(&n.nvml.GPUs[from]), names(&n.nvml.GPUs[to])
	var pairs []string
	for i := range a {
		pairs = append(pairs, a[i], b[i], b[i], a[i])
	}
	swap := strings.NewReplacer(pairs...).Replace
	m := &Selftest{Check: s.Check, Name: s.Name, Vars: s.Vars, Past: s.Past, Node: s.Node, Error: s.Error}
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
	m.Files, m.Links, m.NVML = swapped(s.Files, swap), swapped(s.Links, swap), swapped(s.NVML, swap)
	return m
}

// ill is the one GPU that the check must name, -1 if it is not one alone.
func (s *Selftest) ill(gpus []probe.GPU) int {
	ill := -1
	for _, w := range s.Want {
		for i := range gpus {
			if strings.HasSuffix(w.Device, gpus[i].PCI) && w.Device != "" {
				if ill >= 0 && ill != i {
					return -1
				}
				ill = i
			}
		}
	}
	return ill
}

// names are what a GPU is called by, in text and in the names of files.
func names(g *probe.GPU) []string {
	return []string{
		g.PCI, g.UUID.Value, g.Serial.Value,
		fmt.Sprintf("gpu%d", g.Index), fmt.Sprintf("nvidia%d", g.Index), fmt.Sprintf("(%d)", g.Index), fmt.Sprintf("Minor: %d", g.Index),
	}
}

// swapped is a table with other keys and texts.
func swapped[T any](m map[string]T, swap func(string) string) map[string]T {
	if m == nil {
		return nil
	}
	out := make(map[string]T, len(m))
	for k, v := range m {
		out[swap(k)], _ = swappedValue(v, swap).(T)
	}
	return out
}

func swappedValue(v any, swap func(string) string) any {
	switch v := v.(type) {
	case string:
		return swap(v)
	case map[string]any:
		return swapped(v, swap)
	}
	return v
}
