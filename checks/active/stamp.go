package active

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// The result of an active test, kept with what it holds for: this boot, this driver,
// these GPUs. A prolog looks whether it is young enough, which takes no library and
// no process, and a test that may not run leaves a fault that the last one found.

// stampFile is what is kept of one check.
type stampFile struct {
	Version int               `json:"version"`
	Stamps  map[string]*stamp `json:"stamps"` // by its parameters
}

const (
	stampVersion = 1
	stampMost    = 64 // results of one check; the oldest is forgotten first
)

// stamp is the result of one run.
type stamp struct {
	Boot     string           `json:"boot"`
	Up       float64          `json:"up"` // seconds since the boot, which no clock that is set changes
	At       time.Time        `json:"at"` // for persons
	Driver   string           `json:"driver"`
	GPUs     []string         `json:"gpus"`               // by UUID, in order
	Findings []checks.Finding `json:"findings,omitempty"` // warnings, failures, GPUs that were left out; none: it has passed
}

func stampName(check string) string { return "active-" + strings.TrimPrefix(check, "check_") }

// holdsFor is what a result holds for, by files of the kernel alone.
func holdsFor(env *checks.Env) (stamp, error) {
	boot, err := probe.BootID(env.Host)
	if err != nil {
		return stamp{}, err
	}
	views, err := nvidia.ReadGPUViews(env.Host)
	if err != nil {
		return stamp{}, err
	}
	now := stamp{Boot: boot, Up: uptime(), At: time.Now().UTC().Truncate(time.Second), Driver: views.Version}
	for _, g := range views.Driver {
		now.GPUs = append(now.GPUs, g.UUID)
	}
	slices.Sort(now.GPUs)
	return now, nil
}

// uptime is in seconds, sleep counted.
func uptime() float64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return float64(t.Nano()) / 1e9
}

// about says whether a result is about the node as it is now.
func (s *stamp) about(now *stamp) bool {
	return s.Boot == now.Boot && s.Driver == now.Driver && slices.Equal(s.GPUs, now.GPUs) && s.Up <= now.Up
}

// stampKey tells the results of a check by its parameters. How old one may be is
// none of them.
func stampKey(c checks.Check) string {
	v := reflect.ValueOf(c)
	plain := reflect.New(v.Elem().Type())
	plain.Elem().Set(v.Elem())
	if f, ok := checks.TagsOf(plain.Elem()).Tables["max_age"]; ok {
		f.SetZero()
	}
	data, err := json.Marshal(plain.Interface())
	if err != nil {
		return fmt.Sprintf("%+v", plain.Elem())
	}
	return string(data)
}

func readStamps(env *checks.Env, check string) (*stampFile, error) {
	f := &stampFile{}
	err := env.Host.Recall(stampName(check), f)
	if f.Version != stampVersion || f.Stamps == nil {
		f = &stampFile{Version: stampVersion, Stamps: map[string]*stamp{}}
	}
	return f, err
}

// Fresh looks at the last result of an active test in place of running it. found: the
// findings are what it came to. With only set it is not going to be run: then the
// findings say so where there is no result, or none that is young enough.
func Fresh(env *checks.Env, name string, c checks.Bounded, only bool) (findings []checks.Finding, found bool) {
	stale := func(why string) ([]checks.Finding, bool) {
		if !only {
			return nil, false
		}
		return []checks.Finding{checks.Finding{Code: "active.stale", Severity: checks.Unknown, Want: "a result of the last " + ageText(c.Freshness()), Got: why}.
			Phrase(name, "no result of the last %s: %s", ageText(c.Freshness()), why)}, true
	}
	if c, ok := c.(interface{ fromSite(e *checks.Env) }); ok {
		c.fromSite(env)
	}
	now, err := holdsFor(env)
	if err != nil {
		return stale(err.Error())
	}
	file, err := readStamps(env, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return stale(err.Error())
	}
	s := file.Stamps[stampKey(c)]
	switch {
	case s == nil:
		return stale("it has not been run with these words")
	case s.Boot != now.Boot:
		return stale("the last is of another boot")
	case !s.about(&now):
		return stale("the last is of another driver, or of other GPUs")
	}
	age := time.Duration((now.Up - s.Up) * float64(time.Second))
	switch {
	case age > c.Freshness():
		findings, found = stale("the last is " + ageText(age) + " old")
		if found && checks.Worst(s.Findings) == checks.Fail { // a fault is not gone because it is old
			findings = append(findings, s.told()...)
		}
		return findings, found
	case !only && checks.Worst(s.Findings) == checks.Fail: // it may have been mended: measure again
		return nil, false
	}
	return s.told(), true
}

// foundAt begins what a fault of an earlier run has at its end: when that found it.
const foundAt = " (found at "

// told are the findings as a later run says them: a fault with the time when it was
// found, which stays the same from run to run.
func (s *stamp) told() []checks.Finding {
	list := slices.Clone(s.Findings)
	for i := range list {
		if f := &list[i]; f.Severity == checks.Fail && !strings.Contains(f.Message, foundAt) {
			f.Message += foundAt + s.At.Local().Format("2006-01-02 15:04") + ")"
		}
	}
	return list
}

// ageText is a time as an administrator has it: 90s, 15m, 24h, 7d.
func ageText(d time.Duration) string {
	for _, u := range []struct {
		name string
		one  time.Duration
		from time.Duration
	}{{"d", 24 * time.Hour, 48 * time.Hour}, {"h", time.Hour, time.Hour}, {"m", time.Minute, time.Minute}} {
		if d >= u.from {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Hours()*float64(time.Hour)/float64(u.one)), ".0") + u.name
		}
	}
	return fmt.Sprintf("%ds", int(d.Seconds()))
}

// refusal is what a test that may not run says: why, and what its last run has found.
// A fault is not gone because a job has come.
func refusal(r *activeRun, why checks.Finding) []checks.Finding {
	return append([]checks.Finding{why}, lastFault(r)...)
}

// lastFault is what the last run of this test has found on this node, nil if that was
// no fault.
func lastFault(r *activeRun) []checks.Finding {
	now, err := holdsFor(r.env)
	if err != nil || r.Of == nil {
		return nil
	}
	file, err := readStamps(r.env, r.Check)
	if err != nil {
		return nil
	}
	if s := file.Stamps[stampKey(r.Of)]; s != nil && s.about(&now) && checks.Worst(s.Findings) == checks.Fail {
		return s.told()
	}
	return nil
}

// unseen are the faults of the last run that this one could not look for again: it was
// stopped, or has left that GPU out. A GPU is not well because a process hangs on it.
func unseen(r *activeRun, all []checks.Finding) (old []checks.Finding) {
	same := func(code, pci string) bool {
		return slices.ContainsFunc(all, func(f checks.Finding) bool { return f.Code == code && f.Device.PCI == pci })
	}
	leftOut := func(d checks.Device) bool {
		return d.PCI != "" && slices.ContainsFunc(r.left, func(f checks.Finding) bool { return f.Device.PCI == d.PCI })
	}
	for _, f := range lastFault(r) {
		if f.Severity == checks.Fail && (r.failures || leftOut(f.Device)) && !same(f.Code, f.Device.PCI) {
			old = append(old, f)
		}
	}
	return old
}

// keepStamp keeps the result, and which GPUs it says nothing of.
func keepStamp(r *activeRun, all []checks.Finding) []checks.Finding {
	if r.Of == nil {
		return nil
	}
	now, err := holdsFor(r.env)
	if err != nil {
		return checks.Unreadable(err)
	}
	for _, f := range all {
		if f.Severity == checks.Warn || f.Severity == checks.Fail || f.Code == "active.left" {
			now.Findings = append(now.Findings, f)
		}
	}
	file, err := readStamps(r.env, r.Check)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, probe.ErrNoMemory) {
		file = &stampFile{Version: stampVersion, Stamps: map[string]*stamp{}} // a file that is broken is written anew
	}
	file.Stamps[stampKey(r.Of)] = &now
	for len(file.Stamps) > stampMost {
		file.forgetOldest()
	}
	err = r.env.Host.Keep(stampName(r.Check), file)
	if err == nil || errors.Is(err, probe.ErrNoMemory) {
		return nil
	}
	return []checks.Finding{checks.Finding{Code: "active.past", Severity: checks.Warn}.Describe(r.Check, "%v", err)}
}

func (f *stampFile) forgetOldest() {
	oldest := ""
	for key, s := range f.Stamps {
		if oldest == "" || s.At.Before(f.Stamps[oldest].At) {
			oldest = key
		}
	}
	delete(f.Stamps, oldest)
}
