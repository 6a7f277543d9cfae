package repair

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/remedy"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestMain(m *testing.M) { sessiontest.Main(m) }

// These tests specify the remedies that docs/remedies.md describes. The node of a test has real workers. All its
// programs are one script, which logs its calls; a test lets it answer some of them in another way.
const programs = `umask 077
PATH=/usr/bin:/bin
dir=${0%/bin/*}
call="${0##*/} $*"
from() { echo x >>$dir/n; [ $(wc -l <$dir/n) -ge $1 ]; } # reports whether it is called for at least the Nth time
alice() { echo alice: disk >$dir/reason; }
fail() { mv $dir/root/past $dir/root/away; touch $dir/root/past; } # of the disk
echo "$call" >>$dir/calls
[ ! -e $dir/on ] || . $dir/on
case $call in
"scontrol -o show node "*) echo "NodeName=node1 State=$(cat $dir/state) CPUs=1 Reason=$(cat $dir/reason) [root@2026-11-21T06:23:00]" ;;
"scontrol -o show reservation") cat $dir/reservations ;;
"scontrol show config") cat $dir/config ;;
"scontrol update "*) for last; do :; done; echo "${last#Reason=}" >$dir/reason ;;
"scontrol reboot "*) echo IDLE+DRAIN+REBOOT_REQUESTED >$dir/state ;;
"squeue "*) cat $dir/jobs ;;
"sinfo -h -a "*) cat $dir/groups ;;
"sinfo "*) echo "$(cat $dir/state) $(cat $dir/reason)" ;;
"systemctl is-active --quiet off") exit 3 ;;
"nvidia-smi --query-gpu=pci.bus_id "*) printf '0000:10:00.0\n0000:11:00.0\n' ;;
"nvidia-smi --query-gpu="*) cat $dir/modes ;;
"nvidia-smi --gpu-reset "*) cp $dir/afterwards $dir/modes ;;
"nhc-gpu -a "*) sed "s/0001-01-01T00:00:00Z/$(date -u +%Y-%m-%dT%H:%M:%SZ)/" $dir/found >$dir/root/past/run-manual.json ;;
"own "*) cat >$dir/event ;;
esac`

// questions are the beginnings of the calls that change nothing.
var questions = []string{"scontrol -o show ", "scontrol show ", "squeue ", "sinfo ", "nvidia-smi --query-gpu=", "systemctl is-active "}

// The other calls. The first is followed by an addition.
const (
	setReason   = "scontrol update State=DRAIN NodeName=node1 Reason=NHC: bad"
	checkAgain  = "nhc-gpu -a DEBUG=0 MARK_OFFLINE=0\n"
	verifies    = "nhc-gpu -e check_ps_service sssd DEBUG=0\n"
	healthCheck = "nhc-gpu DEBUG=0\n" // which returns the node
	restarts    = "systemctl restart sssd\n"
	reboots     = "scontrol reboot reason=NHC: bad node1\n"
)

// site permits each remedy; a try of each is enough for the tests.
const site = `
[remedy.sssd]
do = "restart-app"
codes = ["ps.service"]
services = ["sssd"]
verify = ["check_ps_service sssd"]
attempts = 1
[remedy.reset]
do = "reset-gpu"
services = ["dcgm", "off"]
attempts = 1
[remedy.boot]
do = "reboot-node"
attempts = 1
[remedy.power]
do = "power-cycle"
codes = ["gpu.recovery"]
command = ["DIR/bin/own", "now"]
attempts = 1
`

var (
	gpu3       = checks.Device{Kind: "gpu", Name: "gpu3", PCI: fakenvml.Address(3), UUID: fakenvml.UUID(3)}
	noService  = failing("check_ps_service", "ps.service", checks.NoRemedy, checks.Device{})
	needsReset = failing("check_gpu_recovery", "gpu.recovery.reset", checks.ResetGPU, gpu3)
	needsBoot  = failing("check_gpu_recovery", "gpu.recovery.reboot", checks.RebootNode, gpu3)
)

func failing(check, code string, r checks.Remedy, d checks.Device) event.Result {
	return event.Result{Check: check, Line: check, Code: code, Severity: checks.Fail, Remedy: r, Device: d, Message: check + ":  bad"}
}

func passing(check string) event.Result {
	return event.Result{Check: check, Line: check, Severity: checks.OK}
}

// patient is a node that nhc-gpu has drained.
type patient struct {
	*sessiontest.Node
	t    *testing.T
	rows []conf.Remedy
	now  time.Time
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	return &patient{Node: sessiontest.New(t, slurm.HealthCheck), t: t}
}

// in reports to a subtest.
func (p *patient) in(t *testing.T) *patient {
	q := *p
	q.t = t
	return &q
}

// reset makes the last health check of the node one that has found failures. Their remedy helps, and nothing
// prevents it.
func (p *patient) reset(failures ...event.Result) {
	t := p.t
	t.Helper()
	for _, name := range []string{"root", "run", "on", "calls", "event", "n"} {
		if err := os.RemoveAll(filepath.Join(p.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"scontrol", "sinfo", "squeue", "systemctl", "nvidia-smi", "nhc-gpu", "own"} {
		p.Script(t, "bin/"+name, programs)
	}
	for name, text := range map[string]string{
		"state": "IDLE+DRAIN\n", "reason": "NHC: bad\n", "jobs": "", "reservations": "No reservations in the system\n",
		"groups": "main|drain|1|node1|NHC: bad\nmain|idle|9|n[02-10]|none\n",
		"config": "Configuration data as of now\nRebootProgram = /sbin/reboot\nSLURM_VERSION = 22.05.8\n",
		"modes":  "Enabled, 500.00, Default, Disabled, Disabled\n", "afterwards": "Disabled, 700.00, Default, Disabled, Disabled\n",
		"root/proc/stat": "btime 1\n", "root/proc/sys/kernel/random/boot_id": "now\n", "root/dev/kmsg": "",
	} {
		p.Write(t, name, text)
	}
	var passes []event.Result
	for _, f := range failures {
		passes = append(passes, passing(f.Check))
	}
	c, err := conf.ParseTOML("nhc.toml", []byte(strings.ReplaceAll(site, "DIR", p.Dir)))
	if err != nil {
		t.Fatal(err)
	}
	p.rows, p.Guard, p.now = c.Remedies, conf.DefaultGuard(), time.Now().Truncate(time.Second)
	for name, value := range map[string]string{"MODE": "", "NHC_RM": "slurm", "HOSTROOT": p.Dir + "/root", "PATH": p.Dir + "/bin"} {
		p.Set.Put(name, value, true)
	}
	p.Set.Past, p.Set.Spare = "/past", ""
	p.Pool.SetVars(p.Set.WorkerVars())
	p.open()
	p.found(passes...)
	p.healthCheck(0, slurm.BootID(), failures...)
	p.keep(remedy.Record{Boot: "an earlier one"})
}

// open reads the state directory of the node.
func (p *patient) open() {
	p.t.Helper()
	if _, doubts, err := p.Pool.OpenState(p.Dir+"/run", p.Kind(), ""); err != nil || doubts != nil {
		p.t.Fatal(err, doubts)
	}
}

func (p *patient) writeJSON(name string, v any) {
	p.t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		p.t.Fatal(err)
	}
	p.Write(p.t, name, string(data))
}

// healthCheck leaves the event of a health check.
func (p *patient) healthCheck(age time.Duration, boot string, results ...event.Result) {
	p.t.Helper()
	p.writeJSON("root/past/run-healthcheck.json", event.Event{
		Schema: event.Schema, Node: "node1", Context: conf.HealthCheck, Time: p.now.Add(-age), Boot: boot, Results: results,
	})
}

// found sets the results of the checks after a remedy.
func (p *patient) found(results ...event.Result) {
	p.t.Helper()
	p.writeJSON("found", event.Event{Schema: event.Schema, Node: "node1", Context: conf.Manual, Results: results})
}

// keep stores a record of remedies.
func (p *patient) keep(r remedy.Record) {
	p.t.Helper()
	r.Version = remedy.NewRecord().Version
	p.writeJSON("root/past/remedies.json", r)
}

func (p *patient) record() remedy.Record {
	p.t.Helper()
	r, err := remedy.Parse([]byte(p.Read("root/past/remedies.json")))
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// boot boots the node.
func (p *patient) boot() {
	p.t.Helper()
	r := p.record()
	for i := range r.Attempts {
		r.Attempts[i].Boot = "an earlier one"
	}
	p.keep(r)
	p.Write(p.t, "state", "IDLE+DRAIN\n")
}

// on sets how programs react: cases of sh, which match a call.
func (p *patient) on(cases string) {
	p.t.Helper()
	p.Write(p.t, "on", "case $call in\n"+cases+"\nesac\n")
}

// without removes a program.
func (p *patient) without(program string) {
	p.t.Helper()
	if err := os.Remove(p.Dir + "/bin/" + program); err != nil {
		p.t.Fatal(err)
	}
}

func (p *patient) repair() *Repair {
	p.t.Helper()
	r, err := New(p.Node.Node, p.rows, p.Dir+"/bin/nhc-gpu", []string{"DEBUG=0"})
	if err != nil {
		p.t.Fatal(err)
	}
	r.spread = 1
	return r
}

// result is the result of a run of the remedies.
type result struct {
	did   string // its text; an expected one is the beginning
	err   string // "" for none; an expected one is a part
	acts  string // the calls that change something
	tries string // the record: REMEDY: RESULT, ...
}

// run carries out the remedy that is due, or goes on with one.
func (p *patient) run() (got result) {
	p.t.Helper()
	if err := os.WriteFile(p.Dir+"/calls", nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
	did, err := p.repair().Run(p.now)
	if got.did = strings.ReplaceAll(did, p.Dir, "DIR"); err != nil {
		got.err = err.Error()
	}
	var tries []string
	r := p.record()
	for _, a := range r.Attempts {
		switch {
		case a.Error != "":
			tries = append(tries, a.Do+": failed")
		case a.Done:
			tries = append(tries, a.Do+": helped")
		case a.Unanswered:
			tries = append(tries, a.Do+": not answered")
		default:
			tries = append(tries, a.Do+": under way")
		}
	}
	if len(r.Holds) > 0 {
		tries = append(tries, "held")
	}
	got.acts, got.tries = p.acts(), strings.Join(tries, ", ")
	return got
}

// acts returns the calls that change something, one a line.
func (p *patient) acts() string {
	lines := slices.Collect(strings.Lines(p.Read("calls")))
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		return slices.ContainsFunc(questions, func(q string) bool { return strings.HasPrefix(line, q) })
	}), "")
}

// want compares a result with the expected one.
func (p *patient) want(got, want result) {
	p.t.Helper()
	fits := strings.HasPrefix(got.did, want.did) && strings.Contains(got.err, want.err)
	if !fits || want.did == "" && got.did != "" || want.err == "" && got.err != "" {
		p.t.Errorf("did %q, error %q, want %q, %q", got.did, got.err, want.did, want.err)
	}
	if got.acts != want.acts {
		p.t.Errorf("acted\n%s\nwant\n%s", got.acts, want.acts)
	}
	if got.tries != want.tries {
		p.t.Errorf("tries %q, want %q", got.tries, want.tries)
	}
}

// history returns the texts of the node's history.
func (p *patient) history() (list []string) {
	p.t.Helper()
	events, err := outputs.History(p.Node.Node, time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range events {
		list = append(list, e.Message)
	}
	return list
}
