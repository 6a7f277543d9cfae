package lint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// trap is a mistake in a part of a line.
type trap struct {
	grade          grade
	at             int // offset in that part
	word           string
	text, now, fix string
}

const fitsNone = "it matches no host"

// Forms that a target has where its author thought of another language.
var (
	// A range of numbers in a bracket: [01-16], [1,3]. [1-8] and [135] are sets of characters.
	numberRange  = checks.Lazily(`\[[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*\]`)
	wideNumber   = checks.Lazily(`[0-9]{2,}-|-[0-9]{2,}|,`)
	brackets     = checks.Lazily(`\[[^]]+\]`)
	braceRange   = checks.Lazily(`\{[0-9]+\.\.[0-9]+\}`)
	bareRange    = checks.Lazily(`^([A-Za-z_-]*[A-Za-z_])([0-9]+)-([A-Za-z_-]*[A-Za-z_])?([0-9]+)$`)
	starOfLetter = checks.Lazily(`[A-Za-z0-9_-]\*`)
	extended     = checks.Lazily(`[@!?*+]\(`)
	noHostName   = checks.Lazily("[^A-Za-z0-9._*?!@+()|\\[\\]^\\\\-]")
)

// targetTrap finds the mistake in a target, nil if there is none. Most expressions that match nothing are valid
// in their language, so neither LBNL NHC nor a run complains.
func targetTrap(target string) *trap {
	body := strings.TrimPrefix(target, "!")
	at := len(target) - len(body)
	found := func(t *trap) *trap {
		if t != nil {
			t.at += at
			if t.word == "" {
				t.word = target
			}
			if at > 0 && t.now == fitsNone {
				t.now = "it matches no host, so that the negated target matches every host"
			}
		}
		return t
	}
	first := strings.FieldsFunc(target, isBlank)[0]
	switch _, isCheck := checks.Lookup(first); {
	case isCheck || strings.HasPrefix(first, "check_"):
		return &trap{grade: mistake, word: first, text: "the target is missing: the line begins with " + first, now: fitsNone, fix: "* || " + target}
	case strings.HasPrefix(first, "//") || strings.HasPrefix(first, ";"):
		return &trap{grade: mistake, word: first, text: "a comment begins with #", now: fitsNone, fix: "# " + strings.TrimLeft(target, "/; ")}
	case target == "!":
		return &trap{grade: mistake, text: `the target is "!" alone`, now: "it matches every host", fix: "*"}
	case strings.HasPrefix(body, "!"):
		return &trap{grade: mistake, word: "!!", text: "a second ! is part of the pattern", now: "it matches every host", fix: strings.TrimLeft(body, "!")}
	case at > 0 && body[0] == ' ' || at > 0 && body[0] == '\t':
		return &trap{grade: mistake, at: 1, word: "! ", text: "the blank behind ! is part of the pattern", now: "it matches every host", fix: "!" + strings.TrimSpace(body)}
	case body == "*" && at > 0:
		return &trap{grade: warning, word: target, text: "!* matches no host", now: "the line never runs", fix: "begin the line with # instead"}
	case body[0] == '/' && body[len(body)-1] == '/' && len(body) > 1:
		return found(regexTrap(body))
	case body[0] == '{' && body[len(body)-1] == '}' && len(body) > 1:
		return found(rangeTrap(body))
	}
	return found(globTrap(body))
}

// TargetWarning returns the mistake in a target and the correct one, "" for none.
func TargetWarning(target string) string {
	t := targetTrap(target)
	if t == nil || t.grade == remark {
		return ""
	}
	f := finding{Text: target + ": " + t.text, Now: t.now}
	return f.message() + "; want '" + t.fix + "'"
}

// regexTrap judges /regular expressions/.
func regexTrap(body string) *trap {
	inner := body[1 : len(body)-1]
	switch err := match.Valid(body); {
	case inner == "":
		return &trap{grade: warning, text: "an empty regular expression", now: "it matches every host", fix: "*"}
	case strings.Contains(inner, "(?"):
		return &trap{grade: mistake, at: 1 + strings.Index(inner, "(?"), word: "(?", text: "only Perl's regular expressions have (?", now: fitsNone, fix: "write it without (?"}
	case strings.Contains(inner, `\d`):
		return &trap{grade: mistake, at: 1 + strings.Index(inner, `\d`), word: `\d`, text: `only Perl's regular expressions have \d`, now: `it matches the letter "d"`, fix: strings.ReplaceAll(body, `\d`, "[0-9]")}
	case strings.HasPrefix(strings.TrimPrefix(inner, "^"), "*"):
		return &trap{grade: mistake, at: 1 + strings.Index(inner, "*"), word: "*", text: "* repeats the character before it, and there is none", now: fitsNone, fix: strings.Replace(body, "*", ".*", 1)}
	case err != nil && downward(inner) != "":
		r := downward(inner)
		return &trap{grade: mistake, at: 1 + strings.Index(inner, r), word: r, text: "a range of characters in " + r + " begins above its end", now: fitsNone, fix: upward(body, r)}
	case err != nil:
		return &trap{grade: mistake, text: "not a regular expression", now: fitsNone, fix: "balance its brackets, and write a literal one as \\\\["}
	}
	if r := numberRange().FindString(inner); r != "" && wideNumber().MatchString(r) {
		prefix, suffix, _ := strings.Cut(strings.Trim(inner, "^$"), r)
		fix := "{" + prefix + r + suffix + "}"
		if noHostName().MatchString(prefix+suffix) || strings.ContainsAny(prefix+suffix, `.*+?()|\`) {
			fix = "write the numbers as alternatives, (0[1-9]|1[0-6]), or a range, {gpu[01-16]}"
		}
		return &trap{grade: mistake, at: 1 + strings.Index(inner, r), word: r, text: r + " is a set of characters, not a range of numbers", now: "it matches " + oneOf(r), fix: fix}
	}
	if m := starOfLetter().FindStringIndex(inner); m != nil {
		return &trap{
			grade: warning, at: 1 + m[0], word: inner[m[0]:m[1]], text: fmt.Sprintf("in a regular expression %s repeats %q, also 0 times", inner[m[0]:m[1]], inner[m[0]:m[0]+1]),
			now: "it matches more hosts than a pattern with * would", fix: body[:1+m[0]+1] + ".*" + body[1+m[1]:],
		}
	}
	return nil
}

// downward returns the first bracket that has a range from a higher to a lower character, "" for none.
func downward(expr string) string {
	for _, r := range brackets().FindAllString(expr, -1) {
		for i := 1; i+2 < len(r)-1; i++ {
			if r[i+1] == '-' && r[i] > r[i+2] {
				return r
			}
		}
	}
	return ""
}

// upward returns a regular expression with a bracket as it was meant: the numbers of [01-16], or [a-z].
func upward(body, bracket string) string {
	low, high, ok := strings.Cut(strings.Trim(bracket, "[]"), "-")
	from, err1 := strconv.Atoi(low)
	to, err2 := strconv.Atoi(high)
	switch {
	case ok && err1 == nil && err2 == nil && len(low) > 1:
		from, to = min(from, to), max(from, to)
		if to-from >= 20 {
			return "write the numbers as alternatives, (0[1-9]|1[0-6]), or a range, {gpu[01-16]}"
		}
		var numbers []string
		for n := from; n <= to; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(low), n))
		}
		return strings.Replace(body, bracket, "("+strings.Join(numbers, "|")+")", 1)
	case ok && len(low) == 1 && len(high) == 1:
		return strings.Replace(body, bracket, "["+high+"-"+low+"]", 1)
	}
	return "begin each range of " + bracket + " with its lower character"
}

// rangeTrap judges {ranges}. LBNL NHC stops at the first member that it cannot read.
func rangeTrap(body string) *trap {
	inner := body[1 : len(body)-1]
	for _, m := range members(inner) {
		at, word := 1+m.at, m.text
		bad := func(text, fix string) *trap {
			return &trap{grade: mistake, at: at, word: word, text: text, now: "the range ends there, and matches no host behind it", fix: fix}
		}
		switch {
		case strings.TrimSpace(word) == "":
			at, word = max(at-1, 1), ","
			return bad("an empty member in a range", "{"+strings.Trim(strings.ReplaceAll(inner, ",,", ","), ", ")+"}")
		case strings.ContainsAny(word, " \t"):
			return bad("a blank in the range", "{"+strings.NewReplacer(" ", "", "\t", "").Replace(inner)+"}")
		case strings.HasPrefix(word, "!"):
			return bad("! belongs before the brace", "!{"+strings.TrimPrefix(word, "!")+"}")
		case strings.Contains(word, ".."):
			return bad("a range has no ..", "{"+dotsToRange(inner)+"}")
		case strings.ContainsAny(word, "*?"):
			return bad("a range has no wildcards", word)
		case match.Valid("{"+word+"}") != nil:
			return bad(fmt.Sprintf("%q is neither a host nor a range", word), "{gpu[01-16],login1}: numbers in brackets, members separated by commas, no further braces")
		}
		if m := bareRange().FindStringSubmatch(word); isBareRange(m) {
			return &trap{
				grade: warning, at: at, word: word, text: fmt.Sprintf("%q is the name of one host, not a range", word), now: "it matches a host of that name only",
				fix: "{" + strings.Replace(inner, word, fmt.Sprintf("%s[%s-%s]", m[1], m[2], m[4]), 1) + "}",
			}
		}
		for span := range strings.SplitSeq(strings.Trim(numberRange().FindString(word), "[]"), ",") {
			if from, to, ok := strings.Cut(span, "-"); ok && number(from) > number(to) {
				return &trap{grade: remark, at: at, word: span, text: "the ends of " + span + " are the wrong way round", now: "it is read as " + to + "-" + from, fix: strings.Replace(body, span, to+"-"+from, 1)}
			}
		}
	}
	return nil
}

// isBareRange reports whether a match of bareRange is surely a range: gpu01-gpu16, gpu01-16.
func isBareRange(m []string) bool {
	return m != nil && (m[3] == m[1] || m[3] == "" && len(m[2]) == len(m[4]) && len(m[2]) > 1 && m[2] < m[4])
}

func isBlank(r rune) bool { return r == ' ' || r == '\t' }

func number(word string) int {
	n, _ := strconv.Atoi(word)
	return n
}

// dotsToRange writes gpu01..gpu16 and gpu[01..16] as gpu[01-16].
func dotsToRange(inner string) string {
	from, to, _ := strings.Cut(inner, "..")
	if strings.Contains(from, "[") {
		return from + "-" + to
	}
	digits := strings.TrimLeft(from, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-")
	prefix := strings.TrimSuffix(from, digits)
	return prefix + "[" + digits + "-" + strings.TrimPrefix(to, prefix) + "]"
}

// member is one part of a list, and where it stands.
type member struct {
	at   int
	text string
}

// members splits a list at the commas outside of brackets.
func members(list string) (all []member) {
	depth, from := 0, 0
	for i := range len(list) + 1 {
		switch {
		case i == len(list) || list[i] == ',' && depth == 0:
			all = append(all, member{from, list[from:i]})
			from = i + 1
		case list[i] == '[':
			depth++
		case list[i] == ']':
			depth--
		}
	}
	return all
}

// globTrap judges the patterns of bash.
func globTrap(body string) *trap {
	bad := func(at int, word, text, fix string) *trap {
		return &trap{grade: mistake, at: at, word: word, text: text, now: fitsNone, fix: fix}
	}
	switch strings.ToLower(body) {
	case "all", "any", "default", "everywhere", "hosts", ".*", "%", "-", "--", ".", "+":
		return &trap{grade: mistake, text: fmt.Sprintf("%q is the name of one host", body), now: "it matches no host but one of that name", fix: "* for every host"}
	}
	plain := !extended().MatchString(body)
	switch i := strings.IndexAny(body, " \t"); {
	case body[0] == '{':
		return bad(0, "{", "the brace is not closed", body+"}")
	case body[0] == '/' && strings.Count(body, "/") == 1:
		return bad(0, "/", "the regular expression has no / at its end", body+"/")
	case body[0] == '/' && strings.LastIndex(body, "/") > 0:
		end := strings.LastIndex(body, "/")
		return bad(end+1, body[end+1:], "characters behind the regular expression make it a pattern", body[:end+1])
	case body[len(body)-1] == '/':
		return bad(len(body)-1, "/", "the regular expression has no / at its beginning", "/"+body)
	case i >= 0 && strings.ContainsAny(body[:i], "0123456789*[") && !strings.ContainsAny(body, "|&"):
		return bad(i, " ", "a list of hosts needs braces and commas", "{"+strings.Join(strings.FieldsFunc(body, func(r rune) bool { return strings.ContainsRune(" \t,", r) }), ",")+"}")
	case i >= 0:
		return bad(i, " ", "a blank in the target: a || is missing before this one", strings.TrimSpace(body[:i])+" || "+strings.TrimLeft(body[i:], " \t|&"))
	case braceRange().MatchString(body):
		r := braceRange().FindString(body)
		return bad(strings.Index(body, r), r, "bash does not expand braces here", "{"+strings.Replace(body, r, "["+strings.Replace(strings.Trim(r, "{}"), "..", "-", 1)+"]", 1)+"}")
	case strings.ContainsAny(body, "{}"):
		at := strings.IndexAny(body, "{}")
		return bad(at, body[at:at+1], "a brace within a pattern is a literal brace", "a range has braces around it, {gpu[01-16],login1}, or write a pattern: gpu@(01|02)")
	case plain && strings.ContainsAny(body, "()|"):
		at := strings.IndexAny(body, "()|")
		fix := "/^(" + strings.ReplaceAll(body, "*", ".*") + ")$/"
		if strings.Contains(body, "(") {
			fix = strings.Replace(body, "(", "@(", 1)
		}
		return bad(at, body[at:at+1], fmt.Sprintf("%q is a literal character in a pattern", body[at:at+1]), fix)
	case strings.HasPrefix(body, "^") || strings.HasSuffix(body, "$"):
		return bad(0, body, "^ and $ are literal characters in a pattern", "/"+body+"/")
	case strings.Contains(body, ".*") || strings.Contains(body, ".+"):
		at := strings.Index(body, ".")
		return &trap{grade: warning, at: at, word: body[at : at+2], text: "the dot is a literal dot in a pattern", now: "it matches only names with a dot there", fix: "/^" + body + "$/, or the pattern " + strings.ReplaceAll(strings.ReplaceAll(body, ".*", "*"), ".+", "?*")}
	}
	if r := numberRange().FindString(body); r != "" && wideNumber().MatchString(r) {
		fix := "{" + body + "}"
		if strings.ContainsAny(body, "*?") {
			fix = "{gpu[01-16]}: a range, without wildcards"
		}
		return &trap{grade: mistake, at: strings.Index(body, r), word: r, text: r + " is a set of characters, not a range of numbers", now: "it matches " + oneOf(r), fix: fix}
	}
	if strings.Contains(body, ",") && plain {
		return bad(strings.Index(body, ","), ",", "a list of hosts needs braces", "{"+strings.TrimSuffix(body, ",")+"}")
	}
	if strings.Count(body, "[") != strings.Count(body, "]") {
		at := strings.IndexAny(body, "[]")
		return bad(at, body[at:at+1], "a bracket without its partner is a literal character", strings.NewReplacer("[", "", "]", "").Replace(body)+", or {gpu[01-16]}")
	}
	if m := noHostName().FindStringIndex(body); m != nil {
		return bad(m[0], body[m[0]:m[1]], fmt.Sprintf("no host has %q in its name", body[m[0]:m[1]]), "remove it")
	}
	if at := strings.Index(body, "!"); plain && at >= 0 {
		return bad(at, "!", "! negates only at the beginning of the target", "!"+strings.ReplaceAll(body, "!", ""))
	}
	return nil
}

// oneOf lists the digits that a bracket matches.
func oneOf(set string) string {
	var fit []string
	for _, c := range "0123456789,-" {
		if match.Glob(string(c), set) {
			fit = append(fit, string(c))
		}
	}
	fit = slices.Compact(fit)
	if len(fit) > 1 {
		return "one character there: " + strings.Join(fit[:len(fit)-1], ", ") + " or " + fit[len(fit)-1]
	}
	return "one character there: " + strings.Join(fit, "")
}
