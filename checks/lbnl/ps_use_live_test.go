package lbnl

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// runUse runs check_ps_cpu with a limit of 0 on the processes of this machine that match.
func runUse(t *testing.T, match string, words ...string) []checks.Finding {
	t.Helper()
	check := &psUse{kind: useCPU}
	if err := checks.Bind(check, append(words, "-A", "-f", "-m", match, "0")); err != nil {
		t.Fatal(err)
	}
	return check.Run(t.Context(), &checks.Env{Host: probe.NewHost("/"), Doing: func(string) {}})
}

// awaitUse waits until n processes match.
func awaitUse(t *testing.T, match string, n int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		switch got := len(runUse(t, match, "-0", "-a")); {
		case n == 0 && got == 0, n > 0 && got == n+1: // the last is reported twice
			return
		case time.Now().After(end):
			t.Fatalf("%d lines about %s, want those of %d processes", got, match, n)
		}
	}
}

// TestPsUseActs runs on this machine: the check must renice and kill the matching processes and
// no others.
func TestPsUseActs(t *testing.T) {
	t.Parallel()
	name := fmt.Sprintf("nhc-gpu-test-use-%d", os.Getpid())
	victim(t, name, 2)
	awaitUse(t, name+"*", 2)

	findings := runUse(t, name+"*", "-r", "7")
	if len(findings) != 2 || findings[0].Severity != checks.Warn || findings[1].Severity != checks.Fail {
		t.Fatalf("renice: %+v", findings)
	}
	if got := findings[0].Message; !strings.HasSuffix(got, "new priority 7") || !strings.Contains(got, " (process ID) old priority ") {
		t.Errorf("renice says %q", got)
	}
	if findings[0].Code != findings[1].Code {
		t.Errorf("codes %s and %s", findings[0].Code, findings[1].Code)
	}

	if findings := runUse(t, name+"*", "-k", "-a"); len(findings) != 3 || findings[2].Status != 2 {
		t.Errorf("kill: %+v", findings)
	}
	awaitUse(t, name+"*", 0)
}

func TestPsUseKillsParent(t *testing.T) {
	t.Parallel()
	// The argument of sleep makes its command line unique.
	child := fmt.Sprintf("sleep 60.%d", os.Getpid())
	cmd := exec.Command("/bin/sh", "-c", child+"; :")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	awaitUse(t, child, 1)
	want := fmt.Sprintf("; killed parent %d", cmd.Process.Pid)
	findings := runUse(t, child, "-K")
	if len(findings) != 1 || !strings.HasSuffix(findings[0].Message, want) {
		t.Errorf("got %+v, want %s", findings, want)
	}
	select {
	case err := <-done:
		if err == nil || err.Error() != "signal: killed" {
			t.Errorf("the parent ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		t.Error("the parent is still running")
	}
	runUse(t, child, "-k")
	awaitUse(t, child, 0)
}

// TestPsUseJudgesBeforeItActs checks that killing the first child's parent does not change the
// judgement of the second child.
func TestPsUseJudgesBeforeItActs(t *testing.T) {
	t.Parallel()
	child := fmt.Sprintf("sleep 61.%d", os.Getpid())
	cmd := exec.Command("/bin/sh", "-c", child+" & "+child+"; :")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	awaitUse(t, child, 2)
	want := fmt.Sprintf("; killed parent %d", cmd.Process.Pid)
	for _, f := range runUse(t, child, "-a", "-K") {
		if !strings.Contains(f.Message, want) {
			t.Errorf("got %s, want %s", f.Message, want)
		}
	}
	runUse(t, child, "-a", "-k")
	awaitUse(t, child, 0)
}
