package lint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/nhc-gpu/nhc-gpu/checks/policy"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// PrintPolicies prints the policies that hold on this node: those of the site, and the defaults.
func PrintPolicies(f *open.Files) error {
	fmt.Fprintf(console.Screen, "# every other code: %s; a check has the policies of its class, of its own and of the codes it finds, the last ones first\n", policy.Words(policy.For(nil, conf.Policy{}, policy.Subject{})))
	w := tabwriter.NewWriter(console.Screen, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "CODE, CHECK, CLASS\tPOLICY\tFROM\tWHY")
	for _, row := range policyRows(f.Config) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("print policies: %w", err)
	}
	return nil
}

// policyRows returns name, policy, place and reason of each policy, sorted by name.
func policyRows(site *conf.Config) (rows [][]string) {
	if site == nil {
		site = &conf.Config{}
	}
	names := maps.Clone(policy.Defaults().Policies)
	maps.Copy(names, site.Policies)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		p, from := site.Policies[name], "default"
		if pos, ok := site.Places[name]; ok {
			from = pos.String()
		}
		if conf.IsCode(name) {
			p = policy.For(site, conf.Policy{}, policy.Subject{Code: name})
		}
		rows = append(rows, []string{name, policy.Words(p), from, cmp.Or(p.Why, "-")})
	}
	return rows
}
