package topo

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/nhc-gpu/nhc-gpu/checks/topology"
)

// branch is a node of the printed tree: a NUMA node, a root port or a switch.
type branch struct {
	name    string // root port 0000:30:01.0
	devices []string
	below   []*branch
}

// at returns the child with a name, and adds it if there is none.
func (b *branch) at(name string) *branch {
	for _, c := range b.below {
		if c.name == name {
			return c
		}
	}
	c := &branch{name: name}
	b.below = append(b.below, c)
	return c
}

// place returns the branch of a device. The upstream port of a switch stands for the switch.
func (b *branch) place(a *topology.Located) *branch {
	for i, bridge := range a.Bridges {
		switch {
		case i == 0:
			b = b.at("root port " + bridge)
		case i%2 == 1:
			b = b.at("switch " + bridge)
		}
	}
	return b
}

func (b *branch) write(w *bytes.Buffer, indent string) {
	for _, d := range b.devices {
		for line := range strings.SplitSeq(d, "\n") {
			fmt.Fprintln(w, strings.TrimRight(indent+shown(line), " "))
		}
	}
	for _, c := range b.below {
		fmt.Fprintln(w, indent+c.name)
		c.write(w, indent+"  ")
	}
}

// writeTopology prints the topology for a person.
func writeTopology(w *bytes.Buffer, t *topology.Topology) error {
	for _, kind := range t.Kinds {
		fmt.Fprintln(w, kind)
	}
	for _, none := range []struct {
		count int
		what  string
	}{{len(t.GPUs), "GPU on the PCI bus"}, {len(t.NICs), "RDMA device"}, {len(t.Disks), "NVMe disk"}} {
		if none.count == 0 {
			fmt.Fprintln(w, "no "+none.what)
		}
	}
	treeOf(t).write(w, "")
	if len(t.GPUs) > 0 && len(t.NICs) > 0 {
		fmt.Fprintln(w)
		if err := writeNear(w, t); err != nil {
			return err
		}
	}
	for i, l := range t.Libraries {
		if i == 0 {
			fmt.Fprintln(w, "\nvendors' libraries and programs")
		}
		none := ""
		if !l.Found {
			none = "none: "
		}
		fmt.Fprintf(w, "  %-12s  %s\n", l.Thing, shown(none+l.Detail))
	}
	for _, d := range t.Doubts {
		fmt.Fprintln(w, "? "+shown(d))
	}
	return nil
}

// treeOf sorts the devices by NUMA node and PCI address; those without a NUMA node come last.
func treeOf(t *topology.Topology) *branch {
	type device struct {
		*topology.Located

		text string
	}
	var list []device
	width := 0
	each := func(a *topology.Located) { width = max(width, len(a.Name)) }
	for i := range t.GPUs {
		each(&t.GPUs[i])
	}
	for i := range t.NICs {
		each(&t.NICs[i].Located)
	}
	for i := range t.Disks {
		each(&t.Disks[i])
	}
	add := func(a *topology.Located, what, below string) {
		text := fmt.Sprintf("%-*s  %s", width, a.Name, strings.Join(slices.DeleteFunc([]string{a.PCI, what, linkOf(a)}, func(s string) bool { return s == "" }), ", "))
		list = append(list, device{a, text + below})
	}
	for i := range t.GPUs {
		add(&t.GPUs[i], t.GPUs[i].ID, "")
	}
	for i := range t.NICs {
		n := &t.NICs[i]
		var ports strings.Builder
		for _, p := range n.Ports {
			ports.WriteString("\n  " + portOf(&p))
		}
		what := n.Model
		if what == "" {
			what = n.ID
		}
		add(&n.Located, what, ports.String())
	}
	for i := range t.Disks {
		add(&t.Disks[i], "", "")
	}
	slices.SortStableFunc(list, func(a, b device) int {
		return strings.Compare(strings.Join(append(slices.Clip(a.Bridges), a.PCI), " "), strings.Join(append(slices.Clip(b.Bridges), b.PCI), " "))
	})
	root := new(branch)
	for _, n := range t.NUMA { // in order, also those without a device
		root.at(numaOf(t, n.ID))
	}
	slices.SortStableFunc(list, func(a, b device) int { return cmp.Compare(uint(a.NUMA), uint(b.NUMA)) }) // -1 is the largest
	for _, d := range list {
		at := root.at(numaOf(t, d.NUMA)).place(d.Located)
		at.devices = append(at.devices, d.text)
	}
	return root
}

// numaOf returns the line of a NUMA node.
func numaOf(t *topology.Topology, id int) string {
	if id < 0 {
		return "NUMA node unknown"
	}
	for _, n := range t.NUMA {
		if n.ID == id && n.CPUs != "" {
			return fmt.Sprintf("NUMA node %d, CPUs %s", id, n.CPUs)
		}
	}
	return fmt.Sprintf("NUMA node %d", id)
}

// linkOf returns the link of a device, "PCIe 5 x16", and its maximum if it is below that.
func linkOf(a *topology.Located) string {
	gen, most := generation(a.Speed), generation(a.MaxSpeed)
	if gen == "" && a.Width == 0 {
		return ""
	}
	text := "PCIe"
	if gen != "" {
		text += " " + gen
		if most != "" && gen != most {
			text += " of " + most
		}
	}
	if a.Width > 0 {
		text += fmt.Sprintf(" x%d", a.Width)
		if a.Width < a.MaxWidth {
			text += fmt.Sprintf(" of x%d", a.MaxWidth)
		}
	}
	return text
}

// generation returns the PCIe generation of a lane speed in GT/s, "" if it is unknown.
func generation(speed float64) string {
	return map[float64]string{2.5: "1", 5: "2", 8: "3", 16: "4", 32: "5", 64: "6", 128: "7"}[speed]
}

// portOf returns the line of a port.
func portOf(p *topology.LocatedPort) string {
	words := []string{p.Name}
	for _, w := range []string{p.Layer, p.State} {
		if w != "" {
			words = append(words, w)
		}
	}
	text := strings.Join(words, " ")
	if p.Rate != "" {
		text += " " + p.Rate + " Gb/s"
	}
	if p.Plane > 0 {
		text += fmt.Sprintf(", plane %d", p.Plane)
	}
	if len(p.NetDevs) > 0 {
		text += ", " + strings.Join(p.NetDevs, " ")
	}
	if p.Left != "" {
		text += "; ignored: " + p.Left
	}
	return text
}

// writeNear prints how each GPU is connected to each RDMA device.
func writeNear(w *bytes.Buffer, t *topology.Topology) error {
	var table bytes.Buffer
	tab := tabwriter.NewWriter(&table, 0, 4, 2, ' ', 0)
	for i := range t.NICs {
		fmt.Fprint(tab, "\t"+shown(t.NICs[i].Name))
	}
	fmt.Fprintln(tab, "\tNUMA\tCPUS")
	for i := range t.GPUs {
		g := &t.GPUs[i]
		numa := "-"
		if g.NUMA >= 0 {
			numa = fmt.Sprint(g.NUMA)
		}
		fmt.Fprintln(tab, strings.Join(append(append([]string{g.Name}, t.Near[i]...), numa, g.CPUs), "\t"))
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	var legend []string
	for _, word := range slices.Backward(topology.TopologyWords[:]) {
		legend = append(legend, word[0]+" "+word[1])
	}
	fmt.Fprintln(w, "connected through: "+strings.Join(legend, ", "))
	return nil
}

// shown replaces characters that could control the terminal.
func shown(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, text)
}
