package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// open finds the resource manager, opens the log, and reads the configuration
// and what scripts the site has, in one go.
func (r *oneRun) open() (file run.File, exit int, over bool) {
	spec, err := r.Log.Parse(r.Set)
	if err != nil && !r.withoutLog(spec, err) {
		if exit, over = r.Log.Fail(r.Set, spec, err); over {
			return file, exit, true
		}
	}
	confFile, dir := r.Set.Get("CONFFILE"), r.Set.Get("INCDIR")
	logReqs := r.Log.OpenRequests()
	list := &run.Request{Op: run.OpList, Path: dir, Line: "list " + dir}
	reqs := append(slices.Clip(logReqs), list)
	profiles := r.profilesRequest()
	reqs = append(reqs, profiles)
	var read, find, own, tables *run.Request
	if r.opts.eval == "" {
		read = &run.Request{Op: run.OpRead, Path: confFile, Line: "read " + confFile}
		tables = r.tablesRequest()
		reqs = append(reqs, read, tables)
		if own = r.ownRequest(); own != nil {
			reqs = append(reqs, own)
		}
	}
	if r.Set.Get("NHC_RM") == "" {
		find = r.ManagerRequest()
		reqs = append(reqs, find)
	}
	out := map[*run.Request]run.Outcome{}
	r.Pool.Do(r.Ctx, checks.Local, reqs, func(*run.Request) time.Duration { return r.Budget.Reading(time.Now()) },
		func(q *run.Request, o run.Outcome) { out[q] = o })
	if exit, over := r.UseManager(find, out[find]); over {
		return file, exit, true
	}
	for _, q := range logReqs {
		if err := out[q].FailureIn(q.Line); err != nil && !r.withoutLog(spec, err) {
			if exit, over := r.Log.Fail(r.Set, spec, err); over {
				return file, exit, true
			}
			break // once is enough
		}
		r.Log.Opened(q, out[q])
	}
	r.noteScripts(out[list])
	if err := r.useProfiles(out[profiles]); err != nil {
		return file, r.refuse(err), true
	}
	if read == nil {
		return file, 0, false
	}
	if err := r.useTables(out[tables]); err != nil {
		return file, r.refuse(err), true
	}
	if own != nil && !missing(out[own]) {
		confFile, read, r.job.own = own.Path, own, true
		r.Set.Put("CONFFILE", confFile, r.Set.Export["CONFFILE"])
	}
	if file, exit, over = r.usable(confFile, out[read]); !over {
		r.presetHardware(file.Data)
	}
	return file, exit, over
}

// usable says what there is to do without a configuration file that can be
// read. One that does not exist means that there is nothing to check, as in
// LBNL NHC. A prolog and an epilog report that: the administrator installed them
// to check something. They keep the job's record, and an epilog looks for leftovers
// of the job.
func (r *oneRun) usable(path string, o run.Outcome) (file run.File, exit int, over bool) {
	file, err := r.opened(path, o)
	if err != nil {
		return file, r.refuse(err), true
	}
	if !file.Missing && !file.Mode.IsRegular() {
		text := fmt.Sprintf("read %s: not a regular file (%s), nothing is checked", path, file.Mode.Type())
		r.Debug("%s", text)
		if r.Role != slurm.Manual { // by hand LBNL NHC says nothing of it
			sink.Syslog(r.Set.Get("NAME"), []string{text})
		}
		return file, 0, true
	}
	if file.Missing {
		r.Debug("Missing configuration file %s, nothing to check.", path)
		if r.job != nil && len(r.tables) == 0 {
			why := fmt.Sprintf("%s: no check is run: there is no %s; nhc-genconf writes one", r.Role, path)
			r.Warn(errors.New(why))
			sink.Syslog(r.Set.Get("NAME"), []string{"Health check unknown:  " + why})
		}
		return file, 0, len(r.tables) == 0 && r.job == nil
	}
	return file, 0, false
}

// configuration parses nhc.conf and keeps the lines of this host.
func (r *oneRun) configuration(path string, file run.File) (exit int, over bool) {
	if file.Missing { // nhc.toml has checks
		return 0, false
	}
	if err := trusted(path, &file.FileInfo); err != nil {
		return r.refuse(err), true
	}
	if file.Size > int64(len(file.Data)) {
		return r.refuse(fmt.Errorf("read %s: %d bytes, want at most %d", path, file.Size, conf.MaxSize)), true
	}
	lines, warnings, err := conf.Parse(path, file.Data)
	if err != nil {
		return r.refuse(err), true
	}
	for _, w := range warnings {
		if !r.strict {
			r.Warn(fmt.Errorf("%s: %s", w.Pos, w.Text))
		}
		r.doubts = append(r.doubts, fmt.Sprintf("%s: %s", w.Pos, w.Text))
	}
	m := r.matcher()
	for _, l := range lines {
		ok, err := m.Match(r.Set.Get("HOSTNAME"), l.Target)
		if err != nil {
			err = fmt.Errorf("%s: target %q: %w", l.Pos, l.Target, err)
			if !errors.Is(err, match.ErrExpansion) { // where bash gives up, too
				return r.refuse(err), true
			}
			fmt.Fprintln(console.Stderr, "nhc-gpu:", err)
			return 1, true
		}
		r.debugTarget(l, ok)
		r.doubtTarget(l)
		if ok {
			r.vetted = append(r.vetted, l)
		} else {
			r.others++
		}
	}
	return 0, false
}
