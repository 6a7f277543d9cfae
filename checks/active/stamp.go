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

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// The stored result of an active test, with the boot, driver and GPUs that it is valid for. A
// prolog checks whether it is recent enough, which needs no library and no process. A test that
// may not run reports the fault that the last run found.

// stampFile has the stored results of one check.
type stampFile struct {
	Version int               `json:"version"`
	Stamps  map[string]*stamp `json:"stamps"` // by parameters
}

const (
	stampVersion = 1
	stampMost    = 64 // results of one check; the oldest is dropped first
)

// stamp is the result of one run.
type stamp struct {
	Boot     string           `json:"boot"`
	Up       float64          `json:"up"` // seconds since the boot, independent of clock changes
	At       time.Time        `json:"at"` // for people
	Driver   string           `json:"driver"`
	GPUs     []string         `json:"gpus"`               // UUIDs, sorted
	Findings []checks.Finding `json:"findings,omitempty"` // warnings, failures, skipped GPUs; none: passed
}

func stampName(check string) string { return "active-" + strings.TrimPrefix(check, "check_") }

// describeNode returns the boot, driver and GPUs now, read from files of the kernel only.
func describeNode(env *checks.Env) (stamp, error) {
	boot, err := probe.BootID(env.Host)
	if err != nil {
		return stamp{}, err
	}
	views, err := nvidia.ReadGPUViews(env.Host)
	if err != nil {
		return stamp{}, err
	}
	now := stamp{Boot: boot, Up: float64(probe.SinceBoot()) / 1e9, At: time.Now().UTC().Truncate(time.Second), Driver: views.Version}
	for _, g := range views.Driver {
		now.GPUs = append(now.GPUs, g.UUID)
	}
	slices.Sort(now.GPUs)
	return now, nil
}

// isCurrent reports whether a result is from the node in its present state.
func (s *stamp) isCurrent(now *stamp) bool {
	return s.Boot == now.Boot && s.Driver == now.Driver && slices.Equal(s.GPUs, now.GPUs) && s.Up <= now.Up
}

// stampKey distinguishes the results of a check by its parameters, except for --max-age.
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

// Fresh looks for a stored result of an active test. If found is true, findings has the result.
// If only is true the test is not going to run: then the findings report a missing or stale
// result.
func Fresh(env *checks.Env, name string, c checks.Bounded, only bool) (findings []checks.Finding, found bool) {
	stale := func(why string) ([]checks.Finding, bool) {
		if !only {
			return nil, false
		}
		return []checks.Finding{checks.Finding{Code: "active.stale", Severity: checks.Unknown, Want: "a result of the last " + ageText(c.Freshness()), Got: why}.
			Phrase(name, "no result of the last %s: %s", ageText(c.Freshness()), why)}, true
	}
	if c, ok := c.(interface{ readSite(e *checks.Env) }); ok {
		c.readSite(env)
	}
	now, err := describeNode(env)
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
		return stale("never run with these arguments")
	case s.Boot != now.Boot:
		return stale("the last one is from before the reboot")
	case !s.isCurrent(&now):
		return stale("the last one is with another driver or other GPUs")
	}
	age := time.Duration((now.Up - s.Up) * float64(time.Second))
	switch {
	case age > c.Freshness():
		findings, found = stale("the last one is " + ageText(age) + " old")
		if found && checks.Worst(s.Findings) == checks.Fail { // an old fault is still a fault
			findings = append(findings, s.markFaults()...)
		}
		return findings, found
	case !only && checks.Worst(s.Findings) == checks.Fail: // it may have been repaired: measure again
		return nil, false
	}
	return s.markFaults(), true
}

// foundAt starts the suffix of a fault of an earlier run.
const foundAt = " (found at "

// markFaults returns the findings for a later run: a fault has the time when it was found, which
// stays the same from run to run.
func (s *stamp) markFaults() []checks.Finding {
	list := slices.Clone(s.Findings)
	for i := range list {
		if f := &list[i]; f.Severity == checks.Fail && !strings.Contains(f.Message, foundAt) {
			f.Message += foundAt + s.At.Local().Format("2006-01-02 15:04") + ")"
		}
	}
	return list
}

// ageText formats a duration: 90s, 15m, 24h, 7d.
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

// reportRefusal returns the findings of a test that may not run: the reason, and the fault of its last
// run. A new job does not clear a fault.
func reportRefusal(r *activeRun, why checks.Finding) []checks.Finding {
	return append([]checks.Finding{why}, recallFault(r)...)
}

// recallFault returns the findings of the last run of this test on this node, nil if it found no
// fault.
func recallFault(r *activeRun) []checks.Finding {
	now, err := describeNode(r.env)
	if err != nil || r.Of == nil {
		return nil
	}
	file, err := readStamps(r.env, r.Check)
	if err != nil {
		return nil
	}
	if s := file.Stamps[stampKey(r.Of)]; s != nil && s.isCurrent(&now) && checks.Worst(s.Findings) == checks.Fail {
		return s.markFaults()
	}
	return nil
}

// findUnseen returns the faults of the last run that this run could not look for again: it was
// stopped, or it skipped that GPU. A process that hangs on a GPU does not make the GPU healthy.
func findUnseen(r *activeRun, all []checks.Finding) (old []checks.Finding) {
	same := func(code, pci string) bool {
		return slices.ContainsFunc(all, func(f checks.Finding) bool { return f.Code == code && f.Device.PCI == pci })
	}
	leftOut := func(d checks.Device) bool {
		return d.PCI != "" && slices.ContainsFunc(r.left, func(f checks.Finding) bool { return f.Device.PCI == d.PCI })
	}
	for _, f := range recallFault(r) {
		if f.Severity == checks.Fail && (r.failures || leftOut(f.Device)) && !same(f.Code, f.Device.PCI) {
			old = append(old, f)
		}
	}
	return old
}

// keepStamp stores the result, and the GPUs that it skipped.
func keepStamp(r *activeRun, all []checks.Finding) []checks.Finding {
	if r.Of == nil {
		return nil
	}
	now, err := describeNode(r.env)
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
		file = &stampFile{Version: stampVersion, Stamps: map[string]*stamp{}} // replace a broken file
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
