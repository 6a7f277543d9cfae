package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/ncclras"
)

// answerPrefix begins the names of the stored answers of NCCL.
const answerPrefix = "nccl-"

// storedAnswer is what NCCL has answered about a hang. Each hang is asked about once, since asking has crashed
// jobs.
type storedAnswer struct {
	Boot   string          `json:"boot"`
	Seen   uint32          `json:"seen"` // seconds since the boot: the last time at which the job was found to hang
	Report *ncclras.Report `json:"report,omitempty"`
	Err    string          `json:"err,omitempty"` // why there is no report
}

// sameHang reports whether the answer is about a hang: it began before the one of the answer was last seen.
func (a *storedAnswer) sameHang(boot string, v flight.Verdict) bool {
	return a.Boot == boot && v.Since <= a.Seen
}

// askNCCL returns what NCCL says about a hang, "" for nothing. It asks if no run has, and if only the samples of
// jobs have woken this run, because other runs must not wait. All nodes of the job find the hang, and each question
// goes to all ranks: only the first node asks.
func (c *jobHealth) askNCCL(ctx context.Context, env *checks.Env, w *flight.Window, v flight.Verdict, jobs []flight.Job) string {
	boot, err := probe.BootID(env.Host)
	if err != nil {
		return ""
	}
	var a storedAnswer
	known := env.Recall(answerPrefix+v.Job, &a) == nil && a.sameHang(boot, v)
	if !known {
		woken := slices.Equal(monitor.Split(env.Lookup(monitor.Events)), []monitor.Kind{monitor.Job})
		if !c.RAS {
			return ""
		}
		if why := notAsked(jobs, v.Job); why != "" || !woken || env.DryRun {
			return why
		}
		a = storedAnswer{Boot: boot, Seen: w.To}
		if err := env.Remember(answerPrefix+v.Job, a); err != nil && !errors.As(err, new(*probe.SpareError)) {
			return "" // it would be asked again and again
		}
		a.Report, err = readAnswer(ctx, env, v.Job, jobs)
		if a.Err = ""; err != nil {
			a.Err = err.Error()
		}
	}
	a.Seen = max(a.Seen, w.To)
	_ = env.Remember(answerPrefix+v.Job, a)
	return a.text(w)
}

// notAsked says why this node does not ask a job, "" if it is the first one of the job.
func notAsked(jobs []flight.Job, id string) string {
	at := slices.IndexFunc(jobs, func(j flight.Job) bool { return j.ID == id })
	switch {
	case at >= 0 && jobs[at].IsFirst:
		return ""
	case at < 0 || jobs[at].First == "":
		return "not asked (the first node of the job is unknown)"
	}
	return "not asked by this node, only by " + jobs[at].First + ", the first one of the job"
}

// knownAnswer returns what NCCL has said about a hang, "" for nothing.
func knownAnswer(h *probe.Host, w *flight.Window, v flight.Verdict) string {
	boot, err := probe.BootID(h)
	var a storedAnswer
	if !v.AllWait() || err != nil || h.Recall(answerPrefix+v.Job, &a) != nil || !a.sameHang(boot, v) {
		return ""
	}
	return a.text(w)
}

// forgetAnswers removes the answers about jobs that have ended.
func forgetAnswers(h *probe.Host, jobs []flight.Job) {
	records, _ := probe.Records(h, answerPrefix)
	for _, r := range records {
		id := strings.TrimPrefix(r.Name, answerPrefix)
		if !slices.ContainsFunc(jobs, func(j flight.Job) bool { return j.ID == id }) {
			_ = probe.Forget(h, r.Name)
		}
	}
}

// readAnswer asks NCCL's endpoint of a job.
func readAnswer(ctx context.Context, env *checks.Env, id string, jobs []flight.Job) (*ncclras.Report, error) {
	loads, err := jobscan.Jobs(env.Host, false)
	if err != nil {
		return nil, err
	}
	var pids []string
	for i := range loads {
		if loads[i].ID == id {
			pids = loads[i].PIDs(env.Host)
		}
	}
	if len(pids) == 0 {
		return nil, errors.New("the job has no processes in a cgroup of Slurm")
	}
	answer, err := ncclras.Ask(env.Host, pids, min(ncclras.Deadline, checks.Room(ctx)), func(what string) { env.At("%s", what) })
	if err != nil {
		return nil, err
	}
	r, err := ncclras.Parse(answer.Text)
	if err != nil {
		return nil, err
	}
	device := func(index int) string {
		name := fmt.Sprintf("gpu%d", index)
		at := slices.IndexFunc(jobs, func(j flight.Job) bool { return j.ID == id })
		if at >= 0 && jobs[at].All && slices.Contains(jobs[at].GPUs, name) { // a job with a part may number its own
			return name
		}
		return ""
	}
	return r, r.Locate(answer.Hosts, ncclras.InnerPIDs(env.Host, pids), device)
}

// shownRanks is the number of ranks in the text of a finding.
const shownRanks = 2

// text describes the answer, joined with the samples.
func (a *storedAnswer) text(w *flight.Window) string {
	switch {
	case a.Err != "":
		return "no answer (" + a.Err + ")"
	case a.Report == nil:
		return ""
	}
	last := a.Report.Last()
	if len(last) == 0 {
		return fmt.Sprintf("no rank lags in %s (%s), which proves nothing", checks.Plural(a.Report.Comms, "communicator"), a.Report.Status)
	}
	var parts []string
	for _, k := range last[:min(len(last), shownRanks)] {
		text := k.Text()
		if k.Device != "" {
			text += ", " + w.LastWork(k.Device)
		}
		parts = append(parts, text)
	}
	if more := len(last) - shownRanks; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ") + ": the others wait for it"
}
