package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/remedy"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// The remedies of a fault are tried from weak to strong. A try is over when the checks have run after it, and a
// reboot or a power cycle when the node has booted. After the last one only a person returns the node.
func TestLadder(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.reset(needsReset)
	p.found(needsReset)
	p.on(`"systemctl is-active "*) exit 3 ;;
"nvidia-smi --query-gpu="*) exit 1 ;;`) // no service runs, and the GPU does not answer
	const (
		fault  = "gpu.recovery.reset of gpu3 0000:13:00.0"
		failed = " for " + fault + ": failed: afterwards check_gpu_recovery:  bad"
		held   = "held for RMA: " + fault + ": 1 x reset-gpu, 1 x reboot-node, 1 x power-cycle did not help"
		is     = setReason + " : "
	)
	p.now = p.now.Add(-time.Minute) // it waits for a health check, which does not belong to the try
	p.want(p.run(), result{
		"reset-gpu" + failed, "",
		is + "remedy reset-gpu\nnvidia-smi --gpu-reset -i 0000:13:00.0\n" + checkAgain + setReason + "\n", "reset-gpu: failed",
	})
	p.now = p.now.Add(time.Minute)
	if begin := p.record().Attempts[0].Begin; begin.Before(p.now) {
		t.Errorf("the try began at %s, want the time of its command", begin)
	}
	p.want(p.run(), result{"reboot-node for " + fault + ": waits for the boot", "", reboots, "reset-gpu: failed, reboot-node: under way"})
	p.want(p.run(), result{"reboot-node for " + fault + ": waits for the boot since ", "", "", "reset-gpu: failed, reboot-node: under way"})
	p.boot()
	p.want(p.run(), result{"reboot-node" + failed, "", checkAgain, "reset-gpu: failed, reboot-node: failed"})
	p.want(p.run(), result{
		"power-cycle for " + fault + ": waits for the boot", "",
		is + "remedy power-cycle\nown now\n", "reset-gpu: failed, reboot-node: failed, power-cycle: under way",
	})
	if e, err := event.Parse([]byte(p.Read("event"))); err != nil || e.Context != conf.HealthCheck || len(e.Results) != 1 {
		t.Errorf("the site's program got %q, want the event of the health check", p.Read("event"))
	}
	p.boot()
	const tries = "reset-gpu: failed, reboot-node: failed, power-cycle: failed"
	p.want(p.run(), result{"power-cycle" + failed, "", checkAgain + setReason + "\n", tries})
	p.want(p.run(), result{held, "", is + "held for RMA\n", tries + ", held"})
	p.want(p.run(), result{"no remedy: check_gpu_recovery:  gpu.recovery.reset has returned after 1 x reset-gpu", "", "", tries + ", held"})
	p.Write(t, "reason", "NHC: bad\n") // a health check has drained the node again
	p.want(p.run(), result{"no remedy: ", "", is + "held for RMA\n", tries + ", held"})
	var want []string
	for _, do := range []string{"reset-gpu", "reboot-node", "power-cycle"} {
		want = append(want, "remedy "+do+" for "+fault+": begins", "remedy "+do+failed)
	}
	if diff := cmp.Diff(append(want, "remedy "+held+": a person must repair the node"), p.history()); diff != "" {
		t.Errorf("history (-want +got)\n%s", diff)
	}
}

// Without each of these conditions nothing is changed, and no try counts.
func TestWhoMayAct(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	reserve := func(begins time.Duration, flags string) func(*patient) {
		return func(p *patient) {
			const form = "2006-01-02T15:04:05"
			begin := p.now.Add(begins).Local()
			p.Write(p.t, "reservations", fmt.Sprintf("ReservationName=r1 StartTime=%s EndTime=%s Nodes=node1 Flags=%s\n",
				begin.Format(form), begin.Add(time.Hour).Format(form), flags))
		}
	}
	file := func(name, text string) func(*patient) { return func(p *patient) { p.Write(p.t, name, text+"\n") } }
	platform := func(name string) func(*patient) {
		return func(p *patient) {
			p.rows[3].Platforms = []string{name}
			if err := fakenvml.Write(p.Dir+"/root", fakenvml.Files(fakenvml.H100, 8)); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	on := func(cases string) func(*patient) { return func(p *patient) { p.on(cases) } }
	for _, tt := range []struct {
		name   string
		fault  event.Result
		change func(*patient)
		did    string
		err    string
	}{
		{"no health check has run", noService,
			func(p *patient) { _ = os.Remove(p.Dir + "/root/past/run-healthcheck.json") },
			"no remedy: no health check has run on this node", ""},
		{"it has passed", noService,
			func(p *patient) { p.healthCheck(0, slurm.BootID(), passing("check_ps_service")) },
			"no remedy: the last run found no fault", ""},
		{"it is old", noService,
			func(p *patient) { p.healthCheck(16*time.Minute, slurm.BootID(), noService) },
			"restart-app waits: the last health check is 16m0s old", ""},
		{"it is of an earlier boot", noService,
			func(p *patient) { p.healthCheck(0, "an earlier one", noService) },
			"restart-app waits: no health check since the last boot", ""},
		{"the site does not permit it", noService,
			func(p *patient) { p.rows = p.rows[:0] },
			"no remedy: ps.service: remedy none: no [remedy] of nhc.toml permits it", ""},
		{"not on this platform", noService, platform("HGX A100"),
			"no remedy: ps.service: remedy none: no [remedy]", ""},
		{"a person must repair another fault", noService, func(p *patient) {
			p.healthCheck(0, slurm.BootID(), noService, failing("check_gpu_remap", "gpu.remap.failed", checks.ReseatOrRMA, gpu3))
		}, "no remedy: gpu.remap.failed of gpu3 0000:13:00.0: remedy reseat-or-rma: no [remedy]", ""},
		{"the mode is observe", noService,
			func(p *patient) { p.Set.Put("MODE", "observe", true) }, "restart-app waits: MODE=observe: nothing is done", ""},
		{"another resource manager", noService,
			func(p *patient) { p.Set.Put("NHC_RM", "pbs", true) },
			"no remedy: the resource manager is pbs: remedies require Slurm", ""},
		{"a person has drained the node", noService,
			file("reason", "alice: disk"),
			"restart-app waits: nhc-gpu does not hold the node: it is IDLE+DRAIN for alice: disk", ""},
		{"the node is in service", noService,
			file("state", "IDLE"), "restart-app waits: nhc-gpu does not hold the node: it is IDLE", ""},
		{"a drill has drained the node", noService,
			file("reason", "NHC: [drill] bad"), "restart-app waits: nhc-gpu does not hold the node", ""},
		{"a person has ordered a reboot", noService,
			file("state", "IDLE+DRAIN+REBOOT_REQUESTED"), "restart-app waits: the node has an order: a reboot is requested", ""},
		{"jobs are on the node", noService,
			file("jobs", "7\n8_1"), "restart-app waits: the node is not empty: job 7, 8_1", ""},
		{"maintenance is near", noService,
			reserve(time.Hour, "MAINT"), "restart-app waits: reservation r1 for maintenance, from ", ""},
		{"another node of its partition is in repair", noService,
			file("groups", "main|drain|1|node1|NHC: bad\nmain|drain|1|n02|NHC: x : remedy reset-gpu"),
			"restart-app waits: 1 other nodes of a partition of this node and 1 of the cluster are in repair, the limits are 1 and 2", ""},
		{"nothing would count reboots", needsBoot,
			func(p *patient) { p.keep(remedy.Record{Boot: slurm.BootID()}) },
			"reboot-node waits: the record of remedies has not outlived a boot yet", ""},
		{"Slurm cannot reboot", needsBoot,
			file("config", "RebootProgram = (null)\nSLURM_VERSION = 22.05.8"),
			"reboot-node waits: slurm.conf has no RebootProgram", ""},
		{"the state is unknown", noService,
			on(`"scontrol -o show node "*) echo garbage; exit ;;`), "", `parse node "garbage"`},
		{"the jobs are unknown", noService,
			on(`"squeue "*) echo 'Unable to contact slurm controller' >&2; exit 1 ;;`),
			"", "list the jobs of node node1: run squeue: exit status 1: Unable to contact slurm controller"},
		{"no squeue", noService, func(p *patient) { p.without("squeue") }, "", "list the jobs of node node1"},
		{"the reservations are unknown", noService, on(`"scontrol -o show res"*) exit 1 ;;`), "", "list the reservations"},
		{"the nodes in repair are unknown", noService,
			on(`"sinfo -h -a "*) echo garbage; exit ;;`),
			"", `count the nodes in repair: no answer to the question: parse "garbage"`},
		{"slurm.conf is unknown", noService, on(`"scontrol show config") exit 1 ;;`), "", "read the configuration of Slurm"},
		// Slurm can start health checks of all nodes in the same moment: nhc-gpu waits, and looks again.
		{"a job comes meanwhile", noService,
			on(`"squeue "*) from 2 && echo 7 ;;`),
			"restart-app waits: the node is not empty: job 7", ""},
		{"the fault ends meanwhile", noService, func(p *patient) {
			p.healthCheck(0, slurm.BootID(), passing("check_ps_service"))
			p.Write(p.t, "passes", p.Read("root/past/run-healthcheck.json"))
			p.healthCheck(0, slurm.BootID(), noService)
			p.on(`"scontrol show config") cp $dir/passes $dir/root/past/run-healthcheck.json ;;`)
		}, "no remedy: the last run found no fault", ""},
		{"a person drains the node at the last moment", noService,
			on(`"scontrol -o show node "*) from 3 && alice ;;`), "", slurm.ErrNotOurs.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			p.reset(tt.fault)
			tt.change(p)
			p.want(p.run(), result{tt.did, tt.err, "", ""})
			if file := p.Read("reason"); strings.Contains(file, " : ") {
				t.Errorf("reason %q", file)
			}
		})
	}
	for name, change := range map[string]func(*patient){
		"maintenance is later":                 reserve(3*time.Hour, "MAINT"),
		"another reservation":                  reserve(time.Hour, "SPEC_NODES"),
		"a node of another partition is reset": file("groups", "main|drain|1|node1|NHC: bad\nother|drain|1|n02|NHC: x : remedy reset-gpu"),
		"a record that may not outlive a boot": func(p *patient) { p.keep(remedy.Record{Boot: slurm.BootID()}) },
		"a row for this platform":              platform("HGX H100"),
	} {
		t.Run(name, func(t *testing.T) {
			p := p.in(t)
			p.reset(noService)
			change(p)
			if next, against, err := p.repair().Choose(p.now); next.Do != conf.RestartApp || against+next.Why != "" || err != nil {
				t.Errorf("%s, %s%s, %v: want a restart", next.Do, against, next.Why, err)
			}
		})
	}
	t.Run("the node is held", func(t *testing.T) { // only its reason says so
		p := p.in(t)
		p.reset(noService)
		p.keep(remedy.Record{Holds: []remedy.Hold{{Fault: remedy.Fault{Code: "ps.service", Check: "check_ps_service"}, Why: "broken"}}})
		p.want(p.run(),
			result{"no remedy: check_ps_service:  broken: repair the node, then run ", "", setReason + " : held for RMA\n", "held"})
		p.Write(t, "reason", "alice: disk\n")
		p.want(p.run(), result{"no remedy: check_ps_service:  broken", "", "", "held"})
	})
}

// Each outcome of a remedy, by the example of the restart of a service.
func TestOutcome(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	const (
		of       = "restart-app for ps.service: "
		noted    = setReason + " : remedy restart-app\n"
		begun    = noted + restarts
		ended    = setReason + "\n"
		failed   = "restart-app: failed"
		underWay = "restart-app: under way"
		helped   = "restart-app: helped"
		checked  = begun + checkAgain + verifies
		done     = checked + ended + healthCheck
		holds    = checked + setReason + " : held for RMA\n"
	)
	for _, tt := range []struct {
		name   string
		on     string
		change func(*patient)
		want   result
	}{
		{"it helps", "", nil, result{of + "the checks pass", "", done, helped}},
		{"another fault stays", "",
			func(p *patient) { p.found(passing("check_ps_service"), needsReset) },
			result{of + "the checks pass", "", done, helped}},
		{"the program prints without end", `"systemctl restart "*) head -c 2000000 /dev/zero; exit ;;`,
			nil, result{of + "the checks pass", "", done, helped}},
		{"the program fails", `"systemctl restart "*) echo starting; echo no such unit >&2; exit 5 ;;`,
			nil, result{of + "failed: run systemctl restart sssd: exit status 5: no such unit", "", begun + ended, failed}},
		{"the program hangs", `"systemctl restart "*) exec sleep 60 ;;`,
			func(p *patient) { p.rows[3].Timeout = 100 * time.Millisecond },
			result{of + "failed: run systemctl restart sssd: ", "", noted + ended, failed}},
		{"the program is missing", "",
			func(p *patient) { p.without("systemctl") },
			result{of + "failed: run systemctl restart sssd: ", "", noted + ended, failed}},
		{"the fault stays", "",
			func(p *patient) { p.found(noService) },
			result{of + "failed: afterwards check_ps_service:  bad", "", begun + checkAgain + ended, failed}},
		{"the checks do not end", `"nhc-gpu -a "*) exit 3 ;;`,
			nil, result{of + "the checks after it left no result", "", begun + checkAgain, underWay}},
		{"the result is an older one", `"nhc-gpu -a "*) exit 3 ;;`, func(p *patient) {
			p.writeJSON("root/past/run-manual.json", event.Event{
				Schema: event.Schema, Context: conf.Manual, Time: p.now.Add(-time.Minute), Results: []event.Result{passing("check_ps_service")},
			})
		}, result{of + "the checks after it left no result", "", begun + checkAgain, underWay}},
		{"the checks cannot start", "",
			func(p *patient) { p.without("nhc-gpu") },
			result{of + "failed: run DIR/bin/nhc-gpu -a DEBUG=0 MARK_OFFLINE=0: ", "", begun + ended, failed}},
		{"the check has no result", "",
			func(p *patient) { p.found() },
			result{of + "afterwards check_ps_service had no result", "", begun + checkAgain, underWay}},
		{"a check of the site fails", `"nhc-gpu -e "*) exit 1 ;;`,
			nil,
			result{of + "failed: run DIR/bin/nhc-gpu -e check_ps_service sssd DEBUG=0: exit status 1", "", holds, failed + ", held"}},
		{"the health check afterwards fails", `"nhc-gpu DEBUG=0") exit 1 ;;`,
			nil,
			result{of + "the checks pass", "the health check after restart-app: run ", done, helped}},
		{"a person drains the node meanwhile", `"systemctl restart "*) alice ;;`,
			nil, result{of + "the checks pass", "", checked + healthCheck, helped}},
		{"slurmctld refuses the reason", `"scontrol update "*) echo 'Access denied' >&2; exit 1 ;;`,
			nil, result{"", "Access denied", noted, ""}},
		{"slurmctld refuses the reason afterwards", `"scontrol update "*"=NHC: bad") echo 'Access denied' >&2; exit 1 ;;`,
			nil, result{of + "the checks pass", "Access denied", done, helped}},
		{"slurmctld refuses the hold", `"nhc-gpu -e "*) exit 1 ;;
"scontrol update "*" : held for RMA") echo 'Access denied' >&2; exit 1 ;;`,
			nil, result{of + "failed: run ", "Access denied", holds, failed + ", held"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			p.reset(noService)
			p.on(tt.on)
			if tt.change != nil {
				tt.change(p)
			}
			got := p.run()
			if tt.name == "the program hangs" { // on a slow machine before it logs its call
				got.acts = strings.Replace(got.acts, restarts, "", 1)
			}
			p.want(got, tt.want)
		})
	}
}

// slurmctld gets the request of a reboot when the node is still ours. Without an answer it can have the request.
func TestRequestReboot(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	const of = "reboot-node for gpu.recovery.reboot of gpu3 0000:13:00.0: "
	for name, tt := range map[string]struct {
		on   string
		want result
	}{
		"accepted": {"", result{of + "waits for the boot", "", reboots, "reboot-node: under way"}},
		"refused": {`"scontrol reboot "*) echo 'Access denied' >&2; exit 1 ;;`,
			result{of + "failed: reboot node node1: run scontrol: exit status 1: Access denied", "", reboots, "reboot-node: failed"}},
		"no answer": {`"scontrol reboot "*) head -c 2000000 /dev/zero; exit ;;`,
			result{of + "waits for the boot", "reboot node node1: run scontrol: ", reboots, "reboot-node: not answered"}},
		"a person's": {`"scontrol -o show node "*) from 3 && alice ;;`,
			result{of + "failed: ", "", "", "reboot-node: failed"}},
		"an order": {`"scontrol -o show node "*) from 3 && echo IDLE+DRAIN+POWER_DOWN >$dir/state ;;`,
			result{of + "failed: reboot node node1: ", "", "", "reboot-node: failed"}},
		"no scontrol": {`"scontrol show config") from 2 && rm $dir/bin/scontrol ;;`,
			result{of + "failed: read node node1: ", "read node node1: ", "", "reboot-node: failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := p.in(t)
			p.reset(needsBoot)
			p.on(tt.on)
			p.want(p.run(), tt.want)
		})
	}
}

// A reboot or a power cycle that was begun is awaited. If the request is gone a person has cancelled it: no other
// follows, unless slurmctld has never had it.
func TestAwaitBoot(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	const (
		of    = "reboot-node for gpu.recovery.reboot of gpu3 0000:13:00.0: "
		waits = "reboot-node: under way"
		held  = setReason + " : held for RMA\n"
	)
	early := event.Result{Check: needsBoot.Check, Code: "gpu.nvlink.boot", Severity: checks.Skip}
	for _, tt := range []struct {
		name       string
		do         string // "": reboot-node
		age        time.Duration
		unanswered bool
		drill      bool
		state      string // "": still requested
		change     func(*patient)
		want       result
	}{
		{name: "requested", age: time.Minute, want: result{of + "waits for the boot since 1m0s", "", "", waits}},
		{name: "under way", age: 29 * time.Minute, state: "DOWN+DRAIN+REBOOT_ISSUED",
			want: result{of + "waits for the boot since 29m0s", "", "", waits}},
		{name: "it takes too long", age: 30 * time.Minute,
			want: result{of + "failed: no boot within 30m0s", "", "", "reboot-node: failed"}},
		{name: "the site no longer permits it", age: 31 * time.Minute,
			change: func(p *patient) { p.rows = nil }, want: result{of + "waits for the boot since 31m0s", "", "", waits}},
		{name: "cancelled", age: time.Minute, state: "IDLE+DRAIN",
			want: result{of + "failed: it is no longer requested: the node is IDLE+DRAIN", "", held, "reboot-node: failed, held"}},
		{name: "cancelled, and in service", age: time.Minute, state: "IDLE",
			want: result{of + "failed: it is no longer requested: the node is IDLE", "", "", "reboot-node: failed, held"}},
		{name: "cancelled in a drill", age: time.Minute, drill: true, state: "IDLE+DRAIN",
			want: result{of + "failed: it is no longer requested: the node is IDLE+DRAIN", "", "", "reboot-node: failed"}},
		{name: "Slurm does not show it yet", age: 9 * time.Second, state: "IDLE+DRAIN",
			want: result{of + "waits for the boot since 9s", "", "", waits}},
		{name: "the node is down", age: time.Minute, state: "DOWN+DRAIN",
			want: result{of + "waits for the boot since 1m0s", "", "", waits}},
		{name: "slurmctld does not answer", age: time.Minute, state: "IDLE+DRAIN",
			change: func(p *patient) { p.on(`"sinfo "*) exit 1 ;;`) },
			want:   result{of + "waits for the boot since 1m0s", "", "", waits}},
		{name: "no answer, and Slurm has it", age: time.Minute, unanswered: true,
			want: result{of + "waits for the boot since 1m0s", "", "", waits}},
		{name: "no answer, and Slurm does not have it", age: time.Minute, unanswered: true, state: "IDLE+DRAIN",
			want: result{of + "failed: the request got no answer, and Slurm does not have it", "", "", "reboot-node: failed"}},
		{name: "a power cycle", do: conf.PowerCycle, age: 29 * time.Minute, state: "IDLE+DRAIN",
			want: result{"power-cycle for gpu.recovery.reboot of gpu3 0000:13:00.0: waits for the boot since 29m0s",
				"", "", "power-cycle: under way"}},
		{name: "the node has booted", age: time.Hour,
			change: (*patient).boot, want: result{of + "the checks pass", "", checkAgain + healthCheck, "reboot-node: helped"}},
		{name: "it has just booted", age: 24 * time.Hour,
			change: func(p *patient) { p.boot(); p.found(early) },
			want:   result{of + "afterwards check_gpu_recovery has not judged all yet", "", checkAgain, waits}},
		{name: "no result after the boot", age: 44 * time.Minute,
			change: func(p *patient) { p.boot(); p.found() },
			want:   result{of + "afterwards check_gpu_recovery had no result", "", checkAgain, waits}},
		{name: "no result for long", age: 45 * time.Minute,
			change: func(p *patient) { p.boot(); p.found() },
			want:   result{of + "failed: afterwards check_gpu_recovery had no result", "", checkAgain, "reboot-node: failed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			p.reset(needsBoot)
			a := remedy.Attempt{
				Fault: remedy.Fault{Code: needsBoot.Code, Device: gpu3, Check: needsBoot.Check}, Name: "boot", Do: conf.RebootNode,
				Begin: p.now.Add(-tt.age), Boot: slurm.BootID(), Unanswered: tt.unanswered, Drill: tt.drill,
			}
			if tt.do != "" {
				a.Name, a.Do = "power", tt.do
			}
			p.keep(remedy.Record{Boot: "an earlier one", Attempts: []remedy.Attempt{a}})
			p.Write(t, "state", "IDLE+DRAIN+REBOOT_REQUESTED\n")
			if tt.state != "" {
				p.Write(t, "state", tt.state+"\n")
			}
			if tt.change != nil {
				tt.change(p)
			}
			p.want(p.run(), tt.want)
		})
	}
}

// Without a record of a try there is no try: nothing would end them. A remedy that can end with a boot needs the disk.
func TestRecordBeforeTry(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	for _, tt := range []struct {
		name   string
		fault  event.Result
		on     string
		spare  string
		change func(*patient)
		want   result
	}{
		{"no disk", noService, `"scontrol update "*"remedy "*) fail ;;`, "",
			nil, result{"", "remedies.json: not a directory", setReason + " : remedy restart-app\n" + setReason + "\n", ""}},
		{"a spare directory", noService, `"scontrol update "*"remedy "*) fail ;;`, "/spare",
			nil,
			result{"restart-app for ps.service: the checks after it left no result", "",
				setReason + " : remedy restart-app\n" + restarts + checkAgain, ""}},
		{"a boot", needsBoot, `"scontrol show config") from 2 && fail ;;`, "/spare",
			nil, result{"", "remedies.json: not a directory", "", ""}},
		{"a power cycle", needsBoot, `"scontrol update "*"remedy "*) fail ;;`, "/spare",
			func(p *patient) { p.rows = p.rows[1:2] },
			result{"", "remedies.json: not a directory", setReason + " : remedy power-cycle\n" + setReason + "\n", ""}},
		{"nothing is stopped for a reset", needsReset, `"systemctl is-active --quiet off") fail ;;`, "",
			nil,
			result{"reset-gpu for gpu.recovery.reset of gpu3 0000:13:00.0: failed: write /past/remedies.json: not a directory",
				"remedies.json: not a directory", setReason + " : remedy reset-gpu\n" + setReason + "\n", "reset-gpu: under way"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			p.reset(tt.fault)
			p.Set.Spare = tt.spare
			p.Pool.SetVars(p.Set.WorkerVars())
			p.on(tt.on)
			if tt.change != nil {
				tt.change(p)
			}
			did, err := p.repair().Run(p.now)
			if err := errors.Join(os.Remove(p.Dir+"/root/past"), os.Rename(p.Dir+"/root/away", p.Dir+"/root/past")); err != nil {
				t.Fatal(err)
			}
			got := result{did: did, acts: p.acts()}
			if err != nil {
				got.err = err.Error()
			}
			r := p.record()
			for range r.Open() {
				got.tries = "reset-gpu: under way"
			}
			p.want(got, tt.want)
			if kept := p.Read("root/spare/remedies.json"); strings.Contains(kept, "ps.service") != (tt.spare != "" && tt.want.err == "") {
				t.Errorf("the spare directory has %q", kept)
			}
		})
	}
}

// A remedy is carried out in a drill only if the person wants that. Tries for a real fault do not count in it: the
// node is not held for a fault that it does not have. The remedy ends the drill.
func TestDrill(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	fault := noService
	fault.Drill = true
	was := remedy.Record{Attempts: []remedy.Attempt{{
		Fault: remedy.Fault{Code: fault.Code, Check: fault.Check},
		Name:  "sssd", Do: conf.RestartApp, Begin: time.Now().Add(-time.Hour), Done: true,
	}}}
	const did = setReason + " : remedy restart-app\n" + restarts + checkAgain + verifies + setReason + "\n" + healthCheck
	for _, tt := range []struct {
		name    string
		carries bool
		record  remedy.Record
		want    result
	}{
		{"a drill", false, remedy.Record{}, result{"restart-app waits: a drill is under way: nothing is done", "", "", ""}},
		{"a drill of the remedy", true, remedy.Record{},
			result{"restart-app for ps.service: the checks pass", "", did, "restart-app: helped"}},
		{"after the last try", true, was,
			result{"restart-app for ps.service: the checks pass", "", did, "restart-app: helped, restart-app: helped"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := p.in(t)
			p.reset(fault)
			p.keep(tt.record)
			p.found(passing(fault.Check), fault)
			p.Write(t, "reason", "NHC: [drill] bad\n")
			data, err := json.Marshal(session.Drill{Version: 1, Check: fault.Check, Begin: node.ReadMoment(), For: time.Hour, Remedy: tt.carries})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p.Dir+"/run/"+wire.DrillFile, data, 0o600); err != nil {
				t.Fatal(err)
			}
			p.open()
			tt.want.acts = strings.ReplaceAll(tt.want.acts, "NHC: ", "NHC: [drill] ")
			p.want(p.run(), tt.want)
			if over := p.Read("run/"+wire.DrillFile) == ""; over != tt.carries {
				t.Errorf("the drill is over: %v, want %v", over, tt.carries)
			}
		})
	}
}

// One process carries out remedies, and no health check runs meanwhile. The checks after it can run.
func TestAlone(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	p.reset(noService)
	p.on(`"systemctl restart "*) cat $dir/run/run.lock >$dir/during ;;
"nhc-gpu -a "*) cat $dir/run/run.lock >$dir/afterwards ;;`)
	if err := node.BeginRepair(p.Node.Node, 0); err != nil {
		t.Fatal(err)
	}
	if got := p.run(); got.tries != "restart-app: helped" {
		t.Errorf("%+v, want a restart that helped", got)
	}
	if during, after := strings.TrimSpace(p.Read("during")), strings.TrimSpace(p.Read("afterwards")); during == "" || after != "" {
		t.Errorf("the lock of health checks has %q during the remedy, %q afterwards", during, after)
	}
	parent, err := process.ReadStat(os.Getppid()) // stands for another process
	if err != nil {
		t.Fatal(err)
	}
	p.Write(t, "run/remedy.lock", fmt.Sprintf(wire.LockLine, os.Getppid(), time.Now().Unix(), parent.Start))
	other := newPatient(t)
	if _, _, err := other.Pool.OpenState(p.Dir+"/run", other.Kind(), ""); err != nil {
		t.Fatal(err)
	}
	if err := node.BeginRepair(other.Node.Node, 0); !errors.Is(err, node.ErrUnderRepair) {
		t.Errorf("%v, want %v", err, node.ErrUnderRepair)
	}
}
