package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// managers are the signs of a resource manager, in LBNL NHC's order: a
// directory of its own, then commands in PATH.
var managers = []struct{ name, dir, command string }{
	{"pbs", "/var/spool/torque/", ""},
	{"slurm", "", "scontrol"},
	{"pbs", "", "pbsnodes"},
	{"sge", "", "qselect"},
	{"lsf", "", "badmin"},
	{"lsf", "", "sbatchd"},
}

// managerPaths are the paths that tell which resource manager there is.
func managerPaths(path string) (paths []string) {
	for _, m := range managers {
		if m.dir != "" {
			paths = append(paths, m.dir)
			continue
		}
		for dir := range strings.SplitSeq(path, ":") {
			if strings.HasPrefix(dir, "/") {
				paths = append(paths, dir+"/"+m.command)
			}
		}
	}
	return paths
}

func (r *oneRun) findManager() *run.Request {
	return &run.Request{Op: run.OpFind, Args: managerPaths(r.set.Get("PATH")), Line: "find the resource manager"}
}

// manager sets NHC_RM, if the site did not, and what follows from there being
// none. SGE's load sensor loop is refused: it has no place in a program that
// ends after every run.
func (r *oneRun) manager(find *run.Request, o run.Outcome) (exit int, over bool) {
	if find != nil {
		if resp, err := o.AnswerTo(find.Line); err != nil {
			r.warn(err)
		} else if resp.Status > 0 && resp.Status <= len(find.Args) {
			hit := find.Args[resp.Status-1]
			for _, m := range managers {
				if m.dir == hit || m.command != "" && strings.HasSuffix(hit, "/"+m.command) {
					r.set.Put("NHC_RM", m.name, true)
					break
				}
			}
		}
	}
	switch r.set.Get("NHC_RM") {
	case "":
		r.set.Vars["ONLINE_NODE"], r.set.Vars["OFFLINE_NODE"], r.set.Vars["MARK_OFFLINE"] = ":", ":", "0"
		r.debug("Unable to detect resource manager.")
	case "sge":
		fmt.Fprintln(console.Stderr, "nhc-gpu: NHC_RM=sge: the load sensor of SGE is not supported; unset NHC_RM or name another resource manager")
		return 2, true
	}
	return 0, false
}

// evalOnly sets up -e: one line, no log, no marking, no watchdog.
func (r *oneRun) evalOnly() {
	r.set.Vars["LOGFILE"] = "-"
	r.set.Vars["ONLINE_NODE"], r.set.Vars["OFFLINE_NODE"], r.set.Vars["MARK_OFFLINE"] = ":", ":", "0"
}

// sysconfig reads $SYSCONFIGDIR/$NAME, which wins over the command line.
func (r *oneRun) sysconfig() (exit int, over bool) {
	exit, over = r.readSysconfig()
	r.nameFromSettings()
	return exit, over
}

func (r *oneRun) readSysconfig() (exit int, over bool) {
	path := filepath.Join(r.set.Get("SYSCONFIGDIR"), r.set.Get("NAME"))
	o := r.pool.Call(r.ctx, checks.Local, &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}, r.budget.Reading(time.Now()))
	file, err := o.File("read " + path)
	if err != nil {
		return r.refuse(err), true
	}
	if file.Missing || !file.Mode.IsRegular() {
		return 0, false
	}
	if err := trusted(path, &file.FileInfo); err != nil {
		return r.refuse(err), true
	}
	r.settings = path
	assigns, needShell, err := conf.ParseSysconfig(path, file.Data, r.set.Lookup)
	switch {
	case err != nil:
		return r.refuse(err), true
	case needShell:
		r.sourced = path
		return r.source(path)
	}
	r.set.Assign(assigns)
	return 0, false
}

// source has bash read a sysconfig file that is more than assignments, and
// takes over every variable it leaves.
func (r *oneRun) source(path string) (exit int, over bool) {
	if err := (&observer{r}).startShell(); err != nil {
		return r.refuse(err), true
	}
	status, exited, err := r.shell.Source(path, r.budget.Began.Add(session.Reading))
	if err != nil {
		r.endShell()
		return r.refuse(fmt.Errorf("source %s: %w", path, err)), true
	}
	if exited { // "exit" or a death in the file ends the run with its status
		return status, true
	}
	return 0, false
}
