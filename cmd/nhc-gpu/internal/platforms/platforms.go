// Package platforms prints the kinds of GPU nodes that are known, and the source of each figure.
package platforms

import (
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
)

// Command returns the command.
func Command() *cobra.Command {
	var name string
	cmd := options.With(&cobra.Command{
		Use:   "platforms [NAME|DEVICE] [LBNL options]",
		Short: "Print what is known of kinds of GPU nodes, and from where",
		Long: `Lists the platforms of /etc/nhc/profiles.toml and of this program; * marks that
of this node. With the name of one, or the PCI device id of its GPUs, its figures
are printed, each with its source: what is meant otherwise can be copied to
/etc/nhc/profiles.toml and changed there (docs/thresholds.md).`,
		Example: `  nhc-gpu platforms
  nhc-gpu platforms 'HGX H100'
  nhc-gpu platforms 2330`,
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
		return printPlatform(list, name)
	}
	var here []string
	groups, _ := r.PlatformGroups() // plan and --check tell why it cannot be read
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", mark, p.Name, strings.Join(p.Devices, " "), gpus, p.Pos)
	}
	if err := w.Flush(); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("print platforms: %w", err)
	}
	return nil
}

func printPlatform(list []conf.Platform, name string) error {
	id := strings.TrimPrefix(strings.ToLower(name), "10de:")
	found := false
	for i := range list {
		if p := &list[i]; strings.EqualFold(p.Name, name) || slices.Contains(p.Devices, id) {
			if found {
				fmt.Fprintln(console.Screen)
			}
			fmt.Fprint(console.Screen, p.TOML())
			found = true
		}
	}
	if !found {
		return fmt.Errorf("no platform has the name or the PCI device id %q; nhc-gpu platforms lists them", name)
	}
	return nil
}
