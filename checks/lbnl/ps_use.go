package lbnl

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strconv"
	"strings"

	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// psUse checks that every process of a user stays below LIMIT: check_ps_cpu by its share of a
// processor since its start (a percentage; only the integer part is compared), check_ps_mem by
// its address space (a size), check_ps_physmem by its RAM (a size or a percentage),
// check_ps_time by its CPU time (seconds, or 12m34s). The check fails at the first process that
// reaches LIMIT. With -a it reports all of them, and exits with their number.
//
// MATCH is compared with the first word of each command line, or with the whole line if -f is
// given. Processes of system users are skipped unless -A is given: uids up to MAX_SYS_UID
// (unset: SYS_UID_MAX of login.defs, else UID_MIN - 1, else 99). LBNL NHC 1.4.3 has no -A and judges
// all users.
//
//	node* || check_ps_cpu -u '!root' -m '!/^(slurmd|sshd)/' 95%
//	node* || check_ps_physmem -0 -a -e 'logger big process' 90%
type psUse struct {
	Limit        string   `arg:"1" toml:"limit"`         // the amount at which the check fails
	Surplus      []string `arg:"*"`                      // ignored, as in LBNL NHC
	Match        string   `opt:"m" toml:"match"`         // match string for the program
	FullMatch    bool     `opt:"f" toml:"full_match"`    // compare with the whole command line
	Owner        string   `opt:"u" toml:"user"`          // match string for the user's name, or a uid
	AllUsers     bool     `opt:"A" toml:"all_users"`     // check system users too
	AllProcesses bool     `opt:"a" toml:"all_processes"` // report all processes, not only the first
	Nonfatal     bool     `opt:"0" toml:"nonfatal"`      // warn, do not fail
	Action       string   `opt:"e" toml:"run"`           // shell line to run for each process
	Kill         bool     `opt:"k" toml:"kill"`          // send SIGKILL to the process
	KillParent   bool     `opt:"K" toml:"kill_parent"`   // send SIGKILL to its parent, if it has the same user and is not process 1
	Renice       string   `opt:"r" toml:"renice"`        // nice value to set, if the process is not killed
	Log          bool     `opt:"l"`                      // accepted; does nothing, as in LBNL NHC's master
	Syslog       bool     `opt:"s"`                      // accepted; does nothing, as in LBNL NHC's master
	kind         useKind
}

// useKind is the resource that a check measures.
type useKind int

const (
	useCPU useKind = iota
	useMemory
	usePhysical
	useTime
)

var useNames = [...]string{"check_ps_cpu", "check_ps_mem", "check_ps_physmem", "check_ps_time"}

func (k useKind) String() string { return useNames[k] }

func (k useKind) code() string {
	return [...]string{"ps.cpu.high", "ps.mem.high", "ps.physmem.high", "ps.time.high"}[k]
}

func init() {
	registerUse(useCPU, "no process uses too much CPU",
		"Check whether the process hangs in a loop, and ask its owner whether this load is expected.")
	registerUse(useMemory, "no process has too large an address space",
		"Ask the owner of the process: address space is not RAM and is large by design in databases, GPU programs and sanitizers.")
	registerUse(usePhysical, "no process uses too much RAM",
		"End the process before the node runs out of memory, or request more memory for its job.")
	registerUse(useTime, "no process has used too much CPU time",
		"End the process if no job owns it any more, and find out who left it behind.")
}

// Doubt implements [checks.Doubtful]: without -A a line for one system user judges no process.
func (c *psUse) Doubt() (word, text, now, better string) {
	uid, err := strconv.Atoi(c.Owner)
	if c.AllUsers || c.Owner != "root" && (err != nil || uid < 0 || uid > checks.ClassicMaxSystemUID) {
		return "", "", "", ""
	}
	return c.Owner, "-u " + c.Owner + " without -A", "the check skips processes of system users and judges none; LBNL NHC 1.4.3 judged them", c.Owner + " -A"
}

func registerUse(kind useKind, summary, do string) {
	checks.Register(checks.Info{
		Name:    kind.String(),
		Usage:   "[-0] [-a] [-f] [-l] [-s] [-A] [-k|-r NICE] [-K] [-u USER] [-m MATCH] [-e ACTION] LIMIT",
		Summary: summary,
		Lane:    checks.Local,
		New:     func() checks.Check { return &psUse{kind: kind} },
		Acts: func(c checks.Check) bool {
			u := c.(*psUse)
			return u.Kill || u.KillParent || u.Renice != "" || u.Action != ""
		},
		BadUsage: checks.UsageOf(kind.String()),
		Do: func() map[string]string {
			return map[string]string{
				kind.code():        do,
				"ps.action.failed": checks.DoActionFailed,
			}
		},
		Vars: map[string]string{"MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs"},
	})
}

func (c *psUse) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r := useRun{psUse: c, env: env}
	if bad := r.parseLimit(); bad != nil {
		return []checks.Finding{*bad}
	}
	if f := r.prepare(); f != nil {
		return f
	}
	procs, err := probe.Processes(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	// Judge all processes before acting on one: the death of its parent changes the process.
	var over []overLimit
	for _, p := range procs {
		if f, high := r.judge(p); high {
			over = append(over, overLimit{p, f})
			if !c.AllProcesses {
				break
			}
		}
	}
	return r.report(ctx, procs, over)
}

// overLimit is a process that has reached the limit, with its finding.
type overLimit struct {
	probe.Process
	finding checks.Finding
}

// report carries out the line's actions on each process, and reports them.
func (r *useRun) report(ctx context.Context, procs []probe.Process, over []overLimit) []checks.Finding {
	last := checks.Finding{}
	for i, o := range over {
		last = o.finding
		last.Message += r.act(ctx, procs, o.Process)
		if r.AllProcesses {
			f := last
			f.Severity = checks.Warn
			f.Message += fmt.Sprintf(" (%d)", i+1)
			r.findings = append(r.findings, f)
		}
	}
	if len(over) == 0 {
		return r.findings
	}
	if r.AllProcesses && !r.Nonfatal {
		last.Message += fmt.Sprintf(" (last of %d)", len(over))
		last.Status = min(len(over), 255) // the highest exit status
	}
	return append(r.findings, r.verdict(last))
}

// useRun is one run of the check.
type useRun struct {
	*psUse
	env       *checks.Env
	least     *big.Rat // the first amount that is too high, in the unit of its kind
	limit     string   // as it is printed
	percent   bool     // of RAM
	owner     string
	maxSystem int64  // highest uid to skip
	uptime    uint64 // clock ticks
	ram       uint64 // kB
	match     func(s, expr string) bool
	reniced   string // the nice value as LBNL NHC prints it
	findings  []checks.Finding
}

// prepare reads the values that judge needs for every process.
func (r *useRun) prepare() (failed []checks.Finding) {
	r.maxSystem = -1
	if !r.AllUsers {
		if r.maxSystem, failed = checks.MaxSystemUID(r.env, r.kind.String()); failed != nil {
			return failed
		}
	}
	var err error
	if r.kind == useCPU {
		if r.uptime, err = probe.Uptime(r.env.Host); err != nil {
			return checks.Unreadable(err)
		}
	}
	if r.percent {
		mem, err := probe.ReadMemory(r.env.Host)
		if err != nil {
			return checks.Unreadable(err)
		}
		r.ram = max(mem.Total, 1)
	}
	r.owner = checks.OwnerName(r.env, r.Owner)
	r.match = r.env.Matcher(&r.findings)
	r.reniced = r.Renice
	return nil
}

// verdict sets the severity of the check's result.
func (r *useRun) verdict(f checks.Finding) checks.Finding {
	f.Severity = checks.Fail
	if r.Nonfatal {
		f.Severity = checks.Warn
		f.Message += " (non-fatal)"
	}
	return f
}

// judge reports whether the line covers a process and the process has reached the limit.
func (r *useRun) judge(p probe.Process) (f checks.Finding, high bool) {
	if !r.AllUsers && int64(p.UID) <= r.maxSystem {
		return f, false
	}
	program := p.Command()
	if r.FullMatch {
		program = p.Args
	}
	if r.Match != "" && !p.Unread && !r.match(program, r.Match) || r.owner != "" && !r.match(checks.OwnerOf(r.env, p), r.owner) {
		return f, false
	}
	r.env.At("read the usage of process %d", p.PID)
	u, err := probe.ReadUsage(r.env.Host, p)
	var rss uint64
	if err == nil && r.kind == usePhysical {
		rss, err = probe.Resident(r.env.Host, p)
	}
	if errors.Is(err, os.ErrProcessDone) {
		return f, false
	}
	if err != nil {
		r.findings = append(r.findings, checks.Unreadable(err)...)
		return f, false
	}
	program = checks.Short(program)
	amount, text, got := r.measure(u, rss)
	if new(big.Rat).SetInt(new(big.Int).SetUint64(amount)).Cmp(r.least) < 0 {
		return f, false
	}
	if p.Unread && r.Match != "" {
		r.findings = append(r.findings, unread(r.env, r.kind.String(), p))
		return f, false
	}
	return checks.Finding{
		Code:    r.kind.code(),
		Device:  checks.Device{Kind: "process", Name: program},
		Message: fmt.Sprintf("%s:  Process \"%s\" (%d) of %s %s", r.kind, program, p.PID, checks.OwnerOf(r.env, p), text),
		Want:    "less than " + r.limit,
		Got:     got,
	}, true
}

// measure returns the usage of a process: the number to compare, LBNL NHC's text about it, and
// the amount as text. rss, in kB, is set only for check_ps_physmem.
func (r *useRun) measure(u probe.Usage, rss uint64) (amount uint64, text, got string) {
	switch {
	case r.kind == useCPU:
		share := u.Share(r.uptime)
		got = tenths(share) + "%"
		return share / 10, fmt.Sprintf("using %s CPU (limit %s)", got, r.limit), got
	case r.kind == useMemory:
		got = checks.Kilobytes(u.VSZ)
		return u.VSZ, fmt.Sprintf("using %s memory (RAM+swap) (limit %s)", got, r.limit), got
	case r.percent:
		share := min(rss*1000/r.ram, 999) // ps prints at most 99.9
		got = tenths(share) + "%"
		return share / 10, fmt.Sprintf("using %s RAM (limit %s)", got, r.limit), got
	case r.kind == usePhysical:
		got = checks.Kilobytes(rss)
		return rss, fmt.Sprintf("using %s RAM (limit %s)", got, r.limit), got
	}
	minutes, seconds := u.Seconds()/60, u.Seconds()%60
	got = fmt.Sprintf("%d:%02d", minutes, seconds)
	// LBNL NHC shows the process's own time as the limit.
	return u.Seconds(), fmt.Sprintf("has consumed %s of CPU time (limit %dm%02ds)", got, minutes, seconds), got
}

// tenths prints tenths of a percent as ps does: no fraction from 100 on.
func tenths(n uint64) string {
	if n > 999 {
		return strconv.FormatUint(n/10, 10)
	}
	return fmt.Sprintf("%d.%d", n/10, n%10)
}

// parseLimit parses the limit. If it returns a finding, the check ends with it.
func (r *useRun) parseLimit() *checks.Finding {
	word, percent := strings.CutSuffix(r.Limit, "%")
	wrong := func(text string) *checks.Finding {
		f := checks.Usage(r.kind.String()+":  Syntax error:  "+text, "")
		return &f
	}
	var ok bool
	switch {
	case r.kind == useCPU:
		if strings.Trim(word, "0123456789.") == "" {
			r.least, ok = checks.ParseNumber(word)
		}
		if r.limit = word + "%"; !ok {
			return wrong("CPU utilization limit required.")
		}
		return nil
	case r.Limit == "" && r.kind == useTime:
		return wrong("CPU time utilization limit required.")
	case r.Limit == "":
		return wrong("Memory utilization limit required.")
	case r.kind == useTime:
		if strings.Trim(r.Limit, "0123456789MmSs") != "" {
			return wrong(fmt.Sprintf("Invalid characters in CPU time limit \"%s\"", r.Limit))
		}
		r.limit = r.Limit
		r.least, ok = parseCPUTime(r.Limit)
	case percent && r.kind == useMemory:
		return wrong("Percentage not supported by this check.")
	case percent:
		r.percent, r.limit = true, r.Limit
		r.least, ok = checks.ParseNumber(word)
	default:
		var s checks.SizeKB
		if s, ok = checks.ParseSize(r.Limit); ok {
			r.least, r.limit = s.KB, s.LimitText()
		}
	}
	if !ok {
		f := checks.WrongValue(r.kind.String(), "limit", r.Limit, r.kind.limitFormat())
		return &f
	}
	return nil
}

// limitFormat describes a valid limit.
func (k useKind) limitFormat() string {
	return [...]string{"a percentage", wantSize, wantSize + ", or a percentage", "seconds, or minutes and seconds such as 12m34s"}[k]
}

// parseCPUTime reads a limit of CPU time: 90, 90s, 2m, 1m30, 1m30s. Seconds
// after minutes are decimal even with a leading zero, as in the TIME of ps.
func parseCPUTime(word string) (*big.Rat, bool) {
	word = strings.ReplaceAll(word, "s", "")
	first, last := strings.IndexAny(word, "Mm"), strings.LastIndexAny(word, "Mm")
	if first < 0 {
		n, ok := checks.ParseInteger(word)
		return big.NewRat(n, 1), ok
	}
	minutes, ok := decimalPart(word[:first])
	seconds, good := decimalPart(word[last+1:])
	sum := new(big.Rat).Mul(big.NewRat(minutes, 1), big.NewRat(60, 1))
	return sum.Add(sum, big.NewRat(seconds, 1)), ok && good
}

// decimalPart parses the minutes or the seconds of a CPU time.
func decimalPart(word string) (int64, bool) {
	if n, ok := checks.ParseInteger(word); ok {
		return n, true
	}
	n, err := strconv.ParseInt(word, 10, 64)
	return n, err == nil
}

// act carries out the line's actions on a process that has reached the limit, and returns the
// text about them.
func (r *useRun) act(ctx context.Context, procs []probe.Process, p probe.Process) (said string) {
	if r.Action != "" {
		r.env.Spawn(ctx, r.Action, r.env.Shell(r.Action))
	}
	switch {
	case r.Kill:
		if checks.KillProcess(r.env, r.kind.String(), p, &r.findings) {
			said = "; killed"
		}
	case r.Renice != "":
		said = r.renice(p)
	}
	if r.KillParent {
		said += r.killParent(procs, p)
	}
	return said
}

// renice sets the nice value of a process, and reports it as renice(1) does.
func (r *useRun) renice(p probe.Process) (said string) {
	if !strings.HasPrefix(r.reniced, "-") { // one more plus sign each time, as in LBNL NHC
		r.reniced = "+" + r.reniced
	}
	said = "; reniced " + r.reniced
	nice, err := strconv.Atoi(strings.TrimLeft(r.Renice, " \t"))
	if err != nil {
		r.findings = append(r.findings, checks.ActionFailed(r.kind.String(), "renice process ID %d: \"%s\" is not a nice value", p.PID, r.Renice))
		return said
	}
	if !r.env.Acts("renice %s to %d", r.env.ProcessText(p), nice) {
		return ""
	}
	r.env.At("renice %d", p.PID)
	before, after, err := probe.Renice(r.env.Host, p, nice)
	switch {
	case errors.Is(err, os.ErrProcessDone):
	case err != nil:
		r.findings = append(r.findings, checks.ActionFailed(r.kind.String(), "renice process ID %d: %v", p.PID, err))
	default:
		r.findings = append(r.findings, checks.Finding{
			Code:     r.kind.code(),
			Severity: checks.Warn,
			Device:   checks.Device{Kind: "process", Name: checks.Short(p.Command())},
			Message:  fmt.Sprintf("%d (process ID) old priority %d, new priority %d", p.PID, before, after),
		})
	}
	return said
}

// killParent kills the parent of a process, unless it is process 1 or belongs to another user.
func (r *useRun) killParent(procs []probe.Process, p probe.Process) (said string) {
	u, err := probe.ReadUsage(r.env.Host, p)
	if err != nil {
		return ""
	}
	parent, known := processOf(procs, u.Parent)
	switch {
	case u.Parent == 1:
		return "; parent 1 not killed (PPID is 1)"
	case !known || parent.UID != p.UID:
		return fmt.Sprintf("; parent %d not killed (owner mismatch)", u.Parent)
	}
	if !checks.KillProcess(r.env, r.kind.String(), parent, &r.findings) {
		return ""
	}
	return fmt.Sprintf("; killed parent %d", u.Parent)
}

// processOf finds a process in the list of [probe.Processes].
func processOf(procs []probe.Process, pid int) (probe.Process, bool) {
	i, ok := slices.BinarySearchFunc(procs, pid, func(p probe.Process, pid int) int { return p.PID - pid })
	if !ok {
		return probe.Process{}, false
	}
	return procs[i], true
}
