package lint

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// slurm compares the settings of Slurm with the runs.
func (l *linter) slurm() {
	const unseen = "slurm.conf was not compared: "
	if rm := l.f.Set.Get("NHC_RM"); rm != "" && rm != "slurm" {
		l.unread = "NHC_RM=" + rm
		return
	}
	if !hasScontrol(l.f) {
		l.unread = "there is no scontrol in " + l.f.Set.Get("PATH")
		return
	}
	l.nodeName()
	if text := l.f.Set.Get("SLURM_RECHECK"); text != "" {
		if _, err := slurm.ParseRecheck(text); err != nil {
			l.say(mistake, "", "%v", err)
		}
	}
	config, err := slurm.AskConfig(l.f.Ctx, l.f.Controller())
	if err != nil && strings.Contains(err.Error(), "establish a configuration source") { // the programs of Slurm without a cluster
		l.unread = "Slurm is not configured on this machine"
		return
	}
	if err != nil {
		l.add(finding{Severity: warning, Text: fmt.Sprintf(unseen+"%v", err), Fix: "see whether slurmctld answers: scontrol ping"})
		return
	}
	l.read = append(l.read, "slurm.conf as slurmctld has it (Slurm "+config.Value("SLURM_VERSION")+")")
	for _, a := range slurm.Advise(config, l.wiring(config)) {
		g := warning
		if a.Remark {
			g = remark
		}
		l.add(finding{File: "slurm.conf", Severity: g, Word: a.Setting, Text: a.Setting + ": " + a.Text, Fix: a.Fix})
	}
}

// nodeName reports runs without slurmd that cannot determine this node's name in Slurm,
// and so mark no node.
func (l *linter) nodeName() {
	fix := "set the node's name: SLURMD_NODENAME=NAME in " + filepath.Join(l.f.Set.Get("SYSCONFIGDIR"), l.f.Set.Get("NAME"))
	switch {
	case l.f.Named:
		return
	case l.f.Bad != nil:
		l.say(warning, fix, "runs that slurmd does not start mark no node: %v", l.f.Bad)
		return
	case l.f.Unnamed:
		l.say(warning, fix, "runs that slurmd does not start mark no node: slurm.conf has no node on this host, whose name is %s", l.f.Name)
		return
	}
	if _, err := l.f.Controller().Read(l.f.Ctx); slurm.NoSuchNode(err) {
		l.say(warning, fix, "runs that slurmd does not start mark no node: Slurm has no node %s", l.f.Name)
	}
}

// hasScontrol reports whether this machine has scontrol.
func hasScontrol(f *open.Files) bool {
	if f.Set.Get("SLURM_SCONTROL") != "" {
		return true
	}
	var paths []string
	for dir := range strings.SplitSeq(f.Set.Get("PATH"), ":") {
		paths = append(paths, dir+"/scontrol")
	}
	find := &wire.Request{Op: wire.OpFind, Args: paths, Line: "find scontrol"}
	o := f.Pool.Call(f.Ctx, checks.Local, find, session.Reading)
	resp, err := o.Answer()
	return err == nil && resp.Status > 0
}

// wiring returns how Slurm starts this program on this node.
func (l *linter) wiring(config slurm.Config) slurm.Wiring {
	w := slurm.Wiring{Budget: map[slurm.Role]time.Duration{}, Found: map[string][]slurm.Program{}}
	for _, role := range startedRoles {
		key := slurm.StartKeys[role]
		l.in(role)
		w.Budget[role] = l.f.Allowed()
		if q := l.f.OwnRequest(); q != nil && !open.Missing(l.call(wire.OpRead, q.Path)) {
			w.Around = true
		}
		for _, pattern := range config.Programs(key) {
			found, err := l.programs(pattern)
			if err != nil {
				l.add(finding{File: "slurm.conf", Severity: remark, Word: key, Text: fmt.Sprintf("%s = %s: its programs could not be read: %v", key, pattern, err)})
				continue
			}
			w.Found[pattern] = found
			for _, p := range found {
				l.wired[role] = l.wired[role] || p.Ours
			}
		}
	}
	if c := l.f.Config; c != nil {
		w.Reboots = slices.ContainsFunc(c.Remedies, func(r conf.Remedy) bool { return r.Do == conf.RebootNode && r.Command == nil })
		_, prolog := c.Roles[conf.Prolog]
		_, epilog := c.Roles[conf.Epilog]
		w.Around = w.Around || prolog || epilog
	}
	return w
}

// programs returns the programs that slurmd would start for a pattern.
func (l *linter) programs(pattern string) (found []slurm.Program, err error) {
	resp, err := l.call(wire.OpPrograms, pattern).Answer()
	if err != nil {
		return nil, err
	}
	for _, p := range resp.Programs {
		found = append(found, slurm.Program{Path: p.Path, Bad: p.Bad, Ours: p.Self || p.Starts, Direct: p.Self})
	}
	return found, nil
}
