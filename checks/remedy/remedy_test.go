package remedy

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

var (
	now  = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	gpu3 = checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:13:00.0", UUID: "GPU-3"}
	gpu5 = checks.Device{Kind: "gpu", Name: "gpu5", PCI: "0000:15:00.0", UUID: "GPU-5"}
)

// site parses remedies as nhc.toml has them.
func site(t *testing.T, text string) []conf.Remedy {
	t.Helper()
	c, err := conf.ParseTOML("nhc.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c.Remedies
}

const ladder = `
[remedy.reset]
do = "reset-gpu"
[remedy.boot]
do = "reboot-node"
[remedy.power]
do = "power-cycle"
codes = ["gpu.xid.79"]
command = ["/sbin/ipmi"]
[remedy.sssd]
do = "restart-app"
codes = ["file.test"]
services = ["sssd"]
[remedy.old]
do = "reboot-node"
codes = ["gpu.remap.pending"]
platforms = ["dgx-a100"]
attempts = 1
`

func failed(code string, remedy checks.Remedy, d checks.Device) event.Result {
	return event.Result{Check: "check_x", Line: "check_x", Code: code, Severity: checks.Fail, Remedy: remedy, Device: d}
}

// tries returns attempts for a fault, an hour after each other; the last is an hour ago.
func tries(code string, d checks.Device, do ...string) (list []Attempt) {
	for i, what := range do {
		list = append(list, Attempt{Fault: Fault{Code: code, Device: d}, Do: what, Begin: now.Add(-time.Duration(len(do)-i) * time.Hour), Done: true})
	}
	return list
}

func inDrill(list []Attempt) []Attempt {
	for i := range list {
		list[i].Drill = true
	}
	return list
}

func TestChoose(t *testing.T) {
	t.Parallel()
	reset, boot := failed("gpu.recovery.reset", checks.ResetGPU, gpu3), failed("gpu.recovery.reboot", checks.RebootNode, gpu5)
	drill := reset
	drill.Drill = true
	for name, test := range map[string]struct {
		results   []event.Result
		attempts  []Attempt
		platforms []string
		want      string // the remedy, or the beginning of why there is none
		holds     int
	}{
		"healthy":                             {want: "the last run found no fault"},
		"only a warning":                      {results: []event.Result{{Code: "gpu.recovery.reset", Severity: checks.Warn, Remedy: checks.ResetGPU}}, want: "the last run found no fault"},
		"reset":                               {results: []event.Result{reset}, want: "reset-gpu"},
		"the greater of two":                  {results: []event.Result{reset, boot}, want: "reboot-node"},
		"one needs a person":                  {results: []event.Result{reset, failed("ib.ports.down", checks.CheckCable, gpu5)}, want: "ib.ports.down of gpu5 0000:15:00.0: remedy check-cable: no [remedy]"},
		"a replacement is no remedy":          {results: []event.Result{failed("gpu.remap.failed", checks.ReseatOrRMA, gpu3)}, want: "gpu.remap.failed of gpu3 0000:13:00.0: remedy reseat-or-rma: no [remedy]"},
		"a user's program is none":            {results: []event.Result{failed("gpu.xid.13", checks.RestartApp, gpu3)}, want: "gpu.xid.13 of gpu3 0000:13:00.0: remedy restart-app: no [remedy]"},
		"without a remedy, by its code":       {results: []event.Result{failed("file.test", checks.NoRemedy, checks.Device{})}, want: "restart-app"},
		"a mount that hangs":                  {results: []event.Result{failed("probe.hung", checks.NoRemedy, checks.Device{Kind: "path", Name: "/scratch"})}, want: "probe.hung of /scratch: remedy none: no [remedy]"},
		"a mount that hangs without its card": {results: []event.Result{failed("probe.hung", checks.NoRemedy, checks.Device{Kind: "path", Name: "/scratch"}), boot}, want: "reboot-node"},
		"a disk that a boot would forget":     {results: []event.Result{failed("nvme.gone", checks.PowerCycle, gpu3)}, want: "nvme.gone of gpu3 0000:13:00.0: remedy power-cycle: no [remedy]"},
		"an adapter that a boot would forget": {results: []event.Result{failed("nic.fatal", checks.PowerCycle, gpu3)}, want: "nic.fatal of gpu3 0000:13:00.0: remedy power-cycle: no [remedy]"},
		"a silent adapter on the bus":         {results: []event.Result{failed("ib.pcie.gone", checks.PowerCycle, gpu3)}, want: "ib.pcie.gone of gpu3 0000:13:00.0: remedy power-cycle: no [remedy]"},
		"a silent device on the bus":          {results: []event.Result{failed("pcie.gone", checks.PowerCycle, gpu3)}, want: "pcie.gone of gpu3 0000:13:00.0: remedy power-cycle: no [remedy]"},
		"an adapter's firmware":               {results: []event.Result{failed("nic.fatal", checks.RebootNode, gpu3)}, want: "reboot-node"},
		"a line of bash":                      {results: []event.Result{{Line: "false", Severity: checks.Fail}}, want: "a line of bash has failed"},
		"a drill":                             {results: []event.Result{drill}, want: "reset-gpu"},
		"a hold":                              {results: []event.Result{failed(HoldCode, checks.ReseatOrRMA, gpu3)}, want: ""},
		"tried once":                          {results: []event.Result{reset}, attempts: tries(reset.Code, gpu3, "reset-gpu"), want: "reset-gpu"},
		"tried twice: the next":               {results: []event.Result{reset}, attempts: tries(reset.Code, gpu3, "reset-gpu", "reset-gpu"), want: "reboot-node"},
		"another GPU's tries":                 {results: []event.Result{reset}, attempts: tries(reset.Code, gpu5, "reset-gpu", "reset-gpu"), want: "reset-gpu"},
		"another code's tries":                {results: []event.Result{reset}, attempts: tries("gpu.xid.95", gpu3, "reset-gpu", "reset-gpu"), want: "reset-gpu"},
		"tried in drills":                     {results: []event.Result{reset}, attempts: inDrill(tries(reset.Code, gpu3, "reset-gpu", "reset-gpu")), want: "reset-gpu"},
		"a drill after all tries":             {results: []event.Result{drill}, attempts: tries(reset.Code, gpu3, "reset-gpu", "reset-gpu", "reboot-node", "reboot-node"), want: "reset-gpu"},
		"all tried":                           {results: []event.Result{reset}, attempts: tries(reset.Code, gpu3, "reset-gpu", "reset-gpu", "reboot-node", "reboot-node"), want: "gpu.recovery.reset of gpu3 0000:13:00.0: 2 x reset-gpu, 2 x reboot-node did not help", holds: 1},
		"one is used up, another is not":      {results: []event.Result{boot, reset}, attempts: tries(boot.Code, gpu5, "reboot-node", "reboot-node"), want: "gpu.recovery.reboot of gpu5 0000:15:00.0: 2 x reboot-node did not help", holds: 1},
		"the last one is for a code":          {results: []event.Result{failed("gpu.xid.79", checks.RebootNode, gpu3)}, attempts: tries("gpu.xid.79", gpu3, "reboot-node", "reboot-node"), want: "power-cycle"},
		"a more specific row, its platform":   {results: []event.Result{failed("gpu.remap.pending", checks.RebootNode, gpu3)}, attempts: tries("gpu.remap.pending", gpu3, "reboot-node"), platforms: []string{"dgx-a100"}, want: "gpu.remap.pending of gpu3 0000:13:00.0: 1 x reboot-node did not help", holds: 1},
		"a more specific row, not this node":  {results: []event.Result{failed("gpu.remap.pending", checks.RebootNode, gpu3)}, attempts: tries("gpu.remap.pending", gpu3, "reboot-node"), platforms: []string{"hgx-h100"}, want: "reboot-node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := Choose(site(t, ladder), test.platforms, test.results, Record{Attempts: test.attempts}, now)
			if got := n.Do + n.Why; !strings.HasPrefix(got, test.want) || len(n.Holds) != test.holds || (n.Do == "") == (n.Why == "") && test.want != "" {
				t.Errorf("got %q, %d holds, want %q, %d", got, len(n.Holds), test.want, test.holds)
			}
		})
	}
}

// A reset is for the faults of its own row, a reboot has the effects of all.
func TestFaultsOfRemedy(t *testing.T) {
	t.Parallel()
	service, reset, boot := failed("file.test", checks.NoRemedy, checks.Device{}), failed("gpu.recovery.reset", checks.ResetGPU, gpu3), failed("gpu.recovery.reboot", checks.RebootNode, gpu5)
	for want, results := range map[int][]event.Result{1: {service, reset}, 3: {service, reset, boot}} {
		if n := Choose(site(t, ladder), nil, results, Record{}, now); len(n.Faults) != want {
			t.Errorf("%s for %v, want %d faults", n.Do, n.Faults, want)
		}
	}
}

func TestStillThere(t *testing.T) {
	t.Parallel()
	fault := Fault{Code: "gpu.xid.79", Device: gpu3, Check: "check_gpu_xid"}
	result := func(code string, severity checks.Severity, d checks.Device, check string) event.Result {
		return event.Result{Code: code, Severity: severity, Device: d, Check: check, Message: check + ":  bad"}
	}
	for name, test := range map[string]struct {
		results []event.Result
		want    string
		unknown bool
	}{
		"passes":            {[]event.Result{result("", checks.OK, checks.Device{}, "check_gpu_xid")}, "", false},
		"fails":             {[]event.Result{result("gpu.xid.79", checks.Fail, gpu3, "check_gpu_xid")}, "afterwards check_gpu_xid:  bad", false},
		"a strike":          {[]event.Result{result("gpu.xid.79", checks.Warn, gpu3, "check_gpu_xid")}, "afterwards check_gpu_xid:  bad", false},
		"another GPU":       {[]event.Result{result("gpu.xid.79", checks.Fail, gpu5, "check_gpu_xid")}, "", false},
		"unknown":           {[]event.Result{result("probe.died", checks.Unknown, checks.Device{}, "check_gpu_xid")}, "afterwards check_gpu_xid had no result", true},
		"the check is gone": {[]event.Result{result("", checks.OK, checks.Device{}, "check_gpu_count")}, "afterwards check_gpu_xid had no result", true},
		"just after the boot": {[]event.Result{
			result("gpu.nvlink.boot", checks.Skip, checks.Device{}, "check_gpu_xid"), result("gpu.other", checks.Warn, gpu3, "check_gpu_xid"),
		}, "afterwards check_gpu_xid has not judged all yet: the node has just booted", true},
		"does not apply":      {[]event.Result{result("gpu.none", checks.Skip, checks.Device{}, "check_gpu_xid")}, "", false},
		"stopped before that": {nil, "afterwards check_gpu_xid had no result", true},
	} {
		err := StillThere(&event.Event{Results: test.results}, []*Attempt{{Fault: fault}})
		got := ""
		if err != nil {
			got = err.Error()
		}
		early := name == "just after the boot" // a node can be down for hours
		if got != test.want || AskAgain(err, time.Minute, time.Minute) != test.unknown || AskAgain(err, 24*time.Hour, time.Minute) != early {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestSurvived(t *testing.T) {
	t.Parallel()
	for boot, want := range map[string]bool{"": false, "now": false, "before": true} {
		if got := (&Record{Boot: boot}).Survived("now"); got != want {
			t.Errorf("boot %q: %v, want %v", boot, got, want)
		}
	}
	if (&Record{Boot: "before"}).Survived("") {
		t.Error("without a boot ID nothing is known")
	}
	for do, command := range map[string]bool{conf.RebootNode: false, conf.PowerCycle: true, conf.RestartApp: true} {
		if why := (Facts{Ours: true, Empty: true, Forgetful: true}).Against(do, command); !strings.HasPrefix(why, "the record of remedies") {
			t.Errorf("%s: %q", do, why)
		}
	}
	if why := (Facts{Ours: true, Empty: true, Forgetful: true}).Against(conf.ResetGPU, false); why != "" {
		t.Errorf("a reset needs no boot: %q", why)
	}
}

// A try counts for a week.
func TestWindow(t *testing.T) {
	t.Parallel()
	f := failed("gpu.recovery.reset", checks.ResetGPU, gpu3)
	r := Record{Attempts: tries(f.Code, gpu3, "reset-gpu", "reset-gpu")}
	if n := Choose(site(t, ladder), nil, []event.Result{f}, r, now.Add(6*24*time.Hour)); n.Do != conf.RebootNode {
		t.Errorf("after six days %q, want a reboot", n.Do)
	}
	if n := Choose(site(t, ladder), nil, []event.Result{f}, r, now.Add(7*24*time.Hour)); n.Do != conf.ResetGPU {
		t.Errorf("after a week %q, want a reset", n.Do)
	}
}

func TestAgainst(t *testing.T) {
	t.Parallel()
	good := Facts{Age: time.Minute, Ours: true, State: "IDLE+DRAIN", Empty: true}
	if why := good.Against(conf.RebootNode, false); why != "" {
		t.Fatal(why)
	}
	for want, change := range map[string]func(*Facts){
		"no health check since the last boot":                              func(f *Facts) { f.OtherBoot = true },
		"the last health check is 16m0s old":                               func(f *Facts) { f.Age = 16 * time.Minute },
		"a drill is under way: nothing is done":                            func(f *Facts) { f.Drill = true },
		"MODE=observe: nothing is done":                                    func(f *Facts) { f.Observe = true },
		"nhc-gpu does not hold the node: it is IDLE+DRAIN for alice: disk": func(f *Facts) { f.Ours, f.Reason = false, "alice: disk" },
		"the node has an order: it is rebooting":                           func(f *Facts) { f.Order = "it is rebooting" },
		"the node is not empty: job 7, 8":                                  func(f *Facts) { f.Empty, f.Jobs = false, "7, 8" },
		"reservation r1 for maintenance":                                   func(f *Facts) { f.Maintenance = "r1 for maintenance" },
		"2 nodes are in repair":                                            func(f *Facts) { f.Repair = "2 nodes are in repair" },
		"slurm.conf has no RebootProgram":                                  func(f *Facts) { f.NoReboot = true },
	} {
		f := good
		change(&f)
		if got := f.Against(conf.RebootNode, false); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	good.NoReboot = true
	if why := good.Against(conf.RebootNode, true) + good.Against(conf.ResetGPU, false); why != "" {
		t.Errorf("%s: neither a command nor a reset needs RebootProgram", why)
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	var r Record
	reset := func(faults ...Fault) *Next {
		return &Next{Remedy: conf.Remedy{Name: "reset", Do: conf.ResetGPU}, Faults: faults}
	}
	r.Begin(reset(Fault{Code: "a.b", Device: gpu3}, Fault{Code: "c.d", Device: gpu5}), "boot", now)
	if len(r.Open()) != 2 {
		t.Fatalf("%d open, want 2", len(r.Open()))
	}
	for _, a := range r.Open() {
		a.Done = true
	}
	r.Holds = []Hold{{Fault: Fault{Code: "a.b", Device: gpu3}}}
	if len(r.Open()) != 0 {
		t.Error("attempts stay open")
	}
	if got := r.Clear("nothing"); got != nil {
		t.Errorf("cleared %v", got)
	}
	if got := r.Clear("gpu3"); len(got) != 1 || len(r.Attempts) != 1 || len(r.Holds) != 0 {
		t.Errorf("cleared %v, left %+v", got, r)
	}
	if got := r.Clear(""); len(got) != 1 || len(r.Attempts) != 0 {
		t.Errorf("cleared %v, left %+v", got, r)
	}
	r.Begin(reset(Fault{Code: "a.b"}), "boot", now)
	r.Attempts[0].Done = true
	if r.Begin(reset(Fault{Code: "a.b"}), "boot", now.Add(91*24*time.Hour)); len(r.Attempts) != 1 {
		t.Errorf("%d attempts, want the old one dropped", len(r.Attempts))
	}
}

// An empty file is not a new record: a power cut has lost its holds.
func TestParse(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{"": "damaged", `{"version":1,`: "damaged", `{"version":9}`: "version 9, want 1"} {
		if _, err := Parse([]byte(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", data, err, want)
		}
	}
}

func TestHoldFinding(t *testing.T) {
	t.Parallel()
	h := Hold{Fault: Fault{Code: "gpu.xid.79", Device: gpu3, Check: "check_gpu_xid"}, Tried: []string{"2 x reboot-node"}}
	f := h.Finding()
	const want = "check_gpu_xid:  gpu.xid.79 has returned after 2 x reboot-node: replace the part, then run nhc-gpu clear --remedy"
	if f.Message != want || f.Severity != checks.Fail || f.Code != HoldCode || f.Remedy != checks.ReseatOrRMA {
		t.Errorf("%+v", f)
	}
	h.Why = "the reboot is gone"
	if f = h.Finding(); f.Message != "check_gpu_xid:  the reboot is gone: repair the node, then run nhc-gpu clear --remedy" || f.Remedy != checks.NoRemedy {
		t.Errorf("%+v", f)
	}
}
