package slurm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// holdVar names the state directory to the process that TestTwoProcesses
// starts: this test binary.
const holdVar = "NHC_GPU_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(holdVar); path != "" {
		hold(path)
		return
	}
	os.Exit(m.Run())
}

// hold takes both locks until standard input ends.
func hold(path string) {
	d, err := OpenStateDir(path)
	if err == nil {
		_, err = d.TryRun(HealthCheck)
	}
	if err == nil {
		_, err = d.Lock(0)
	}
	fmt.Println("held", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startHolder starts a process that holds the locks; kill ends it.
func startHolder(t *testing.T, path string) (pid int, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdVar+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		in.Close()
		_ = cmd.Process.Kill() // a second call finds it gone
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	line := make([]byte, 80)
	n, _ := out.Read(line)
	if got := strings.TrimSpace(string(line[:n])); got != "held <nil>" {
		t.Fatalf("holder says %q", got)
	}
	return cmd.Process.Pid, kill
}

func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	d := c.Dir
	pid, kill := startHolder(t, d.path)

	_, err := d.TryRun(HealthCheck)
	var busy *BusyError
	if !errors.Is(err, ErrBusy) || !errors.As(err, &busy) || busy.PID != pid || busy.Age < 0 || busy.Age > time.Minute {
		t.Errorf("second health check: %v (%+v), want it to find pid %d", err, busy, pid)
	}
	for _, role := range []Role{Manual, Prolog, Epilog} {
		done, err := d.TryRun(role)
		if err != nil {
			t.Errorf("%v: %v", role, err)
			continue
		}
		done()
	}
	start := time.Now()
	_, err = d.Lock(100 * time.Millisecond)
	if took := time.Since(start); !errors.Is(err, ErrBusy) || took < 100*time.Millisecond || took > 2*time.Second {
		t.Errorf("Lock: %v after %s", err, took)
	}
	// A failing run drains the node all the same.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if o, err := c.Act(ctx, failing, HealthCheck); err != nil || o.Action != Drain || o.Warning != nil {
		t.Errorf("Act: %+v, %v, want a drain", o, err)
	}

	kill() // the kernel drops a dead process's locks
	done, err := d.TryRun(HealthCheck)
	if err != nil {
		t.Fatalf("after the holder's end: %v", err)
	}
	done()
	unlock, err := d.Lock(time.Second)
	if err != nil {
		t.Fatalf("after the holder's end: %v", err)
	}
	unlock()
}

func TestLockWaits(t *testing.T) {
	t.Parallel()
	d := controller(t, nil).Dir
	unlock, err := d.Lock(0)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, unlock)
	unlock, err = d.Lock(5 * time.Second)
	if err != nil {
		t.Fatalf("released while waited for: %v", err)
	}
	unlock()
}

func TestLockCannotBe(t *testing.T) {
	t.Parallel()
	d := &StateDir{path: t.TempDir() + "/gone"}
	if _, err := d.Lock(0); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("Lock: %v, want an error that is not ErrBusy", err)
	}
	if _, err := d.TryRun(HealthCheck); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("TryRun: %v, want an error that is not ErrBusy", err)
	}
	var none *StateDir
	done, err := none.TryRun(HealthCheck)
	if err != nil {
		t.Fatal(err)
	}
	done()
}

func TestBusyErrorWithoutTrace(t *testing.T) {
	t.Parallel()
	d := controller(t, nil).Dir
	done, err := d.TryRun(HealthCheck)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if err := os.WriteFile(d.path+"/run.lock", []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.TryRun(HealthCheck); err == nil || err.Error() != ErrBusy.Error() {
		t.Errorf("TryRun: %v, want %v", err, ErrBusy)
	}
}
