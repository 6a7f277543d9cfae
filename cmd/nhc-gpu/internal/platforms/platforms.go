// Package platforms prints the known GPU platforms, and the source of each figure.
package platforms

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// Command returns the command.
func Command() *cobra.Command {
	var name string
	cmd := options.With(&cobra.Command{
		Use:   "platforms [NAME|DEVICE] [LBNL options]",
		Short: "List known GPU platforms and the source of each figure",
		Long: `Lists the platforms of /etc/nhc/profiles.toml and the built-in ones; * marks that of
this node. NAME (or a part of it), or the PCI device ID of the GPUs, prints the
figures of one platform with their sources. To change a figure, copy the table to
/etc/nhc/profiles.toml and edit it there (/usr/share/doc/nhc-gpu/docs/thresholds.md).

Exit status: 0, 3 if the configuration cannot be used, 10 if there is no such platform.`,
		Example: `  nhc-gpu platforms
  nhc-gpu platforms 'HGX H100'
  nhc-gpu platforms 2330`,
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(words) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return builtIn(), cobra.ShellCompDirectiveNoFileComp
		},
	}, func(o *options.Options) error { return printPlatforms(name, o) })
	withLetters := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		if len(words) > 0 && options.IsCommand(words[0]) {
			name, words = words[0], words[1:]
		}
		return withLetters(cmd, words)
	}
	return cmd
}

func printPlatforms(name string, o *options.Options) error {
	r, _, err := report.Open(o, report.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	known, err := conf.ParsePlatforms(r.Set.ProfilesFrom, r.Set.Profiles)
	if err != nil {
		return err
	}
	list, err := known.All()
	if err != nil {
		return err
	}
	if name != "" {
		matching, err := named(list, name)
		if err != nil {
			return options.Wrong{Err: err}
		}
		if !figuresOf(matching, name) {
			fmt.Fprintf(console.Screen, "%q is a part of several names; name one of them:\n", name)
			return listPlatforms(matching, nil)
		}
		for i := range matching {
			fmt.Fprint(console.Screen, strings.Repeat("\n", min(i, 1))+matching[i].TOML())
		}
		return nil
	}
	var here []string
	groups, _ := r.PlatformGroups() // plan and --check report an error
	for _, g := range groups {
		if g.Platform != nil {
			here = append(here, g.Platform.Name)
		}
	}
	return listPlatforms(list, here)
}

func listPlatforms(list []conf.Platform, here []string) error {
	w := tabwriter.NewWriter(console.Screen, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, " \tPLATFORM\tDEVICES\tGPUS\tFROM")
	for i := range list {
		p := &list[i]
		mark, gpus := " ", "any"
		if slices.Contains(here, p.Name) {
			mark = "*"
		}
		if n := p.GPUs(); len(n) > 0 {
			gpus = strings.Trim(fmt.Sprint(n), "[]")
		}
		from := p.Pos.String()
		if strings.HasPrefix(from, "conf/profiles/") { // in the source of the program
			from = "built-in"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", mark, p.Name, strings.Join(p.Devices, " "), gpus, from)
	}
	if err := w.Flush(); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("print platforms: %w", err)
	}
	return nil
}

// named returns the platforms with a name or a PCI device ID; without any, those whose name
// contains it.
func named(list []conf.Platform, name string) (matching []conf.Platform, err error) {
	matching = slices.DeleteFunc(slices.Clone(list), func(p conf.Platform) bool { return !is(&p, name) })
	if len(matching) > 0 {
		return matching, nil
	}
	var names []string
	for i := range list {
		p := &list[i]
		names = append(names, p.Name)
		if strings.Contains(strings.ToLower(p.Name), strings.ToLower(name)) {
			matching = append(matching, *p)
		}
	}
	if len(matching) == 0 {
		return nil, fmt.Errorf("there is no platform with the name or the PCI device ID %q%s", name, cmp.Or(spell.DidYouMean(name, names), "; nhc-gpu platforms lists them"))
	}
	return matching, nil
}

// is reports whether a platform has a name or a PCI device ID.
func is(p *conf.Platform, name string) bool {
	return strings.EqualFold(p.Name, name) || slices.Contains(p.Devices, strings.TrimPrefix(strings.ToLower(name), "10de:"))
}

// figuresOf reports whether the figures of platforms are to be printed: they have the name, or
// there is only one.
func figuresOf(matching []conf.Platform, name string) bool {
	return len(matching) == 1 || is(&matching[0], name)
}

// builtIn returns the names of the platforms of this program.
func builtIn() (names []string) {
	known, err := conf.ParsePlatforms("", nil)
	if err != nil {
		return nil
	}
	list, err := known.All()
	if err != nil {
		return nil
	}
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}
