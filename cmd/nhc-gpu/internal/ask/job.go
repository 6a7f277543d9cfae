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
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// lastJobs is how many jobs are listed where none is named.
const lastJobs = 20

// Job prints what is known of a job on this node.
func Job() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "job [ID]",
		Short: "Print what happened on this node while a job ran",
		Long: `Prints the record of a job: what its prolog and its epilog have found, which
errors the kernel has logged between them, and how far counters have gone on.
Without ID the last jobs, a line each. Needs root, and this node's epilog to be
nhc-gpu --epilog.`,
		Example: `  nhc-gpu job 1234
  nhc-gpu job --json 1234`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, words []string) error { return printJobs(words, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the record as it is kept, an object a line")
	return c
}

func printJobs(words []string, asJSON bool) error {
	r, rest, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	switch {
	case r.Bad != nil:
		return r.Bad
	case r.Set.Past == "":
		return errors.New("job: only root can read the records of jobs")
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	list, err := r.Records.All()
	switch {
	case err != nil:
		return err
	case len(rest) > 1:
		return fmt.Errorf("job %s: want one ID", strings.Join(rest, " "))
	case len(rest) == 1:
		list = slices.DeleteFunc(list, func(r *slurm.Record) bool { return r.Job != rest[0] })
		if len(list) == 0 {
			return fmt.Errorf("job %s: no record of it on node %s", rest[0], r.Name)
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
