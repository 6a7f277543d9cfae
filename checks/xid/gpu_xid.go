// Package xid has the check of Xids and SXids, and what a site and an operator say about them.
package xid

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// gpuXid looks for Xid errors of GPUs and SXid errors of NVSwitches in the
// kernel's log. Each code has a class, which says whether the node is drained
// and what makes it well again: docs/reference/xid.md has the classes, "nhc-gpu xid
// explain CODE" says what is made of one. Only what the kernel itself has
// logged counts.
//
// Runs of root remember what they have seen, so that an error stays known when
// the kernel's log has lost it, and ends with the reset, the reboot or the
// word of an operator (nhc-gpu clear) that its class asks for. Errors that drain
// nobody count for HOURS.
//
// A path in place of HOURS is a file to look at in place of the kernel's log,
// as with AzureHPC's check of that name: whatever it holds counts as present,
// and nothing is remembered. Any user can write to a file of syslog with logger(1),
// and so drain the node.
//
//	gpu* || check_gpu_xid
//	gpu* || check_gpu_xid 72 -c '48,62-64,79,sxid:*'
type gpuXid struct {
	Hours  string `arg:"1" toml:"hours"`        // for how long errors count that drain nobody; or a path, see above
	Codes  string `opt:"c" toml:"codes"`        // only these: 13,48,62-64; sxid:12028, sxid:* for those of NVSwitches; a ! before all: any but these
	Strict bool   `opt:"s" toml:"strict"`       // warnings of known codes are failures, too
	Passes int    `opt:"n" toml:"clean_passes"` // an error is over after so many runs without it; 0: never
}

const doXidPolicy = "Correct the file that the message names (docs/reference/xid.md has its form); until then the built-in policy is in force."

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_xid",
		Usage:   "[HOURS] [-c CODES] [-s] [-n RUNS]",
		Summary: "the kernel's log has no Xid or SXid that calls for action",
		Lane:    checks.Local,
		New:     func() checks.Check { return &gpuXid{Hours: "24"} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.xid.absent": "Nothing where there is no NVIDIA GPU; else see why the driver is not loaded: modprobe nvidia, dmesg.",
				"gpu.xid.file":   "Name a file that exists, or none at all: the kernel's log is then asked.",
				"gpu.xid.flood":  "See dmesg for what the kernel logs so much of, often one GPU that should be reset.",
				"gpu.xid.ledger": "Nothing, if it is said once: a new memory has been begun. If each run says it see whether /var/lib/nhc-gpu can be written.",
				"gpu.xid.lost":   "Look at journalctl -k for Xids of that time; a larger log_buf_len, or a shorter interval between runs, keeps the next ones.",
				"gpu.xid.policy": doXidPolicy,
			}
		},
		DoOf: doXid,
		Vars: map[string]string{"XID_POLICY": xidPolicyFile},
	})
}

// Bind takes the words, and refuses what Run could not use.
func (c *gpuXid) Bind(words []string) error {
	// A number may stand before the options, too.
	if len(words) > 1 && !strings.HasPrefix(words[0], "-") {
		words = append(slices.Clone(words[1:]), words[0])
	}
	if err := checks.BindTags(c, words); err != nil {
		return err
	}
	return c.Validate()
}

func (c *gpuXid) Validate() error {
	if !c.isFile() {
		if h, err := strconv.ParseFloat(c.Hours, 64); err != nil || !(h > 0 && h < 1e6) {
			return &checks.UsageError{Kind: checks.BadValue, Word: c.Hours, Want: "hours, or the path of a log"}
		}
	}
	if _, err := parseXidCodes(c.Codes); err != nil {
		return err
	}
	if c.Passes < 0 {
		return &checks.UsageError{Kind: checks.BadValue, Word: strconv.Itoa(c.Passes), Want: "a number of runs"}
	}
	return nil
}

// LogFiles returns the file of a line whose first word is a path.
func (c *gpuXid) LogFiles() []string {
	if c.isFile() {
		return []string{c.Hours}
	}
	return nil
}

func (c *gpuXid) isFile() bool { return strings.HasPrefix(c.Hours, "/") }

// file is the log to look at, "" if that is the kernel's own.
func (c *gpuXid) file() string {
	if c.isFile() {
		return c.Hours
	}
	return ""
}

func (c *gpuXid) Run(_ context.Context, env *checks.Env) []checks.Finding {
	if err := c.Validate(); err != nil { // from TOML, which Bind does not see
		return []checks.Finding{checks.Finding{Code: "config.value", Severity: checks.Unknown, Remedy: checks.FixConfig}.Describe("check_gpu_xid", "%v", err)}
	}
	if c.isFile() {
		return c.runFile(env)
	}
	ledger, kept, notes := recallXids(env)
	before := *ledger
	before.Events = slices.Clone(ledger.Events)
	scan, more, err := recordXids(env, ledger)
	notes = append(notes, more...)
	if err != nil {
		return append(notes, c.unreadable(env, err)...)
	}
	*probe.Kept[*xidLedger](env.Host, "ledger of Xids") = ledger
	identifyXids(env, ledger)
	attributeXids(env, ledger)
	if kept {
		clears, more := readXidClears(env)
		ledger.applyClears(clears)
		notes = append(notes, more...)
	}
	if len(ledger.Events) == 0 && !hasDriver(env) {
		return append(notes, checks.Finding{Code: "gpu.xid.absent", Severity: checks.Skip}.Describe("check_gpu_xid", "no NVIDIA driver is loaded"))
	}
	env.Fact("%s of GPUs in the kernel's log", checks.Plural(len(ledger.Events), "error"))
	found := c.judge(env, ledger, &notes)
	if counted := probe.Kept[bool](env.Host, "xid passes"); kept && !*counted {
		*counted = true // one run may have several lines of this check
		ledger.passed(scan)
	}
	if kept {
		notes = append(notes, keepXids(env, &before, ledger)...)
	}
	return append(notes, found...)
}

// unreadable is a node whose log cannot be read. Without the driver that is
// nothing to be told.
func (c *gpuXid) unreadable(env *checks.Env, err error) []checks.Finding {
	if !hasDriver(env) {
		return []checks.Finding{checks.Finding{Code: "gpu.xid.absent", Severity: checks.Skip}.Describe("check_gpu_xid", "no NVIDIA driver is loaded")}
	}
	return checks.UnreadableLog(env, "check_gpu_xid", err)
}

// hasDriver says whether there is a driver that could have logged anything.
func hasDriver(env *checks.Env) bool {
	env.At("read /proc/driver/nvidia/version")
	_, err := probe.DriverVersion(env.Host)
	return !errors.Is(err, fs.ErrNotExist)
}

// judge makes findings of the ledger, and marks what has been told.
func (c *gpuXid) judge(env *checks.Env, ledger *xidLedger, notes *[]checks.Finding) []checks.Finding {
	if len(ledger.Events) == 0 {
		return nil
	}
	policy, err := readXidPolicy(env)
	if err != nil {
		*notes = append(*notes, checks.Finding{Code: "gpu.xid.policy", Severity: checks.Warn, Remedy: checks.FixConfig}.Describe("check_gpu_xid", "policy not used: %v", err))
	}
	if v, err := probe.DriverVersion(env.Host); err == nil {
		ledger.Driver = v
	}
	hours, _ := strconv.ParseFloat(c.Hours, 64)
	now := int64(0) // of a file: all that it holds is now
	if !c.isFile() {
		now = probe.Now(env.Host).Unix()
	}
	j := &xidJudge{policy: policy, ledger: ledger, now: now, hours: int64(hours * 60 * 60), passes: c.Passes}
	j.ask = func() map[string]checks.GPUState { return statesByPCI(env) }
	codes, _ := parseXidCodes(c.Codes)
	cases := j.cases()
	for _, x := range cases {
		for _, e := range x.events {
			e.standing = x.class.Drains()
		}
	}
	r := &xidReporter{xidJudge: j, strict: c.Strict, file: c.file()}
	r.order, _ = nvidia.DriverGPUs(env.Host) // without it a GPU has no number
	found := r.findings(slices.DeleteFunc(cases, func(x *xidCase) bool { return !codes.has(x.key) }))
	for i := range ledger.Events {
		e := &ledger.Events[i]
		e.Told = e.Told || codes.has(e.Key)
	}
	ledger.forget(now)
	return found
}

// passed counts the runs without a line of an error.
func (l *xidLedger) passed(scan *xidScan) {
	for i := range l.Events {
		if e := &l.Events[i]; !scan.fresh[e.place()] && e.Passes < 1<<20 {
			e.Passes++
		}
	}
}

// keepXids writes the ledger if it has changed.
func keepXids(env *checks.Env, before, ledger *xidLedger) []checks.Finding {
	if before.Cursor == ledger.Cursor && len(ledger.Events) == 0 && len(before.Events) == 0 {
		return nil
	}
	env.At("write the ledger of Xids")
	err := env.Remember(xidLedgerName, ledger)
	what := "what was seen is not kept: "
	switch _, elsewhere := errors.AsType[*probe.SpareError](err); {
	case err == nil:
		return nil
	case elsewhere:
		what = ""
	}
	return []checks.Finding{checks.Finding{Code: "gpu.xid.ledger", Severity: checks.Warn}.Describe("check_gpu_xid", "%s%v", what, err)}
}
