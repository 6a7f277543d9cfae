package slurm

import (
	_ "embed" // states.toml
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// Class is the meaning of a node's state for a health check.
type Class int

// The classes. Unknown is the zero value: nhc-gpu does not write to a node with an unknown
// state.
const (
	Unknown   Class = iota // unknown, or not to be judged: not changed
	InService              // has jobs or can get jobs
	Drained                // drained, draining, failed or in maintenance
	Down                   // down: Slurm does not use it
)

var classNames = [...]string{"unknown", "in-service", "drained", "down"}

func (c Class) String() string {
	if c < Unknown || c > Down {
		return fmt.Sprintf("class %d", int(c))
	}
	return classNames[c]
}

// UnmarshalText reads a class's name, as states.toml spells it.
func (c *Class) UnmarshalText(text []byte) error {
	i := slices.Index(classNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("class %q: want one of %s", text, strings.Join(classNames[:], ", "))
	}
	*c = Class(i)
	return nil
}

// State is a node's state as printed by Slurm, and its meaning.
type State struct {
	Text  string // as printed: "drng@", "IDLE+DRAIN"
	Base  string // the name of its row in states.toml: "drain"; empty without one
	Class Class

	// Full is set if Text is from scontrol, which prints every flag; sinfo prints only the
	// strongest one.
	Full bool
	// DrainFlag is set if DRAIN or FAIL is among the flags of a Full state, even after a stronger
	// one: DOWN+DRAIN+REBOOT_ISSUED is "boot^" to sinfo.
	DrainFlag bool

	// Order is a person's order besides a drain: a reboot, a power-down, FAIL. It is the text
	// of the flag's row in states.toml, or empty.
	Order string
}

// flags are the signs that sinfo appends to a state: PLANNED -, POWERING_UP #,
// REBOOT_REQUESTED @, COMPLETING +, POWER_DOWN !, POWERING_DOWN %,
// POWERED_DOWN ~, MAINTENANCE $, REBOOT_ISSUED ^, NOT_RESPONDING *
// (sinfo(1), NODE STATE CODES).
const flags = "-#@+!%~$^*"

// ParseState parses the words of sinfo (%t and %T: "idle*", "drained$") and of scontrol show node
// ("IDLE+DRAIN+NOT_RESPONDING", before 21.08 "IDLE*+DRAIN"). Words in capitals are from scontrol. A
// base state that is not in states.toml has the class [Unknown]. An unknown flag does not change
// the meaning of the base state: every second release of Slurm adds one.
func ParseState(text string) State {
	t := table()
	s := State{Text: text}
	word := strings.TrimRight(text, flags)
	if row, ok := t.sinfo[word]; ok {
		s.Base, s.Class = row.Name, row.Class
		for _, o := range t.orders {
			if o.Sign != "" && strings.Contains(text[len(word):], o.Sign) {
				s.Order = o.Text
				break
			}
		}
		return s
	}
	words := strings.Split(word, "+")
	for i := range words {
		words[i] = strings.TrimRight(words[i], flags)
	}
	row, ok := t.scontrol[words[0]]
	if !ok {
		return s
	}
	s.Full = true
	s.DrainFlag = slices.Contains(words[1:], "DRAIN") || slices.Contains(words[1:], "FAIL")
	for _, o := range t.orders {
		if slices.Contains(words[1:], o.Word) {
			s.Order = o.Text
			break
		}
	}
	for _, f := range t.flags {
		if slices.Contains(words[1:], f.Word) && !slices.ContainsFunc(f.Unless, func(w string) bool { return slices.Contains(words, w) }) {
			row = t.name[f.State]
			break
		}
	}
	s.Base, s.Class = row.Name, row.Class
	return s
}

// is reports whether a Full state has a flag.
func (s State) is(flag string) bool { return slices.Contains(strings.Split(s.Text, "+"), flag) }

// maintained reports that a node is in a reservation for maintenance. A node that is in service there can
// have been drained before, and be drained again: a sweep with --maintenance tests drained nodes so.
func (s State) maintained() bool {
	return s.Base == "maint" || s.is("MAINTENANCE") || strings.Contains(s.Text, "$")
}

// passing reports that the node will register soon, or does not answer: Slurm can discard
// an update.
func (s State) passing() bool {
	return s.Base == "boot" || s.Base == "unknown" || s.is("REBOOT_ISSUED") || s.is("NOT_RESPONDING") || s.is("POWERING_UP") || strings.ContainsAny(s.Text, "^*#")
}

// Empty reports that no job has anything on the node: it is idle or down, possibly drained, and
// nothing is completing. Of sinfo's words, only those that show this count.
func (s State) Empty() bool {
	words := strings.Split(s.Text, "+")
	base := strings.TrimRight(words[0], flags)
	if s.Full {
		return (base == "IDLE" || base == "DOWN") && !slices.Contains(words, "COMPLETING")
	}
	return slices.Contains([]string{"idle", "down", "drain", "drained"}, base) && !strings.Contains(s.Text, "+")
}

//go:embed states.toml
var statesTOML string

// stateRow is a row of states.toml.
type stateRow struct {
	Name     string
	Class    Class
	Sinfo    []string
	Scontrol []string
	Source   string
}

// flagRow is a flag of states.toml that outranks the base state.
type flagRow struct {
	Word   string
	State  string
	Unless []string
}

// orderRow is a flag of states.toml that is a person's order.
type orderRow struct {
	Word   string
	Sign   string // the sign that sinfo appends
	Text   string
	Source string
}

type stateTable struct {
	name, sinfo, scontrol map[string]stateRow
	flags                 []flagRow
	orders                []orderRow
}

// table parses states.toml at its first use: a run without a call to Slurm does not need it. The
// file is part of the program, so an error in it is an error of the program.
var table = sync.OnceValue(func() stateTable {
	var file struct {
		State []stateRow
		Flag  []flagRow
		Order []orderRow
	}
	if _, err := toml.Decode(statesTOML, &file); err != nil {
		panic(fmt.Sprintf("slurm: read states.toml: %v", err))
	}
	t := stateTable{
		name:     map[string]stateRow{},
		sinfo:    map[string]stateRow{},
		scontrol: map[string]stateRow{},
		flags:    file.Flag,
		orders:   file.Order,
	}
	for _, row := range file.State {
		t.name[row.Name] = row
		for _, w := range row.Sinfo {
			t.sinfo[w] = row
		}
		for _, w := range row.Scontrol {
			t.scontrol[w] = row
		}
	}
	return t
})
