package dcgm

import (
	"context"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/hostengine"
)

// dcgmHealth asks DCGM's health watches what they have noticed, of all systems or of
// some: p PCIe, m memory, i InfoROM, t thermal and power, n NVLink and NVSwitch, a all
// (the letters of dcgmi health -s). Each incident is told with its GPU and DCGM's code;
// whether it fails the node is up to DCGM and a table: what DCGM only warns of, codes
// whose threshold is disputed, and codes that nobody knows, are warned of. It asks an
// nv-hostengine that runs (DCGM_ADDRESS), an engine in this process where none does,
// or dcgmi where there is no libdcgm.so.4; DCGM_MODE is standalone, embedded or dcgmi
// instead of auto. An nv-hostengine that does not answer is warned of; -f: it fails.
//
//	gpu* || check_dcgm_health
//	gpu* || check_dcgm_health -s mn
type dcgmHealth struct {
	Systems string `opt:"s" toml:"systems"`   // letters: pmitn; "": all
	Hung    bool   `opt:"f" toml:"hung_fail"` // an engine that hangs fails the node
}

const dcgmHealthName = "check_dcgm_health"

func init() {
	checks.Register(checks.Info{
		Name:    dcgmHealthName,
		Usage:   "[-s SYSTEMS] [-f]",
		Summary: "DCGM's health watches have noticed nothing",
		Lane:    checks.DCGM,
		New:     func() checks.Check { return &dcgmHealth{} },
		Do: func() map[string]string {
			return map[string]string{
				"dcgm.watches": "dcgmi health -s a switches DCGM's watches on until nv-hostengine is restarted; with libdcgm.so.4 that is not needed.",
				"dcgm.fresh":   "Nothing: DCGM did not watch all that is asked for, and tells what is now, not what has been. dcgmi health -s a gives it a memory.",
			}
		},
		DoOf: WhatToDo,
		Vars: Vars,
	})
}

// dcgmLetters are the systems by dcgmi's letters.
var dcgmLetters = map[rune]hostengine.System{
	'a': hostengine.DCGMAll, 'p': hostengine.DCGMPCIe, 'm': hostengine.DCGMMemory, 'i': hostengine.DCGMInfoROM, 't': hostengine.DCGMThermal | hostengine.DCGMPower,
	'n': hostengine.DCGMNVLink | hostengine.DCGMSwitchFatal | hostengine.DCGMSwitchNonFatal,
}

// dcgmSystemNames are words for the systems.
var dcgmSystemNames = map[hostengine.System]string{
	hostengine.DCGMPCIe: "PCIe", hostengine.DCGMNVLink: "NVLink", hostengine.DCGMPMU: "power management unit", hostengine.DCGMMCU: "microcontroller", hostengine.DCGMMemory: "memory",
	hostengine.DCGMSM: "SM", hostengine.DCGMInfoROM: "InfoROM", hostengine.DCGMThermal: "thermal", hostengine.DCGMPower: "power", hostengine.DCGMDriver: "driver",
	hostengine.DCGMSwitchNonFatal: "NVSwitch", hostengine.DCGMSwitchFatal: "NVSwitch", hostengine.DCGMConnectX: "ConnectX", hostengine.DCGMIMEX: "IMEX",
}

func (c *dcgmHealth) systems() (all hostengine.System, wrong *checks.Finding) {
	for _, letter := range c.Systems {
		s, ok := dcgmLetters[letter]
		if !ok {
			return 0, new(checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: "letters of apmitn", Got: c.Systems, Remedy: checks.FixConfig}.
				Describe(dcgmHealthName, "systems"))
		}
		all |= s
	}
	if all == 0 {
		all = hostengine.DCGMAll
	}
	return all, nil
}

func (c *dcgmHealth) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	systems, wrong := c.systems()
	if wrong != nil {
		return []checks.Finding{*wrong}
	}
	if none := noGPUs(env, dcgmHealthName); none != nil {
		return none
	}
	s, findings := Ask(ctx, env, dcgmHealthName, c.Hung)
	if s == nil {
		return findings
	}
	defer s.Engine.Close()
	health, err := s.Engine.Health(ctx, systems)
	if err != nil {
		s.Failed("ask "+s.Engine.Via(), err)
		return s.Findings
	}
	for _, i := range health.Incidents {
		s.Report(ctx, i.Entity, i.Failed, i.Code, checks.Before(", ", dcgmSystemNames[i.System], ""), i.Message)
	}
	if health.Fresh {
		s.Findings = append(s.Findings, checks.Finding{Code: "dcgm.fresh", Severity: checks.OK}.
			Describe(dcgmHealthName, "%s did not watch all of it until now: it knows only what is at this moment", strings.TrimSpace(s.Engine.Via())))
	}
	return s.Findings
}
