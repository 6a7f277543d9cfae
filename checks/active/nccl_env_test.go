package active

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
)

func TestWrongNCCLEnv(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"NCCL_IB_HCA=mlx5_0:1,mlx5_1:1":       "",
		"NCCL_IB_TC=":                         "",
		"NCCL_X=a=b c":                        "",
		"OFI_NCCL_PROTOCOL=RDMA":              "",
		"FI_EFA_USE_DEVICE_RDMA=1":            "",
		"UCX_TLS=rc,cuda_copy":                "",
		"NCCL_IB_HCA":                         "want NAME=VALUE",
		"":                                    "want NAME=VALUE",
		"LD_PRELOAD=/tmp/x.so":                "want a name that begins with NCCL_, OFI_NCCL_, FI_, UCX_; set libraries in nhc.conf: NCCL_LIBRARY=/path/libnccl.so.2",
		"LD_LIBRARY_PATH=/opt":                "want a name that begins with NCCL_",
		"PATH=/opt":                           "want a name that begins with NCCL_",
		"NCCL_=1":                             "want a name that begins with NCCL_",
		"NCCL_ib=1":                           "want a name that begins with NCCL_",
		"NCCL_A B=1":                          "want a name that begins with NCCL_",
		"nccl_IB_HCA=1":                       "want a name that begins with NCCL_",
		"NCCL_ALGO=ring":                      "want --algo",
		"NCCL_P2P_DISABLE=1":                  "want --no-p2p",
		"NCCL_DEBUG_FILE=/etc/passwd":         "want no NCCL_DEBUG_FILE: the test reads NCCL's log",
		"UCX_LOG_FILE=/etc/passwd":            "want no UCX_LOG_FILE: root would write that file",
		"NCCL_A=a\nLD_PRELOAD=b":              "printable ASCII characters",
		"NCCL_A=\x1b[31m":                     "printable ASCII characters",
		"NCCL_A=" + strings.Repeat("x", 2000): "want a value of at most 1024",
	} {
		err := checks.WrongNCCLEnv(word)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", word, err, want)
		}
		for _, c := range []checks.Check{&nccl{}, &ncclAllReduce{}, &compCommOverlap{Matrix: overlapMatrix, Size: overlapSize}} {
			words := []string{"--env", word}
			switch c.(type) {
			case *nccl:
				words = append(words, "all_reduce")
			case *ncclAllReduce:
				words = append(words, "460")
			}
			if err := checks.Bind(c, words); (err == nil) != (want == "") {
				t.Errorf("%T %.40q: %v, want %q", c, word, err, want)
			}
		}
	}
}

// ncclTrial runs check_nccl on a node with eight GPUs, and returns its findings and the directory
// of the fake library.
func ncclTrial(t *testing.T, site string, change func(root string), words ...string) (findings []checks.Finding, dir string) {
	t.Helper()
	s := withNCCL(checktest.OnGPUs("", nil, nil))
	root := s.Build(t)
	if change != nil {
		change(root)
	}
	env := &checks.Env{Host: probe.NewHost(root), Vars: map[string]string{checks.NCCLEnvSetting: site}, Doing: func(string) {}}
	dir = t.TempDir()
	probe.SetLibraries(env.Host, s.Libraries(t, dir))
	nvml.Set(env.Host, s.NVML, nil)
	c := &nccl{}
	if err := checks.Bind(c, small("all_reduce", words...)); err != nil {
		t.Fatal(err)
	}
	return c.Run(t.Context(), env), dir
}

// Settings of nhc.toml and of the line reach NCCL, the line's first, and are reported.
func TestNCCLEnvReachesNCCL(t *testing.T) {
	t.Setenv("NCCL_IB_HCA", "of the job")
	t.Setenv("UCX_TLS", "of the job")
	findings, dir := ncclTrial(t, "NCCL_IB_HCA=mlx5\nNCCL_IB_TC=106\nNCCL_SOCKET_IFNAME=eth0", nil, "--env", "NCCL_IB_HCA=mlx5_0")
	const want = "check_nccl:  set NCCL_IB_TC=106 from nccl_env of nhc.toml, NCCL_SOCKET_IFNAME=eth0 from nccl_env of nhc.toml, NCCL_IB_HCA=mlx5_0 from this line"
	var texts []string
	for _, f := range findings {
		if f.Code == "nccl.settings" && strings.Contains(f.Message, ":  set ") {
			texts = append(texts, f.Message)
		}
	}
	if diff := cmp.Diff([]string{want}, texts); diff != "" || checks.Worst(findings) != checks.OK {
		t.Errorf("%s of\n%s", diff, strings.Join(brief(findings), "\n"))
	}
	environ, err := fakenccl.Environment(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"NCCL_IB_HCA=mlx5_0", "NCCL_IB_TC=106", "NCCL_SOCKET_IFNAME=eth0"} {
		if !strings.Contains("\n"+environ, "\n"+line+"\n") {
			t.Errorf("no %s in\n%s", line, environ)
		}
	}
	if strings.Contains(environ, "of the job") || os.Getenv("UCX_TLS") != "" {
		t.Errorf("settings of the environment are used: %s", environ)
	}
}

// A file in a setting that other users than root can change is not loaded.
func TestNCCLEnvNamesNoForeignFile(t *testing.T) {
	t.Parallel()
	for mode, want := range map[os.FileMode]checks.Severity{0o755: checks.OK, 0o757: checks.Unknown} {
		findings, _ := ncclTrial(t, "", func(root string) {
			putFile(t, root, "opt/libnet.so", "library")
			if err := os.Chmod(filepath.Join(root, "opt/libnet.so"), mode); err != nil {
				t.Fatal(err)
			}
		}, "--env", "NCCL_NET_PLUGIN=/opt/libnet.so")
		if checks.Worst(findings) != want {
			t.Errorf("mode %v: %q", mode, brief(findings))
		}
	}
}

// An operation over the network that never ends is not a fault until the adapters of the node
// have been seen to reach each other: in a fabric with separate rails they do not.
func TestNCCLNetworkThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	passed := func(r *activeRun) { _ = keepStamp(r, nil) }
	failed := func(code string) func(r *activeRun) {
		return func(r *activeRun) { _ = keepStamp(r, []checks.Finding{{Code: code, Severity: checks.Fail}}) }
	}
	for name, c := range map[string]struct {
		p2p     bool
		reached bool
		before  func(r *activeRun)
		want    string
	}{
		"the first operation":    {want: "unknown nccl.reach check-fabric"},
		"a later one":            {reached: true, want: "fail nccl.hung check-fabric"},
		"after a run of today":   {before: passed, want: "fail nccl.hung check-fabric"},
		"after the same fault":   {before: failed("nccl.hung"), want: "fail nccl.hung check-fabric"},
		"after another fault":    {before: failed("cuda.error.719"), want: "unknown nccl.reach check-fabric"},
		"without the network":    {p2p: true, want: "fail nccl.hung reboot-node"},
		"without it, for longer": {p2p: true, reached: true, want: "fail nccl.hung reboot-node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, root := trialEnv(t, nil)
			check := &nccl{Op: "all_reduce", NoP2P: !c.p2p}
			r := &activeRun{activeTest: activeTest{Check: ncclName, Code: "nccl", Bound: check.Bound(), Of: check}, env: env}
			if c.before != nil {
				c.before(&activeRun{activeTest: r.activeTest, env: again(env, root, checktest.H100s())})
			}
			n := &ncclRun{activeRun: r, nccl: check, op: cuda.NCCLOpOf("all_reduce"), reached: c.reached}
			n.reportHung("all_reduce of 1 GiB on 8 GPUs")
			f := r.findings[0]
			got := fmt.Sprintf("%s %s %s", f.Severity, f.Code, f.Remedy)
			if got != c.want || len(r.findings) != 1 || !strings.Contains(f.Message, "does not end") {
				t.Errorf("%s (%s), want %s", got, f.Message, c.want)
			}
			if patience := n.patience(); !c.p2p != (patience > 30*time.Second) {
				t.Errorf("patience %v: NCCL itself waits for 30s on the network", patience)
			}
		})
	}
}
