package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// evalOnly sets up -e: one line, no log, no marking, no watchdog.
func (r *oneRun) evalOnly() {
	r.Set.Vars["LOGFILE"] = "-"
	r.Set.MarkNothing()
}

// sysconfig reads $SYSCONFIGDIR/$NAME, which wins over the command line.
func (r *oneRun) sysconfig() (exit int, over bool) {
	exit, over = r.readSysconfig()
	r.NameFromSettings()
	return exit, over
}

func (r *oneRun) readSysconfig() (exit int, over bool) {
	path := filepath.Join(r.Set.Get("SYSCONFIGDIR"), r.Set.Get("NAME"))
	o := r.Pool.Call(r.Ctx, checks.Local, &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}, r.Budget.Reading(time.Now()))
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
	assigns, needShell, err := conf.ParseSysconfig(path, file.Data, r.Set.Lookup)
	switch {
	case err != nil:
		return r.refuse(err), true
	case needShell:
		r.sourced = path
		return r.source(path)
	}
	r.Set.Assign(assigns)
	return 0, false
}

// source has bash read a sysconfig file that is more than assignments, and
// takes over every variable it leaves.
func (r *oneRun) source(path string) (exit int, over bool) {
	if err := (&observer{r}).startShell(); err != nil {
		return r.refuse(err), true
	}
	status, exited, err := r.shell.Source(path, r.Budget.Began.Add(session.Reading))
	if err != nil {
		r.endShell()
		return r.refuse(fmt.Errorf("source %s: %w", path, err)), true
	}
	if exited { // "exit" or a death in the file ends the run with its status
		return status, true
	}
	return 0, false
}
