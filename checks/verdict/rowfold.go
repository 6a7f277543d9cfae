package verdict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// fold merges equal rows: of several devices (gpu0-7), and of more than two checks that are skipped
// or unknown for the same reason.
func fold(rows []Row) []Row { return foldChecks(foldDevices(rows)) }

// foldChecks merges more than two checks that are skipped or unknown for the same reason.
func foldChecks(rows []Row) (list []Row) {
	type reason struct {
		checks.Severity
		text string
	}
	of := func(r *Row) reason { return reason{r.Severity, r.fact()} }
	same := map[reason]int{}
	for i := range rows {
		same[of(&rows[i])]++
	}
	for _, row := range rows {
		n := same[of(&row)]
		switch {
		case n < 0:
			continue
		case n > 2 && !row.isHeld() && (row.Severity == checks.Skip || row.Severity == checks.Unknown):
			same[of(&row)] = -1
			row.Name = fmt.Sprintf("%s and %d more", row.Name, n-1)
		}
		list = append(list, row)
	}
	return list
}

// foldDevices merges rows of a check that differ only in the number of a device.
func foldDevices(rows []Row) (list []Row) {
	texts := make([]string, len(rows))
	for i := range rows {
		row := &rows[i]
		texts[i] = row.fact()
		if row.Device.Name != "" { // a folded row has no address
			texts[i] = strings.Replace(texts[i], row.Device.String(), row.Device.Name, 1)
		}
	}
	groups := groupTexts(texts, func(a, b int) bool {
		x, y := &rows[a], &rows[b]
		return !x.isHeld() && x.Severity == y.Severity && x.Name == y.Name && x.Code == y.Code && x.action() == y.action()
	})
	for _, g := range groups {
		row := rows[g.row]
		if g.differ != nil {
			row.Device, row.Message, row.Took = checks.Device{}, g.text(), 0
		}
		list = append(list, row)
	}
	return list
}

// foldFacts merges facts about devices of the same model, and parts of a fact that differ only in
// the number of a device.
func foldFacts(facts []Row) (list []Row) {
	texts := make([]string, len(facts))
	for i := range facts {
		var words []string
		for w := range strings.FieldsSeq(facts[i].Message) {
			if _, address := checks.PCIAddress(w); !address && !boardID().MatchString(w) && !strings.HasSuffix(w, "-"+redacted) {
				words = append(words, w)
			}
		}
		texts[i] = facts[i].Name + "\n" + strings.Join(words, " ")
	}
	for _, g := range groupTexts(texts, func(a, b int) bool { return facts[a].Severity == facts[b].Severity }) {
		row := facts[g.row]
		if g.differ != nil {
			row.Name, row.Message, _ = strings.Cut(g.text(), "\n")
		}
		var parts []string
		for _, p := range groupTexts(strings.Split(row.Message, ", "), func(int, int) bool { return true }) {
			parts = append(parts, p.text())
		}
		row.Message = strings.Join(parts, ", ")
		list = append(list, row)
	}
	return list
}

// group is a set of texts that are printed as one.
type group struct {
	row     int      // of the first text
	first   []string // the first text; every second part is the number of a device
	differ  []int    // the indices of parts that differ
	numbers []int    // the numbers at these indices
}

// groupTexts groups texts that differ only in the number of a device, if alike accepts their
// indices.
func groupTexts(texts []string, alike func(a, b int) bool) (groups []*group) {
	for i, text := range texts {
		parts := splitNumbers(text)
		if !slices.ContainsFunc(groups, func(g *group) bool { return alike(g.row, i) && g.join(parts) }) {
			groups = append(groups, &group{row: i, first: parts})
		}
	}
	return groups
}

// splitNumbers splits a text so that every second part is the number of a device: digits after a
// letter.
func splitNumbers(text string) (list []string) {
	rest := 0
	for i := 0; i < len(text); {
		end := i
		for end < len(text) && text[end] >= '0' && text[end] <= '9' {
			end++
		}
		if end == i || end-i > 6 || i == 0 || !letter(text[i-1]) || end-i > 1 && text[i] == '0' {
			i = max(end, i+1)
			continue
		}
		list = append(list, text[rest:i], text[i:end])
		rest, i = end, end
	}
	return append(list, text[rest:])
}

func letter(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// join adds a text to the group if it differs only in the number of a device.
func (g *group) join(parts []string) bool {
	if len(parts) != len(g.first) {
		return false
	}
	var differ []int
	for i := range parts {
		if parts[i] == g.first[i] {
			continue
		}
		if i%2 == 0 || len(differ) > 0 && (parts[i] != parts[differ[0]] || g.first[i] != g.first[differ[0]]) {
			return false
		}
		differ = append(differ, i)
	}
	if len(differ) == 0 || g.differ != nil && !slices.Equal(differ, g.differ) {
		return false
	}
	if g.differ == nil {
		g.differ, g.numbers = differ, []int{number(g.first[differ[0]])}
	}
	g.numbers = append(g.numbers, number(parts[differ[0]]))
	return true
}

func number(text string) int {
	n, _ := strconv.Atoi(text) // at most six digits
	return n
}

// text returns the text of the whole group.
func (g *group) text() string {
	parts := slices.Clone(g.first)
	for _, i := range g.differ {
		parts[i] = ranges(g.numbers)
	}
	return strings.Join(parts, "")
}

// ranges writes numbers as 0-2,5.
func ranges(numbers []int) string {
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	var words []string
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && numbers[end+1] == numbers[end]+1 {
			end++
		}
		word := strconv.Itoa(numbers[i])
		if end > i {
			word += "-" + strconv.Itoa(numbers[end])
		}
		words = append(words, word)
		i = end + 1
	}
	return strings.Join(words, ",")
}
