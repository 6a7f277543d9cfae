// Package sessiontest has what the tests of several packages below checks/session need: a node with
// real workers, in a directory of its own, and a Slurm that consists of two scripts.
package sessiontest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/run/worker"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/built"
)

// Main runs the tests of a package, or a worker or bash of one of them: the program of the tests is
// also that of their workers.
func Main(m *testing.M) {
	if os.Args[0] != wire.WorkerName {
		os.Exit(m.Run())
	}
	if os.Args[1] == "shell" {
		fmt.Fprintln(os.Stderr, run.BecomeShell(os.Args[2]))
		os.Exit(127)
	}
	os.Exit(worker.Serve(os.Args[2], node.PlatformsOf))
}

// Text collects what a run prints.
type Text struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (t *Text) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(data)
}

// Until implements the deadline of a writer; this one never blocks.
func (*Text) Until(time.Time) {}

func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// Signal is the signal that ends a run, 0 for none.
type Signal syscall.Signal

// Caught returns it.
func (s *Signal) Caught() syscall.Signal { return syscall.Signal(*s) }

// Node is the node of a test.
type Node struct {
	*node.Node

	Dir      string // of the node
	Out, Err *Text  // what the run prints
	Sig      *Signal
}

// New returns a node with a role. words are settings, as on the command line; an empty value removes
// one.
func New(t *testing.T, role slurm.Role, words ...string) *Node {
	t.Helper()
	n := &Node{Dir: t.TempDir(), Out: new(Text), Err: new(Text), Sig: new(Signal)}
	set := setting.New(nil, role.AroundJob())
	bin := filepath.Join(n.Dir, "bin")
	for _, w := range append([]string{
		"NAME=nhc-test", "HOSTNAME=node1", "NHC_RM=slurm", "CONFDIR=" + n.Dir, "LOGFILE=-", "PATH=" + bin + ":" + setting.FixedPath,
		"SYSCONFIGDIR=" + n.Dir, "RESULTFILE=" + filepath.Join(n.Dir, "result"),
	}, words...) {
		if err := set.Word(w); err != nil {
			t.Fatal(err)
		}
	}
	set.Preset("nhc-gpu")
	set.Finalize()
	if set.Vars["LOGFILE"] == "-" {
		delete(set.Vars, "LOGFILE")
	}
	for _, w := range words {
		if name, value, _ := strings.Cut(w, "="); value == "" {
			delete(set.Vars, name)
		}
	}
	set.Past = filepath.Join(n.Dir, "past")
	n.Node = &node.Node{
		Ctx: t.Context(), Set: set, Role: role, Name: "node1", Named: true, Signals: n.Sig, Out: n.Out, Errs: n.Err,
		Budget: session.Budget{Began: time.Now()}, Pool: run.NewPool(run.Options{Root: "/", Env: set.Environ()}),
	}
	n.Log = &sink.Log{Pool: n.Pool, Out: n.Out, Err: n.Err}
	n.Pool.SetVars(set.WorkerVars())
	t.Cleanup(n.Pool.Close)
	n.Warm(t, checks.Local)
	n.Write(t, "slurm", "idle none\n")
	n.Script(t, "bin/sinfo", `cat "${0%/bin/*}/slurm"`)
	n.Script(t, "bin/logger", `exec cat >>"${0%/bin/*}/syslog"`)
	n.Script(t, "bin/scontrol", `dir=${0%/bin/*}
printf '%s\n' "$*" >>$dir/scontrol
for reason; do :; done
case $* in
update\ State=DRAIN*) echo "drain ${reason#Reason=}" >$dir/slurm ;;
update\ State=RESUME*) echo "idle none" >$dir/slurm ;;
esac`)
	return n
}

// Warm waits for the workers of lanes: on a loaded machine their start can take longer than the
// limits of a run.
func (n *Node) Warm(t *testing.T, lanes ...checks.Lane) {
	t.Helper()
	for _, lane := range lanes {
		if err := n.Pool.Call(t.Context(), lane, &wire.Request{Op: wire.OpFind, Args: []string{"/"}, Line: "start"}, time.Minute).Failure(); err != nil {
			t.Fatal(err)
		}
	}
}

// Write writes a file of the node.
func (n *Node) Write(t *testing.T, name, text string) {
	t.Helper()
	n.write(t, name, text, func(path string, data []byte) error { return os.WriteFile(path, data, 0o644) })
}

// Script writes a program of the node for sh.
func (n *Node) Script(t *testing.T, name, text string) {
	t.Helper()
	n.write(t, name, "#!/bin/sh\n"+text+"\n", built.WriteProgram)
}

func (n *Node) write(t *testing.T, name, text string, write func(path string, data []byte) error) {
	t.Helper()
	path := filepath.Join(n.Dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = write(path, []byte(text))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Read returns a file of the node, "" for none.
func (n *Node) Read(name string) string {
	data, err := os.ReadFile(filepath.Join(n.Dir, name))
	if err != nil {
		return ""
	}
	return string(data)
}
