package main

import (
	"errors"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// What is known of this kind of node: the profiles that come with the program,
// and those of the site.

// platformsOf finds platforms in the profiles of a site and in ours.
func platformsOf(file string, data []byte) checks.PlatformOf {
	return func(device, subsystem string, gpus int) *checks.Platform {
		l, err := conf.ParsePlatforms(file, data)
		if err != nil {
			panic(err) // who has sent it has parsed it
		}
		p, err := l.Find(device, subsystem, gpus)
		if err != nil {
			panic(err) // ours are parsed by a test
		}
		return platformFigures(p)
	}
}

// platformFigures are the figures as checks know them.
func platformFigures(p *conf.Platform) *checks.Platform {
	if p == nil {
		return nil
	}
	return &checks.Platform{
		Name: p.Name, File: p.Pos.File, GPUs: p.GPUs(),
		PowerLimit:    p.Value(conf.FigurePowerLimit),
		GraphicsClock: p.Value(conf.FigureGraphicsClock), MemoryClock: p.Value(conf.FigureMemoryClock),
		PCIeGen: p.Value(conf.FigurePCIeGen), PCIeWidth: p.Value(conf.FigurePCIeWidth),
		MemoryNode:   p.Value(conf.FigureMemoryNode),
		RemappedRows: p.Value(conf.FigureRemappedRows),
		DRAMErrors:   p.Value(conf.FigureDRAMErrors), SRAMErrors: p.Value(conf.FigureSRAMErrors),

		NVLinks: p.Value(conf.FigureNVLinks), NVLinkBandwidth: p.Value(conf.FigureNVLinkBandwidth),
		NVLinkGPUs:   p.Value(conf.FigureNVLinkGPUs),
		NVSwitchGPUs: p.Value(conf.FigureNVSwitchGPUs), NVLinkDomain: p.Value(conf.FigureNVLinkDomain),

		NetworkPorts: p.Value(conf.FigureNetworkPorts), NetworkRate: p.Value(conf.FigureNetworkRate),
		NetworkPlanes: p.Value(conf.FigureNetworkPlanes), NetworkGPUs: p.Value(conf.FigureNetworkGPUs),
		NetworkPCIeGen: p.Value(conf.FigureNetworkPCIeGen), NetworkPCIeWidth: p.Value(conf.FigureNetworkPCIeWidth),
		NetworkTreeGen: p.Value(conf.FigureNetworkTreeGen),
		GPUNetwork:     p.Word(conf.FigureGPUNetwork),

		MemoryPeak: p.Value(conf.FigureMemoryPeak), BF16: p.Value(conf.FigureBF16),

		Floors: floorsOf(p),
	}
}

// floorsOf are the floors as checks know them.
func floorsOf(p *conf.Platform) (list []checks.Floor) {
	for _, f := range p.Floors {
		list = append(list, checks.Floor{
			Test: f.Test, Algorithm: f.Algorithm, Size: f.Size, Ranks: f.Ranks,
			Value: f.Value, Unit: f.Unit, Source: f.Source, Verified: f.Verified, File: f.Pos.String(),
		})
	}
	return list
}

func (r *oneRun) profilesRequest() *run.Request {
	path := r.set.ProfilesFile()
	return &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}
}

// useProfiles takes over what the site says of its platforms. One that has named
// a file wants it.
func (r *oneRun) useProfiles(o run.Outcome) error {
	path := r.set.ProfilesFile()
	data, there, err := r.contentOf(path, o, r.set.Get("PLATFORM_PROFILES") != "")
	if !there {
		return err
	}
	if _, err := conf.ParsePlatforms(path, data); err != nil {
		return err
	}
	r.set.Profiles, r.set.ProfilesFrom = data, path
	return nil
}

// platformGroups are the GPUs on the bus, by what they are.
func (r *oneRun) platformGroups() ([]checks.PlatformGroup, error) {
	r.pool.SetVars(r.set.WorkerVars())
	o := r.pool.Call(r.ctx, checks.Local, &run.Request{Op: run.OpHave, Name: string(probe.PartPCI), Line: "read the PCI bus"}, session.Reading)
	resp, err := o.Answer()
	switch {
	case err != nil:
		return nil, err
	case resp.Have.Value == nil:
		return nil, errors.New("read the PCI bus: the answer has no device")
	}
	v := r.set.WorkerVars()
	return checks.GroupPlatforms(resp.Have.Value.IDs, platformsOf(v.ProfilesFile, v.Profiles)), nil
}

// platformRows tell which platform this node is, a row for each kind of GPU.
func (r *oneRun) platformRows() (rows []verdict.Row) {
	const name = "platform"
	groups, err := r.platformGroups()
	if err != nil {
		return []verdict.Row{{Severity: checks.Unknown, Name: name, Message: err.Error()}}
	}
	for i := range groups {
		severity := checks.OK
		if groups[i].Platform == nil {
			severity = checks.Skip
		}
		rows = append(rows, verdict.Row{Severity: severity, Name: name, Message: groups[i].Tell()})
	}
	return rows
}
