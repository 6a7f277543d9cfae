package event

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/tests/schema"
)

func TestSchemaHasTheFields(t *testing.T) {
	t.Parallel()
	schema.HasFields(t, schema.File(), map[string]any{
		"": Event{}, "result": Result{}, "device": checks.Device{}, "action": Action{}, "failure": Failure{}, "drill": Drill{},
	})
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
