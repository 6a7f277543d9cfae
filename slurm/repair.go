package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Patient is what slurmctld knows about a node before a remedy.
type Patient struct {
	Node        NodeInfo
	Ours        bool     // drained by us
	Jobs        []string // that have something on the node
	Maintenance string   // the reservation, and when it begins; "" for none
	Full        string   // why no further node may be repaired; "" if one may
	NoReboot    bool     // slurm.conf has no RebootProgram
}

// AskPatient asks about the node, which is drained for a drill or for a fault. A reservation for
// maintenance counts from that long before it begins.
func AskPatient(ctx context.Context, c *Controller, limits Guard, before time.Duration, drill bool) (p Patient, err error) {
	m, err := c.recall()
	if err != nil {
		return p, err
	}
	if p.Node, err = ask(ctx, c, "read node "+c.Node, c.Settings.showArgv, parseShowNode); err != nil {
		return p, err
	}
	p.Node.Foreign = p.Node.Foreign || m.isForeign(p.Node.Reason)
	held := p.Node.State.Class == Drained || p.Node.State.DrainFlag
	p.Ours = held && p.Node.owner() == ours && isDrill(p.Node.Reason) == drill
	if c.Settings.Policy.Fails && p.Node.State.Order == failOrder() { // our drains set it
		p.Node.State.Order = ""
	}
	if p.Jobs, err = ask(ctx, c, "list the jobs of node "+c.Node, c.Settings.jobsArgv, func(out []byte) ([]string, error) { return strings.Fields(string(out)), nil }); err != nil {
		return p, err
	}
	list := func(string) ([]string, error) { return c.Settings.ReservationsArgv() }
	reservations := func(out []byte) (string, error) { return maintenanceOf(string(out), c.Node, c.now(), before), nil }
	if p.Maintenance, err = ask(ctx, c, "list the reservations", list, reservations); err != nil {
		return p, err
	}
	groups, err := ask(ctx, c, "count the nodes in repair", c.Settings.groupsArgv, parseGroups)
	if err != nil {
		return p, err
	}
	if partition, cluster := inRepair(c.Node, groups); !limits.mayRepair(c.Node, groups) {
		p.Full = fmt.Sprintf("%d other nodes of a partition of this node and %d of the cluster are in repair, the limits are %d and %d", partition, cluster, limits.RepairPartition, limits.RepairCluster)
	}
	config, err := AskConfig(ctx, c)
	p.NoReboot = err == nil && config.Value("RebootProgram") == ""
	return p, err
}

// jobsArgv returns the command that lists the jobs on a node, those that end there included.
func (s Settings) jobsArgv(node string) ([]string, error) {
	return []string{filepath.Join(filepath.Dir(s.sinfo()), "squeue"), "-h", "-a", "-w", node, "-o", "%i"}, nil
}

var reservationKey = checks.Lazily(`\b(ReservationName|StartTime|EndTime|Nodes|Flags)=(\S*)`)

// maintenanceOf returns the first reservation for maintenance of a node that has begun or begins soon.
// Its times are those of this host's time zone.
func maintenanceOf(out, node string, now time.Time, before time.Duration) string {
	for line := range strings.Lines(out) {
		r := map[string]string{}
		for _, m := range reservationKey().FindAllStringSubmatch(line, -1) {
			if r[m[1]] == "" {
				r[m[1]] = m[2]
			}
		}
		if !slices.Contains(strings.Split(r["Flags"], ","), "MAINT") || !inHostlist(r["Nodes"], node) {
			continue
		}
		begin, err := time.ParseInLocation(slurmClock, r["StartTime"], time.Local)
		end, wrong := time.ParseInLocation(slurmClock, r["EndTime"], time.Local)
		if err == nil && begin.Sub(now) > before || wrong == nil && end.Before(now) {
			continue
		}
		return printable(r["ReservationName"]) + " for maintenance, from " + r["StartTime"]
	}
	return ""
}

// NoteRepair adds a remedy to our reason.
func NoteRepair(ctx context.Context, c *Controller, remedy string) error {
	return AddToReason(ctx, c, strings.TrimPrefix(underRepair, " : ")+remedy)
}

// AddToReason replaces the addition to our reason, "" for none. It touches no other reason, and repeats
// nothing that the reason says itself.
func AddToReason(ctx context.Context, c *Controller, text string) error {
	_, err := c.withMemory(ctx, func(m *Memory, _ *Outcome) error {
		node, reason, err := findReason(ctx, c, m)
		if err != nil {
			return err
		}
		if text != "" && !(text == HeldForRMA && IsHeldForRMA(reason)) {
			reason += " : " + text
		}
		if reason != node.Reason {
			err = c.write(ctx, Decision{Action: Renew, Reason: reason})
		}
		if err == nil && m.Reason != "" {
			m.Reason = reason
		}
		return err
	})
	return err
}

// ErrNotOurs means that the node is no longer drained by us.
var ErrNotOurs = errors.New("the node is no longer drained by nhc-gpu")

// findReason returns our reason on the node, without additions, and [ErrNotOurs] if there is none.
func findReason(ctx context.Context, c *Controller, m *Memory) (node NodeInfo, reason string, err error) {
	if node, err = ask(ctx, c, "read node "+c.Node, c.Settings.showArgv, parseShowNode); err != nil {
		return node, "", err
	}
	node.Foreign = node.Foreign || m.isForeign(node.Reason)
	if node.State.Class == InService && !node.State.DrainFlag || node.owner() != ours {
		return node, "", fmt.Errorf("node %s is %s for reason %q: %w", c.Node, node.State.Text, node.signed(), ErrNotOurs)
	}
	return node, withoutAdditions(node.Reason), nil
}

// UnansweredError is the error of a request that got no answer: slurmctld can have carried it out.
type UnansweredError struct{ error }

// Reboot requests a reboot of the node, which is drained by us and empty. Slurm would reboot a node
// that a person has drained, too, and forget that person's reason: the look and the request are as
// close together as two commands can be. The drain outlives the boot, since the request has neither ASAP
// nor nextstate (tested with 22.05): the node returns when a run has checked it. Slurm appends to the
// reason, and replaces one that has the addition already.
func Reboot(ctx context.Context, c *Controller) error {
	_, err := c.withMemory(ctx, func(m *Memory, _ *Outcome) error {
		node, reason, err := findReason(ctx, c, m)
		if err != nil {
			return err
		}
		if node.State.Order != "" {
			return fmt.Errorf("reboot node %s: %s", c.Node, node.State.Order)
		}
		line, err := argv([]string{cmp.Or(c.Settings.Scontrol, "scontrol")}, "reboot", "reason="+reason, c.Node)
		if err == nil && !c.Observe {
			var out Output
			if out, err = c.call(ctx, line); err != nil && (out.TimedOut || out.Status == 0) {
				err = UnansweredError{err}
			}
		}
		if err != nil {
			return fmt.Errorf("reboot node %s: %w", c.Node, err)
		}
		m.doubt() // a person can cancel the request, and with it goes our drain: the next run looks
		m.Next = time.Time{}
		return nil
	})
	return err
}
