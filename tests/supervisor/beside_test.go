package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// asSlurmd runs a program as slurmd does, with a node that has its own memory.
func asSlurmd(t *testing.T, program, node, conf, slurm string) (exit int, out string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nhc.conf")
	must(t, os.WriteFile(file, []byte(conf), 0o644))
	cmd := exec.Command(program, "-c", file, "LOGFILE=-", "INCDIR=/nonexistent", "NHC_RM=slurm", "SLURM_SCONTROL="+slurm+"/scontrol")
	cmd.Env = []string{"SLURMD_NODENAME=" + node}
	text, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(text)
}

func nodeOf(t *testing.T) string {
	t.Helper()
	node := "supervisor-" + strings.ToLower(t.Name())
	t.Cleanup(func() { _, _ = os.RemoveAll("/run/nhc-gpu/"+node), os.RemoveAll("/var/lib/nhc-gpu/"+node) })
	return node
}

func stateOf(t *testing.T, slurm string) string {
	t.Helper()
	text, err := os.ReadFile(slurm + "/state")
	must(t, err)
	return strings.TrimSpace(string(text))
}

// Of many concurrent health checks one runs, and the others end at once.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	node, slurm := nodeOf(t), filepath.Join(t.TempDir(), "slurm")
	slurmAt(t, slurm)
	began := filepath.Join(t.TempDir(), "began")
	conf := fmt.Sprintf("* || echo x >> %s\n* || sleep 3\n* || check_file_test -f /nonexistent\n", began)
	var mu sync.Mutex
	failed, busy := 0, 0
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			exit, out := asSlurmd(t, program, node, conf, slurm)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case exit == 0 && strings.Contains(out, "leaving without a verdict"):
				busy++
			case exit == 1:
				failed++
			default:
				t.Errorf("exit status %d: %s", exit, out)
			}
		})
	}
	all.Wait()
	runs, _ := os.ReadFile(began)
	if n := bytes.Count(runs, []byte("x")); n != failed || failed < 1 || failed+busy != 20 || failed > 3 { // a late one may begin after the first has ended
		t.Errorf("%d runs began, %d failed, %d gave way, want one and 19", n, failed, busy)
	}
	if got := stateOf(t, slurm); !strings.HasPrefix(got, "IDLE+DRAIN NHC: ") {
		t.Errorf("the node is %q", got)
	}
}

// On a full disk, a drain that an earlier run could not deliver is delivered.
func TestFullDiskWithPendingDrain(t *testing.T) {
	t.Parallel()
	node, slurm := nodeOf(t), filepath.Join(t.TempDir(), "slurm")
	slurmAt(t, slurm)
	dir := "/run/nhc-gpu/" + node
	must(t, os.MkdirAll(dir, 0o700))
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=700,size=64k", "tmpfs", dir).CombinedOutput(); err != nil {
		need.Skip(t, "mount tmpfs: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
	must(t, os.WriteFile(slurm+"/broken", nil, 0o644))
	if exit, out := asSlurmd(t, program, node, "* || check_file_test -f /nonexistent\n", slurm); exit != 1 || !strings.Contains(out, "cannot drain node") {
		t.Fatalf("exit status %d: %s", exit, out)
	}
	_ = os.WriteFile(dir+"/fill", make([]byte, 64<<10), 0o600)
	must(t, os.Remove(slurm+"/broken"))
	exit, out := asSlurmd(t, program, node, "\x00", slurm) // it has no fault of its own
	if state := stateOf(t, slurm); exit != 3 || !strings.HasPrefix(state, "IDLE+DRAIN NHC: ") {
		t.Errorf("exit status %d, node %q: %s", exit, state, out)
	}
	for i := range 2 {
		exit, out := asSlurmd(t, program, node, "* || check_file_test -f /nonexistent\n", slurm)
		if exit != 1 || !strings.HasPrefix(stateOf(t, slurm), "IDLE+DRAIN NHC: ") {
			t.Errorf("run %d: exit status %d, node %q: %s", i+1, exit, stateOf(t, slurm), out)
		}
		// A worker that is slow to end on a loaded machine is noted in the ledger, which is a warning of its own.
		if n := strings.Count(out, "warning: ") - strings.Count(out, "/ledger.json"); n > 1 {
			t.Errorf("run %d: %d warnings, want one: %s", i+1, n, out)
		}
	}
}

// If a package replaces the program's file during a run, later workers of the run use the old
// program.
func TestReplacedInMidRun(t *testing.T) {
	t.Parallel()
	node, slurm, dir := nodeOf(t), filepath.Join(t.TempDir(), "slurm"), t.TempDir()
	slurmAt(t, slurm)
	own, next := filepath.Join(dir, "nhc-gpu"), filepath.Join(dir, "nhc-gpu.new")
	data, err := os.ReadFile(program)
	must(t, err)
	must(t, built.WriteProgram(own, data))
	must(t, built.WriteProgram(next, []byte("#!/bin/sh\nexit 77\n")))
	conf := fmt.Sprintf("* || touch %[1]s/running\n* || while [ ! -e %[1]s/replaced ]; do sleep 0.05; done\n* || check_file_test -f /nonexistent\n", dir)
	go func() {
		for end := time.Now().Add(20 * time.Second); !exists(dir+"/running") && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		_ = os.Rename(next, own)
		_ = os.WriteFile(dir+"/replaced", nil, 0o644)
	}()
	exit, out := asSlurmd(t, own, node, conf, slurm)
	if exit != 1 || !strings.HasPrefix(stateOf(t, slurm), "IDLE+DRAIN NHC: ") {
		t.Errorf("exit status %d, node %q: %s", exit, stateOf(t, slurm), out)
	}
}
