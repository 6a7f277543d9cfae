// Package xid contains the check of Xids and SXids, the site's policy for them, and their
// acknowledgement by an operator.
package xid

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// gpuXid checks the kernel's log for Xid errors of GPUs and SXid errors of NVSwitches. Each code has
// a class, which decides whether the node is drained and what repairs it: docs/reference/xid.md lists
// the classes, and "nhc-gpu xid explain CODE" explains a code. Only lines of the kernel itself count.
//
// Runs of root keep a record of the errors, so that an error stays known when it is no longer in the
// kernel's log. Its class decides what ends it: a reset, a reboot, or nhc-gpu clear by an operator.
// Errors that do not drain the node count for HOURS.
//
// A path instead of HOURS is a file that is read instead of the kernel's log, as with AzureHPC's
// check of that name: all its errors count as present, and no record is kept. Any user can write to
// syslog's files with logger(1), and so drain the node.
//
//	gpu* || check_gpu_xid
//	gpu* || check_gpu_xid 72 -c '48,62-64,79,sxid:*'
type gpuXid struct {
	Hours  string `arg:"1" toml:"hours"`        // how long errors count that do not drain the node, hours; or the path of a log file
	Codes  string `opt:"c" toml:"codes"`        // only these codes: 13,48,62-64; sxid:12028 or sxid:* for NVSwitches; with ! in front: all other codes; default: all
	Strict bool   `opt:"s" toml:"strict"`       // fail instead of warn about known codes
	Passes int    `opt:"n" toml:"clean_passes"` // number of runs without an error after which it is over; 0: never
}

const doXidPolicy = "Correct the file in the message (its format is in docs/reference/xid.md); until then the built-in policy applies."

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_xid",
		Usage:   "[HOURS] [-c CODES] [-s] [-n RUNS]",
		Summary: "the kernel's log has no Xid or SXid that needs action",
		Lane:    checks.Local,
		New:     func() checks.Check { return &gpuXid{Hours: "24"} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.xid.absent": "Nothing, if the node has no NVIDIA GPU. Otherwise find out why the driver is not loaded: try modprobe nvidia, look at dmesg.",
				"gpu.xid.file":   "Give a file that exists, or no file: then the check reads the kernel's log.",
				"gpu.xid.flood":  "Look in dmesg for the messages that flood the log; often one GPU needs a reset.",
				"gpu.xid.ledger": "Nothing, if it is reported once: the check has started a new record. If every run reports it, check whether /var/lib/nhc-gpu is writable.",
				"gpu.xid.lost":   "Look for Xids of that time with journalctl -k. To keep all messages, increase log_buf_len, or shorten the interval between runs.",
				"gpu.xid.policy": doXidPolicy,
			}
		},
		DoOf: adviseCode,
		Vars: map[string]string{"XID_POLICY": xidPolicyFile},
	})
}

// Bind sets the arguments and refuses invalid ones.
func (c *gpuXid) Bind(words []string) error {
	// HOURS can also come before the options.
	if len(words) > 1 && !strings.HasPrefix(words[0], "-") {
		words = append(slices.Clone(words[1:]), words[0])
	}
	return checks.BindUsable(c, words)
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

// LogFiles returns the log file that the line gives instead of HOURS.
func (c *gpuXid) LogFiles() []string {
	if c.isFile() {
		return []string{c.Hours}
	}
	return nil
}

func (c *gpuXid) isFile() bool { return strings.HasPrefix(c.Hours, "/") }

// logFile returns the log file, "" for the kernel's log.
func (c *gpuXid) logFile() string {
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
		return append(notes, c.reportUnreadable(env, err)...)
	}
	*probe.Kept[*xidLedger](env.Host, "record of Xids") = ledger
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
		*counted = true // a run can have several lines with this check
		ledger.countPasses(scan)
	}
	if kept {
		notes = append(notes, keepXids(env, &before, ledger)...)
	}
	return append(notes, found...)
}

// reportUnreadable returns the finding of a log that cannot be read; without the driver the check is
// skipped.
func (c *gpuXid) reportUnreadable(env *checks.Env, err error) []checks.Finding {
	if !hasDriver(env) {
		return []checks.Finding{checks.Finding{Code: "gpu.xid.absent", Severity: checks.Skip}.Describe("check_gpu_xid", "no NVIDIA driver is loaded")}
	}
	return checks.UnreadableLog(env, "check_gpu_xid", err)
}

// hasDriver reports whether a driver is loaded that could have logged an Xid.
func hasDriver(env *checks.Env) bool {
	env.At("read /proc/driver/nvidia/version")
	_, err := probe.DriverVersion(env.Host)
	return !errors.Is(err, fs.ErrNotExist)
}

// judge returns the findings of the ledger, and marks the events that it reports.
func (c *gpuXid) judge(env *checks.Env, ledger *xidLedger, notes *[]checks.Finding) []checks.Finding {
	if len(ledger.Events) == 0 {
		return nil
	}
	policy, err := readXidPolicy(env)
	if err != nil {
		*notes = append(*notes, checks.Finding{Code: "gpu.xid.policy", Severity: checks.Warn, Remedy: checks.FixConfig}.Describe("check_gpu_xid", "the site's Xid policy is not used: %v", err))
	}
	if v, err := probe.DriverVersion(env.Host); err == nil {
		ledger.Driver = v
	}
	hours, _ := strconv.ParseFloat(c.Hours, 64)
	now := int64(0) // all events of a file count as current
	if !c.isFile() {
		now = probe.Now(env.Host).Unix()
	}
	j := &xidJudge{policy: policy, ledger: ledger, now: now, hours: int64(hours * 60 * 60), passes: c.Passes}
	j.ask = func() map[string]checks.GPUState { return readStates(env) }
	j.gpus = sync.OnceValue(func() []string {
		views, _ := nvidia.ReadGPUViews(env.Host) // without them only a boot clears an error of a switch
		return views.Own()
	})
	codes, _ := parseXidCodes(c.Codes)
	cases := j.findCases()
	for _, x := range cases {
		for _, e := range x.events {
			e.standing = x.class.Drains()
			e.Drained = e.Drained || e.standing
		}
	}
	r := &xidReporter{xidJudge: j, strict: c.Strict, file: c.logFile()}
	r.order, _ = nvidia.DriverGPUs(env.Host) // without it a GPU has no number
	found := r.makeFindings(slices.DeleteFunc(cases, func(x *xidCase) bool { return !codes.has(x.key) }))
	for i := range ledger.Events {
		e := &ledger.Events[i]
		e.Told = e.Told || codes.has(e.Key)
	}
	ledger.forget(now)
	return found
}

// countPasses counts a run for each event without a new line.
func (l *xidLedger) countPasses(scan *xidScan) {
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
	env.At("write the record of Xids")
	err := env.Remember(xidLedgerName, ledger)
	what := "the record of Xids cannot be written: "
	switch _, elsewhere := errors.AsType[*probe.SpareError](err); {
	case err == nil:
		return nil
	case elsewhere:
		what = ""
	}
	return []checks.Finding{checks.Finding{Code: "gpu.xid.ledger", Severity: checks.Warn}.Describe("check_gpu_xid", "%s%v", what, err)}
}
