package slurm

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	prologs = "/etc/slurm/prolog.d/*"
	epilogs = "/etc/slurm/epilog.d/*"
	program = "/usr/sbin/nhc-gpu"
)

// goodConf returns a Slurm configuration that needs no advice.
func goodConf() Config {
	return Config{
		"HealthCheckProgram": program, "HealthCheckInterval": "300 sec", "HealthCheckNodeState": "ANY,CYCLE", "HealthCheckTimeout": "0 sec",
		"Prolog[0]": prologs, "Epilog[0]": epilogs, "PrologFlags": "Alloc,Contain", "PrologEpilogTimeout": "60", "MessageTimeout": "30 sec",
		"BatchStartTimeout": "60 sec", "UnkillableStepTimeout": "150 sec", "SchedulerParameters": "bf_window=10,nohold_on_prolog_fail",
		"JobRequeue": "1", "SlurmdUser": "root(0)", "SlurmctldParameters": "health_check_report", "SLURM_VERSION": "26.05.5", "SLURM_CONF": "/etc/slurm/slurm.conf",
	}
}

func goodWiring() Wiring {
	return Wiring{
		Budget: map[Role]time.Duration{HealthCheck: 30 * time.Second, Prolog: 10 * time.Second, Epilog: 30 * time.Second},
		Found: map[string][]Program{
			program: {{Path: program, Ours: true, Direct: true}},
			prologs: {{Path: "/etc/slurm/prolog.d/50-nhc-gpu", Ours: true}},
			epilogs: {{Path: "/etc/slurm/epilog.d/50-nhc-gpu", Ours: true}},
		},
	}
}

// listAdvice returns advice, one a line: "warning SETTING: TEXT -> WRITE".
func listAdvice(c Config, w Wiring) (lines []string) {
	for _, a := range Advise(c, w) {
		level := "warning "
		if a.Remark {
			level = "remark "
		}
		lines = append(lines, strings.TrimSuffix(level+a.Setting+": "+a.Text+" -> "+a.Fix, " -> "))
	}
	return lines
}

func TestAdvise(t *testing.T) {
	t.Parallel()
	if got := listAdvice(goodConf(), goodWiring()); got != nil {
		t.Errorf("nothing is wrong, got %q", got)
	}
	for name, c := range map[string]struct {
		conf   map[string]string // "": without the key
		wiring func(*Wiring)
		want   []string
	}{
		"it is never started": {
			conf: map[string]string{"HealthCheckInterval": "0 sec"},
			want: []string{"warning HealthCheckInterval = 0 sec: slurmd never starts the health check: no fault is found, and no drained node is resumed -> HealthCheckInterval=300"},
		},
		"it leaves no time for pings": {
			conf: map[string]string{"HealthCheckInterval": "1 sec"},
			want: []string{"warning HealthCheckInterval = 1 sec: slurmctld has no time to ping the nodes: a resumed node stays idle* and gets no job (seen with 22.05) -> HealthCheckInterval=300"},
		},
		"one run is not over when the next begins": {
			conf: map[string]string{"HealthCheckInterval": "30 sec"},
			want: []string{"warning HealthCheckInterval = 30 sec: a health check can take 30s: slurmd starts the next one at the same time, and that one exits without a result -> HealthCheckInterval=60"},
		},
		"no health check": {
			conf: map[string]string{"HealthCheckProgram": "(null)", "HealthCheckInterval": "0 sec"},
			want: []string{"warning HealthCheckProgram is not set: faults are found only around jobs, if at all, and no drained node is resumed -> HealthCheckProgram=/usr/sbin/nhc-gpu"},
		},
		"another health check": {
			wiring: func(w *Wiring) { w.Found[program] = []Program{{Path: program}} },
			want:   []string{"warning HealthCheckProgram = /usr/sbin/nhc-gpu: does not start this program: faults are found only around jobs, if at all, and no drained node is resumed -> HealthCheckProgram=/usr/sbin/nhc-gpu"},
		},
		"a health check that is not there": {
			wiring: func(w *Wiring) { w.Found[program] = nil },
			want:   []string{"warning HealthCheckProgram = /usr/sbin/nhc-gpu: the file does not exist on this node: the node is never checked"},
		},
		"slurmd kills the health check": {
			conf: map[string]string{"HealthCheckTimeout": "34 sec"},
			want: []string{"warning HealthCheckTimeout = 34 sec: a health check can take 30s, plus 5s for a call to slurmctld: slurmd kills it after that, and its result is lost -> HealthCheckTimeout=45"},
		},
		"before 26.05 it has 60 s": {
			conf:   map[string]string{"HealthCheckTimeout": "", "SLURM_VERSION": "24.11.5"},
			wiring: func(w *Wiring) { w.Budget[HealthCheck] = 56 * time.Second },
			want:   []string{"warning HealthCheckTimeout is not set: a health check can take 56s, plus 5s for a call to slurmctld: slurmd kills it after that, and its result is lost -> HealthCheckTimeout=75"},
		},
		"drained nodes are not looked at": {
			conf: map[string]string{"HealthCheckNodeState": "NONDRAINED_IDLE,CYCLE"},
			want: []string{"warning HealthCheckNodeState = NONDRAINED_IDLE,CYCLE: a drained node without a job is not checked: nhc-gpu never resumes a node that it has drained -> HealthCheckNodeState=ANY,CYCLE"},
		},
		"CYCLE alone is all nodes": {conf: map[string]string{"HealthCheckNodeState": "CYCLE"}},
		"busy nodes are not looked at": {
			conf: map[string]string{"HealthCheckNodeState": "IDLE"},
			want: []string{"remark HealthCheckNodeState = IDLE: nodes with jobs are not checked -> HealthCheckNodeState=ANY,CYCLE"},
		},
		"only at the start of slurmd": {
			conf: map[string]string{"HealthCheckNodeState": "START_ONLY"},
			want: []string{"warning HealthCheckNodeState = START_ONLY: nodes are checked when slurmd starts, and never again -> HealthCheckNodeState=ANY,CYCLE"},
		},
		"slurmd kills the epilog": {
			conf: map[string]string{"PrologEpilogTimeout": "30"},
			want: []string{`warning PrologEpilogTimeout = 30: an epilog can take 30s, plus 5s for a call to slurmctld: the run stops earlier if the node can read slurm.conf; otherwise slurmd kills it and drains the node with "Epilog error" instead of nhc-gpu's reason -> PrologEpilogTimeout=45`},
		},
		"slurmd kills both": {
			conf: map[string]string{"PrologEpilogTimeout": "", "PrologTimeout": "10", "EpilogTimeout": "65534"},
			want: []string{`warning PrologTimeout = 10: a prolog can take 10s, plus 5s for a call to slurmctld: the run stops earlier if the node can read slurm.conf; otherwise slurmd kills it and drains the node with "Prolog error" instead of nhc-gpu's reason -> PrologTimeout=15`},
		},
		"no limit kills nobody": {conf: map[string]string{"PrologEpilogTimeout": "65534", "BatchStartTimeout": "65534"}},
		"Slurm's own defaults": {
			conf: map[string]string{"BatchStartTimeout": "10 sec", "MessageTimeout": "10 sec", "UnkillableStepTimeout": "60 sec"},
			want: []string{
				"warning BatchStartTimeout = 10 sec: a prolog can take 10s, plus 5s for a call to slurmctld: after that slurmctld can declare a batch job lost while its prolog runs, and srun can give up -> BatchStartTimeout=15",
				`warning MessageTimeout = 10 sec: a prolog can take 10s, plus 5s for a call to slurmctld: after that the user gets the message "Prolog hung on node" -> MessageTimeout=30 and UnkillableStepTimeout=150, see slurm.conf(5)`,
			},
		},
		"it is there twice": {
			wiring: func(w *Wiring) {
				w.Found[prologs] = append(w.Found[prologs], Program{Path: "/etc/slurm/prolog.d/50-nhc-gpu~", Ours: true})
			},
			conf: map[string]string{"BatchStartTimeout": "20 sec"},
			want: []string{
				"warning Prolog = /etc/slurm/prolog.d/*: starts this program 2 times, as /etc/slurm/prolog.d/50-nhc-gpu, /etc/slurm/prolog.d/50-nhc-gpu~: keep only one of them",
				"warning BatchStartTimeout = 20 sec: a prolog can take 10s, 2 times, plus 5s for a call to slurmctld: after that slurmctld can declare a batch job lost while its prolog runs, and srun can give up -> BatchStartTimeout=30",
			},
		},
		"it is not alone": {
			wiring: func(w *Wiring) {
				w.Found[prologs] = append(w.Found[prologs], Program{Path: "/etc/slurm/prolog.d/10-scratch"})
			},
			want: []string{"remark Prolog = /etc/slurm/prolog.d/*: also starts /etc/slurm/prolog.d/10-scratch: slurmd runs them in sequence, from z to a, and stops after one that fails; PrologEpilogTimeout applies to each, BatchStartTimeout to all together"},
		},
		"what is no program drains nodes": {
			wiring: func(w *Wiring) {
				w.Found[epilogs] = append(w.Found[epilogs], Program{Path: "/etc/slurm/epilog.d/README", Bad: "cannot be executed (mode 0644)", Ours: false})
			},
			want: []string{
				`warning Epilog = /etc/slurm/epilog.d/*: /etc/slurm/epilog.d/README: cannot be executed (mode 0644): slurmd drains the node with "Epilog error" after its next job; remove it, or make it executable`,
			},
		},
		"an empty folder drains nodes": {
			wiring: func(w *Wiring) { w.Found[prologs] = nil },
			want: []string{
				`warning Prolog = /etc/slurm/prolog.d/*: no file on this node matches /etc/slurm/prolog.d/*: slurmd drains the node with "Prolog error" before its next job, and requeues the job -> install -D -t /etc/slurm/prolog.d /usr/share/nhc-gpu/slurm/prolog.d/50-nhc-gpu`,
			},
		},
		"the program in place of the script": {
			wiring: func(w *Wiring) { w.Found[prologs] = []Program{{Path: program, Ours: true, Direct: true}} },
			want: []string{
				"remark Prolog = /etc/slurm/prolog.d/*: if the program is missing on a node, the next job drains it; with the script the job runs -> install -D -t /etc/slurm/prolog.d /usr/share/nhc-gpu/slurm/prolog.d/50-nhc-gpu",
			},
		},
		"nothing around jobs is up to the site": {
			conf: map[string]string{"Prolog[0]": "", "Epilog[0]": "", "PrologFlags": "(null)", "BatchStartTimeout": "10 sec", "SchedulerParameters": ""},
			want: []string{
				"remark Prolog is not set: nothing is checked before a job -> Prolog=/etc/slurm/prolog.d/*, and on each node: install -D -t /etc/slurm/prolog.d /usr/share/nhc-gpu/slurm/prolog.d/50-nhc-gpu",
				"remark Epilog is not set: nothing is checked after a job -> Epilog=/etc/slurm/epilog.d/*, and on each node: install -D -t /etc/slurm/epilog.d /usr/share/nhc-gpu/slurm/epilog.d/50-nhc-gpu",
			},
		},
		"unless it has configured it": {
			conf:   map[string]string{"Prolog[0]": "", "Epilog[0]": ""},
			wiring: func(w *Wiring) { w.Around = true },
			want: []string{
				"warning Prolog is not set: nothing is checked before a job -> Prolog=/etc/slurm/prolog.d/*, and on each node: install -D -t /etc/slurm/prolog.d /usr/share/nhc-gpu/slurm/prolog.d/50-nhc-gpu",
				"warning Epilog is not set: nothing is checked after a job -> Epilog=/etc/slurm/epilog.d/*, and on each node: install -D -t /etc/slurm/epilog.d /usr/share/nhc-gpu/slurm/epilog.d/50-nhc-gpu",
			},
		},
		"a prolog without its epilog": {
			conf: map[string]string{"Epilog[0]": ""},
			want: []string{"warning Epilog is not set: nothing is checked after a job -> Epilog=/etc/slurm/epilog.d/*, and on each node: install -D -t /etc/slurm/epilog.d /usr/share/nhc-gpu/slurm/epilog.d/50-nhc-gpu"},
		},
		"the prolog comes late": {
			conf: map[string]string{"PrologFlags": "Serial"},
			want: []string{
				"warning PrologFlags = Serial: a prolog runs before the first step on its node, not before the job: other nodes of the job are checked late, or never -> PrologFlags=Serial,Alloc",
				"remark PrologFlags = Serial: the prologs and epilogs of a node run one at a time: eight jobs that start together can take eight times 10s",
			},
		},
		"the prolog sees the job's GPUs alone": {
			conf: map[string]string{"PrologFlags": "RunInJob"},
			want: []string{"warning PrologFlags = RunInJob: prolog and epilog run inside the job's cgroup: if it hides other jobs' GPUs, these count as missing; remove RunInJob"},
		},
		"the job stays held, or is cancelled": {
			conf: map[string]string{"SchedulerParameters": "(null)", "JobRequeue": "0"},
			want: []string{
				"remark SchedulerParameters is not set: a job whose prolog fails is requeued and held, until scontrol release -> SchedulerParameters=nohold_on_prolog_fail",
				"remark JobRequeue = 0: a job whose prolog fails is cancelled, unless it was submitted with --requeue -> JobRequeue=1, or PrologFlags=ForceRequeueOnFail",
			},
		},
		"not root": {
			conf: map[string]string{"SlurmdUser": "slurm(64030)"},
			want: []string{"warning SlurmdUser = slurm(64030): this program then does not run as root: it cannot drain nodes, and stores no state -> SlurmdUser=root"},
		},
		"jobs count as unkillable too soon": {
			conf: map[string]string{"UnkillableStepTimeout": "60 sec"},
			want: []string{`warning UnkillableStepTimeout = 60 sec: less than five times MessageTimeout (30s): Slurm drains healthy nodes with "Kill task failed", and nhc-gpu does not resume them -> UnkillableStepTimeout=150`},
		},
		"slurmd could say more": {
			conf: map[string]string{"SlurmctldParameters": "enable_configless"},
			want: []string{"remark SlurmctldParameters = enable_configless: with this, slurmd informs each health check whether its node is drained; it then detects a manual drain without a call to slurmctld -> SlurmctldParameters=enable_configless,health_check_report"},
		},
		"older ones cannot": {conf: map[string]string{"SlurmctldParameters": "", "SLURM_VERSION": "24.11.5"}},
		"another word for a time": {
			conf: map[string]string{"BatchStartTimeout": "1 min"},
			want: []string{"remark BatchStartTimeout is not valid: BatchStartTimeout = 1 min: want seconds: this setting was not checked"},
		},
		"what was not looked at may be ours": {
			conf:   map[string]string{"BatchStartTimeout": "10 sec"},
			wiring: func(w *Wiring) { delete(w.Found, prologs) },
			want: []string{
				"warning BatchStartTimeout = 10 sec: a prolog can take 10s, plus 5s for a call to slurmctld: after that slurmctld can declare a batch job lost while its prolog runs, and srun can give up -> BatchStartTimeout=15",
			},
		},
	} {
		conf, wiring := goodConf(), goodWiring()
		maps.Copy(conf, c.conf)
		maps.DeleteFunc(conf, func(_, value string) bool { return value == "" })
		if c.wiring != nil {
			c.wiring(&wiring)
		}
		if diff := cmp.Diff(c.want, listAdvice(conf, wiring)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The defaults of every release, with this program configured, give no advice about unreadable
// values.
func TestAdviseOnRecorded(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"22.05", "24.11", "26.05"} {
		for _, name := range []string{"default", "wired"} {
			got := listAdvice(configOf(t, release+"-"+name), goodWiring())
			if slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, "cannot be read") }) {
				t.Errorf("%s-%s: %q", release, name, got)
			}
			if wired := len(got) < 2; name == "wired" && !wired || name == "default" && wired {
				t.Errorf("%s-%s: %q", release, name, got)
			}
		}
	}
}
