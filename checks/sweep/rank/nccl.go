package rank

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

func init() { kinds[sweep.KindNCCL] = newNCCL }

// WorkWords are the words of the command line on which the program calls [Work].
var WorkWords = []string{"sweep", "work"}

// ncclTask is a node's end of a task of NCCL: a child process does the work.
type ncclTask struct {
	n       *node
	visible string // CUDA_VISIBLE_DEVICES of the step

	talk    *probe.Talk
	task    sweep.Task
	rank    int
	cancel  context.CancelFunc // ends the child
	ended   chan struct{}      // closed when the child has ended
	exit    probe.Exit         // valid then
	answers chan workAnswer
	doing   atomic.Pointer[string]
}

func newNCCL(n *node) kind { return &ncclTask{n: n, visible: os.Getenv("CUDA_VISIBLE_DEVICES")} }

// settings returns the settings of NCCL for a task, and whether it must use RDMA. Those of the site take precedence.
func (t *ncclTask) settings(task *sweep.Task) (s cuda.NCCLSettings, needsRDMA bool, err error) {
	s = cuda.NCCLSettings{Across: true, NoP2P: task.NoP2P}
	if s.More, err = t.n.nccl.words(t.n.host); err != nil {
		return s, false, err
	}
	s.Interface = t.n.towardsBy(interfaces) // for its own connections: its choice may be an interface that leads nowhere
	rails := t.n.Rails
	switch rail, err := t.n.rail(task.Plane); {
	case task.Plane != "" && err == nil:
		s.HCA, rails = rail.Name, []sweep.Rail{rail}
	case task.Plane != "":
		plane, err := t.n.plane(task.Plane)
		s.Interface, s.Net = plane.Name, "Socket"
		return s, false, err
	case len(task.Rails) > 0:
		if rails = t.n.railsOf(task.Rails); len(rails) == 0 {
			return s, false, fmt.Errorf("%s has no RDMA port %s", t.n.Name, strings.Join(task.Rails, ", "))
		}
		s.HCA = strings.Join(task.Rails, ",")
	default:
		rails = slices.DeleteFunc(slices.Clone(rails), func(r sweep.Rail) bool { return r.Left != "" })
	}
	needsRDMA = len(rails) > 0 && !t.n.nccl.avoidsRDMA()
	if needsRDMA && !t.n.nccl.choosesNetwork() {
		s.Net = "IB"
	}
	return s, needsRDMA, nil
}

func (t *ncclTask) prepare(ctx context.Context, p *wire.Prepare) wire.Ready {
	t.task, t.rank = p.Task, p.Rank
	settings, needsRDMA, err := t.settings(&p.Task)
	if err != nil {
		return refuse(err)
	}
	request := workRequest{
		Node: t.n.Name, Op: p.Task.Op, Size: p.Task.Size, Repeats: p.Task.Repeats, Time: p.Task.Time, Rank: p.Rank, Nodes: len(p.Task.Nodes),
		Settings: settings, RDMA: needsRDMA, Libraries: map[string]string{}, Visible: t.visible,
	}
	for _, name := range []string{probe.SettingCUDA, probe.SettingNCCL, probe.SettingLibraryDirs} {
		request.Libraries[name] = t.n.host.Library(name)
	}
	if err := t.start(ctx, &request); err != nil {
		return refuse(err)
	}
	answer := t.await(ctx)
	switch {
	case answer.Ready != nil:
		ready := wire.Ready{GPUs: answer.Ready.GPUs}
		if p.Rank == 0 {
			if ready.Data, err = json.Marshal(answer.Ready.IDs); err != nil {
				return refuse(err)
			}
		}
		return ready
	case answer.Result != nil:
		return wire.Ready{Fault: answer.Result.Fault, Text: answer.Result.Text}
	}
	return wire.Ready{Fault: sweep.FaultError, Text: "the child process of NCCL has not answered"}
}

// start starts the child and sends it the request.
func (t *ncclTask) start(ctx context.Context, request *workRequest) (err error) {
	command := probe.Command{Argv: append([]string{"nhc-gpu"}, WorkWords...), Program: t.n.program, Unset: "NCCL_", Env: []string{"SLURMD_NODENAME=" + t.n.Name}, Signals: []unix.Signal{unix.SIGKILL}, Errors: 16 << 10}
	if t.talk, err = probe.StartTalk(ctx, t.n.host, command); err != nil {
		return fmt.Errorf("start a process for NCCL: %w", err)
	}
	ctx, t.cancel = context.WithCancel(ctx)
	t.ended, t.answers = make(chan struct{}), make(chan workAnswer, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		t.read()
	}()
	go func() {
		// The answers end with the child, and Wait closes what they come by.
		select {
		case <-read:
		case <-ctx.Done():
		}
		limited, cancel := context.WithTimeout(ctx, 2*workAbort) // it has nothing more to say
		defer cancel()
		t.exit = t.talk.Wait(limited)
		close(t.ended)
	}()
	return t.send(request)
}

// send sends a line to the child. A child that is gone has an exit status that says more.
func (t *ncclTask) send(line any) error {
	data, err := json.Marshal(line)
	if err == nil {
		_, _ = t.talk.In.Write(append(data, '\n'))
	}
	return err
}

// read reads the answers of the child. It ignores lines that a library prints.
func (t *ncclTask) read() {
	lines := bufio.NewScanner(t.talk.Out)
	lines.Buffer(nil, wire.MaxMessage)
	for lines.Scan() {
		var a workAnswer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			continue
		}
		if a.Doing != "" {
			t.doing.Store(&a.Doing)
			continue
		}
		select {
		case t.answers <- a:
		case <-t.ended:
			return
		}
	}
}

// await returns the next answer, or the result of a child that has ended or does not answer.
func (t *ncclTask) await(ctx context.Context) workAnswer {
	select {
	case a := <-t.answers:
		return a
	case <-t.ended:
		select {
		case a := <-t.answers: // its last one
			return a
		default:
		}
		return workAnswer{Result: t.died()}
	case <-ctx.Done():
		r := &sweep.Result{Fault: sweep.FaultSilent, Rank: t.rank, Text: "no answer of the process of NCCL" + t.step()}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.Blame = []string{t.n.Name} // a process that only waits for others answers
		}
		return workAnswer{Result: r}
	}
}

// step is what the child has last begun, for messages.
func (t *ncclTask) step() string {
	if doing := t.doing.Load(); doing != nil {
		return " in " + *doing
	}
	return ""
}

// crashOfGo matches what Go's runtime prints for a crash in a library, before it ends with 2.
var crashOfGo = probe.Lazily(`(?m)^(?:\[signal )?(SIG[A-Z]+): `)

// died is the result of a child that has ended without one.
func (t *ncclTask) died() *sweep.Result {
	how, said := fmt.Sprintf("with status %d", t.exit.Status), probe.LastLine(t.exit.Errors)
	if t.exit.Status > probe.Signalled {
		how = "by " + unix.SignalName(unix.Signal(t.exit.Status-probe.Signalled))
	}
	if m := crashOfGo().FindSubmatch(t.exit.Errors); m != nil {
		how, said = "by "+string(m[1]), ""
	}
	text := "the process of NCCL ended " + how + t.step()
	if said != "" {
		text += ": " + said
	}
	return &sweep.Result{Fault: sweep.FaultError, Rank: t.rank, Text: text, Blame: []string{t.n.Name}}
}

// workMargin is how long before the limit of a task its children say what they wait for: they check
// their GPUs first, and a node whose child says nothing is to blame.
const workMargin = 3 * time.Second

func (t *ncclTask) run(ctx context.Context, r *wire.Run) sweep.Result {
	start := workStart{Limit: t.task.Limit, Seats: r.Seats}
	if end, ok := ctx.Deadline(); ok {
		start.Limit = time.Until(end)
	}
	start.Limit -= min(workMargin, start.Limit/2)
	if err := json.Unmarshal(r.Ranks[0].Data, &start.IDs); err != nil {
		return sweep.Result{Fault: sweep.FaultError, Text: fmt.Sprintf("the answer of rank 0 is not understood: %v", err)}
	}
	if err := t.send(&start); err != nil {
		return sweep.Result{Fault: sweep.FaultError, Text: err.Error()}
	}
	answer := t.await(ctx)
	if answer.Result == nil {
		return sweep.Result{Fault: sweep.FaultError, Text: "the process of NCCL has answered nothing"}
	}
	return *answer.Result
}

func (t *ncclTask) stop() {
	if t.cancel == nil {
		return
	}
	t.cancel()
	select {
	case <-t.ended:
	case <-time.After(childGrace):
	}
}
