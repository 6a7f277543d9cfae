package checks

import (
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// The kernel's names of a port's state and phys_state. A port that carries traffic is ACTIVE and
// LinkUp.
const (
	IBActive = "ACTIVE"
	IBDown   = "DOWN"
	IBInit   = "INIT"
	IBArmed  = "ARMED"

	IBLinkUp   = "LinkUp"
	IBPolling  = "Polling"
	IBTraining = "PortConfigurationTraining"
	IBDisabled = "Disabled"
)

// PortActive reports whether a port carries traffic.
func PortActive(p *rdma.IBPort) bool { return p.State == IBActive && p.Phys == IBLinkUp }

// PortRemedy returns the remedy for a port that is not up. A link that does not train, or trains
// at the wrong rate, needs a cable check; a link that is up but not active waits for the subnet
// manager.
func PortRemedy(p rdma.IBPort) Remedy {
	switch {
	case p.Err != nil:
		return NoRemedy
	case p.Phys == IBLinkUp && p.State != IBActive:
		return CheckFabric
	default:
		return CheckCable
	}
}

// DescribePort formats a port as check_hw_ib does: mlx5_0:1 ACTIVE LinkUp 400 Gb/sec.
func DescribePort(p rdma.IBPort) string {
	if p.Err != nil {
		return p.Name() + " " + OneLine(p.Err)
	}
	return strings.Join([]string{p.Name(), p.State, p.Phys, p.Rate, "Gb/sec"}, " ")
}
