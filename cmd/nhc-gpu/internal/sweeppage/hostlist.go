package sweeppage

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/page"
)

// Hostlist returns names as Slurm writes them, "gpu[001-016,020],login1", in natural order. Names that
// occur twice are listed once.
func Hostlist(names []string) string { return strings.Join(hostwords(names), ",") }

// maxDigits bounds a number in a name: a longer one is text.
const maxDigits = 9

// numbers are the names that differ in their last number only.
type numbers struct {
	head, tail string
	texts      []string // of the numbers, in natural order
}

// hostwords returns the parts of a hostlist; each is a hostlist itself.
func hostwords(names []string) (words []string) {
	names = slices.SortedFunc(slices.Values(names), page.CompareNames)
	var groups []*numbers
	byKey := map[string]*numbers{}
	for _, name := range slices.Compact(names) {
		head, text, tail := lastNumber(name)
		key := head + "\x00" + tail
		g := byKey[key]
		if g == nil || text == "" {
			g = &numbers{head: head, tail: tail}
			byKey[key], groups = g, append(groups, g)
		}
		if text != "" {
			g.texts = append(g.texts, text)
		}
	}
	for _, g := range groups {
		words = append(words, g.String())
	}
	return words
}

// lastNumber splits a name at its last number. A name without one is all head.
func lastNumber(name string) (head, number, tail string) {
	isDigit := func(r rune) bool { return r >= '0' && r <= '9' }
	end := strings.LastIndexFunc(name, isDigit) + 1
	start := strings.LastIndexFunc(name[:end], func(r rune) bool { return !isDigit(r) }) + 1
	if n := end - start; n == 0 || n > maxDigits {
		return name, "", ""
	}
	return name[:start], name[start:end], name[end:]
}

func (g *numbers) String() string {
	switch len(g.texts) {
	case 0:
		return g.head
	case 1:
		return g.head + g.texts[0] + g.tail
	}
	var ranges []string
	for i := 0; i < len(g.texts); {
		low, last := g.texts[i], i
		for last+1 < len(g.texts) && g.texts[last+1] == following(low, g.texts[last]) {
			last++
		}
		if last > i {
			low += "-" + g.texts[last]
		}
		ranges = append(ranges, low)
		i = last + 1
	}
	return g.head + "[" + strings.Join(ranges, ",") + "]" + g.tail
}

// following returns the number after one of a range, as wide as the first number of the range: Slurm
// reads a[9-10] and a[09-10].
func following(low, number string) string {
	n, err := strconv.Atoi(number)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%0*d", len(low), n+1)
}

// few returns a hostlist of at most a number of characters; it counts the names that do not fit.
func few(names []string, most int) string {
	whole := Hostlist(names)
	if len(whole) <= most {
		return whole
	}
	sorted := slices.Compact(slices.SortedFunc(slices.Values(names), page.CompareNames))
	fits := 0 // names
	for step := len(sorted); step > 0; step /= 2 {
		for fits+step < len(sorted) && len(Hostlist(sorted[:fits+step])) <= most {
			fits += step
		}
	}
	fits = max(fits, 1)
	return fmt.Sprintf("%s and %s more", Hostlist(sorted[:fits]), thousands(len(sorted)-fits))
}
