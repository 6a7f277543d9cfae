package ask

import (
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"
	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
)

const explainName = "explain"

// maxWords is the highest number of arguments of a message that the shell has split.
const maxWords = 1000

// explainCommand explains a check or whatever a check has reported.
func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   explainName + " NAME|CODE|MESSAGE",
		Short: "Explain a check, code, message, reason, Xid or counter",
		Long: `Explains one of
  - the name of a check: usage, arguments with units and defaults, findings, examples
  - the code of a finding (gpu.recovery.lost), or the first part of one (gpu.ecc)
  - a message of nhc-gpu, or a reason as sinfo -R shows it
  - a line of the kernel's log, with or without the prefix of dmesg or syslog
  - an Xid or SXid (79, sxid:12028)
  - an error counter (symbol_error)
For an error: what it means, how the checks judge it, what to do, and the source.

Exit status: 0, 10 if nothing is known about it.`,
		Example: `  nhc-gpu explain check_gpu_ecc
  nhc-gpu explain gpu.recovery.lost
  nhc-gpu explain 'NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost]'
  nhc-gpu explain 'mlx5_core 0000:bb:00.0: poll_health:1083:(pid 0): Fatal error 1 detected'
  nhc-gpu explain 79`,
		Args: options.Takes(1, maxWords, "a check, a code or a message"),
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			return firstOf(words, explainable())
		},
		RunE: func(_ *cobra.Command, words []string) error { return printAnswer(wire.AskMessage, words) },
	}
	cmd.Flags().SetInterspersed(false) // a message may have words that begin with a dash
	return cmd
}

// printAnswer has a worker answer a question, and prints the answer.
func printAnswer(question string, words []string) error {
	r, rest, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	resp, err := r.Ask(question, rest)
	if err != nil {
		return err
	}
	fmt.Fprint(console.Screen, console.Fit(resp.Text))
	return nil
}

// xidRun is a run for a person who asks about the node as check_gpu_xid sees it, with the
// settings of the node's configuration and of the arguments. rest are the other arguments. If the
// configuration cannot be used, a warning says so, and its settings are not used.
func xidRun(words []string) (r *health.Run, rest []string, err error) {
	var given []string
	for _, w := range words {
		if isSetting(w) {
			given = append(given, w)
			continue
		}
		rest = append(rest, w)
	}
	r, _, err = report.Open(&options.Options{Words: given}, report.Options{})
	if err != nil {
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %v: settings in it are not used\n", err)
		if r, err = report.Start(&options.Options{Words: given}); err != nil {
			return nil, nil, err
		}
	} else {
		maps.Copy(r.Set.Vars, assignedBefore(r.Plan, "check_gpu_xid"))
	}
	return r, rest, nil
}

// isSetting reports whether an argument is NAME=value.
func isSetting(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	return ok && syntax.ValidName(name) && name == strings.ToUpper(name)
}

// assignedBefore returns what the lines of a plan assign before a check; without that check, what
// they assign at all.
func assignedBefore(p *plan.Plan, check string) map[string]string {
	vars := map[string]string{}
	for i := range p.Steps {
		if p.Steps[i].Name == check {
			break
		}
		for _, v := range p.Steps[i].Sets {
			vars[v.Name] = v.Value
		}
	}
	return vars
}
