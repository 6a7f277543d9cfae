package active

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/pcie"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/topology"
)

// The verdicts of check_ib_bw.

// bwFault is a test without a rate, and its error.
type bwFault struct {
	test     bwTest
	err      *rdma.PerftestError
	together int // number of tests at the same time
}

// bwWay is the kind of connection of a test: if one test of a kind has a rate, the others should
// have one, too.
type bwWay struct {
	pair  bool   // between two ports
	layer string // InfiniBand, Ethernet
	known bool   // over Ethernet: the IP subnet is known
}

func (b *bwRun) way(t *bwTest) bwWay {
	return bwWay{t.from != t.to, t.from.Layer, t.from.Layer == fabric.LayerEth && b.reach[t.from] != ""}
}

// judgeRound records the results of a round.
func (b *bwRun) judgeRound(round []bwTest, results []rdma.PerftestResult) {
	for i, t := range round {
		if err := results[i].Err; err != nil {
			b.faults = append(b.faults, bwFault{t, err, len(round)})
			continue
		}
		b.measure(&t, results[i].Rate, len(round))
		if t.first != nil {
			b.report(t.device(), checks.Finding{Code: "ib.bw.repeated", Severity: checks.Warn, Got: t.first.Text}, "the first run failed, a second run alone succeeded")
		}
	}
}

// takeRepeats returns the tests with an error that would fail their port. They run once more, each
// alone: a single error of perftest is not a measured fault, and the load can cause it. A test
// that hung while it was alone is not repeated.
func (b *bwRun) takeRepeats() (tests []bwTest) {
	b.faults = slices.DeleteFunc(b.faults, func(f bwFault) bool {
		_, severity := b.weigh(&f)
		if severity != checks.Fail || f.test.first != nil || f.err.Kind == rdma.PerftestHung && f.together == 1 {
			return false
		}
		f.test.first = f.err
		tests = append(tests, f.test)
		return true
	})
	return tests
}

// reportFaults reports the tests without a rate, after all rounds.
func (b *bwRun) reportFaults() {
	for _, f := range b.faults {
		b.reportFault(&f)
	}
}

// weigh decides on an error: a port fails if its own hardware is the cause, or if other ports
// have a rate with the same program. If none has one, the program or the network can be the
// cause.
func (b *bwRun) weigh(f *bwFault) (code string, severity checks.Severity) {
	switch f.err.Kind {
	case rdma.PerftestNoCUDA:
		return "ib.bw.cuda", checks.Unknown
	case rdma.PerftestAbsent, rdma.PerftestUnloadable, rdma.PerftestNoOption:
		return "ib.bw.program", checks.Unknown
	case rdma.PerftestTransfer, rdma.PerftestLink:
		if !b.worked[b.way(&f.test)] {
			return "ib.bw.way", checks.Unknown
		}
		return "ib.bw.failed", checks.Fail
	case rdma.PerftestHung, rdma.PerftestBroken, rdma.PerftestMemory, rdma.PerftestNoDevice:
		if len(b.measures) > 0 {
			return "ib.bw.failed", checks.Fail
		}
	}
	return "ib.bw.failed", checks.Unknown
}

func (b *bwRun) reportFault(f *bwFault) {
	code, severity := b.weigh(f)
	if code == "ib.bw.cuda" {
		b.reportNoCUDA()
		return
	}
	text := "no rate"
	switch f.err.Kind {
	case rdma.PerftestHung:
		text = fmt.Sprintf("no rate after %s", f.test.test.Timeout)
	case rdma.PerftestMemory:
		text = "host memory cannot be registered with the adapter"
		if b.c.GDR {
			text = "GPU memory cannot be registered with the adapter (nvidia_peermem, or dma-buf)"
		}
	}
	of := checks.Finding{Code: code, Severity: severity, Got: f.err.Text}
	switch {
	case code == "ib.bw.way":
		text = "no rate, on no port of this kind"
	case severity == checks.Fail && f.together == 0: // the error is from the first run
		of.Severity, of.Want = checks.Unknown, fmt.Sprintf("-t above %s", b.c.Time)
		text += ", and no time left to repeat it alone"
	}
	b.failures = b.failures || of.Severity != checks.Fail
	b.report(f.test.device(), of, "%s", text)
}

// device returns the port that writes, with the port that it writes to if that is another.
func (t *bwTest) device() checks.Device {
	d := t.from.Subject()
	if t.from != t.to {
		d.Name += " to " + t.to.Name()
	}
	return d
}

// measure records a rate. If neither the line nor the platform has a limit, it compares the rate
// with the port's own rate, which only warns.
func (b *bwRun) measure(t *bwTest, rate float64, together int) {
	what := "RDMA write"
	if b.c.GDR {
		what += " of GPU memory"
	}
	if b.c.Both {
		what += ", both ways at once"
	}
	b.worked[b.way(t)] = true
	m := measure{
		Test: "ib_write_bw", Algorithm: b.c.algorithm(t.from != t.to), Size: b.c.size(), Ranks: together, Device: t.device(),
		Model: t.from.HCA.Type + " " + t.from.Rate, What: what, Value: rate, Unit: "Gb/s", Least: b.c.Rate,
	}
	if b.c.GDR {
		m.Peers = t.near.String()
	}
	m.Unlike = b.compareSlot(t.from, rate)
	b.record(m)
	p, _ := checks.NodePlatform(b.env)
	if _, known := p.FloorOf(m.Test, m.Algorithm, m.Size, m.Ranks); known || m.Least > 0 || b.c.Both || b.c.size() < bwRateSize {
		return
	}
	if limit, of := b.findLimit(t.from); limit > 0 && rate < bwShare*limit {
		b.report(m.Device, checks.Finding{Code: "ib.bw.rate", Severity: checks.Warn, Want: m.atLeast(bwShare * limit), Got: rateText(rate)}, "%s is far below %s", what, of)
	}
}

// bwShare is the part of its rate that any port reaches: sichek's defaults require 360 of 400,
// 175 of 200 and 90 of 100 Gb/s (hca/config/default_spec.yaml), 0.875 at least. Messages smaller
// than bwRateSize, in bytes, reach less: AzureHPC requires 78 of 100 with 64 KiB.
const (
	bwShare    = 0.85
	bwRateSize = 1 << 20
)

// findLimit returns the highest possible rate of a port, in Gb/s, and its limit: the port's rate, or
// its PCIe link.
func (b *bwRun) findLimit(p *fabric.Port) (limit float64, of string) {
	limit, of = p.Gbps(), "the port's "+p.Rate+" Gb/s"
	at := topology.LocateDevice(b.env, p.Device, p.PCI)
	if link := at.Speed * float64(at.Width) * pci.DataShare; p.PCI != "" && link > 0 && link < limit {
		limit, of = link, fmt.Sprintf("its PCIe link of %g GT/s x%d", at.Speed, at.Width)
	}
	return limit, of
}

// compareSlot describes how the PCIe slot of a port is worse than that of a similar port, if that
// explains its rate. A link that lost lanes in a slot that has them explains nothing.
func (b *bwRun) compareSlot(p *fabric.Port, rate float64) string {
	if p.PCI == "" {
		return ""
	}
	able := func(l *pcie.Link) float64 { return l.BestSpeed() * float64(l.BestWidth()) }
	own := pcie.ReadLink(b.env, p.PCI)
	for _, other := range b.ports {
		if other.PCI == "" || other.HCA.Type != p.HCA.Type || other.Rate != p.Rate {
			continue
		}
		best := pcie.ReadLink(b.env, other.PCI)
		if limit := able(own) * pci.DataShare; limit > 0 && able(own) < able(best) && limit < p.Gbps() && rate >= bwShare*limit {
			return fmt.Sprintf("its slot is %g GT/s x%d, that of %s %g GT/s x%d", own.BestSpeed(), own.BestWidth(), other.Name(), best.BestSpeed(), best.BestWidth())
		}
	}
	return ""
}

func rateText(gbps float64) string { return rate(gbps, "Gb/s") }
