package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestStateIsKept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nhc-gpu", "gpu01")
	p := newTestPool(t, dir)
	if data, err := p.Load("slurm.json"); data != nil || err != nil {
		t.Errorf("Load before Save: %q, %v", data, err)
	}
	if err := p.Save("slurm.json", []byte("one\n")); err != nil {
		t.Fatal(err)
	}
	if data, err := newTestPool(t, dir).Load("slurm.json"); string(data) != "one\n" || err != nil {
		t.Errorf("Load: %q, %v", data, err)
	}
	for name, mode := range map[string]fs.FileMode{dir: 0o700, filepath.Dir(dir): 0o700, filepath.Join(dir, "slurm.json"): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, mode)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("files %v, want slurm.json alone", files)
	}
}

// A file that another user could have created is neither read nor followed.
func TestStateRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link, open := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "open")
	for _, err := range []error{
		os.WriteFile(file, nil, 0o600), os.Symlink(dir, link), os.Mkdir(open, 0o700), os.Chmod(open, 0o777),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{file, link, open, filepath.Join(file, "below")} {
		p := newTestPool(t, "")
		if _, _, err := p.OpenState(path, "", ""); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("OpenState(%s): %v, want an error about one that exists", filepath.Base(path), err)
		}
		if err := p.Save("x", nil); err == nil {
			t.Errorf("Save into %s: want an error", filepath.Base(path))
		}
	}
	if _, _, err := newTestPool(t, "").OpenState("/proc/nhc-gpu-test", "", ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenState below /proc: %v, want %v", err, fs.ErrNotExist)
	}
	state := stateDirOf(t)
	p := newTestPool(t, state)
	for name, put := range map[string]func(path string) error{
		"open to all": func(p string) error { return os.WriteFile(p, []byte("{}"), 0o600) },
		"huge":        func(p string) error { return os.WriteFile(p, make([]byte, wire.MaxState+1), 0o600) },
		"link":        func(p string) error { return os.Symlink("/etc/passwd", p) },
		"pipe":        func(p string) error { return unix.Mkfifo(p, 0o600) },
		"directory":   func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		path := filepath.Join(state, name)
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		if name == "open to all" {
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if data, err := p.Load(name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Load %s: %.20q, %v, want an error", name, data, err)
		}
	}
	if err := p.Save("link", []byte("x")); err != nil {
		t.Errorf("replace a link: %v", err)
	}
	if data, _ := os.ReadFile("/etc/passwd"); string(data) == "x" {
		t.Fatal("the link was followed")
	}
}

// An invalid ledger is one doubt, and is replaced.
func TestLedgerGarbage(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	path := filepath.Join(dir, wire.LedgerFile)
	if err := os.WriteFile(path, []byte("{\x00 garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newTestPool(t, "")
	_, doubts, err := p.OpenState(dir, "", "")
	if err != nil || len(doubts) != 1 || !strings.Contains(doubts[0].Error(), path) {
		t.Errorf("%v, %v, want one doubt that names the file", doubts, err)
	}
	if len(p.Ledger().StuckProcesses()) != 0 {
		t.Error("stuck processes out of garbage")
	}
	st, err := process.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p.ledger.add(wire.StuckProcess{PID: os.Getpid(), Start: st.Start, Lane: checks.Local}, wire.StuckProcess{PID: 1 << 30})
	if p.keepLedger(); len(p.Warnings()) > 0 {
		t.Error(p.Warnings())
	}
	if list := newTestPool(t, dir).Ledger().StuckProcesses(); len(list) != 1 || list[0].PID != os.Getpid() {
		t.Errorf("%+v, want the process that is there", list)
	}
}

// A worker with a thread that waits for the memory of a process goes on. Its other lanes and later runs do
// not ask that process, as long as the worker exists, and skip no step because of it.
func TestLockedProcessesAreRemembered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newTestPool(t, dir)
	if err := p.Start(checks.NVML); err != nil {
		t.Fatal(err)
	}
	calls := []string{"read the memory of process 1, started at 2, of uid 5001", "read the memory of process 3, started at 4, of uid 5001"}
	p.noteLocked(p.workers[checks.NVML], calls)
	p.keepLedger()
	later := newTestPool(t, dir)
	for _, pool := range []*Pool{p, later} {
		for _, lane := range []checks.Lane{checks.NVML, checks.Local} {
			if o := pool.Call(t.Context(), lane, &wire.Request{Op: wire.OpCheck, Name: "check_rogue ok"}, time.Minute); o.hung != nil || o.lost != "" {
				t.Errorf("%s: %+v", lane, o)
			}
			c, err := pool.worker(lane)
			if err != nil {
				t.Fatal(err)
			}
			var r wire.Request
			c.version = -1
			if pool.addVars(c, &r); r.Vars == nil || !slices.Contains(r.Vars.Stuck, calls[0]) || !slices.Contains(r.Vars.Stuck, calls[1]) {
				t.Errorf("%s: %+v, want %q", lane, r.Vars, calls)
			}
		}
	}
	p.Kill()
	if list := newTestPool(t, dir).Ledger().StuckProcesses(); len(list) != 0 {
		t.Errorf("%+v, want none after the worker's end", list)
	}
}

// startSleeper starts a process that a lock can name.
func startSleeper(t *testing.T) (line string, kill func()) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(kill)
	st, err := process.ReadStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(wire.LockLine, cmd.Process.Pid, time.Now().Add(-3*time.Second).Unix(), st.Start), kill
}

// A lock belongs to a process, whichever worker has taken it, and ends with it.
func TestStateLock(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	p := newTestPool(t, dir)
	line, kill := startSleeper(t)
	file := filepath.Join(dir, "lock")
	if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	busy, err := p.Lock("lock", 150*time.Millisecond)
	if err != nil || busy == nil || busy.Age < 2*time.Second || busy.Age > time.Minute || time.Since(began) < 150*time.Millisecond {
		t.Errorf("held: %+v, %v after %s", busy, err, time.Since(began))
	}
	if busy, _, err := newTestPool(t, "").OpenState(dir, "", "lock"); err != nil || busy == nil {
		t.Errorf("OpenState: %+v, %v, want the holder", busy, err)
	}
	kill()
	if busy, err := p.Lock("lock", 0); err != nil || busy != nil {
		t.Errorf("after the holder's end: %+v, %v", busy, err)
	}
	p.Kill() // another worker finds that it is still ours
	if busy, err := p.Lock("lock", 0); err != nil || busy != nil {
		t.Errorf("by another worker: %+v, %v", busy, err)
	}
	p.Unlock("lock")
	if data, _ := os.ReadFile(file); len(data) != wire.LockSize || strings.TrimSpace(string(data)) != "" {
		t.Errorf("unlocked: %q", data)
	}
	if busy, err := p.Lock("../none/lock", 0); err == nil || busy != nil {
		t.Errorf("a lock that cannot be: %+v, %v", busy, err)
	}
}

// A health check waits for a run of the monitor, then begins beside it. Other runs do not.
func TestStateLockOfMonitor(t *testing.T) {
	t.Parallel()
	const whole = "health check"
	dir := stateDirOf(t)
	file := filepath.Join(dir, "run.lock")
	line, kill := startSleeper(t)
	hold := func(line string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hold(line + wire.LockPart)
	if busy, _, err := newTestPool(t, "").OpenState(dir, wire.KindMonitor, "run.lock"); err != nil || busy == nil || !busy.Part {
		t.Errorf("a second run of the monitor: %+v, %v", busy, err)
	}
	if busy, err := newTestPool(t, dir).Lock("run.lock", 10*time.Millisecond); err != nil || busy == nil {
		t.Errorf("a remedy: %+v, %v", busy, err)
	}
	began := time.Now()
	if busy, _, err := newTestPool(t, "").OpenState(dir, whole, "run.lock"); err != nil || busy != nil || time.Since(began) < partWait {
		t.Errorf("a health check: %+v, %v after %s", busy, err, time.Since(began))
	}
	if data, _ := os.ReadFile(file); !strings.HasPrefix(string(data), fmt.Sprint(os.Getpid(), " ")) || strings.Contains(string(data), wire.LockPart) {
		t.Errorf("the lock is %q, want that of the health check", data)
	}
	hold(line)
	began = time.Now()
	if busy, _, err := newTestPool(t, "").OpenState(dir, whole, "run.lock"); err != nil || busy == nil || busy.Part || time.Since(began) > partWait {
		t.Errorf("a second health check: %+v, %v after %s", busy, err, time.Since(began))
	}
	hold(line + wire.LockPart)
	time.AfterFunc(100*time.Millisecond, kill)
	if busy, _, err := newTestPool(t, "").OpenState(dir, whole, "run.lock"); err != nil || busy != nil {
		t.Errorf("after the end of the monitor's run: %+v, %v", busy, err)
	}
	p := newTestPool(t, "")
	if busy, _, err := p.OpenState(dir, wire.KindMonitor, "run.lock"); err != nil || busy != nil {
		t.Errorf("the monitor's run: %+v, %v", busy, err)
	}
	if data, _ := os.ReadFile(file); !strings.Contains(string(data), wire.LockPart+" ") {
		t.Errorf("the lock of the monitor's run is %q", data)
	}
}

// As long as another process has the flock, the lock is that of the process that its line names.
func TestStateLockBehindFlock(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	p := newTestPool(t, dir)
	f, err := os.OpenFile(filepath.Join(dir, "run.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintf(f, wire.LockLine, 4711, time.Now().Unix(), 1)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if busy, err := p.Lock("run.lock", 0); err != nil || busy == nil || busy.PID != 4711 {
		t.Errorf("%+v, %v, want process 4711", busy, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if busy, err := p.Lock("run.lock", 0); err != nil || busy != nil {
		t.Errorf("after its end: %+v, %v", busy, err)
	}
}

// After a request that was not answered, only SaveAgain asks the directory.
func TestStateAnswersAgain(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	p := newTestPool(t, dir)
	p.SetVars(wire.Vars{Past: "/past", Spare: dir + "/past"})
	told := func() wire.Vars { // a worker, with its next request
		var q wire.Request
		p.addVars(&client{version: -1}, &q)
		return *q.Vars
	}
	if err := p.Save("x", []byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p.Pid(execLane), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Save("x", []byte("2")); !errors.Is(err, ErrNoState) {
			t.Errorf("Save: %v", err)
		}
	}
	if len(p.Warnings()) != 1 {
		t.Errorf("%v, want one", p.Warnings())
	}
	if v := told(); v.State != "" || v.Spare != "" || v.Past != "/past" {
		t.Errorf("workers look into %q and %q", v.State, v.Spare)
	}
	if err := p.SaveAgain("x", []byte("3")); err != nil {
		t.Error(err)
	}
	if data, err := p.Load("x"); string(data) != "3" || err != nil {
		t.Errorf("Load: %q, %v", data, err)
	}
	if v := told(); v.State != dir || v.Spare != dir+"/past" {
		t.Errorf("workers look into %q and %q again", v.State, v.Spare)
	}
}

// A lock that was taken before can be taken on a full disk.
func TestStateFull(t *testing.T) {
	t.Parallel()
	need.Root(t, "to mount a small tmpfs")
	dir := stateDirOf(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k,mode=0700"); err != nil {
		need.Skip(t, "mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	p := newTestPool(t, dir)
	if busy, err := p.Lock("lock", 0); busy != nil || err != nil {
		t.Fatal(busy, err)
	}
	p.Unlock("lock")
	if err := p.Save(wire.MonitorFile, []byte(`{"alive":100,"silent":["links"]}`)); err != nil {
		t.Fatal(err)
	}
	if err := p.Save(wire.MemoryFile, []byte(`{"told":"ok"}`)); err != nil {
		t.Fatal(err)
	}
	_ = os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 16384), 0o600)
	if busy, err := p.Lock("lock", 0); busy != nil || err != nil {
		t.Errorf("Lock on a full disk: %+v, %v", busy, err)
	}
	if err := p.Save("x.json", []byte("x")); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("Save on a full disk: %v", err)
	}
	drain := `{"told":"drained","reason":"` + strings.Repeat("x", 1024) + `"}` // "ok" would hide it
	if err := p.Save(wire.MemoryFile, []byte(drain)); err != nil {
		t.Error(err)
	}
	if data, err := p.Load(wire.MemoryFile); err != nil || string(data) != drain {
		t.Errorf("Load: %q, %v", data, err)
	}
	for _, ledger := range []string{`{"alive":130}`, `{"alive":160,"silent":["links","devices"]}`} { // a sign of life needs no space
		err := p.Save(wire.MonitorFile, []byte(ledger))
		if data, _ := p.Load(wire.MonitorFile); err != nil || strings.TrimRight(string(data), " ") != ledger {
			t.Errorf("Save on a full disk: %q, %v, want %s", data, err, ledger)
		}
	}
	if err := p.Save(wire.MonitorFile, make([]byte, 5000)); err == nil {
		t.Error("more than a page was saved on a full disk")
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*.json.*")); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}
