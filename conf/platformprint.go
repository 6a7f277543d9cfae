package conf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// All returns the platforms of the site, then the built-in ones that the site does not
// change.
func (l *Platforms) All() ([]Platform, error) {
	shipped, err := ShippedPlatforms()
	if err != nil {
		return nil, err
	}
	list := slices.Clone(l.site)
	for i := range shipped {
		if !slices.ContainsFunc(l.site, func(p Platform) bool { return p.Name == shipped[i].Name }) {
			list = append(list, shipped[i])
		}
	}
	return list, nil
}

// TOML returns the platform as a file of profiles, with a comment for each figure.
func (p *Platform) TOML() string {
	var b strings.Builder
	fmt.Fprintf(&b, "[[platform]] # %s\nname = %s\ndevices = %s\n", p.Pos, strconv.Quote(p.Name), quoted(p.Devices))
	if len(p.Subsystems) > 0 {
		fmt.Fprintf(&b, "subsystems = %s\n", quoted(p.Subsystems))
	}
	for _, judged := range []bool{true, false} {
		if !judged {
			b.WriteString("\n# No check uses these figures; they are for comparison with measurements.\n")
		}
		for _, key := range FigureKeys() {
			kind := FigureKinds[key]
			f, known := p.Figures[key]
			if !known || kind.Judged != judged {
				continue
			}
			what := kind.What
			if kind.Unit != "" {
				what += ", " + kind.Unit
			}
			if kind.Words != nil {
				what += ": " + strings.Join(kind.Words, ", ")
			}
			fmt.Fprintf(&b, "\n# %s\n%s = { value = %s, ", what, key, f.value(kind.Words))
			if f.At != "" {
				fmt.Fprintf(&b, "at = %s, ", strconv.Quote(f.At))
			}
			fmt.Fprintf(&b, "source = %s, verified = %v }\n", strconv.Quote(f.Source), f.Verified)
		}
	}
	p.floorsTOML(&b)
	return b.String()
}

// floorsTOML writes the floors after the figures.
func (p *Platform) floorsTOML(b *strings.Builder) {
	if len(p.Floors) > 0 {
		b.WriteString("\n# Minimum results of tests on such a node (docs/active.md).\n")
	}
	for i := range p.Floors {
		f := &p.Floors[i]
		fmt.Fprintf(b, "\n[[platform.floor]] # %s\ntest = %s\nalgorithm = %s\n", f.Pos, strconv.Quote(f.Test), strconv.Quote(f.Algorithm))
		switch sized := floorTests()[f.Test].Sized; {
		case f.Size == 0:
		case sized == "bytes":
			fmt.Fprintf(b, "size = %q\n", sizeWord(f.Size, sized))
		default:
			fmt.Fprintf(b, "size = %d\n", f.Size)
		}
		fmt.Fprintf(b, "ranks = %d\nvalue = %s\nunit = %s\nsource = %s\nverified = %v\n",
			f.Ranks, strconv.FormatFloat(f.Value, 'f', -1, 64), strconv.Quote(f.Unit), strconv.Quote(f.Source), f.Verified)
	}
}

// value returns the number, the list of numbers, or the word, in TOML syntax.
func (f *Figure) value(words []string) string {
	var items []string
	for _, v := range f.Values {
		if words != nil {
			items = append(items, strconv.Quote(words[v-1]))
		} else {
			items = append(items, strconv.Itoa(v))
		}
	}
	if len(items) == 1 {
		return items[0]
	}
	return "[" + strings.Join(items, ", ") + "]"
}

func quoted(list []string) string {
	var items []string
	for _, s := range list {
		items = append(items, strconv.Quote(s))
	}
	return "[" + strings.Join(items, ", ") + "]"
}
