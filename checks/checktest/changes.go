package checktest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
)

// This file computes the differences between two snapshots of NVML.

// flatten returns the values of a snapshot by path.
func flatten(n *nvml.Snapshot) map[string]any {
	fields := map[string]any{}
	if n == nil {
		return fields
	}
	walk(fields, "", reflect.ValueOf(n).Elem())
	for i := range n.GPUs {
		walk(fields, fmt.Sprintf("gpu%d.", n.GPUs[i].Index), reflect.ValueOf(&n.GPUs[i]).Elem())
	}
	return fields
}

func walk(fields map[string]any, prefix string, v reflect.Value) {
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		switch {
		case name == "GPUs" || name == "Index" || f.IsZero() && !selftest.IsReading(f.Type()) && f.Kind() != reflect.Struct:
		case selftest.IsReading(f.Type()):
			if err, ok := reflect.TypeAssert[error](f.FieldByName("Err")); ok {
				fields[prefix+name] = errorTable(err)
			} else if f.FieldByName("Known").Bool() {
				fields[prefix+name] = toJSON(f.FieldByName("Value").Interface())
			}
		case f.Type() == reflect.TypeFor[error]():
			fields[prefix+name] = errorTable(f.Interface().(error))
		case f.Type() == reflect.TypeFor[time.Time]():
			if !f.IsZero() {
				fields[prefix+name] = toJSON(f.Interface())
			}
		case f.Kind() == reflect.Struct:
			walk(fields, prefix+name+".", f)
		default:
			fields[prefix+name] = toJSON(f.Interface())
		}
	}
}

// toJSON returns a value as JSON represents it: strings, numbers, tables.
func toJSON(v any) any {
	switch v := reflect.ValueOf(v); {
	case v.Kind() == reflect.Bool:
		return v.Bool()
	case v.CanInt(), v.CanUint():
		return json.Number(fmt.Sprint(v))
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	var out any
	if err := d.Decode(&out); err != nil {
		panic(err)
	}
	if out == nil { // an empty list
		return []any{}
	}
	return out
}

func errorTable(err error) map[string]any {
	if e, ok := errors.AsType[*nvml.Error](err); ok {
		return map[string]any{"error": json.Number(strconv.Itoa(e.Code)), "call": e.Call}
	}
	if errors.Is(err, probe.ErrNoLibrary) {
		return map[string]any{"missing": strings.TrimSuffix(strings.TrimPrefix(err.Error(), "load "), ": "+probe.ErrNoLibrary.Error())}
	}
	return map[string]any{"message": err.Error()}
}

// diffSnapshots returns the changes from one snapshot to another.
func diffSnapshots(from, to *nvml.Snapshot) map[string]any {
	what := map[string]any{}
	old := flatten(from)
	kept := map[int]bool{}
	for i := range to.GPUs {
		kept[to.GPUs[i].Index] = true
	}
	after := flatten(to)
	for i := range from.GPUs {
		prefix := fmt.Sprintf("gpu%d.", i)
		known := 0
		for p := range after {
			if strings.HasPrefix(p, prefix) {
				known++
			}
		}
		switch {
		case len(kept) == 0:
			what["gpu*"] = map[string]any{"gone": true}
		case !kept[i]:
			what[fmt.Sprintf("gpu%d", i)] = map[string]any{"gone": true}
		case known < 10:
			what[fmt.Sprintf("gpu%d", i)] = unsupported
		default:
			continue
		}
		maps.DeleteFunc(old, func(p string, _ any) bool { return strings.HasPrefix(p, prefix) && p != prefix+"PCI" })
		if !kept[i] || len(kept) == 0 {
			delete(old, prefix+"PCI")
		}
	}
	for p, v := range after {
		if !reflect.DeepEqual(old[p], v) {
			what[p] = v
		}
	}
	gather(what, old, after)
	return joinGPUs(what)
}

// gather merges missing values of one part of a GPU into one entry.
func gather(what, old, after map[string]any) {
	lost := map[string]int{} // by the part of a GPU: gpu3.ECC
	for p := range old {
		if _, ok := after[p]; !ok {
			what[p] = unsupported
			lost[cutPart(p)]++
		}
	}
	for part, n := range lost {
		if n < 4 || part == "" {
			continue
		}
		for p := range old {
			if cutPart(p) == part {
				delete(what, p)
			}
		}
		for p, v := range after {
			if cutPart(p) == part {
				what[p] = v
			}
		}
		what[part] = unsupported
	}
}

var unsupported = map[string]any{"unsupported": true}

// cutPart returns the part of a GPU with a field: gpu3.ECC for gpu3.ECC.SRAM.Corrected.
func cutPart(p string) string {
	if words := strings.Split(p, "."); len(words) > 2 {
		return words[0] + "." + words[1]
	}
	return ""
}

// joinGPUs writes a change that is the same for all eight GPUs only once.
func joinGPUs(what map[string]any) map[string]any {
	for p, v := range maps.Clone(what) {
		rest, ok := strings.CutPrefix(p, "gpu0")
		if !ok {
			continue
		}
		same := true
		for i := range 8 {
			same = same && reflect.DeepEqual(what[fmt.Sprintf("gpu%d%s", i, rest)], v)
		}
		if same {
			for i := range 8 {
				delete(what, fmt.Sprintf("gpu%d%s", i, rest))
			}
			what["gpu*"+rest] = v
		}
	}
	return what
}
