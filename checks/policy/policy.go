// Package policy says what becomes of a failure: what it does to the node and the job, after how many
// runs, and when the node returns. The package is pure.
package policy

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

//go:embed policy.toml
var text []byte

// Defaults returns the policies of nhc-gpu itself.
var Defaults = sync.OnceValue(func() *conf.Config {
	c, err := conf.ParseTOML("policy.toml", text)
	if err != nil {
		panic("policy: " + err.Error()) // TestDefaults
	}
	return c
})

// last is the policy of a finding about which nothing else is said.
var last = conf.Policy{Action: conf.FailJob, Strikes: conf.Strikes{N: 1, Of: 1}, Passes: 1}

// The codes of results that stay unknown.
const (
	StaysUnknown = "unknown.stays"
	UnknownGPU   = "unknown.gpu" // a check of GPUs
)

// strike is how the reason begins for a fault that waits for further strikes; see event.Result.Struck.
const strike = "strike "

// outside is how the reason begins for a fault that acts at other times or in other contexts only; see
// event.Result.Outside.
const outside = "outside "

// StayCodes returns the codes of the findings that an unknown result of a check becomes if it stays. A scan of
// processes that users make slow says nothing about the GPUs.
func StayCodes(code, class string, lane checks.Lane) []string {
	blind := strings.HasPrefix(code, "probe.") && code != "probe.scan" || code == "gpu.nvml" || code == "gpu.error"
	switch {
	case strings.HasPrefix(code, "config."): // an error in a line says nothing about the node
		return nil
	case blind && class == "gpu" && lane != checks.DCGM:
		return []string{StaysUnknown, UnknownGPU}
	}
	return []string{StaysUnknown}
}

// Subject is what a policy is about: a finding of a check.
type Subject struct{ Code, Check, Class string }

// For returns the policy of a subject. The site's policies come first, the most specific before the
// others: of the code and its prefixes, of the line, of the check, of its class. Then come the
// defaults. line is the policy of a [[check]] in nhc.toml.
func For(site *conf.Config, line conf.Policy, s Subject) conf.Policy {
	p, ofCheck := site.OfCode(s.Code), line.Or(site.Of(s.Check, s.Class)).OfFindings()
	if s.Code == StaysUnknown || s.Code == UnknownGPU {
		// What a site wants for failures of the check must not make unknown results act sooner.
		if p.Action == "" && !ofCheck.Action.Acts() {
			p.Action = ofCheck.Action
		}
		return p.Or(Defaults().OfCode(s.Code)).Or(last)
	}
	p = p.Or(ofCheck)
	if !checks.OfLBNL(s.Check) {
		p = p.Or(Defaults().OfCode(s.Code))
	}
	return p.Or(last)
}

// ByPolicy is why a failure has no effect whose policy asks for none.
const ByPolicy = "policy"

// Run is the run in which a policy is applied.
type Run struct {
	Context string
	Now     time.Time

	// Count returns the number of runs with a fault among the last runs, with this one. ok is
	// false if they cannot be counted: then one is enough, since no fault may be lost. nil: the
	// run counts none.
	Count func(f *checks.Finding, of int) (n int, ok bool)
}

// Apply returns a failing finding with the effect that its policy gives it in a run. Any other
// finding stays as it is.
func Apply(f checks.Finding, p conf.Policy, r Run) checks.Finding {
	if f.Severity != checks.Fail {
		return f
	}
	if p.Remedy != "" {
		f.Remedy = checks.Remedy(p.Remedy)
	}
	hold := func(why string) checks.Finding {
		f.Severity, f.Would, f.Held = checks.Warn, string(p.Action), why
		f.Message += " (" + why + ")"
		return f
	}
	soften := func(to checks.Severity, would conf.Action) checks.Finding {
		f.Severity, f.Would, f.Held = to, string(would), ByPolicy
		return f
	}
	elsewhere := p.Contexts != nil && !slices.Contains(p.Contexts, r.Context)
	switch {
	case p.Action == conf.Nothing:
		return soften(checks.Skip, p.Action)
	case elsewhere && len(p.Contexts) > 0 && p.Action.Acts():
		return hold(outside + strings.Join(p.Contexts, ", "))
	case elsewhere, p.Action == conf.Warn && !p.Strikes.Counts():
		return soften(checks.Warn, conf.Warn)
	}
	if p.Strikes.Counts() && r.Count != nil {
		if n, ok := r.Count(&f, p.Strikes.Of); ok && n < p.Strikes.N {
			return hold(fmt.Sprintf(strike+"%d of %d", n, p.Strikes.N))
		}
	}
	switch {
	case p.Action == conf.Warn:
		return soften(checks.Warn, conf.Warn)
	case p.Action == conf.Observed:
		p.Action = conf.FailJob
		return hold("observed only")
	case !p.Hours.Has(r.Now):
		return hold(outside + p.Hours.Text)
	}
	return f
}

// Waits returns why a healthy node is not resumed yet, "" if it is. healthy is the number of healthy
// runs in a row, with this one, and since is the time of the first.
func Waits(p conf.Policy, healthy int, since, now time.Time) string {
	switch left := p.Cooldown - now.Sub(since); {
	case healthy < p.Passes:
		return fmt.Sprintf("which has passed in %d of %d runs", healthy, p.Passes)
	case p.Cooldown > 0 && left > 0:
		return fmt.Sprintf("which has not passed for %s yet", checks.Length(p.Cooldown))
	}
	return ""
}

// Words describes a policy in one line.
func Words(p conf.Policy) string {
	words := []string{string(cmp.Or(p.Action, "-"))}
	add := func(yes bool, format string, args ...any) {
		if yes {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	add(p.Strikes.Counts(), "strikes %s", p.Strikes)
	add(p.Strikes.N == 1, "at once")
	add(p.Passes == 1, "resumed by one run that passes")
	add(p.Passes > 1, "resumed after %d runs that pass", p.Passes)
	add(p.Cooldown > 0, "cooldown %s", p.Cooldown)
	add(p.Hours != nil, "%s", p.Hours)
	add(p.Remedy != "", "remedy %s", p.Remedy)
	add(p.Contexts != nil, "contexts %s", cmp.Or(strings.Join(p.Contexts, " "), "none"))
	return strings.Join(words, ", ")
}
