package lint

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// maxHosts bounds a list of hosts: a slip such as gpu[1-99999999] must not fill the memory.
const maxHosts = 100000

// hostsOf returns the hosts of --host or --hosts.
func hostsOf(l *linter) ([]string, error) {
	if l.o.Host != "" {
		if strings.ContainsAny(l.o.Host, "[],{} ") {
			return nil, fmt.Errorf("--host %s: want the name of one host; --hosts takes a list", l.o.Host)
		}
		return []string{l.o.Host}, nil
	}
	if l.o.Hosts == "" {
		return nil, nil
	}
	list := l.o.Hosts
	if file, err := l.call(wire.OpRead, list).File("read " + list); strings.Contains(list, "/") && (err != nil || file.Missing) {
		return nil, fmt.Errorf("--hosts %s: no such file", list)
	}
	if file, err := l.call(wire.OpRead, list).File(""); err == nil && !file.Missing && file.Mode.IsRegular() {
		var lines []string
		for line := range strings.Lines(string(file.Data)) {
			line, _, _ = strings.Cut(line, "#")
			lines = append(lines, strings.Fields(line)...)
		}
		list = strings.Join(lines, ",")
	}
	hosts, err := expandHosts(list)
	if err == nil && len(hosts) == 0 {
		err = errors.New("no host")
	}
	if err != nil {
		return nil, fmt.Errorf("--hosts %s: %w", l.o.Hosts, err)
	}
	return hosts, nil
}

// expandHosts writes out a list as Slurm has it: gpu[01-16,20],login1, r[1-2]n[01-04].
func expandHosts(list string) (hosts []string, err error) {
	for _, m := range members(list) {
		if m.text == "" {
			continue
		}
		if r := bareRange().FindStringSubmatch(m.text); isBareRange(r) {
			return nil, fmt.Errorf("%q is one host, want %s[%s-%s]", m.text, r[1], r[2], r[4])
		}
		some := []string{""}
		for rest := m.text; rest != ""; {
			plain, spans, tail, ok := cutBrackets(rest)
			if !ok {
				return nil, fmt.Errorf("%q: want hosts such as gpu[01-16],login1", m.text)
			}
			values := []string{""}
			if spans != "" {
				if values, err = numbers(spans); err != nil {
					return nil, fmt.Errorf("%q: %w", m.text, err)
				}
			}
			var more []string
			for _, s := range some {
				for _, v := range values {
					more = append(more, s+plain+v)
				}
				if len(hosts)+len(more) > maxHosts {
					return nil, fmt.Errorf("more than %d hosts", maxHosts)
				}
			}
			some, rest = more, tail
		}
		hosts = append(hosts, some...)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// cutBrackets splits gpu[01-16]x into gpu, 01-16 and x.
func cutBrackets(s string) (plain, spans, rest string, ok bool) {
	plain, rest, bracket := strings.Cut(s, "[")
	if !bracket {
		return s, "", "", !strings.ContainsAny(s, "]*?{} \t")
	}
	spans, rest, ok = strings.Cut(rest, "]")
	return plain, spans, rest, ok && spans != "" && !strings.ContainsAny(plain, "]*?{} \t")
}

// numbers writes out 01-03,7.
func numbers(spans string) (all []string, err error) {
	for span := range strings.SplitSeq(spans, ",") {
		from, to, isSpan := strings.Cut(span, "-")
		if !isSpan {
			to = from
		}
		low, err1 := strconv.Atoi(from)
		high, err2 := strconv.Atoi(to)
		if err := errors.Join(err1, err2); err != nil || high < low || high-low > maxHosts {
			return nil, fmt.Errorf("%q is not a range of numbers", span)
		}
		for n := low; n <= high; n++ {
			all = append(all, fmt.Sprintf("%0*d", len(from), n))
		}
	}
	return all, nil
}

// foldHosts writes hosts as a list: gpu[01-16],login1.
func foldHosts(hosts []string) string {
	type key struct {
		prefix string
		width  int
	}
	type group struct {
		key
		numbers []int
	}
	var groups []*group
	index := map[key]int{} // of groups with numbers
	for _, h := range hosts {
		prefix := strings.TrimRight(h, "0123456789")
		digits := h[len(prefix):]
		n, err := strconv.Atoi(digits)
		if digits == "" || err != nil {
			groups = append(groups, &group{key: key{prefix: h}})
			continue
		}
		width := len(digits)
		if digits[0] != '0' { // 9 and 10 are of one range, 09 and 100 are not
			width = 0
		}
		at, ok := index[key{prefix, width}]
		if wide, padded := index[key{prefix, len(digits)}]; padded && (!ok || wide > at) {
			at, ok = wide, true
		}
		if !ok {
			at = len(groups)
			index[key{prefix, width}] = at
			groups = append(groups, &group{key: key{prefix, width}})
		}
		groups[at].numbers = append(groups[at].numbers, n)
	}
	var list []string
	for _, g := range groups {
		if g.numbers == nil {
			list = append(list, g.prefix)
			continue
		}
		slices.Sort(g.numbers)
		var spans []string
		for i := 0; i < len(g.numbers); {
			j := i
			for j+1 < len(g.numbers) && g.numbers[j+1] == g.numbers[j]+1 {
				j++
			}
			span := fmt.Sprintf("%0*d", g.width, g.numbers[i])
			if j > i {
				span += fmt.Sprintf("-%0*d", g.width, g.numbers[j])
			}
			spans = append(spans, span)
			i = j + 1
		}
		if text := strings.Join(spans, ","); len(g.numbers) == 1 {
			list = append(list, g.prefix+text)
		} else {
			list = append(list, g.prefix+"["+text+"]")
		}
	}
	return strings.Join(list, ",")
}

// rule is a check line or a table, with its target.
type rule struct {
	pos           conf.Pos
	target, check string
}

// fitting is a rule with the hosts that it matches.
type fitting struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Target string `json:"target"`
	Check  string `json:"check"`
	Hosts  string `json:"hosts"`
	Count  int    `json:"count"`
}

// fits is which lines match which hosts.
type fits struct {
	total   int
	lines   []fitting
	without []string // hosts that no line matches
}

// rulesRead returns the lines and tables of all files that were read.
func rulesRead(l *linter) (rules []rule) {
	for _, path := range l.read {
		rules = append(rules, rulesOf(path, l.texts[path])...)
	}
	return rules
}

// rulesOf returns the lines or tables of one file.
func rulesOf(path string, data []byte) (rules []rule) {
	switch kindOf(path, data) {
	case linesKind:
		lines, _, _ := conf.Parse(path, data)
		for _, line := range lines {
			rules = append(rules, rule{line.Pos, line.Target, strings.Join(strings.Fields(line.Check), " ")})
		}
	case tablesKind:
		if c, _ := conf.ParseTOML(path, data); c != nil {
			for _, e := range c.Checks {
				rules = append(rules, rule{e.Pos, e.Hosts, strings.TrimSpace(e.Name + " " + tableText(e.Params))})
			}
		}
	}
	return rules
}

// tableText writes the parameters of a table in one line.
func tableText(params map[string]any) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(params)) {
		words = append(words, fmt.Sprintf("%s=%v", key, params[key]))
	}
	return strings.Join(words, " ")
}

// fit judges every target on every host, and adds the lines that match none and the hosts that no
// line matches to the findings.
func fit(l *linter, hosts []string) *fits {
	all := &fits{total: len(hosts)}
	if len(hosts) == 0 {
		return all
	}
	m := &match.Matcher{}
	reached := map[string]bool{}
	known := map[string][]string{} // by target
	wants := map[string]rule{}     // by host and check
	for _, r := range rulesRead(l) {
		on, ok := known[r.target]
		if !ok {
			for _, h := range hosts {
				if yes, err := m.Match(h, r.target); yes && err == nil {
					on = append(on, h)
				}
			}
			known[r.target] = on
		}
		for _, h := range on {
			reached[h] = true
		}
		contradicts(l, r, on, wants)
		all.lines = append(all.lines, fitting{r.pos.File, r.pos.Line, r.target, r.check, foldHosts(on), len(on)})
		if len(on) == 0 && len(hosts) > 1 && !l.at(r.pos.File, r.pos.Line, mistake) {
			l.add(finding{
				File: r.pos.File, Line: r.pos.Line, Column: 1, Severity: warning, Word: r.target, Text: fmt.Sprintf("target %s matches none of the %d hosts", quoted(r.target), len(hosts)),
				Now: "the line never runs on them", Fix: nearTarget(r.target, hosts),
			})
		}
	}
	for _, h := range hosts {
		if !reached[h] {
			all.without = append(all.without, h)
		}
	}
	if len(all.without) > 0 {
		l.add(finding{Severity: warning, Word: foldHosts(all.without), Text: fmt.Sprintf("no line matches %d of %d hosts: %s", len(all.without), len(hosts), foldHosts(all.without)), Now: "nothing is checked there, and they count as healthy", Fix: "a target that matches them, or *"})
	}
	return all
}

// contradicts finds two lines that compare one value of the same host with different ones.
func contradicts(l *linter, r rule, hosts []string, wants map[string]rule) {
	name, args, _ := strings.Cut(r.check, " ")
	if !slices.Contains(single, name) || args == "" || strings.ContainsAny(args, "$|;&=") {
		return
	}
	var both []string
	var other rule
	for _, h := range hosts {
		if old, ok := wants[h+" "+name]; !ok {
			wants[h+" "+name] = r
		} else if old.check != r.check {
			both, other = append(both, h), old
		}
	}
	if len(both) > 0 && !l.at(r.pos.File, r.pos.Line, warning) {
		l.add(finding{
			File: r.pos.File, Line: r.pos.Line, Column: 1, Severity: warning, Word: r.target, Text: fmt.Sprintf("%s contradicts %s: %s", r.check, other.pos, other.check),
			Now: "one of the two fails on " + foldHosts(both), Fix: "targets that have no host in common",
		})
	}
}

// numberOf finds the number of a host, and of a range.
var numberOf = checks.Lazily(`[0-9]+`)

// otherZeros returns a range that matches one of the hosts if leading zeros do not count, "" if there
// is none: {gpu[001-016]} for {gpu[1-16]}.
func otherZeros(target string, hosts []string) string {
	if !strings.HasPrefix(target, "{") {
		return ""
	}
	var tries []string
	for _, format := range []string{"%d", "%02d", "%03d", "%04d", "%05d"} {
		tries = append(tries, numberOf().ReplaceAllStringFunc(target, func(n string) string { return fmt.Sprintf(format, number(n)) }))
	}
	m := &match.Matcher{}
	for _, h := range hosts {
		for _, try := range tries {
			if yes, err := m.Match(h, try); yes && err == nil && numberOf().MatchString(h) {
				return try
			}
		}
	}
	return ""
}

// nearTarget guesses what a target that matches no host was meant to be.
func nearTarget(target string, hosts []string) string {
	if try := otherZeros(target, hosts); try != "" {
		return try + ": the numbers of these hosts have other leading zeros"
	}
	m := &match.Matcher{}
	for _, try := range []string{strings.ToLower(target), target + "*", strings.TrimSuffix(target, "}") + "*}"} {
		for _, h := range hosts {
			if yes, err := m.Match(h, try); yes && err == nil && try != target {
				return try
			}
		}
		short, _, dotted := strings.Cut(hosts[0], ".")
		if yes, err := m.Match(short, target); dotted && yes && err == nil {
			return target + ".*: the hosts have a domain"
		}
	}
	return "a target that matches one of them, or remove the line"
}

// print writes which lines match which hosts.
func (f *fits) print(out io.Writer) {
	if f.total == 0 {
		return
	}
	if f.total == 1 {
		for _, r := range f.lines {
			if r.Count > 0 {
				fmt.Fprintf(out, "%s:%d: runs: %s\n", r.File, r.Line, r.Check)
			}
		}
		fmt.Fprintln(out)
		return
	}
	for _, r := range f.lines {
		hosts := r.Hosts
		switch r.Count {
		case 0:
			hosts = "no host"
		case f.total:
			hosts = "all hosts"
		}
		fmt.Fprintf(out, "%s:%d: %s: %s\n", r.File, r.Line, hosts, r.Check)
	}
	fmt.Fprintln(out)
}
