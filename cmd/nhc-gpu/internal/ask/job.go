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

	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/page"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// lastJobs is the number of jobs that are listed if none is named.
const lastJobs = 20

// jobOptions are the options of job.
type jobOptions struct {
	asJSON, watch, dump, nodes, clush, data bool

	html string
}

// Job shows the records of jobs on this node.
func Job() *cobra.Command {
	o := &jobOptions{}
	c := &cobra.Command{
		Use:   "job [ID]",
		Short: "Show what happened on this node while a job ran",
		Long: `Prints the record of a job: what its prolog and its epilog found, which errors the
kernel logged between them, and how far error counters rose. Without ID lists the
last jobs, one per line. Records need root, and nhc-gpu as prolog and epilog.

If nhc-gpu monitor runs, a job on the node also has samples: the load of its GPUs and
of the node's ports, and findings that say whether the job makes progress. The user of
a job may ask for its samples. When a job fails, its epilog stores them, and the record
names the archive.

--nodes gathers the samples from all nodes of the job by srun or clush. It names the
node and the GPU that the others wait for. It runs on any host with Slurm's commands.

Exit status: 0, 1 if a node did not answer, 10 if there is no record of the job, or
the job is another user's.`,
		Example: `  nhc-gpu job
  nhc-gpu job 1234
  nhc-gpu job 1234 --watch
  nhc-gpu job 1234 --nodes
  nhc-gpu job 1234 --html job.html
  nhc-gpu job --json 1234`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			return firstOf(words, lastIDs())
		},
		RunE: func(_ *cobra.Command, words []string) error { return showJobs(o, words) },
	}
	c.Flags().BoolVar(&o.asJSON, "json", false, "print each record as one object of JSON per line")
	c.Flags().BoolVar(&o.watch, "watch", false, "print the samples of a running job every 5 seconds, until it ends")
	c.Flags().BoolVar(&o.nodes, "nodes", false, "compare the samples of all nodes of a running job")
	c.Flags().BoolVar(&o.clush, "clush", false, "with --nodes: gather them by clush instead of srun")
	c.Flags().BoolVar(&o.dump, "dump", false, "store the samples, with the evidence about this node")
	c.Flags().StringVar(&o.html, "html", "", "write a page with plots of the samples to `FILE`")
	c.Flags().BoolVar(&o.data, "data", false, "print the samples as one object of JSON")
	return c
}

// watchPause is the time between two looks at a job.
const watchPause = 5 * time.Second

func showJobs(o *jobOptions, words []string) error {
	switch {
	case o.nodes:
		return compareNodes(o, words)
	case os.Geteuid() != 0:
		return showOwn(o, words)
	}
	r, list, rest, err := records(words)
	if err != nil {
		return err
	}
	defer r.Close()
	one := len(rest) == 1
	switch {
	case len(rest) > 1:
		return options.Wrong{Err: fmt.Errorf("surplus argument %q: want one job ID", rest[1])}
	case !one && (o.watch || o.dump || o.data || o.html != ""):
		return options.Wrong{Err: errors.New("--watch, --dump, --data and --html: want one job ID")}
	case !one:
		list = list[max(0, len(list)-lastJobs):]
		return printRecords(list, o.asJSON, false)
	}
	id := rest[0]
	if err := checkID(id); err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(r *slurm.Record) bool { return r.Job != id })
	e, err := extract(r, id, o.html != "" || o.data)
	if err != nil { // the record is there all the same
		fmt.Fprintln(console.Alerts, "nhc-gpu:", err)
	}
	if len(list) == 0 && e == nil {
		return fmt.Errorf("job %s: there is no record of it on node %s; nhc-gpu job lists the last jobs", id, r.Name)
	}
	switch {
	case o.dump:
		return dumpSamples(r, id)
	case o.data:
		return printData(e, id)
	case o.html != "":
		var text strings.Builder
		for _, r := range list {
			text.WriteString(r.Text())
		}
		return writeJobPage(o.html, id, text.String(), []page.Node{{Name: r.Name, Extract: e}})
	}
	if err := printRecords(list, o.asJSON, true); err != nil || o.asJSON {
		return err
	}
	return follow(r, e, o.watch, func() (*flight.Extract, error) { return extract(r, id, false) })
}

// checkID returns an error for an ID that is not a number. A node does not know tasks of an array by their names, since
// no environment of a prolog says them.
func checkID(id string) error {
	if id != "" && strings.Trim(id, "0123456789") == "" {
		return nil
	}
	return options.Wrong{Err: fmt.Errorf("job %.40q: want its number: for a task of an array, or a part of a heterogeneous job, scontrol show job %.40q prints it as JobId", id, id)}
}

// printRecords prints records as lines, texts or JSON.
func printRecords(list []*slurm.Record, asJSON, whole bool) error {
	for i, r := range list {
		switch {
		case asJSON:
			if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
				return fmt.Errorf("print the record of job %s: %w", r.Job, err)
			}
		case !whole:
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

// follow prints the samples of a job, and with watch again and again until it ends.
func follow(r *health.Run, e *flight.Extract, watch bool, next func() (*flight.Extract, error)) (err error) {
	for e != nil {
		fmt.Fprint(console.Screen, "\n"+e.Text())
		if !watch {
			return nil
		}
		select {
		case <-r.Ctx.Done():
			return nil
		case <-time.After(watchPause):
		}
		if e, err = next(); err != nil {
			return err
		}
	}
	return nil
}

// extract returns the samples of a job on the node for root, nil if it has none.
func extract(r *health.Run, id string, hours bool) (*flight.Extract, error) {
	return askSamples(r, &wire.Request{Op: wire.OpAsk, Name: wire.AskSamples, Args: sampleWords(id, hours), Line: "read the samples of job " + id})
}

func sampleWords(id string, hours bool) []string {
	if hours {
		return []string{id, "hours"}
	}
	return []string{id}
}

func askSamples(r *health.Run, q *wire.Request) (*flight.Extract, error) {
	resp, err := r.AskAbout(q)
	if err != nil || len(resp.Data) == 0 {
		return nil, err
	}
	return flight.ParseExtract(resp.Data)
}

// OwnSockets is the directory with the sockets at which the monitors answer the users of jobs.
const OwnSockets = "/run/nhc-gpu-jobs"

// showOwn shows a user the samples of a job of this user.
func showOwn(o *jobOptions, words []string) error {
	r, rest, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	switch {
	case len(rest) != 1:
		return options.Wrong{Err: errors.New("job: want one job ID; only root can list the records of jobs")}
	case o.dump || o.asJSON:
		return options.Wrong{Err: errors.New("job: only root can use --dump and --json")}
	}
	id := rest[0]
	if err := checkID(id); err != nil {
		return err
	}
	read := func() (*flight.Extract, error) {
		q := &wire.Request{Op: wire.OpAsk, Name: wire.AskOwnSamples, Path: OwnSockets, Who: r.Name, Args: sampleWords(id, o.html != "" || o.data), Line: "ask for the samples of job " + id}
		return askSamples(r, q)
	}
	e, err := read()
	switch {
	case err != nil:
		return err
	case e == nil:
		return fmt.Errorf("job %s: no samples of a job of yours with this ID on this node; it may have ended, or nhc-gpu monitor does not run", id)
	case o.data:
		return printData(e, id)
	case o.html != "":
		return writeJobPage(o.html, id, "", []page.Node{{Name: r.Name, Extract: e}})
	}
	return follow(r, e, o.watch, read)
}

func printData(e *flight.Extract, id string) error {
	if e == nil {
		return fmt.Errorf("job %s has no samples on this node", id)
	}
	if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
		return fmt.Errorf("print the samples of job %s: %w", id, err)
	}
	return nil
}

// writeJobPage writes a page about a job into a file.
func writeJobPage(file, id, record string, nodes []page.Node) error {
	if record == "" && !slices.ContainsFunc(nodes, func(n page.Node) bool { return n.Extract != nil }) {
		return fmt.Errorf("job %s has no samples", id)
	}
	err := console.WriteFile(file, 0o640, false, func(f *os.File) error { return page.WriteJob(f, id, record, nodes, time.Now()) })
	if err == nil {
		fmt.Fprintln(console.Screen, "wrote", file)
	}
	return err
}

// dumpSamples stores an archive with the samples, as a failing health check does.
func dumpSamples(r *health.Run, id string) error {
	name := outputs.EvidenceName(time.Now(), "job."+id)
	path, err := outputs.WriteEvidence(r.Node, r.Facts(), nil, &wire.Request{Name: name}, outputs.EvidenceLimit)
	if err == nil {
		fmt.Fprintln(console.Screen, "wrote", path)
	}
	return err
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
