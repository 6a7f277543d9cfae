package run

import (
	"reflect"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// All variables that are set reach the workers.
func TestSetVarsKeepsEverything(t *testing.T) {
	t.Parallel()
	v := wire.Vars{
		Learn: true, Period: true, DryRun: true, Part: true,
		Plain: map[string]string{"A": "b"}, Arrays: map[string][]string{"A": {"b"}}, Environ: []string{"A=b"}, Root: "/node", Past: "/past", Spare: "/spare", State: "/run/nhc-gpu/n", Stuck: []string{"read /x"},
		ProfilesFile: "/etc/nhc/profiles.toml", Profiles: []byte("x"), Slurm: &jobscan.SlurmGPUs{Count: 8}, Job: &checks.Job{ID: "1"}, WantedGPUs: 7, Supervisor: 1,
	}
	for i := range reflect.TypeOf(v).NumField() {
		if reflect.ValueOf(v).Field(i).IsZero() {
			t.Errorf("%s is not tested", reflect.TypeOf(v).Field(i).Name)
		}
	}
	p := NewPool(Options{})
	p.SetVars(v)
	if !reflect.DeepEqual(p.vars, v) {
		t.Errorf("%+v, want %+v", p.vars, v)
	}
	v.Plain["A"] = "c"
	if p.vars.Plain["A"] != "b" {
		t.Error("the map is the caller's own")
	}
}
