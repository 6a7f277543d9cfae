package active

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// trial is an active test with the work of a test case.
type trial struct {
	active

	Words string `arg:"1" toml:"words"`

	bound time.Duration
	plain bool // it is of no GPU
	do    func(*activeRun)
}

func (c *trial) Bound() time.Duration {
	if c.bound > 0 {
		return c.bound
	}
	return 10 * time.Second
}

func (c *trial) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	begin := c.beginGPUs
	if c.plain {
		begin = c.begin
	}
	r, findings := begin(ctx, env, activeTest{Check: "check_trial", Code: "trial", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	if c.do != nil {
		c.do(r)
	}
	return r.done()
}

const boot = "proc/sys/kernel/random/boot_id"

// trialEnv returns a node with eight idle H100, and its root directory.
func trialEnv(t testing.TB, change func(*nvml.Snapshot)) (env *checks.Env, root string) {
	t.Helper()
	s := checktest.OnGPUs("", nil, change)
	s.Files[boot] = "11111111-2222-3333-4444-555555555555\n"
	maps.Copy(s.Files, checktest.UseNode(checktest.UseProc{PID: 1, Args: "/sbin/init"}))
	root = s.Build(t)
	env = &checks.Env{Host: probe.NewHost(root), Vars: map[string]string{}, Doing: func(string) {}}
	nvml.Set(env.Host, s.NVML, nil)
	env.Host.SetPast("/past")
	return env, root
}

// again returns the next run on the same node.
func again(env *checks.Env, root string, n *nvml.Snapshot) *checks.Env {
	next := *env
	next.Host = probe.NewHost(root)
	nvml.Set(next.Host, n, nil)
	next.Host.SetPast("/past")
	return &next
}

func putFile(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// putStepd writes a slurmstepd into a recorded node.
func putStepd(t *testing.T, root string, pid int, step string) {
	t.Helper()
	dir := "proc/" + strconv.Itoa(pid) + "/"
	putFile(t, root, dir+"status", "Name:\tslurmstepd\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n")
	putFile(t, root, dir+"cmdline", "slurmstepd: ["+step+"]\x00")
}

func stepd(step string) map[string]string {
	return checktest.UseNode(checktest.UseProc{PID: 50, Args: "slurmstepd: [" + step + "]"})
}

// record returns the job record of a prolog.
func record(job, boot, outcome string) map[string]string {
	return map[string]string{"past/job-" + job + ".json": `{"version":1,"job":"` + job + `","begin":{"boot":"` + boot + `"},"outcome":"` + outcome + `"}`}
}

func brief(findings []checks.Finding) (text []string) {
	for _, f := range findings {
		text = append(text, f.Severity.String()+" "+f.Code+": "+f.Message)
	}
	return text
}

func wantBrief(t *testing.T, findings []checks.Finding, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, brief(findings)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// An active test touches no device that another process uses.
func TestActiveKeepsOffWhatIsUsed(t *testing.T) {
	t.Parallel()
	own := &checks.Job{ID: "7"}
	for i := range 8 {
		own.GPUs = append(own.GPUs, checks.JobGPU{Minor: i, PCI: fakenvml.Address(i)})
	}
	part := &checks.Job{ID: "7", GPUs: own.GPUs[:4]}
	whole := &checks.Job{ID: "7", GPUs: own.GPUs, Whole: true}
	const thisBoot = "11111111-2222-3333-4444-555555555555"
	const began = "skip active.busy: check_trial:  not run: job 123 started on the node, and its epilog has not run"
	const alone = "gpus gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7"
	for name, c := range map[string]struct {
		change func(*nvml.Snapshot)
		files  map[string]string
		links  map[string]string
		job    *checks.Job
		stuck  []string
		left   time.Duration
		want   []string
	}{
		"idle":                             {want: []string{alone}},
		"a job":                            {files: stepd("123.batch"), want: []string{"skip active.busy: check_trial:  not run: job 123 runs on the node"}},
		"its own job":                      {files: stepd("7.extern"), job: own, want: []string{alone}},
		"part of it":                       {job: part, want: []string{"skip active.shared: check_trial:  not run in this prolog: the job has 4 of 8 GPUs"}},
		"another began":                    {job: &checks.Job{ID: "7", GPUs: own.GPUs, Beside: []int{5}}, want: []string{"skip active.shared: check_trial:  not run in this prolog: another job has started on the node"}},
		"shared":                           {job: &checks.Job{ID: "7", GPUs: own.GPUs, Shared: true}, want: []string{"skip active.shared: check_trial:  not run in this prolog: other jobs may share its GPUs"}},
		"its epilog":                       {job: &checks.Job{ID: "7", GPUs: own.GPUs[:1], Ended: true}, want: []string{alone}},
		"all GPUs, and a part of the CPUs": {job: &checks.Job{ID: "7", GPUs: own.GPUs, Part: true}, want: []string{"skip active.shared: check_trial:  not run in this prolog: the job does not have the whole node"}},
		"a job without a step":             {files: record("123", thisBoot, ""), want: []string{began}},
		"an unknown one":                   {stuck: []string{"read /past"}, want: []string{"unknown active.busy: check_trial:  not run: it is unknown whether a job has started: the directory of the records does not answer"}},
		"one beside its prolog":            {files: record("123", thisBoot, ""), job: own, want: []string{began}},
		"one that cannot be":               {files: record("123", thisBoot, ""), job: whole, want: []string{alone}},
		"one before its epilog":            {files: record("123", thisBoot, ""), job: &checks.Job{ID: "7", GPUs: own.GPUs, Whole: true, Ended: true}, want: []string{began}},
		"its own record":                   {files: record("7", thisBoot, ""), job: &checks.Job{ID: "7", Ended: true}, want: []string{alone}},
		"one of another boot":              {files: record("123", "another", ""), want: []string{alone}},
		"one that was sent away":           {files: record("123", thisBoot, "refused"), want: []string{alone}},
		"a record that cannot be read":     {files: map[string]string{"past/job-123.json": "garbage"}, want: []string{alone}},
		"no time":                          {left: 1, want: []string{"unknown active.time: check_trial:  not run: too little time left in this run, want 10s, got 0s"}},
		"a process": {
			change: checktest.Gpu3(func(g *nvml.GPU) { g.Processes = nvml.Known([]nvml.GPUProcess{{PID: 1}}) }),
			want:   []string{"gpus gpu0 gpu1 gpu2 gpu4 gpu5 gpu6 gpu7", "skip active.left: check_trial:  gpu3 0000:13:00.0: skipped: process 1 uses it"},
		},
		"a process that NVML does not list": {
			change: func(n *nvml.Snapshot) {
				for i := range n.GPUs {
					n.GPUs[i].Processes = nvml.Reading[[]nvml.GPUProcess]{}
				}
			},
			links: map[string]string{"proc/1/fd/7": "/dev/nvidia3", "proc/1/fd/8": "/dev/nvidia-uvm"},
			want:  []string{"gpus gpu0 gpu1 gpu2 gpu4 gpu5 gpu6 gpu7", "skip active.left: check_trial:  gpu3 0000:13:00.0: skipped: process 1 uses it"},
		},
		"MIG": {
			change: checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG = nvml.Known(true) }),
			want:   []string{"gpus gpu0 gpu1 gpu2 gpu4 gpu5 gpu6 gpu7", "skip active.left: check_trial:  gpu3 0000:13:00.0: skipped: MIG splits it"},
		},
		"MIG, unread": {
			change: checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG = nvml.Failed[bool](errors.New("timeout")) }),
			want:   []string{"gpus gpu0 gpu1 gpu2 gpu4 gpu5 gpu6 gpu7", "unknown gpu.error: check_trial:  gpu3 0000:13:00.0: skipped: cannot read its MIG mode: timeout"},
		},
		"prohibited": {
			change: checktest.Gpu3(func(g *nvml.GPU) { g.Modes.Compute = nvml.Known("prohibited") }),
			want:   []string{"gpus gpu0 gpu1 gpu2 gpu4 gpu5 gpu6 gpu7", "skip active.left: check_trial:  gpu3 0000:13:00.0: skipped: its compute mode is prohibited"},
		},
		"lost": {
			change: checktest.Gpu3(func(g *nvml.GPU) { g.Err = checktest.ErrOdd }),
			want:   []string{"gpus gpu0 gpu1 gpu2 gpu4 gpu5 gpu6 gpu7", "unknown gpu.error: check_trial:  gpu3 0000:13:00.0: skipped: cannot query it: " + checktest.OddText},
		},
		"exclusive": {change: checktest.Gpu3(func(g *nvml.GPU) { g.Modes.Compute = nvml.Known("exclusive") }), want: []string{alone}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, root := trialEnv(t, c.change)
			for f, content := range c.files {
				putFile(t, root, f, content)
			}
			for f, target := range c.links {
				path := filepath.Join(root, f)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)); err != nil {
					t.Fatal(err)
				}
			}
			env.Host.SetStuck(c.stuck)
			env.Job = c.job
			ctx := t.Context()
			if c.left > 0 {
				ctx = checks.WithDeadline(ctx, time.Now().Add(c.left))
			}
			var had []string
			findings := (&trial{do: func(r *activeRun) {
				names := "gpus"
				for _, g := range r.gpus {
					names += " " + checks.GPUDevice(g).Name
				}
				had = []string{names}
			}}).Run(ctx, env)
			if diff := cmp.Diff(c.want, append(had, brief(findings)...)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestActiveAllGPUsUsed(t *testing.T) {
	t.Parallel()
	env, _ := trialEnv(t, func(n *nvml.Snapshot) {
		for i := range n.GPUs {
			n.GPUs[i].Modes.MIG = nvml.Known(true)
		}
	})
	findings := (&trial{do: func(*activeRun) { t.Error("it was run") }}).Run(t.Context(), env)
	if len(findings) != 8 || checks.Worst(findings) != checks.Skip {
		t.Errorf("%q, want eight GPUs left out", brief(findings))
	}
}

// Two tests at the same time would disturb each other.
func TestActiveIsAlone(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	findings := (&trial{do: func(*activeRun) {
		other := again(env, root, checktest.H100s())
		wantBrief(t, (&trial{}).Run(t.Context(), other), "unknown active.held: check_trial:  cannot run: another active test is running")
	}}).Run(t.Context(), env)
	wantBrief(t, findings)
	wantBrief(t, (&trial{}).Run(t.Context(), again(env, root, checktest.H100s())))
}

// awaitEnd waits until a running test has to stop.
func awaitEnd(r *activeRun) {
	select {
	case <-r.ctx.Done():
	case <-time.After(20 * time.Second):
	}
}

func TestActiveStopsForAJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file, content string
		want          string
	}{
		"a slurmstepd":     {"", "99.extern", "skip active.stopped: check_trial:  stopped: a job started on the node: 99"},
		"a job's record":   {"past/job-98.json", "{}", "skip active.stopped: check_trial:  stopped: a job started on the node: 98"},
		"a record of ours": {"past/other.json", "{}", "unknown active.time: check_trial:  stopped: time limit reached, want at most 400ms; not finished: gpu0 0000:10:00.0, gpu1 0000:11:00.0"},
		"the job itself":   {"past/job-7.json", "{}", "unknown active.time: check_trial:  stopped: time limit reached, want at most 400ms; not finished: gpu0 0000:10:00.0, gpu1 0000:11:00.0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, root := trialEnv(t, nil)
			env.Job = &checks.Job{ID: "7", Ended: true}
			test := &trial{bound: 10 * time.Second}
			if strings.HasPrefix(c.want, "unknown") {
				test.bound = 400 * time.Millisecond
			}
			test.do = func(r *activeRun) {
				if c.file == "" {
					putStepd(t, root, 4711, c.content)
				} else {
					putFile(t, root, c.file, c.content)
				}
				awaitEnd(r)
				r.reportFailure(r.gpus[0], "copy", context.Cause(r.ctx))
				r.reportFailure(r.gpus[1], "copy", context.Cause(r.ctx))
			}
			wantBrief(t, test.Run(t.Context(), env), c.want)
			if _, err := os.Stat(filepath.Join(root, "past/active-trial.json")); !errors.Is(err, os.ErrNotExist) {
				t.Error("a stopped test became a result")
			}
		})
	}
}

// ---- results

// slowTrial reports gpu3 as slow if slow is set.
func slowTrial(words string, age time.Duration, slow bool) *trial {
	return &trial{Words: words, active: active{MaxAge: age}, do: func(r *activeRun) {
		for i, g := range r.gpus {
			m := measure{Test: "host_to_device", Algorithm: "ce", Size: 512 << 20, Ranks: 1, Device: checks.GPUDevice(g), Model: g.Name.Value, What: "copy from the host", Value: 55, Unit: "GB/s", Least: 48}
			if slow && i == 3 {
				m.Value = 21.34
			}
			r.record(m)
		}
	}}
}

// later returns a finding as a later run reports it: without the time of the fault, which it
// verifies.
func later(t *testing.T, text []string) []string {
	t.Helper()
	for i, line := range text {
		before, at, found := strings.Cut(line, " (found at ")
		if !found {
			continue
		}
		if when, err := time.ParseInLocation("2006-01-02 15:04)", at, time.Local); err != nil || time.Since(when).Abs() > time.Hour {
			t.Errorf("%s: %v", line, err)
		}
		text[i] = before + " (found)"
	}
	return text
}

const slowText = "fail trial.slow: check_trial:  gpu3 0000:13:00.0: copy from the host, want at least 48.0 GB/s, got 21.3 GB/s"

const oldText = slowText + " (found)"

func TestActiveResultIsKept(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	fresh := func(words string, age time.Duration, only bool) string {
		t.Helper()
		findings, known := Fresh(again(env, root, checktest.H100s()), "check_trial", slowTrial(words, age, false), only)
		if !known {
			return "run it"
		}
		return strings.Join(append(later(t, brief(findings)), "known"), "; ")
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	const stale = "unknown active.stale: check_trial:  no result of the last 24h: "
	want(fresh("a", 24*time.Hour, false), "run it")
	want(fresh("a", 24*time.Hour, true), stale+"never run with these arguments; known")
	slowTrial("a", 0, false).Run(t.Context(), env)
	want(fresh("a", 24*time.Hour, false), "known")
	want(fresh("a", 24*time.Hour, true), "known")
	want(fresh("b", 24*time.Hour, true), stale+"never run with these arguments; known")
	slowTrial("b", 0, true).Run(t.Context(), again(env, root, checktest.H100s()))
	want(fresh("a", 24*time.Hour, true), "known")
	want(fresh("b", 24*time.Hour, true), oldText+"; known")
	want(fresh("b", 24*time.Hour, false), "run it") // it may have been repaired
	want(fresh("a", time.Nanosecond, false), "run it")
	if got := fresh("a", time.Nanosecond, true); !strings.Contains(got, "no result of the last 0s: the last one is 0s old") {
		t.Error(got)
	}

	putFile(t, root, boot, "another\n")
	want(fresh("a", 24*time.Hour, true), stale+"the last one is from before the reboot; known")
	putFile(t, root, boot, "11111111-2222-3333-4444-555555555555\n")
	putFile(t, root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  999.1.2  x\n")
	want(fresh("a", 24*time.Hour, true), stale+"the last one is with another driver or other GPUs; known")
	putFile(t, root, "past/active-trial.json", "garbage")
	if got := fresh("a", 24*time.Hour, true); !strings.HasPrefix(got, stale+"/past/active-trial.json is damaged") {
		t.Error(got)
	}
}

// A new job does not clear a fault.
func TestActiveFaultOutlivesAJob(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	rates := slowTrial("", 0, true).Run(t.Context(), env)
	if len(rates) != 2 || brief(rates)[0] != slowText || rates[1].Code != "trial.rates" ||
		rates[1].Got != "copy from the host, GB/s: gpu0 55.0, gpu1 55.0, gpu2 55.0, gpu3 21.3, gpu4 55.0, gpu5 55.0, gpu6 55.0, gpu7 55.0; spread 61.2 %" {
		t.Fatalf("%q", brief(rates))
	}
	putStepd(t, root, 50, "123.batch")
	const busy = "skip active.busy: check_trial:  not run: job 123 runs on the node"
	if diff := cmp.Diff([]string{busy, oldText}, later(t, brief(slowTrial("", time.Hour, false).Run(t.Context(), again(env, root, checktest.H100s()))))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	wantBrief(t, slowTrial("other words", 0, false).Run(t.Context(), again(env, root, checktest.H100s())), busy)
	putFile(t, root, boot, "another\n")
	wantBrief(t, slowTrial("", 0, false).Run(t.Context(), again(env, root, checktest.H100s())), busy)
}
