package ask

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// checksCommand lists the checks.
func checksCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "checks [GROUP|WORD]",
		Short: "List the built-in checks",
		Long: `Lists the built-in checks, those of LBNL NHC included, one per line: the name and
what the check expects. GROUP is ` + strings.Join(checks.Groups[:len(checks.Groups)-1], ", ") + ` or ` + checks.Groups[len(checks.Groups)-1] + `.
Checks of the group active load the node; the others only look at it. For any other
word it searches checks, codes and recipes, as nhc-gpu explain does.

Exit status: 0, 10 if there is no such group and the search finds nothing.`,
		Example: `  nhc-gpu checks
  nhc-gpu checks gpu
  nhc-gpu checks raid
  nhc-gpu explain check_gpu_ecc`,
		Args: options.Takes(0, 1, "one group"),
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			return firstOf(words, checks.Groups)
		},
		RunE: func(_ *cobra.Command, words []string) error {
			groups := checks.Groups
			if len(words) > 0 {
				i := slices.IndexFunc(groups, func(g string) bool { return strings.EqualFold(g, words[0]) })
				if i < 0 {
					near := spell.DidYouMean(words[0], groups)
					if near == "" && printAnswer(wire.AskMessage, words) == nil {
						return nil
					}
					if near == "" {
						return options.Wrong{Err: fmt.Errorf("no group, check, code or recipe has %q: the groups are %s", words[0], strings.Join(groups, ", "))}
					}
					return options.Wrong{Err: fmt.Errorf("there is no group %q%s", words[0], near)}
				}
				groups = groups[i : i+1]
			}
			fmt.Fprint(console.Screen, listChecks(groups))
			return nil
		},
	}
}

func listChecks(groups []string) string {
	var b strings.Builder
	width := 0
	for _, name := range checks.Names() {
		width = max(width, len(name))
	}
	for i, group := range groups {
		if len(groups) > 1 {
			fmt.Fprintf(&b, "%s%s\n", strings.Repeat("\n", min(i, 1)), group)
		}
		for _, name := range checks.Names() {
			if info, _ := checks.Lookup(name); info.Group() == group {
				fmt.Fprintf(&b, "  %-*s  %s\n", width, name, info.Summary)
			}
		}
	}
	return b.String()
}

// NamesOfChecks returns what a shell completes: each name with what the check expects.
func NamesOfChecks() (names []string) {
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		names = append(names, name+"\t"+info.Summary)
	}
	return names
}

// firstOf completes the first argument of a command.
func firstOf(words, known []string) ([]string, cobra.ShellCompDirective) {
	if len(words) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return known, cobra.ShellCompDirectiveNoFileComp
}

// explainable returns what a shell completes behind explain: checks and codes.
func explainable() []string {
	names := NamesOfChecks()
	for _, code := range checks.Codes() {
		names = append(names, code+"\t"+checks.Words(code))
	}
	return names
}
