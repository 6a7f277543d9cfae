package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/deadfs"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// deadCase is a run on a node with one directory on a file system that stops answering.
type deadCase struct {
	Lies    string // the directory on the dead file system: a key of places
	When    string // when it stops: before the run, after the first read, or while a drain is being sent; stale: it fails
	Passes  bool   // no check fails
	Pending bool   // an earlier run could not deliver its drain
	Again   bool   // it stopped before the previous run
	Ours    bool   // the node is drained by a run of an earlier boot
	Known   bool   // the kernel has its directory of the node in its cache

	exit    int
	or      int // another correct status, 0 for none
	drained bool
	quick   bool // runs in every make test
}

const (
	before = "before the run"
	after  = "after the first read"
	during = "while a drain is sent"
	stale  = "with stale handles"
)

func (c deadCase) String() string {
	text := c.Lies + " " + c.When
	if c.Passes {
		text += ", healthy"
	}
	if c.Pending {
		text += ", drain pending"
	}
	if c.Again {
		text += ", again"
	}
	if c.Ours {
		text += ", drained"
	}
	if c.Known {
		text += ", cached"
	}
	return strings.TrimPrefix(strings.ReplaceAll(text, "/", "_"), "_")
}

// places are the directories that die, by their use: "" is one in the directory of the test.
var places = map[string]string{
	"nhc.conf": "", "nhc.toml": "", "sysconfig": "", "LOGFILE": "", "INCDIR": "", "HOSTROOT": "", "outputs": "",
	"/run/nhc-gpu": "/run/nhc-gpu", "/var/lib/nhc-gpu": "/var/lib/nhc-gpu",
}

// A dead configuration is status 3 without a drain. Whatever else is dead, the run ends in time
// with the same verdict and drain as without it.
var deadCases = []deadCase{
	{Lies: "nhc.conf", When: before, exit: 3, quick: true},
	{Lies: "nhc.conf", When: before, Pending: true, exit: 3, drained: true, quick: true},
	{Lies: "nhc.conf", When: after, exit: 1, drained: true, quick: true},
	{Lies: "nhc.conf", When: during, exit: 1, drained: true},
	{Lies: "nhc.toml", When: before, exit: 3},
	{Lies: "nhc.toml", When: before, Pending: true, exit: 3, drained: true},
	{Lies: "nhc.toml", When: after, exit: 1, drained: true},
	{Lies: "nhc.toml", When: during, exit: 1, drained: true},
	{Lies: "sysconfig", When: before, exit: 3, quick: true},
	{Lies: "sysconfig", When: before, Pending: true, exit: 3, drained: true},
	{Lies: "sysconfig", When: after, exit: 1, drained: true},
	{Lies: "sysconfig", When: during, exit: 1, drained: true},
	{Lies: "LOGFILE", When: before, exit: 1, drained: true, quick: true},
	{Lies: "LOGFILE", When: before, Passes: true, exit: 1}, // the FATAL for a log that cannot be opened
	{Lies: "LOGFILE", When: before, Passes: true, Pending: true, exit: 1, drained: true},
	{Lies: "LOGFILE", When: after, exit: 1, drained: true},
	{Lies: "LOGFILE", When: during, exit: 1, drained: true},
	{Lies: "INCDIR", When: before, exit: 1, drained: true},
	{Lies: "INCDIR", When: before, Passes: true, exit: 3}, // a script may replace a check
	{Lies: "INCDIR", When: after, exit: 1, drained: true},
	{Lies: "INCDIR", When: during, exit: 1, drained: true},
	{Lies: "HOSTROOT", When: before, exit: 142, or: 1, drained: true, quick: true}, // the limit of the run, or of the check
	{Lies: "HOSTROOT", When: after, exit: 142, or: 1, drained: true},
	{Lies: "HOSTROOT", When: during, exit: 1, drained: true},
	{Lies: "outputs", When: before, exit: 1, drained: true, quick: true},
	{Lies: "outputs", When: before, Passes: true, Again: true, quick: true},
	{Lies: "outputs", When: during, exit: 1, drained: true},
	{Lies: "/run/nhc-gpu", When: before, exit: 1, drained: true, quick: true},
	{Lies: "/run/nhc-gpu", When: before, Passes: true},
	{Lies: "/run/nhc-gpu", When: before, Passes: true, Again: true, quick: true},
	{Lies: "/run/nhc-gpu", When: before, Passes: true, Pending: true}, // its record is on the dead file system
	{Lies: "/run/nhc-gpu", When: after, exit: 1, drained: true},
	{Lies: "/run/nhc-gpu", When: after, Passes: true},
	{Lies: "/run/nhc-gpu", When: during, exit: 1, drained: true, quick: true},
	{Lies: "/var/lib/nhc-gpu", When: before, exit: 1, drained: true},
	{Lies: "/var/lib/nhc-gpu", When: before, Passes: true},
	{Lies: "/var/lib/nhc-gpu", When: before, Passes: true, Ours: true, drained: true, quick: true}, // it has the lost devices
	{Lies: "/var/lib/nhc-gpu", When: before, Passes: true, Ours: true, Known: true, drained: true, quick: true},
	{Lies: "/var/lib/nhc-gpu", When: stale, Passes: true, Ours: true, drained: true, quick: true},
	{Lies: "/var/lib/nhc-gpu", When: after, exit: 1, drained: true},
	{Lies: "/var/lib/nhc-gpu", When: during, exit: 1, drained: true},
}

// timeout is the TIMEOUT of the runs; grace is how long after it they end at the latest. On a busy
// machine everything takes longer: an empty run in the same cell just before measures that (busy
// times its time is added, 0.4 s on an idle machine).
const (
	timeout = 8 * time.Second
	grace   = 1500 * time.Millisecond
	busy    = 10
)

// atOnce bounds the concurrent cases, which mostly sleep.
const atOnce = 4

func TestDeadFileSystems(t *testing.T) {
	t.Parallel()
	runCases(t, true)
}

func TestAllDeadFileSystems(t *testing.T) {
	tier.All(t)
	t.Parallel()
	runCases(t, false)
}

func runCases(t *testing.T, quick bool) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		need.Skip(t, "needs FUSE: %v", err)
	}
	turn := make(chan struct{}, atOnce)
	var runs sync.WaitGroup
	for _, c := range deadCases {
		if c.quick != quick {
			continue
		}
		dir := t.TempDir()
		slurmAt(t, filepath.Join(dir, "slurm"))
		runs.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			got, err := runCase(c, dir)
			switch {
			case err != nil:
				t.Errorf("%s: %v", c, err)
			case got.Exit != c.exit && (c.or == 0 || got.Exit != c.or) || got.Drained != c.drained:
				t.Errorf("%s: exit status %d, drained %v, want %d, %v; after %s:\n%s", c, got.Exit, got.Drained, c.exit, c.drained, got.Took, got.Out)
			case got.Took > timeout+grace+busy*got.Base:
				t.Errorf("%s: took %s, want at most %s, and %s on a machine on which nothing takes %s:\n%s", c, got.Took, timeout+grace, busy*got.Base, got.Base, got.Out)
			}
			if c.When == stale && !regexp.MustCompile("read /var/lib/nhc-gpu/.*: "+unix.ESTALE.Error()).MatchString(got.Out) {
				t.Errorf("%s: want a warning with the cause:\n%s", c, got.Out)
			}
			t.Logf("%s: %s, nothing %s", c, got.Took.Round(time.Millisecond), got.Base.Round(time.Millisecond))
			if c.Lies == "/run/nhc-gpu" && c.When == during && strings.Contains(got.Out, "output ") {
				t.Errorf("%s: an output looks into a directory that is known to be dead:\n%s", c, got.Out)
			}
			if strings.Count(got.Out, "warning: ")-strings.Count(got.Out, "warning: output history: ") > 1 && c.Lies == "/run/nhc-gpu" {
				t.Errorf("%s: want one warning about the memory:\n%s", c, got.Out)
			}
		})
	}
	runs.Wait()
}

// deadResult is the result of a case.
type deadResult struct {
	Exit    int
	Drained bool
	Took    time.Duration // until the end of both outputs and the exit
	Base    time.Duration // time of an empty run
	Out     string
}

// caseEnv has a case, and caseDir its directory, for a test binary that is the child in its own
// mount namespace.
const (
	caseEnv    = "NHC_GPU_DEAD_CASE"
	caseDir    = "NHC_GPU_DEAD_DIR"
	caseBinary = "NHC_GPU_DEAD_BINARY"
)

func runCase(c deadCase, dir string) (got deadResult, err error) {
	text, err := json.Marshal(c)
	if err != nil {
		return got, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), caseEnv+"="+string(text), caseDir+"="+dir, caseBinary+"="+program)
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return got, err
}

func insideCase() int {
	var c deadCase
	err := json.Unmarshal([]byte(os.Getenv(caseEnv)), &c)
	if err == nil {
		var got deadResult
		if got, err = c.run(os.Getenv(caseDir)); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(got)
		}
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// run creates the node, stops the file system, and runs the program as slurmd does.
func (c deadCase) run(dir string) (got deadResult, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return got, fmt.Errorf("make mounts private: %w", err)
	}
	where := map[string]string{}
	for name, at := range places {
		if at == "" {
			at = filepath.Join(dir, name)
		}
		where[name] = at
		if err := os.MkdirAll(at, 0o700); err != nil {
			return got, err
		}
		if places[name] != "" {
			if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=700"); err != nil {
				return got, fmt.Errorf("mount a tmpfs on %s: %w", at, err)
			}
		}
	}
	node := "n" + filepath.Base(filepath.Dir(dir)) + filepath.Base(dir) // all cases share the network
	line := "* || check_file_test -f /nonexistent\n"
	if c.Passes {
		line = "* || check_file_test -d /\n"
	}
	toml := "# no table\n"
	if c.Lies == "outputs" {
		toml = fmt.Sprintf("[output]\njsonl = %q\ntextfile = %q\ncommand = [%q]\ncommand_on = \"always\"\ncommand_timeout = 2\n",
			where["outputs"]+"/nhc.jsonl", where["outputs"]+"/nhc.prom", where["outputs"]+"/ticket")
	}
	for file, text := range map[string]string{
		where["nhc.conf"] + "/nhc.conf":         "# HW_CORES\n* || check_gpu_xid\n" + line,
		where["nhc.toml"] + "/nhc.toml":         toml,
		where["sysconfig"] + "/nhc":             "DEBUG=0\n",
		where["INCDIR"] + "/site.nhc":           "site_function() { :; }\n",
		where["HOSTROOT"] + "/proc/x":           "",
		where["HOSTROOT"] + "/run/x":            "",
		where["HOSTROOT"] + "/proc/cpuinfo":     "processor\t: 0\nphysical id\t: 0\ncore id\t\t: 0\n",
		where["HOSTROOT"] + "/proc/meminfo":     "MemTotal: 1000 kB\nMemFree: 500 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
		"/run/nhc-gpu/" + node + "/ledger.json": "[]\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return got, err
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return got, err
		}
	}
	slurm := filepath.Join(dir, "slurm")
	words := []string{
		"-t", fmt.Sprint(timeout.Seconds()), "-c", where["nhc.conf"] + "/nhc.conf", "TOMLFILE=" + where["nhc.toml"] + "/nhc.toml",
		"SYSCONFIGDIR=" + where["sysconfig"], "LOGFILE=" + where["LOGFILE"] + "/nhc.log", "INCDIR=" + where["INCDIR"],
		"NHC_RM=slurm", "SLURM_SCONTROL=" + slurm + "/scontrol",
	}
	if c.Lies == "HOSTROOT" {
		words = append(words, "HOSTROOT="+where["HOSTROOT"])
	}
	if c.Pending {
		if err := os.WriteFile(slurm+"/broken", nil, 0o600); err != nil {
			return got, err
		}
		failing := filepath.Join(dir, "failing.conf")
		if err := os.WriteFile(failing, []byte("* || check_file_test -f /nonexistent\n"), 0o600); err != nil {
			return got, err
		}
		first, err := askAs(node, append(words, "CONFFILE="+failing))
		if err != nil {
			return got, fmt.Errorf("the first run: %w", err)
		}
		if first.Exit != 1 || !strings.Contains(first.Out, "cannot drain node") {
			return got, fmt.Errorf("the first run: %+v", first)
		}
		if err := os.Remove(slurm + "/broken"); err != nil {
			return got, err
		}
	}
	if c.Ours {
		if err := os.WriteFile(slurm+"/state", []byte("IDLE+DRAIN NHC: lost GPU\n"), 0o600); err != nil {
			return got, err
		}
	}
	nothing, err := askAs(node, append([]string{"-e", ":"}, words...))
	if err != nil || nothing.Exit != 0 {
		return got, fmt.Errorf("a run that does nothing: %+v, %w", nothing, err)
	}
	defer func() { got.Base = nothing.Took }()
	fs, err := c.mount(where[c.Lies], node, dir)
	if err != nil {
		return got, err
	}
	if c.When == during {
		if err := os.WriteFile(slurm+"/hold", nil, 0o600); err != nil {
			return got, err
		}
		go func() {
			for !exists(slurm + "/begun") {
				time.Sleep(10 * time.Millisecond)
			}
			fs.Die()
			_ = os.WriteFile(slurm+"/go", nil, 0o600)
		}()
	}
	if got, err = askAs(node, words); err != nil {
		return got, err
	}
	if c.Again {
		hang := stuckIn()
		if got, err = askAs(node, words); err != nil {
			return got, err
		}
		if now := stuckIn(); now != hang || hang == 0 {
			return got, fmt.Errorf("%d threads hang after the first run, %d after the second, want the same:\n%s", hang, now, got.Out)
		}
	}
	state, err := os.ReadFile(slurm + "/state")
	got.Drained = strings.HasPrefix(string(state), "IDLE+DRAIN NHC: ")
	return got, err
}

// mount covers a directory with the file system that stops, which shows the directory's files.
func (c deadCase) mount(at, node, dir string) (*deadfs.FS, error) {
	backing := filepath.Join(dir, "backing")
	if err := os.Mkdir(backing, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount(at, backing, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("bind %s: %w", at, err)
	}
	var last []deadfs.Op
	if c.When == after {
		last = []deadfs.Op{deadfs.Release, deadfs.Readdir, deadfs.Write}
	}
	fs, err := deadfs.Mount(backing, at, last...)
	if err != nil {
		return nil, err
	}
	if c.Known {
		fs.Keep()
		err = os.Mkdir(filepath.Join(at, node), 0o700)
	}
	switch c.When {
	case before:
		fs.Die()
	case stale:
		fs.Fail(unix.ESTALE)
	}
	return fs, err
}

// stuckIn counts the threads of this case that sleep uninterruptibly: descendants of the program by
// their environment, with a wait in FUSE.
func stuckIn() (n int) {
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	own, _ := os.Readlink("/proc/self/ns/mnt")
	for _, t := range tasks {
		stat, _ := os.ReadFile(t + "/stat")
		if _, fields, ok := bytes.Cut(stat, []byte(") ")); ok && bytes.HasPrefix(fields, []byte("D ")) {
			if ns, err := os.Readlink(t + "/ns/mnt"); err == nil && ns == own {
				n++
			}
		}
	}
	return n
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// askAs runs the program with slurmd's environment, and one pipe for both outputs, which it reads
// to the end.
func askAs(node string, words []string) (got deadResult, err error) {
	cmd := exec.Command(os.Getenv(caseBinary), words...)
	cmd.Env = []string{"SLURMD_NODENAME=" + node}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return got, err
	}
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	select {
	case err = <-over:
	case <-time.After(5 * timeout): // the end of this process lets go of whatever hangs
		return got, fmt.Errorf("no end within %s", 5*timeout)
	}
	got = deadResult{Exit: cmd.ProcessState.ExitCode(), Took: time.Since(began), Out: out.String()}
	if cmd.ProcessState.Exited() {
		err = nil
	}
	return got, err
}
