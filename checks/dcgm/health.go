package dcgm

import (
	"context"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/hostengine"
)

// dcgmHealth checks that DCGM's health watches have found no incident, in all systems or in some.
// The letters of SYSTEMS are those of dcgmi health -s: p PCIe, m memory, i InfoROM, t thermal and
// power, n NVLink and NVSwitch, a all.
//
// It reports each incident with its GPU and DCGM's code. An incident fails the node if DCGM calls it a
// failure and the code has class fail in a table (docs/reference/dcgm.md). DCGM's warnings, codes
// with a disputed threshold, and unknown codes only warn.
//
// It queries a running nv-hostengine (DCGM_ADDRESS), else an engine in its own process, or dcgmi if
// libdcgm.so.4 is missing. DCGM_MODE selects one of these: auto, standalone, embedded or dcgmi. An
// nv-hostengine that does not answer warns; with -f it fails.
//
//	gpu* || check_dcgm_health
//	gpu* || check_dcgm_health -s mn
type dcgmHealth struct {
	Systems string `opt:"s" toml:"systems"`   // systems to check, letters of pmitn; default: all
	Hung    bool   `opt:"f" toml:"hung_fail"` // fail instead of warn if nv-hostengine does not answer
}

const dcgmHealthName = "check_dcgm_health"

func init() {
	checks.Register(checks.Info{
		Name:    dcgmHealthName,
		Usage:   "[-s SYSTEMS] [-f]",
		Summary: "DCGM's health watches report no incident",
		Lane:    checks.DCGM,
		New:     func() checks.Check { return &dcgmHealth{} },
		Do: func() map[string]string {
			return map[string]string{
				"dcgm.watches": "Switch on DCGM's watches with dcgmi health -s a (until nv-hostengine is restarted); with libdcgm.so.4 that is not needed.",
				"dcgm.fresh":   "Nothing: DCGM has just started to watch some systems and reports only their current state. To keep a history, run dcgmi health -s a.",
			}
		},
		DoOf: WhatToDo,
		Vars: Vars,
	})
}

// dcgmLetters maps dcgmi's letters to systems.
var dcgmLetters = map[rune]hostengine.System{
	'a': hostengine.DCGMAll, 'p': hostengine.DCGMPCIe, 'm': hostengine.DCGMMemory, 'i': hostengine.DCGMInfoROM, 't': hostengine.DCGMThermal | hostengine.DCGMPower,
	'n': hostengine.DCGMNVLink | hostengine.DCGMSwitchFatal | hostengine.DCGMSwitchNonFatal,
}

// dcgmSystemNames are the names of systems in messages.
var dcgmSystemNames = map[hostengine.System]string{
	hostengine.DCGMPCIe: "PCIe", hostengine.DCGMNVLink: "NVLink", hostengine.DCGMPMU: "power management unit", hostengine.DCGMMCU: "microcontroller", hostengine.DCGMMemory: "memory",
	hostengine.DCGMSM: "SM", hostengine.DCGMInfoROM: "InfoROM", hostengine.DCGMThermal: "thermal", hostengine.DCGMPower: "power", hostengine.DCGMDriver: "driver",
	hostengine.DCGMSwitchNonFatal: "NVSwitch", hostengine.DCGMSwitchFatal: "NVSwitch", hostengine.DCGMConnectX: "ConnectX", hostengine.DCGMIMEX: "IMEX",
}

func (c *dcgmHealth) parseSystems() (all hostengine.System, wrong *checks.Finding) {
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
	systems, wrong := c.parseSystems()
	if wrong != nil {
		return []checks.Finding{*wrong}
	}
	if none := skipNoGPUs(env, dcgmHealthName); none != nil {
		return none
	}
	s, findings := Ask(ctx, env, dcgmHealthName, c.Hung)
	if s == nil {
		return findings
	}
	defer s.Engine.Close()
	health, err := s.Engine.Health(ctx, systems)
	if health == nil {
		health = &hostengine.Health{}
	}
	for _, i := range health.Incidents {
		s.Report(ctx, i.Entity, i.Failed, i.Code, checks.Before(", ", dcgmSystemNames[i.System], ""), i.Message)
	}
	if err != nil { // of one of several groups
		s.Failed("ask "+s.Engine.Via(), err)
		return s.Findings
	}
	env.Fact("%s", checks.Plural(len(health.Incidents), "incident"))
	if health.Fresh {
		s.Findings = append(s.Findings, checks.Finding{Code: "dcgm.fresh", Severity: checks.OK}.
			Describe(dcgmHealthName, "%s has just started to watch some systems: it reports only their current state", strings.TrimSpace(s.Engine.Via())))
	}
	return s.Findings
}
