package health

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/term"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// openAll finds the resource manager, opens the log, and reads the configuration and the list of
// scripts, in one request.
func (r *Run) openAll() (exit int, over bool) {
	spec, err := r.Log.Parse(r.Set)
	if err != nil && !r.withoutLog(spec, err) {
		if exit, over = r.Log.Fail(r.Set, spec, err); over {
			return exit, true
		}
	}
	logs := r.Log.OpenRequests()
	beside := slices.Clip(logs)
	var find *wire.Request
	if r.Set.Get("NHC_RM") == "" {
		find = r.ManagerRequest()
		beside = append(beside, find)
	}
	errs := r.Open(beside, func(out map[*wire.Request]run.Outcome) (goOn bool) {
		if exit, over = r.UseManager(find, out[find]); over {
			return false
		}
		for _, q := range logs {
			if err := out[q].FailureIn(q.Line); err != nil && !r.withoutLog(spec, err) {
				exit, over = r.Log.Fail(r.Set, spec, err)
				return !over // reported once
			}
			r.Log.Opened(q, out[q])
		}
		return true
	})
	switch {
	case over:
		return exit, true
	case len(errs) > 0:
		return r.refuse(errs[0]), true
	case r.Eval != "":
		return 0, false
	}
	if exit, over = r.usable(); over {
		return exit, true
	}
	file, err := r.MainFile()
	if err == nil {
		r.PresetHardware(file.Data)
	}
	return 0, false
}

// usable handles a configuration file that cannot be read. As in LBNL NHC a missing file means
// that there is nothing to check. A prolog and an epilog report it, since an administrator
// installed them to check something. They still keep the job's record, and an epilog still looks
// for leftovers of the job.
func (r *Run) usable() (exit int, over bool) {
	path := r.Path
	file, err := r.MainFile()
	if err != nil {
		return r.refuse(err), true
	}
	if !file.Missing && !file.Mode.IsRegular() {
		text := fmt.Sprintf("read %s: not a regular file (%s), nothing is checked", path, file.Mode.Type())
		r.Debug("%s", text)
		r.alert(text)
		if r.Role != slurm.Manual { // by hand LBNL NHC does not report it
			sink.Syslog(r.Set.Get("NAME"), []string{text})
		}
		return 0, true
	}
	if file.Missing {
		r.Debug("Missing configuration file %s, nothing to check.", path)
		if len(r.Tables) == 0 && slices.Contains(r.argv, "-check") {
			r.alert("no check is run: -check is -c heck; write --check")
		} else if len(r.Tables) == 0 {
			r.alert("no check is run: there is no " + path + "; nhc-gpu genconf writes one")
		}
		if r.Role.AroundJob() && len(r.Tables) == 0 {
			why := fmt.Sprintf("%s: no check is run: there is no %s; nhc-gpu genconf writes one", r.Role, path)
			r.Warn(errors.New(why))
			sink.Syslog(r.Set.Get("NAME"), []string{"Health check unknown:  " + why})
		}
		return 0, len(r.Tables) == 0 && !r.Role.AroundJob()
	}
	return 0, false
}

// alert reports on standard error why a run that a person starts with -c, -D or -v, or on a terminal, checks nothing.
// LBNL NHC prints nothing.
func (r *Run) alert(text string) {
	byPerson := slices.Contains(r.Given, "CONFFILE") || slices.Contains(r.Given, "CONFDIR") || r.Set.Get("VERBOSE") == "1" || term.IsTerminal(2)
	if byPerson && r.Role == slurm.Manual && !r.Background && options.IsOwn(r.argv[0]) && !r.Opts.LikeLBNL() {
		fmt.Fprintln(console.Alerts, "nhc-gpu:", text)
	}
}
