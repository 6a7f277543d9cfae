package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Guard limits how many nodes nhc-gpu drains for one fault. A fault that many nodes report at the
// same time is rarely a fault of the nodes: a file server is down, or a check is wrong.
type Guard struct {
	// A partition may have Percent of its nodes, or Nodes, whichever is more, drained for one fault.
	Percent, Nodes int

	// RepairPartition and RepairCluster are the numbers of nodes that may be in repair at a time.
	RepairPartition, RepairCluster int

	// Jitter is the longest wait before the count for a fault of something that nodes share. Short is that for
	// any other: a wrong line of a configuration reaches all nodes at the same time, too.
	Jitter, Short time.Duration

	Exempt        []string // codes or names of checks, or their first parts: drained without a count
	HoldUncounted bool     // hold a drain if the nodes cannot be counted, instead of draining
}

// NodeGroup is a group of nodes of one partition with the same state and reason.
type NodeGroup struct {
	Partition string
	State     State
	Reason    string
	Nodes     int
	Names     string // as Slurm prints them: gpu[01-16,20]
}

// parseGroups parses the output of [Settings.groupsArgv]. A further line of a person's reason is not
// a group.
func parseGroups(out []byte) (groups []NodeGroup, err error) {
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimRight(line, "\n"), "|", 5)
		if len(f) != 5 || f[0] == "" {
			continue
		}
		if n, err := strconv.Atoi(f[2]); err == nil && n > 0 {
			groups = append(groups, NodeGroup{Partition: f[0], State: ParseState(f[1]), Nodes: n, Names: f[3], Reason: strings.TrimSpace(f[4])})
		}
	}
	if groups == nil {
		return nil, fmt.Errorf("parse %q: want PARTITION|STATE|NODES|NAMES|REASON", cut(printable(firstLine(out)), 80))
	}
	return groups, nil
}

// Ruling is the guard's decision about a drain, and the numbers it depends on. The zero value
// permits the drain.
type Ruling struct {
	Hold      bool
	Fault     string // see faultKey
	Partition string // the one that leaves the least room
	Out       int    // its nodes that are drained for the fault, without this node
	Of        int    // its nodes
	Limit     int
}

func (r Ruling) String() string {
	return fmt.Sprintf("%d of %d nodes of partition %s are drained for %s, the limit is %d", r.Out, r.Of, r.Partition, r.Fault, r.Limit)
}

// Rule decides whether a node is drained for a reason. It counts, in each partition of the node, the
// other nodes that are out of service with a reason of ours about the same fault: not those drained in
// some time, since a storm can last hours. A node that is in no partition is drained.
func (g Guard) Rule(node, reason string, groups []NodeGroup) Ruling {
	key := faultKey(reason)
	var rulings []Ruling
	for _, name := range partitionsOf(node, groups) {
		r := Ruling{Fault: key, Partition: name}
		for _, group := range groups {
			if group.Partition != name {
				continue
			}
			r.Of += group.Nodes
			if group.State.Class != InService && Ours(group.Reason) && faultKey(group.Reason) == key {
				r.Out += group.Nodes
				if inHostlist(group.Names, node) {
					r.Out--
				}
			}
		}
		r.Limit = max(r.Of*g.Percent/100, g.Nodes)
		r.Hold = r.Out >= r.Limit
		rulings = append(rulings, r)
	}
	if len(rulings) == 0 {
		return Ruling{}
	}
	return slices.MinFunc(rulings, func(a, b Ruling) int { return cmp.Compare(a.Limit-a.Out, b.Limit-b.Out) })
}

// underRepair is the addition to our reason while a remedy is carried out, as Slurm's own " : reboot
// issued": the node stays ours, and others count it.
const underRepair = " : remedy "

// inRepair counts the other nodes that are being repaired: our drain with a remedy, or with a reboot or
// a power-down that is requested or under way. partition is the largest number in one partition of the node.
func inRepair(node string, groups []NodeGroup) (partition, cluster int) {
	own := partitionsOf(node, groups)
	count, seen := map[string]int{}, map[string]int{}
	for _, group := range groups {
		repaired := group.State.Class != InService && strings.Contains(additions().FindString(group.Reason), underRepair)
		if group.State.Order == "" && !repaired || !Ours(group.Reason) {
			continue
		}
		n := group.Nodes
		if inHostlist(group.Names, node) {
			n--
		}
		if slices.Contains(own, group.Partition) {
			count[group.Partition] += n
			partition = max(partition, count[group.Partition])
		}
		for _, name := range hostlistNames(group.Names) {
			if name != node {
				seen[name]++
			}
		}
	}
	return partition, len(seen)
}

// mayRepair reports whether one more node may be repaired.
func (g Guard) mayRepair(node string, groups []NodeGroup) bool {
	partition, cluster := inRepair(node, groups)
	return partition < g.RepairPartition && cluster < g.RepairCluster
}

func partitionsOf(node string, groups []NodeGroup) (names []string) {
	for _, group := range groups {
		if !slices.Contains(names, group.Partition) && inHostlist(group.Names, node) {
			names = append(names, group.Partition)
		}
	}
	return names
}

// faultKey identifies the fault of a reason of ours, the same on every node: its code, with the check if any
// check can hang or crash so. Reasons of LBNL NHC's checks have none: there it is the text without numbers, or the
// check alone if users choose names in its text. Otherwise each name would be a fault with a limit of its own.
func faultKey(reason string) string {
	code, check := ReasonCode(reason), checkOf(reason)
	switch {
	case strings.HasPrefix(strings.TrimPrefix(code, DrillCode), "probe."):
		return strings.TrimSpace(code + " " + check)
	case code != "":
		return checks.FaultOf(code)
	case namesOfUsers().MatchString(check):
		return check
	}
	text := strings.TrimPrefix(withoutAdditions(reason), Prefix)
	return strings.TrimSpace(withoutNumbers(attributed().ReplaceAllString(text, "")))
}

// namesOfUsers matches the checks of LBNL NHC whose texts name processes, or mount points that nhc.conf does not.
var namesOfUsers = checks.Lazily(`^check_(?:ps_|all_fs_|fs_(?:free|ifree|inodes|iused|size|used)$)`)

// exempts reports whether a reason is about a lost device, or about an exempt code or check.
func (g Guard) exempts(reason string) bool {
	code, check := strings.TrimPrefix(ReasonCode(reason), DrillCode), checkOf(reason)
	return checks.IsLoss(code) || slices.ContainsFunc(g.Exempt, func(e string) bool {
		return code != "" && strings.HasPrefix(code, e) || check != "" && strings.HasPrefix(check, e)
	})
}

// sharedFaults are the beginnings of the codes and of the names of checks of things that nodes share:
// when one fails, all nodes report it in the same moment.
var sharedFaults = []struct{ begin, thing string }{
	{"check_fs_", "file systems: most that checks name are on file servers"},
	{"check_all_fs_", "file systems"},
	{"check_net_", "hosts, sockets, name servers and gateways that a check asks"},
	{"check_moab_", "the daemons of Moab and Torque"},
	{"net.", "name servers and gateways"},
	{"ib.ports.init", "the subnet manager"},
	{"ib.errors.fabric", "switches and cables of the fabric"},
	{"ib.flap.fabric", "switches and cables of the fabric"},
	{"gpu.fabric.", "the NVLink domain of a rack"},
}

// isShared reports whether the reason is about something that nodes share.
func isShared(reason string) bool {
	code, check := strings.TrimPrefix(ReasonCode(reason), DrillCode), checkOf(reason)
	for _, row := range sharedFaults {
		if strings.HasPrefix(code, row.begin) || strings.HasPrefix(check, row.begin) {
			return true
		}
	}
	return false
}

// inHostlist reports whether Slurm's text of a set of nodes, such as "a[1-3],b02", contains a node.
func inHostlist(list, node string) bool {
	return slices.ContainsFunc(splitHostlist(list), func(word string) bool {
		return matchHosts(word, func(name string) bool { return name == node }, node)
	})
}
