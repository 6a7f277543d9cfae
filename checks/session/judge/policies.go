package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/policy"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// policies applies the policies of the site to findings. It reads what earlier runs have found only if a policy
// depends on that.
type policies struct {
	memory
	context string

	read    bool
	err     error        // the memory cannot be read, or not be written
	last    *event.Event // of the last run in this context, nil for none
	strikes policy.Strikes
	run     int64 // the number of this run
	changed bool
	drained time.Time // the newest fault that waits for healthy runs
}

// memory is what policies need of the node.
type memory interface {
	recall(name string) (data []byte, silent bool, err error) // nil if there is no such record; silent: or if it is unknown
	keep(name string, data []byte) error
	hasGPUs() bool // on the PCI bus
	warn(err error)
}

const strikesPrefix = "strikes-"

// open reads the memory once.
func (p *policies) open() bool {
	if p.read {
		return p.err == nil
	}
	p.read = true
	var last []byte
	if last, _, p.err = p.recall(outputs.RunPrefix + p.context); p.err != nil {
		return false
	}
	if e, err := event.Parse(last); err == nil {
		p.last = e
	}
	strikes, silent, err := p.recall(strikesPrefix + p.context)
	if p.err = err; err != nil {
		return false
	}
	if json.Unmarshal(strikes, &p.strikes) != nil || silent && (p.last == nil || p.strikes.Last() > p.last.Run) {
		p.strikes = policy.Strikes{} // none, damaged, or of the time before the silence: the count begins
	}
	p.run = p.strikes.Last() + 1 // if the events of runs with a fault are not kept, the faults count these runs
	if p.last != nil {
		p.run = max(p.run, p.last.Run+1)
	}
	return true
}

// count records a fault of this run and returns the number of runs with it among the last of.
func (p *policies) count(f *checks.Finding, of int) (n int, ok bool) {
	n, _, ok = p.add(policy.KeyOf(f), of)
	return n, ok
}

func (p *policies) add(key string, of int) (n int, since time.Time, ok bool) {
	if !p.open() {
		return 0, time.Time{}, false
	}
	n, since = p.strikes.Add(key, p.run, of, time.Now())
	p.changed = true
	return n, since, true
}

// save keeps the strikes of a step. If that fails, no later run would know of them: the error makes
// one strike enough for the rest of this run.
func (p *policies) save() (saved bool) {
	if !p.changed {
		return true
	}
	p.changed = false
	data, err := json.Marshal(&p.strikes)
	if err == nil {
		err = p.keep(strikesPrefix+p.context, data)
	}
	if err != nil && p.err == nil {
		p.err = err
		p.warn(fmt.Errorf("the runs with a fault cannot be counted, so each fault acts at once: %w", err))
	}
	return err == nil
}

// apply returns the findings of a step with the effects that their policies give them.
func (p *policies) apply(c *conf.Config, s *plan.Step, list []checks.Finding) []checks.Finding {
	r := policy.Run{Context: p.context, Now: time.Now()}
	if p.context == conf.HealthCheck || p.context == conf.Manual {
		r.Count = p.count
		list = p.addUnknown(c, s, list)
	}
	if p.context == conf.Monitor { // its runs come as often as events, and do not count
		r.Count = func(*checks.Finding, int) (int, bool) { return 0, true }
	}
	once := func() []checks.Finding {
		done := make([]checks.Finding, len(list))
		for i, f := range list {
			check := f.Check // "" for a check of LBNL NHC: its message is the reason
			f.Check = cmp.Or(check, s.Name)
			done[i] = policy.Apply(f, ruleOf(c, s, f), r)
			done[i].Check = check
		}
		return done
	}
	done := once()
	if !p.save() {
		return once()
	}
	return done
}

// ruleOf returns the policy of a finding of a step.
func ruleOf(c *conf.Config, s *plan.Step, f checks.Finding) conf.Policy {
	return policy.For(c, s.Policy, policy.Subject{Code: f.Code, Check: cmp.Or(f.Check, s.Name), Class: s.Class})
}

// addUnknown adds a finding for each result that has been unknown for many runs.
func (p *policies) addUnknown(c *conf.Config, s *plan.Step, list []checks.Finding) []checks.Finding {
	for _, f := range list {
		if f.Severity != checks.Unknown || f.Drill {
			continue
		}
		// The strikes are counted here: until there are enough, the result is only unknown.
		for _, code := range policy.StayCodes(f.Code, s.Class, s.Lane) {
			stays := checks.Finding{Code: code, Severity: checks.Fail, Device: f.Device, Check: s.Name}
			rule := ruleOf(c, s, stays)
			n, since, ok := p.add(policy.KeyOf(&stays), rule.Strikes.Of)
			if !ok || n < rule.Strikes.N || code == policy.UnknownGPU && !p.hasGPUs() {
				continue
			}
			stays.Message = fmt.Sprintf("%s:  unknown in %d runs since %s: %s", s.Name, n, since.Local().Format("2006-01-02 15:04"), f.Message)
			list = append(slices.Clip(list), stays)
		}
	}
	return list
}

// waits returns why a healthy run does not resume the node for a cause of its drain, "" if it does.
func (p *policies) waits(c *conf.Config, in *plan.Plan, m slurm.Mark) string {
	subject := policy.Subject{Code: m.Code(), Check: m.Check}
	var line conf.Policy
	if in != nil {
		for i := range in.Steps {
			if s := &in.Steps[i]; s.Name == m.Check {
				line, subject.Class = s.Policy, s.Class
			}
		}
	}
	if name := calledBy(m); name != "" {
		info, _ := checks.Lookup(name)
		subject.Check, subject.Class, line = name, info.Class(), c.Of(name, info.Class())
	}
	rule := policy.For(c, line, subject)
	if rule.Passes <= 1 && rule.Cooldown <= 0 || !p.open() {
		return "" // without a memory nothing could ever be counted
	}
	healthy, since, now := 1, time.Now(), time.Now()
	if m.Since.After(now) { // the clock was ahead: every run would be before the fault
		m.Since = time.Time{}
	}
	if m.Since.After(p.drained) {
		p.drained = m.Since
	}
	if p.last != nil && p.last.Healthy > 0 && !p.last.HealthySince.Before(m.Since) { // a prolog or the monitor can have found it since
		healthy, since = p.last.Healthy+1, event.NotAfter(p.last.HealthySince, now)
	}
	return policy.Waits(rule, healthy, since, now)
}

// calledBy returns the check that a line of bash has called, and which has found the fault of a mark; "" for
// any other mark.
func calledBy(m slurm.Mark) (name string) {
	if _, native := checks.Lookup(m.Check); native {
		return ""
	}
	named := ""
	for _, n := range checks.Names() {
		if len(n) <= len(named) && len(n) <= len(name) || !strings.Contains(m.Check, n) {
			continue
		}
		named = n
		if info, _ := checks.Lookup(n); info.Bears(m.Code()) {
			name = n
		}
	}
	return cmp.Or(name, named) // a code that several checks share
}

// nodeMemory is the memory of a node.
type nodeMemory struct{ n *node.Node }

func (m nodeMemory) ask(q *wire.Request) (*wire.Response, error) {
	if !m.n.Remembers() {
		return nil, errors.New("this run has no memory")
	}
	return m.n.Pool.Call(context.WithoutCancel(m.n.Ctx), checks.Local, q, session.Record).AnswerTo(q.Line)
}

func (m nodeMemory) recall(name string) (data []byte, silent bool, err error) {
	resp, err := m.ask(&wire.Request{Op: wire.OpRecall, Name: name, Line: "read the earlier runs"})
	if errors.Is(err, run.ErrSilent) {
		return nil, true, nil // strikes count from here until the directory answers
	}
	if err != nil {
		return nil, false, err
	}
	for _, r := range resp.Records {
		if r.Name == name && r.Err == "" {
			return r.Data, resp.Kind == wire.Silent, nil
		}
	}
	return nil, resp.Kind == wire.Silent, nil
}

func (m nodeMemory) keep(name string, data []byte) error {
	_, err := m.ask(&wire.Request{Op: wire.OpKeep, Name: name, Data: data, Line: "write the strikes"})
	if errors.Is(err, run.ErrElsewhere) {
		m.warn(err)
		return nil
	}
	return err
}

func (m nodeMemory) hasGPUs() bool {
	groups, err := m.n.PlatformGroups()
	return err == nil && len(groups) > 0
}

func (m nodeMemory) warn(err error) { m.n.Warn(err) }
