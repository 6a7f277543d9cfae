package flight

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// units are the units of series in a table.
var units = map[Name]string{
	Busy: "%", Memory: "%", Power: "W", Clock: "MHz", Margin: "C", Used: "MiB", NVLink: "MB/s", PCIe: "MB/s", Slow: "%", Capped: "%",
	SM: "%", Tensor: "%", DRAM: "%",
	Data: "MB/s", Wait: "/s", Faults: "/s", Resident: "MiB", StallCPU: "%", StallMem: "%", StallIO: "%",
}

// Unit returns the unit of a series, "" for a number.
func Unit(n Name) string { return units[n] }

// Table returns the means of a window for a job's GPUs, the ports of the node, and the job itself, a line
// each. A series that is unknown for all devices has no column.
func (w *Window) Table(job Job) string {
	var b strings.Builder
	part := func(title string, devices []string, names []Name) {
		names = slices.DeleteFunc(slices.Clone(names), func(n Name) bool {
			return n == ID || n == Reached || !slices.ContainsFunc(devices, func(d string) bool { return slices.ContainsFunc(w.Of(d, n), known) })
		})
		if len(names) == 0 {
			return
		}
		out := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprint(out, title)
		for _, n := range names {
			fmt.Fprintf(out, "\t%s", n)
		}
		fmt.Fprintln(out)
		for _, d := range devices {
			if title == "job" {
				d = job.ID
			}
			fmt.Fprint(out, d)
			for _, n := range names {
				device := d
				if title == "job" {
					device = devices[0]
				}
				if v, count := average(w.Of(device, n)); count > 0 {
					fmt.Fprintf(out, "\t%s", strings.TrimSpace(fmt.Sprintf("%.0f %s", v, units[n])))
				} else {
					fmt.Fprint(out, "\t-")
				}
			}
			fmt.Fprintln(out)
		}
		out.Flush()
	}
	part("GPU", job.GPUs, OfGPU)
	part("port", w.Names(Data), OfPort)
	if slot := w.SlotOf(job.ID); slot != "" {
		part("job", []string{slot}, OfJob)
	}
	return b.String()
}
