package worker

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/gpustate"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// listParts lists the devices of the node that can be replaced, with their identities, as far as files
// show them. It asks no library. It does not list virtual functions.
func listParts(env *checks.Env, req *wire.Request) *wire.Response {
	if req.Name == wire.PastParts {
		list, before := gpustate.Boards(env)
		return &wire.Response{Devices: list, Before: before}
	}
	env.At("read /proc/driver/nvidia")
	views, err := nvidia.ReadGPUViews(env.Host)
	if err != nil {
		return &wire.Response{Err: err.Error()}
	}
	list := []checks.Device{}
	for i, g := range views.Used() {
		list = append(list, gpustate.Board(env, checks.Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", i), PCI: g.Address, UUID: g.UUID}))
	}
	for _, g := range views.PCI {
		if !slices.ContainsFunc(list, func(d checks.Device) bool { return d.PCI == g.Address }) {
			list = append(list, gpustate.Board(env, checks.Device{Kind: "gpu", PCI: g.Address}))
		}
	}
	adapters, err := rdma.HCAs(env.Host, env.Doing)
	if err != nil {
		return &wire.Response{Err: err.Error()}
	}
	for i := range adapters {
		if !adapters[i].VF {
			list = append(list, fabric.HCADevice(&adapters[i]))
		}
	}
	disks, err := disk.NVMes(env.Host, env.Doing)
	if err != nil {
		return &wire.Response{Err: err.Error()}
	}
	for i := range disks {
		list = append(list, checks.NVMeDevice(&disks[i]))
	}
	return &wire.Response{Devices: list}
}
