package main

import (
	"fmt"
	"os"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// refuse reports a configuration that cannot be used. It drains nobody: one bad
// push must not empty a cluster.
func (r *oneRun) refuse(err error) int {
	if r.refused != nil {
		r.refused(err)
		return exitUnknown
	}
	text := "Health check unknown:  " + err.Error()
	fmt.Fprintf(console.Stdout, "ERROR:  %s:  %s\n", r.Set.Get("NAME"), text)
	sink.Syslog(r.Set.Get("NAME"), []string{text})
	r.doubt, r.unusable = err.Error(), true
	return r.unknown()
}

// unknown is the exit status of a run that could not tell. slurmd drains a node
// for whatever else than 0 a prolog or an epilog leaves with.
func (r *oneRun) unknown() int {
	if r.Role.AroundJob() {
		return 0
	}
	return exitUnknown
}

// trusted refuses a configuration that somebody else than root, or than who
// runs this, could have written.
func trusted(path string, info *run.FileInfo) error {
	switch {
	case info.Mode.Perm()&0o002 != 0:
		return fmt.Errorf("read %s: writable by others (mode %04o), want at most 0775", path, info.Mode.Perm())
	case info.UID != 0 && int(info.UID) != os.Geteuid():
		return fmt.Errorf("read %s: owned by uid %d, want root", path, info.UID)
	}
	return nil
}
