package slurm

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// patient returns a controller of a node that it has drained, and its fake.
func patient(t *testing.T) (*Controller, *fake) {
	t.Helper()
	f := &fake{state: "IDLE", rebootProgram: "/sbin/reboot", groups: "main|drain|1|gpu01|NHC: x\nmain|idle|9|gpu[02-10]|none\n"}
	c := controller(t, f)
	if _, err := c.Act(t.Context(), failing, HealthCheck); err != nil {
		t.Fatal(err)
	}
	f.calls = nil
	return c, f
}

func TestAskPatient(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)
	for name, test := range map[string]struct {
		change func(f *fake)
		want   func(p *Patient)
	}{
		"free":                   {func(*fake) {}, func(*Patient) {}},
		"a person's drain":       {func(f *fake) { f.reason = "alice: disk" }, func(p *Patient) { p.Ours = false }},
		"another NHC's drain":    {func(f *fake) { f.reason = "NHC: something else" }, func(p *Patient) { p.Ours = false }},
		"a drill":                {func(f *fake) { f.reason = "NHC: [drill] x" }, func(p *Patient) { p.Ours = false }},
		"in service":             {func(f *fake) { f.state, f.reason = "IDLE", "" }, func(p *Patient) { p.Ours = false }},
		"Slurm's addition":       {func(f *fake) { f.reason += " : reboot issued" }, func(*Patient) {}},
		"jobs":                   {func(f *fake) { f.jobs = "7\n8_1\n" }, func(p *Patient) { p.Jobs = []string{"7", "8_1"} }},
		"no RebootProgram":       {func(f *fake) { f.rebootProgram = "" }, func(p *Patient) { p.NoReboot = true }},
		"no reservation":         {func(f *fake) { f.reservations = "No reservations in the system\n" }, func(*Patient) {}},
		"maintenance soon":       {reserve("2026-11-23T12:30:00", "2026-11-23T14:00:00", "gpu[01-04]", "MAINT,IGNORE_JOBS"), func(p *Patient) { p.Maintenance = "r1 for maintenance, from 2026-11-23T12:30:00" }},
		"maintenance now":        {reserve("2026-11-22T12:30:00", "2026-11-24T14:00:00", "gpu01", "MAINT"), func(p *Patient) { p.Maintenance = "r1 for maintenance, from 2026-11-22T12:30:00" }},
		"maintenance later":      {reserve("2026-11-23T14:30:00", "2026-11-23T15:00:00", "gpu01", "MAINT"), func(*Patient) {}},
		"maintenance over":       {reserve("2026-11-22T12:30:00", "2026-11-23T11:00:00", "gpu01", "MAINT"), func(*Patient) {}},
		"maintenance of another": {reserve("2026-11-23T12:30:00", "2026-11-23T14:00:00", "gpu[02-04]", "MAINT"), func(*Patient) {}},
		"another reservation":    {reserve("2026-11-23T12:30:00", "2026-11-23T14:00:00", "gpu01", "SPEC_NODES"), func(*Patient) {}},
		"another node reboots": {func(f *fake) { f.groups += "main|boot^|1|gpu11|NHC: x : reboot issued\n" }, func(p *Patient) {
			p.Full = "1 other nodes of a partition of this node and 1 of the cluster are in repair, the limits are 1 and 2"
		}},
		"another GPU is reset": {func(f *fake) { f.groups += "main|drain|1|gpu11|NHC: x : remedy reset-gpu\n" }, func(p *Patient) {
			p.Full = "1 other nodes of a partition of this node and 1 of the cluster are in repair, the limits are 1 and 2"
		}},
		"a reason that stayed after a resume": {func(f *fake) { f.groups += "main|idle|1|gpu11|NHC: x : remedy reset-gpu\n" }, func(*Patient) {}},
		"another node is held":                {func(f *fake) { f.groups += "main|drain|1|gpu11|NHC: x : held for RMA\n" }, func(*Patient) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, f := patient(t)
			c.Now = func() time.Time { return now }
			test.change(f)
			got, err := AskPatient(t.Context(), c, defaults, 2*time.Hour, false)
			if err != nil {
				t.Fatal(err)
			}
			want := Patient{Ours: true}
			test.want(&want)
			if got.Ours != want.Ours || !slices.Equal(got.Jobs, want.Jobs) || got.Maintenance != want.Maintenance || got.Full != want.Full || got.NoReboot != want.NoReboot {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	c, f := patient(t)
	f.on = always(refused, "jobs")
	if _, err := AskPatient(t.Context(), c, defaults, time.Hour, false); err == nil || !strings.Contains(err.Error(), "list the jobs of node gpu01") {
		t.Errorf("%v: want an error, since the jobs are unknown", err)
	}
}

// reserve adds a reservation.
func reserve(start, end, nodes, flags string) func(*fake) {
	return func(f *fake) {
		f.reservations = "ReservationName=r1 StartTime=" + start + " EndTime=" + end + " Duration=01:30:00 Nodes=" + nodes + " NodeCnt=1 CoreCnt=16 Features=(null) Flags=" + flags + " TRES=cpu=16\n"
	}
}

// The addition changes nothing about the owner of the drain.
func TestAddToReason(t *testing.T) {
	t.Parallel()
	c, f := patient(t)
	f.reason = ourReason + " : remedy power-cycle : reboot issued"
	for _, step := range []struct{ add, want string }{
		{"remedy reset-gpu", ourReason + " : remedy reset-gpu"}, {HeldForRMA, ourReason + " : held for RMA"}, {"", ourReason},
	} {
		if err := AddToReason(t.Context(), c, step.add); err != nil || f.reason != step.want {
			t.Errorf("%v: reason %q, want %q", err, f.reason, step.want)
		}
		f.calls = nil
		if o, err := c.Act(t.Context(), failing, HealthCheck); err != nil || o.Action != None || o.Reported != ReportedDrained {
			t.Errorf("%q: %+v, %v: want the drain to stay ours", f.reason, o, err)
		}
	}
	if err := AddToReason(t.Context(), c, HeldForRMA); err != nil {
		t.Fatal(err)
	}
	if o, err := c.Act(t.Context(), failing, HealthCheck); err != nil || o.OurReason != ourReason+" : held for RMA" {
		t.Errorf("%v: held for %q, want the addition", err, o.OurReason)
	}
	f.calls, f.reason = nil, ourReason // a person has removed it
	if o, err := c.Act(t.Context(), failing, HealthCheck); err != nil || o.Reported != ReportedDrained {
		t.Errorf("%+v, %v: want the drain to stay ours", o, err)
	}
	f.calls = nil
	if err := AddToReason(t.Context(), c, ""); err != nil || slices.ContainsFunc(f.calls, func(s string) bool { return strings.HasPrefix(s, "DRAIN") }) {
		t.Errorf("%v: calls %q, want no change", err, f.calls)
	}
	c, f = patient(t)
	if _, err := c.Act(t.Context(), Verdict{Message: "gpu3 held for RMA (check_gpu_count) [remedy.hold]"}, HealthCheck); err != nil {
		t.Fatal(err)
	}
	if err := AddToReason(t.Context(), c, HeldForRMA); err != nil || strings.Count(f.reason, HeldForRMA) != 1 {
		t.Errorf("%v: reason %q, want no addition", err, f.reason)
	}
	f.reason = "alice: disk"
	if err := AddToReason(t.Context(), c, HeldForRMA); !errors.Is(err, ErrNotOurs) || f.reason != "alice: disk" {
		t.Errorf("%v: reason %q, want alice's", err, f.reason)
	}
}

func TestReboot(t *testing.T) {
	t.Parallel()
	c, f := patient(t)
	f.reason += " : remedy reset-gpu"
	if err := Reboot(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if want := "reboot reason=" + ourReason + " gpu01"; f.calls[len(f.calls)-1] != want {
		t.Errorf("calls %q, want %q last", f.calls, want)
	}
	if err := Reboot(t.Context(), c); err == nil || !strings.Contains(err.Error(), "it is rebooting") {
		t.Errorf("%v: want no second request", err)
	}
	// A person cancels it: Slurm forgets our drain, and the next failing run drains again.
	f.state, f.reason = "IDLE", ""
	if o, err := c.Act(t.Context(), failing, HealthCheck); err != nil || o.Action != Drain {
		t.Errorf("%+v, %v: want a drain", o, err)
	}
	f.state, f.reason = "IDLE+DRAIN", "alice: disk"
	if err := Reboot(t.Context(), c); !errors.Is(err, ErrNotOurs) {
		t.Errorf("%v: want a refusal: the node is alice's", err)
	}
	// Only a request that was sent can have been carried out without an answer.
	for call, sent := range map[string]bool{"read": false, "reboot": true} {
		c, f := patient(t)
		f.on = func(_ *fake, is string) (Output, error, bool) {
			return Output{TimedOut: true}, nil, strings.HasPrefix(is, call)
		}
		if err := Reboot(t.Context(), c); err == nil || errors.As(err, new(UnansweredError)) != sent {
			t.Errorf("no answer to %s: %v, want an unanswered request %v", call, err, sent)
		}
	}
}

func TestAdviseReboot(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		conf    Config
		reboots bool
		want    []string
	}{
		"no remedy": {Config{}, false, nil},
		"neither":   {Config{}, true, []string{"RebootProgram is not set", "ResumeTimeout is not set"}},
		"short":     {Config{"RebootProgram": "/sbin/reboot", "ResumeTimeout": "60 sec"}, true, []string{"ResumeTimeout = 60 sec"}},
		"good":      {Config{"RebootProgram": "/sbin/reboot", "ResumeTimeout": "1800 sec"}, true, nil},
	} {
		a := &adviser{conf: test.conf, wiring: Wiring{Reboots: test.reboots}}
		a.adviseReboot()
		var got []string
		for _, l := range a.list {
			got = append(got, l.Setting)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
