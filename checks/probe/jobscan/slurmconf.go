package jobscan

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file reads Slurm's configuration on the node. It does not query slurmctld: a healthy node
// makes no call to it.

// slurmConfs are the paths at which Slurm's programs search for slurm.conf without SLURM_CONF: the
// usual path, then slurmd's own copy if slurmctld serves the file.
var slurmConfs = []string{"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf"}

// slurmPair is one KEY=VALUE of a line. Keys are in lower case.
type slurmPair struct{ key, value string }

// slurmFiles reads one of Slurm's files and the files that it includes.
type slurmFiles struct {
	host    *probe.Host
	dir     string // of slurm.conf, for relative names
	cluster string // ClusterName, for %c in the name of a file
	left    int    // maximum number of further files
	visit   func(pos string, line []slurmPair)
}

// maxSlurmFiles is more than any site includes; it stops a file that includes itself.
const maxSlurmFiles = 100

// findSlurmConf finds and reads slurm.conf. The error is [fs.ErrNotExist] if there is none.
func findSlurmConf(h *probe.Host, named string) (file string, data []byte, err error) {
	list := slurmConfs
	if path.IsAbs(named) {
		list = []string{named}
	}
	for _, file = range list {
		if data, err = probe.ReadTrusted(h, file); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return file, data, err
}

func (s *slurmFiles) read(file string) error {
	data, err := probe.ReadTrusted(s.host, file)
	if err != nil {
		return err
	}
	return s.parse(file, data)
}

func (s *slurmFiles) parse(file string, data []byte) error {
	if s.left--; s.left < 0 {
		return fmt.Errorf("read %s: more than %d files are included", file, maxSlurmFiles)
	}
	for n, text := range splitLines(string(data)) {
		if included, ok := parseInclude(text); ok {
			included = strings.ReplaceAll(included, "%c", s.cluster)
			if !path.IsAbs(included) {
				included = path.Join(s.dir, included)
			}
			if err := s.read(included); err != nil {
				return err
			}
			continue
		}
		pairs := splitPairs(text)
		if len(pairs) == 0 {
			continue
		}
		if pairs[0].key == "clustername" {
			s.cluster = strings.ToLower(pairs[0].value)
		}
		s.visit(fmt.Sprintf("%s:%d", file, n), pairs)
	}
	return nil
}

// splitLines yields the lines of a file with the number of their first line. It removes comments
// first; then a line that ends in a backslash continues on the next.
func splitLines(text string) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		whole, first, n, going := "", 0, 0, false
		for line := range strings.Lines(text) {
			if n++; !going {
				first = n
			}
			line = strings.TrimRight(uncomment(line), " \t\r\n\v\f")
			cut := strings.TrimRight(line, `\`)
			if going = (len(line)-len(cut))%2 == 1; going {
				whole += line[:len(line)-1]
				continue
			}
			if !yield(first, whole+line) {
				return
			}
			whole = ""
		}
		if going {
			yield(first, whole)
		}
	}
}

// uncomment cuts a line at its first # without a backslash before it.
func uncomment(line string) string {
	escaped := false
	for i, c := range []byte(line) {
		if c == '#' && !escaped {
			return line[:i]
		}
		escaped = c == '\\' && !escaped
	}
	return line
}

func parseInclude(text string) (file string, ok bool) {
	words := strings.Fields(text)
	if len(words) < 2 || !strings.EqualFold(words[0], "include") || strings.Contains(words[0], "=") {
		return "", false
	}
	return words[1], true
}

// splitPairs splits a line into pairs. Any other text ends it.
func splitPairs(text string) (pairs []slurmPair) {
	for {
		text = strings.TrimLeft(text, " \t")
		end := strings.IndexFunc(text, func(r rune) bool { return !slurmKeyRune(r) })
		if end <= 0 {
			return pairs
		}
		key := strings.ToLower(text[:end])
		rest, ok := strings.CutPrefix(strings.TrimLeft(text[end:], " \t"), "=")
		if !ok {
			return pairs
		}
		rest = strings.TrimLeft(rest, " \t")
		var value string
		if quoted, isQuoted := strings.CutPrefix(rest, `"`); isQuoted {
			value, rest, _ = strings.Cut(quoted, `"`)
		} else if end := strings.IndexAny(rest, " \t"); end >= 0 {
			value, rest = rest[:end], rest[end:]
		} else {
			value, rest = rest, ""
		}
		pairs, text = append(pairs, slurmPair{key, value}), rest
	}
}

func slurmKeyRune(r rune) bool {
	return r == '_' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

// hasHost reports whether a list in Slurm's form, "gpu[01-08,11],login1", has a name.
func hasHost(list, name string) bool {
	for pattern := range splitHostlist(list) {
		if matchHost(pattern, name) {
			return true
		}
	}
	return false
}

// splitHostlist splits such a list at the commas outside brackets.
func splitHostlist(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		depth, begin := 0, 0
		for i, c := range list + "," {
			switch {
			case c == '[':
				depth++
			case c == ']':
				depth--
			case c == ',' && depth <= 0:
				if begin < i && !yield(list[begin:i]) {
					return
				}
				begin = i + 1
			}
		}
	}
}

func matchHost(pattern, name string) bool {
	literal, rest, ranged := strings.Cut(pattern, "[")
	if !ranged {
		return pattern == name
	}
	set, rest, closed := strings.Cut(rest, "]")
	tail, ok := strings.CutPrefix(name, literal)
	if !ok || !closed {
		return false
	}
	for n := 1; n <= len(tail) && !probe.NotNumber(tail[:n]); n++ {
		if inRanges(set, tail[:n]) && matchHost(rest, tail[n:]) {
			return true
		}
	}
	return false
}

// inRanges reports whether "01-08,11" has a number with exactly these digits: the first number of
// a range determines the width of all.
func inRanges(set, digits string) bool {
	for part := range strings.SplitSeq(set, ",") {
		low, high, ranged := strings.Cut(part, "-")
		if !ranged {
			high = low
		}
		value := strings.TrimLeft(digits, "0")
		if probe.NotNumber(low) || probe.NotNumber(high) || len(digits) != max(len(low), len(value)) {
			continue
		}
		if !lessNumber(value, low) && !lessNumber(high, value) {
			return true
		}
	}
	return false
}

// lessNumber compares digits of any length.
func lessNumber(a, b string) bool {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return a < b
}
