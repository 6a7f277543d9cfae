package ask

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// lastJobs is the number of jobs that are listed if none is named.
const lastJobs = 20

// Job shows the records of jobs on this node.
func Job() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "job [ID]",
		Short: "Show what happened on this node while a job ran",
		Long: `Prints the record of a job: what its prolog and its epilog found, which errors the
kernel logged between them, and how far error counters rose. Without ID lists the
last jobs, one per line. Needs root, and nhc-gpu as prolog and epilog.

Exit status: 0, 10 if there is no record of the job, or not root.`,
		Example: `  nhc-gpu job
  nhc-gpu job 1234
  nhc-gpu job --json 1234`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			return firstOf(words, lastIDs())
		},
		RunE: func(_ *cobra.Command, words []string) error { return printJobs(words, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print each record as one object of JSON per line")
	return c
}

func printJobs(words []string, asJSON bool) error {
	list, rest, node, err := records(words)
	switch {
	case err != nil:
		return err
	case len(rest) > 1:
		return options.Wrong{Err: fmt.Errorf("surplus argument %q: want one job ID", rest[1])}
	case len(rest) == 1:
		list = slices.DeleteFunc(list, func(r *slurm.Record) bool { return r.Job != rest[0] })
		if len(list) == 0 {
			return fmt.Errorf("job %s: there is no record of it on node %s; nhc-gpu job lists the last jobs", rest[0], node)
		}
	default:
		list = list[max(0, len(list)-lastJobs):]
	}
	for i, r := range list {
		switch {
		case asJSON:
			if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
				return fmt.Errorf("print the record of job %s: %w", r.Job, err)
			}
		case len(rest) == 0:
			fmt.Fprintln(console.Screen, r.Line())
		default:
			if i > 0 {
				fmt.Fprintln(console.Screen)
			}
			fmt.Fprint(console.Screen, r.Text())
		}
	}
	return nil
}

// records returns the records of this node, the arguments other than settings, and the node's
// name.
func records(words []string) (list []*slurm.Record, rest []string, node string, err error) {
	r, rest, err := xidRun(words)
	if err != nil {
		return nil, nil, "", err
	}
	defer r.Close()
	switch {
	case r.Bad != nil:
		return nil, nil, "", r.Bad
	case r.Set.Past == "":
		return nil, nil, "", errors.New("job: only root can read the records of jobs")
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	list, err = r.Judge.Records.All()
	return list, rest, r.Name, err
}

// lastIDs returns what a shell completes: the last jobs, each with its line.
func lastIDs() (ids []string) {
	list, _, _, err := records(nil)
	if err != nil {
		return nil
	}
	for _, r := range list[max(0, len(list)-lastJobs):] {
		ids = append(ids, r.Job+"\t"+strings.TrimSpace(r.Line()))
	}
	return ids
}
