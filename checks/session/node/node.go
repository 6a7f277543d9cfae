// Package node represents the node of a run: its name in Slurm, the state that earlier runs stored,
// the data from Slurm and the hardware, and draining and resuming.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// StateRoot holds a directory for each node that runs here; several slurmd can
// share a host.
const StateRoot = "/run/nhc-gpu"

// PastRoot also holds a directory for each node: the data that checks keep across
// reboots.
const PastRoot = "/var/lib/nhc-gpu"

// Node is the node of a run: its name in Slurm, the reason why Slurm started the run, its settings,
// its workers, and its stored state.
type Node struct {
	Ctx       context.Context
	Pool      *run.Pool
	Set       *setting.Settings
	Log       *sink.Log
	Budget    session.Budget
	Signals   signals
	Out, Errs writer // standard output and standard error

	Name       string
	Named      bool   // slurmd passed the name
	Bad        error  // why the node has no name
	Unnamed    bool   // slurm.conf has no node for this host
	host       string // HOSTNAME of the settings
	Role       slurm.Role
	Did        *event.Action // the last decision about the node in this run, nil if there was none
	Owes       bool          // a drain of this run could not be delivered
	Background bool          // this is the detached half of a run
	Guard      conf.Guard    // how many nodes may be drained for one fault

	Distribution error          // why the directory of the settings is unknown
	dir          slurm.StateDir // the state stored between runs; nil if it cannot be stored

	accepted   accepted
	slurmAsked bool  // Slurm's configuration has been read or not found
	slurmDoubt error // why it cannot be read
	warned     map[string]bool
}

// signals returns the signals that end a run.
type signals interface {
	Caught() syscall.Signal // the first one, 0 for none
}

// writer stops waiting for a blocked reader at a deadline.
type writer interface {
	io.Writer
	Until(end time.Time)
}

// New returns the node with the role from the environment or from a command word. Its worker starts
// while the rest is read.
func New(ctx context.Context, role slurm.Role, sig signals, out, errs writer) *Node {
	n := nodeFromEnviron(os.Getenv, role)
	n.Ctx, n.Signals, n.Out, n.Errs = ctx, sig, out, errs
	n.Budget = session.Budget{Began: time.Now()}
	n.Set = setting.New(os.Environ(), n.Role.AroundJob())
	n.Set.Past, n.Set.Spare = n.choosePast()
	n.Set.Periodic, n.Set.Part = n.HealthCheck(), n.Part()
	n.Pool = run.NewPool(run.Options{Root: "/", Env: n.Set.Environ()})
	n.Log = &sink.Log{Pool: n.Pool, Out: out, Err: errs}
	if err := n.Pool.Start(checks.Local); err != nil {
		n.Warn(err)
	}
	return n
}

// nodeFromEnviron reads the role from the environment, unless a command word names it: before 20.11
// slurmd does not set it for a prolog.
func nodeFromEnviron(env func(string) string, role slurm.Role) *Node {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	n := &Node{Role: role, Guard: conf.DefaultGuard()}
	if role == slurm.Manual {
		n.Role = slurm.RoleOf(env)
	}
	n.Name, n.Bad = slurm.NodeName(env, host)
	n.Named = n.Bad == nil && n.Name == env("SLURMD_NODENAME")
	return n
}

// HealthCheck reports whether slurmd has started the run as its health check.
func (n *Node) HealthCheck() bool { return n.Role == slurm.HealthCheck }

// Unattended reports whether a program has started the run for the whole node: slurmd, or the monitor.
func (n *Node) Unattended() bool { return n.HealthCheck() || n.Role == slurm.Monitor }

// Remembers reports whether the run keeps records: those of root do, but not about a recorded node.
func (n *Node) Remembers() bool {
	root := n.Set.Get("HOSTROOT")
	return n.Set.Past != "" && (root == "" || root == "/")
}

// Part reports whether the run makes only the checks that an event concerns.
func (n *Node) Part() bool { return n.Role == slurm.Monitor }

// choosePast returns the directory where checks keep data between runs, and a spare one for a
// node without a disk. Only root has such a directory, and no job's environment can name it.
func (n *Node) choosePast() (dir, spare string) {
	if os.Geteuid() != 0 || n.Bad != nil {
		return "", ""
	}
	return PastOf(n.Name)
}

// PastOf returns the directory where checks keep data of a node between runs, and a spare one
// if the first cannot be written.
func PastOf(node string) (dir, spare string) {
	return filepath.Join(PastRoot, node), filepath.Join(StateRoot, node, "past")
}

// detectDistribution sets the directory of the settings. If the root file system does not answer the
// directory is unknown, and Distribution has the error: another directory could lack MODE=observe.
func (n *Node) detectDistribution() {
	first := ""
	for _, path := range setting.Signs {
		line := "read " + path
		f, err := n.Pool.Call(n.Ctx, checks.Local, &wire.Request{Op: wire.OpRead, Path: path, Line: line}, session.Reading).File(line)
		if err != nil {
			n.Distribution = fmt.Errorf("find the directory of the settings: %w", err)
			n.Set.Vars["SYSCONFIGDIR"] = ""
			return
		}
		if !f.Missing {
			first = path
			break
		}
	}
	n.Set.Distribution(first)
}

// OpenState opens the stored state of the node. An error there costs one warning, and the run
// continues without stored state. busy is the error if another run holds the lock.
// Only root has stored state: only root acts.
func (n *Node) OpenState(lock string) (busy error) {
	n.detectDistribution()
	busy = n.openStateOf(lock)
	if !n.Named && busy == nil {
		n.findName()
	}
	return busy
}

// findName determines this node's name in Slurm if slurmd has not passed it: the name in slurm.conf
// can differ from the host name.
func (n *Node) findName() {
	host, err := os.Hostname()
	if err != nil {
		return
	}
	resp, err := n.Pool.Call(n.Ctx, checks.Local,
		&wire.Request{Op: wire.OpNodes, Name: host, Path: n.Set.Get("SLURM_CONF"), Line: "read Slurm's configuration"}, slurmConfLimit).Answer()
	switch {
	case err != nil: // no slurm.conf: use the host name
	case len(resp.Names) == 1:
		n.rename("NodeName", resp.Names[0])
	case len(resp.Names) > 1:
		n.Bad = fmt.Errorf("cannot determine the name of this node: slurm.conf has %d nodes on host %s (%s, ...): set SLURMD_NODENAME in %s or on the command line",
			len(resp.Names), host, strings.Join(resp.Names[:2], ", "), filepath.Join(n.Set.Get("SYSCONFIGDIR"), "nhc"))
	default:
		n.Unnamed = true
	}
}

// NameFromSettings uses the name that the site has set. The name from slurmd takes
// precedence: several slurmd can share a host.
func (n *Node) NameFromSettings() {
	n.host = n.Set.Get("HOSTNAME")
	real, err := os.Hostname()
	if err != nil {
		real = n.host
	}
	source, name := n.findSetName(real)
	if name == "" || n.Named && n.Role != slurm.Manual {
		return
	}
	n.Unnamed = false
	n.rename(source, name)
}

// findSetName returns the node's name from the settings and the name of that setting: SLURMD_NODENAME, or
// HOSTNAME if the site has set it to the name of another host than real, as LBNL NHC does. No
// environment can set HOSTNAME.
func (n *Node) findSetName(real string) (source, name string) {
	if name := n.Set.Get("SLURMD_NODENAME"); name != "" {
		return "SLURMD_NODENAME", name
	}
	if short(n.host) == short(real) {
		return "", ""
	}
	return "HOSTNAME", n.host
}

func short(host string) string {
	name, _, _ := strings.Cut(host, ".")
	return name
}

// DoubtHost warns that a line or a script has set HOSTNAME to a name that is not the node's. LBNL NHC would
// mark that node, but the stored state and the lock of this run are those of the other name. A helper of
// the site gets HOSTNAME.
func (n *Node) DoubtHost() {
	if !n.Set.Marks() || n.Set.CustomHelper("OFFLINE_NODE") {
		return
	}
	if host := n.Set.Get("HOSTNAME"); host != "" && host != n.Name && short(host) != short(n.host) {
		n.Warn(fmt.Errorf("HOSTNAME=%s, which a line or a script has set, does not name the node: it is %s; set SLURMD_NODENAME in %s",
			host, n.Name, filepath.Join(n.Set.Get("SYSCONFIGDIR"), n.Set.Get("NAME"))))
	}
}

// rename changes the node's name, which also selects the directory of the stored state. source is where
// the name is from.
func (n *Node) rename(source, name string) {
	if name == n.Name && n.Bad == nil {
		return
	}
	if n.Name, n.Bad = slurm.NodeName(func(string) string { return name }, ""); n.Bad != nil {
		n.Bad = fmt.Errorf("cannot determine the name of this node: %s is %q: want letters, digits, and - or _ after the first", source, name)
	}
	n.Set.Past, n.Set.Spare = n.choosePast()
	_ = n.openStateOf("")
}

func (n *Node) openStateOf(lock string) (busy error) {
	if os.Geteuid() != 0 || n.Bad != nil {
		return nil
	}
	holder, doubts, err := n.Pool.OpenState(filepath.Join(StateRoot, n.Name), n.Kind(), lock)
	if err != nil {
		n.Set.Spare = ""                    // it is in the same directory
		if errors.Is(err, fs.ErrNotExist) { // no run of this boot has stored anything
			n.Warn(fmt.Errorf("%w: this run does not know the earlier ones", err))
			n.dir = nil
			return nil
		}
		n.Warn(fmt.Errorf("%w: this run does not know the earlier ones, and resumes no node", err))
		n.dir = unusableState{err}
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

// Warn prints an error that is not about a check, once, as one line on stderr.
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

// Kind returns a key that is the same for runs of this node that need the same workers.
func (n *Node) Kind() string {
	if n.Background {
		return n.Role.String() + "-background"
	}
	return n.Role.String()
}

// Debug prints a line of -d. It works before the fold exists.
func (n *Node) Debug(format string, args ...any) {
	if n.Set.Get("DEBUG") != "1" {
		return
	}
	n.Log.Write(n.Stamped("DEBUG:  " + fmt.Sprintf(format, args...)))
}

// Stamped returns a line of the log, with the time if the site requests it.
func (n *Node) Stamped(text string) string {
	if n.Set.Stamps() {
		return fmt.Sprintf("[%d] - %s", time.Now().Unix(), text)
	}
	return text
}

// Drill returns the rehearsal that is under way on the node, nil if there is none.
func (n *Node) Drill() *session.Drill {
	data := n.Pool.Drill()
	if len(data) == 0 {
		return nil
	}
	d, err := session.ParseDrill(data)
	if err != nil {
		n.Warn(err)
		return nil
	}
	if d.Left(ReadMoment()) == 0 {
		return nil
	}
	return d
}

// KeepDrill stores a rehearsal for the next runs; nil ends it.
func (n *Node) KeepDrill(d *session.Drill) error {
	var data []byte
	if d != nil {
		var err error
		if data, err = json.Marshal(d); err != nil {
			return fmt.Errorf("write the drill: %w", err)
		}
	}
	return n.Pool.Save(wire.DrillFile, data)
}
