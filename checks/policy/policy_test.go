package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

func parse(t *testing.T, text string) *conf.Config {
	t.Helper()
	c, err := conf.ParseTOML("nhc.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Every row of the table is about codes that exist, and has a reason.
func TestDefaults(t *testing.T) {
	t.Parallel()
	if err := plan.UnknownPolicy(Defaults()); err != nil {
		t.Error(err)
	}
	for name, p := range Defaults().Policies {
		if p.Why == "" || !conf.IsCode(name) {
			t.Errorf("%s: %q, want a code with a reason", name, p.Why)
		}
		if checks.IsLoss(name) {
			t.Errorf("%s: lost hardware acts at once", name)
		}
	}
	// A switch that restarts causes each of these: one that acts at once would drain the node.
	for _, code := range []string{"eth.down", "eth.lacp", "eth.member", "ib.gid.index", "ib.gid.none", "ib.ports.down", "ib.ports.member", "ib.ports.polling", "nic.module"} {
		if p := Defaults().OfCode(code); p.Strikes != (conf.Strikes{N: 2, Of: 3}) {
			t.Errorf("%s: %v", code, p.Strikes)
		}
	}
	if len(Defaults().Policies) < 5 {
		t.Errorf("%d rows", len(Defaults().Policies))
	}
}

func TestFor(t *testing.T) {
	t.Parallel()
	site := parse(t, `
[policy.ib]
action = "warn"
passes = 7
contexts = ["prolog"]
[policy.check_ib_errors]
action = "drain"
[policy."ib.errors"]
strikes = 4
[policy."ib.errors.symbol_error"]
action = "observe"
cooldown = "0m"
`)
	why := Defaults().Policies["ib.errors"].Why
	for name, c := range map[string]struct {
		site *conf.Config
		line conf.Policy
		Subject
		want conf.Policy
	}{
		"nothing is said":            {Subject: Subject{"gpu.recovery.lost", "check_gpu_recovery", "gpu"}, want: last},
		"no code":                    {Subject: Subject{"", "check_x", "x"}, want: last},
		"a default":                  {Subject: Subject{"ib.errors.rx_crc_errors", "check_ib_errors", "ib"}, want: conf.Policy{Action: conf.FailJob, Strikes: conf.Strikes{N: 2, Of: 3}, Passes: 3, Why: why}},
		"one event, one policy":      {Subject: Subject{"nic.module.type", "check_kernel_log", "kernel"}, want: conf.Policy{Action: conf.FailJob, Strikes: conf.Strikes{N: 2, Of: 3}, Passes: 2, Why: Defaults().Policies["nic.module"].Why}},
		"LBNL's checks have no rows": {Subject: Subject{"ib.ports.down", "check_hw_ib", "hw"}, want: last},
		"but if they stay unknown":   {Subject: Subject{StaysUnknown, "check_file_contents", "file"}, want: conf.Policy{Action: conf.Warn, Strikes: conf.Strikes{N: 12, Of: 12}, Passes: 1, Why: Defaults().Policies[StaysUnknown].Why}},
		"the class": {
			site: site, Subject: Subject{"ib.count", "check_ib_count", "ib"},
			want: conf.Policy{Action: conf.Warn, Strikes: conf.Strikes{N: 1, Of: 1}, Passes: 7},
		},
		"the line before the check": {
			site: site, line: conf.Policy{Action: conf.FailJob, Contexts: []string{"epilog"}}, Subject: Subject{"ib.flap", "check_ib_errors", "ib"},
			want: conf.Policy{Action: conf.FailJob, Strikes: conf.Strikes{N: 1, Of: 1}, Passes: 7},
		},
		"a prefix before the line": {
			site: site, line: conf.Policy{Action: conf.FailJob}, Subject: Subject{"ib.errors.link_downed", "check_ib_errors", "ib"},
			want: conf.Policy{Action: conf.FailJob, Strikes: conf.Strikes{N: 4, Of: 4}, Passes: 7, Why: why},
		},
		"the code before all": {
			site: site, line: conf.Policy{Action: conf.FailJob}, Subject: Subject{"ib.errors.symbol_error", "check_ib_errors", "ib"},
			want: conf.Policy{Action: conf.Observed, Strikes: conf.Strikes{N: 4, Of: 4}, Passes: 7, Cooldown: -1, Why: why},
		},
	} {
		if diff := cmp.Diff(c.want, For(c.site, c.line, c.Subject)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	const monday = "2026-11-23T10:00:00Z"
	now, err := time.Parse(time.RFC3339, monday)
	if err != nil {
		t.Fatal(err)
	}
	strikes := func(n int, ok bool) func(*checks.Finding, int) (int, bool) {
		return func(_ *checks.Finding, of int) (int, bool) {
			if of != 3 {
				t.Errorf("the last %d runs, want 3", of)
			}
			return n, ok
		}
	}
	hours := func(text string) *conf.Hours {
		h, err := conf.ParseHours(text)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	two := conf.Strikes{N: 2, Of: 3}
	failing := checks.Finding{Severity: checks.Fail, Message: "x", Remedy: checks.RebootNode}
	with := func(change func(*checks.Finding)) checks.Finding {
		f := failing
		change(&f)
		return f
	}
	held := func(would, why string) checks.Finding {
		return with(func(f *checks.Finding) {
			f.Severity, f.Would, f.Held, f.Message = checks.Warn, would, why, "x ("+why+")"
		})
	}
	severity := func(s checks.Severity) checks.Finding { return with(func(f *checks.Finding) { f.Severity = s }) }
	soft := func(s checks.Severity, would string) checks.Finding {
		return with(func(f *checks.Finding) { f.Severity, f.Would, f.Held = s, would, ByPolicy })
	}
	for name, c := range map[string]struct {
		policy conf.Policy
		count  func(*checks.Finding, int) (int, bool)
		given  checks.Finding
		want   checks.Finding
	}{
		"fail-job":                   {policy: conf.Policy{Action: conf.FailJob}, want: failing},
		"drain":                      {policy: conf.Policy{Action: conf.Drain}, want: failing},
		"warn":                       {policy: conf.Policy{Action: conf.Warn}, want: soft(checks.Warn, "warn")},
		"none":                       {policy: conf.Policy{Action: conf.Nothing}, want: soft(checks.Skip, "none")},
		"observe":                    {policy: conf.Policy{Action: conf.Observed}, want: held("fail-job", "observed only")},
		"a remedy":                   {policy: conf.Policy{Action: conf.Drain, Remedy: "power-cycle"}, want: with(func(f *checks.Finding) { f.Remedy = checks.PowerCycle })},
		"another context":            {policy: conf.Policy{Action: conf.Drain, Contexts: []string{"prolog", "epilog"}}, want: held("drain", "outside prolog, epilog")},
		"observe in another context": {policy: conf.Policy{Action: conf.Observed, Contexts: []string{"prolog"}}, want: soft(checks.Warn, "warn")},
		"no context":                 {policy: conf.Policy{Action: conf.Drain, Contexts: []string{}}, want: soft(checks.Warn, "warn")},
		"this context":               {policy: conf.Policy{Action: conf.Drain, Contexts: []string{"prolog", "healthcheck"}}, want: failing},
		"strike 1":                   {policy: conf.Policy{Action: conf.Drain, Strikes: two}, count: strikes(1, true), want: held("drain", "strike 1 of 2")},
		"strike 2":                   {policy: conf.Policy{Action: conf.Drain, Strikes: two}, count: strikes(2, true), want: failing},
		"strikes are unknown":        {policy: conf.Policy{Action: conf.Drain, Strikes: two}, count: strikes(0, false), want: failing},
		"a run that counts none":     {policy: conf.Policy{Action: conf.Drain, Strikes: two}, want: failing},
		"a warning after strikes":    {policy: conf.Policy{Action: conf.Warn, Strikes: two}, count: strikes(2, true), want: soft(checks.Warn, "warn")},
		"observe after strikes":      {policy: conf.Policy{Action: conf.Observed, Strikes: two}, count: strikes(2, true), want: held("fail-job", "observed only")},
		"strikes before observe":     {policy: conf.Policy{Action: conf.Observed, Strikes: two}, count: strikes(1, true), want: held("observe", "strike 1 of 2")},
		"in its hours":               {policy: conf.Policy{Action: conf.Drain, Hours: hours("Mon-Fri 08:00-18:00")}, want: failing},
		"outside its hours":          {policy: conf.Policy{Action: conf.Drain, Hours: hours("Mon-Fri 18:00-08:00")}, want: held("drain", "outside Mon-Fri 18:00-08:00")},
		"unknown has no policy":      {policy: conf.Policy{Action: conf.Nothing}, given: severity(checks.Unknown), want: severity(checks.Unknown)},
		"a warning keeps its remedy": {policy: conf.Policy{Action: conf.Nothing, Remedy: "power-cycle"}, given: severity(checks.Warn), want: severity(checks.Warn)},
	} {
		given := c.given
		if given == (checks.Finding{}) {
			given = failing
		}
		if diff := cmp.Diff(c.want, Apply(given, c.policy, Run{Context: conf.HealthCheck, Now: now, Count: c.count})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWaits(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		policy  conf.Policy
		healthy int
		since   time.Duration
		want    string
	}{
		"one pass":         {conf.Policy{Passes: 1}, 1, 0, ""},
		"two of three":     {conf.Policy{Passes: 3}, 2, time.Hour, "which has passed in 2 of 3 runs"},
		"three of three":   {conf.Policy{Passes: 3}, 3, time.Hour, ""},
		"cool-down":        {conf.Policy{Passes: 1, Cooldown: 90 * time.Minute}, 5, time.Hour, "which has not passed for 1h30m yet"},
		"cool-down, hours": {conf.Policy{Passes: 1, Cooldown: 2 * time.Hour}, 5, time.Hour, "which has not passed for 2h yet"},
		"is over":          {conf.Policy{Passes: 1, Cooldown: time.Hour}, 5, time.Hour, ""},
		"no cool-down":     {conf.Policy{Passes: 1, Cooldown: -1}, 1, 0, ""},
		"both":             {conf.Policy{Passes: 2, Cooldown: time.Hour}, 1, 0, "which has passed in 1 of 2 runs"},
	} {
		if got := Waits(c.policy, c.healthy, now.Add(-c.since), now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A policy can hold for a code that only a table of messages has, and for a family; other names are
// errors with a suggestion.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gpu.xid.79", "gpu.xid", "gpu.sxid.12028", "gpu.ecc", "ib.errors.symbol_error", "ib.errors.some_counter", "nic.fatal", "probe.hung", "unknown.gpu"} {
		if err := plan.UnknownPolicy(parse(t, `[policy."`+name+`"]`)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for text, want := range map[string]string{
		`[policy."gpu.recovery.last"]`:                                       `nhc.toml:1: policy "gpu.recovery.last": no code begins with it: want [policy."gpu.recovery.lost"]`,
		`[policy."gpu.nothing.at.all"]`:                                      `nhc.toml:1: policy "gpu.nothing.at.all": no code begins with it: want the code of a finding, the name of a check, or a class: `,
		"[policy.\"gpu.xid.79\"]\nremedy = \"reboot\"":                       `nhc.toml:1: policy.gpu.xid.79.remedy: "reboot": want `,
		"[policy.shell]\nstrikes = 2":                                        "nhc.toml:1: policy.shell: want contexts, action, passes and cooldown alone: a line of bash decides itself when it fails",
		"[policy.shell]\naction = \"observe\"":                               "nhc.toml:1: policy.shell.action: observe: want drain or fail-job: a line of bash decides itself whether it fails or warns",
		"[policy.shell]\npasses = 3\n[policy.gpu]\nremedy = \"power-cycle\"": "",
	} {
		err := plan.UnknownPolicy(parse(t, text))
		if want == "" && err == nil {
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
}
