package setting

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The environment must never control nhc-gpu; around a job only slurmd's variables are used.
func TestNew(t *testing.T) {
	t.Parallel()
	environ := []string{
		"HOME=/root", "NAME=gpu01", "TIMEOUT=1", "LD_PRELOAD=/evil.so", "BASH_ENV=/evil", "BASH_FUNC_x%%=() { :; }", "NHC_GPU_X=1", "GOGC=1", "HOSTROOT=/evil", "PATH=/evil",
		"SLURM_JOB_ID=7", "SLURM_SCONTROL=/evil", "CUDA_VISIBLE_DEVICES=0", "broken",
	}
	for _, tt := range []struct {
		job  bool
		want map[string]string // "-": not taken
	}{
		{false, map[string]string{"HOME": "/root", "SLURM_JOB_ID": "7", "SLURM_SCONTROL": "/evil", "CUDA_VISIBLE_DEVICES": "0"}},
		{true, map[string]string{"HOME": "-", "SLURM_JOB_ID": "7", "SLURM_SCONTROL": "-", "CUDA_VISIBLE_DEVICES": "0"}},
	} {
		s := New(environ, tt.job)
		for _, name := range []string{"NAME", "TIMEOUT", "LD_PRELOAD", "BASH_ENV", "BASH_FUNC_x%%", "NHC_GPU_X", "GOGC", "HOSTROOT", "broken"} {
			tt.want[name] = "-"
		}
		tt.want["PATH"] = FixedPath
		for name, want := range tt.want {
			got, ok := s.Lookup(name)
			if !ok {
				got = "-"
			}
			if got != want {
				t.Errorf("around a job %v: %s is %q, want %q", tt.job, name, got, want)
			}
		}
	}
}

func TestFinalize(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		words []string
		want  map[string]string
	}{
		{"defaults", nil, map[string]string{
			"CONFFILE": "/etc/nhc/nhc.conf", "INCDIR": "/etc/nhc/scripts", "LOGFILE": ">>/var/log/nhc.log 2>&1", "TIMEOUT": "30", "MARK_OFFLINE": "1",
			"RESULTFILE": "/var/run/nhc/nhc.status", "TS": "0", "VERBOSE": "0",
		}},
		{"another name", []string{"NAME=nhc-cron"}, map[string]string{"CONFFILE": "/etc/nhc/nhc-cron.conf", "LOGFILE": ">>/var/log/nhc-cron.log 2>&1"}},
		{"another directory", []string{"CONFDIR=/srv"}, map[string]string{"CONFFILE": "/srv/nhc.conf", "INCDIR": "/srv/scripts"}},
		{"what is set stays", []string{"CONFFILE=/x", "TIMEOUT=7"}, map[string]string{"CONFFILE": "/x", "TIMEOUT": "7"}},
	} {
		s := New(nil, false)
		for _, w := range tt.words {
			if err := s.Word(w); err != nil {
				t.Fatal(err)
			}
		}
		s.Preset("/usr/sbin/nhc-gpu")
		s.Finalize()
		got := map[string]string{}
		for name := range tt.want {
			got[name] = s.Get(name)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value   string
		timeout time.Duration
		one     bool // MARK_OFFLINE is 1
		stamps  bool
	}{
		{"", 0, false, false},
		{"0", 0, false, false},
		{"1", time.Second, true, true},
		{" 30 ", 30 * time.Second, false, true},
		{"-5", 0, false, true},
		{"ten", 0, false, false},
	} {
		s := &Settings{Vars: map[string]string{"TIMEOUT": tt.value, "MARK_OFFLINE": tt.value, "TS": tt.value, "NHC_RM": "slurm"}}
		if s.Timeout() != tt.timeout || s.Marks() != tt.one || s.Stamps() != tt.stamps {
			t.Errorf("%q: TIMEOUT %v, marks %v, stamps %v", tt.value, s.Timeout(), s.Marks(), s.Stamps())
		}
	}
	if (&Settings{Vars: map[string]string{"MARK_OFFLINE": "1"}}).Marks() {
		t.Error("a node without a resource manager is marked")
	}
}

// nhc-gpu marks the node itself, unless the site names a helper or the directory of helpers.
func TestCustomHelper(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		word string
		want bool
	}{
		{"VERBOSE=1", false},
		{"OFFLINE_NODE=/site/offline", true},
		{"HELPERDIR=/site", true},
		{"OFFLINE_NODE=", false},
	} {
		s := New(nil, false)
		if err := s.Word(tt.word); err != nil {
			t.Fatal(err)
		}
		s.Finalize()
		if got := s.CustomHelper("OFFLINE_NODE"); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.word, got, tt.want)
		}
		lost := s.HelpersToFind()
		if got := len(lost) == 2 && lost[0] == "/site/node-mark-offline"; got != (tt.word == "HELPERDIR=/site") {
			t.Errorf("%s: the helpers %q must exist", tt.word, lost)
		}
		if s.LoseHelpers("x"); s.CustomHelper("ONLINE_NODE") {
			t.Errorf("%s: calls a missing helper", tt.word)
		}
	}
}

func TestShellText(t *testing.T) {
	t.Parallel()
	s := &Settings{
		Vars:   map[string]string{"A": "it's", "B": "2", "UID": "0", "no name": "x", "GONE": "1"},
		Export: map[string]bool{"B": true, "LATER": true}, Arrays: map[string][]string{"L": {"a b", ""}},
	}
	s.Assign([]conf.Assign{{Name: "GONE", Unset: true}, {Name: "L2", IsArray: true, Array: []string{"c"}}})
	want := "A='it'\\''s'\nexport B='2'\nL=( 'a b' '' )\nL2=( 'c' )\n"
	if diff := cmp.Diff(want, s.ShellText()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := strings.Join(s.Environ(), " "); got != "B=2" {
		t.Errorf("environment %q", got)
	}
	if diff := cmp.Diff([][]string{{"a b", ""}, {"2"}, nil}, [][]string{s.Array("L"), s.Array("B"), s.Array("NONE")}); diff != "" {
		t.Errorf("arrays (-want +got)\n%s", diff)
	}
}
