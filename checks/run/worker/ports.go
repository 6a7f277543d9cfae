package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// A driver may hang when it reads the memory of a transceiver, most likely at a faulty port. So a
// separate process reads it; if it does not answer in time, the finding stays as it is.

// PortsName is argv[1] of the process that reads the transceivers of faulty ports.
const PortsName = "ports"

// portsStuck is how long such a process can run if it does not hang.
const portsStuck = 3 * time.Second

// askPorts reads the transceivers of ports and the health of their adapters. Answers that arrive
// before the time limit count. It reads no port twice in a run.
func askPorts(ctx context.Context, w *worker, ask []checks.PortAnswer, limit time.Duration) []checks.PortAnswer {
	var devs []string
	for _, a := range ask {
		if name := a.PCI + "=" + a.NetDev; !w.asked[name] {
			devs = append(devs, name)
		}
	}
	if len(devs) == 0 || hasOlder(PortsName, portsStuck) {
		return w.ports
	}
	if w.asked == nil {
		w.asked = map[string]bool{}
	}
	for _, name := range devs {
		w.asked[name] = true
	}
	host := probe.NewHost("/") // also if the checks inspect another node
	x := host.Run(ctx, probe.Command{
		Argv:    []string{wire.WorkerName, PortsName, w.root, strings.Join(devs, " ")},
		Program: "/proc/self/exe", Timeout: limit, Output: 1 << 20,
	})
	for line := range bytes.Lines(x.Output) {
		var a checks.PortAnswer
		if json.Unmarshal(line, &a) == nil && a.PCI != "" {
			w.ports = append(w.ports, a)
		}
	}
	return w.ports
}

// PrintPorts is the main function of that process. It prints a line for each port, first without
// its transceiver and then with it, because reading the transceiver's memory may hang.
func PrintPorts(root, devs string) int {
	host := probe.NewHost(root)
	out := json.NewEncoder(os.Stdout)
	var list []checks.PortAnswer
	for word := range strings.FieldsSeq(devs) {
		pci, dev, _ := strings.Cut(word, "=")
		a := checks.PortAnswer{PCI: pci, NetDev: dev}
		if host.Path("/") == "/" { // a recorded node has no driver
			a.Devlink, _ = network.DevlinkHealth(pci)
		}
		list = append(list, a)
		if out.Encode(a) != nil {
			return 1
		}
	}
	for _, a := range list {
		if a.NetDev == "" {
			continue
		}
		m, err := network.ReadModule(host, a.NetDev)
		if err != nil {
			continue
		}
		if a.Transceiver = m; out.Encode(a) != nil {
			return 1
		}
	}
	return 0
}
