package node

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// This file supplies the platforms: the built-in profiles and those of the site.

// PlatformsOf finds platforms in the site's profiles and in the built-in ones.
func PlatformsOf(file string, data []byte) checks.PlatformOf {
	return func(device, subsystem string, gpus int) *checks.Platform {
		l, err := conf.ParsePlatforms(file, data)
		if err != nil {
			panic(err) // the sender has parsed it
		}
		p, err := l.Find(device, subsystem, gpus)
		if err != nil {
			panic(err) // a test parses the built-in profiles
		}
		return PlatformFigures(p)
	}
}

// PlatformFigures converts a platform to the form that checks use.
func PlatformFigures(p *conf.Platform) *checks.Platform {
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
		NetworkGPUs:    p.Value(conf.FigureNetworkGPUs),
		NetworkPCIeGen: p.Value(conf.FigureNetworkPCIeGen), NetworkPCIeWidth: p.Value(conf.FigureNetworkPCIeWidth),
		NetworkTreeGen: p.Value(conf.FigureNetworkTreeGen),
		GPUNetwork:     p.Word(conf.FigureGPUNetwork),

		MemoryPeak: p.Value(conf.FigureMemoryPeak), BF16: p.Value(conf.FigureBF16),

		Floors: floorsOf(p),
	}
}

// floorsOf converts the floors to the form that checks use.
func floorsOf(p *conf.Platform) (list []checks.Floor) {
	for _, f := range p.Floors {
		list = append(list, checks.Floor{
			Test: f.Test, Algorithm: f.Algorithm, Size: f.Size, Ranks: f.Ranks,
			Value: f.Value, Unit: f.Unit, Source: f.Source, Verified: f.Verified, File: f.Pos.String(),
		})
	}
	return list
}
