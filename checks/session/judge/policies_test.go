package judge

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// remembered is a memory in a map.
type remembered struct {
	data          map[string][]byte
	reads, writes int
	cannotRead    error
	cannotWrite   error
	gpus          bool
	silent        bool
	warnings      []string
}

func (m *remembered) recall(name string) (data []byte, silent bool, err error) {
	m.reads++
	return m.data[name], m.silent, m.cannotRead
}

func (m *remembered) keep(name string, data []byte) error {
	m.writes++
	if m.cannotWrite == nil {
		m.data[name] = slices.Clone(data)
	}
	return m.cannotWrite
}

func (m *remembered) hasGPUs() bool  { return m.gpus }
func (m *remembered) warn(err error) { m.warnings = append(m.warnings, err.Error()) }

// ends keeps the event of a run, as the outputs do.
func (m *remembered) ends(t *testing.T, e event.Event) {
	t.Helper()
	data, err := json.Marshal(&e)
	if err != nil {
		t.Fatal(err)
	}
	m.data[outputs.RunPrefix+"healthcheck"] = data
}

func (m *remembered) policies() *policies { return &policies{memory: m, context: conf.HealthCheck} }

func ports() *plan.Step { return &plan.Step{Name: "check_ib_ports", Class: "ib"} }

func down(port string) checks.Finding {
	return checks.Finding{Code: "ib.ports.down", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: port}, Message: port + " is down"}
}

func severities(list []checks.Finding) string {
	var words []string
	for _, f := range list {
		words = append(words, f.Severity.String())
	}
	return strings.Join(words, " ")
}

func TestPoliciesCountStrikes(t *testing.T) {
	t.Parallel()
	m := &remembered{data: map[string][]byte{}}
	for i, step := range []struct {
		found []checks.Finding
		want  string
	}{
		{[]checks.Finding{down("mlx5_0:1")}, "warn"},
		{[]checks.Finding{down("mlx5_1:1")}, "warn"}, // another port
		{[]checks.Finding{down("mlx5_0:1"), down("mlx5_1:1"), down("mlx5_2:1")}, "fail fail warn"},
		{nil, ""},
		{nil, ""},
		{[]checks.Finding{down("mlx5_0:1")}, "warn"}, // the last three runs had none
		{[]checks.Finding{{Code: "ib.ports.gone", Severity: checks.Fail}}, "fail"},
	} {
		if got := severities(m.policies().apply(nil, ports(), step.found)); got != step.want {
			t.Errorf("run %d: %q, want %q", i+1, got, step.want)
		}
		m.ends(t, event.Event{Run: int64(i + 1)})
	}
	m.reads, m.writes = 0, 0
	m.policies().apply(nil, ports(), []checks.Finding{{Severity: checks.OK}, {Severity: checks.Warn}, {Code: "ib.count", Severity: checks.Fail}})
	if m.reads+m.writes > 0 {
		t.Errorf("%d reads and %d writes for findings that need no memory", m.reads, m.writes)
	}
}

// The count goes on if the events of the runs are not kept.
func TestPoliciesWithoutEvents(t *testing.T) {
	t.Parallel()
	m := &remembered{data: map[string][]byte{}}
	for i, want := range []string{"warn", "fail", "fail"} {
		if got := severities(m.policies().apply(nil, ports(), []checks.Finding{down("mlx5_0:1")})); got != want {
			t.Errorf("run %d: %s, want %s", i+1, got, want)
		}
	}
}

// No fault is lost because runs cannot be counted.
func TestPoliciesWithoutMemory(t *testing.T) {
	t.Parallel()
	broken := errors.New("read-only file system")
	for name, m := range map[string]*remembered{"unreadable": {cannotRead: broken}, "read-only": {cannotWrite: broken}} {
		m.data = map[string][]byte{}
		for range 2 {
			p := m.policies()
			if got := severities(p.apply(nil, ports(), []checks.Finding{down("mlx5_0:1")})); got != "fail" {
				t.Errorf("%s: %s", name, got)
			}
			if got := severities(p.apply(nil, ports(), []checks.Finding{down("mlx5_3:1")})); got != "fail" {
				t.Errorf("%s, the next check: %s", name, got)
			}
		}
		if warned := m.cannotWrite != nil; warned != (len(m.warnings) > 0) || len(m.warnings) > 2 {
			t.Errorf("%s: %q", name, m.warnings)
		}
	}
	m := &remembered{data: map[string][]byte{strikesPrefix + "healthcheck": []byte("{{"), outputs.RunPrefix + "healthcheck": []byte("\x00")}}
	if got := severities(m.policies().apply(nil, ports(), []checks.Finding{down("mlx5_0:1")})); got != "warn" {
		t.Errorf("damaged: %s, want the first strike", got)
	}
	m = &remembered{data: map[string][]byte{strikesPrefix + "healthcheck": []byte(`{"faults":[{"key":"x","runs":[]},{"key":"y"},null]}`)}}
	if got := severities(m.policies().apply(nil, ports(), []checks.Finding{down("mlx5_0:1")})); got != "warn" {
		t.Errorf("damaged in part: %s, want the first strike", got)
	}
	m = &remembered{silent: true, data: map[string][]byte{}}
	for i, want := range []string{"warn", "fail", "warn"} {
		if i == 2 { // the next silence, and the strikes of this one are still there
			delete(m.data, outputs.RunPrefix+"healthcheck")
		}
		if got := severities(m.policies().apply(nil, ports(), []checks.Finding{down("mlx5_0:1")})); got != want {
			t.Errorf("silent, run %d: %s, want %s", i+1, got, want)
		}
		m.ends(t, event.Event{Run: int64(i + 1)})
	}
	m = &remembered{data: map[string][]byte{}}
	m.ends(t, event.Event{Run: 4999})
	m.policies().apply(nil, ports(), []checks.Finding{down("mlx5_0:1")})
	m.silent = true
	m.ends(t, event.Event{Run: 1}) // the first run of the silence, without a fault
	if got := severities(m.policies().apply(nil, ports(), []checks.Finding{down("mlx5_0:1")})); got != "warn" {
		t.Errorf("strikes of before the silence: %s, want the first strike", got)
	}
	around := &policies{memory: &remembered{}, context: conf.Prolog}
	if got := severities(around.apply(nil, ports(), []checks.Finding{down("mlx5_0:1")})); got != "fail" {
		t.Errorf("prolog: %s, want no strikes", got)
	}
}

func TestStaysUnknown(t *testing.T) {
	t.Parallel()
	blind := checks.Finding{Code: "probe.hung", Severity: checks.Unknown, Message: "check_gpu_ecc:  NVML does not answer"}
	gpu := &plan.Step{Name: "check_gpu_ecc", Class: "gpu", Lane: checks.NVML}
	for name, c := range map[string]struct {
		step   *plan.Step
		found  checks.Finding
		gpus   bool
		policy string
		want   map[int]string // by run; "unknown" otherwise
	}{
		"GPUs":             {gpu, blind, true, "", map[int]string{11: "unknown", 12: "unknown warn", 35: "unknown warn", 36: "unknown warn fail"}},
		"a slow scan":      {gpu, checks.Finding{Code: "probe.scan", Severity: checks.Unknown}, true, "", map[int]string{12: "unknown warn", 36: "unknown warn"}},
		"one value":        {gpu, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, true, "", map[int]string{11: "unknown", 12: "unknown warn", 36: "unknown warn"}},
		"nothing of one":   {gpu, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, true, "", map[int]string{12: "unknown warn", 36: "unknown warn fail"}},
		"no GPUs":          {gpu, blind, false, "", map[int]string{12: "unknown warn", 36: "unknown warn"}},
		"switched off":     {gpu, blind, true, "[policy.\"unknown.gpu\"]\naction = \"none\"\n[policy.\"unknown.stays\"]\naction = \"none\"", map[int]string{12: "unknown skip", 36: "unknown skip skip"}},
		"sooner":           {gpu, blind, true, "[policy.\"unknown.gpu\"]\nstrikes = 3", map[int]string{2: "unknown", 3: "unknown fail"}},
		"a setting":        {gpu, checks.Finding{Code: "config.value", Severity: checks.Unknown}, true, "", map[int]string{12: "unknown", 36: "unknown"}},
		"another doubt":    {gpu, checks.Finding{Code: "gpu.ecc.pending", Severity: checks.Unknown}, true, "", map[int]string{12: "unknown warn", 36: "unknown warn"}},
		"DCGM":             {&plan.Step{Name: "check_dcgm_health", Class: "gpu", Lane: checks.DCGM}, blind, true, "", map[int]string{12: "unknown warn", 36: "unknown warn"}},
		"not of GPUs":      {&plan.Step{Name: "check_net_dns", Class: "net"}, blind, true, "", map[int]string{12: "unknown warn", 36: "unknown warn"}},
		"strict failures":  {gpu, blind, true, "[policy.gpu]\naction = \"drain\"\nstrikes = 1\npasses = 1", map[int]string{1: "unknown", 11: "unknown", 12: "unknown warn", 36: "unknown warn fail"}},
		"failures warn":    {gpu, blind, true, "[policy.check_gpu_ecc]\naction = \"warn\"", map[int]string{1: "unknown", 12: "unknown warn", 36: "unknown warn warn"}},
		"LBNL's of GPUs":   {&plan.Step{Name: "check_nvsmi_healthmon", Class: "gpu"}, blind, true, "", map[int]string{1: "unknown", 35: "unknown warn", 36: "unknown warn fail"}},
		"of LBNL's checks": {&plan.Step{Name: "check_file_contents", Class: "file"}, blind, true, "", map[int]string{1: "unknown", 11: "unknown", 12: "unknown warn", 36: "unknown warn"}},
		"the driver is no": {gpu, checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown}, true, "", map[int]string{36: "unknown warn fail"}},
	} {
		site, err := conf.ParseTOML("nhc.toml", []byte(c.policy))
		if err != nil {
			t.Fatal(err)
		}
		m := &remembered{data: map[string][]byte{}, gpus: c.gpus}
		for run := 1; run <= 36; run++ {
			got := m.policies().apply(site, c.step, []checks.Finding{c.found})
			if want, ok := c.want[run]; ok && severities(got) != want {
				t.Errorf("%s, run %d: %s, want %s", name, run, severities(got), want)
			}
			if last := got[len(got)-1]; name == "GPUs" && run == 36 && !strings.HasPrefix(last.Message, "check_gpu_ecc:  unknown in 36 runs since 20") {
				t.Errorf("%s", last.Message)
			}
			m.ends(t, event.Event{Run: int64(run)})
		}
	}
}

func since(m slurm.Mark, t time.Time) slurm.Mark {
	m.Since = t
	return m
}

func TestPoliciesWait(t *testing.T) {
	t.Parallel()
	now := time.Now()
	mark := slurm.Mark{Cause: slurm.Cause{Check: "check_ib_ports"}, Fault: "ib.ports.down mlx5_0:1"}
	for name, c := range map[string]struct {
		last   *event.Event
		mark   slurm.Mark
		policy string
		broken bool
		want   string
	}{
		"the first healthy run":        {&event.Event{Run: 7}, mark, "", false, "which has passed in 1 of 2 runs"},
		"no run before":                {nil, mark, "", false, "which has passed in 1 of 2 runs"},
		"the second":                   {&event.Event{Run: 7, Healthy: 1, HealthySince: now.Add(-time.Minute)}, mark, "", false, ""},
		"before the fault":             {&event.Event{Run: 7, Healthy: 9, HealthySince: now.Add(-time.Hour)}, since(mark, now.Add(-time.Minute)), "", false, "which has passed in 1 of 2 runs"},
		"after the fault":              {&event.Event{Run: 7, Healthy: 1, HealthySince: now.Add(-time.Minute)}, since(mark, now.Add(-time.Hour)), "", false, ""},
		"the clock was ahead":          {&event.Event{Run: 7, Healthy: 1, HealthySince: now.Add(-time.Minute)}, since(mark, now.Add(48*time.Hour)), "", false, ""},
		"it was ahead, no run since":   {&event.Event{Run: 7}, since(mark, now.Add(48*time.Hour)), "", false, "which has passed in 1 of 2 runs"},
		"a cool-down of the site":      {&event.Event{Run: 7, Healthy: 9, HealthySince: now.Add(-time.Minute)}, mark, "[policy.check_ib_ports]\ncooldown = \"1h\"", false, "which has not passed for 1h yet"},
		"of the class, by the plan":    {&event.Event{Run: 7, Healthy: 1, HealthySince: now}, mark, "[policy.ib]\npasses = 9", false, "which has passed in 2 of 9 runs"},
		"LBNL's checks":                {nil, slurm.Mark{Cause: slurm.Cause{Check: "check_fs_mount"}, Fault: "fs.mount.missing /home"}, "", false, ""},
		"a check that bash has called": {nil, slurm.Mark{Cause: slurm.Cause{Check: "[ -d /x ] && check_fs_mount_rw /x"}, Fault: "fs.mount.missing /x"}, "[policy.check_fs_mount_rw]\npasses = 3\n[policy.check_fs_mount]\npasses = 4", false, "which has passed in 1 of 3 runs"},
		"one with a code of a family":  {nil, slurm.Mark{Cause: slurm.Cause{Check: "[ -d /x ] && check_gpu_xid"}, Fault: "gpu.xid.79 gpu0"}, "[policy.check_gpu_xid]\npasses = 3", false, "which has passed in 1 of 3 runs"},
		"of the class of that check":   {nil, slurm.Mark{Cause: slurm.Cause{Check: "[ -d /x ] && check_fs_mount /x"}, Fault: "fs.mount.missing /x"}, "[policy.fs]\npasses = 3", false, "which has passed in 1 of 3 runs"},
		"without a memory":             {nil, mark, "", true, ""},
		"a text that is not a code":    {nil, slurm.Mark{Cause: slurm.Cause{Check: "/opt/site/check.sh"}, Fault: "check.sh /opt/a.b failed"}, "", false, ""},
		"no text":                      {nil, slurm.Mark{}, "", false, ""},
	} {
		site, err := conf.ParseTOML("nhc.toml", []byte(c.policy))
		if err != nil {
			t.Fatal(err)
		}
		m := &remembered{data: map[string][]byte{}}
		if c.last != nil {
			m.ends(t, *c.last)
		}
		if c.broken {
			m.cannotRead = fmt.Errorf("no answer")
		}
		p := m.policies()
		if got := p.waits(site, &plan.Plan{Steps: []plan.Step{*ports()}}, c.mark); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if p.drained.After(time.Now()) {
			t.Errorf("%s: drained at %s", name, p.drained)
		}
	}
}
