// Package node has the node as a run sees it: its name in Slurm, the memory of earlier runs, what
// Slurm and the hardware say of it, and the acts of draining and resuming it.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// StateRoot holds a directory for each node that runs here; several slurmd may
// share a host.
const StateRoot = "/run/nhc-gpu"

// PastRoot holds a directory for each node, too: what checks keep of earlier
// runs outlives a reboot.
const PastRoot = "/var/lib/nhc-gpu"

// Node is the node as a run sees it: what Slurm calls it, why Slurm has started the run,
// its settings, its workers, and what earlier runs left behind.
type Node struct {
	Ctx       context.Context
	Pool      *run.Pool
	Set       *setting.Settings
	Log       *sink.Log
	Budget    session.Budget
	Signals   signals
	Out, Errs writer // standard output and standard error

	Name       string
	Told       bool  // slurmd has given the name
	Bad        error // why the node has no name
	Unnamed    bool  // slurm.conf has no node that is this host
	Role       slurm.Role
	Background bool           // this is the detached half of a run
	dir        slurm.StateDir // what it remembers between runs; nil if it cannot

	slurmAsked bool  // Slurm's configuration has been looked for
	slurmDoubt error // why it could not be read
	warned     map[string]bool
}

// signals are those that end a run.
type signals interface {
	Caught() syscall.Signal // the first one, 0 for none
}

// writer gives up on a reader that does not read until then.
type writer interface {
	io.Writer
	Until(end time.Time)
}

// New is the node by the environment, and by the role that a word has named. Its worker
// comes up while the rest is read.
func New(ctx context.Context, role slurm.Role, sig signals, out, errs writer) *Node {
	n := nodeFromEnviron(os.Getenv, role)
	n.Ctx, n.Signals, n.Out, n.Errs = ctx, sig, out, errs
	n.Budget = session.Budget{Began: time.Now()}
	n.Set = setting.New(os.Environ(), n.Role.AroundJob())
	n.Set.Past, n.Set.Spare = n.past()
	n.Set.Periodic = n.HealthCheck()
	n.Pool = run.NewPool(run.Options{Root: "/", Env: n.Set.Environ()})
	n.Log = &sink.Log{Pool: n.Pool, Out: out, Err: errs}
	if err := n.Pool.Start(checks.Local); err != nil {
		n.Warn(err)
	}
	return n
}

// nodeFromEnviron takes the role from the environment, unless a word has named it:
// before 20.11 slurmd does not tell a prolog that it is one.
func nodeFromEnviron(env func(string) string, role slurm.Role) *Node {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	n := &Node{Role: role}
	if role == slurm.Manual {
		n.Role = slurm.RoleOf(env)
	}
	n.Name, n.Bad = slurm.NodeName(env, host)
	n.Told = n.Bad == nil && n.Name == env("SLURMD_NODENAME")
	return n
}

// HealthCheck reports whether slurmd has started the run as its health check.
func (n *Node) HealthCheck() bool { return n.Role == slurm.HealthCheck }

// past is where checks keep what they need to know of earlier runs, and where if
// that cannot be written, as on a node without a disk: only root has such a
// place, and no job's environment names it.
func (n *Node) past() (dir, spare string) {
	if os.Geteuid() != 0 || n.Bad != nil {
		return "", ""
	}
	return PastOf(n.Name)
}

// PastOf returns where checks keep what they need to know of earlier runs of a node, and where
// if that cannot be written.
func PastOf(node string) (dir, spare string) {
	return filepath.Join(PastRoot, node), filepath.Join(StateRoot, node, "past")
}

// lookAround determines the distribution. It is unknown if the root file system does not
// answer.
func (n *Node) lookAround() {
	const sign = "/etc/debian_version"
	f, err := n.Pool.Call(n.Ctx, checks.Local, &wire.Request{Op: wire.OpRead, Path: sign, Line: "read " + sign}, lookLimit).File("read " + sign)
	n.Set.Distribution(err == nil && !f.Missing)
}

const lookLimit = 2 * time.Second

// OpenState reads the memory of earlier runs of the node. Any error there costs one
// warning, and the run continues without a memory. busy reports that another health
// check of slurmd is at work. Only root has anything to remember: only root acts.
func (n *Node) OpenState(lock string) (busy error) {
	n.lookAround()
	busy = n.openStateOf(lock)
	if !n.Told && busy == nil {
		n.findName()
	}
	return busy
}

// findName determines this node's name in Slurm if slurmd has not given it: in slurm.conf
// it may differ from the host name.
func (n *Node) findName() {
	host, err := os.Hostname()
	if err != nil {
		return
	}
	resp, err := n.Pool.Call(n.Ctx, checks.Local,
		&wire.Request{Op: wire.OpNodes, Name: host, Path: n.Set.Get("SLURM_CONF"), Line: "read Slurm's configuration"}, slurmConfLimit).Answer()
	switch {
	case err != nil: // no slurm.conf here: the host name it is
	case len(resp.Jobs) == 1:
		n.rename(resp.Jobs[0])
	case len(resp.Jobs) > 1:
		n.Bad = fmt.Errorf("name this node: slurm.conf has %d nodes on host %s (%s, ...): set SLURMD_NODENAME in %s, or as an argument",
			len(resp.Jobs), host, strings.Join(resp.Jobs[:2], ", "), filepath.Join(n.Set.Get("SYSCONFIGDIR"), "nhc"))
	default:
		n.Unnamed = true
	}
}

// NameFromSettings takes the name that the site has set. The name from slurmd takes
// precedence: several slurmd may share a host.
func (n *Node) NameFromSettings() {
	name := n.Set.Get("SLURMD_NODENAME")
	if name == "" || n.Told && n.Role != slurm.Manual {
		return
	}
	n.Unnamed = false
	n.rename(name)
}

// rename gives the node another name: the memory of earlier runs is in that directory.
func (n *Node) rename(name string) {
	if name == n.Name && n.Bad == nil {
		return
	}
	if n.Name, n.Bad = slurm.NodeName(func(string) string { return name }, ""); n.Bad != nil {
		n.Bad = fmt.Errorf("name this node: SLURMD_NODENAME is %q: want letters, digits, and - or _ after the first", name)
	}
	n.Set.Past, n.Set.Spare = n.past()
	_ = n.openStateOf("")
}

func (n *Node) openStateOf(lock string) (busy error) {
	if os.Geteuid() != 0 || n.Bad != nil {
		return nil
	}
	holder, doubts, err := n.Pool.OpenState(filepath.Join(StateRoot, n.Name), n.Kind(), lock)
	if err != nil {
		n.Warn(fmt.Errorf("%w: this run remembers nothing of earlier ones", err))
		n.Set.Spare = "" // which is there, too
		return nil
	}
	n.dir = nodeState{n.Pool}
	if len(doubts) > 0 {
		n.Warn(errors.Join(doubts...))
	}
	if holder != nil {
		return &slurm.BusyError{PID: holder.PID, Age: holder.Age}
	}
	return nil
}

// Warn is for what went wrong beside the checks: one line on stderr, once.
func (n *Node) Warn(err error) {
	if n.warned[err.Error()] {
		return
	}
	if n.warned == nil {
		n.warned = map[string]bool{}
	}
	n.warned[err.Error()] = true
	fmt.Fprintln(n.Errs, "nhc-gpu: warning:", err)
}

// Kind is what runs of this node have in common that need the same workers.
func (n *Node) Kind() string {
	if n.Background {
		return n.Role.String() + "-background"
	}
	return n.Role.String()
}

// Debug prints a line of -d, before the fold exists, too.
func (n *Node) Debug(format string, args ...any) {
	if n.Set.Get("DEBUG") != "1" {
		return
	}
	text := "DEBUG:  " + fmt.Sprintf(format, args...)
	if n.Set.Stamps() {
		text = fmt.Sprintf("[%d] - %s", time.Now().Unix(), text)
	}
	n.Log.Write(text)
}
