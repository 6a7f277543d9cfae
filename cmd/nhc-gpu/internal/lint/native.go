package lint

import (
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
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
		f.Text, f.Now, f.Fix = "= behind "+info.Name, "the check gets the argument "+quoted(args[0].text), info.Name+" "+strings.TrimSpace(strings.TrimPrefix(args[0].text, "="))
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
	}
	if dynamic && e.Kind != checks.BadOption {
		return
	}
	f.Word = where.text
	s.say(s.check, where.at, f)
}

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

// form is what an argument may be.
type form struct {
	want string
	ok   func(string) bool
	fix  func(string) string // of a word that is not; may be nil
	now  string              // what becomes of such a word; "": the line is not evaluated
	soft bool                // such a word can be meant
	odd  func(string) (text, now, fix string)
}

// The forms of arguments that a check reads only when it runs.
var (
	aSize  = form{want: "a size: 64G, 1.5TB, 1048576 (kB)", ok: isSize, fix: fixSize, odd: fewKB}
	aFudge = form{want: "a size or a percentage: 3%, 1G", ok: func(w string) bool { return isSize(w) || isPercent(w) }, fix: fixSize}
	aPart  = form{want: "a size, or a percentage from 1% to 100%: 90%, 1G", ok: func(w string) bool { return isSize(w) || isPart(w) }, fix: fixSize, now: "the check never fails, or always", odd: func(w string) (text, now, fix string) {
		if text, now, fix = barePart(w); text == "" {
			text, now, fix = fewKB(w)
		}
		return text, now, fix
	}}
	aCount   = form{want: "a number: 500000, 1.5M", ok: isCount}
	aShare   = form{want: "a number, or a percentage from 1% to 100%: 500000, 90%", ok: func(w string) bool { return isCount(w) || isPart(w) }, now: "the check never fails, or always", odd: barePart}
	anInt    = form{want: "a whole number", ok: isInt, fix: fixNumber}
	aRate    = form{want: "a rate in Gb/s: 400", ok: isInt, now: "no port has such a rate, so the check fails on every node"}
	aNumber  = form{want: "a number", ok: isNumber, fix: fixNumber}
	aCPU     = form{want: "a percentage: 95%", ok: func(w string) bool { return isNumber(strings.TrimSuffix(w, "%")) }}
	aCPUTime = form{want: "seconds, or minutes and seconds: 90, 12m34s", ok: func(w string) bool { return strings.Trim(w, "0123456789MmSs") == "" }}
	aMode    = form{want: "octal permission bits: 0755", ok: func(w string) bool { return strings.Trim(w, "01234567") == "" }}
	aPath    = form{want: "an absolute path", ok: isAbsolute, now: "it is looked up in the directory of the run", soft: true}
	aFS      = form{want: "a mount point", ok: func(w string) bool { return isAbsolute(w) || strings.ContainsAny(w, "*?[{") }, now: "no file system is mounted there, and nothing is checked", soft: true}
	aPort    = form{want: "DEVICE:PORT: mlx5_0:1", ok: isPort, now: "no port has this name, so the check fails on every node"}
	anAction = form{want: "log, syslog, die, kill or ignore", ok: func(w string) bool { return slices.Contains(psActions, w) }, now: "it is ignored"}
	aMatch   = form{want: "a match string", ok: func(w string) bool { return match.Valid(w) == nil }, now: "it matches nothing", odd: halfRegex}
	aSource  = form{want: aMatch.want, ok: aMatch.ok, now: aMatch.now} // /dev/sda1 is a pattern
)

var psActions = []string{"log", "syslog", "die", "kill", "ignore"}

func isAbsolute(w string) bool { return strings.HasPrefix(w, "/") }

func isPort(w string) bool {
	_, port, ok := strings.Cut(w, ":")
	return ok && isInt(port)
}

func isInt(w string) bool    { _, ok := checks.ParseInteger(w); return ok && w != "" }
func isNumber(w string) bool { _, ok := checks.ParseNumber(w); return ok }
func isSize(w string) bool   { _, ok := checks.ParseSize(w); return ok && w != "" }
func isCount(w string) bool  { _, ok := checks.ParseCount(w); return ok && w != "" }

// isPart reports whether a word is a percentage that a part of a whole can be.
func isPart(w string) bool {
	n, ok := checks.ParseNumber(strings.TrimSuffix(w, "%"))
	return ok && isPercent(w) && n.Cmp(big.NewRat(1, 1)) >= 0 && n.Cmp(big.NewRat(100, 1)) <= 0
}

// fewKB reports a number without a unit that is too small for kB.
func fewKB(w string) (text, now, fix string) {
	if n, err := strconv.Atoi(w); err != nil || n <= 0 || n >= 1024 {
		return "", "", ""
	}
	return w + " has no unit", "it is " + w + " kB", w + "G"
}

// barePart reports a number without a unit that is probably a percentage.
func barePart(w string) (text, now, fix string) {
	if n, err := strconv.Atoi(w); err != nil || n <= 0 || n > 100 {
		return "", "", ""
	}
	return w + " has no unit", "it is no percentage, but " + w + " kB or inodes", w + "%"
}

var (
	openRegex   = checks.Lazily(`^/(\^.*|[^/]*)[^/]$`)
	flaggedEnd  = checks.Lazily(`^(/[^/]+/)[gimsx]$`)
	closedRegex = checks.Lazily(`^\^[^/]*/$`)
)

// halfRegex reports a regular expression that lacks one of its slashes, and so is a pattern.
func halfRegex(w string) (text, now, fix string) {
	bare := strings.TrimPrefix(w, "!")
	not := w[:len(w)-len(bare)]
	switch m := flaggedEnd().FindStringSubmatch(bare); {
	case m != nil:
		text, fix = "a letter follows the regular expression", not+m[1]
	case openRegex().MatchString(bare):
		text, fix = "the regular expression has no / at its end", w+"/"
	case closedRegex().MatchString(bare):
		text, fix = "the regular expression has no / at its beginning", not+"/"+bare
	}
	return text, "it is a pattern for a whole line, and / is a part of it", fix
}

// unlikelyRate returns the two rates of ports next to a rate that no port has, "" for a rate that
// ports have.
func unlikelyRate(gbps float64) string {
	rates := fabric.PortRates()
	i, ok := slices.BinarySearch(rates, gbps)
	if ok || gbps == 0 {
		return ""
	}
	near := rates[max(i-1, 0):min(i+1, len(rates))]
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(near), "[]"), " ", " or ")
}

func isPercent(w string) bool { n, ok := strings.CutSuffix(w, "%"); return ok && isNumber(n) }

var (
	looseSize   = checks.Lazily(`(?i)^([0-9]+)[.,]?([0-9]*) *([kmgtpe]?)i?b?(yte)?s?$`)
	looseNumber = checks.Lazily(`^[-+]?[0-9]+`)
)

// fixSize reads 2TiBs, 64gibs and 1,5T as a person does.
func fixSize(w string) string {
	m := looseSize().FindStringSubmatch(w)
	switch {
	case m == nil:
		return ""
	case m[2] != "":
		return m[1] + "." + m[2] + strings.ToUpper(m[3])
	}
	return m[1] + strings.ToUpper(m[3])
}

func fixNumber(w string) string {
	number := looseNumber().FindString(w)
	digits := strings.TrimLeft(number, "0+")
	if digits == w || strings.ContainsAny(w[len(number):], "*/+-") {
		return ""
	}
	return digits
}

// argForms returns the forms of the arguments of LBNL NHC's checks, by field. A run that is no lint makes no
// such table.
var argForms = sync.OnceValue(func() map[string]map[string]form {
	return map[string]map[string]form{
		"check_hw_cpuinfo":          {"Sockets": anInt, "Cores": anInt, "Threads": anInt},
		"check_hw_physmem":          {"Min": aSize, "Max": aSize, "Fudge": aFudge},
		"check_hw_mem":              {"Min": aSize, "Max": aSize, "Fudge": aFudge},
		"check_hw_swap":             {"Min": aSize, "Max": aSize, "Fudge": aFudge},
		"check_hw_physmem_free":     {"Min": aSize},
		"check_hw_mem_free":         {"Min": aSize},
		"check_hw_swap_free":        {"Min": aSize},
		"check_hw_ib":               {"Rate": aRate, "Port": aPort},
		"check_fs_size":             {"FS": aFS, "Min": aSize, "Max": aSize},
		"check_fs_inodes":           {"FS": aFS, "Min": aCount, "Max": aCount},
		"check_fs_free":             {"FS": aFS, "Min": aPart},
		"check_fs_ifree":            {"FS": aFS, "Min": aShare},
		"check_fs_used":             {"FS": aFS, "Max": aPart},
		"check_fs_iused":            {"FS": aFS, "Max": aShare},
		"check_all_fs_inodes":       {"Min": aCount, "Max": aCount},
		"check_all_fs_ifree":        {"Limit": aShare},
		"check_all_fs_used":         {"Limit": aPart},
		"check_all_fs_iused":        {"Limit": aShare},
		"check_fs_mount":            {"FS": aFS, "Automount": aPath, "Source": aSource, "Type": aMatch, "Options": aMatch},
		"check_fs_mount_rw":         {"FS": aFS, "Automount": aPath, "Source": aSource, "Type": aMatch, "Options": aMatch},
		"check_fs_mount_ro":         {"FS": aFS, "Automount": aPath, "Source": aSource, "Type": aMatch, "Options": aMatch},
		"check_file_test":           {"Files": aPath},
		"check_file_contents":       {"File": aPath, "Match": aMatch},
		"check_file_stat":           {"Files": aPath, "Mode": aMode, "ModeHas": aMode, "UID": anInt, "GID": anInt, "MtimeNewer": anInt, "MtimeOlder": anInt, "CtimeNewer": anInt, "CtimeOlder": anInt},
		"check_ps_loadavg":          {"One": aNumber, "Five": aNumber, "Fifteen": aNumber},
		"check_ps_cpu":              {"Limit": aCPU, "Match": aMatch, "Owner": aMatch},
		"check_ps_mem":              {"Limit": aSize, "Match": aMatch, "Owner": aMatch},
		"check_ps_physmem":          {"Limit": aPart, "Match": aMatch, "Owner": aMatch},
		"check_ps_time":             {"Limit": aCPUTime, "Match": aMatch, "Owner": aMatch},
		"check_ps_kswapd":           {"Threshold": aNumber, "Discrepancy": aNumber, "Actions": anAction},
		"check_ps_service":          {"Match": aMatch, "Owner": aMatch},
		"check_ps_unauth_users":     {"IgnoreUIDs": anInt, "IgnorePIDs": anInt, "Actions": anAction},
		"check_cmd_output":          {"Status": anInt, "Limit": anInt, "Match": aMatch},
		"check_cmd_status":          {"Status": anInt, "Limit": anInt},
		"check_cmd_dmesg":           {"Status": anInt, "Limit": anInt, "Match": aMatch},
		"check_net_ping":            {"Count": anInt, "Deadline": aNumber, "Timeout": aNumber, "Interval": aNumber, "Size": anInt, "TTL": anInt},
		"check_net_socket":          {"Protocol": aMatch, "Local": aMatch, "Remote": aMatch, "State": aMatch, "User": aMatch, "Daemon": aMatch},
		"check_ps_userproc_lineage": {"IgnoreUIDs": anInt, "IgnorePIDs": anInt, "Actions": anAction},
	}
})

// required returns the fields that a check cannot do without (one of them), and its behavior without
// them.
var required = sync.OnceValue(func() map[string]struct{ fields, what, now string } {
	return map[string]struct{ fields, what, now string }{
		"check_ps_service":    {"Service", "the name of the service", unevaluated},
		"check_ps_cpu":        {"Limit", "LIMIT", unevaluated},
		"check_ps_mem":        {"Limit", "LIMIT", unevaluated},
		"check_ps_physmem":    {"Limit", "LIMIT", unevaluated},
		"check_ps_time":       {"Limit", "LIMIT", unevaluated},
		"check_fs_mount":      {"FS More Automount", "-f FS", "nothing is checked"},
		"check_fs_mount_rw":   {"FS More Automount", "-f FS", "nothing is checked"},
		"check_fs_mount_ro":   {"FS More Automount", "-f FS", "nothing is checked"},
		"check_file_test":     {"Files", "FILE", unevaluated},
		"check_file_stat":     {"Files", "FILE", "nothing is checked"},
		"check_file_contents": {"Match", "MATCH", "nothing is checked"},
		"check_net_ping":      {"Targets", "TARGET", unevaluated},
		"check_cmd_status":    {"Words Command", "COMMAND", "nothing is checked"},
		"check_cmd_output":    {"Words Command", "COMMAND", unevaluated},
	}
})

// misvalue is a mistake in a value that a check reads only when it runs. Word is the value, "" for
// the check as a whole.
type misvalue struct {
	finding

	better string // what to write instead of the value, possibly with options
	other  string // the value to exchange it for
}

// misvalueOf returns the mistake in the values of a check, nil if there is none. given reports
// whether a value was written, and is no default.
func (s *site) misvalueOf(file string, info checks.Info, c checks.Check, given func(string) bool) *misvalue {
	v := reflect.Indirect(reflect.ValueOf(c))
	m := &misvalue{finding: finding{Severity: mistake, Now: unevaluated, Fix: usageOf(info)}}
	if r, ok := required()[info.Name]; ok {
		given := 0
		for field := range strings.FieldsSeq(r.fields) {
			given += len(fieldOf(v, field))
		}
		if given == 0 {
			m.Text, m.Now = info.Name+" without "+r.what, r.now
			return m
		}
	}
	if surplus := fieldOf(v, "Surplus"); len(surplus) > 0 {
		m.Severity, m.Text, m.Now = warning, info.Name+": no effect: "+strings.Join(surplus, " "), "the check runs without it"
		m.Word = surplus[0]
		return m
	}
	for field, value := range v.Fields() {
		if low, high, n := reach(field, value); n != 0 && (n < low || n > high) {
			m.Word = strconv.FormatFloat(n, 'f', -1, 64)
			m.Text = fmt.Sprintf("%s: %s is out of reach for any device, want %g to %g", info.Name, m.Word, low, high)
			m.Now = "the check never fails, or always"
			return m
		}
	}
	if test, ok := c.(checks.Bounded); ok && info.Active && filepath.Base(file) == "nhc-active.conf" && s.limit > 0 && test.Bound() >= checks.Usable(s.limit) {
		m.Severity, m.Text = warning, fmt.Sprintf("%s may take %s, more than a run of -t %.0f", info.Name, test.Bound(), s.limit.Seconds())
		m.Now, m.Fix = "it is skipped", "raise -t and TimeoutStartSec in nhc-gpu-active.service, or give the test less time"
		return m
	}
	if limit := fieldOf(v, "Limit"); info.Lane == checks.Cmd && len(limit) > 0 && given(limit[0]) {
		n, err := strconv.Atoi(limit[0])
		if all := s.timeout(); err == nil && all > 0 && n > all {
			m.Word, m.Text = limit[0], fmt.Sprintf("%s: -t %d is more than TIMEOUT, %d s", info.Name, n, all)
			m.Fix = fmt.Sprintf("-t %d or less, or TIMEOUT in /etc/sysconfig/nhc", all-1)
			return m
		}
	}
	if m.misform(info, v) {
		return m
	}
	if info.Name == "check_hw_ib" || info.Name == "check_ib_ports" {
		word := fmt.Sprint(v.FieldByName("Rate"))
		if gbps, err := strconv.ParseFloat(word, 64); err == nil && unlikelyRate(gbps) != "" {
			m.Severity, m.Word, m.Text = warning, word, fmt.Sprintf("%s: no port has a rate of %s Gb/s", info.Name, word)
			m.Now, m.Fix = "every port fails, or none", unlikelyRate(gbps)
			return m
		}
	}
	if d, ok := c.(checks.Contradicting); ok {
		if word, why := d.Contradiction(); why != "" {
			m.Word, m.Text, m.Now = word, info.Name+": "+why, "the check fails on every node"
			return m
		}
	}
	if d, ok := c.(checks.Doubtful); ok {
		if word, text, now, better := d.Doubt(); text != "" {
			m.Severity, m.Word, m.Text, m.Now, m.better = warning, word, info.Name+": "+text, now, better
			return m
		}
	}
	for i, word := range strings.Fields(info.Usage) {
		if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
			break // the next arguments are optional, or options
		}
		for field := range v.Fields() {
			if field.Tag.Get("arg") == strconv.Itoa(i+1) && len(fieldOf(v, field.Name)) == 0 {
				m.Severity, m.Text, m.Now = warning, info.Name+" without "+word, "nothing is compared"
				return m
			}
		}
	}
	return nil
}

// misform compares the fields of a check with the forms that they have.
func (m *misvalue) misform(info checks.Info, v reflect.Value) bool {
	forms := argForms()[info.Name]
	for i := range v.NumField() {
		form, ok := forms[v.Type().Field(i).Name]
		if !ok {
			continue
		}
		for _, word := range fieldOf(v, v.Type().Field(i).Name) {
			m.Word = word
			if form.ok(strings.TrimPrefix(word, "!")) {
				if form.odd == nil {
					continue
				}
				if text, now, fix := form.odd(word); text != "" {
					m.Severity, m.Text, m.Now, m.better = warning, info.Name+": "+text, now, fix
					return true
				}
				continue
			}
			m.Text = fmt.Sprintf("%s: %s is not %s", info.Name, quoted(word), form.want)
			if form.now != "" {
				m.Now = form.now
			}
			if form.soft {
				m.Severity = warning
			}
			if form.fix != nil {
				m.better = form.fix(word)
			}
			if m.other = swapped(forms, v, word); m.other != "" {
				m.Severity, m.Text, m.Now = mistake, m.Text+": are "+quoted(word)+" and "+quoted(m.other)+" swapped?", unevaluated
			}
			return true
		}
	}
	m.Word = ""
	return false
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
			f.Fix = replaceWord(s.check.text, a, strings.TrimSuffix(a.text, m.Word)+m.better)
		}
		return report(a)
	}
	return true
}

// reach returns the values that a device can have, by the tag of the field, and the field's value;
// 0 without a tag.
func reach(field reflect.StructField, value reflect.Value) (low, high, n float64) {
	if _, err := fmt.Sscanf(field.Tag.Get("in"), "%g:%g", &low, &high); err != nil {
		return 0, 0, 0
	}
	if value.CanInt() {
		return low, high, float64(value.Int())
	}
	return low, high, value.Float()
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

// fieldOf returns the words of a field, none for an empty one.
func fieldOf(v reflect.Value, name string) []string {
	switch f := v.FieldByName(name); {
	case !f.IsValid():
	case f.Kind() == reflect.String && f.String() != "":
		return []string{f.String()}
	case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.String:
		words := make([]string, 0, f.Len())
		for i := range f.Len() {
			words = append(words, f.Index(i).String())
		}
		return words
	}
	return nil
}

// replaceWord replaces an argument by another word.
func replaceWord(text string, a arg, word string) string {
	return text[:a.at] + strings.Replace(text[a.at:], a.text, word, 1)
}

// swapped returns the argument that a word must be exchanged for, "" if that does not help.
func swapped(forms map[string]form, v reflect.Value, word string) string {
	var mine string
	for name := range forms {
		if slices.Contains(fieldOf(v, name), word) {
			mine = name
		}
	}
	for _, name := range slices.Sorted(mapKeys(forms)) {
		other := fieldOf(v, name)
		if name != mine && len(other) == 1 && forms[name].want != forms[mine].want && forms[name].ok(word) && forms[mine].ok(other[0]) {
			return other[0]
		}
	}
	return ""
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// single are checks that compare with one value of the node: two lines for one host contradict
// each other.
var single = []string{"check_hw_cpuinfo", "check_hw_physmem", "check_hw_mem", "check_hw_swap", "check_gpu_count", "check_gpu_driver", "check_nvme_count", "check_gpu_vbios", "check_gpu_power"}

// once finds a line that contradicts an earlier one, or has other limits than an earlier one.
func (s *shellLine) once(info checks.Info, c checks.Check, name arg, texts []string, alone bool) {
	words := strings.Join(texts, " ")
	switch {
	case !alone || len(texts) == 0:
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
