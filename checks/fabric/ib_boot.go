package fabric

import (
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// After a boot, links train and the subnet manager sets up the ports. That takes up to minutes
// and is not a fault.

// flapSettle is how long links come up and go down after a boot.
const flapSettle = 5 * time.Minute

// SinceBoot returns the time since the boot, and whether links may still be starting.
func (f *Fabric) SinceBoot() (up time.Duration, settling bool) {
	ticks, err := probe.Uptime(f.env.Host)
	if err != nil {
		return 0, false
	}
	up = time.Duration(ticks/probe.ClockTicks) * time.Second
	return up, up < flapSettle
}

// Settle returns findings. In the first minutes after a boot, except before a job, it replaces
// findings with these codes by one Skip: drivers and networks are starting.
func (f *Fabric) Settle(findings []checks.Finding, codes ...string) []checks.Finding {
	up, settling := f.SinceBoot()
	if !settling || f.beforeJob() {
		return findings
	}
	var starting []string
	findings = slices.DeleteFunc(findings, func(x checks.Finding) bool {
		wasThere := x.Code == "ib.ports.gone" && x.Severity == checks.Fail // it was up in this boot
		if x.Severity != checks.Fail && x.Severity != checks.Warn || wasThere || !slices.Contains(codes, x.Code) {
			return false
		}
		starting = append(starting, x.Text(f.Check))
		return true
	})
	if len(starting) == 0 {
		return findings
	}
	return append(findings, checks.Finding{Code: "ib.ports.boot", Severity: checks.Skip, Device: checks.Device{Kind: "ports"}}.
		Describe(f.Check, "not judged in the first %.0f s after a boot, booted %.0f s ago: %s", flapSettle.Seconds(), up.Seconds(), strings.Join(starting, "; ")))
}

// isStarting reports whether a port that is not up can still come up, since the node has just
// booted. Ethernet ports are disabled until their interface is configured.
func (f *Fabric) isStarting(p *Port) bool {
	if _, settling := f.SinceBoot(); !settling {
		return false
	}
	switch p.Phys {
	case checks.IBLinkUp:
		return p.State == checks.IBInit || p.State == checks.IBArmed
	case checks.IBPolling, checks.IBTraining:
		return p.State == checks.IBDown
	case checks.IBDisabled:
		return p.State == checks.IBDown && p.Layer == LayerEth
	}
	return false
}

// beforeJob reports whether the run decides on the start of a job.
func (f *Fabric) beforeJob() bool { return f.env.Job != nil && !f.env.Job.Ended }

// PortsNotUp reports whether a code means that a check could not judge ports, because they are
// not up or the node has just booted.
func PortsNotUp(code string) bool { return code == "ib.ports.boot" || code == "ib.inactive" }
