// Package ncclras asks NCCL's RAS endpoint of a job which ranks lag or are dead, and parses the answer.
// Any process of the job's user can write that answer: nothing in it is trusted for more than text about
// this job.
package ncclras

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Report is an answer of NCCL.
type Report struct {
	Version  string `json:"version,omitempty"` // of NCCL
	Comms    int    `json:"comms"`             // communicators
	Ranks    int    `json:"ranks"`             // of the largest communicator
	Status   string `json:"status,omitempty"`  // of the communicators, each once: "RUNNING INCOMPLETE"
	Timeouts int    `json:"timeouts,omitempty"`
	Behind   []Rank `json:"behind,omitempty"` // at most maxRanks that lag, are dead, or did not answer
	More     int    `json:"more,omitempty"`   // further ones
}

// Rank is a rank or a process that the others may wait for.
type Rank struct {
	Comm string `json:"comm,omitempty"` // the communicator's hash, "" if the process is in several
	Rank int    `json:"rank"`           // -1: unknown
	PID  int    `json:"pid"`            // in its own PID namespace; 0: unknown
	Host string `json:"host,omitempty"` // IP address
	GPU  int    `json:"gpu"`            // its index in NVML; -1: unknown
	Why  State  `json:"why"`

	Op   string `json:"op,omitempty"`   // lags: the kind of operation
	At   uint64 `json:"at,omitempty"`   // lags: the last operation that it has launched
	Most uint64 `json:"most,omitempty"` // lags: that of the ranks ahead

	Device string `json:"device,omitempty"` // the device of this node that it drives, see Report.Locate; "" if unknown
	Here   bool   `json:"here,omitempty"`   // it runs on this node
}

// State is the reason why the others may wait for a rank.
type State string

// The states, the one that explains most first.
const (
	Dead    State = "dead"
	Silent  State = "silent" // its process did not answer
	Left    State = "left"   // it is no longer in the communicator, or ends it
	Lagging State = "lagging"
)

// These bound the stored part of an answer, whose writer may be hostile.
const (
	maxAnswer = 4 << 20 // bytes
	maxRanks  = 64
	maxWord   = 64
)

// ErrNoReport is the error of an answer that is not NCCL's.
var ErrNoReport = errors.New("the answer is not a report of NCCL")

// Parse parses the text of NCCL 2.24 to 2.30, and its JSON (2.28.7 and newer).
func Parse(answer []byte) (*Report, error) {
	if len(answer) > maxAnswer {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrNoReport, maxAnswer)
	}
	r := &Report{}
	var err error
	if text := bytes.TrimSpace(answer); bytes.HasPrefix(text, []byte("{")) {
		err = r.parseJSON(text)
	} else {
		err = r.parseText(string(answer))
	}
	if err != nil {
		return nil, err
	}
	order := []State{Dead, Silent, Left, Lagging}
	slices.SortStableFunc(r.Behind, func(a, b Rank) int {
		return cmp.Or(slices.Index(order, a.Why)-slices.Index(order, b.Why), cmp.Compare(a.Rank, b.Rank))
	})
	r.Behind = slices.Compact(r.Behind)
	if n := len(r.Behind) - maxRanks; n > 0 {
		r.Behind, r.More = r.Behind[:maxRanks], r.More+n
	}
	return r, nil
}

// add adds a rank. An entry about its whole process becomes that of the rank.
func (r *Report) add(rank Rank) {
	rank.Comm, rank.Host, rank.Op = word(rank.Comm), word(rank.Host), word(rank.Op)
	known := slices.IndexFunc(r.Behind, func(old Rank) bool {
		whole := old.Rank < 0 && rank.Why == Silent && (old.Why == Silent || old.Why == Dead)
		same := old.Rank == rank.Rank && old.Comm == rank.Comm && old.Why == rank.Why && old.Op == rank.Op
		return old.PID > 0 && old.PID == rank.PID && old.Host == rank.Host && old.GPU == rank.GPU && (whole || same)
	})
	switch {
	case known >= 0:
		r.Behind[known].Rank, r.Behind[known].Comm = rank.Rank, rank.Comm
	case len(r.Behind) >= 16*maxRanks:
		r.More++
	default:
		r.Behind = append(r.Behind, rank)
	}
}

// word returns text of the answer as one short word that prints.
func word(s string) string {
	s = probe.OneLine(s[:min(len(s), maxWord)])
	return strings.Map(func(c rune) rune {
		if c <= ' ' || c > '~' {
			return '?'
		}
		return c
	}, s)
}

// The lines of the text report.
var (
	versionLine = probe.Lazily(`^NCCL version (\S{1,40})`)
	commLine    = probe.Lazily(`^\s*\d+\s+(\d+)\s+\d+\s+[\d-]+\s+(\d+)\s+\d+\s+([A-Z,]+)\s+([A-Z,]+)\s*$`)
	headLine    = probe.Lazily(`^\s*#\d+-\d+ \(([0-9a-f]+)\) ([A-Z]+)\s*$`)
	groupLine   = probe.Lazily(`^\s*(\d+) ranks? (?:(?:has|have) launched up to operation (\d+)|(?:has|have) (not launched any operations)|have status (NOCOMM|INIT|RUNNING|FINALIZE|ABORT))\s*$`)
	kindLine    = probe.Lazily(`Communicator ranks have different (?:collective|(\w+)) operation counts`)
	rankLine    = probe.Lazily(`^\s*Rank (\d+)(?: has (?:launched up to operation (\d+)|(not launched any operations)|status (NOCOMM|INIT|RUNNING|FINALIZE|ABORT)))? -- (?:GPU (\d+)(?: \(NVML (\d+)\))? managed by process (\d+) on node (\S+)|\[process information not found\])`)
	processLine = probe.Lazily(`^\s*Process (\d+) on node (\S+) managing GPUs? (\S+)(?: \(NVML (\S+)\))?`)
	missingLine = probe.Lazily(`^\s*The missing ranks?: ([\d, ]+)`)
	timeoutLine = probe.Lazily(`^\s*Encountered (\d+) communication timeouts? `)
)

// group is the ranks of a communicator that have launched the same operations, or have the same status.
type group struct {
	count  int
	at     uint64
	status string
	ranks  []Rank
}

// textParser has the place in the text.
type textParser struct {
	*Report

	comm, problem, op string
	groups            []group
	states            map[string]bool
}

func (r *Report) parseText(text string) error {
	p := textParser{Report: r, states: map[string]bool{}}
	seen := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if len(line) > 1024 {
			continue
		}
		seen = seen || strings.HasPrefix(line, "Communicators...") || strings.Contains(line, "in group  per comm")
		p.line(line)
	}
	p.endGroups()
	r.Status = strings.Join(slices.Sorted(maps.Keys(p.states)), ", ")
	if !seen && r.Version == "" {
		return ErrNoReport
	}
	return nil
}

func (p *textParser) line(line string) {
	switch trimmed := strings.TrimSpace(line); trimmed {
	case "":
		p.endGroups()
	case "DEAD", "INCOMPLETE", "TIMEOUT":
		p.endGroups()
		p.comm, p.problem = "", trimmed
	}
	if m := versionLine().FindStringSubmatch(line); m != nil && p.Version == "" {
		p.Version = word(m[1])
	} else if m := commLine().FindStringSubmatch(line); m != nil {
		p.Comms += number(m[1])
		p.Ranks = max(p.Ranks, number(m[2]))
		if len(p.states) < 8 {
			p.states[word(m[3])+" "+word(m[4])] = true
		}
	} else if m := headLine().FindStringSubmatch(line); m != nil {
		p.endGroups()
		p.comm, p.problem, p.op = m[1], m[2], ""
	} else if m := kindLine().FindStringSubmatch(line); m != nil {
		p.endGroups()
		p.op = m[1]
	} else if m := groupLine().FindStringSubmatch(line); m != nil {
		p.groups = append(p.groups, group{count: number(m[1]), at: big(m[2]), status: m[4]})
	} else if m := rankLine().FindStringSubmatch(line); m != nil {
		p.rank(m)
	} else if m := processLine().FindStringSubmatch(line); m != nil {
		p.process(m)
	} else if m := missingLine().FindStringSubmatch(line); m != nil {
		for n := range strings.FieldsFuncSeq(m[1], func(c rune) bool { return c == ',' || c == ' ' }) {
			p.add(Rank{Comm: p.comm, Rank: number(n), GPU: -1, Why: Silent})
		}
	} else if m := timeoutLine().FindStringSubmatch(line); m != nil {
		p.Timeouts = number(m[1])
	}
}

// rank takes a line about one rank: of the group before it, or a group of its own.
func (p *textParser) rank(m []string) {
	rank := Rank{Comm: p.comm, Rank: number(m[1]), GPU: -1, PID: number(m[7]), Host: m[8]}
	if m[5] != "" {
		rank.GPU = number(cmp.Or(m[6], m[5]))
	}
	switch {
	case m[2] != "" || m[3] != "" || m[4] != "":
		p.groups = append(p.groups, group{count: 1, at: big(m[2]), status: m[4], ranks: []Rank{rank}})
	case p.problem == "MISMATCH" && len(p.groups) > 0:
		g := &p.groups[len(p.groups)-1]
		g.ranks = append(g.ranks, rank)
	case p.problem == "INCOMPLETE":
		rank.Why = Silent
		p.add(rank)
	case p.problem == "ERROR":
		rank.Why = Left
		p.add(rank)
	}
}

// process takes a line about a process that is dead or silent.
func (p *textParser) process(m []string) {
	why := Silent
	if p.problem == "DEAD" {
		why = Dead
	} else if p.problem != "INCOMPLETE" {
		return
	}
	for gpu := range strings.SplitSeq(cmp.Or(strings.TrimSuffix(m[4], ")"), m[3]), ",") {
		p.add(Rank{Rank: -1, PID: number(m[1]), Host: m[2], GPU: number(gpu), Why: why})
	}
}

// endGroups adds the ranks of the groups behind the first one, or with another status than most.
func (p *textParser) endGroups() {
	ahead, usual := uint64(0), ""
	most := 0
	for _, g := range p.groups {
		ahead = max(ahead, g.at)
		if g.count > most {
			most, usual = g.count, g.status
		}
	}
	for _, g := range p.groups {
		for _, rank := range g.ranks {
			switch {
			case g.status != "" && g.status != usual:
				rank.Why = Left
			case g.status == "" && g.at < ahead:
				rank.Why, rank.Op, rank.At, rank.Most = Lagging, p.op, g.at, ahead
			default:
				continue
			}
			p.add(rank)
		}
	}
	p.groups = nil
}

// jsonReport is the report as JSON.
type jsonReport struct {
	Version string     `json:"nccl_version"`
	Comms   []jsonComm `json:"communicators"`
	RAS     struct {
		Timeouts int `json:"timeouts_count"`
	} `json:"ras"`
}

type jsonComm struct {
	Hash    string     `json:"hash"`
	Size    int        `json:"size"`
	Ranks   []jsonRank `json:"ranks"`
	Missing []jsonRank `json:"missing_ranks"`
}

type jsonRank struct {
	Rank   int    `json:"rank"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	GPU    *int   `json:"nvml_dev"`
	Status struct {
		Init         int  `json:"init_state"`
		Async        int  `json:"async_error"`
		Finalize     bool `json:"finalize_called"`
		Destroy      bool `json:"destroy_flag"`
		Abort        bool `json:"abort_flag"`
		Unresponsive bool `json:"unresponsive"`
		Dead         bool `json:"considered_dead"`
	} `json:"status"`
	Counts map[string]uint64 `json:"collective_counts"`
}

// inProgress is ncclInProgress.
const inProgress = 7

func (r *Report) parseJSON(text []byte) error {
	var j jsonReport
	if err := json.Unmarshal(text, &j); err != nil || j.Version == "" {
		return ErrNoReport
	}
	r.Version, r.Comms, r.Timeouts = word(j.Version), len(j.Comms), max(0, j.RAS.Timeouts)
	states := map[string]bool{}
	for i := range j.Comms {
		c := &j.Comms[i]
		r.Ranks = max(r.Ranks, c.Size)
		state := "RUNNING OK"
		hash := strings.TrimPrefix(c.Hash, "0x")
		rank := func(n *jsonRank, why State) Rank {
			gpu := -1
			if n.GPU != nil {
				gpu = *n.GPU
			}
			return Rank{Comm: hash, Rank: n.Rank, PID: max(0, n.PID), Host: n.Host, GPU: gpu, Why: why}
		}
		for k := range c.Missing {
			m := &c.Missing[k]
			why := Left
			if m.Status.Dead {
				why = Dead
			} else if m.Status.Unresponsive {
				why = Silent
			}
			state = "RUNNING INCOMPLETE"
			r.add(rank(m, why))
		}
		most := map[string]uint64{}
		for k := range c.Ranks {
			for op, n := range c.Ranks[k].Counts {
				most[op] = max(most[op], n)
			}
		}
		ops := slices.Sorted(maps.Keys(most))
		for k := range c.Ranks {
			n := &c.Ranks[k]
			bad := func(code int) bool { return code != 0 && code != inProgress }
			if n.Status.Abort || n.Status.Finalize || n.Status.Destroy || bad(n.Status.Init) || bad(n.Status.Async) {
				state = "RUNNING ERROR"
				r.add(rank(n, Left))
			}
			for _, op := range ops {
				if at := n.Counts[op]; at < most[op] {
					lag := rank(n, Lagging)
					lag.Op, lag.At, lag.Most = op, at, most[op]
					state = "RUNNING MISMATCH"
					r.add(lag)
				}
			}
		}
		states[state] = true
	}
	r.Status = strings.Join(slices.Sorted(maps.Keys(states)), ", ")
	return nil
}

// number returns a number of the answer, 0 if it is none, bounded so that sums do not overflow.
func number(s string) int {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<30 {
		return 0
	}
	return int(n)
}

func big(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

var hostWord = probe.Lazily(`^[0-9a-fA-F.:]+$`)

// Locate marks the ranks that run on this node, and drops reports about others: hosts are the addresses of
// the node, pids the processes of the job as they see themselves. deviceOf names the device with an index in
// NVML, "" if unknown. It returns an error if the report is about another job: it names a process on this
// node that is not the job's.
func (r *Report) Locate(hosts []string, pids []int, deviceOf func(index int) string) error {
	for i := range r.Behind {
		rank := &r.Behind[i]
		if !hostWord().MatchString(rank.Host) || !slices.Contains(hosts, rank.Host) || rank.PID == 0 {
			continue
		}
		if rank.Why != Dead && !slices.Contains(pids, rank.PID) { // a dead one may have ended
			return fmt.Errorf("the answer is about process %d, which is not of this job", rank.PID)
		}
		rank.Here = true
		if rank.GPU >= 0 {
			rank.Device = deviceOf(rank.GPU)
		}
	}
	return nil
}

// Text describes a rank: "rank 5 (process 4711 on 10.0.0.3, GPU 1) has launched 6649 AllReduce operations, others
// 6650".
func (k Rank) Text() string {
	name := "a process"
	if k.Rank >= 0 {
		name = fmt.Sprintf("rank %d", k.Rank)
	}
	var where []string
	switch {
	case k.Device != "":
		where = append(where, k.Device+" of this node")
	case k.GPU >= 0 && k.Here:
		where = append(where, fmt.Sprintf("its GPU %d, this node", k.GPU))
	case k.GPU >= 0 && k.Host != "":
		where = append(where, fmt.Sprintf("GPU %d of node %s", k.GPU, k.Host))
	case k.Host != "":
		where = append(where, "node "+k.Host)
	}
	if k.PID > 0 {
		where = append(where, fmt.Sprintf("process %d", k.PID))
	}
	if len(where) > 0 {
		name += " (" + strings.Join(where, ", ") + ")"
	}
	switch k.Why {
	case Dead:
		return name + " is dead or cannot be reached"
	case Silent:
		return name + " does not answer"
	case Left:
		return name + " has left its communicator or has an error"
	default:
		op := "operations"
		if k.Op != "" {
			op = k.Op + " operations"
		}
		return fmt.Sprintf("%s has launched %d %s, the first %d", name, k.At, op, k.Most)
	}
}

// Last returns the ranks that the others most likely wait for: those with the strongest reason, and of
// ranks that lag those furthest behind. It is empty if they are more than half of all, since the others are not
// behind then.
func (r *Report) Last() (list []Rank) {
	for _, k := range r.Behind {
		if k.Why != r.Behind[0].Why {
			break
		}
		if k.Why == Lagging && len(list) > 0 {
			if was, now := list[0].Most-list[0].At, k.Most-k.At; now < was {
				continue
			} else if now > was {
				list = nil
			}
		}
		list = append(list, k)
	}
	if r.Ranks > 0 && 2*(len(list)+r.More) > r.Ranks {
		return nil
	}
	return list
}
