package cuda

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// NCCLSetting is a setting of NCCL on the node.
type NCCLSetting struct {
	Name, Value string // NCCL_TOPO_FILE, /opt/topo.xml
	Where       string // the environment, or the file
}

// These files have settings that NCCL reads itself, for every process and for those of root.
const (
	ncclConf     = "/etc/nccl.conf"
	ncclUserConf = "/root/.nccl.conf"
)

// NCCLEnvironment is the Where of a setting in the environment.
const NCCLEnvironment = "the environment"

// NCCLFound returns the settings of NCCL on the node before a test adds its own: those of the
// environment of commands, of /etc/nccl.conf and of root's .nccl.conf, in this order. A missing
// file has none.
func NCCLFound(h *probe.Host) (found []NCCLSetting, err error) {
	environMutex.Lock()
	defer environMutex.Unlock()
	for _, e := range probe.Environment(h) {
		if slices.Contains(ncclOwn, e) {
			continue
		}
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, "NCCL_") {
			found = slices.DeleteFunc(found, func(s NCCLSetting) bool { return s.Name == name }) // the last one applies
			found = append(found, NCCLSetting{name, value, NCCLEnvironment})
		}
	}
	for _, file := range []string{ncclConf, ncclUserConf} {
		data, fail := h.ReadFile(file)
		switch {
		case errors.Is(fail, fs.ErrNotExist):
		case fail != nil:
			err = errors.Join(err, fmt.Errorf("read %s: %w", file, probe.Reason(fail)))
		default:
			found = append(found, parseNCCLConf(string(data), file)...)
		}
	}
	return found, err
}

// parseNCCLConf parses lines NAME=VALUE as NCCL does: # begins a comment.
func parseNCCLConf(text, file string) (found []NCCLSetting) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		name, value, ok := strings.Cut(line, "=")
		if ok && !strings.HasPrefix(line, "#") && strings.HasPrefix(name, "NCCL_") {
			found = append(found, NCCLSetting{probe.OneLine(name), probe.OneLine(value), file})
		}
	}
	return found
}

// Guarded returns an error if root should not load a file because other users could have written
// it, or could replace it.
func Guarded(h *probe.Host, path string) error {
	_, err := probe.TrustedLibrary(h.Path(path), true)
	return err
}

// NCCLTopology is the content of an NCCL topology file.
type NCCLTopology struct {
	GPUs []string // PCI addresses of its display and 3D controllers
}

// ReadNCCLTopology reads the file in NCCL_TOPO_FILE. The error is [fs.ErrNotExist] if it is
// missing.
func ReadNCCLTopology(h *probe.Host, path string) (NCCLTopology, error) {
	data, err := h.ReadFile(path)
	if err != nil {
		return NCCLTopology{}, fmt.Errorf("read %s: %w", path, probe.Reason(err))
	}
	t, err := parseNCCLTopology(strings.NewReader(string(data)))
	if err != nil {
		return t, fmt.Errorf("read %s: %w", path, err)
	}
	return t, nil
}

// parseNCCLTopology finds the GPUs of NCCL's XML: <pci busid="0000:0f:00.0" class="0x030200" ...>,
// with or without a <gpu> in it.
func parseNCCLTopology(r io.Reader) (t NCCLTopology, err error) {
	d := xml.NewDecoder(r)
	isTopology := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return t, fmt.Errorf("not XML: %w", err)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch e.Name.Local {
		case "system":
			isTopology = true
		case "pci":
			if class := findAttribute(e, "class"); strings.HasPrefix(class, "0x03") {
				t.GPUs = append(t.GPUs, strings.ToLower(findAttribute(e, "busid")))
			}
		}
	}
	if !isTopology {
		return t, errors.New("not a topology file of NCCL: <system> is missing")
	}
	return t, nil
}

func findAttribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
