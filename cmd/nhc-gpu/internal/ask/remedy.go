package ask

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/remedy"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/repair"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// Remedy carries out the remedy that is due.
func Remedy(exit *int) *cobra.Command {
	var dry, asJSON bool
	cmd := &cobra.Command{
		Use:   "remedy [--dry-run]",
		Short: "Repair this node as far as nhc.toml permits",
		Long: `Carries out the remedy that is due for the failures of the last health check, if
[remedy.NAME] of nhc.toml permits it: a reboot through Slurm, a reset of a GPU, the
restart of a service, or the site's own program. nhc-gpu must have drained the node,
no job may be on it, and no person may have ordered something else. Then the checks
that found the fault must pass before the node returns. After too many tries the
next remedy is carried out, and after the last one the node is held for RMA.
A health check that slurmd starts does this in the background: no one has to call
it. Without such a table it does nothing. Needs root.

Exit status: 0, 1 the remedy failed or was not possible, 3 the configuration cannot
be used, 10 wrong arguments or not root.`,
		Example: `  nhc-gpu remedy --dry-run
  nhc-gpu remedy
  nhc-gpu clear --remedy gpu3`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be done now, and why; do nothing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "with --dry-run: print one object of JSON")
	cmd.RunE = func(_ *cobra.Command, words []string) error {
		if asJSON && !dry {
			return options.Wrong{Err: errors.New("--json requires --dry-run")}
		}
		return carryOut(words, dry, asJSON, exit)
	}
	return cmd
}

func carryOut(words []string, dry, asJSON bool, exit *int) error {
	r, err := openPast("remedy", words)
	if err != nil {
		return err
	}
	defer r.Close()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if r.Config == nil || len(r.Config.Remedies) == 0 {
		fmt.Fprintln(console.Screen, "no remedy: nhc.toml has no [remedy.NAME]")
		return nil
	}
	if !dry {
		if err := node.BeginRepair(r.Node, 0); errors.Is(err, node.ErrUnderRepair) {
			fmt.Fprintln(console.Screen, "no remedy:", err)
			return nil
		} else if err != nil {
			return err
		}
	}
	rep, err := repair.New(r.Node, r.Config.Remedies, self, words)
	if err != nil {
		return err
	}
	if dry {
		return printRemedy(rep, asJSON)
	}
	did, err := rep.Run(time.Now())
	if did != "" {
		fmt.Fprintln(console.Screen, did)
	}
	if err != nil {
		fmt.Fprintln(console.Alerts, "nhc-gpu: remedy:", err)
		sink.Syslog(r.Set.Get("NAME"), []string{"Remedy:  " + err.Error()})
		*exit = 1
	}
	if strings.Contains(did, ": failed: ") {
		*exit = 1
	}
	return nil
}

// dueRemedy is the output of remedy --dry-run.
type dueRemedy struct {
	Do       string           `json:"do,omitempty"` // "" for nothing
	Faults   []remedy.Fault   `json:"faults,omitempty"`
	Command  []string         `json:"command,omitempty"`
	Why      string           `json:"why,omitempty"`   // why no remedy is due
	Waits    string           `json:"waits,omitempty"` // what speaks against it now
	Attempts []remedy.Attempt `json:"attempts,omitempty"`
	Holds    []remedy.Hold    `json:"holds,omitempty"`
}

func printRemedy(rep *repair.Repair, asJSON bool) error {
	next, against, err := rep.Choose(time.Now())
	if err != nil {
		return err
	}
	d := dueRemedy{Do: next.Do, Faults: next.Faults, Command: next.Command, Why: next.Why, Waits: against, Attempts: rep.Record.Attempts, Holds: append(rep.Record.Holds, next.Holds...)}
	if asJSON {
		return json.NewEncoder(console.Screen).Encode(d)
	}
	row := func(name, format string, args ...any) {
		fmt.Fprintf(console.Screen, "%-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	switch {
	case d.Why != "":
		row("remedy", "none: %s", d.Why)
	case d.Waits != "":
		row("remedy", "%s waits: %s", d.Do, d.Waits)
	default:
		row("remedy", "%s now%s", d.Do, checks.Before(", by ", strings.Join(d.Command, " "), ""))
	}
	for _, f := range d.Faults {
		row("fault", "%s (%s)", f, f.Check)
	}
	for _, a := range d.Attempts {
		result := "under way"
		switch {
		case a.Error != "":
			result = "failed: " + a.Error
		case a.Done:
			result = "the checks passed"
		}
		row("tried", "%s  %s for %s: %s", a.Begin.Local().Format(clock), a.Do, a.Fault, result)
	}
	for _, h := range d.Holds {
		row("hold", "%s since %s: nhc-gpu clear --remedy ends it", h.Fault, h.Since.Local().Format(clock))
	}
	return nil
}
