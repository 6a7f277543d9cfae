package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// jobName is the word that asks for the records of jobs.
const jobName = "job"

// lastJobs is how many jobs are listed where none is named.
const lastJobs = 20

// jobCommand prints what is known of a job on this node.
func jobCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   jobName + " [ID]",
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
	env, rest := xidEnv(words)
	node := nodeFromEnviron(os.Getenv, slurm.Manual)
	if node.bad != nil {
		return node.bad
	}
	env.Host.SetPast(node.past())
	list, err := allRecords(env.Host)
	switch {
	case errors.Is(err, probe.ErrNoMemory):
		return errors.New("job: only root can read the records of jobs")
	case err != nil:
		return err
	case len(rest) > 1:
		return fmt.Errorf("job %s: want one ID", strings.Join(rest, " "))
	case len(rest) == 1:
		list = slices.DeleteFunc(list, func(r *slurm.Record) bool { return r.Job != rest[0] })
		if len(list) == 0 {
			return fmt.Errorf("job %s: no record of it on node %s", rest[0], node.name)
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
			fmt.Println(r.Line())
		default:
			if i > 0 {
				fmt.Println()
			}
			fmt.Print(r.Text())
		}
	}
	return nil
}

// allRecords are those of the journal, then the open ones. A line that is none
// was half written when the disk was full.
func allRecords(h *probe.Host) (list []*slurm.Record, err error) {
	lines, err := h.JournalLines(probe.Journal{Name: jobJournal, Most: journalMost})
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		if r, err := slurm.ParseRecord(line); err == nil {
			list = append(list, r)
		}
	}
	open, err := h.Records(slurm.RecordPrefix)
	for _, o := range open {
		if r, err := slurm.ParseRecord(o.Data); err == nil {
			list = append(list, r)
		}
	}
	return list, err
}
