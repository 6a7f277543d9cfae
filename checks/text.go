package checks

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Before returns word between prefix and suffix, or "" for an empty word.
func Before(prefix, word, suffix string) string {
	if word == "" {
		return ""
	}
	return prefix + word + suffix
}

// Length returns a duration without zeros at its end: 10m, 1h30m.
func Length(d time.Duration) string {
	text := d.String()
	if d != 0 && d%time.Minute == 0 {
		text = strings.TrimSuffix(text, "0s")
	}
	if d != 0 && d%time.Hour == 0 {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Plural returns "1 GPU", "2 GPUs".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// OneLine returns the text of an error without line breaks.
func OneLine(err error) string { return oneLine(err.Error()) }

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// ReasonText returns text as a node's reason has it: one printable line without double quotes.
func ReasonText(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case unicode.IsPrint(r):
			return r
		default:
			return ' '
		}
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return strings.TrimSpace(text)
}

// MiB formats a size in whole MiB.
func MiB(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// PCIAddress turns an address of the driver, in upper or lower case and without the function,
// into 0000:c1:00.0.
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

// BareID returns a PCI ID from sysfs without 0x.
func BareID(id string) string {
	return strings.TrimPrefix(strings.ToLower(strings.TrimSpace(id)), "0x")
}

// ModuleNames returns the alternatives of one -m, as /proc/modules writes them.
func ModuleNames(m string) []string {
	names := strings.Split(strings.ReplaceAll(m, "-", "_"), "|")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// Clock formats a time for a message, in UTC so that it is the same for every reader.
func Clock(unix int64) string { return time.Unix(unix, 0).UTC().Format("2006-01-02T15:04:05Z") }

// Explained returns a title and a line for each pair of name and value that is not empty.
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

// Lasted returns a duration in the two largest units: "1 h 05 min", "14 min", "41 s".
func Lasted(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < 0:
		return "0 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}
