package conf

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	c, err := ParseTOML("nhc.toml", []byte(`
[[check]]
name = "gpu_count"
want = 8
contexts = ["prolog", "manual"]
action = "drain"

[policy.gpu]
contexts = ["healthcheck"]
action = "warn"

[policy.check_gpu_pcie]
contexts = []

[prolog]
budget = 4.5
mark = "exit"

[epilog]
leftovers = "end"
grace = 0
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{{
		Pos: Pos{"nhc.toml", 2}, Name: "check_gpu_count", Hosts: "*", Params: map[string]any{"want": int64(8)},
		Policy: Policy{Contexts: []string{Prolog, Manual}, Action: Drain},
	}}
	if diff := cmp.Diff(want, c.Checks); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		check, class string
		want         Policy
	}{
		{"check_gpu_count", "gpu", Policy{Contexts: []string{HealthCheck}, Action: Warn}},
		{"check_gpu_pcie", "gpu", Policy{Contexts: []string{}, Action: Warn}},
		{"check_fs_mount", "fs", Policy{}},
	} {
		if diff := cmp.Diff(tt.want, c.Of(tt.check, tt.class)); diff != "" {
			t.Errorf("policy of %s (-want +got):\n%s", tt.check, diff)
		}
	}
	if got := c.Places["check_gpu_pcie"]; got != (Pos{"nhc.toml", 12}) {
		t.Errorf("policy.check_gpu_pcie stands at %v, want nhc.toml:12", got)
	}
	for context, want := range map[string]Role{
		HealthCheck: {}, Manual: {},
		Prolog: {Budget: 4500 * time.Millisecond, Exit: true},
		Epilog: {Budget: 30 * time.Second, End: true},
	} {
		if got := c.Role(context); got != want {
			t.Errorf("role %s is %+v, want %+v", context, got, want)
		}
	}
}

// A node without nhc.toml has the budgets that the manual gives.
func TestNoConfig(t *testing.T) {
	t.Parallel()
	var c *Config
	if got, want := c.Role(Prolog), (Role{Budget: 10 * time.Second}); got != want {
		t.Errorf("prolog is %+v, want %+v", got, want)
	}
	if got, want := c.Role(Epilog), (Role{Budget: 30 * time.Second, Grace: 3 * time.Second}); got != want {
		t.Errorf("epilog is %+v, want %+v", got, want)
	}
	if got := c.Of("check_gpu_count", "gpu"); !cmp.Equal(got, Policy{}) {
		t.Errorf("policy is %+v, want none", got)
	}
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, data, want string }{
		{"unknown key", "[prolog]\n\nbudgett = 1\n", "t.toml:3: unknown key prolog.budgett: want budget"},
		{"no leftovers before a job", "[prolog]\nleftovers = \"end\"\n", "t.toml:2: unknown key prolog.leftovers: want one of budget, mark"},
		{"a health check marks", "[healthcheck]\nmark = \"exit\"\n", "t.toml:2: unknown key healthcheck.mark: want budget"},
		{"budget of none", "[epilog]\nbudget = 0\n", "t.toml:2: epilog.budget: 0: want seconds, 1 to 3600"},
		{"budget in words", "[epilog]\nbudget = \"10s\"\n", "t.toml:2: epilog.budget: \"10s\": want seconds, 1 to 3600"},
		{"mode in capitals", "MODE = \"observe\"\n", "t.toml:1: unknown key MODE: want mode"},
		{"mode twice", "mode = \"observe\"\nMODE = \"enforce\"\n", "t.toml:2: unknown key MODE: want mode"},
		{"errors with a capital", "Config_errors = \"drain\"\n", "t.toml:1: unknown key Config_errors: want config_errors"},
		{"mark", "[epilog]\nmark = 1\n", "t.toml:2: epilog.mark: 1: want one of drain, exit"},
		{"action", "[policy.gpu]\naction = \"ignore\"\n", "t.toml:2: policy.gpu.action: \"ignore\": want one of none, warn, observe, drain, fail-job"},
		{"context", "[policy.gpu]\ncontexts = [\"prologue\"]\n", "t.toml:2: policy.gpu.contexts: [\"prologue\"]: want a list of healthcheck, prolog, epilog, manual"},
		{"context of a check", "[[check]]\nname = \"x\"\ncontexts = \"prolog\"\n", "t.toml:1: contexts: \"prolog\": want a list of healthcheck"},
		{"policy without a name", "[policy]\naction = \"warn\"\n", "t.toml:2: key policy.action: want [policy.NAME]"},
		{"settings of NCCL that are no list", "[active]\nnccl_env = \"NCCL_IB_HCA=mlx5\"\n", "t.toml:2: active.nccl_env: \"NCCL_IB_HCA=mlx5\": want a list of texts"},
		{"settings of NCCL that are no strings", "[active]\n\nnccl_env = [3]\n", "t.toml:3: active.nccl_env: [3]: want a list of texts"},
		{"another key of active", "[active]\ntimeout = 3\n", "t.toml:2: unknown key active.timeout: want nccl_env"},
		{"two at once", "[prolog]\nx = 1\n[epilog]\ny = 1\n", "t.toml:4: unknown key epilog.y: want one of budget, grace, leftovers, mark\nt.toml:2: unknown key prolog.x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseTOML("t.toml", []byte(tt.data))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestNCCLEnv(t *testing.T) {
	t.Parallel()
	c, err := ParseTOML("nhc.toml", []byte("# of the site\n[active]\nnccl_env = [\"NCCL_IB_HCA=mlx5\", \"NCCL_IB_TC=106\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"NCCL_IB_HCA=mlx5", "NCCL_IB_TC=106"}, c.NCCLEnv); diff != "" || c.NCCLEnvPlace.String() != "nhc.toml:3" {
		t.Errorf("at %v: %s", c.NCCLEnvPlace, diff)
	}
}
