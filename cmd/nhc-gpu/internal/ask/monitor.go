package ask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Monitor wakes a health check when the node reports an event.
func Monitor(exit *int) *cobra.Command {
	return &cobra.Command{
		Use:   "monitor",
		Short: "Run the checks that an event concerns, as it happens",
		Long: `Waits for events between the health checks of slurmd: lines of the kernel's log
(Xid, SXid, network adapters, PCIe, disks, memory), links that change, devices that
disappear, the end of slurmd. An event starts the checks that it concerns. They judge,
drain and record like any health check; the monitor itself judges nothing. A storm of
events starts few runs, and its last event is followed by one.

While a job is on the node, the monitor samples the job, its GPUs and the ports once a
second. A check judges the samples each minute; nhc-gpu job shows them.

nhc-gpu-monitor.service runs it. It ends with SIGTERM. Needs root.

Exit status: 0, 1 if it cannot run, 10 for wrong arguments or without root.`,
		Example: "  nhc-gpu monitor\n  systemctl enable --now nhc-gpu-monitor",

		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, words []string) error {
			r, err := openPast("monitor", words)
			if err != nil {
				return err
			}
			defer r.Close()
			w := newWatch(r.Ctx, monitored{r, words}, r.Pool.Monitor())
			if err := alone(r); err != nil {
				w.say("%v", err)
				*exit = 1
			} else if err := w.run(); err != nil {
				w.say("%v", err)
				*exit = 1
			}
			return nil
		},
		Args: cobra.ArbitraryArgs,
	}
}

// alone makes this the only monitor of the node.
func alone(r *health.Run) error {
	holder, err := r.Pool.Lock(node.MonitorLock, 0)
	if err != nil {
		r.Warn(err) // which health checks report
	}
	if holder != nil {
		return fmt.Errorf("another monitor runs on this node (PID %d): systemctl stop nhc-gpu-monitor ends that of the service", holder.PID)
	}
	return nil
}

// outside is what the monitor needs of the node.
type outside interface {
	// ask asks a source of events. It returns after the limit at the latest.
	ask(source string, q *wire.Request, limit time.Duration) (*wire.Response, error)
	// check starts a run for events.
	check(kinds []monitor.Kind) (child, error)
	// store stores the ledger; with again also in a directory that has not answered before.
	store(ledger []byte, again bool) error
	// holder returns the process that holds the lock of the node's runs, 0 if that is not known.
	holder() (pid int)
	print(line string)
}

// child is a run that has been started.
type child interface {
	Ended() <-chan struct{}
	Status() int
	Kill()
}

// monitored is the node of a monitor.
type monitored struct {
	*health.Run
	words []string // the arguments of each run
}

func (m monitored) ask(source string, q *wire.Request, limit time.Duration) (*wire.Response, error) {
	return m.Pool.Call(m.Ctx, checks.Lane("watch-"+source), q, limit).AnswerTo(q.Line)
}

func (m monitored) check(kinds []monitor.Kind) (child, error) {
	argv := append([]string{options.OwnName}, m.words...)
	env := append(os.Environ(), "SLURMD_NODENAME="+m.Name, "SLURM_SCRIPT_CONTEXT="+slurm.MonitorContext, monitor.Events+"="+monitor.Join(kinds))
	return run.Again(argv, env)
}

func (m monitored) store(ledger []byte, again bool) error {
	if again {
		return m.Pool.SaveAgain(wire.MonitorFile, ledger)
	}
	return m.Pool.Save(wire.MonitorFile, ledger)
}

func (m monitored) holder() (pid int) {
	if line, err := m.Pool.Load(node.RunLock); err == nil {
		_, _ = fmt.Sscanf(string(line), wire.LockLine, &pid)
	}
	return pid
}

func (m monitored) print(line string) {
	console.Alerts.Until(time.Now().Add(time.Second))
	fmt.Fprintln(console.Alerts, line)
}

// watch is a running monitor.
type watch struct {
	outside
	ctx    context.Context // of its whole life
	stored []byte          // the ledger of the last monitor

	bell   monitor.Bell
	ledger monitor.Ledger
	seen   checks.LogMark // up to where the kernel's log was read
	heard  chan answer

	unsaved bool // the last sign of life could not be stored
	mute    int  // signs of life in a row that the state directory has not answered

	jobs struct {
		sync.Mutex
		ids   []string
		begun chan struct{} // closed when there are jobs
	}
	jobless int // answers of the source of jobs in a row that had no list

	judged  time.Time // when the bell rang for jobs, or the last job has ended
	judging bool      // it rang since then
	rest    sync.Once // after the start

	child   child // the present run; nil: there is none
	running []monitor.Kind
	began   time.Time
	backoff time.Duration    // the pause after runs in a row that could not be made
	waits   time.Time        // when the first of them began that has found another one under way
	named   bool             // that one was reported
	status  map[string]int   // of the last run for kinds of events
	noted   map[string]noted // the last one of each source
}

// answer is that of a source.
type answer struct {
	source string
	resp   *wire.Response
	err    error
}

func newWatch(ctx context.Context, o outside, stored []byte) *watch {
	w := &watch{ctx: ctx, outside: o, stored: stored, heard: make(chan answer), status: map[string]int{}, noted: map[string]noted{}}
	w.jobs.begun = make(chan struct{})
	return w
}

const (
	// listenSlack is how late the answer of a source may be.
	listenSlack = 15 * time.Second
	// firstRetry and lastRetry bound the pause before a source that has failed is opened again.
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// listenPace is the least time between two questions to a source that has events: a storm of them costs ten
	// answers a second.
	listenPace = 100 * time.Millisecond
	// leastBackoff and mostBackoff bound the pause after a run that could not be made, since another one is under way.
	leastBackoff = time.Second
	mostBackoff  = 10 * time.Second
	// longestRun is when a run is ended that has not ended itself: more than any budget.
	longestRun = 3 * time.Minute
	// gpuTurn is the longest wait for events of GPUs: after the last job, NVML is closed within that time.
	gpuTurn = 5 * time.Second
	// jobTurn is the time between two runs that judge the samples of jobs.
	jobTurn = time.Minute
	// mostMute is how many signs of life the state directory may leave without an answer, mostJobless how many
	// questions the source of jobs. It is more than one because a loaded node answers late, too.
	mostMute    = 4
	mostJobless = 4
)

// run watches until a signal ends it.
func (w *watch) run() error {
	ledger, err := monitor.ParseLedger(w.stored)
	if err != nil {
		w.say("%v", err)
	}
	w.ledger = ledger
	w.ledger.PID, w.ledger.Stopped, w.ledger.Silent = os.Getpid(), false, nil
	w.seen = ledger.Mark
	if ledger.PID != 0 { // messages about links and devices since its end are lost
		w.bell.Ring(monitor.Lost, time.Now())
	}
	_ = w.save(false)
	w.start()
	for _, source := range monitor.Sources {
		run.Go(func() { w.listen(source, ledger.Mark) })
	}
	notify(daemon.SdNotifyReady)
	beat := time.NewTicker(monitor.Heartbeat)
	defer beat.Stop()
	for w.ctx.Err() == nil {
		var done <-chan struct{}
		if w.child != nil {
			done = w.child.Ended()
		}
		select {
		case r := <-w.heard:
			w.hear(r)
		case <-done:
			w.ended()
		case <-w.due():
		case <-beat.C:
			if err := w.live(); err != nil {
				return err
			}
			notify(daemon.SdNotifyWatchdog)
			w.rest.Do(process.Rest)
			w.ringForJobs()
			if path, err := os.Readlink("/proc/self/exe"); err == nil && strings.HasSuffix(path, " (deleted)") { //nolint:forbidigo // /proc/self
				w.say("the program was replaced: the new one must take over")
				notify(daemon.SdNotifyStopping)
				return w.save(false) // it counts as dead if it does not begin again
			}
		case <-w.ctx.Done():
			continue
		}
		w.start()
	}
	return w.stop()
}

// live stores a sign of life. With a full file system the monitor goes on without memory. A directory that does not
// answer may answer the next process.
func (w *watch) live() error {
	err := w.save(true)
	if w.mute++; !errors.Is(err, run.ErrNoState) {
		w.mute = 0
	}
	switch {
	case w.mute >= mostMute:
		return fmt.Errorf("the monitor exits; systemd restarts it: %w", err)
	case err != nil && !w.unsaved:
		w.say("%v: the monitor goes on", err)
	case err == nil && w.unsaved:
		w.say("the state can be written again")
	}
	w.unsaved = err != nil
	return nil
}

// stop ends the monitor in order.
func (w *watch) stop() error {
	notify(daemon.SdNotifyStopping)
	w.ledger.Stopped = true
	return w.save(false)
}

// notify reports a state to systemd. Without systemd it does nothing.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// due returns a channel that receives when the next run can begin, or the present one has taken too long.
func (w *watch) due() <-chan time.Time {
	if w.child != nil {
		return time.After(time.Until(w.began.Add(longestRun)))
	}
	if _, next := w.bell.Due(time.Now()); !next.IsZero() {
		return time.After(time.Until(next))
	}
	return nil
}

// listen passes on the events of a source, from a mark on. A source that fails is opened again after a
// pause.
func (w *watch) listen(source string, from checks.LogMark) {
	retry, wait := firstRetry, time.Duration(0) // the first answer says where the log ends
	sampled := false
	for ; w.ctx.Err() == nil; wait = monitor.Heartbeat {
		jobs := w.present()
		if source == monitor.GPUs {
			if len(jobs) == 0 && !sampled {
				jobs = w.awaitJobs()
			}
			sampled, wait = len(jobs) > 0, gpuTurn
		}
		q := &wire.Request{Op: wire.OpWatch, Name: source, Mark: &from, Args: jobs, Timeout: wait, Line: "watch " + source}
		asked := time.Now()
		resp, err := w.ask(source, q, monitor.Heartbeat+listenSlack)
		select {
		case w.heard <- answer{source, resp, err}:
		case <-w.ctx.Done():
			return
		}
		pause := retry
		if err == nil {
			if resp.Mark != nil {
				from = *resp.Mark
			}
			if retry, pause = firstRetry, listenPace-time.Since(asked); wait == 0 || pause <= 0 {
				continue
			}
		} else {
			retry = min(2*retry, lastRetry)
		}
		select {
		case <-time.After(pause):
		case <-w.ctx.Done():
		}
	}
}

// noted is a line about a source that is no event.
type noted struct {
	text string
	at   time.Time
}

// noteAgain is the time after which a note that stays true is printed again.
const noteAgain = 24 * time.Hour

// hear rings the bell for the events of a source, and reports a source that does not answer, once.
func (w *watch) hear(r answer) {
	silent := slices.DeleteFunc(slices.Clone(w.ledger.Silent), func(s string) bool { return s == r.source })
	if r.err != nil {
		silent = append(silent, r.source)
	}
	if len(silent) != len(w.ledger.Silent) {
		if r.err != nil {
			if w.say("%v", r.err); r.source == monitor.GPUs { // the driver may hang: the checks of GPUs judge that
				w.bell.Ring(monitor.GPU, time.Now())
			}
		} else {
			w.say("%s answers again", r.source)
			if r.source != monitor.Kernel { // which goes on where it was
				w.bell.Ring(monitor.Lost, time.Now())
			}
		}
		w.ledger.Silent = silent
		_ = w.save(false)
	}
	if r.source == monitor.Jobs {
		w.hearJobs(r)
	}
	if r.err != nil || r.resp.Heard == nil {
		return
	}
	for _, text := range r.resp.Heard.Notes {
		if last := w.noted[r.source]; text != last.text || time.Since(last.at) >= noteAgain {
			w.noted[r.source] = noted{text, time.Now()}
			w.say("%s", text)
		}
	}
	for _, e := range r.resp.Heard.Events {
		if w.bell.Ring(monitor.Kind(e.Kind), time.Now()) {
			w.say("event %s: %s", e.Kind, e.Text)
		}
	}
	if lost := r.resp.Heard.Lost; lost > 0 {
		w.ledger.Lost += lost
		if w.bell.Ring(monitor.Lost, time.Now()) {
			w.say("event %s: %d messages of %s were not read, %d since the boot", monitor.Lost, lost, r.source, w.ledger.Lost)
		}
	}
	if r.resp.Mark != nil {
		w.seen = *r.resp.Mark
	}
	w.handled()
}

// hearJobs takes the jobs on the node. If their source fails again and again, the list is emptied, so that
// NVML is closed: the jobs may have ended.
func (w *watch) hearJobs(r answer) {
	switch {
	case r.err == nil && r.resp.Heard != nil:
		w.jobless = 0
		w.setJobs(r.resp.Heard.Jobs)
	case w.jobless < mostJobless:
		w.jobless++
	default:
		w.judging = false // its findings are not over
		w.setJobs(nil)
	}
}

// present returns the jobs on the node.
func (w *watch) present() []string {
	w.jobs.Lock()
	defer w.jobs.Unlock()
	return w.jobs.ids
}

// awaitJobs waits for a job on the node.
func (w *watch) awaitJobs() []string {
	w.jobs.Lock()
	begun := w.jobs.begun
	w.jobs.Unlock()
	select {
	case <-begun:
	case <-w.ctx.Done():
	}
	return w.present()
}

// setJobs stores the jobs on the node.
func (w *watch) setJobs(ids []string) {
	w.jobs.Lock()
	defer w.jobs.Unlock()
	switch had := len(w.jobs.ids) > 0; {
	case !had && len(ids) > 0:
		w.judged = time.Now()
		close(w.jobs.begun)
	case had && len(ids) == 0:
		w.judged = time.Now()
		w.jobs.begun = make(chan struct{})
	}
	w.jobs.ids = ids
}

// ringForJobs rings the bell for the running jobs, if it is time to judge their samples, and once after the last of
// them: its findings are over then.
func (w *watch) ringForJobs() {
	running := len(w.present()) > 0
	if now := time.Now(); (running || w.judging) && now.Sub(w.judged) >= jobTurn-monitor.Heartbeat/2 { // a sign of life can be early
		w.judged, w.judging = now, running
		w.bell.Ring(monitor.Job, now)
	}
}

// say prints a line for the journal of systemd.
func (w *watch) say(format string, args ...any) {
	w.print("nhc-gpu: monitor: " + fmt.Sprintf(format, args...))
}

// handled moves the mark when each event before it was followed by a run.
func (w *watch) handled() {
	kinds, next := w.bell.Due(time.Now())
	if w.child != nil || len(kinds) > 0 || !next.IsZero() {
		return
	}
	first := w.ledger.Mark.Boot != w.seen.Boot
	w.ledger.Mark = w.seen
	if first {
		_ = w.save(false)
	}
}

// start starts the run that is due, and ends one that takes too long.
func (w *watch) start() {
	now := time.Now()
	if w.child != nil {
		if now.Sub(w.began) >= longestRun {
			w.say("the run for %s has not ended within %s: it is killed", monitor.Join(w.running), longestRun)
			w.child.Kill()
			w.child = nil // a process that no signal ends is not waited for
			w.failed()
		}
		return
	}
	kinds, _ := w.bell.Due(now)
	if len(kinds) == 0 || w.ctx.Err() != nil {
		return
	}
	w.bell.Ran(kinds, now)
	child, err := w.check(kinds)
	if err != nil {
		if w.backoff == 0 {
			w.say("start a run for an event: %v", err)
		}
		w.bell.Retry(kinds, now.Add(w.longer()))
		return
	}
	w.child, w.running, w.began = child, kinds, now
	w.ledger.Runs++
}

// ended takes the end of a run.
func (w *watch) ended() {
	if status, what := w.child.Status(), monitor.Join(w.running); status == health.Busy {
		w.wait()
	} else {
		w.backoff, w.waits, w.named = 0, time.Time{}, false
		if status != w.status[what] && status != 0 {
			w.say("the run for %s: exit status %d", what, status)
		}
		if w.status[what] = status; status > 1 {
			w.failed()
		} else {
			w.bell.Judged(w.running)
		}
	}
	w.child = nil
	w.handled()
	_ = w.save(false)
}

// wait has a run follow that has found another one under way, and reports once which process that is.
func (w *watch) wait() {
	if w.waits.IsZero() {
		w.waits = w.began
	}
	w.bell.Retry(w.running, time.Now().Add(w.longer()))
	if w.named || w.began.Sub(w.waits) < longestRun {
		return
	}
	if pid := w.holder(); pid != 0 {
		w.say("the run for %s waits: process %d holds the lock of the node's runs", monitor.Join(w.running), pid)
		w.named = true
	}
}

// longer returns the pause before a run that could not be made is tried again.
func (w *watch) longer() time.Duration {
	w.backoff = min(max(2*w.backoff, leastBackoff), mostBackoff)
	return w.backoff
}

// failed has another run follow one that has crashed, was killed, could not read its configuration, or could
// not deliver its drain.
func (w *watch) failed() {
	if w.bell.Failed(w.running) {
		w.say("the runs for %s have failed: the next health check must judge", monitor.Join(w.running))
	}
}

// save stores the ledger, see [outside.store].
func (w *watch) save(again bool) error {
	w.ledger.Alive = node.ReadMoment().Uptime
	data, err := json.Marshal(w.ledger)
	if err == nil {
		err = w.store(data, again)
	}
	return err
}
