package slurm

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// env returns an environment of NAME=value words.
func env(words ...string) func(string) string {
	return func(name string) string {
		for _, w := range words {
			if value, ok := strings.CutPrefix(w, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func TestRoleOf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		env  []string
		want Role
	}{
		{nil, Manual},
		{[]string{"SLURMD_NODENAME=gpu01"}, HealthCheck},
		{[]string{"SLURMD_NODENAME=gpu01", "SLURM_NODE_IS_HEALTHY=no"}, HealthCheck},
		{[]string{"SLURMD_NODENAME=gpu01", "SLURM_JOB_ID=7", "SLURM_SCRIPT_CONTEXT=prolog_slurmd"}, Prolog},
		{[]string{"SLURMD_NODENAME=gpu01", "SLURM_JOB_ID=7", "SLURM_SCRIPT_CONTEXT=epilog_slurmd"}, Epilog},
		{[]string{"SLURMD_NODENAME=gpu01", "SLURM_JOB_ID=7"}, Manual},
		{[]string{"SLURMD_NODENAME=gpu01", "SLURM_SCRIPT_CONTEXT=prolog_task"}, Manual},
	}
	for _, tt := range tests {
		if got := RoleOf(env(tt.env...)); got != tt.want {
			t.Errorf("RoleOf(%v) = %v, want %v", tt.env, got, tt.want)
		}
	}
}

func TestNodeName(t *testing.T) {
	t.Parallel()
	tests := []struct{ slurmd, host, want string }{
		{"gpu01", "login", "gpu01"},
		{"", "gpu02.cluster.example", "gpu02"},
		{"", "gpu02", "gpu02"},
		{"gpu[01-04]", "gpu02", "gpu02"},
		{"gpu01,gpu02", "gpu02", "gpu02"},
		{"gpu 01", "gpu02", "gpu02"},
		{"../gpu01", "gpu02", "gpu02"},
		{"-x", "gpu02", "gpu02"},
		{"rack1-gpu_3.x", "gpu02", "rack1-gpu_3.x"},
		{"", "", ""},
		{"", ".cluster", ""},
		{"", "a b", ""},
		{"", strings.Repeat("x", 256), ""},
	}
	for _, tt := range tests {
		got, err := NodeName(env("SLURMD_NODENAME="+tt.slurmd), tt.host)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("NodeName(%q, %q) = %q, %v, want %q", tt.slurmd, tt.host, got, err, tt.want)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	const node = "gpu01"
	s := SettingsFrom(env())
	show, _ := s.showArgv(node)
	sinfo, _ := s.sinfoArgv(node)
	off, _ := s.updateArgv(node, Decision{Action: Drain, Reason: `NHC: a  b 'c' $HOME *`})
	on, _ := s.updateArgv(node, Decision{Action: Resume})
	got := [][]string{show, sinfo, off, on, s.environ()}
	want := [][]string{
		{"scontrol", "-o", "show", "node", "gpu01"},
		{"sinfo", "-o", "%t %E", "-hn", "gpu01"},
		{"scontrol", "update", "State=DRAIN", "NodeName=gpu01", `Reason=NHC: a  b 'c' $HOME *`},
		{"scontrol", "update", "State=RESUME", "NodeName=gpu01"},
		{"PATH=/sbin:/usr/sbin:/bin:/usr/bin", "LC_ALL=C", "SINFO_LOCAL=1", "SQUEUE_LOCAL=1", "SCONTROL_LOCAL=1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}

	s = SettingsFrom(env("SLURM_SCONTROL=/opt/slurm/bin/scontrol -Q", "SLURM_SC_OFFLINE_ARGS=update  State=FAIL", "SLURM_SC_ONLINE_ARGS=update State=UNDRAIN",
		`SLURM_SINFO_ARGS=-h -o "%T %E" -n`, "SLURM_CONF=/x/slurm.conf", "IGNORE_EMPTY_NOTE=1"))
	sinfo, _ = s.sinfoArgv(node)
	off, _ = s.updateArgv(node, Decision{Action: Renew, Reason: "NHC: x"})
	on, _ = s.updateArgv(node, Decision{Action: Resume})
	got = [][]string{sinfo, off, on, s.environ()[5:]}
	want = [][]string{
		{"sinfo", "-h", "-o", "%T %E", "-n", "gpu01"},
		{"/opt/slurm/bin/scontrol", "-Q", "update", "State=FAIL", "NodeName=gpu01", "Reason=NHC: x"},
		{"/opt/slurm/bin/scontrol", "-Q", "update", "State=UNDRAIN", "NodeName=gpu01"},
		{"SLURM_CONF=/x/slurm.conf"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("set (-want +got):\n%s", diff)
	}
	if !s.bySinfo() || !s.Policy.IgnoreEmptyNote {
		t.Errorf("settings %+v: want sinfo asked, empty notes ignored", s)
	}
	if SettingsFrom(env("IGNORE_EMPTY_NOTE=yes")).Policy.IgnoreEmptyNote {
		t.Error("IGNORE_EMPTY_NOTE=yes counts")
	}
}

// In a federation with fed_display the commands show the nodes of all clusters, unless the environment
// says otherwise: the drain of another cluster's node with the same name is not this node's.
func TestReadsOwnCluster(t *testing.T) {
	t.Parallel()
	here, there := &fake{state: "IDLE"}, &fake{state: "IDLE+DRAIN", reason: ourReason}
	federated := runner(func(ctx context.Context, argv, env []string) (Output, error) {
		out, err := here.Run(ctx, argv, env)
		if !slices.Contains(env, strings.ToUpper(argv[0])+"_LOCAL=1") {
			other, _ := there.Run(ctx, argv, env)
			out.Stdout = slices.Concat(other.Stdout, out.Stdout)
		}
		return out, err
	})
	c := &Controller{Node: "gpu01", Runner: federated}
	for _, argvOf := range []func(string) ([]string, error){c.Settings.nodeArgv, c.Settings.showArgv} {
		argv, err := argvOf("gpu01")
		if err != nil {
			t.Fatal(err)
		}
		if out, err := c.call(t.Context(), argv); err != nil || strings.Contains(string(out.Stdout), ourReason) {
			t.Errorf("%q: %q, %v: want the node of this cluster only", argv, out.Stdout, err)
		}
	}
	if node, err := c.Read(t.Context()); err != nil || node.State.Class != InService {
		t.Errorf("%+v, %v: want a node in service", node, err)
	}
}

func TestSettingsAreNoShell(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"scontrol 'x", "scontrol $(id)", "scontrol `id`", "scontrol; id", "scontrol > /tmp/x"} {
		words, err := Settings{Scontrol: value}.showArgv("gpu01")
		if err == nil && !slices.Contains(words, "gpu01") {
			t.Errorf("%q: %q", value, words)
		}
		if err == nil {
			t.Errorf("%q: split into %q, want an error", value, words)
		}
	}
}

// Slurm's commands get what the site exports for them, and none that changes their output.
func TestExports(t *testing.T) {
	t.Parallel()
	s := Settings{Conf: "/x/slurm.conf"}
	usual := s.environ()
	s.Exports = []string{"LD_LIBRARY_PATH=/opt/munge/lib", "LD_PRELOAD=x.so", "SLURM_JWT=a=b", "SLURM_CONF=/y", "SLURM_TIME_FORMAT=relative", "SLURM_CLUSTERS=all", "SINFO_FORMAT=x"}
	if diff := cmp.Diff(append(usual, "LD_LIBRARY_PATH=/opt/munge/lib", "SLURM_JWT=a=b"), s.environ()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
