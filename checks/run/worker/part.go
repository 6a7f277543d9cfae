package worker

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/evidence"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
)

// describePart describes a device for its vendor: in the lane of NVML by that library, in the local
// one by files.
func describePart(env *checks.Env, req *wire.Request) *wire.Response {
	var p checks.Part
	if err := json.Unmarshal(req.Data, &p.Device); err != nil {
		return &wire.Response{Err: "describe a device: " + err.Error()}
	}
	if checks.Lane(req.Name) == checks.NVML {
		if err := askPart(env, &p); err != nil {
			return &wire.Response{Err: err.Error()}
		}
	} else {
		readPart(env, &p)
	}
	data, err := json.Marshal(p)
	if err != nil {
		return &wire.Response{Err: "describe a device: " + err.Error()}
	}
	return &wire.Response{Data: data}
}

// partGroups are the values of NVML about a part.
const partGroups = nvml.GroupBoard | nvml.GroupNVLinks | nvml.GroupNVLinkFar

func askPart(env *checks.Env, p *checks.Part) error {
	n, err := nvml.Ask(env.Host, partGroups, env.Doing)
	if err != nil {
		return err
	}
	p.Driver = n.Driver.Value
	is := func(g nvml.GPU) bool {
		return p.Device.PCI != "" && g.PCI == p.Device.PCI || p.Device.UUID != "" && g.UUID.Value == p.Device.UUID
	}
	i := slices.IndexFunc(n.GPUs, is)
	if i < 0 {
		p.Device, p.State = checks.Device{}, "NVML does not list it"
		return nil
	}
	g := &n.GPUs[i]
	for _, err := range []error{g.Err, g.NameErr, g.Serial.Err, g.PartNumber.Err} {
		if err != nil && p.State == "" {
			p.State = "does not answer: " + err.Error()
		}
	}
	if p.State == "" {
		p.State = checks.PartAnswers
	}
	p.Device = checks.GPUDevice(g)
	p.Model, p.PartNumber, p.VBIOS, p.Inforom = g.Name.Value, g.PartNumber.Value, g.VBIOS.Value, g.Inforom.Value
	p.Location.NVLinks = farEnds(n, g)
	return nil
}

// farEnds returns the neighbours of a GPU, each with the numbers of its links.
func farEnds(n *nvml.Snapshot, g *nvml.GPU) (list []string) {
	links := map[string][]string{}
	var order []string
	unread := func(i int) bool { return i < len(g.NVLinksUnread) && g.NVLinksUnread[i] }
	all := len(g.NVLinks.Value)
	for all > 0 && len(g.NVLinks.Value) == nvml.MaxLinks && unread(all-1) { // after a second error it is unknown how many there are
		all--
	}
	for i, up := range g.NVLinks.Value[:all] {
		end := "down"
		if unread(i) {
			end = "unknown"
		}
		if up {
			end = "unknown"
			if far := g.NVLink.Far.Value; i < len(far) && far[i] != "" {
				end = far[i]
			}
			if far := g.NVLink.FarPCI.Value; i < len(far) && far[i] != "" {
				end += " " + far[i]
				if at := slices.IndexFunc(n.GPUs, func(peer nvml.GPU) bool { return peer.PCI == far[i] }); at >= 0 {
					end = checks.GPUDevice(&n.GPUs[at]).String()
				}
			}
		}
		if links[end] == nil {
			order = append(order, end)
		}
		links[end] = append(links[end], fmt.Sprint(i))
	}
	for _, end := range order {
		list = append(list, end+": links "+strings.Join(links[end], " "))
	}
	return list
}

const dmiDir = "/sys/class/dmi/id/"

// readPart reads everything that files show. It omits values that cannot be read.
func readPart(env *checks.Env, p *checks.Part) {
	h := env.Host
	env.At("read %s", dmiDir)
	for name, value := range map[string]*string{
		"sys_vendor": &p.System.Vendor, "product_name": &p.System.Product, "product_serial": &p.System.Serial, "bios_version": &p.System.BIOS,
		"board_name": &p.System.Board, "board_serial": &p.System.BoardSerial, "chassis_serial": &p.System.ChassisSerial, "chassis_asset_tag": &p.System.AssetTag,
	} {
		*value = readClean(h, dmiDir+name)
	}
	p.Location.NUMA = -1
	if at := p.Device.PCI; at != "" {
		env.At("read %s/%s", pci.PCIDevices, at)
		d := pci.ReadFunction(h, at)
		p.State = "on the PCI bus"
		if d.Vendor == "" {
			p.State = "not on the PCI bus"
		} else {
			p.PCIID = d.Vendor + ":" + d.Device
		}
		p.Location.NUMA, p.Location.Bridges, p.Location.Slot = d.NUMA, d.Path, pci.SlotName(h, at)
		if d.Driver != "" {
			p.Driver = strings.TrimSpace(d.Driver + " " + readClean(h, "/sys/module/"+d.Driver+"/version"))
		}
	}
	switch p.Device.Kind {
	case "gpu":
		readGPUPart(env, p)
	case "hca":
		readAdapterPart(env, p)
	case "nvme":
		disks, _ := disk.NVMes(h, env.Doing)
		for i := range disks {
			if d := &disks[i]; d.Name == p.Device.Name {
				p.Device, p.Model, p.Firmware = checks.NVMeDevice(d), d.Model, d.Firmware
				p.State = "on the PCI bus, " + d.State
			}
		}
	}
	p.Archives = []string{}
	if h.Past() == "" || !h.PastAnswers() {
		return
	}
	dir := filepath.Join(h.Past(), evidence.Dir)
	names, _ := h.Names(dir) // none without the directory
	for _, name := range names {
		if strings.HasSuffix(name, ".tar.gz") {
			p.Archives = append(p.Archives, filepath.Join(dir, name))
		}
	}
}

// readClean reads a value of one line, "" if it cannot be read or is a placeholder of the firmware.
func readClean(h *probe.Host, path string) string {
	value, err := h.ReadValue(path)
	value = pci.CleanText(value)
	if err != nil || slices.Contains([]string{"to be filled by o.e.m.", "default string", "not specified", "none", "n/a"}, strings.ToLower(value)) {
		return ""
	}
	return value
}

func readGPUPart(env *checks.Env, p *checks.Part) {
	env.At("read /proc/driver/nvidia")
	if views, err := nvidia.ReadGPUViews(env.Host); err == nil && views.Version != "" {
		p.Driver = views.Version
	}
	data, _ := env.Host.ReadFile("/proc/driver/nvidia/gpus/" + p.Device.PCI + "/information") // none without the driver
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = pci.CleanText(value); strings.TrimSpace(key) {
		case "Model":
			p.Model = value
		case "Video BIOS":
			if !strings.Contains(value, "?") { // of a GPU that does not answer
				p.VBIOS = value
			}
		case "GPU Firmware":
			p.Firmware = value
		}
	}
	env.At("read the kernel's log")
	for _, x := range xid.Seen(env, p.Device) {
		p.AddError(checks.PartError{Source: "kernel log", Code: x.String(), First: x.First, Last: x.Last, Count: x.Lines, Message: x.Text})
	}
}

func readAdapterPart(env *checks.Env, p *checks.Part) {
	h := env.Host
	adapters, _ := rdma.HCAs(h, env.Doing)
	for _, a := range adapters {
		if a.Name != p.Device.Name {
			continue
		}
		p.Model, p.Board, p.Firmware, p.Device.UUID = a.Type, a.Board, a.Firmware, a.GUID
		for _, port := range a.Ports {
			p.State += fmt.Sprintf(", port %s %s %s", port.Port, port.State, port.Phys)
		}
	}
	if p.Device.PCI != "" {
		env.At("read %s/%s/vpd", pci.PCIDevices, p.Device.PCI)
		p.Device.Serial, p.PartNumber = pci.BoardSerial(h, p.Device.PCI), pci.BoardPart(h, p.Device.PCI)
	}
}
