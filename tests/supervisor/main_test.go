// Package supervisor shows that the process that slurmd starts uses no path that can block it: by
// its system calls, and on file systems that stop answering.
package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

var program string

func TestMain(m *testing.M) {
	if os.Getenv(caseEnv) != "" {
		os.Exit(insideCase())
	}
	if os.Geteuid() != 0 {
		os.Exit(need.Exit("tests/supervisor: needs root to mount, to trace and to drain"))
	}
	os.Exit(built.Main(m, &program))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// slurmAt puts a scontrol and a sinfo for one node into a directory. The node's state is in the
// file state. The file broken makes them fail; hold makes an update, after it has created begun,
// wait for the file go.
func slurmAt(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "state"), []byte("IDLE\n"), 0o644))
	text := strings.ReplaceAll(`#!/bin/sh
if [ -e DIR/broken ]; then
	echo "slurm_update error: Unable to contact slurm controller (connect failure)" >&2
	exit 1
fi
read -r state reason < DIR/state
case "$*" in
*show*) echo "NodeName=n State=$state ThreadsPerCore=1 ${reason:+Reason=$reason [root@2026-11-21T06:23:00]}" ;;
update*)
	if [ -e DIR/hold ]; then
		: > DIR/begun
		while [ ! -e DIR/go ]; do sleep 0.02; done
	fi
	case $2 in
	State=DRAIN) echo "IDLE+DRAIN ${4#Reason=}" > DIR/state ;;
	*) echo IDLE > DIR/state ;;
	esac
	;;
*) echo "$state $reason" ;;
esac
`, "DIR", dir)
	for _, name := range []string{"scontrol", "sinfo"} {
		must(t, built.WriteProgram(filepath.Join(dir, name), []byte(text)))
	}
}
