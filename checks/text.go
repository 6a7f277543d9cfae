package checks

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// How messages word things.

// Before puts text around a word unless the word is empty.
func Before(prefix, word, suffix string) string {
	if word == "" {
		return ""
	}
	return prefix + word + suffix
}

// Plural is "1 GPU", "2 GPUs".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// OneLine is an error without its line breaks.
func OneLine(err error) string { return oneLine(err.Error()) }

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// MiB is a size in whole MiB.
func MiB(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// PCIAddress makes 0000:c1:00.0 of an address as the driver prints it, in
// either case and without the function.
func PCIAddress(s string) (string, bool) {
	s, function, has := strings.Cut(s, ".")
	if !has {
		function = "0"
	}
	domain, rest, ok1 := strings.Cut(s, ":")
	bus, slot, ok2 := strings.Cut(rest, ":")
	if !ok1 || !ok2 || len(bus) != 2 || len(slot) != 2 || len(function) != 1 || len(domain) < 4 || len(domain) > 8 {
		return "", false
	}
	n, err := strconv.ParseUint(domain, 16, 32)
	for _, part := range []string{bus, slot, function} {
		if _, bad := strconv.ParseUint(part, 16, 8); bad != nil {
			return "", false
		}
	}
	if err != nil {
		return "", false
	}
	return strings.ToLower(fmt.Sprintf("%04x:%s:%s.%s", n, bus, slot, function)), true
}

// BareID is a PCI id as sysfs has it, without 0x.
func BareID(id string) string {
	return strings.TrimPrefix(strings.ToLower(strings.TrimSpace(id)), "0x")
}

// ModuleNames are the alternatives of one -m, as /proc/modules writes them.
func ModuleNames(m string) []string {
	names := strings.Split(strings.ReplaceAll(m, "-", "_"), "|")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// Clock is a time in a message; in UTC, so that it is the same whoever looks.
func Clock(unix int64) string { return time.Unix(unix, 0).UTC().Format("2006-01-02T15:04:05Z") }

// Explained is a title and what is known, a line each; what is empty is left out.
func Explained(title string, pairs ...string) string {
	var b strings.Builder
	fmt.Fprintln(&b, title)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", pairs[i], pairs[i+1])
		}
	}
	return b.String()
}
