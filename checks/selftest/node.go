package selftest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// The format of NVML's values in a scenario: the path of a field of [nvml.Snapshot], as in
// "gpu3.ECC.SRAM.Uncorrected", and its value. "gpu*" are all GPUs. Instead of a value it can have
//
//	{ unsupported = true }                              the GPU or the driver does not report it, or all values below
//	{ error = 15, call = "nvmlDeviceGetSerial(3)" }     the call fails
//	{ message = "read /x: is a directory" }             another error
//	{ missing = "libnvidia-ml.so.1" }                   the library is missing
//	{ gone = true }                                     NVML does not show the GPU

// selftestGPUs is the number of GPUs of each node.
const selftestGPUs = 8

// Node is a simulated machine.
type Node struct {
	NVML  *nvml.Snapshot    // nil: no NVML
	Files map[string]string // below its root
	Links map[string]string // symbolic links
}

// nodeBase is the content of a healthy node's file. All nodes made from it share its maps, which are
// never changed.
type nodeBase struct {
	nvml         map[string]any
	files, links map[string]string
}

var nodeBases sync.Map // by name: func() (*nodeBase, error)

func loadBase(name string) (*nodeBase, error) {
	read, _ := nodeBases.LoadOrStore(name, sync.OnceValues(func() (*nodeBase, error) { return readNode(name) }))
	return read.(func() (*nodeBase, error))()
}

func readNode(name string) (*nodeBase, error) {
	data, err := selftestData.ReadFile("nodes/" + name + ".toml")
	if err != nil {
		return nil, fmt.Errorf("unknown node %q", name)
	}
	var text struct {
		NVML  map[string]any    `toml:"nvml"`
		Files map[string]string `toml:"files"`
		Links map[string]string `toml:"links"`
	}
	if err := toml.Unmarshal(data, &text); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	base := &nodeBase{nvml: text.NVML, files: map[string]string{}, links: map[string]string{}}
	for i := range selftestGPUs {
		for file, content := range text.Files {
			base.files[OfGPU(file, i)] = OfGPU(content, i)
		}
		for link, target := range text.Links {
			base.links[OfGPU(link, i)] = OfGPU(target, i)
		}
	}
	return base, nil
}

// ReadNode returns a healthy node of checks/selftest/nodes; "" is an empty machine, "empty" has NVML
// without GPUs.
func ReadNode(name string) (*Node, error) {
	switch name {
	case "":
		return &Node{}, nil
	case "empty":
		return &Node{NVML: new(nvml.Snapshot)}, nil
	}
	base, err := loadBase(name)
	if err != nil {
		return nil, err
	}
	n := &Node{NVML: &nvml.Snapshot{GPUs: make([]nvml.GPU, selftestGPUs)}, Files: base.files, Links: base.links}
	for i := range n.NVML.GPUs {
		n.NVML.GPUs[i].Index = i
	}
	return n, n.Change(base.nvml)
}

// OfGPU replaces {i} by the number of a GPU.
func OfGPU(text string, i int) string { return strings.ReplaceAll(text, "{i}", strconv.Itoa(i)) }

// Change changes values of NVML, by path.
func (n *Node) Change(values map[string]any) error {
	var paths []string
	for p := range values {
		paths = append(paths, p)
	}
	slices.SortFunc(paths, func(a, b string) int { // wider paths come first
		wide := func(p string) int { return strings.Count(p, ".")*2 - strings.Count(p, "*") }
		if d := wide(a) - wide(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	if len(paths) > 0 && n.NVML == nil {
		return errors.New("nvml: the scenario has no node")
	}
	for _, p := range paths {
		if err := n.set(p, values[p]); err != nil {
			return fmt.Errorf("nvml: %s: %w", p, err)
		}
	}
	return nil
}

// set changes one field, of one GPU or of all.
func (n *Node) set(path string, v any) error {
	head, rest, _ := strings.Cut(path, ".")
	number, ok := strings.CutPrefix(head, "gpu")
	if !ok {
		return setPath(reflect.ValueOf(n.NVML).Elem(), path, v)
	}
	found := false
	for i := 0; i < len(n.NVML.GPUs); i++ {
		g := &n.NVML.GPUs[i]
		if number != "*" && number != strconv.Itoa(g.Index) {
			continue
		}
		found = true
		if isSpecial(v, "gone") && rest == "" {
			n.NVML.GPUs = slices.Delete(n.NVML.GPUs, i, i+1)
			i--
			continue
		}
		own := v
		if text, ok := v.(string); ok {
			own = OfGPU(text, g.Index)
		}
		if isSpecial(v, "unsupported") && rest == "" {
			*g = nvml.GPU{Index: g.Index, PCI: g.PCI}
		} else if err := setPath(reflect.ValueOf(g).Elem(), rest, own); err != nil {
			return err
		}
	}
	if !found {
		return errors.New("the node has no such GPU")
	}
	return nil
}

func isSpecial(v any, key string) bool {
	m, ok := v.(map[string]any)
	return ok && m[key] == true
}

// setPath sets the field of a path.
func setPath(v reflect.Value, path string, to any) error {
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() != reflect.Struct || IsReading(v.Type()) || !v.FieldByName(name).IsValid() {
			return fmt.Errorf("NVML has no %q", name)
		}
		v = v.FieldByName(name)
	}
	m, _ := to.(map[string]any)
	switch {
	case isSpecial(to, "unsupported"):
		v.SetZero()
	case m["error"] != nil || m["message"] != nil || m["missing"] != nil:
		err, bad := ParseError(m)
		if bad != nil {
			return bad
		}
		if IsReading(v.Type()) {
			v.SetZero()
			v = v.FieldByName("Err")
		}
		if v.Type() != reflect.TypeFor[error]() {
			return errors.New("this value cannot be an error")
		}
		v.Set(reflect.ValueOf(err))
	case IsReading(v.Type()):
		v.SetZero()
		v.FieldByName("Known").SetBool(true)
		return assign(v.FieldByName("Value"), to)
	default:
		return assign(v, to)
	}
	return nil
}

// IsReading reports whether a type is a [nvml.Reading].
func IsReading(t reflect.Type) bool {
	return t.PkgPath() == reflect.TypeFor[nvml.Snapshot]().PkgPath() && strings.HasPrefix(t.Name(), "Reading[")
}

// assign converts a TOML value to the type of a field.
func assign(v reflect.Value, to any) error {
	data, err := json.Marshal(to)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v.Addr().Interface())
}

// ParseError returns an error of NVML, or of its library.
func ParseError(m map[string]any) (err, bad error) {
	call, _ := m["call"].(string)
	message, _ := m["message"].(string)
	library, _ := m["missing"].(string)
	code, isCode := m["error"].(int64)
	switch {
	case isCode:
		return &nvml.Error{Call: call, Code: int(code)}, nil
	case library != "":
		return fmt.Errorf("load %s: %w", library, probe.ErrNoLibrary), nil
	case message != "":
		return errors.New(message), nil
	}
	return nil, fmt.Errorf("invalid error %v: want error and call, message, or missing", m)
}
