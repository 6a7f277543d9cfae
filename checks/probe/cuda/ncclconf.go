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

// NCCLSetting is a setting of NCCL that was found on the node.
type NCCLSetting struct {
	Name, Value string // NCCL_TOPO_FILE, /opt/topo.xml
	Where       string // the environment, or the file
}

// The files of settings that NCCL reads by itself, for every process and for
// those of root.
const (
	ncclConf     = "/etc/nccl.conf"
	ncclUserConf = "/root/.nccl.conf"
)

// NCCLEnvironment says where a setting was found that is not in a file.
const NCCLEnvironment = "the environment"

// NCCLFound are the settings of NCCL that were there before a test makes its own:
// those of the environment that commands get, of /etc/nccl.conf and of root's
// .nccl.conf, in this order. A file that is not there has none.
func NCCLFound(h *probe.Host) (found []NCCLSetting, err error) {
	environMutex.Lock()
	defer environMutex.Unlock()
	for _, e := range probe.Environment(h, nil) {
		if slices.Contains(ncclOwn, e) {
			continue
		}
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, "NCCL_") {
			found = slices.DeleteFunc(found, func(s NCCLSetting) bool { return s.Name == name }) // the last one counts
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

// parseNCCLConf reads lines NAME=VALUE as NCCL does: # begins a remark.
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

// Guarded returns why a file should not be loaded by root: others could have put it
// there, or could replace it.
func Guarded(h *probe.Host, path string) error {
	_, err := probe.TrustedLibrary(h.Path(path), true)
	return err
}

// NCCLTopology is what a topology file of NCCL says of the node.
type NCCLTopology struct {
	GPUs []string // PCI addresses of what it calls display or 3D controllers
}

// ReadNCCLTopology reads a file that NCCL_TOPO_FILE names. The error is
// [fs.ErrNotExist] where there is none.
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

// parseNCCLTopology finds the GPUs of NCCL's XML: <pci busid="0000:0f:00.0"
// class="0x030200" ...>, where a <gpu> is in it or not.
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
			if class := attribute(e, "class"); strings.HasPrefix(class, "0x03") {
				t.GPUs = append(t.GPUs, strings.ToLower(attribute(e, "busid")))
			}
		}
	}
	if !isTopology {
		return t, errors.New("no topology of NCCL: it has no <system>")
	}
	return t, nil
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
