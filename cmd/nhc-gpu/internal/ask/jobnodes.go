package ask

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/page"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

const (
	// nodeWait is the time for the answer of a node. srun gives up a node that does not answer after 20 s.
	nodeWait = 30 * time.Second
	// nodesAtOnce is the number of nodes that are asked at the same time.
	nodesAtOnce = 16
)

// errNodes is the error of nodes that did not answer.
var errNodes = errors.New("not all nodes have answered")

// compareNodes gathers the samples of a job from its nodes, and prints which of them is last.
func compareNodes(o *jobOptions, words []string) error {
	r, rest, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	switch {
	case len(rest) != 1:
		return options.Wrong{Err: errors.New("--nodes: want one job ID")}
	case o.watch || o.dump || o.data || o.asJSON:
		return options.Wrong{Err: errors.New("--nodes accepts only --html and --clush")}
	}
	id := rest[0]
	if err := checkID(id); err != nil {
		return err
	}
	names, user, err := nodesOf(r, id)
	if err != nil {
		return err
	}
	nodes, failed := gather(r, names, func(node string) []string { return nodeArgv(slurm.SettingsFrom(r.Set.Get), o, id, node, user) })
	for _, node := range slices.Sorted(maps.Keys(failed)) {
		fmt.Fprintf(console.Alerts, "nhc-gpu: node %s: %v\n", node, failed[node])
	}
	if len(nodes) == 0 {
		return fmt.Errorf("job %s: no node has samples", id)
	}
	if o.html != "" {
		var list []page.Node
		for _, node := range names {
			list = append(list, page.Node{Name: node, Extract: nodes[node]})
		}
		if err := writeJobPage(o.html, id, "", list); err != nil {
			return err
		}
	} else {
		fmt.Fprint(console.Screen, flight.Compare(id, nodes, slices.Collect(maps.Keys(failed))))
	}
	if len(failed) > 0 {
		return fmt.Errorf("job %s: %w: %d of %d", id, errNodes, len(nodes), len(names))
	}
	return nil
}

// nodesOf returns the nodes and the user of a running job.
func nodesOf(r *health.Run, id string) (names []string, user string, err error) {
	out, err := runTool(r, slurm.SettingsFrom(r.Set.Get).JobNodesArgv(id))
	if err != nil {
		return nil, "", err
	}
	user, names, err = slurm.ParseJobNodes(out, id)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("job %s: squeue: %w", id, err)
	case len(names) == 0:
		return nil, "", fmt.Errorf("job %s: squeue shows no node: it does not run", id)
	}
	return names, user, nil
}

// nodeArgv returns the command that prints the samples of a job on a node. A step of the job runs as its user, and
// one step for each node, because a node that does not answer ends its whole step.
func nodeArgv(s slurm.Settings, o *jobOptions, id, node, user string) []string {
	program, err := os.Executable()
	if err != nil {
		program = options.OwnName
	}
	if o.clush {
		return []string{"clush", "-N", "-q", "-w", node, program, "job", "--data", id}
	}
	argv := s.StepArgv(id, []string{node}, slurm.StepGPUs{}, "--input=none", "--quiet", program, "job", "--data", id)
	if os.Geteuid() == 0 {
		argv = append([]string{"runuser", "-u", user, "--"}, argv...)
	}
	return argv
}

// gather runs a command for each node, some at a time, each with a worker and a deadline of its own.
func gather(r *health.Run, names []string, argv func(node string) []string) (nodes map[string]*flight.Extract, failed map[string]error) {
	nodes, failed = map[string]*flight.Extract{}, map[string]error{}
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	queue := make(chan string)
	for i := range min(nodesAtOnce, len(names)) {
		group.Add(1)
		run.Go(func() {
			defer group.Done()
			for node := range queue {
				e, err := askNode(r, checks.Lane(fmt.Sprintf("node-%d", i)), argv(node))
				mu.Lock()
				if err != nil {
					failed[node] = err
				} else {
					nodes[node] = e
				}
				mu.Unlock()
			}
		})
	}
	for _, node := range names {
		queue <- node
	}
	close(queue)
	group.Wait()
	return nodes, failed
}

// maxComplaint is the longest text of a command that a message repeats, bytes.
const maxComplaint = 300

// askNode runs a command that prints samples.
func askNode(r *health.Run, lane checks.Lane, argv []string) (*flight.Extract, error) {
	q := &wire.Request{Op: wire.OpExec, Args: argv, Env: slurm.SettingsFrom(r.Set.Get).Environ(), Timeout: nodeWait, Line: "run " + argv[0]}
	resp, err := r.Pool.Call(r.Ctx, lane, q, nodeWait+5*time.Second).AnswerTo(q.Line)
	switch {
	case err != nil:
		return nil, fmt.Errorf("run %s: %w", argv[0], err)
	case resp.TimedOut:
		return nil, fmt.Errorf("no answer within %s", nodeWait)
	case resp.Status != 0:
		words := strings.Fields(string(resp.Stderr[:min(len(resp.Stderr), maxComplaint)]))
		for i := range words {
			words[i] = strings.Map(printable, words[i])
		}
		return nil, fmt.Errorf("%s: exit status %d: %s", argv[0], resp.Status, strings.Join(words, " "))
	}
	return flight.ParseExtract(resp.Data)
}
