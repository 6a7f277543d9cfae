package xid

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Events that the ring buffer has lost are still known, and events that it still has
// are not counted twice.
func TestXidRingWrap(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")
	m.lines = nil
	m.say("usb 1-1: new device")
	m.look("fail xid.79 reboot-node")
	for range 3 {
		m.up += 10_000
		m.look("fail xid.79 reboot-node")
	}
	var l xidLedger
	if err := m.env().Host.Recall(xidLedgerName, &l); err != nil || len(l.Events) != 1 || l.Events[0].Lines != 1 {
		t.Errorf("%+v, %v", l.Events, err)
	}
	m.reboot()
	m.look()
}

// Without a ledger only the log counts.
func TestXidNoMemory(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.past = ""
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")
	m.look("fail xid.79 reboot-node")
	m.lines = nil
	m.say("usb 1-1: new device")
	m.look()
}

// A node without a disk keeps its ledger until the next boot, and reports that once.
func TestXidSpareMemory(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.spare = "/run/past"
	m.write("past", "a file where a directory should be")
	m.xid(79, "off")
	got := m.check.Run(t.Context(), m.env())
	want := "check_gpu_xid:  write /past/xid.json: not a directory; until this is repaired the data is kept in /run/past, which a reboot may empty"
	if len(got) != 2 || got[0].Severity != checks.Warn || got[0].Message != want {
		t.Errorf("%+v, want a warning: %s", got, want)
	}
	m.look("fail xid.79 reboot-node")
	m.lines = nil
	m.say("usb 1-1: new device")
	m.look("fail xid.79 reboot-node")
	if done, err := Clear(m.env(), []string{"79"}, "uid 0"); err != nil || len(done) != 1 {
		t.Errorf("%v, %v", done, err)
	}
	m.look()
}

// While the directory of the ledger does not answer, an error that a person has cleared stays so.
func TestXidMemorySilent(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.spare = "/run/past"
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")
	if done, err := Clear(m.env(), []string{"79"}, "uid 0"); err != nil || len(done) != 1 {
		t.Fatalf("%v, %v", done, err)
	}
	m.stuck = []string{"read " + m.past}
	for range 2 {
		var got []string
		for _, f := range m.check.Run(t.Context(), m.env()) {
			if f.Code != "gpu.xid.ledger" { // the data is kept in the spare directory
				got = append(got, f.Code)
			}
		}
		if len(got) > 0 {
			t.Errorf("silent: %v", got)
		}
	}
	m.xid(95, "contained")
	m.look("fail xid.95 reset-gpu")
	m.stuck = nil
	m.look("fail xid.95 reset-gpu")
}

// A damaged file of clears is reported, and does not prevent
// another clear.
func TestXidClearsDamaged(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(54, "power")
	m.look("fail xid.54 reseat-or-rma")
	m.write("past/xid-clear.json", "{")
	m.look("warn xid.ledger", "fail xid.54 reseat-or-rma")
	if done, err := Clear(m.env(), nil, "uid 0"); err != nil || len(done) != 1 {
		t.Errorf("%v, %v", done, err)
	}
	m.look()
}

// An empty log does not remove events.
func TestXidEmptyLog(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")
	m.lines = nil
	m.look("fail xid.79 reboot-node")
}

// A log that starts again with the same boot id is another log than that of the cursor.
func TestXidAnotherLog(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	for range 10 {
		m.xid(92, "x")
	}
	m.xid(62, "halt")
	m.look("warn xid.92", "fail xid.62 reset-gpu")
	m.lines, m.seq = nil, 0
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")
}

func TestXidBurst(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	for i := range 50 {
		m.xid(95, fmt.Sprintf("pid=%d, name=a, uncontained", i))
		m.up += 100
	}
	m.up += 1000
	m.xid(95, "uncontained")
	m.look("fail xid.95 reset-gpu")
	var l xidLedger
	if err := m.env().Host.Recall(xidLedgerName, &l); err != nil || len(l.Events) != 2 || l.Events[0].Lines != 50 {
		t.Errorf("%+v, %v", l.Events, err)
	}
}

func TestXidPasses(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.check.Passes = 2
	m.xid(79, "off")
	m.xid(54, "power")
	hold := "fail xid.54 reseat-or-rma"
	m.look(hold, "fail xid.79 reboot-node")
	m.look(hold, "fail xid.79 reboot-node")
	m.up += 10
	m.xid(79, "off")
	m.look(hold, "fail xid.79 reboot-node")
	m.look(hold, "fail xid.79 reboot-node")
	m.look(hold, "fail xid.79 reboot-node")
	m.look(hold)
}

func TestXidClear(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(79, "off")
	m.xid(54, "power")
	m.say("NVRM: Xid (PCI:0000:18:00): 54, power")
	m.say("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 x")
	m.look("fail xid.54 reseat-or-rma", "fail xid.54 reseat-or-rma", "fail xid.79 reboot-node", "fail sxid.20034 reset-gpu")
	clearing := func(words ...string) string {
		t.Helper()
		done, err := Clear(m.env(), words, "uid 0")
		if err != nil {
			return err.Error()
		}
		return strings.Join(done, "; ")
	}
	if got := clearing("gpu6", "54"); got != "0000:c1:00.0 Xid 54" {
		t.Errorf("%q", got)
	}
	m.look("fail xid.54 reseat-or-rma", "fail xid.79 reboot-node", "fail sxid.20034 reset-gpu")
	if got := clearing("20034"); got != "0000:05:00.0 SXid 20034" {
		t.Errorf("%q", got)
	}
	if got := clearing("0000:18:00"); got != "0000:18:00.0 Xid 54" {
		t.Errorf("%q", got)
	}
	m.look("fail xid.79 reboot-node")
	m.up++
	m.xid(54, "power") // after the clear: a new event
	m.look("fail xid.54 reseat-or-rma", "fail xid.79 reboot-node")
	if got := clearing(); got != "0000:c1:00.0 Xid 54; 0000:c1:00.0 Xid 79" {
		t.Errorf("%q", got)
	}
	m.look()
	m.reboot()
	m.xid(79, "off") // the clear also applies to the events of the week
	m.look("fail xid.79 reboot-node")
	for _, bad := range [][]string{{"here"}, {"79", "80"}, {"gpu6", "x"}, {"gpu6", "54", "more"}} {
		if got := clearing(bad...); !strings.Contains(got, "want") {
			t.Errorf("%q: %q", bad, got)
		}
	}
	if got := clearing("gpu9", "79"); !strings.Contains(got, "this node has no gpu9: its driver has 8 GPUs") {
		t.Errorf("%q", got)
	}
	drivers := filepath.Join(m.root, "proc/driver/nvidia/gpus")
	if err := os.Rename(drivers, drivers+"-"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"clear gpu3 79: the driver's list of GPUs cannot be read (open /proc/driver/nvidia/gpus: ", "): name the PCI address instead: nhc-gpu clear 0000:66:00.0 79"} {
		if got := clearing("gpu3", "79"); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	m.past = ""
	if got := clearing(); !strings.Contains(got, "no data is kept between runs") {
		t.Errorf("%q", got)
	}
}

// A clock that is set after boot does not change the age of events: their times
// are corrected.
func TestXidClockStep(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.write("proc/stat", "cpu 1\nbtime 86400\n") // 1970
	m.xid(92, "x")
	m.look("warn xid.92")
	m.write("proc/stat", fmt.Sprintf("cpu 1\nbtime %d\n", checktest.XidBooted))
	m.up += 10
	m.xid(92, "x") // the same burst
	m.look("warn xid.92")
	var l xidLedger
	if err := m.env().Host.Recall(xidLedgerName, &l); err != nil || len(l.Events) != 1 || l.Events[0].First != checktest.XidBooted+100 || l.Events[0].Lines != 2 {
		t.Errorf("%+v, %v", l.Events, err)
	}
	m.write("proc/stat", fmt.Sprintf("cpu 1\nbtime %d\n", checktest.XidBooted+2)) // the rounding of a second
	m.look("warn xid.92")
	if err := m.env().Host.Recall(xidLedgerName, &l); err != nil || l.Events[0].First != checktest.XidBooted+100 {
		t.Errorf("%+v, %v", l.Events, err)
	}
}

// The driver is not queried about events that are over or ignored.
func TestXidNobodyAsks(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	asked := 0
	look := func() {
		t.Helper()
		env := m.env()
		env.GPUStates = func() []checks.GPUState { asked++; return nil }
		m.check.Run(t.Context(), env)
	}
	m.xid(37, "nothing")
	look()
	if asked != 0 {
		t.Error("asked about an Xid that is ignored")
	}
	m.xid(31, "pid=1, name=a, x")
	if look(); asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
	m.up += 2 * day
	if look(); asked != 1 {
		t.Error("asked about an Xid that is over")
	}
}

// Several lines of a configuration count as one run.
func TestXidLines(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(69, "pid=1, name=a, x")
	m.xid(79, "off")
	env := m.env()
	for _, c := range []struct{ codes, want string }{{"79", "fail"}, {"!79", "warn"}, {"!79", "ok"}} {
		got := (&gpuXid{Hours: "24", Codes: c.codes, Passes: 2}).Run(t.Context(), env)
		if len(got) != 1 || got[0].Severity.String() != c.want {
			t.Errorf("-c %s: %+v, want one of severity %s", c.codes, got, c.want)
		}
	}
}

// A wrong clock in an earlier boot does not affect a clear.
func TestXidClearByBoot(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(54, "power")
	m.look("fail xid.54 reseat-or-rma")
	m.reboot()
	m.look("fail xid.54 reseat-or-rma")
	if done, err := Clear(m.env(), nil, "uid 0"); err != nil || len(done) != 1 {
		t.Errorf("%v, %v", done, err)
	}
	m.look()
	m.boot -= 3 // a boot with a clock days behind
	m.reboot()
	m.write("proc/sys/kernel/random/boot_id", "another\n")
	m.xid(54, "power")
	m.look("fail xid.54 reseat-or-rma")
}

// An operator can clear errors that no run has seen yet.
func TestXidClearFirst(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(79, "off")
	if done, err := Clear(m.env(), []string{"79"}, "uid 0"); err != nil || len(done) != 1 {
		t.Errorf("%v, %v", done, err)
	}
	m.look()
}

// With any content of the ledger's file a run ends, and writes
// a valid ledger.
func FuzzXidLedger(f *testing.F) {
	f.Add([]byte(`{"boot":"b","cursor":5,"resets":{"":1},"events":[{"boot":"b","gpu":"0000:c1:00.0","key":{"code":79},"first":5,"last":6,"seq":4,"lines":1}]}`))
	f.Add([]byte(`{"boot":"a","events":[{"boot":"a","gpu":"","key":{"code":154},"action":-7},{"boot":"b","key":{"code":145,"switch":true},"raised":"RESET"}]}`))
	f.Add([]byte(`{"events":[{"first":-9223372036854775808,"last":9223372036854775807,"passes":-1,"epoch":-5}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &xidLedger{}
		if json.Unmarshal(data, l) != nil || !l.sound() {
			return
		}
		l.begin("b")
		scan := newXidScan(l, func() int64 { return 100 })
		scan.add(probe.KernelRecord{Seq: 9, Text: []byte(checktest.OnC1 + "79, off")})
		if !slices.ContainsFunc(l.Events, func(e xidEvent) bool { return e.GPU == c1 && e.Key.Code == 79 && e.Boot == "b" }) {
			t.Errorf("the new event is not there: %+v", l.Events)
		}
		j := &xidJudge{policy: &xidPolicy{}, ledger: l, now: 200, hours: day, passes: 1}
		r := &xidReporter{xidJudge: j}
		for _, x := range r.makeFindings(j.findCases()) {
			if x.Code == "" || strings.ContainsAny(x.Message, "\n") {
				t.Errorf("%+v", x)
			}
		}
		l.forget(200)
		if !l.sound() {
			t.Errorf("%+v", l)
		}
	})
}
