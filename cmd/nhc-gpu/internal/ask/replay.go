package ask

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/policy"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Replay shows what a policy would have done on recorded events.
func Replay() *cobra.Command {
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "replay --policy FILE.toml EVENTS.jsonl ...",
		Short: "Show what other policies would have done",
		Long: `Reads recorded events of one node or of many, as [output] jsonl of nhc.toml writes
them, and prints for each code how often nodes were drained and resumed and for how
many hours, as it was and with the policies of FILE.toml. - is standard input. The
lines of a node must be in the order of their times. Reads nothing else of the node.

An event has the failures of its run: a policy of another check or another limit cannot
be replayed. Drains and resumes by persons are not replayed.

Exit status: 0, 10 wrong arguments, or a file cannot be read.`,
		Example: `  nhc-gpu replay --policy new.toml /var/log/nhc-gpu.jsonl
  cat /shared/events/*.jsonl | nhc-gpu replay --policy new.toml -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, words []string) error {
			if file == "" || len(words) == 0 {
				return options.Wrong{Err: errors.New("missing argument: want --policy FILE.toml and at least one file of events, or - for standard input")}
			}
			return replay(file, words, asJSON)
		},
	}
	cmd.Flags().StringVar(&file, "policy", "", "the nhc.toml with the policies")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object of JSON")
	return cmd
}

func replay(file string, sources []string, asJSON bool) error {
	data, err := os.ReadFile(file) //nolint:forbidigo // a person names it, and waits for it
	if err != nil {
		return fmt.Errorf("read policies: %w", err)
	}
	site, err := conf.ParseTOML(file, data)
	if err == nil {
		err = plan.UnknownPolicy(site)
	}
	if err != nil {
		return options.Wrong{Err: err}
	}
	r := policy.NewReplay(site)
	for _, path := range sources {
		if err := readEvents(path, r.Add); err != nil {
			return err
		}
	}
	if r.Events == 0 {
		return errors.New("replay: there is no event")
	}
	if len(r.Left) > 0 {
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: not replayed: contexts and action of [[check]] %s: the tables of a check differ, or name hosts\n", strings.Join(r.Left, ", "))
	}
	if r.Late > 0 {
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %s older than the event before: sort the lines of each node by time\n", console.Counted(r.Late, "event"))
	}
	list := r.Effects()
	if asJSON {
		out := struct {
			Events int              `json:"events"`
			Nodes  int              `json:"nodes"`
			Late   int              `json:"late"`
			From   any              `json:"from"`
			To     any              `json:"to"`
			Codes  []policy.Effects `json:"codes"`
		}{r.Events, r.Nodes(), r.Late, r.From, r.To, append([]policy.Effects{}, list...)}
		if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
			return fmt.Errorf("print the effects: %w", err)
		}
		return nil
	}
	fmt.Fprintf(console.Screen, "%s of %s, %s to %s; policies of %s\n", console.Counted(r.Events, "event"), console.Counted(r.Nodes(), "node"),
		r.From.Local().Format(clock), r.To.Local().Format(clock), file)
	w := tabwriter.NewWriter(console.Screen, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "drains\twould\tresumes\twould\tnode-hours\twould\t  code")
	total := policy.Effects{Code: "all"}
	row := func(e policy.Effects) {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%.1f\t%.1f\t  %s\n", e.Done.Drains, e.Replayed.Drains, e.Done.Resumes, e.Replayed.Resumes, e.Done.Hours, e.Replayed.Hours, e.Code)
	}
	for _, e := range list {
		row(e)
		total.Done, total.Replayed = total.Done.Plus(e.Done), total.Replayed.Plus(e.Replayed)
	}
	row(total)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the effects: %w", err)
	}
	return nil
}
