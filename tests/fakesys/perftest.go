package fakesys

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Perftest is an ib_write_bw that prints the output of the real one, in the formats of Debian 12
// and 13, and measures nothing.
type Perftest struct {
	Version string // "4.5" (Debian 12) or "25.01" (Debian 13)
	CUDA    bool   // built with CUDA, unlike Debian's
	Old     bool   // it finds GPUs only by their indexes
	Rate    string // of every device, Gb/s; "" is 391.43

	// Acts are other behaviors of devices: "rate 212.40", "transfer", "transfer once", "late",
	// "link", "memory", "broken", "hang", "hang once", "silent", "half", "comma", "garbage",
	// "nodevice", "deaf", "loader", "apart", which reaches no other device; with "dmabuf" a GPU's
	// memory can be registered only by dma-buf.
	Acts map[string]string
}

// perftestScript is the program without its settings.
//
//go:embed ib_write_bw.sh
var perftestScript string

// Script returns the program.
func (p Perftest) Script() string {
	if p.Version == "" {
		p.Version = "25.01"
	}
	if p.Rate == "" {
		p.Rate = "391.43"
	}
	var acts strings.Builder
	for _, device := range slices.Sorted(maps.Keys(p.Acts)) {
		fmt.Fprintf(&acts, "  %s) act='%s' ;;\n", device, p.Acts[device])
	}
	cuda := ""
	if p.CUDA {
		cuda = "yes"
		if p.Old {
			cuda = "old"
		}
	}
	return strings.NewReplacer("@VERSION@", p.Version, "@CUDA@", cuda, "@RATE@", p.Rate, "  @ACTS@\n", acts.String()).Replace(perftestScript)
}

// AddPerftest adds ib_write_bw to a node.
func (n *Node) AddPerftest(p Perftest) *Node {
	n.Files["usr/bin/ib_write_bw"] = p.Script()
	return n
}
