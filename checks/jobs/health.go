package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
)

// jobHealth checks that the jobs on the node make progress, by the samples that nhc-gpu monitor takes
// once a second while they run: a job whose GPUs all wait, a GPU behind the others of its job, one that
// heat slows down, a port that carries less than the others, GPU memory in use that no job has, a job
// whose processes wait for a disk or for memory. docs/monitor.md has the thresholds. The monitor runs
// it once a minute while a job is on the node, even if no line names it.
//
// By default the findings are recorded, and neither drain a node nor end a job. The GPUs of a job come
// from the record of its prolog; without one, a job that is alone on the node has all of them.
//
// With -r a job whose GPUs all wait is asked once by NCCL's RAS endpoint which ranks lag or are dead.
// Asking it has crashed jobs with NCCL up to 2.30, so it is off by default, and only the runs of
// nhc-gpu monitor on the first node of the job ask, at most 12 seconds for each hang. docs/monitor.md
// says more.
//
//	node* || check_job_health
//	node* || check_job_health -r
type jobHealth struct {
	RAS bool `opt:"r" toml:"ras"` // ask NCCL's RAS endpoint of a job whose GPUs all wait
}

const jobHealthName = "check_job_health"

func init() {
	checks.Register(checks.Info{
		Name:    jobHealthName,
		Summary: "running jobs make progress",
		Lane:    checks.Local,
		New:     func() checks.Check { return &jobHealth{} },
		Do: func() map[string]string {
			return map[string]string{
				"job.gpu.lost":    "Run nhc-gpu check check_gpu_recovery and nhc-gpu check check_gpu_xid. The job cannot go on: end it.",
				"job.hang":        "Compare the samples: nhc-gpu job ID. A server that waits for requests looks the same. Look at the job's output, and at its processes with py-spy or gdb; NCCL_DEBUG=INFO names the ranks that wait.",
				"job.memory.left": "See fuser -v /dev/nvidia* for the process that holds the memory; without one, reset the GPU when the node is idle.",
				"job.port.silent": "Run nhc-gpu check check_ib_ports and nhc-gpu check check_ib_errors for the port; the job may have lost this rail.",
				"job.port.slow":   "See the counters of the port: width and speed of the link, wait and error rates, and its switch.",
				"job.stall":       "See the file systems of the job: mount, df, and the stacks of its processes in /proc/PID/stack.",
				"job.straggler":   "See nhc-gpu job ID for its clocks, power and temperature. Test the GPU with check_gpu_gemm when the node is idle.",
				"job.throttle":    "See check_gpu_throttle, the fans, the coolant and the power supplies.",
			}
		},
	})
}

// fresh is the age of the last sample above which a source is not running, seconds.
const fresh = 30

func (c *jobHealth) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	w, jobs, err := readSamples(env)
	if err != nil {
		return checks.Unreadable(err)
	}
	if len(jobs) == 0 {
		env.Fact("no job with samples")
		return nil
	}
	env.Fact("%s with samples", checks.Plural(len(jobs), "job"))
	for _, j := range jobs {
		if why := flight.Unjudged(w, j); why != "" {
			env.Fact("job %s is not judged for a hang or a stall: %s", j.ID, why)
		}
	}
	var findings []checks.Finding
	for _, v := range flight.Detect(w, jobs) {
		text := ""
		if v.AllWait() { // a job that waits for one of its processes may be healthy: no question
			text = c.askNCCL(ctx, env, w, v, jobs)
		}
		findings = append(findings, describe(w, v, text))
	}
	forgetAnswers(env.Host, jobs)
	return findings
}

// readSamples reads the samples of the last minutes, and the jobs in the last of them.
func readSamples(env *checks.Env) (*flight.Window, []flight.Job, error) {
	dir := env.Host.State()
	if files, _ := filepath.Glob(filepath.Join(dir, flight.File("*"))); dir == "" || len(files) == 0 {
		return flight.NewWindow(0, 0), nil, nil
	}
	boot, err := probe.BootID(env.Host)
	if err != nil {
		return nil, nil, err
	}
	now, err := readUptime(env.Host)
	if err != nil {
		return nil, nil, err
	}
	env.At("read the samples in %s", dir)
	w := flight.NewWindow(max(now, flight.Seconds)-flight.Seconds+1, now)
	if err := loadSamples(w, dir, boot); err != nil {
		return nil, nil, err
	}
	jobs, err := runningJobs(env.Host, w)
	return w.Known(fresh), jobs, err
}

// ErrStranger is the answer to a user without such a job.
var ErrStranger = errors.New("the job is not known as one of this user")

// ExtractSamples returns the samples of a job for its owner, and the findings of check_job_health about it; nil if
// it has none. user is the UID of the one who asks: root gets any job on the node, others a job of their own.
// hours adds 24 hours by minute. All samples are of the time in which this job was on the node. The error for a
// stranger, ErrStranger, comes before the samples are read: anyone may ask.
func ExtractSamples(env *checks.Env, id string, user uint32, hours bool) (*flight.Extract, error) {
	if user != 0 {
		if owner, known, err := ownerOf(env.Host, id); err != nil || !known || owner != user {
			return nil, cmp.Or(err, ErrStranger)
		}
	}
	w, jobs, err := readSamples(env)
	at := slices.IndexFunc(jobs, func(j flight.Job) bool { return j.ID == id })
	if err != nil || at < 0 {
		return nil, err
	}
	windows := []*flight.Window{w}
	if hours {
		day, err := readDay(env.Host, w.To)
		if err != nil {
			return nil, err
		}
		windows = append(windows, day)
	}
	e := flight.NewExtract(jobs[at], windows...)
	e.Findings = notes(env, w, jobs, id)
	return e, nil
}

// notes returns the findings about a job at the end of a window.
func notes(env *checks.Env, w *flight.Window, jobs []flight.Job, id string) (list []flight.Note) {
	for _, v := range flight.Detect(w, jobs) {
		if v.Job == id {
			f := describe(w, v, knownAnswer(env.Host, w, v))
			list = append(list, flight.Note{Code: v.Code, Text: f.Text(jobHealthName), For: w.To - v.Since})
		}
	}
	return list
}

// readDay reads the means of 24 hours by minute.
func readDay(h *probe.Host, to uint32) (*flight.Window, error) {
	boot, err := probe.BootID(h)
	if err != nil {
		return nil, err
	}
	const day = flight.Minutes * 60
	w := flight.NewMinutes(max(to, day)-day+60, to)
	return w, loadSamples(w, h.State(), boot)
}

// RecordedSamples returns all samples of the node for the evidence of a fault, nil if there are none.
func RecordedSamples(env *checks.Env) (*flight.Extract, error) {
	w, _, err := readSamples(env)
	if err != nil || w.Len() < 2 {
		return nil, err
	}
	day, err := readDay(env.Host, w.To)
	if err != nil {
		return nil, err
	}
	all := flight.Job{GPUs: w.Names(flight.Busy), All: true}
	return flight.NewExtract(all, w, day), nil
}

// SamplesOf returns the samples of a job that has just ended, nil if there are none. data is its record.
func SamplesOf(env *checks.Env, data []byte) (*flight.Extract, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("parse the record of the job: %w", err)
	}
	w, _, err := readSamples(env)
	if err != nil {
		return nil, err
	}
	stay := w.During(r.Job)
	if stay == nil {
		return nil, nil
	}
	day, err := readDay(env.Host, w.To)
	if err != nil {
		return nil, err
	}
	boot, err := probe.BootID(env.Host)
	if err != nil {
		return nil, err
	}
	job := r.job(w, boot)
	e := flight.NewExtract(job, w, day)
	e.Findings = notes(env, stay, []flight.Job{job}, r.Job)
	return e, nil
}

// ownerOf returns the user of a job: by the record of its prolog, or else by its processes, which must all be of
// one user. The cgroup of a job is root's, and no user can put a process into that of another one.
func ownerOf(h *probe.Host, id string) (uid uint32, known bool, err error) {
	var r struct {
		Job string `json:"job"`
		UID *int64 `json:"uid"`
	}
	switch err := h.Recall("job-"+id, &r); {
	case err == nil && r.Job == id && r.UID != nil && *r.UID >= 0:
		return uint32(*r.UID), true, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, probe.ErrNoMemory):
		return 0, false, err
	}
	loads, err := jobscan.Jobs(h, false)
	if err != nil {
		return 0, false, err
	}
	for i := range loads {
		if loads[i].ID != id {
			continue
		}
		for _, pid := range loads[i].PIDs(h) {
			status, _ := h.ReadFile("/proc/" + pid + "/status")
			_, rest, _ := strings.Cut(string(status), "\nUid:")
			line, _, _ := strings.Cut(rest, "\n")
			words := slices.Compact(strings.Fields(line)) // real, effective, saved, of files
			if len(words) != 1 {
				continue // it has ended, or is setuid
			}
			n, err := strconv.ParseUint(words[0], 10, 32)
			switch {
			case err != nil || n == 0:
			case known && uint32(n) != uid:
				return 0, false, nil
			default:
				uid, known = uint32(n), true
			}
		}
	}
	return uid, known, nil
}

// readUptime returns the seconds since the boot.
func readUptime(h *probe.Host) (uint32, error) {
	text, err := h.ReadValue("/proc/uptime")
	if err != nil {
		return 0, err
	}
	word, _, _ := strings.Cut(text, " ")
	seconds, err := strconv.ParseFloat(word, 64)
	if err != nil || seconds < 0 || seconds > 1<<31 {
		return 0, &fs.PathError{Op: "parse", Path: "/proc/uptime", Err: fmt.Errorf("%q, want seconds", text)}
	}
	return uint32(seconds), nil
}

// loadSamples reads the rings of a state directory. A ring that is missing, or has the format of another version,
// has no samples.
func loadSamples(w *flight.Window, dir, boot string) error {
	for _, source := range []string{monitor.GPUs, monitor.Ports, monitor.Jobs} {
		f, err := os.OpenFile(filepath.Join(dir, flight.File(source)), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read samples: %w", err)
		}
		err = w.Load(f, boot)
		f.Close()
		if err != nil && !errors.Is(err, flight.ErrNoRing) && !errors.Is(err, flight.ErrFormat) { // its worker writes a new one
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
	}
	return nil
}

// record has the fields of the record of a job (slurm.Record) that show its GPUs.
type record struct {
	Job    string          `json:"job"`
	Whole  bool            `json:"whole"`
	Unsure bool            `json:"unsure"`
	Shared bool            `json:"shared"` // other jobs can have parts of its GPUs, whose samples are of all of them
	GPUs   []checks.JobGPU `json:"gpus"`
	One    bool            `json:"one_node"`
	Node   string          `json:"node"` // this one
	First  string          `json:"first_node"`
	Begin  struct {        // of the prolog; a requeued job has a new one
		Boot   string  `json:"boot"`
		Uptime float64 `json:"uptime"` // seconds
	} `json:"begin"`

	guess bool // there is no record
}

// job returns the job with its GPUs. boot is the ID of the boot that the samples are of.
func (r *record) job(w *flight.Window, boot string) flight.Job {
	job, all := flight.Job{ID: r.Job, Guess: r.guess, OneNode: r.One, First: r.First}, w.Names(flight.Busy)
	job.IsFirst = r.One || r.First != "" && r.First == r.Node // the first node can be unknown
	if r.Begin.Boot == boot {
		job.Since = uint32(math.Ceil(r.Begin.Uptime))
	}
	switch {
	case r.Whole:
		job.GPUs, job.All, job.Partial = all, true, w.More > 0
	case !r.Unsure && !r.Shared:
		job.GPUs = []string{}
		for _, name := range all {
			d := w.Devices[name]
			if slices.ContainsFunc(r.GPUs, func(g checks.JobGPU) bool { return g.PCI != "" && g.PCI == d.PCI || g.UUID != "" && g.UUID == d.UUID }) {
				job.GPUs = append(job.GPUs, name)
			}
		}
		job.All = len(all) > 0 && len(job.GPUs) == len(all) && w.More == 0 // without samples of GPUs their number is unknown
		job.Partial = w.More > 0 && len(job.GPUs) < len(r.GPUs)
	}
	return job
}

// runningJobs returns the jobs of the last samples with their GPUs.
func runningJobs(h *probe.Host, w *flight.Window) (list []flight.Job, err error) {
	last := w.Tail(fresh)
	ids := last.JobIDs()
	if len(ids) == 0 {
		return nil, nil
	}
	records, err := probe.Records(h, "job-")
	if err != nil && !errors.Is(err, probe.ErrNoMemory) {
		return nil, err
	}
	boot, err := probe.BootID(h)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if last.SlotOf(id) == "" { // it has ended
			continue
		}
		at := slices.IndexFunc(records, func(r probe.Record) bool { return r.Name == "job-"+id })
		var r record
		if at < 0 || json.Unmarshal(records[at].Data, &r) != nil || r.Job != id {
			r = record{Job: id, Whole: len(ids) == 1, Unsure: true, guess: len(ids) == 1}
		}
		list = append(list, r.job(w, boot))
	}
	return list, nil
}

// describe returns the finding for a verdict. nccl is what NCCL has answered, "" for nothing.
func describe(w *flight.Window, v flight.Verdict, nccl string) checks.Finding {
	f := checks.Finding{Code: v.Code, Severity: checks.Fail, Want: v.Want, Got: v.Got, Jobs: v.Job}
	text := v.Message
	if len(v.Devices) == 1 {
		d := w.Devices[v.Devices[0]]
		f.Device = checks.Device{Kind: "gpu", Name: v.Devices[0], PCI: d.PCI, UUID: d.UUID}
		if strings.Contains(v.Devices[0], ":") {
			f.Device.Kind = "port"
		}
	}
	if v.Job != "" {
		text = "job " + v.Job + ": " + text
	}
	if nccl != "" {
		text += "; NCCL: " + nccl
	}
	return f.Describe(jobHealthName, "%s", text)
}
