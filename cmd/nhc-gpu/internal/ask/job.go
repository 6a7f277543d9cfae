package ask

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// lastJobs is the number of jobs that are listed if none is named.
const lastJobs = 20

// Job shows the records of jobs on this node.
func Job() *cobra.Command {
	var asJSON, watch bool
	c := &cobra.Command{
		Use:   "job [ID]",
		Short: "Show what happened on this node while a job ran",
		Long: `Prints the record of a job: what its prolog and its epilog found, which errors the
kernel logged between them, and how far error counters rose. Without ID lists the
last jobs, one per line. Needs root, and nhc-gpu as prolog and epilog.

If nhc-gpu monitor runs, a job that is on the node has samples, too: the load of its
GPUs and of the node's ports, and whether it makes progress.

Exit status: 0, 10 if there is no record of the job, or not root.`,
		Example: `  nhc-gpu job
  nhc-gpu job 1234
  nhc-gpu job 1234 --watch
  nhc-gpu job --json 1234`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			return firstOf(words, lastIDs())
		},
		RunE: func(_ *cobra.Command, words []string) error { return printJobs(words, asJSON, watch) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print each record as one object of JSON per line")
	c.Flags().BoolVar(&watch, "watch", false, "print the samples of a running job every 5 seconds, until it ends")
	return c
}

// watchPause is the time between two looks at a job.
const watchPause = 5 * time.Second

func printJobs(words []string, asJSON, watch bool) error {
	r, list, rest, err := records(words)
	if err != nil {
		return err
	}
	defer r.Close()
	samples := ""
	if len(rest) == 1 && !asJSON {
		if samples, err = readSamples(r, rest[0]); err != nil { // the record is there all the same
			fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
		}
	}
	switch {
	case watch && len(rest) != 1:
		return options.Wrong{Err: errors.New("--watch: want one job ID")}
	case len(rest) > 1:
		return options.Wrong{Err: fmt.Errorf("surplus argument %q: want one job ID", rest[1])}
	case len(rest) == 1:
		list = slices.DeleteFunc(list, func(r *slurm.Record) bool { return r.Job != rest[0] })
		if len(list) == 0 && samples == "" {
			return fmt.Errorf("job %s: there is no record of it on node %s; nhc-gpu job lists the last jobs", rest[0], r.Name)
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
	for samples != "" {
		fmt.Fprint(console.Screen, "\n"+samples)
		if !watch {
			break
		}
		select {
		case <-r.Ctx.Done():
			return nil
		case <-time.After(watchPause):
		}
		if samples, err = readSamples(r, rest[0]); err != nil {
			return err
		}
	}
	return nil
}

// readSamples returns the samples of a running job as text, "" if it has none.
func readSamples(r *health.Run, id string) (string, error) {
	resp, err := r.AskAbout(&wire.Request{Op: wire.OpAsk, Name: wire.AskSamples, Args: []string{id}, Line: "read the samples of job " + id})
	if err != nil {
		return "", err
	}
	return resp.Text, nil
}

// records returns the records of this node, and the arguments other than settings. The caller closes the
// run.
func records(words []string) (r *health.Run, list []*slurm.Record, rest []string, err error) {
	r, rest, err = xidRun(words)
	switch {
	case err != nil:
		return nil, nil, nil, err
	case r.Bad != nil:
		err = r.Bad
	case r.Set.Past == "":
		err = errors.New("job: only root can read the records of jobs")
	default:
		r.Pool.SetVars(r.Set.WorkerVars())
		list, err = r.Judge.Records.All()
	}
	if err != nil {
		r.Close()
		return nil, nil, nil, err
	}
	return r, list, rest, nil
}

// lastIDs returns what a shell completes: the last jobs, each with its line.
func lastIDs() (ids []string) {
	r, list, _, err := records(nil)
	if err != nil {
		return nil
	}
	defer r.Close()
	for _, r := range list[max(0, len(list)-lastJobs):] {
		ids = append(ids, r.Job+"\t"+strings.TrimSpace(r.Line()))
	}
	return ids
}
