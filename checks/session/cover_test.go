package session

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// at is a step of nhc.conf with a policy.
func at(n int, check string, action conf.Action) plan.Step {
	return plan.Step{Kind: plan.Native, Text: check, Name: check, Class: "gpu", Pos: conf.Pos{File: nhcConf, Line: n}, Policy: conf.Policy{Action: action}}
}

func TestCover(t *testing.T) {
	t.Parallel()
	const check = "check_gpu_ecc"
	fault := []KnownFault{{"gpu.ecc.sram", check, checks.Fail}}
	plans := func(of ...Planned) []Planned { return of }
	health := func(steps ...plan.Step) Planned {
		return Planned{Context: conf.HealthCheck, Plan: &plan.Plan{Steps: steps}}
	}
	prolog := func(steps ...plan.Step) Planned { return Planned{Context: conf.Prolog, Plan: &plan.Plan{Steps: steps}} }
	shell := plan.Step{Kind: plan.ShellLine, Text: "check_gpu_ecc || true", Pos: conf.Pos{File: nhcConf, Line: 9}}
	table := plan.Step{Kind: plan.Native, Name: "gpu_ecc", Class: "gpu", Table: map[string]any{}, Pos: conf.Pos{File: "/etc/nhc/nhc.toml", Line: 3}, Policy: conf.Policy{Action: conf.Nothing}}
	skipped := health()
	skipped.Plan.Skipped = []plan.Skipped{{Step: at(4, check, conf.FailJob), Because: "its contexts are prolog"}}
	off := health(at(4, check, conf.FailJob))
	off.Off = "MARK_OFFLINE=0"
	site := &conf.Config{
		Policies: map[string]conf.Policy{
			"gpu": {Action: conf.Warn}, check: {Action: conf.Drain}, "check_gpu_temp": {Contexts: []string{"prolog"}},
			"gpu.row": {Action: conf.Observed}, "gpu.row.late": {Action: conf.Drain, Strikes: conf.Strikes{N: 2, Of: 3}}, "gpu.row.prolog": {Action: conf.FailJob, Contexts: []string{"prolog"}},
		},
		Places: map[string]conf.Pos{"gpu.row": {File: "/etc/nhc/nhc.toml", Line: 7}, "gpu.row.late": {File: "/etc/nhc/nhc.toml", Line: 8}, "gpu.row.prolog": {File: "/etc/nhc/nhc.toml", Line: 9}, "gpu": {File: "/etc/nhc/nhc.toml", Line: 1}, check: {File: "/etc/nhc/nhc.toml", Line: 5}},
	}
	for _, tt := range []struct {
		name   string
		faults []KnownFault
		plans  []Planned
		site   *conf.Config
		acted  bool
		want   Covered
	}{
		{"a line", fault, plans(health(at(4, check, conf.FailJob))), nil, true,
			Covered{Severity: checks.Fail, Action: "fail-job", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: "the default"}},
		{"no line", fault, plans(health(at(4, "check_gpu_temp", conf.FailJob)), prolog()), nil, false,
			Covered{Severity: checks.Fail, Action: "not checked", By: "no line has check_gpu_ecc"}},
		{"a line that is not run", fault, plans(skipped), nil, false,
			Covered{Severity: checks.Fail, Action: "not checked", By: nhcConf + ":4: not run as healthcheck: its contexts are prolog"}},
		{"the policy of the check", fault, plans(health(at(4, check, conf.Drain))), site, true,
			Covered{Severity: checks.Fail, Action: "drain", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: "[policy.check_gpu_ecc] /etc/nhc/nhc.toml:5"}},
		{"the policy of the class", []KnownFault{{"gpu.temp.limit", "check_gpu_temp", checks.Fail}}, plans(health(at(4, "check_gpu_temp", conf.Warn))), site, false,
			Covered{Severity: checks.Fail, Action: "warn", Context: "healthcheck", Check: "check_gpu_temp", Line: nhcConf + ":4", By: "[policy.gpu] /etc/nhc/nhc.toml:1, strikes 2 of 3"}},
		{"the policy of a prefix", []KnownFault{{"gpu.row.x", check, checks.Fail}}, plans(health(at(4, check, conf.Drain))), site, false,
			Covered{Severity: checks.Fail, Action: "observe", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: `[policy."gpu.row"] /etc/nhc/nhc.toml:7`}},
		{"the policy of a code, with strikes", []KnownFault{{"gpu.row.late", check, checks.Fail}}, plans(health(at(4, check, conf.Drain))), site, true,
			Covered{Severity: checks.Fail, Action: "drain", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: `[policy."gpu.row.late"] /etc/nhc/nhc.toml:8, strikes 2 of 3`}},
		{"a policy for another context", []KnownFault{{"gpu.row.prolog", check, checks.Fail}}, plans(health(at(4, check, conf.Drain))), site, false,
			Covered{Severity: checks.Fail, Action: "warn", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: `[policy."gpu.row.prolog"] /etc/nhc/nhc.toml:9`}},
		{"the action of a table", fault, plans(health(table)), site, false,
			Covered{Severity: checks.Fail, Action: "none", Context: "healthcheck", Check: check, Line: "/etc/nhc/nhc.toml:3", By: "action of the [[check]]"}},
		{"the strongest run", fault, plans(health(at(4, check, conf.Warn)), prolog(at(5, check, conf.FailJob))), nil, true,
			Covered{Severity: checks.Fail, Action: "fail-job", Context: "prolog", Check: check, Line: nhcConf + ":5", By: "the default"}},
		{"runs that do not act", fault, plans(off), nil, false,
			Covered{Severity: checks.Fail, Action: "none", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: "MARK_OFFLINE=0"}},
		{"a line of bash", fault, plans(health(shell)), nil, true,
			Covered{Severity: checks.Fail, Action: "shell line", Context: "healthcheck", Check: check, Line: nhcConf + ":9", By: "the shell line decides"}},
		{"another check of the same code", []KnownFault{{"gpu.recovery.lost", "check_gpu_temp", checks.Fail}, {"gpu.recovery.lost", check, checks.Fail}}, plans(health(at(4, check, conf.FailJob))), nil, true,
			Covered{Severity: checks.Fail, Action: "fail-job", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: "the default"}},
		{"a fault that only warns", []KnownFault{{"gpu.ecc.rate", check, checks.Warn}}, plans(health(at(4, check, conf.FailJob))), nil, true,
			Covered{Severity: checks.Warn, Action: "warn", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: "the check reports no failure"}},
		{"that also fails, by a policy", []KnownFault{{"gpu.ecc.dram", check, checks.Warn}, {"gpu.ecc.dram", check, checks.Fail}}, plans(health(at(4, check, conf.Warn))), nil, false,
			Covered{Severity: checks.Fail, Action: "warn", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: "the default"}},
		{"that also fails", []KnownFault{{"gpu.ecc.dram", check, checks.Warn}, {"gpu.ecc.dram", check, checks.Fail}}, plans(health(at(4, check, conf.FailJob))), nil, true,
			Covered{Severity: checks.Fail, Action: "fail-job", Context: "healthcheck", Check: check, Line: nhcConf + ":4", By: "the default"}},
	} {
		got := Cover(tt.faults, tt.plans, tt.site)
		tt.want.Code = tt.faults[0].Code
		if diff := cmp.Diff([]Covered{tt.want}, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		} else if got[0].Acted() != tt.acted {
			t.Errorf("%s: acted is %v, want %v", tt.name, got[0].Acted(), tt.acted)
		}
	}
	if got := Cover([]KnownFault{{"config.value", check, checks.Fail}, {"gpu.none", check, checks.Skip}}, nil, nil); got != nil {
		t.Errorf("%+v: neither is a fault of the node", got)
	}
}
