package jobs

import (
	"errors"
	"path"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// The name of a counter includes its unit: without a suffix it is a number of events, .ns is
// nanoseconds, rows are rows of memory.
const (
	countDRAMCorrected   = "ecc.dram.corrected"
	countDRAMUncorrected = "ecc.dram.uncorrected"
	countSRAMCorrected   = "ecc.sram.corrected"
	countSRAMUncorrected = "ecc.sram.uncorrected"
	countRowsCorrected   = "rows.corrected"
	countRowsUncorrected = "rows.uncorrected"
	countRowsPending     = "rows.pending"
	countRowsFailed      = "rows.failed"
	countPagesSBE        = "pages.retired.sbe"
	countPagesDBE        = "pages.retired.dbe"
	countReplays         = "pcie.replays"
	countPowerCap        = "throttle.power_cap.ns"
	countThermal         = "throttle.thermal.ns"
	countHardwareThermal = "throttle.hw_thermal.ns"
	countPowerBrake      = "throttle.power_brake.ns"
	countLinkFlit        = "nvlink.crc_flit"
	countLinkData        = "nvlink.crc_data"
	countLinkReplay      = "nvlink.replays"
	countLinkRecovery    = "nvlink.recoveries"
	countLinkFailed      = "nvlink.recoveries_failed"
	countLinkEffective   = "nvlink.effective"
	countLinkReceive     = "nvlink.receive"
	countLinkOverruns    = "nvlink.overruns"
	countLinkMalformed   = "nvlink.malformed"
	countLinkIntegrity   = "nvlink.integrity"
	countLinkDiscards    = "nvlink.discards"
	countAERCorrected    = "aer.corrected"
	countAERNonFatal     = "aer.nonfatal"
	countAERFatal        = "aer.fatal"
)

// CountGroups are the parts of NVML's snapshot that [GPUCounters] needs.
const CountGroups = nvml.GroupECC | nvml.GroupRows | nvml.GroupPCIe | nvml.GroupThrottle | nvml.GroupNVLinkErrors

// GPUCounters returns the counters of the GPUs that NVML can read. Counters that a GPU or its
// driver does not support are absent, and so are unreadable ones, which the checks report.
func GPUCounters(n *nvml.Snapshot) (list []checks.Counters) {
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.Err != nil {
			continue
		}
		c := checks.Counters{Device: checks.GPUDevice(g), Values: map[string]uint64{}}
		number(c, countDRAMCorrected, g.ECC.DRAM.Corrected)
		number(c, countDRAMUncorrected, g.ECC.DRAM.Uncorrected)
		number(c, countSRAMCorrected, g.ECC.SRAM.Corrected)
		number(c, countSRAMUncorrected, g.ECC.SRAM.Uncorrected)
		if r := g.Rows.Remapped; r.Known && r.Err == nil {
			c.Values[countRowsCorrected], c.Values[countRowsUncorrected] = uint64(max(r.Value.Corrected, 0)), uint64(max(r.Value.Uncorrected, 0))
			c.Values[countRowsPending], c.Values[countRowsFailed] = bit(r.Value.Pending), bit(r.Value.Failed)
		}
		number(c, countPagesSBE, g.Rows.RetiredSBE)
		number(c, countPagesDBE, g.Rows.RetiredDBE)
		number(c, countReplays, g.Link.Replays)
		number(c, countPowerCap, g.Throttle.PowerCap)
		number(c, countThermal, g.Throttle.Thermal)
		number(c, countHardwareThermal, g.Throttle.HardwareThermal)
		number(c, countPowerBrake, g.Throttle.PowerBrake)
		number(c, countLinkFlit, g.NVLinkErrors.CRCFlit)
		number(c, countLinkData, g.NVLinkErrors.CRCData)
		number(c, countLinkReplay, g.NVLinkErrors.Replay)
		number(c, countLinkRecovery, g.NVLinkErrors.Recovery)
		for _, name := range linkCounts {
			if n, ok := g.NVLinkErrors.Sums.Value[strings.TrimPrefix(name, "nvlink.")]; ok {
				c.Values[name] = n
			}
		}
		list = append(list, c)
	}
	return list
}

// linkCounts are the counters that no driver sums up for NVLink 5, and some drivers do not for
// NVLink 4. Symbol errors that FEC corrects are not errors.
var linkCounts = []string{
	countLinkReplay, countLinkRecovery, countLinkFailed, countLinkEffective, countLinkReceive, countLinkOverruns, countLinkMalformed, countLinkIntegrity, countLinkDiscards,
}

// number copies a known reading, not one that lacks a part: it would jump when the part is back.
func number[T int | uint64](c checks.Counters, name string, r nvml.Reading[T]) {
	if r.Known && r.Err == nil && r.Value >= 0 {
		c.Values[name] = uint64(r.Value)
	}
}

func bit(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

// NodeCounters returns the kernel's counters: PCIe errors of GPUs (AER), and errors of InfiniBand
// and RoCE ports. err reports unreadable counters; the others are returned.
func NodeCounters(h *probe.Host) (list []checks.Counters, err error) {
	views, err := nvidia.ReadGPUViews(h)
	for _, g := range views.PCI {
		a, known, readErr := pci.ReadAER(h, g.Address)
		err = errors.Join(err, readErr)
		if known && readErr == nil { // those after an unreadable file are 0, and would jump
			list = append(list, checks.Counters{Device: checks.Device{Kind: "gpu", PCI: g.Address}, Values: map[string]uint64{
				countAERCorrected: a.Corrected, countAERNonFatal: a.NonFatal, countAERFatal: a.Fatal,
			}})
		}
	}
	adapters, portErr := rdma.HCAs(h, nil)
	err = errors.Join(err, portErr)
	for _, a := range adapters {
		for _, p := range a.Ports {
			counts, readErr := rdma.IBCounters(h, p.Device, p.Port, p.NetDevs, fabric.IBCountedNames())
			err = errors.Join(err, readErr)
			c := checks.Counters{Device: checks.Device{Kind: "port", Name: p.Name(), PCI: p.PCI}, Values: map[string]uint64{}}
			for name, n := range counts {
				c.Values["ib."+path.Base(name)] = n
			}
			list = append(list, c)
		}
	}
	return list, err
}

func init() { checks.RegisterRoutine(countPowerCap) }
