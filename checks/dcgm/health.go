package dcgm

import (
	"context"
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
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
		Do: map[string]string{
			"dcgm.watches": "dcgmi health -s a switches DCGM's watches on until nv-hostengine is restarted; with libdcgm.so.4 that is not needed.",
			"dcgm.fresh":   "Nothing: DCGM did not watch all that is asked for, and tells what is now, not what has been. dcgmi health -s a gives it a memory.",
		},
		DoOf: WhatToDo,
		Vars: Vars,
	})
}

// dcgmLetters are the systems by dcgmi's letters.
var dcgmLetters = map[rune]probe.DCGMSystem{
	'a': probe.DCGMAll, 'p': probe.DCGMPCIe, 'm': probe.DCGMMemory, 'i': probe.DCGMInfoROM, 't': probe.DCGMThermal | probe.DCGMPower,
	'n': probe.DCGMNVLink | probe.DCGMSwitchFatal | probe.DCGMSwitchNonFatal,
}

// dcgmSystemNames are words for the systems.
var dcgmSystemNames = map[probe.DCGMSystem]string{
	probe.DCGMPCIe: "PCIe", probe.DCGMNVLink: "NVLink", probe.DCGMPMU: "power management unit", probe.DCGMMCU: "microcontroller", probe.DCGMMemory: "memory",
	probe.DCGMSM: "SM", probe.DCGMInfoROM: "InfoROM", probe.DCGMThermal: "thermal", probe.DCGMPower: "power", probe.DCGMDriver: "driver",
	probe.DCGMSwitchNonFatal: "NVSwitch", probe.DCGMSwitchFatal: "NVSwitch", probe.DCGMConnectX: "ConnectX", probe.DCGMIMEX: "IMEX",
}

func (c *dcgmHealth) systems() (all probe.DCGMSystem, wrong *checks.Finding) {
	for _, letter := range c.Systems {
		s, ok := dcgmLetters[letter]
		if !ok {
			f := checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: "letters of apmitn", Got: c.Systems, Remedy: checks.FixConfig}
			f.Message = dcgmHealthName + ":  systems" + checks.WantGot(f)
			return 0, &f
		}
		all |= s
	}
	if all == 0 {
		all = probe.DCGMAll
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
		s.Findings = append(s.Findings, checks.Finding{Code: "dcgm.fresh", Severity: checks.OK,
			Message: fmt.Sprintf("%s:  %s did not watch all of it until now: it knows only what is at this moment", dcgmHealthName, strings.TrimSpace(s.Engine.Via()))})
	}
	return s.Findings
}
