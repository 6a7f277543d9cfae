package slurm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ExpandHostlist returns the names in Slurm's text of a set of nodes, "gpu[01-03],login", each once,
// in the order of the text. It returns an error for text that is not a list of nodes.
func ExpandHostlist(list string) ([]string, error) {
	seen := map[string]bool{}
	var names []string
	for _, name := range hostlistNames(list) {
		if !isNodeName(name) {
			return nil, fmt.Errorf("%q is not a list of nodes, want the form gpu[01-16],gpu20", list)
		}
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%q is not a list of nodes, want the form gpu[01-16],gpu20", list)
	}
	return names, nil
}

// FoldHostlist returns Slurm's text of a set of nodes: the opposite of [ExpandHostlist], sorted. An
// argument of a command holds 128 KiB, which the names of thousands of nodes exceed.
func FoldHostlist(names []string) string {
	type numbered struct {
		prefix string
		width  int
		number int
		name   string
	}
	var list []numbered
	for _, name := range names {
		prefix := strings.TrimRight(name, "0123456789")
		digits := name[len(prefix):]
		n, err := strconv.Atoi(digits)
		if err != nil || prefix == "" { // no number, or one that is too long
			prefix, digits, n = name, "", 0
		}
		list = append(list, numbered{prefix, len(digits), n, name})
	}
	slices.SortFunc(list, func(a, b numbered) int {
		return cmp.Or(cmp.Compare(a.prefix, b.prefix), cmp.Compare(a.width, b.width), cmp.Compare(a.number, b.number))
	})
	list = slices.Compact(list)
	var words []string
	for i := 0; i < len(list); {
		j := i + 1
		for j < len(list) && list[j].prefix == list[i].prefix && list[j].width == list[i].width && list[i].width > 0 {
			j++
		}
		if j == i+1 {
			words = append(words, list[i].name)
			i = j
			continue
		}
		var spans []string
		for ; i < j; i++ {
			first := i
			for i+1 < j && list[i+1].number == list[i].number+1 {
				i++
			}
			span := fmt.Sprintf("%0*d", list[first].width, list[first].number)
			if i > first {
				span += fmt.Sprintf("-%0*d", list[i].width, list[i].number)
			}
			spans = append(spans, span)
		}
		words = append(words, list[i-1].prefix+"["+strings.Join(spans, ",")+"]")
	}
	return strings.Join(words, ",")
}

// hostlistNames returns the names in Slurm's text of a set of nodes.
func hostlistNames(list string) (names []string) {
	for _, word := range splitHostlist(list) {
		matchHosts(word, func(name string) bool { names = append(names, name); return false }, "")
	}
	return names
}

// splitHostlist splits a list at the commas outside of brackets.
func splitHostlist(list string) (words []string) {
	depth, from := 0, 0
	for i, c := range list {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			words, from = append(words, list[from:i]), i+1
		}
	}
	return append(words, list[from:])
}

// maxRange bounds the numbers of one range: no cluster has more nodes.
const maxRange = 1 << 20

// matchHosts calls found with each name of a word, "rack[1-3]n[01-18]", until it returns true. It
// omits names that do not begin as want does; "" omits none.
func matchHosts(word string, found func(string) bool, want string) bool {
	head, rest, ok := strings.Cut(word, "[")
	if want != "" && !strings.HasPrefix(want, head) {
		return false
	}
	ranges, tail, closed := strings.Cut(rest, "]")
	if !ok || !closed {
		return found(word)
	}
	for r := range strings.SplitSeq(ranges, ",") {
		low, high, many := strings.Cut(r, "-")
		if !many {
			high = low
		}
		from, err := strconv.Atoi(low)
		to, wrong := strconv.Atoi(high)
		if errors.Join(err, wrong) != nil || from < 0 || to-from > maxRange {
			continue
		}
		for n := from; n <= to; n++ {
			if matchHosts(fmt.Sprintf("%s%0*d%s", head, len(low), n, tail), found, want) {
				return true
			}
		}
	}
	return false
}
