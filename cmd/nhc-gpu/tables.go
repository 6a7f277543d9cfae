package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// nhc.toml: further checks, and what checks mean in which context.

// context is the context of the run, as nhc.toml names it; "" if that does not
// matter.
func (r *oneRun) context() string {
	if r.whole {
		return ""
	}
	return map[slurm.Role]string{slurm.HealthCheck: conf.HealthCheck, slurm.Prolog: conf.Prolog, slurm.Epilog: conf.Epilog, slurm.Manual: conf.Manual}[r.Role]
}

// timeout is TIMEOUT, or what the context has in its place.
func (r *oneRun) timeout() time.Duration {
	if r.config.Role(r.context()).Budget > 0 {
		return r.allowed()
	}
	t := r.Set.Timeout()
	if d := r.allowed(); d > 0 && t > d { // what slurmd cuts off cannot be shared out
		return d
	}
	return t
}

// tablesFile is nhc.toml, beside nhc.conf.
func (r *oneRun) tablesFile() string {
	if named := r.Set.Get("TOMLFILE"); named != "" {
		return named
	}
	return r.Set.Get("CONFDIR") + "/" + r.Set.Get("NAME") + ".toml"
}

func (r *oneRun) tablesRequest() *run.Request {
	path := r.tablesFile()
	return &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}
}

// missing says whether there is no such file.
func missing(o run.Outcome) bool {
	f, err := o.File("")
	return err == nil && f.Missing
}

// useTables takes over nhc.toml. One that has named the file wants it. A file that
// cannot be used ends the run: without its policies a warning would drain nodes.
func (r *oneRun) useTables(o run.Outcome) error {
	path := r.tablesFile()
	data, there, err := r.contentOf(path, o, r.Set.Get("TOMLFILE") != "")
	if !there {
		return err
	}
	c, err := conf.ParseTOML(path, data)
	if c != nil {
		err = errors.Join(err, plan.UnknownPolicy(c))
		var unfit error
		r.tables, unfit = r.forThisHost(c.Checks)
		err = errors.Join(err, unfit)
	}
	r.config = c
	r.setBudget()
	return err
}

// opened is a file of the configuration that a worker has read.
func (r *oneRun) opened(path string, o run.Outcome) (run.File, error) {
	f, err := o.File("read " + path)
	if err == nil && f.Path != "" {
		r.paths[path] = f.Path
	}
	return f, err
}

// contentOf is the text of a configuration file, which may be missing unless
// somebody has named it.
func (r *oneRun) contentOf(path string, o run.Outcome, named bool) (data []byte, there bool, err error) {
	f, err := r.opened(path, o)
	switch {
	case err != nil:
		return nil, false, err
	case f.Missing && !named:
		return nil, false, nil
	case f.Missing:
		return nil, false, fmt.Errorf("read %s: no such file", path)
	case !f.Mode.IsRegular():
		return nil, false, fmt.Errorf("read %s: not a regular file (%s)", path, f.Mode.Type())
	case f.Size > int64(len(f.Data)):
		return nil, false, fmt.Errorf("read %s: %d bytes, want at most %d", path, f.Size, conf.MaxSize)
	}
	err = trusted(path, &f.FileInfo)
	return f.Data, err == nil, err
}

// forThisHost keeps the tables of this host.
func (r *oneRun) forThisHost(entries []conf.Entry) (ours []conf.Entry, err error) {
	m := r.matcher()
	for _, e := range entries {
		ok, unfit := m.Match(r.Set.Get("HOSTNAME"), e.Hosts)
		switch {
		case unfit != nil:
			err = errors.Join(err, fmt.Errorf("%s: hosts = %q: %w", e.Pos, e.Hosts, unfit))
		case ok:
			ours = append(ours, e)
		default:
			r.others++
		}
	}
	return ours, err
}

func (r *oneRun) profilesRequest() *run.Request {
	path := r.Set.ProfilesFile()
	return &run.Request{Op: run.OpRead, Path: path, Line: "read " + path}
}

// useProfiles takes over what the site says of its platforms. One that has named
// a file wants it.
func (r *oneRun) useProfiles(o run.Outcome) error {
	path := r.Set.ProfilesFile()
	data, there, err := r.contentOf(path, o, r.Set.Get("PLATFORM_PROFILES") != "")
	if !there {
		return err
	}
	if _, err := conf.ParsePlatforms(path, data); err != nil {
		return err
	}
	r.Set.Profiles, r.Set.ProfilesFrom = data, path
	return nil
}
