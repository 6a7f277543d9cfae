package conf

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// Entry is one [[check]] table.
type Entry struct {
	Pos    Pos            // position of its [[check]]
	Name   string         // as in nhc.conf: check_fs_mount_rw
	Hosts  string         // match expression, "*" by default
	Params map[string]any // every other key

	Policy // contexts and action of the table
}

//go:embed default.toml
var defaultTOML []byte

// Default returns the plan for a node without a configuration: checks for any Linux
// machine.
func Default() ([]Entry, error) {
	c, err := ParseTOML("default.toml", defaultTOML)
	if err != nil {
		return nil, err
	}
	return c.Checks, nil
}

// checkTables reads [[check]] tables in order. The key name is the check, with or without "check_",
// hosts selects the hosts, contexts and action are its policy; all other keys are its
// parameters.
func (d *decoder) checkTables(text string, check toml.Primitive) (entries []Entry) {
	var tables []map[string]any
	if err := d.md.PrimitiveDecode(check, &tables); err != nil {
		d.add(err)
		return nil
	}
	lines := headerLines(text, "check")
	if len(lines) != len(tables) {
		d.errs = append(d.errs, fmt.Errorf("%s: %d [[check]] lines for %d tables", d.file, len(lines), len(tables)))
		return nil
	}
	for i, table := range tables {
		e, err := newEntry(Pos{d.file, lines[i]}, table)
		if err != nil {
			d.errs = append(d.errs, err)
			continue
		}
		entries = append(entries, e)
	}
	return entries
}

func newEntry(pos Pos, table map[string]any) (e Entry, err error) {
	e = Entry{Pos: pos, Hosts: "*", Params: table}
	if e.Name, err = takeString(table, "name", ""); err == nil {
		e.Hosts, err = takeString(table, "hosts", "*")
	}
	for key, take := range map[string]func(any) error{"contexts": e.takeContexts, "action": e.takeAction} {
		value, given := table[key]
		if !given || err != nil {
			continue
		}
		if err = take(value); err != nil {
			err = fmt.Errorf("%s: %w", key, err)
		}
		delete(table, key)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("%s: %w", pos, err)
	}
	e.Name = checkName(e.Name)
	return e, nil
}

// checkName returns the name of a check as in nhc.conf.
func checkName(name string) string {
	if strings.HasPrefix(name, "check_") {
		return name
	}
	return "check_" + name
}

// takeString removes a key from table.
func takeString(table map[string]any, key, otherwise string) (string, error) {
	value, given := table[key]
	if !given {
		value = otherwise
	}
	text, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s = %s: want text in quotes", key, tomltext.Value(value))
	}
	if text == "" {
		return "", fmt.Errorf("no %s, want %s = \"...\"", key, key)
	}
	delete(table, key)
	return text, nil
}

// headerLines returns the line of every [[name]] header in a text that the decoder has accepted. The
// decoder does not provide these lines.
func headerLines(text, name string) (lines []int) {
	line, depth := 1, 0
	for atStart := true; text != ""; {
		switch c := text[0]; {
		case c == '\n':
			line++
			atStart = true
		case c == ' ', c == '\t', c == '\r':
		case atStart && depth == 0 && strings.HasPrefix(text, "[["):
			header, _, _ := strings.Cut(text[2:], "]]")
			if strings.Trim(header, "\"' \t") == name {
				lines = append(lines, line)
			}
			text = text[2+len(header)+2:]
			atStart = false
			continue
		case c == '[':
			depth++
			atStart = false
		case c == ']':
			depth--
		case c == '#':
			comment, _, _ := strings.Cut(text, "\n")
			text = text[len(comment):]
			continue
		case c == '"', c == '\'':
			s := tomlString(text)
			line += strings.Count(s, "\n")
			text = text[len(s):]
			atStart = false
			continue
		default:
			atStart = false
		}
		text = text[1:]
	}
	return lines
}

// tomlString returns the string at the beginning of text, with its quotes.
func tomlString(text string) string {
	quote, basic := text[:1], text[0] == '"'
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(text, triple) {
		quote = triple
	}
	end := len(quote)
	for end < len(text) && !strings.HasPrefix(text[end:], quote) {
		if basic && text[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end+len(quote), len(text))
	for range 2 { // up to two quotes can precede the closing three
		if len(quote) == 3 && strings.HasPrefix(text[end:], quote[:1]) {
			end++
		}
	}
	return text[:end]
}
