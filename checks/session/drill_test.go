package session

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// lostGPU is the finding of a scenario.
func lostGPU() checks.Finding {
	d := checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:13:00.0", Serial: "17", UUID: "GPU-3"}
	return checks.Finding{Code: "gpu.recovery.lost", Severity: checks.Fail, Whole: true, Remedy: checks.RebootNode, Place: &checks.Place{Slot: "5"}, Got: "gpu3 is lost"}.Report("check_gpu_count", d, "the GPU is lost (gpu3 at 0000:13:00.0)")
}

// A drill is about the device of the node, is marked, and hides no other finding.
func TestNewDrill(t *testing.T) {
	t.Parallel()
	d := NewDrill("check_gpu_count", lostGPU(), checks.Device{Kind: "gpu", Name: "gpu0", PCI: "0000:66:00.0"})
	want := checks.Finding{
		Code: "gpu.recovery.lost", Severity: checks.Fail, Device: checks.Device{Kind: "gpu", Name: "gpu0", PCI: "0000:66:00.0"},
		Message: "check_gpu_count:  [drill] gpu0 0000:66:00.0: the GPU is lost (gpu0 at 0000:66:00.0), got gpu0 is lost", Got: "gpu0 is lost", Remedy: checks.RebootNode, Drill: true,
	}
	if diff := cmp.Diff(want, d.Finding); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got, want := d.String(), "gpu.recovery.lost of gpu0 0000:66:00.0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	whole := NewDrill("check_gpu_count", checks.Finding{Code: "gpu.count", Severity: checks.Fail, Want: "8 GPUs", Got: "7"}.Describe("check_gpu_count", "GPU count"), checks.Device{})
	if got, want := whole.String()+" "+whole.Finding.Message, "gpu.count check_gpu_count:  [drill] GPU count, want 8 GPUs, got 7"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestDrillLasts(t *testing.T) {
	t.Parallel()
	at := slurm.Moment{Time: time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC), Boot: "b", Uptime: 100}
	d := NewDrill("check_gpu_count", lostGPU(), checks.Device{Kind: "gpu", Name: "gpu0"})
	d.Begin, d.For = at, 10*time.Minute
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseDrill(data)
	if err != nil || got.Finding.Check != "check_gpu_count" || !got.Finding.Drill || !got.Until().Equal(at.Time.Add(10*time.Minute)) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, tt := range map[string]struct {
		boot   string
		uptime float64
		want   time.Duration
	}{
		"at its start": {"b", 100, 10 * time.Minute}, "in between": {"b", 400, 5 * time.Minute}, "at its end": {"b", 700, 0}, "later": {"b", 9000, 0},
		"in another boot": {"c", 200, 0}, "in an unknown boot": {"", 200, 0},
	} {
		if left := got.Left(slurm.Moment{Time: at.Time, Boot: tt.boot, Uptime: tt.uptime}); left != tt.want {
			t.Errorf("%s: %s are left, want %s", name, left, tt.want)
		}
	}
	for _, text := range []string{"", "{", `{"version":2}`, "[]"} {
		if d, err := ParseDrill([]byte(text)); err == nil {
			t.Errorf("%q: %+v, want an error", text, d)
		}
	}
}

// The finding enters behind the plan, with line, place and policy of the first line with its check.
func TestDrillStep(t *testing.T) {
	t.Parallel()
	d := NewDrill("check_gpu_count", lostGPU(), checks.Device{Kind: "gpu", Name: "gpu0"})
	of := func(check, class string) conf.Policy {
		return map[string]conf.Policy{"check_gpu_count gpu": {Action: conf.Warn}}[check+" "+class]
	}
	count := line(plan.Native, "check_gpu_count 8", "check_gpu_count")
	count.Policy = conf.Policy{Action: conf.Drain}
	second := line(plan.Native, "check_gpu_count 4", "gpu_count")
	p := &plan.Plan{Steps: []plan.Step{line(plan.ShellLine, "check_gpu_count 8 || true", ""), count, second}}
	got := d.Step(p, true, nhcConf, of)
	if got == nil || got.Text != "check_gpu_count 8" || got.Pos != count.Pos || got.Policy.Action != conf.Drain || got.Usage == nil || !got.Usage.Drill || got.Kind != plan.Native {
		t.Fatalf("%+v", got)
	}
	if c, want := CauseOf(got, nil, false), (slurm.Cause{Check: "check_gpu_count", Line: "check_gpu_count 8", File: nhcConf, Drill: true}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	checks.Register(checks.Info{Name: "check_gpu_count", Summary: "test", Lane: checks.NVML, New: func() checks.Check { return nil }})
	none := &plan.Plan{}
	if s := d.Step(none, true, nhcConf, of); s != nil {
		t.Errorf("another run has the check: %+v", s)
	}
	d.Alone = true
	if s := d.Step(none, false, nhcConf, of); s != nil {
		t.Errorf("no line has the check, and the run does not judge the node: %+v", s)
	}
	s := d.Step(none, true, nhcConf, of)
	if s == nil || s.Text != "check_gpu_count" || s.Pos.File != nhcConf || s.Policy.Action != conf.Warn || s.Class != "gpu" {
		t.Errorf("no line has the check: %+v", s)
	}
}

// The drain of a drill stays while the drill lasts; then any run without a failure takes it back.
func TestLacksOfDrill(t *testing.T) {
	t.Parallel()
	c := slurm.Cause{Check: "check_gpu_count", File: "/etc/nhc/other.conf", Drill: true}
	if got := (Pass{Drill: true}).Lacks(slurm.Mark{Cause: c}); !strings.Contains(got, "drill") {
		t.Errorf("while it lasts: %q", got)
	}
	if got := (Pass{}).Lacks(slurm.Mark{Cause: c}); got != "" {
		t.Errorf("afterwards: %q", got)
	}
	c.Drill = false
	if got := (Pass{}).Lacks(slurm.Mark{Cause: c}); got == "" {
		t.Error("a real drain would be taken back")
	}
}

// A drill began in no job, and the comment for the user of a refused job names it.
func TestDrillAndJobs(t *testing.T) {
	t.Parallel()
	d := NewDrill("check_gpu_count", lostGPU(), checks.Device{Kind: "gpu", Name: "gpu0"})
	running := func() []*slurm.Record {
		return []*slurm.Record{{Job: "12", Whole: true, Looked: []string{"check_gpu_count"}}}
	}
	none := func(checks.LogMark) []checks.XidSeen { return nil }
	told, began := Attribute("check_gpu_count", []checks.Finding{d.Finding}, running, none)
	if diff := cmp.Diff([]checks.Finding{d.Finding}, told); diff != "" || began != nil {
		t.Errorf("%s%+v", diff, began)
	}
	fault := d.Finding
	fault.Drill = false
	if _, began := Attribute("check_gpu_count", []checks.Finding{fault}, running, none); began == nil {
		t.Error("a real fault began in no job either: the test shows nothing")
	}
	if got, want := CauseForUser(nil, d.Finding), "[drill] a check, gpu0 [gpu.recovery.lost]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
