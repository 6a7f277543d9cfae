package slurm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// FleetNode is a node as sinfo shows it.
type FleetNode struct {
	Name   string
	State  State
	Since  string // when the reason was set, as sinfo prints it; "" without a reason
	User   string // who set it
	Reason string
}

// FleetArgv is the command whose output [ParseFleet] reads: one line for each node and partition,
// hidden ones, too. The reason is last, because it may contain anything.
func (s Settings) FleetArgv() ([]string, error) {
	return s.sinfoOf("-a", "-h", "-N", "-o", "%N|%t|%H|%u|%E")
}

// ParseFleet parses the output of [Settings.FleetArgv]. A node of several partitions counts once.
func ParseFleet(out []byte) (nodes []FleetNode, err error) {
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		f := strings.SplitN(line, "|", 5)
		if len(f) != 5 || f[0] == "" {
			if strings.TrimSpace(line) != "" {
				err = errors.Join(err, fmt.Errorf("sinfo printed %.80q, want NODE|STATE|TIME|USER|REASON", line))
			}
			continue
		}
		if seen[f[0]] {
			continue
		}
		seen[f[0]] = true
		n := FleetNode{Name: f[0], State: ParseState(f[1]), Since: f[2], User: f[3], Reason: strings.TrimSpace(f[4])}
		if ownerOf(n.Reason) == noOwner {
			n.Since, n.User, n.Reason = "", "", ""
		}
		nodes = append(nodes, n)
	}
	return nodes, err
}

// ReasonDevice returns the first word of a reason of nhc-gpu if it names a device: gpu3, mlx5_0:1.
func ReasonDevice(reason string) string {
	rest, ok := strings.CutPrefix(reason, Prefix+" ")
	rest = strings.TrimPrefix(rest, checks.DrillMark)
	word, _, _ := strings.Cut(rest, " ")
	if !ok || !strings.ContainsAny(word, "0123456789") || !strings.ContainsAny(word, "abcdefghijklmnopqrstuvwxyz") || strings.HasSuffix(word, ":") {
		return ""
	}
	return word
}

// FleetEvent is one time during which a node was out of service, from Slurm's accounting.
type FleetEvent struct {
	Node   string    `json:"node"`
	Start  time.Time `json:"start"`
	End    time.Time `json:"end,omitzero"` // zero while it lasts
	State  string    `json:"state"`
	User   string    `json:"user"`
	Reason string    `json:"reason"`
	Code   string    `json:"code,omitempty"`
	Device string    `json:"device,omitempty"`
}

// EventArgv returns the command whose output [ParseEvents] reads: the events since a time.
func (s Settings) EventArgv(since time.Time) []string {
	return []string{s.command("sacctmgr"), "-nP", "show", "event", "start=" + since.Format(slurmClock), "format=nodename,start,end,state,user,reason"}
}

// slurmClock is how Slurm prints and reads times, in local time.
const slurmClock = "2006-01-02T15:04:05"

// ParseEvents parses the output of [Settings.EventArgv], the oldest first. A change of the reason closes a row
// and opens another, at the same time: such rows of one code are one event. A row without a node is
// about the cluster.
func ParseEvents(out []byte) (list []FleetEvent, err error) {
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		f := strings.SplitN(line, "|", 6)
		if len(f) != 6 {
			if strings.TrimSpace(line) != "" {
				err = errors.Join(err, fmt.Errorf("sacctmgr printed %.80q, want 6 columns", line))
			}
			continue
		}
		if f[0] == "" {
			continue
		}
		e := FleetEvent{Node: f[0], State: f[3], User: f[4], Reason: f[5], Code: ReasonCode(f[5]), Device: ReasonDevice(f[5])}
		var bad error
		if e.Start, bad = time.ParseInLocation(slurmClock, f[1], time.Local); bad != nil {
			err = errors.Join(err, fmt.Errorf("sacctmgr printed the start %q of node %s, want YYYY-MM-DDThh:mm:ss", f[1], f[0]))
			continue
		}
		e.End, _ = time.ParseInLocation(slurmClock, f[2], time.Local) // "Unknown" while it lasts
		list = append(list, e)
	}
	slices.SortStableFunc(list, func(a, b FleetEvent) int { return cmp.Or(cmp.Compare(a.Node, b.Node), a.Start.Compare(b.Start)) })
	merged := list[:0]
	for _, e := range list {
		if n := len(merged) - 1; n >= 0 && merged[n].Node == e.Node && merged[n].End.Equal(e.Start) && merged[n].Code == e.Code && (e.Code != "" || merged[n].Reason == e.Reason) {
			merged[n].End, merged[n].State = e.End, e.State
			continue
		}
		merged = append(merged, e)
	}
	slices.SortStableFunc(merged, func(a, b FleetEvent) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Node, b.Node)) })
	return merged, err
}

// JobNodesArgv is the command whose output [ParseJobNodes] reads.
func (s Settings) JobNodesArgv(id string) []string {
	return []string{s.command("squeue"), "-h", "-j", id, "-o", "%A|%u|%N"}
}

// ParseJobNodes returns the user and the nodes of a job, none if it does not run. squeue prints a line for
// each task of an array and for each component of a heterogeneous job, each with its own number.
func ParseJobNodes(out []byte, id string) (user string, nodes []string, err error) {
	for line := range strings.Lines(string(out)) {
		words := strings.Split(strings.TrimSpace(line), "|")
		if len(words) == 3 && words[0] == id && words[2] != "" && !strings.HasPrefix(words[1], "-") && userName(words[1]) != "" {
			nodes, err = ExpandHostlist(words[2])
			return words[1], nodes, err
		}
	}
	return "", nil, nil
}
