package lint

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
)

// misvalue is a mistake in a value that a check reads only when it runs. Word is the value, "" for
// the check as a whole.
type misvalue struct {
	finding

	better string            // what to write instead of the value, possibly with options
	others map[string]string // what to write instead of other values with the same kind of mistake
	other  string            // the value to exchange it for
}

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

const (
	failsEverywhere = "the check fails on every node"
	neverFails      = "the check never fails"
)

// without returns the behavior of the checks that compare although an argument is missing.
var without = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"check_hw_physmem": failsEverywhere, // MAX is 0
		"check_hw_mem":     failsEverywhere,
		"check_hw_swap":    "it is 0: the check fails on every node with swap space",
		"check_hw_eth":     failsEverywhere,
		"check_hw_gm":      failsEverywhere,
		"check_ps_daemon":  failsEverywhere,
		"check_ps_kswapd":  "it is 0: the check can fail on every node with two NUMA nodes",
	}
})

// misvalueOf returns the first mistake in the values of a check, nil if there is none. given reports
// whether a value was written, and is no default. Each find function describes one kind of mistake in m, and
// reports whether it is there.
func (s *site) misvalueOf(file string, info checks.Info, c checks.Check, given func(string) bool) *misvalue {
	v := reflect.Indirect(reflect.ValueOf(c))
	m := &misvalue{finding: finding{Severity: mistake, Now: unevaluated, Fix: usageOf(info)}}
	if m.findMissing(info, v) || m.findSurplus(info, v) || m.findUnreachable(info, v) ||
		m.findLongTest(s, file, info, c) || m.findLongCommand(s, info, v, given) ||
		m.findMisform(info, v) || m.findUnlikelyRate(info, v) || m.findContradiction(info, c) || m.findDoubt(info, c) ||
		m.findUncompared(info, v) {
		return m
	}
	return nil
}

// findMissing finds a check without any of the fields that it cannot do without.
func (m *misvalue) findMissing(info checks.Info, v reflect.Value) bool {
	r, ok := required()[info.Name]
	if !ok {
		return false
	}
	for field := range strings.FieldsSeq(r.fields) {
		if len(fieldOf(v, field)) > 0 {
			return false
		}
	}
	m.Text, m.Now = info.Name+" without "+r.what, r.now
	return true
}

func (m *misvalue) findSurplus(info checks.Info, v reflect.Value) bool {
	surplus := fieldOf(v, "Surplus")
	if len(surplus) == 0 {
		return false
	}
	m.Severity, m.Text, m.Now = warning, info.Name+": no effect: "+strings.Join(surplus, " "), "the check runs without it"
	m.Word = surplus[0]
	return true
}

// findUnreachable finds a limit that every device exceeds, or none reaches.
func (m *misvalue) findUnreachable(info checks.Info, v reflect.Value) bool {
	for field, value := range v.Fields() {
		if low, high, n := reach(field, value); n != 0 && (n < low || n > high) {
			m.Word = strconv.FormatFloat(n, 'f', -1, 64)
			text := "no device reaches"
			if n < low {
				text = "every device exceeds"
			}
			m.Text = fmt.Sprintf("%s: %s %s, want %g to %g", info.Name, text, m.Word, low, high)
			m.Now = failsEverywhere
			if _, kind, _ := strings.Cut(field.Tag.Get("in"), " "); kind == "max" && n > high || kind == "min" && n < low {
				m.Now = neverFails
			}
			return true
		}
	}
	return false
}

// findLongTest finds an active test that the run of nhc-active.conf has no time for.
func (m *misvalue) findLongTest(s *site, file string, info checks.Info, c checks.Check) bool {
	test, ok := c.(checks.Bounded)
	if !ok || !info.Active || filepath.Base(file) != "nhc-active.conf" || s.limit <= 0 || test.Bound() < checks.Usable(s.limit) {
		return false
	}
	m.Severity, m.Text = warning, fmt.Sprintf("%s may take %s, more than a run of -t %.0f", info.Name, test.Bound(), s.limit.Seconds())
	m.Now, m.Fix = "it is skipped", "raise -t and TimeoutStartSec in nhc-gpu-active.service, or give the test less time"
	return true
}

// findLongCommand finds a command that may run for longer than the whole run.
func (m *misvalue) findLongCommand(s *site, info checks.Info, v reflect.Value, given func(string) bool) bool {
	limit := fieldOf(v, "Limit")
	if info.Lane != checks.Cmd || len(limit) == 0 || !given(limit[0]) {
		return false
	}
	n, err := strconv.Atoi(limit[0])
	all := s.timeout()
	if err != nil || all <= 0 || n <= all {
		return false
	}
	m.Word, m.Text = limit[0], fmt.Sprintf("%s: -t %d is more than TIMEOUT, %d s", info.Name, n, all)
	m.Fix = fmt.Sprintf("-t %d or less, or TIMEOUT in /etc/sysconfig/nhc", all-1)
	return true
}

func (m *misvalue) findUnlikelyRate(info checks.Info, v reflect.Value) bool {
	if info.Name != "check_hw_ib" && info.Name != "check_ib_ports" {
		return false
	}
	word := fmt.Sprint(v.FieldByName("Rate"))
	gbps, err := strconv.ParseFloat(word, 64)
	if err != nil || unlikelyRate(gbps) == "" {
		return false
	}
	m.Severity, m.Word, m.Text = warning, word, fmt.Sprintf("%s: no port has a rate of %s Gb/s", info.Name, word)
	m.Now, m.Fix = "every port fails, or none", unlikelyRate(gbps)
	return true
}

func (m *misvalue) findContradiction(info checks.Info, c checks.Check) bool {
	d, ok := c.(checks.Contradicting)
	if !ok {
		return false
	}
	word, why := d.Contradiction()
	if why == "" {
		return false
	}
	m.Word, m.Text, m.Now = word, info.Name+": "+why, failsEverywhere
	return true
}

func (m *misvalue) findDoubt(info checks.Info, c checks.Check) bool {
	d, ok := c.(checks.Doubtful)
	if !ok {
		return false
	}
	word, text, now, better := d.Doubt()
	if text == "" {
		return false
	}
	m.Severity, m.Word, m.Text, m.Now, m.better = warning, word, info.Name+": "+text, now, better
	return true
}

// findUncompared finds an argument that is missing although the usage does not call it optional: there is nothing
// to compare with.
func (m *misvalue) findUncompared(info checks.Info, v reflect.Value) bool {
	for i, word := range strings.Fields(info.Usage) {
		if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
			break // the next arguments are optional, or options
		}
		for field := range v.Fields() {
			if field.Tag.Get("arg") == strconv.Itoa(i+1) && len(fieldOf(v, field.Name)) == 0 {
				m.Severity, m.Text, m.Now = warning, info.Name+" without "+word, cmp.Or(without()[info.Name], "nothing is compared")
				if m.Now == failsEverywhere {
					m.Severity = mistake
				}
				return true
			}
		}
	}
	return false
}

// findMisform compares the fields of a check with the forms that they have.
func (m *misvalue) findMisform(info checks.Info, v reflect.Value) bool {
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
			if form.share && isPercent(word) {
				m.Now = failsEverywhere
				if least := v.Type().Field(i).Name == "Min" || info.Name == "check_all_fs_ifree"; least == isBelowOne(word) {
					m.Now = neverFails
				}
			}
			if form.soft {
				m.Severity = warning
			}
			if form.fix != nil {
				m.better, m.others = form.fix(word), fixes(forms, v)
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

// fixes returns the values of a check that do not have their forms, each with the one to write instead.
func fixes(forms map[string]form, v reflect.Value) map[string]string {
	better := map[string]string{}
	for name, form := range forms {
		for _, word := range fieldOf(v, name) {
			if form.fix != nil && !form.ok(strings.TrimPrefix(word, "!")) && form.fix(word) != "" {
				better[word] = form.fix(word)
			}
		}
	}
	return better
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

// swapped returns the argument that a word must be exchanged for, "" if that does not help.
func swapped(forms map[string]form, v reflect.Value, word string) string {
	var mine string
	for name := range forms {
		if slices.Contains(fieldOf(v, name), word) {
			mine = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		other := fieldOf(v, name)
		if name != mine && len(other) == 1 && forms[name].want != forms[mine].want && forms[name].ok(word) && forms[mine].ok(other[0]) {
			return other[0]
		}
	}
	return ""
}
