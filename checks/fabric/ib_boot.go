package fabric

import (
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// SinceBoot returns the time since the boot, and whether links may still be starting.
func (f *Fabric) SinceBoot() (up time.Duration, settling bool) { return f.env.SinceBoot() }

// Settle returns findings. In the first minutes after a boot, except before a job, it replaces
// findings with these codes by one Skip: drivers and networks are starting.
func (f *Fabric) Settle(findings []checks.Finding, codes ...string) []checks.Finding {
	skip := checks.Finding{Code: "ib.ports.boot", Device: checks.Device{Kind: "ports"}}
	return f.env.Settle(findings, f.Check, skip, func(x checks.Finding) bool {
		wasThere := x.Code == "ib.ports.gone" && x.Severity == checks.Fail // it was up in this boot
		return !wasThere && slices.Contains(codes, x.Code)
	})
}

// isStarting reports whether a port that is not up can still come up, since the node has just
// booted. Ethernet ports are disabled until their interface is configured. A state that cannot be read may be one
// of the start.
func (f *Fabric) isStarting(p *Port) bool {
	if _, settling := f.SinceBoot(); !settling {
		return false
	}
	waits, down := p.State == checks.IBInit || p.State == checks.IBArmed, p.State == checks.IBDown || p.State == ""
	switch p.Phys {
	case checks.IBLinkUp:
		return waits
	case checks.IBPolling, checks.IBTraining:
		return down
	case checks.IBDisabled:
		return down && p.Layer == LayerEth
	case unknownPhase: // hfi1's link is offline before it polls
		return p.State == checks.IBDown
	case "":
		return waits || p.State == checks.IBDown
	}
	return false
}

// PortsNotUp reports whether a code means that a check could not judge ports, because they are
// not up or the node has just booted.
func PortsNotUp(code string) bool { return code == "ib.ports.boot" || code == "ib.inactive" }
