package event

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/tests/schema"
)

// object is an object of the schema.
type object struct {
	Required   []string `json:"required"`
	Properties map[string]struct {
		Ref         string `json:"$ref"`
		Description string `json:"description"`
	} `json:"properties"`
	Defs map[string]object `json:"$defs"`
}

// The schema has each field of the event, with a description, and no other. A field that can be
// missing is not required.
func TestSchemaHasTheFields(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(schema.File())
	if err != nil {
		t.Fatal(err)
	}
	var root object
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		object object
		value  any
	}{
		"event": {root, Event{}}, "result": {root.Defs["result"], Result{}}, "device": {root.Defs["device"], checks.Device{}},
		"action": {root.Defs["action"], Action{}}, "failure": {root.Defs["failure"], Failure{}}, "drill": {root.Defs["drill"], Drill{}},
	} {
		var fields, required []string
		kind := reflect.TypeOf(tt.value)
		for field := range kind.Fields() {
			key, option, _ := strings.Cut(field.Tag.Get("json"), ",")
			fields = append(fields, key)
			if option == "" {
				required = append(required, key)
			}
			if p := tt.object.Properties[key]; p.Description == "" && p.Ref == "" {
				t.Errorf("%s: the schema does not describe %s", name, key)
			}
		}
		if len(tt.object.Properties) != len(fields) {
			t.Errorf("%s: the schema has %d fields, the event %d: %v", name, len(tt.object.Properties), len(fields), fields)
		}
		if diff := cmp.Diff(required, tt.object.Required); diff != "" {
			t.Errorf("%s: required\n%s", name, diff)
		}
	}
}

func TestSchemaAccepts(t *testing.T) {
	t.Parallel()
	compared := faulty()
	compared.Compare(healthy())
	compared.Outputs = []Failure{{"jsonl", "write /var/log/x: no space left on device"}, {Output: "command"}}
	rehearsed := faulty()
	rehearsed.Results[1].Drill, rehearsed.Drill = true, &Drill{Code: "gpu.xid.79", Device: checks.Device{Kind: "gpu", Name: "gpu3"}, Until: rehearsed.Time}
	for name, e := range map[string]*Event{"rehearsed": rehearsed, "healthy": healthy(), "faulty": faulty(), "private": compared.Private(), "short": compared.Short(), "compared": compared} {
		if err := schema.Check(e.Line()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*Event){
		"another schema": func(e *Event) { e.Schema = 2 }, "an unknown context": func(e *Event) { e.Context = "cron" }, "an unknown change": func(e *Event) { e.Changed = []string{"x"} },
		"an unknown remedy": func(e *Event) { e.Results[1].Remedy = "pray" }, "no list of results": func(e *Event) { e.Results = nil },
	} {
		e := faulty()
		change(e)
		if schema.Check(e.Line()) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
