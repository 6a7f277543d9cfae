package lbnl

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// fault is a difference between an outcome and the expected one.
type fault struct {
	key  string // of the outcome, or "wall"
	text string
}

// norms remove parts of a text that differ between runs, and between shells.
var norms = func() []rule {
	table := [][2]string{
		{`(?m)^.*?: (?:eval: )?line \d+: `, "{SH}: "},
		{`(?m)^.*?: eval: line \d+: `, "{SH}: "},
		{`\((\d+)s\)\.`, "({N}s)."},
		{`\[\d{9,}\] - `, "[{TS}] - "},
		{`\b20\d\d[01]\d[0-3]\d [0-2]\d:\d\d:\d\d\b`, "{DATE}"},
		{`(?m)^(syslog \S+ [^\[\s]+)\[\d+\]:`, "${1}[{PID}]:"},
		{`forked PID \d+`, "forked PID {PID}"},
		{`\(PID \d+\)`, "(PID {PID})"},
		{`watchdog timer \d+`, "watchdog timer {PID}"},
		{`(?m)-- -?\d+$`, "-- {PID}"},
		{`(NHC process )\d+`, "${1}{PID}"},
		{`(?m)^(\{SH\}: )\s*\d+ (Alarm clock|Terminated|Killed|Hangup|Done|Segmentation fault|Aborted|` +
			`User defined signal 1)\s+`, "${1}{PID} ${2} "},
		{`(PID is|Watchdog PID is|NHC PID is|In|timer) -?\d+`, "${1} {PID}"},
	}
	rules := make([]rule, len(table))
	for i, n := range table {
		rules[i] = rule{regexp.MustCompile(n[0]), n[1]}
	}
	return rules
}()

func applyRules(rules []rule, s string) string {
	for _, r := range rules {
		s = r.re.ReplaceAllString(s, r.to)
	}
	return s
}

// normalise makes an outcome comparable with recorded ones; names replaces values by {DIR} and so
// on.
func (c *recorded) normalise(o outcome, names *strings.Replacer) outcome {
	return o.mapped(func(s string) string {
		s = strings.ReplaceAll(s, "\x00", `\0`)
		s = applyRules(c.Norm, applyRules(norms, s))
		return names.Replace(s)
	})
}

// judge finds the faults of a normalised outcome, at most one for each key.
func (c *recorded) judge(got outcome, wall time.Duration) []fault {
	want, keys := c.Expect, c.Compare
	if c.ExpectOurs != nil {
		want = *c.ExpectOurs
	}
	if c.CompareOurs != nil {
		keys = c.CompareOurs
	}
	if keys == nil {
		keys = []string{"exit", "stdout", "stderr", "calls", "files"}
	}
	var faults []fault
	add := func(key, text string) {
		if text != "" && !slices.ContainsFunc(faults, func(f fault) bool { return f.key == key }) {
			faults = append(faults, fault{key, text})
		}
	}
	ours := func(s string) string { return applyRules(c.NormOurs, s) }
	w, g := want.mapped(ours), got.mapped(ours)
	for _, key := range keys {
		add(key, difference(w.field(key), g.field(key)))
	}
	add("killed", difference(c.Expect.Killed, got.Killed))
	for _, f := range c.assertions(got) {
		add(f.key, f.text)
	}
	// The recorded limits are those of an idle machine.
	if most := 2 * c.WallMaxOurs; most > 0 && wall.Seconds() > most {
		add("wall", fmt.Sprintf("took %v, may take %vs", wall, most))
	}
	return faults
}

// assertions checks match_ours, nomatch_ours, count_ours and beside_ours.
func (c *recorded) assertions(got outcome) []fault {
	var faults []fault
	add := func(key, format string, args ...any) {
		faults = append(faults, fault{key, fmt.Sprintf(format, args...) + ":\n" + got.text(key)})
	}
	for key, patterns := range c.MatchOurs {
		for _, re := range patterns {
			if !re.MatchString(got.text(key)) {
				add(key, "no match for %s", re)
			}
		}
	}
	for key, patterns := range c.NomatchOurs {
		for _, re := range patterns {
			if re.MatchString(got.text(key)) {
				add(key, "unwanted match for %s", re)
			}
		}
	}
	for key, counts := range c.CountOurs {
		for text, want := range counts {
			if n := strings.Count(got.text(key), text); n != want {
				add(key, "%q occurs %d times, want %d", text, n, want)
			}
		}
	}
	for key, line := range c.BesideOurs {
		other := func(l string) bool { return l != "" && l != line }
		if !slices.ContainsFunc(strings.Split(got.text(key), "\n"), other) {
			add(key, "nothing beside %q", line)
		}
	}
	return faults
}

// difference shows how two values differ, empty if they are equal. Long lines stay complete.
func difference(want, got any) string {
	w, isLines := want.([]string)
	if !isLines {
		return cmp.Diff(want, got, cmpopts.EquateEmpty())
	}
	g, _ := got.([]string)
	same := 0
	for same < min(len(w), len(g)) && w[same] == g[same] {
		same++
	}
	w, g = w[same:], g[same:]
	for len(w) > 0 && len(g) > 0 && w[len(w)-1] == g[len(g)-1] {
		w, g = w[:len(w)-1], g[:len(g)-1]
	}
	var s strings.Builder
	for _, line := range w {
		fmt.Fprintf(&s, "-%d: %q\n", same+1, line)
	}
	for _, line := range g {
		fmt.Fprintf(&s, "+%d: %q\n", same+1, line)
	}
	return s.String()
}

// mapped returns the outcome with f applied to all its texts.
func (o outcome) mapped(f func(string) string) outcome {
	o.Stdout, o.Stderr = f(o.Stdout), f(o.Stderr)
	o.Calls = slices.Clone(o.Calls)
	for i, s := range o.Calls {
		o.Calls[i] = f(s)
	}
	o.Files = maps.Clone(o.Files)
	for path, s := range o.Files {
		o.Files[path] = f(s)
	}
	return o
}

// field returns one part of an outcome by its key in a case, texts as lines for a readable
// difference.
func (o outcome) field(key string) any {
	switch key {
	case "exit":
		return o.Exit
	case "stdout":
		return strings.Split(o.Stdout, "\n")
	case "stderr":
		return strings.Split(o.Stderr, "\n")
	case "calls":
		return o.Calls
	case "files":
		return o.Files
	}
	panic("no such key: " + key)
}

// text returns one part of an outcome as the text for assertions.
func (o outcome) text(key string) string {
	switch key {
	case "stdout":
		return o.Stdout
	case "stderr":
		return o.Stderr
	case "out":
		return o.Stdout + "\n" + o.Stderr
	case "calls":
		return strings.Join(o.Calls, "\n")
	}
	panic("no such key: " + key)
}
