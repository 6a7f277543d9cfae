package checks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// For a bad port, a technician needs the slot of its adapter, the far end of its cable and the
// transceiver. They are read only if a port is bad.

// The time limits of lldpd and of bad ports, and the shortest remaining time that is worth a query.
const (
	lldpLimit  = time.Second
	portsLimit = 2 * time.Second
	leastLimit = 50 * time.Millisecond
)

// Locate adds the location to findings about bad ports, and the slot to those about disks.
// Findings of LBNL NHC's own checks name no PCI device and keep their text. Data that cannot be
// read in time is omitted.
func Locate(ctx context.Context, env *Env, findings []Finding) {
	var bad []int
	for i := range findings {
		f := &findings[i]
		if (f.Severity == Warn || f.Severity == Fail) && slices.Contains([]string{"port", "hca", "netdev", "nvme"}, f.Device.Kind) && f.Device.PCI != "" {
			bad = append(bad, i)
		}
	}
	if len(bad) == 0 {
		return
	}
	env.At("look up where bad ports are")
	ends, err := readCabling(env)
	if err != nil {
		env.At("%v", err) // lint reports this error; the finding does not need the file
	}
	var neighbors map[string]string
	if limit := allotSpare(ctx, lldpLimit); limit >= leastLimit {
		neighbors, _ = network.Neighbors(ctx, env.Host, limit)
	}
	devs := map[int]string{}
	var ask []PortAnswer
	for _, i := range bad {
		f := &findings[i]
		f.Place = &Place{Slot: pci.SlotName(env.Host, f.Device.PCI), FarEnd: ends.find(env.Host, f.Device)}
		for _, dev := range findNetDevs(env, f.Device) {
			if devs[i] == "" {
				devs[i] = dev
			}
			if f.Place.FarEnd == "" {
				f.Place.FarEnd = neighbors[dev]
			}
		}
		if f.Device.Kind != "nvme" && !slices.ContainsFunc(ask, func(a PortAnswer) bool { return a.PCI == f.Device.PCI && a.NetDev == devs[i] }) {
			ask = append(ask, PortAnswer{PCI: f.Device.PCI, NetDev: devs[i]})
		}
	}
	var answers []PortAnswer
	if limit := allotSpare(ctx, portsLimit); env.AskPorts != nil && len(ask) > 0 && limit >= leastLimit {
		env.At("ask bad ports for their transceivers")
		answers = env.AskPorts(ask, limit)
	}
	for _, i := range bad {
		f := &findings[i]
		for _, a := range answers {
			if a.PCI == f.Device.PCI && a.NetDev == devs[i] {
				f.Place.NetDev, f.Place.Transceiver, f.Place.Devlink = a.NetDev, a.Transceiver, a.Devlink
			}
		}
		if text := f.Place.text(); text != "" {
			f.Message += " (" + text + ")"
		}
		if f.Place.text() == "" && f.Place.Transceiver == nil && len(f.Place.Devlink) == 0 {
			f.Place = nil
		}
	}
}

// findNetDevs returns the network interfaces of the port or adapter of a finding.
func findNetDevs(env *Env, d Device) []string {
	if d.Kind == "netdev" {
		return []string{d.Name}
	}
	list, err := rdma.HCAs(env.Host, nil)
	if err != nil {
		return nil
	}
	for i := range list {
		for j := range list[i].Ports {
			if p := &list[i].Ports[j]; p.Name() == d.Name || list[i].Name == d.Name {
				return p.NetDevs
			}
		}
	}
	return nil
}

// CablingFile is the default of IB_CABLING: the site's list of ports and far ends.
const CablingFile = "/etc/nhc/cabling"

// cablingTable is the site's list of far ends. A key is the GUID of a port or adapter, without
// colons, and the number of the port.
type cablingTable map[string]string

// find returns the far end of a device, "" if the list has none. ibnetdiscover writes the GUID
// of the port, which its first GID contains; administrators often write that of the adapter.
func (c cablingTable) find(h *probe.Host, d Device) string {
	if len(c) == 0 || d.Kind == "netdev" {
		return ""
	}
	device, port, ok := strings.Cut(d.Name, ":")
	if !ok {
		port = "1"
	}
	for _, guid := range []string{rdma.PortGUID(h, device, port), d.UUID} {
		if end := c[formatCablingKey(guid, port)]; guid != "" && end != "" {
			return end
		}
	}
	return ""
}

func formatCablingKey(guid, port string) string {
	guid = strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(guid), "0x"), ":", ""))
	return guid + "," + port
}

// readCabling reads the site's list of far ends. Without the file the list is empty.
func readCabling(env *Env) (cablingTable, error) {
	file := env.Lookup("IB_CABLING")
	if file == "" {
		file = CablingFile
	}
	data, err := probe.ReadTrusted(env.Host, file)
	if errors.Is(err, fs.ErrNotExist) && file == CablingFile {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseCabling(file, string(data))
}

// CablingErrors returns the errors in a site's list of far ends, or nil.
func CablingErrors(file string, text []byte) error {
	_, err := parseCabling(file, string(text))
	return err
}

// parseCabling parses lines "GUID,PORT FAR END". It skips a wrong line and returns an error for it.
func parseCabling(file, text string) (cablingTable, error) {
	table, number := cablingTable{}, 0
	var errs []error
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, end, _ := strings.Cut(line, " ")
		guid, port, ok := strings.Cut(key, ",")
		hex := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(guid), "0x"), ":", "")
		wrong := ""
		switch end = strings.TrimSpace(end); {
		case !ok:
			wrong = fmt.Sprintf("%q has no port number", key)
		case len(hex) != 16 || strings.Trim(hex, "0123456789abcdef") != "":
			wrong = fmt.Sprintf("%q is not a GUID of 16 hexadecimal digits", guid)
		case probe.NotNumber(port):
			wrong = fmt.Sprintf("%q is not a port number", port)
		case end == "":
			wrong = fmt.Sprintf("%q has no far end", key)
		}
		if wrong != "" {
			errs = append(errs, fmt.Errorf("%s:%d: %s, want GUID,PORT and the far end, such as 0x506b4b0300f4a8d2,1 leaf03 port 12", file, number, wrong))
			continue
		}
		table[formatCablingKey(guid, port)] = shortenEnd(end)
	}
	return table, errors.Join(errs...)
}

// shortenEnd limits the length of a far end in a message.
func shortenEnd(text string) string {
	const most = 60
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
