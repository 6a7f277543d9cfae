package conf

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// parsePlatforms parses the [[platform]] tables that contain the text. [sources] before them can
// name long sources.
//
// The decoder keeps one position for each key, that of the last table. Therefore each table is
// decoded separately, after as many empty lines as there are before it. If text is not valid TOML,
// the positions of errors are approximate.
func parsePlatforms(file, text, having string) ([]Platform, error) {
	r := platformReader{file: file, sources: map[string]string{}}
	begin := 1
	for _, line := range append(headerLines(text, "platform"), 0) {
		if section := lineRange(text, begin, line); begin == 1 || strings.Contains(section, having) {
			r.section(section, begin)
		}
		begin = line
	}
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	r.cite()
	return r.list, nil
}

// lineRange returns the text from one line to another; 0 is its end.
func lineRange(text string, from, to int) string {
	lines := strings.SplitAfter(text, "\n")
	if to == 0 {
		to = len(lines) + 1
	}
	return strings.Join(lines[from-1:to-1], "")
}

type platformReader struct {
	file    string
	list    []Platform
	sources map[string]string
	errs    []error
}

// section reads the section of one [[platform]], or the text before the first.
func (r *platformReader) section(text string, line int) {
	var root map[string]toml.Primitive
	md, err := toml.Decode(strings.Repeat("\n", line-1)+text, &root)
	if err != nil {
		r.errs = append(r.errs, tomltext.Place(r.file, err))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(root)) {
		switch kind := md.Type(key); {
		case key == "platform" && kind == "ArrayHash":
			var tables []map[string]toml.Primitive
			r.note(md.PrimitiveDecode(root[key], &tables))
			for _, t := range tables {
				r.platform(&md, t, Pos{r.file, line}, text)
			}
		case key == "sources" && kind == "Hash":
			r.note(md.PrimitiveDecode(root[key], &r.sources))
		case key == "platform" && len(headerLines(text, "platform.floor")) > 0:
			at := Pos{r.file, line + headerLines(text, "platform.floor")[0] - 1}
			r.errs = append(r.errs, fmt.Errorf("%s: a floor before any [[platform]]: want it after its [[platform]]", at))
		default:
			r.note(md.PrimitiveDecode(root[key], mistake("unknown key "+key+": want "+spell.OneOf(key, []string{"[[platform]]", "[sources]"}))))
		}
	}
}

func (r *platformReader) note(err error) {
	if err != nil {
		r.errs = append(r.errs, tomltext.Place(r.file, err))
	}
}

// platform reads one table; text is the text of its section.
func (r *platformReader) platform(md *toml.MetaData, table map[string]toml.Primitive, pos Pos, text string) {
	p := Platform{Pos: pos, Figures: map[string]Figure{}}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		switch _, isFigure := FigureKinds[key]; {
		case key == "name":
			r.note(md.PrimitiveDecode(table[key], &p.Name))
		case key == "devices":
			ids := idList{want: "PCI device ids of 4 hexadecimal digits", groups: 1}
			r.note(md.PrimitiveDecode(table[key], &ids))
			p.Devices = ids.list
		case key == "subsystems":
			ids := idList{want: `PCI subsystem ids like "10de:16c1"`, groups: 2}
			r.note(md.PrimitiveDecode(table[key], &ids))
			p.Subsystems = ids.list
		case key == "floor":
			var floors []map[string]any
			if err := md.PrimitiveDecode(table[key], &floors); err != nil {
				r.note(err)
			} else {
				r.floors(&p, floors, text, pos.Line)
			}
		case isFigure:
			f := figureReader{key: key}
			r.note(md.PrimitiveDecode(table[key], &f))
			p.Figures[key] = f.figure
		default:
			r.note(md.PrimitiveDecode(table[key], mistake("unknown key "+key+": want "+spell.OneOf(key, append([]string{"name", "devices", "subsystems", "[[platform.floor]]"}, FigureKeys()...)))))
		}
	}
	if p.Name == "" {
		r.errs = append(r.errs, fmt.Errorf("%s: no name, want name = \"...\"", pos))
	}
	r.list = append(r.list, p)
}

// cite replaces names of sources by the sources. A figure without a source is the
// site's own.
func (r *platformReader) cite() {
	for _, p := range r.list {
		for key, f := range p.Figures {
			if text, ok := r.sources[f.Source]; ok {
				f.Source = text
			}
			if f.Source == "" {
				f.Source = p.Pos.String()
			}
			p.Figures[key] = f
		}
	}
}

// mistake makes the decoder report a key with its position.
type mistake string

// UnmarshalTOML implements [toml.Unmarshaler].
func (m mistake) UnmarshalTOML(any) error { return errors.New(string(m)) }

// idList reads hexadecimal numbers of four digits each, in groups separated by ":".
type idList struct {
	want   string
	groups int
	list   []string
}

// UnmarshalTOML implements [toml.Unmarshaler].
func (l *idList) UnmarshalTOML(v any) error {
	items, ok := v.([]any)
	if !ok || len(items) == 0 {
		return fmt.Errorf("%s: want a list of %s", tomltext.Value(v), l.want)
	}
	for _, item := range items {
		text, ok := item.(string)
		id := strings.ToLower(text)
		groups := strings.Split(id, ":")
		if !ok || len(groups) != l.groups || slices.ContainsFunc(groups, notID) {
			return fmt.Errorf("%s: want %s", tomltext.Value(item), l.want)
		}
		l.list = append(l.list, id)
	}
	return nil
}

func notID(s string) bool { return len(s) != 4 || strings.Trim(s, "0123456789abcdef") != "" }

// figureReader reads 700, [4, 8] or { value = 700, source = "..." }.
type figureReader struct {
	key    string
	figure Figure
}

// UnmarshalTOML implements [toml.Unmarshaler].
func (r *figureReader) UnmarshalTOML(v any) error {
	table, ok := v.(map[string]any)
	if !ok {
		return r.values(v)
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		ok := true
		switch key {
		case "value":
		case "at":
			r.figure.At, ok = table[key].(string)
		case "source":
			r.figure.Source, ok = table[key].(string)
		case "verified":
			r.figure.Verified, ok = table[key].(bool)
		default:
			return fmt.Errorf("%s: unknown key %s: want %s", r.key, key, spell.OneOf(key, []string{"value", "at", "source", "verified"}))
		}
		if !ok {
			return fmt.Errorf("%s: %s = %s: want %s", r.key, key, tomltext.Value(table[key]), map[string]string{"at": "text in quotes", "source": "text in quotes", "verified": "true or false"}[key])
		}
	}
	return r.values(table["value"])
}

func (r *figureReader) values(v any) error {
	kind := FigureKinds[r.key]
	items, isList := v.([]any)
	if !isList {
		items = []any{v}
	}
	for _, item := range items {
		n, err := kind.number(item)
		if err != nil {
			return fmt.Errorf("%s = %s: %w", r.key, tomltext.Value(item), err)
		}
		r.figure.Values = append(r.figure.Values, n)
	}
	switch {
	case len(items) == 1:
	case kind.Words != nil:
		return fmt.Errorf("%s = %s: want one word", r.key, tomltext.Value(v))
	case !kind.Several || len(items) == 0:
		return fmt.Errorf("%s = %s: want one number", r.key, tomltext.Value(v))
	}
	slices.Sort(r.figure.Values)
	return nil
}

// number returns the value of a number, or of a word.
func (k *FigureKind) number(item any) (int, error) {
	if k.Words != nil {
		word, _ := item.(string)
		if at := slices.Index(k.Words, word); at >= 0 {
			return at + 1, nil
		}
		return 0, errors.New("want " + strings.Join(k.Words, ", "))
	}
	n, ok := item.(int64)
	if !ok || n < 0 || n > int64(k.Most) || n == 0 && !k.None {
		return 0, fmt.Errorf("want a whole number up to %d", k.Most)
	}
	if k.Only != nil && !slices.Contains(k.Only, int(n)) {
		return 0, fmt.Errorf("want one of %s", strings.Trim(strings.ReplaceAll(fmt.Sprint(k.Only), " ", ", "), "[]"))
	}
	return int(n), nil
}
