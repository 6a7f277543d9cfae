// Package monitor decides when events between the health checks of slurmd wake a run, and which checks
// it makes. It judges no node. The package is pure.
package monitor

import (
	"bytes"
	_ "embed" // events.toml
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// Kind is a kind of event, a row of events.toml.
type Kind string

// The kinds that sources other than the kernel's log report.
const (
	GPU     Kind = "gpu"
	Link    Kind = "link"
	Device  Kind = "device"
	Service Kind = "service"
	Lost    Kind = "lost"
	Job     Kind = "job"
)

//go:embed events.toml
var text string

type kindRow struct {
	Name    Kind
	Classes []string
	After   int // seconds
	Steady  bool
	Why     string
}

// Line is the form of a line of the kernel's log.
type Line struct {
	Kind        Kind
	Begins, Has string
	Means, Do   string
	Example     string `toml:"line"`
	Source      string
}

var rows = sync.OnceValue(func() (file struct {
	Kind []kindRow
	Line []Line
}) {
	if _, err := toml.Decode(text, &file); err != nil {
		panic(fmt.Sprintf("monitor: read events.toml: %v", err)) // TestEvents
	}
	return file
})

// KindOf returns the kind of a line that the kernel has printed, "" for a line that wakes nothing. A
// user can choose a part of such a line: it may wake checks, and prove nothing.
func KindOf(line []byte) Kind {
	for i := range rows().Line {
		row := &rows().Line[i]
		if len(line) >= len(row.Begins) && string(line[:len(row.Begins)]) == row.Begins && bytes.Contains(line, []byte(row.Has)) {
			return row.Kind
		}
	}
	return ""
}

// Pasted finds the form of a line that a person has pasted, with or without the prefix of dmesg or syslog. Use it to
// explain a line.
func Pasted(text string) (l Line, ok bool) {
	for _, row := range rows().Line {
		if _, rest, found := strings.Cut(" "+text, " "+row.Begins); found && strings.Contains(rest, row.Has) && len(row.Begins) > len(l.Begins) {
			l, ok = row, true // the longest: a row can begin in the middle of another's line
		}
	}
	return l, ok
}

// Lines returns the forms of events.toml.
func Lines() []Line { return rows().Line }

// Wakes returns the classes of the checks that a line of the form wakes, and why these.
func (l *Line) Wakes() (classes []string, why string) {
	row := rowOf(l.Kind)
	return row.Classes, row.Why
}

// Concerns reports whether events of some kinds concern a class of checks. A kind that is not in the
// table concerns all.
func Concerns(kinds []Kind, class string) bool {
	for _, k := range kinds {
		if row := rowOf(k); len(row.Classes) == 0 || slices.Contains(row.Classes, class) {
			return true
		}
	}
	return false
}

// rowOf returns the row of a kind, an empty one if there is none.
func rowOf(k Kind) (row kindRow) {
	if at := slices.IndexFunc(rows().Kind, func(row kindRow) bool { return row.Name == k }); at >= 0 {
		row = rows().Kind[at]
	}
	return row
}

// Events is the variable of the environment with the kinds of the events that have woken a run.
const Events = "NHC_GPU_EVENTS"

// Join returns the kinds as the value of [Events].
func Join(kinds []Kind) string {
	words := make([]string, len(kinds))
	for i, k := range kinds {
		words[i] = string(k)
	}
	return strings.Join(words, ",")
}

// Split is the inverse of [Join].
func Split(value string) (kinds []Kind) {
	for word := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' }) {
		kinds = append(kinds, Kind(word))
	}
	return kinds
}

// The sources of events. A worker of its own listens to each: one that hangs does not keep the others
// from being heard.
const (
	Kernel  = "kernel-log" // /dev/kmsg
	Links   = "links"      // messages about network interfaces
	Ports   = "ports"      // the states of InfiniBand ports
	Devices = "devices"    // messages about removed devices
	Slurmd  = "slurmd"     // its end
	Jobs    = "jobs"       // the jobs on the node
	GPUs    = "gpus"       // NVML's events, and values of the GPUs; only while jobs run
)

// Sources lists them.
var Sources = []string{Kernel, Links, Ports, Devices, Slurmd, Jobs, GPUs}
