package lint

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// change is one check that another configuration adds or removes.
type change struct {
	Added  bool   `json:"added"`
	File   string `json:"file"` // where the check stands
	Line   int    `json:"line"`
	Check  string `json:"check"`
	Target string `json:"target"`
	Hosts  string `json:"hosts,omitempty"` // the hosts of --hosts that it changes
	Count  int    `json:"count,omitempty"`
}

// side is one side of a comparison.
type side struct {
	rules []rule // lines, tables, and the lines of other files
}

// diff compares the checks of two configurations, host by host.
func diff(l *linter, out io.Writer) (exit int, err error) {
	hosts, err := hostsOf(l)
	if err != nil {
		return 0, err
	}
	old, err := sideOf(l, l.o.Files[0])
	if err != nil {
		return 0, err
	}
	now, err := sideOf(l, l.o.Files[1])
	if err != nil {
		return 0, err
	}
	changes := append(lost(old, now, hosts, false), lost(now, old, hosts, true)...)
	if l.o.JSON {
		text, err := json.MarshalIndent(map[string]any{"version": l.version, "old": l.o.Files[0], "new": l.o.Files[1], "changes": append([]change{}, changes...)}, "", "  ")
		if err == nil {
			_, err = out.Write(append(text, '\n'))
		}
		return min(len(changes), 1), err
	}
	var b strings.Builder
	for _, c := range changes {
		sign, where := "-", c.Target
		if c.Added {
			sign = "+"
		}
		if len(hosts) > 0 {
			where = c.Hosts
			if c.Count == len(hosts) {
				where = "all hosts"
			}
		}
		fmt.Fprintf(&b, "%s %s:%d: %s: %s\n", sign, c.File, c.Line, where, c.Check)
	}
	if len(changes) == 0 {
		fmt.Fprintln(&b, "no check changes")
	} else {
		fmt.Fprintf(&b, "\n%s\n", console.Counted(len(changes), "change"))
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return 0, fmt.Errorf("print: %w", err)
	}
	return min(len(changes), 1), nil
}

// sideOf reads a file, or the files of a directory.
func sideOf(l *linter, path string) (s side, err error) {
	paths := []string{path}
	file, err := l.call(wire.OpRead, path).File("read " + path)
	switch {
	case err != nil:
		return s, err
	case file.Missing:
		return s, fmt.Errorf("read %s: no such file", path)
	case file.Mode.IsDir():
		paths = l.configured(path)
	}
	for _, p := range paths {
		data, ok := l.text(p)
		if !ok {
			return s, fmt.Errorf("read %s: %s", p, l.list[len(l.list)-1].Text)
		}
		rules := rulesOf(p, data)
		if rules == nil && kindOf(p, data) != linesKind && kindOf(p, data) != tablesKind {
			for n, line := range strings.Split(string(data), "\n") {
				if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
					r := rule{target: "*", check: filepath.Base(p) + ": " + line}
					r.pos.File, r.pos.Line = p, n+1
					rules = append(rules, r)
				}
			}
		}
		s.rules = append(s.rules, rules...)
	}
	return s, nil
}

// lost returns the checks that one side has and the other lacks, with their hosts. Without hosts a
// check with another target counts as another check.
func lost(a, b side, hosts []string, added bool) (changes []change) {
	m := &match.Matcher{}
	has := func(s side, host, check string) bool {
		return slices.ContainsFunc(s.rules, func(r rule) bool {
			yes, err := m.Match(host, r.target)
			return r.check == check && yes && err == nil
		})
	}
	for _, r := range a.rules {
		c := change{Added: added, File: r.pos.File, Line: r.pos.Line, Check: r.check, Target: r.target}
		if len(hosts) == 0 {
			if !slices.ContainsFunc(b.rules, func(o rule) bool { return o.check == r.check && o.target == r.target }) {
				changes = append(changes, c)
			}
			continue
		}
		var where []string
		for _, h := range hosts {
			if yes, err := m.Match(h, r.target); yes && err == nil && !has(b, h, r.check) {
				where = append(where, h)
			}
		}
		if len(where) > 0 {
			c.Hosts, c.Count = foldHosts(where), len(where)
			changes = append(changes, c)
		}
	}
	return changes
}
