package topology

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Topology files of two programs: NCCL (NCCL_TOPO_FILE and NCCL_TOPO_DUMP_FILE; AzureHPC's files are
// of this kind) and lstopo of hwloc.

// filedDevice is a device of a topology file.
type filedDevice struct {
	PCI     string
	Kind    string   // "gpu", "hca", "nvme"
	NUMA    int      // -1: unknown
	Bridges []string // above it, from the root port down; can be invented
	Width   int      // lanes; 0: unknown
	Line    int
}

// Limits of a file.
const (
	maxFiledDevices = 4096
	maxFiledDepth   = 100 // nesting of elements
)

// topologyReader parses a topology file. It reads token by token, so that nested elements need no
// stack; encoding/xml does not resolve external entities.
type topologyReader struct {
	decoder *xml.Decoder
	element func(xml.StartElement, filedFrame) (filedFrame, error) // of this kind of file
	frames  []filedFrame
	list    []filedDevice
	lines   map[string]int  // line of each device
	hosts   map[string]bool // host_hash of each host in the file
}

// filedFrame is the context of the elements inside an element.
type filedFrame struct {
	numa    int
	bridges []string
	device  int // position in list, from 1, if the element is a device
}

// parseTopology reads the devices of a file.
func parseTopology(path string, data []byte) ([]filedDevice, error) {
	r := &topologyReader{decoder: xml.NewDecoder(bytes.NewReader(data)), lines: map[string]int{}, hosts: map[string]bool{}}
	for {
		token, err := r.decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = r.readToken(token)
		}
		if err != nil {
			text, _ := strings.CutPrefix(err.Error(), "XML syntax error on line "+strconv.Itoa(r.line())+": ")
			return nil, fmt.Errorf("%s:%d: %s", path, r.line(), text)
		}
	}
	switch {
	case len(r.hosts) > 1:
		return nil, fmt.Errorf("%s: describes %d hosts (host_hash), want one", path, len(r.hosts))
	case !slices.ContainsFunc(r.list, func(d filedDevice) bool { return d.Kind == "gpu" || d.Kind == "hca" }):
		return nil, fmt.Errorf("%s: names no GPU and no adapter", path)
	}
	return slices.DeleteFunc(r.list, func(d filedDevice) bool { return d.Kind == "" }), nil
}

func (r *topologyReader) line() int {
	line, _ := r.decoder.InputPos()
	return line
}

func (r *topologyReader) readToken(token xml.Token) error {
	switch t := token.(type) {
	case xml.EndElement:
		r.frames = r.frames[:len(r.frames)-1] // the decoder guarantees a matching start
	case xml.StartElement:
		if len(r.frames) >= maxFiledDepth {
			return fmt.Errorf("more than %d nested elements", maxFiledDepth)
		}
		if len(r.frames) == 0 {
			return r.readRoot(t)
		}
		above := r.frames[len(r.frames)-1]
		frame, err := r.element(t, above)
		r.frames = append(r.frames, frame)
		return err
	}
	return nil
}

func (r *topologyReader) readRoot(t xml.StartElement) error {
	if r.element != nil {
		return fmt.Errorf("a second document begins with <%.20s>", t.Name.Local)
	}
	switch t.Name.Local {
	case "system":
		r.element = r.readNCCL
	case "topology":
		r.element = r.readHwloc
	default:
		return fmt.Errorf("begins with <%.20s>, want NCCL's <system> or lstopo's <topology>", t.Name.Local)
	}
	r.frames = append(r.frames, filedFrame{numa: -1})
	return nil
}

// readNCCL reads <cpu numaid=""><pci busid="" class="" link_width=""> and the elements pci, gpu and
// nic inside.
func (r *topologyReader) readNCCL(t xml.StartElement, above filedFrame) (filedFrame, error) {
	frame := above
	frame.device = 0
	switch t.Name.Local {
	case "cpu":
		if host := attribute(t, "host_hash"); host != "" {
			r.hosts[host] = true
		}
		if text := attribute(t, "numaid"); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < -1 {
				return frame, fmt.Errorf("numaid %.20q: want the number of a NUMA node", text)
			}
			frame.numa = n
		}
	case "pci":
		class, vendor := checks.BareID(attribute(t, "class")), checks.BareID(attribute(t, "vendor"))
		return r.addDevice(attribute(t, "busid"), class, vendor, attribute(t, "link_width"), frame)
	case "gpu", "nic": // the kind of a pci element without a class
		kind := map[string]string{"gpu": "gpu", "nic": "hca"}[t.Name.Local]
		if at := above.device; at > 0 && r.list[at-1].Kind == "" {
			r.list[at-1].Kind = kind
		}
	}
	return frame, nil
}

// readHwloc reads <object type="PCIDev" pci_busid="" pci_type="0302 [10de:2330] ..."> below bridges
// and below objects with a set of NUMA nodes.
func (r *topologyReader) readHwloc(t xml.StartElement, above filedFrame) (filedFrame, error) {
	frame := above
	frame.device = 0
	if t.Name.Local != "object" {
		return frame, nil
	}
	if text := attribute(t, "nodeset"); text != "" {
		n, ok := parseNodeset(text)
		if !ok {
			return frame, fmt.Errorf("nodeset %.40q: want a set of bits", text)
		}
		frame.numa = n
	}
	class, ids, _ := strings.Cut(attribute(t, "pci_type"), " ")
	vendor, _, _ := strings.Cut(strings.TrimPrefix(ids, "["), ":")
	switch attribute(t, "type") {
	case "Bridge":
		if attribute(t, "pci_busid") == "" { // the host bridge
			return frame, nil
		}
		return r.addDevice(attribute(t, "pci_busid"), "0604", vendor, "", frame)
	case "PCIDev":
		return r.addDevice(attribute(t, "pci_busid"), class, vendor, "", frame)
	}
	return frame, nil
}

// addDevice adds a bridge to the frame, or a device to the list.
func (r *topologyReader) addDevice(busid, class, vendor, width string, frame filedFrame) (filedFrame, error) {
	address, ok := checks.PCIAddress(busid)
	if !ok {
		return frame, fmt.Errorf("bus id %.40q: want the form 0000:c1:00.0", busid)
	}
	if strings.HasPrefix(class, "0604") {
		frame.bridges = append(slices.Clip(frame.bridges), address)
		return frame, nil
	}
	if was, ok := r.lines[address]; ok {
		return frame, fmt.Errorf("%s is already on line %d", address, was)
	}
	if len(r.list) >= maxFiledDevices {
		return frame, fmt.Errorf("more than %d devices", maxFiledDevices)
	}
	d := filedDevice{PCI: address, Kind: kindOfClass(class, vendor), NUMA: frame.numa, Bridges: frame.bridges, Line: r.line()}
	if n, err := strconv.Atoi(width); err == nil && n > 0 && n <= 32 {
		d.Width = n
	}
	r.lines[address] = d.Line
	r.list = append(r.list, d)
	frame.device = len(r.list)
	if class != "" && d.Kind == "" { // an element inside does not change a known class
		frame.device = 0
	}
	return frame, nil
}

// kindOfClass returns the kind of an NVIDIA display controller, network controller or NVMe
// controller by its PCI class, "" of other devices. vendor may be "".
func kindOfClass(class, vendor string) string {
	switch {
	case (strings.HasPrefix(class, "0300") || strings.HasPrefix(class, "0302")) && (vendor == "" || vendor == "10de"):
		return "gpu"
	case strings.HasPrefix(class, "0200"), strings.HasPrefix(class, "0207"):
		return "hca"
	case strings.HasPrefix(class, "0108"):
		return "nvme"
	}
	return ""
}

func attribute(t xml.StartElement, name string) string {
	for _, a := range t.Attr {
		if a.Name.Local == name {
			return strings.TrimSpace(a.Value)
		}
	}
	return ""
}

// parseNodeset returns the only member of a bit set in hwloc's format, -1 if there are several or
// none: "0x00000002", "0x00000001,,0x0", "0xf...f".
func parseNodeset(text string) (member int, ok bool) {
	if strings.HasPrefix(text, "0xf...f") {
		return -1, true
	}
	words := strings.Split(text, ",")
	if len(words) > 64 {
		return 0, false
	}
	member = -1
	for i, w := range words {
		n, err := strconv.ParseUint(strings.TrimPrefix(w, "0x"), 16, 32)
		if err != nil && w != "" {
			return 0, false
		}
		for bit := range 32 {
			if n>>bit&1 == 0 {
				continue
			}
			if member >= 0 {
				return -1, true
			}
			member = (len(words)-1-i)*32 + bit
		}
	}
	return member, true
}
