package ask

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// slurmAnswers bounds a command that asks slurmctld or slurmdbd about all nodes.
const slurmAnswers = 30 * time.Second

// runSlurm runs a command of Slurm and returns what it prints.
func runSlurm(argv func(slurm.Settings) ([]string, error), words []string) ([]byte, error) {
	r, err := report.Start(&options.Options{Words: words})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	list, err := argv(slurm.SettingsFrom(r.Set.Get))
	if err != nil {
		return nil, err
	}
	return runTool(r, list)
}

// runTool runs a command of Slurm with the variables that keep its output as we parse it.
func runTool(r *health.Run, argv []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.Ctx, slurmAnswers)
	defer cancel()
	out, err := r.Pool.Exec(ctx, argv, slurm.SettingsFrom(r.Set.Get).Environ(), nil)
	switch {
	case err != nil:
		return nil, fmt.Errorf("run %s: %w", argv[0], err)
	case out.TimedOut:
		return nil, fmt.Errorf("run %s: no answer within %s", argv[0], slurmAnswers)
	case out.Status != 0:
		return nil, fmt.Errorf("run %s: exit status %d: %s", argv[0], out.Status, strings.TrimSpace(string(out.Stderr)))
	case out.Cut:
		return nil, fmt.Errorf("run %s: it printed more than %d bytes", argv[0], len(out.Stdout))
	}
	return out.Stdout, nil
}

// fleetGroup are the nodes that are out of service for one cause.
type fleetGroup struct {
	Owner   string         `json:"owner"` // nhc or other
	Code    string         `json:"code,omitempty"`
	Reason  string         `json:"reason,omitempty"` // of one of the nodes
	Nodes   []string       `json:"nodes"`
	Devices map[string]int `json:"devices,omitempty"` // number of nodes by device
	Since   string         `json:"since,omitempty"`   // the earliest
}

// groupFleet groups the nodes that are out of service: by code if nhc-gpu drained them, else by reason. The
// largest group comes first.
func groupFleet(nodes []slurm.FleetNode) (groups []*fleetGroup) {
	byKey := map[string]*fleetGroup{}
	for _, n := range nodes {
		switch inService := n.State.Class == slurm.InService && !n.State.DrainFlag; {
		case inService, n.Reason == "" && n.State.Class == slurm.Unknown:
			continue
		case n.Reason == "":
			n.Reason = "no reason, state " + n.State.Text
		}
		g := fleetGroup{Owner: "other", Reason: n.Reason, Devices: map[string]int{}}
		key := "other " + n.Reason
		if slurm.Ours(n.Reason) {
			g.Owner, g.Code = "nhc", slurm.ReasonCode(n.Reason)
			key = "nhc " + cmp.Or(g.Code, n.Reason)
		}
		if byKey[key] == nil {
			byKey[key] = &g
		}
		group := byKey[key]
		group.Nodes = append(group.Nodes, n.Name)
		if d := slurm.ReasonDevice(n.Reason); d != "" {
			group.Devices[d]++
		}
		if n.Since != "" && (group.Since == "" || n.Since < group.Since) {
			group.Since = n.Since
		}
	}
	return slices.SortedFunc(maps.Values(byKey), func(a, b *fleetGroup) int {
		return cmp.Or(cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Code+a.Reason, b.Code+b.Reason))
	})
}

// fleetStatus prints which nodes are out of service, and why.
func fleetStatus(words []string, asJSON bool) error {
	out, err := runSlurm(slurm.Settings.FleetArgv, words)
	if err != nil {
		return err
	}
	nodes, err := slurm.ParseFleet(out)
	if err != nil {
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %v\n", err)
	}
	if len(nodes) == 0 {
		return errors.New("sinfo shows no node")
	}
	groups := groupFleet(nodes)
	if asJSON {
		return printJSON(groups)
	}
	describeFleet(console.Screen, len(nodes), groups)
	return nil
}

func printJSON(v any) error {
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

func describeFleet(w io.Writer, all int, groups []*fleetGroup) {
	count := map[string]int{}
	for _, g := range groups {
		count[g.Owner] += len(g.Nodes)
	}
	nodes := "nodes"
	if all == 1 {
		nodes = "node"
	}
	fmt.Fprintf(w, "%d %s: %d drained by nhc-gpu, %d out of service for another reason\n", all, nodes, count["nhc"], count["other"])
	for _, g := range groups {
		what := cmp.Or(g.Code, g.Reason)
		fmt.Fprintf(w, "\n%5d  %s  since %s\n", len(g.Nodes), what, cmp.Or(g.Since, "unknown"))
		fmt.Fprintf(w, "       nodes    %s\n", fewNames(g.Nodes))
		if len(g.Devices) > 0 {
			var list []string
			for _, d := range slices.Sorted(maps.Keys(g.Devices)) {
				list = append(list, fmt.Sprintf("%s on %d", d, g.Devices[d]))
			}
			fmt.Fprintf(w, "       devices  %s\n", fewNames(list))
		}
		do := checks.WhatToDo(g.Code)
		if strings.HasPrefix(g.Code, "gpu.xid.") || strings.HasPrefix(g.Code, "gpu.sxid.") { // it depends on the event
			do = "Run nhc-gpu status on a node: it has the advice on its error."
		}
		if do != "" {
			fmt.Fprintf(w, "       do       %s\n", do)
		}
	}
}

// fewNames lists names, at most ten.
func fewNames(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// fleetHistory prints when and why nodes were out of service, from Slurm's accounting.
func fleetHistory(words []string, from time.Time, codes []string, asJSON bool) error {
	if from.IsZero() {
		from = time.Now().AddDate(0, 0, -30)
	}
	out, err := runSlurm(func(s slurm.Settings) ([]string, error) { return s.EventArgv(from), nil }, words)
	if err != nil {
		return fmt.Errorf("%w; the history of the fleet needs Slurm's accounting (slurmdbd)", err)
	}
	list, err := slurm.ParseEvents(out)
	if err != nil {
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %v\n", err)
	}
	list = slices.DeleteFunc(list, func(e slurm.FleetEvent) bool {
		return len(codes) > 0 && !slices.ContainsFunc(codes, func(code string) bool { return strings.HasPrefix(e.Code, code) })
	})
	if asJSON {
		for _, e := range list {
			if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	for _, e := range list {
		fmt.Fprintln(console.Screen, fleetLine(e, time.Now()))
	}
	return nil
}

// fleetLine returns an event as one line.
func fleetLine(e slurm.FleetEvent, now time.Time) string {
	lasted := "for " + ago(e.End.Sub(e.Start))
	if e.End.IsZero() {
		lasted = "for " + ago(now.Sub(e.Start)) + ", still"
	}
	return fmt.Sprintf("%s  %-12s %-8s %-16s %-12s %s", e.Start.Local().Format(clock), e.Node, e.State, lasted, e.User, e.Reason)
}
