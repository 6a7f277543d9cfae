package lint

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

const unevaluated = "the line is not evaluated"

// native judges the arguments of a check.
func (s *shellLine) native(info checks.Info, name arg, args []arg, alone bool) {
	f := finding{Severity: mistake, Now: unevaluated}
	at := func(a arg) {
		f.Word = a.text
		s.say(s.check, a.at, f)
	}
	if len(args) > 0 && strings.HasPrefix(args[0].text, "=") {
		fix := replaceWord(s.check.text, args[0], strings.TrimPrefix(args[0].text, "="))
		f.Text, f.Now, f.Fix = "= behind "+info.Name, "the check gets the argument "+quoted(args[0].text), strings.TrimSpace(strings.Replace(fix, "  ", " ", 1))
		at(args[0])
		return
	}
	texts := make([]string, len(args))
	dynamic := false
	for i, a := range args {
		texts[i] = a.text
		dynamic = dynamic || !a.known
	}
	c := info.New()
	err := checks.Bind(c, texts)
	if usage, ok := errors.AsType[*checks.UsageError](err); ok {
		s.usage(info, name, args, usage, dynamic)
		return
	}
	if err != nil {
		if !dynamic {
			f.Text, f.Fix = info.Name+": "+err.Error(), usageOf(info)
			at(name)
		}
		return
	}
	if dynamic {
		return
	}
	if u, ok := c.(interface{ Unsupported() string }); ok && u.Unsupported() != "" {
		f.Severity, f.Text, f.Now, f.Fix = warning, u.Unsupported(), "the line is skipped", "remove the line"
		if all := info.New().(interface{ Unsupported() string }); all.Unsupported() != "" { // whatever its arguments
			f.Fix += ", unless a script of the site defines " + info.Name
		}
		at(name)
		return
	}
	if s.values(info, c, name, args) {
		s.once(info, c, name, texts, alone)
	}
}

func usageOf(info checks.Info) string { return strings.TrimSpace(info.Name + " " + info.Usage) }

// usage says which argument the check does not accept.
func (s *shellLine) usage(info checks.Info, name arg, args []arg, e *checks.UsageError, dynamic bool) {
	f := finding{Severity: mistake, Now: unevaluated, Fix: usageOf(info)}
	where := name
	if e.Kind == checks.BadOption && e.Word == "-" { // of a check without long options
		for _, a := range args {
			if long, ok := strings.CutPrefix(a.text, "--"); ok && where == name && long != "" {
				where, e.Word = a, "-"+long
			}
		}
	}
	for _, a := range args {
		if a.known && (a.text == e.Word || e.Kind == checks.BadOption && isOption(a.text, e.Word) || e.Kind == checks.NoArgument && isOption(a.text, e.Word)) {
			where = a
		}
	}
	switch e.Kind {
	case checks.BadOption:
		name := "-" + e.Word
		if where.text == e.Word {
			name = e.Word
		}
		f.Text = info.Name + " has no option " + name
		if e.Want != "" {
			f.Text += ", " + strings.Replace(e.Want, "one of", "only", 1)
		}
		if others := checksWithOption(info.Name, e.Word); others != "" {
			f.Fix += "; -" + e.Word + " is an option of " + others
		}
	case checks.NoArgument:
		f.Text = "option -" + e.Word + " of " + info.Name + " has no value"
	default:
		f.Text = info.Name + ": " + e.Error()
		if m := withUnit().FindStringSubmatch(where.text); m != nil && strings.Contains(e.Want, "number") {
			f.Fix = replaceWord(s.check.text, where, m[1])
		}
	}
	if dynamic && e.Kind != checks.BadOption {
		return
	}
	f.Word = where.text
	s.say(s.check, where.at, f)
}

// withUnit finds a number with a unit that the program prints, but does not read.
var withUnit = checks.Lazily(`^([0-9]+)(?:\.[0-9]+)? ?(?:°?C|W|MHz|GB/s|Gb/s|%)$`)

// isOption reports whether a word has the option.
func isOption(word, option string) bool {
	if long, ok := strings.CutPrefix(option, "-"); ok {
		return word == "--"+long || strings.HasPrefix(word, "--"+long+"=")
	}
	return strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--") && strings.Contains(word[1:], option)
}

// checksWithOption returns up to two checks of the same family that have an option.
func checksWithOption(name, option string) string {
	parts := strings.SplitN(name, "_", 3)
	var have []string
	for _, other := range checks.Names() {
		if len(parts) < 2 || len(have) == 2 || !strings.HasPrefix(other, parts[0]+"_"+parts[1]) {
			continue
		}
		info, _ := checks.Lookup(other)
		words := strings.FieldsFunc(info.Usage, func(r rune) bool { return strings.ContainsRune(" []{}|", r) })
		if slices.Contains(words, "-"+option) {
			have = append(have, other)
		}
	}
	return strings.Join(have, " and ")
}

// values judges the arguments that a check reads only when it runs; good says that all are right.
func (s *shellLine) values(info checks.Info, c checks.Check, name arg, args []arg) (good bool) {
	f := finding{Severity: warning, Now: unevaluated, Fix: usageOf(info)}
	find := func(word string) arg {
		for _, a := range args {
			if a.text == word || strings.HasPrefix(a.text, "-") && strings.HasSuffix(a.text, word) {
				return a
			}
		}
		return name
	}
	report := func(a arg) bool {
		f.Word = a.text
		s.say(s.check, a.at, f)
		return false
	}
	if late := lateOption(reflect.Indirect(reflect.ValueOf(c)), args); late != nil {
		f.Text, f.Now = info.Name+": "+late.text+" follows an argument", "the check takes it for another argument, as LBNL NHC does"
		f.Fix = "options first: " + usageOf(info)
		return report(*late)
	}
	if a, ok := briefAge(args); ok {
		f.Text, f.Now = info.Name+": --max-age "+a.text+" has no unit", "it is "+a.text+" s: the test runs again in each run"
		f.Fix = replaceWord(s.check.text, a, a.text+"h")
		return report(a)
	}
	if m := s.misvalueOf(s.file, info, c, func(word string) bool { return find(word) != name }); m != nil {
		a := name
		if m.Word != "" {
			a = find(m.Word)
		}
		f = m.finding
		switch {
		case m.other != "":
			f.Fix = strings.NewReplacer(m.Word, m.other, m.other, m.Word).Replace(s.check.text[name.at:])
		case m.better != "":
			better := strings.TrimSuffix(a.text, m.Word) + m.better
			if strings.HasPrefix(better, "/") && strings.Contains(better, " ") && !strings.ContainsAny(s.check.text[a.at:a.at+1], `"'`) {
				better = strconv.Quote(better)
			}
			f.Fix = s.check.text
			for _, b := range slices.Backward(args) { // from the end: the places before it stay
				if b.at == a.at {
					f.Fix = replaceWord(f.Fix, a, better)
				} else if other := m.others[b.text]; other != "" && b.known {
					f.Fix = replaceWord(f.Fix, b, other)
				}
			}
		}
		return report(a)
	}
	return true
}

// onlyLimits reports whether all arguments of a check are numbers: none selects what it looks at.
func onlyLimits(c checks.Check) (yes bool) {
	for f := range reflect.Indirect(reflect.ValueOf(c)).Type().Fields() {
		tagged := f.Tag.Get("arg") + f.Tag.Get("opt") + f.Tag.Get("long")
		if f.Anonymous || tagged != "" && (f.Type.Kind() == reflect.String || f.Type.Kind() == reflect.Slice || f.Type.Kind() == reflect.Bool) {
			return false
		}
		yes = yes || tagged != "" // a check without tags reads its arguments itself
	}
	return yes
}

// briefAge returns the number of --max-age that has no unit and is less than an hour.
func briefAge(args []arg) (age arg, ok bool) {
	for i, a := range args {
		word, joined := strings.CutPrefix(a.text, "--max-age=")
		switch {
		case joined:
			age = arg{word, a.at + len(a.text) - len(word), true}
		case a.text == "--max-age" && i+1 < len(args):
			age = args[i+1]
		default:
			continue
		}
		n, err := strconv.Atoi(age.text)
		return age, err == nil && n > 0 && n < 3600
	}
	return arg{}, false
}

// lateOption returns an option that follows an argument, where getopts no longer looks for one.
// Commands and match strings can have such words.
func lateOption(v reflect.Value, args []arg) *arg {
	var letters strings.Builder
	var rest []string
	for field := range v.Fields() {
		if field.Tag.Get("long") != "" {
			return nil // options stand anywhere
		}
		letters.WriteString(field.Tag.Get("opt"))
		if field.Name != "Words" && field.Name != "Match" {
			rest = append(rest, fieldOf(v, field.Name)...)
		}
	}
	for i, a := range args {
		if a.text == "--" {
			return nil
		}
		if len(a.text) == 2 && a.text[0] == '-' && strings.Contains(letters.String(), a.text[1:]) && slices.Contains(rest, a.text) {
			return &args[i]
		}
	}
	return nil
}

// replaceWord replaces an argument by another word.
func replaceWord(text string, a arg, word string) string {
	return text[:a.at] + strings.Replace(text[a.at:], a.text, word, 1)
}

// single are checks that compare with one value of the node: two lines for one host contradict
// each other.
var single = []string{"check_hw_cpuinfo", "check_hw_physmem", "check_hw_mem", "check_hw_swap", "check_gpu_count", "check_gpu_driver", "check_nvme_count", "check_gpu_vbios", "check_gpu_power"}

// matchesNone reports whether a mistake keeps a target from matching any host.
func matchesNone(target string) bool {
	if target == "" {
		return false
	}
	t := targetTrap(target)
	return t != nil && t.now == fitsNone
}

// once finds a line that contradicts an earlier one, or has other limits than an earlier one.
func (s *shellLine) once(info checks.Info, c checks.Check, name arg, texts []string, alone bool) {
	words := strings.Join(texts, " ")
	switch {
	case !alone || len(texts) == 0:
		return
	case matchesNone(s.target.text):
		return
	case !slices.Contains(single, info.Name):
		key := s.target.text + " " + info.Name
		old, twice := s.wants[key]
		if twice && old.text != words && onlyLimits(c) {
			s.say(s.check, name.at, finding{
				Severity: remark, Word: info.Name, Text: fmt.Sprintf("line %d has other limits: %s %s", old.line, info.Name, old.text),
				Now: "the check runs twice, and each line can fail", Fix: "remove one of the two",
			})
		}
		s.wants[key] = seenLine{s.target.Pos.Line, words}
		return
	}
	for key, old := range s.wants {
		target, check, _ := strings.Cut(key, " ")
		if check == info.Name && old.text != words && (target == s.target.text || target == "*" || s.target.text == "*") {
			s.say(s.check, name.at, finding{
				Severity: warning, Word: info.Name, Text: fmt.Sprintf("%s %s contradicts line %d: %s %s", info.Name, words, old.line, info.Name, old.text),
				Now: "on a host that both lines match one of them fails", Fix: "give each line a target of its own",
			})
			return
		}
	}
	s.wants[s.target.text+" "+info.Name] = seenLine{s.target.Pos.Line, words}
}
