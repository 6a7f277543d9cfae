// Package faults is the fault matrix. Each row breaks one thing around the program, on its own
// node, and states the expected run: its exit status, its time, its calls to Slurm, and the text
// that a person reads.
//
// A row runs in its own namespaces (mount, PID, IPC, UTS). The node is this machine, except for
// /run, /var/lib, /var/log, /etc/default and /dev/log, and for scontrol and sinfo, which keep the
// state of the node in a file and every call in another. tests/slurm tests with Slurm itself.
package faults

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// fault is a row. Its scripts are bash and run in the directory [work].
type fault struct {
	name  string
	guard string // the findings whose class it guards; it then runs in make test

	conf  string // nhc.conf
	set   string // injects the fault
	wrap  string // starts "$@" in another way
	words string // additional arguments
	env   string // the environment besides SLURMD_NODENAME
	with  string // runs beside the program, whose process is $pid
	gpu   []string
	sys   func(*fakesys.Node)

	exit   int
	or     int     // another correct status, 0 for none
	within float64 // seconds until the exit and the end of the outputs
	action action
	says   string // a pattern that the outputs, the log and syslog match
	mute   string // a pattern that they do not match
	leaves bool   // processes that cannot be ended, or are not ours, outlive the run
	dies   bool   // the Go runtime ends it, with a long message
	atOnce bool   // the run itself must deliver its drain, because no load delays it

	// then is a script after which the program runs again in the ordinary way.
	then       string
	thenExit   int
	thenAction action
}

// action is the resulting state of the node.
type action string

const (
	none    action = ""        // no update
	drained action = "drained" // by one update
	kept    action = "kept"    // a drain that could not be delivered, kept for the next run
	resumed action = "resumed"
	either  action = "either" // the run may have been too early, or too late, for it
)

// These are the rows of the files named after their subject.
var all = slices.Concat(confFaults, logFaults, outputFaults, stateFaults, slurmFaults, shellFaults, startFaults, signalFaults, nvmlFaults, nodeFaults)

var program string

func TestMain(m *testing.M) {
	if os.Args[0] == cellName {
		os.Exit(cellMain())
	}
	if os.Geteuid() != 0 {
		os.Exit(need.Exit("tests/faults: needs root for name spaces and mounts"))
	}
	os.Exit(built.Main(m, &program, "bash", "unshare"))
}

// TestFaults runs the rows that guard a class of defects.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, f := range all {
		if f.guard != "" {
			f.run(t)
		}
	}
}

// TestAllFaults runs the others.
func TestAllFaults(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, f := range all {
		if f.guard == "" {
			f.run(t)
		}
	}
}

// TestMatrix checks the size of the matrix, and that no two rows have the same name.
func TestMatrix(t *testing.T) {
	t.Parallel()
	names, guards := map[string]bool{}, 0
	for _, f := range all {
		if names[f.name] {
			t.Errorf("two rows are called %q", f.name)
		}
		names[f.name] = true
		if f.guard != "" {
			guards++
		}
		if f.within == 0 {
			t.Errorf("%s: without a bound of its time", f.name)
		}
	}
	if len(all) < 150 || guards < 40 {
		t.Errorf("%d faults, %d of them in make test, want at least 150 and 40", len(all), guards)
	}
}

func (f fault) run(t *testing.T) {
	t.Run(f.name, func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if f.gpu != nil {
			f.placeGPUs(t, dir)
		}
		if f.sys != nil {
			n := fakesys.DGXH100()
			f.sys(n)
			if err := n.Write(filepath.Join(dir, "root")); err != nil {
				t.Fatal(err)
			}
		}
		got := f.inCell(t, dir)
		if got.Skip != "" {
			need.Skip(t, "%s", got.Skip)
		}
		f.judge(t, got)
	})
}

func (f fault) placeGPUs(t *testing.T, dir string) {
	t.Helper()
	if _, err := fakenvml.Place(dir, fakenvml.Scenario(fakenvml.H100, 8, f.gpu...)); err != nil {
		t.Fatal(err)
	}
	if err := fakenvml.Write(filepath.Join(dir, "root"), fakenvml.Files(fakenvml.H100, 8)); err != nil {
		t.Fatal(err)
	}
}

// order is the input of a cell.
type order struct {
	Program, Node                           string // paths
	Conf, Set, Wrap, Words, Env, With, Then string
	Again, GPUs, Sys, AtOnce                bool
	Within                                  float64
}

// result is the output of a cell.
type result struct {
	Skip    string
	Base    time.Duration // of an ordinary run at that time
	Runs    []aRun
	Problem string
}

type aRun struct {
	Exit    int
	Took    time.Duration
	Said    string // outputs, log, syslog
	State   string // the node's state and reason
	Updates []string
	Left    []string // processes
}

func (f fault) inCell(t *testing.T, dir string) result {
	t.Helper()
	text, err := json.Marshal(order{
		Program: program, Node: dir, Conf: f.conf, Set: f.set, Wrap: f.wrap, Words: f.words, Env: f.env, With: f.with,
		Then: f.then, Again: f.then != "", GPUs: f.gpu != nil, Sys: f.sys != nil, AtOnce: f.atOnce, Within: f.within,
	})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	answer := filepath.Join(dir, "answer")
	cmd := exec.CommandContext(t.Context(), self)
	orders := filepath.Join(dir, "orders") // not on the command line, where checks of processes would find it
	if err := os.WriteFile(orders, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.Args = []string{cellName, orders, answer}
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, Setsid: true}
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	data, readErr := os.ReadFile(answer)
	if readErr != nil {
		t.Fatalf("no answer of the cell: %v\n%s", err, out)
	}
	var r result
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.Problem != "" {
		t.Fatalf("%s\n%s", r.Problem, out)
	}
	return r
}

// patience is the factor for time limits, in units of an ordinary run's time on the same node at
// the same time: on a loaded machine everything takes longer.
const patience = 20

func (f fault) judge(t *testing.T, r result) {
	t.Helper()
	first := r.Runs[0]
	f.judgeRun(t, "", first, f.exit, f.action)
	if limit := time.Duration(f.within*1e9) + patience*r.Base; first.Took > limit {
		t.Errorf("it took %v, want at most %v", first.Took, limit)
	}
	if f.says != "" && !regexp.MustCompile(f.says).MatchString(first.Said) {
		t.Errorf("no match of %s in\n%s", f.says, first.Said)
	}
	if m := regexp.MustCompile(cmpOr(f.mute, `panic:|goroutine \d+ \[`)).FindString(first.Said); m != "" && !f.dies {
		t.Errorf("a match of %s in\n%s", m, first.Said)
	}
	if len(r.Runs) > 1 {
		f.judgeRun(t, "afterwards: ", r.Runs[1], f.thenExit, f.thenAction)
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a + "|" + b
	}
	return b
}

func (f fault) judgeRun(t *testing.T, when string, r aRun, exit int, want action) {
	t.Helper()
	if r.Exit != exit && (f.or == 0 || r.Exit != f.or) {
		t.Errorf("%sexit status %d, want %d\n%s", when, r.Exit, exit, r.Said)
	}
	if len(r.Left) > 0 && !f.leaves {
		t.Errorf("%sleft behind: %q", when, r.Left)
	}
	drains := 0
	for _, u := range r.Updates {
		if strings.Contains(u, "State=DRAIN") {
			drains++
		}
	}
	state, reason, _ := strings.Cut(strings.TrimSpace(r.State), " ")
	isDrained := strings.Contains(state, "DRAIN") && strings.HasPrefix(reason, "NHC: ")
	ok := true
	switch want {
	case none:
		ok = len(r.Updates) == 0
	case drained:
		ok = drains == 1 && isDrained
	case kept:
		ok = !isDrained
	case resumed:
		ok = state == "IDLE" && len(r.Updates) > drains
	case either:
	}
	if !ok {
		t.Errorf("%sthe node is %q after the updates %q, want: %s\n%s", when, r.State, r.Updates, cmpOrText(want), r.Said)
	}
}

func cmpOrText(a action) string {
	if a == none {
		return "no update"
	}
	return string(a)
}

// exitStatus returns a shell's status for an ended process.
func exitStatus(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}
