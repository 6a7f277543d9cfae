package lint

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// site is the knowledge about a site beside the file itself.
type site struct {
	functions map[string]bool   // of its scripts
	scripts   bool              // its scripts were read
	delims    []string          // of its own match languages
	vars      map[string]string // the settings
	limit     time.Duration     // -t; 0: it is not given
	platforms []string          // of its profiles.toml
}

// page is one file of lines, read by its text alone: no node is needed.
type page struct {
	*findings
	*site
	file    string
	sources []conf.Source
	vars    map[string]*string // what the lines assign; nil: several values
	defined map[string]bool    // functions that the lines define
	seen    map[string]seenLine
	wants   map[string]seenLine // by check and target, of checks that hold one value
}

type seenLine struct {
	line int
	text string
}

// phrase is a part of a line: the check or the target, or a word of it.
type phrase struct {
	*conf.Source
	text string
	at   []int // where each byte of text stands in Source.Text
}

// timeout returns TIMEOUT of the settings in seconds, 0 for none.
func (s *site) timeout() int {
	const usual = 30
	text, ok := s.vars["TIMEOUT"]
	if !ok || text == "" {
		return usual
	}
	n, _ := strconv.Atoi(text)
	return max(n, 0)
}

// part returns the phrase from one offset of a line to another.
func part(s *conf.Source, from, to int) phrase {
	p := phrase{Source: s, text: s.Text[from:to]}
	for i := from; i <= to; i++ {
		p.at = append(p.at, i)
	}
	return p
}

// trim removes blanks at both ends.
func (p phrase) trim() phrase {
	from := len(p.text) - len(strings.TrimLeft(p.text, " \t"))
	to := len(strings.TrimRight(p.text, " \t"))
	if from >= to {
		return phrase{Source: p.Source, at: p.at[:1]}
	}
	return phrase{p.Source, p.text[from:to], p.at[from : to+1]}
}

// squeeze makes runs of blanks one, as bash does before it reads a check.
func (p phrase) squeeze() phrase {
	q := phrase{Source: p.Source}
	var b strings.Builder
	for i := range len(p.text) {
		c := p.text[i]
		if c == '\t' || c == '\n' {
			c = ' '
		}
		if c == ' ' && i > 0 && strings.IndexByte(" \t\n", p.text[i-1]) >= 0 {
			continue
		}
		b.WriteByte(c)
		q.at = append(q.at, p.at[i])
	}
	q.text, q.at = b.String(), append(q.at, p.at[len(p.text)])
	return q
}

// say adds a finding at an offset of a phrase.
func (p *page) say(at phrase, offset int, f finding) {
	f.File = p.file
	f.Line, f.Column = at.Place(at.at[min(offset, len(at.at)-1)])
	p.add(f)
}

// sayBehind adds a finding behind an offset of a phrase.
func (p *page) sayBehind(at phrase, offset int, f finding) {
	f.File = p.file
	f.Line, f.Column = at.Place(at.at[offset])
	f.Column++
	p.add(f)
}

// lintLines reads the text of an nhc.conf.
func lintLines(l *findings, s *site, file string, data []byte) *page {
	p := &page{findings: l, site: s, file: file, sources: conf.Sources(file, data), seen: map[string]seenLine{}, wants: map[string]seenLine{}}
	if bytes.Contains(data, []byte("\r")) && !bytes.Contains(data, []byte("\n")) {
		p.add(finding{File: file, Line: 1, Column: 1, Severity: mistake, Text: "the lines end in CR alone", Now: "the file is one line", Fix: "tr '\\r' '\\n' <" + file})
		return p
	}
	p.survey()
	crlf, checks := 0, 0
	for i := range p.sources {
		src := &p.sources[i]
		if src.CR && crlf == 0 {
			crlf = src.Pos.Line
		}
		if p.line(src) {
			checks++
		}
	}
	if crlf > 0 {
		p.add(finding{File: file, Line: crlf, Severity: remark, Text: "lines end in CR LF", Now: "nhc-gpu drops the CR; LBNL NHC fails such lines", Fix: "dos2unix " + file})
	}
	if checks == 0 && p.count(mistake) == 0 {
		p.add(finding{File: file, Severity: warning, Text: "no line has a check", Now: "nothing is checked, and every node counts as healthy", Fix: "on a healthy node: nhc-gpu genconf --dir DIR -H 'gpu*'"})
	}
	return p
}

// survey notes what the lines assign and define.
func (p *page) survey() {
	p.vars, p.defined = map[string]*string{}, map[string]bool{}
	for name, value := range p.site.vars {
		p.vars[name] = &value
	}
	assigned := map[string]bool{}
	for i := range p.sources {
		_, check, ok := strings.Cut(p.sources[i].Text, "||")
		if !ok || strings.HasPrefix(strings.TrimLeft(p.sources[i].Text, " \t"), "#") {
			continue
		}
		tree, err := parseShell(check)
		if err != nil {
			continue
		}
		sets, functions := effects(tree)
		for _, name := range functions {
			p.defined[name] = true
		}
		for name, value := range sets {
			if old := p.vars[name]; assigned[name] && (old == nil || value == nil || *old != *value) {
				value = nil
			}
			p.vars[name], assigned[name] = value, true
		}
	}
}

// line judges one line, and reports whether it is a check line.
func (p *page) line(src *conf.Source) bool {
	whole := part(src, 0, len(src.Text))
	text := strings.Trim(src.Text, " \t")
	if strings.HasPrefix(text, "#") {
		for _, at := range src.Joined {
			if strings.Contains(src.Text[at:], "||") {
				p.sayBehind(whole, at-1, finding{
					Severity: mistake, Word: `\`, Text: "the comment ends in a backslash, which joins the next line to it",
					Now: "the next line is part of the comment", Fix: "remove the backslash at the end of the comment",
				})
			}
		}
		return false
	}
	if text == "" {
		return false
	}
	if p.strange(whole, true) {
		return true
	}
	target, check, ok := strings.Cut(src.Text, "||")
	if !ok {
		p.unseparated(whole, text)
		return true
	}
	left := part(src, 0, len(target)).trim()
	right := part(src, len(target)+2, len(src.Text)).trim()
	switch {
	case left.text == "" && right.text == "":
		p.say(whole, len(target), finding{Severity: mistake, Word: "||", Text: "|| without a target and a check", Now: "the line is skipped", Fix: "remove the line"})
		return false
	case left.text == "":
		p.say(whole, len(target), finding{Severity: mistake, Word: "||", Text: "the target is missing before ||", Now: "the line is skipped", Fix: "* || " + strings.Trim(check, " \t")})
		return false
	case right.text == "":
		p.say(whole, len(target), finding{Severity: mistake, Word: "||", Text: "the check is missing behind ||", Now: "the line is skipped", Fix: "write a check behind ||, or remove the line"})
		return false
	}
	p.target(left)
	if p.eaten(src, len(target)) {
		return true
	}
	p.check(left, right.squeeze())
	return true
}

// target judges the expression before ||, unless a command of the site judges it.
func (p *page) target(left phrase) {
	body := strings.TrimPrefix(left.text, "!")
	for _, d := range p.delims {
		if d != "" && body != "" && body[:1] == d[:1] {
			return
		}
	}
	if t := targetTrap(left.text); t != nil {
		p.say(left, t.at, finding{Severity: t.grade, Word: t.word, Text: "target " + quoted(left.text) + ": " + t.text, Now: t.now, Fix: t.fix})
	}
}

// quoted is a word of a file in a message.
func quoted(text string) string {
	const most = 60
	if utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most]) + "..."
	}
	return `"` + text + `"`
}

// stranger is a character that looks like another.
type stranger struct{ name, write string }

// strangers returns characters that look like others, and come from editors and web pages.
var strangers = sync.OnceValue(func() map[rune]stranger {
	return map[rune]stranger{
		'\u00a0': {"a no-break space", " "}, '\u202f': {"a narrow no-break space", " "}, '\u2007': {"a figure space", " "}, '\u3000': {"an ideographic space", " "},
		'\u2002': {"an en space", " "}, '\u2003': {"an em space", " "}, '\u2009': {"a thin space", " "},
		'\ufeff': {"a byte order mark", ""}, '\u200b': {"a zero-width space", ""}, '\u200c': {"a zero-width character", ""}, '\u200d': {"a zero-width character", ""}, '\u00ad': {"a soft hyphen", ""},
		'“': {"a typographic quote", `"`}, '”': {"a typographic quote", `"`}, '„': {"a typographic quote", `"`}, '«': {"a typographic quote", `"`}, '»': {"a typographic quote", `"`},
		'‘': {"a typographic quote", "'"}, '’': {"a typographic quote", "'"}, '‚': {"a typographic quote", "'"},
		'–': {"a dash", "-"}, '—': {"a dash", "-"}, '−': {"a minus sign of print", "-"}, '‐': {"a hyphen of print", "-"}, '‑': {"a no-break hyphen", "-"},
		'｜': {"a full-width bar", "|"}, '∥': {"a parallel sign", "||"}, '‖': {"a double bar", "||"}, '＊': {"a full-width asterisk", "*"}, '…': {"an ellipsis", "..."}, '\f': {"a form feed", ""}, '\v': {"a vertical tab", ""},
	}
})

// strange finds characters that look like others. Within quotes they are text. lines: the file has
// lines with ||.
func (p *page) strange(line phrase, lines bool) (bad bool) {
	var quote rune
	said := map[string]bool{}
	for i, r := range line.text {
		switch {
		case r == '"' || r == '\'':
			switch quote {
			case 0:
				quote = r
			case r:
				quote = 0
			}
		case r == '#' && quote == 0 && i > 0 && line.text[i-1] == ' ':
			return bad
		}
		c, odd := strangers()[r]
		if !odd || quote != 0 || said[c.name] {
			continue
		}
		said[c.name], bad = true, true
		fix := strings.TrimSpace(strings.ReplaceAll(line.text, string(r), c.write))
		if c.name == "a typographic quote" {
			for q, other := range strangers() {
				if other.name == c.name {
					fix = strings.ReplaceAll(fix, string(q), other.write)
				}
			}
		}
		if lines && fix != "" && !strings.Contains(fix, "||") && !strings.HasPrefix(fix, "#") {
			f, _ := separated(fix)
			fix = f.Fix
		}
		now := "it is part of the word beside it, so that the line does not do what it shows"
		if i < max(strings.Index(line.text, "||"), 0) {
			now = "it is part of the target, which matches no host"
		}
		p.say(line, i, finding{Severity: mistake, Word: string(r), Text: fmt.Sprintf("%s (U+%04X)", c.name, r), Now: now, Fix: fix})
	}
	return bad
}

// unseparated judges a line without ||.
func (p *page) unseparated(line phrase, text string) {
	f, at := separated(text)
	if strings.HasSuffix(p.before(line), " ") && f.Fix == "* || "+text {
		f.Fix = "end the line before it in a backslash, without a blank behind it"
	}
	p.say(line, strings.Index(line.text, text)+at, f)
}

// separated returns what a text without || lacks, and where.
func separated(text string) (f finding, at int) {
	f = finding{Severity: mistake, Word: strings.FieldsFunc(text, isBlank)[0], Text: `no "||" in ` + quoted(text), Now: "the line never runs", Fix: "* || " + text}
	for _, sep := range []string{"| |", "|", "&&", "&", "::", ":", "=>", "=", ";", "I I", "ll"} {
		before, after, ok := strings.Cut(text, " "+sep+" ")
		if ok && !strings.ContainsAny(strings.TrimSpace(before), " \t") {
			f.Word, f.Fix = sep, before+" || "+strings.TrimLeft(after, " ")
			f.Text = quoted(sep) + " instead of ||"
			at = len(before) + 1
			break
		}
	}
	switch words := strings.FieldsFunc(text, isBlank); {
	case f.Word != words[0]:
	case strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]"):
		f.Fix = "# " + text + ", or a file of tables: nhc.toml"
	case strings.HasPrefix(text, "//") || strings.HasPrefix(text, ";"):
		f.Text, f.Fix = "a comment begins with #", "# "+strings.TrimLeft(text, "/; ")
	case len(words) > 1 && (strings.HasPrefix(words[1], "check_") || words[0] == "*" || strings.ContainsAny(words[0], "*{[")):
		f.Fix = words[0] + " || " + strings.Join(words[1:], " ")
	}
	return f, at
}

// before is the raw end of the line before one, if that ended in an escaped blank.
func (p *page) before(line phrase) string {
	for i := range p.sources {
		if &p.sources[i] == line.Source && i > 0 {
			last := &p.sources[i-1]
			if n := len(last.Eaten); n > 0 && strings.Trim(last.Text[last.Eaten[n-1]:], " \t") == "" {
				return last.Text
			}
		}
	}
	return ""
}

// eaten finds backslashes that do not arrive: one is taken away wherever it stands.
func (p *page) eaten(src *conf.Source, separator int) (unfinished bool) {
	for _, at := range src.Eaten {
		if strings.HasPrefix(src.Text[min(at, len(src.Text)):], "040") { // a blank of a mount point: the form of the word reports it
			continue
		}
		if at >= len(src.Text) || strings.IndexByte(" \t", src.Text[at]) >= 0 && strings.Trim(src.Text[at:], " \t") != "" {
			continue
		}
		last := strings.Trim(src.Text[at:], " \t") == ""
		word := `\` + src.Text[at:at+1]
		f := finding{Severity: warning, Word: word, Text: "a backslash alone is dropped", Now: "the character stands without it", Fix: `write \` + word}
		if last {
			f.Severity, f.Text, f.Now = mistake, "a blank stands behind the backslash at the end of the line", "the next line is not joined"
			f.Fix = "remove the blank at the end of the line"
		} else if at > separator && !strings.Contains(`.[](){}+?^$|"'*wdsbn`, src.Text[at:at+1]) {
			f.Severity = remark
		}
		p.say(part(src, 0, len(src.Text)), at, f)
		return last
	}
	return false
}

// repeated finds checks that stand twice. Commands between them may have changed what they see.
func (p *page) repeated(left, right phrase, native bool) {
	key := left.text + " || " + right.text
	switch {
	case !native:
		clear(p.seen)
		return
	case strings.Contains(key, "$"):
		return
	}
	if first, ok := p.seen[key]; ok {
		p.say(left, 0, finding{Severity: warning, Word: left.text, Text: fmt.Sprintf("line %d is the same", first.line), Now: "the check runs twice", Fix: "remove one of the two"})
		return
	}
	p.seen[key] = seenLine{line: left.Pos.Line}
}

// settingNames returns the names that are settings of this program or of LBNL NHC.
func settingNames() []string {
	names := append(slices.Concat(setting.OwnVars, tooLate, unused, otherSettings), slices.Collect(maps.Keys(settingForms()))...)
	slices.Sort(names)
	return slices.Compact(names)
}
