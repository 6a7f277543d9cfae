package report

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Start prepares a run that a person starts.
func Start(opts *options.Options) (*health.Run, error) {
	r := health.New([]string{"nhc-gpu"}, opts)
	_ = r.OpenState("")
	r.Strict, r.Whole = true, opts.Role == slurm.Manual
	r.Set.DryRun = true
	r.Judge.JudgeAnyJob()
	for _, a := range opts.Set {
		r.Set.Put(a.Name, a.Value, false)
	}
	for _, w := range opts.Words {
		if err := r.Set.Word(w); err != nil {
			r.Close()
			return nil, err
		}
	}
	r.Set.Preset("nhc-gpu")
	return r, nil
}

// Quiet disables marking and logging for a run.
func Quiet(r *health.Run) {
	r.Quiet()
	r.Judge.HoldMark()
}

const seeAbove = " cannot be used, see above"

// Open prepares a run that does not mark the node, writes no log and continues after failures.
// Its plan is the node's configuration, or the built-in plan. It also returns the name of the
// plan's source.
func Open(o *options.Options, opts Options) (*health.Run, string, error) {
	r, err := Start(o)
	if err != nil {
		return nil, "", err
	}
	r.Set.DryRun, r.Judge.ToJSON = !opts.Act, opts.JSON || opts.Format != "" || o.Quiet()
	if err := r.Sysconfig(); err != nil {
		r.Stop(err)
		r.Close()
		return nil, "", Unusable{fmt.Errorf("the settings of %s"+seeAbove, r.Set.Get("NAME"))}
	}
	named := r.Set.Get("CONFFILE") != "" || r.Set.Get("CONFDIR") != ""
	Quiet(r)
	if r.Role.AroundJob() {
		r.Pool.SetVars(r.Set.WorkerVars())
		r.UnderSlurm()
	}
	from, err := peoplePlan(r, named, opts.Runs && !opts.NoShell)
	if err != nil {
		r.Close()
		return nil, "", Unusable{err}
	}
	return r, from, nil
}

// noCheck begins the source of a plan without a check.
const noCheck = "no check: "

// peoplePlan reads the configuration. A file that the command line names must exist.
func peoplePlan(r *health.Run, named, runs bool) (from string, err error) {
	if errs := r.Open(nil, nil); len(errs) > 0 {
		return "", errs[0]
	}
	file, err := r.MainFile()
	if r.Eval == "" && err == nil && file.Mode.IsRegular() {
		r.PresetHardware(file.Data)
	}
	peopleScripts(r, runs)
	r.DoubtScripts()
	if r.Reopen() {
		file, err = r.MainFile()
	}
	from = r.Path
	switch {
	case r.Eval != "":
		r.UseEval()
		from = "-e"
	case err != nil:
		return from, err
	case file.Missing && len(r.Tables) > 0:
		from = r.TablesFile()
	case file.Missing && (r.Context() == conf.Prolog || r.Context() == conf.Epilog):
		from = noCheck + "there is no " + r.Path
	case file.Missing && !named:
		entries, err := conf.Default()
		if err == nil {
			r.Tables, err = r.ForThisHost(entries)
		}
		if err != nil {
			return from, err
		}
		from = "the built-in plan of --check (there is no " + r.Path + ": under Slurm nhc-gpu checks nothing)"
	case file.Missing:
		return from, fmt.Errorf("read %s: no such file", r.Path)
	case !file.Mode.IsRegular():
		return from, fmt.Errorf("read %s: not a regular file (%s), nothing is checked", r.Path, file.Mode.Type())
	default:
		if errs := r.ReadLines(); len(errs) > 0 {
			r.Stop(errs[0])
			return from, fmt.Errorf("%s"+seeAbove, r.Path)
		}
		if len(r.Tables) > 0 {
			from += " and " + r.TablesFile()
		}
	}
	r.Plan = r.Build()
	return from, nil
}

// peopleScripts has bash read the site's scripts. If no line runs, it only looks up which checks
// the scripts define.
func peopleScripts(r *health.Run, runs bool) {
	if !runs {
		r.SkipScripts()
		return
	}
	t := NewTable(r.Judge, r.Plan) // collects the failures of scripts
	r.Judge.LoadScripts()
	for _, f := range t.fails {
		r.Doubts = append(r.Doubts, f.Message)
	}
	if r.Judge.Over() {
		r.Doubts = append(r.Doubts, "a script of "+r.Set.Get("INCDIR")+" ends the run before its first check")
	}
	r.Judge.Collector = nil
}

// Unusable is the error of a command without a result: its configuration cannot be used, or its
// output cannot be written.
type Unusable struct{ Err error }

// placed finds the place of a line of a file that an error begins with.
var placed = checks.Lazily(`^(\S+):([0-9]+): `)

// Undone returns the error of a configuration that cannot be used, with its lines in the order of the file, and
// a last line that says that no check was run.
func Undone(err error) error {
	lines := strings.Split(err.Error(), "\n")
	if !errors.As(err, new(Unusable)) || !strings.HasSuffix(lines[0], seeAbove) && !placed().MatchString(lines[0]) {
		return err
	}
	slices.SortStableFunc(lines, func(a, b string) int {
		m, n := placed().FindStringSubmatch(a), placed().FindStringSubmatch(b)
		if m == nil || n == nil || m[1] != n[1] {
			return 0
		}
		i, _ := strconv.Atoi(m[2])
		j, _ := strconv.Atoi(n[2])
		return cmp.Compare(i, j)
	})
	const done = "no check was run, the node's state is unchanged; correct the lines above (nhc-gpu lint shows each with its fix)"
	return Unusable{errors.New(strings.Join(append(lines, done), "\n"))}
}

// Unwritten returns the error of a command whose output was not written, nil for nil.
func Unwritten(err error) error {
	if err == nil {
		return nil
	}
	return Unusable{fmt.Errorf("the result was not written: %w", err)}
}

// Error returns the message.
func (e Unusable) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e Unusable) Unwrap() error { return e.Err }
