package jobscan

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestSlurmLines(t *testing.T) {
	t.Parallel()
	const text = "# a comment \\\nA=1 # rest\n\n  b = \"x y\"  C=2\\\nD=3\nPath=/x\\#y\nInclude nodes.conf\nlast=1 \\\n E=2 \\"
	var got []string
	for n, line := range splitLines(text) {
		got = append(got, fmt.Sprint(n, " ", splitPairs(line)))
	}
	want := []string{"1 []", "2 [{a 1}]", "3 []", "4 [{b x y} {c 2D=3}]", `6 [{path /x\#y}]`, "7 []", "8 [{last 1} {e 2}]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

var hostlists = []string{
	"gpu1", "gpu[1-3]", "gpu[01-03,5,007],login", "a,b[1-2],c", "n[08-11]", "n[098-101]", "r[1-2]n[01-02]", "x[1,3-4]y[9-11]", "gpu[1-1]", "n[0-2]",
}

func TestHostlistHas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list, name string
		want       bool
	}{
		{"gpu[01-16]", "gpu07", true}, {"gpu[01-16]", "gpu7", false}, {"gpu[1-16]", "gpu07", false}, {"gpu[1-16]", "gpu17", false},
		{"gpu[01-16]", "gpu016", false}, {"gpu[01-200]", "gpu100", true}, {"gpu[01-200]", "gpu0100", false}, {"a[1-2]b", "a1b", true}, {"a[1-2]b", "a1", false},
		{"a[1-2", "a1", false}, {"", "a", false}, {"gpu[1-16]", "gpu", false}, {"gpu[x-y]", "gpu1", false}, {"g[1-99999999999999999999]", "g5", true},
		{"n[0-2]", "n0", true}, {"n[00-02]", "n00", true}, {"n[1-2]", "n0", false},
	} {
		if got := hasHost(c.list, c.name); got != c.want {
			t.Errorf("%q in %q: %v", c.name, c.list, got)
		}
	}
}

// Slurm itself expands the list for comparison.
func TestHostlistAsSlurm(t *testing.T) {
	t.Parallel()
	scontrol := need.Program(t, "scontrol")
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("ClusterName=c\nSlurmctldHost=h\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{}
	for _, list := range hostlists {
		cmd := exec.Command(scontrol, "show", "hostnames", list)
		cmd.Env = append(os.Environ(), "SLURM_CONF="+conf)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("scontrol show hostnames %s: %v: %s", list, err, out)
		}
		names[list] = strings.Fields(string(out))
	}
	for list, has := range names {
		if got := slices.Collect(expandHostlist(list)); !slices.Equal(got, has) {
			t.Errorf("%s is %q, want %q", list, got, has)
		}
		for _, all := range names {
			for _, name := range all {
				if want := slices.Contains(has, name); hasHost(list, name) != want {
					t.Errorf("%s in %s: want %v", name, list, want)
				}
			}
		}
	}
}

func TestGresGPUs(t *testing.T) {
	t.Parallel()
	for gres, want := range map[string]int{
		"": 0, "gpu": 1, "gpu:8": 8, "GPU:8": 8, "gpu:h100:8": 8, "gpu:h100": 1, "gpu:a:4,gpu:b:4": 8, "gpu:8(S:0-1)": 8, "gpu:h100:8(S:0,1),shard:64": 8,
		"shard:64": 0, "mps:800,gpu:8": 8, "gpu:no_consume:4": 4, "nic:2, gpu:2": 2, "gpu:a100_1g.5gb:56": 0, "gpu:a100:4,gpu:1g.10gb:28": 0, "gpu:1K": 0,
		"gpu:999999999G": 0, "gpu:0": 0, "gpux:3": 0, "gpu:8x": 1, "gpu:-1": 1,
	} {
		if got, _ := countGPUs(gres); got != want {
			t.Errorf("%q: %d, want %d", gres, got, want)
		}
	}
}

func TestSlurmGPUs(t *testing.T) {
	t.Parallel()
	const etc, gres = "etc/slurm/slurm.conf", "etc/slurm/gres.conf"
	usual := "NodeName=DEFAULT Gres=gpu:4\nnodename=gpu[01-08] CPUS=4 gres=gpu:h100:8\nNodeName=gpu09 CPUs=4\nNodeName=cpu1 Gres=\"\"\n"
	for _, c := range []struct {
		name        string
		files       map[string]string
		named, node string
		want        SlurmGPUs
		err         string
	}{
		{name: "no Slurm", node: "gpu01", err: "read /var/spool/slurmd/conf-cache/slurm.conf: no such file or directory"},
		{name: "limits", files: map[string]string{etc: "PrologTimeout=7\nPrologEpilogTimeout=60 MessageTimeout=30\nNodeName=gpu01"}, node: "gpu01",
			want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:3", Prolog: 7 * time.Second, Epilog: time.Minute}},
		{name: "no limits", files: map[string]string{etc: "PrologEpilogTimeout=65534\nEpilogTimeout=INFINITE\nNodeName=gpu01"}, node: "gpu01",
			want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:3"}},
		{name: "parts of GPUs", files: map[string]string{etc: "GresTypes=gpu,Shard\nNodeName=gpu01"}, node: "gpu01", want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:2", Parts: true}},
		{name: "whole GPUs", files: map[string]string{etc: "GresTypes=gpu,sharding\nNodeName=gpu01"}, node: "gpu01", want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:2"}},
		{name: "its line", files: map[string]string{etc: usual}, node: "gpu01", want: SlurmGPUs{Count: 8, Pos: "/etc/slurm/slurm.conf:2"}},
		{name: "of the default", files: map[string]string{etc: usual}, node: "gpu09", want: SlurmGPUs{Count: 4, Pos: "/etc/slurm/slurm.conf:3"}},
		{name: "none, against the default", files: map[string]string{etc: usual}, node: "cpu1", want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:4"}},
		{name: "another node", files: map[string]string{etc: usual}, node: "gpu10"},
		{name: "configless", files: map[string]string{"run/slurm/conf/slurm.conf": usual}, node: "gpu01", want: SlurmGPUs{Count: 8, Pos: "/run/slurm/conf/slurm.conf:2"}},
		{name: "SLURM_CONF", files: map[string]string{etc: usual, "x/s.conf": "NodeName=gpu01 Gres=gpu:2"}, named: "/x/s.conf", node: "gpu01",
			want: SlurmGPUs{Count: 2, Pos: "/x/s.conf:1"}},
		{name: "SLURM_CONF is gone", files: map[string]string{etc: usual}, named: "/x/s.conf", node: "gpu01", err: "read /x/s.conf: no such file or directory"},
		{name: "included", files: map[string]string{etc: "ClusterName=Big\nInclude nodes.%c\n", "etc/slurm/nodes.big": "#\n include /n/n\n", "n/n": "NodeName=gpu1 \\\n  Gres=gpu:1 # not gpu:2\n"},
			node: "gpu1", want: SlurmGPUs{Count: 1, Pos: "/n/n:1"}},
		{name: "an include that is gone", files: map[string]string{etc: usual + "include x\n"}, node: "gpu01", err: "read /etc/slurm/x: no such file or directory"},
		{name: "includes itself", files: map[string]string{etc: "include slurm.conf\n"}, node: "gpu01", err: "read /etc/slurm/slurm.conf: more than 100 files are included"},
		{name: "NVIDIA's by file", files: map[string]string{etc: usual, gres: "Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"}, node: "gpu01",
			want: SlurmGPUs{Count: 8, Pos: "/etc/slurm/slurm.conf:2", NVIDIA: true, Files: []int{0, 1, 2, 3, 4, 5, 6, 7}}},
		{name: "NVIDIA's by nvml", files: map[string]string{etc: usual, gres: "NodeName=gpu[01-09] AutoDetect=NVML\nNodeName=amd1 AutoDetect=rsmi\n"}, node: "gpu01",
			want: SlurmGPUs{Count: 8, Pos: "/etc/slurm/slurm.conf:2", NVIDIA: true, Detect: "nvml"}},
		{name: "without a broken GPU", files: map[string]string{etc: "NodeName=gpu1 Gres=gpu:3", gres: "AutoDetect=nvml\nNodeName=gpu1 AutoDetect=off Name=gpu File=/dev/nvidia[0,2-3]\n"}, node: "gpu1",
			want: SlurmGPUs{Count: 3, Pos: "/etc/slurm/slurm.conf:1", NVIDIA: true, Files: []int{0, 2, 3}}},
		{name: "by the types of the Gres", files: map[string]string{etc: "NodeName=gpu1 Gres=gpu:h100:2,gpu:4090:2(S:0),shard:4", gres: "NodeName=gpu1 Name=gpu Type=4090 File=/dev/nvidia[0-1]\nName=gpu Type=H100 File=/dev/nvidia3\nName=gpu Type=H100 File=/dev/nvidia2\n"}, node: "gpu1",
			want: SlurmGPUs{Count: 4, Pos: "/etc/slurm/slurm.conf:1", NVIDIA: true, Files: []int{3, 2, 0, 1}}},
		{name: "lines for all nodes come first", files: map[string]string{etc: "NodeName=gpu1 Gres=gpu:2", gres: "NodeName=gpu1 Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n"}, node: "gpu1",
			want: SlurmGPUs{Count: 2, Pos: "/etc/slurm/slurm.conf:1", NVIDIA: true, Files: []int{1, 0}}},
		{name: "fewer files than GPUs", files: map[string]string{etc: usual, gres: "Name=gpu File=/dev/nvidia[0-3]\n"}, node: "gpu01",
			want: SlurmGPUs{Count: 8, Pos: "/etc/slurm/slurm.conf:2", NVIDIA: true}},
		{name: "files of another name", files: map[string]string{etc: "NodeName=gpu1 Gres=gpu:1", gres: "Name=gpu File=/dev/nvidia-a\n"}, node: "gpu1",
			want: SlurmGPUs{Count: 1, Pos: "/etc/slurm/slurm.conf:1", NVIDIA: true}},
		{name: "of another maker", files: map[string]string{etc: usual, gres: "Name=gpu File=/dev/dri/renderD[128-135]\n"}, node: "gpu01",
			want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:2", Why: "its GPUs are not NVIDIA's"}},
		{name: "of another maker, against the default", files: map[string]string{etc: usual, gres: "AutoDetect=nvml\nNodeName=gpu01 AutoDetect=rsmi\n"}, node: "gpu01",
			want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:2", NVIDIA: true, Why: "its GPUs are not NVIDIA's", Detect: "rsmi"}},
		{name: "MIG by file", files: map[string]string{etc: usual, gres: "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22\n"}, node: "gpu01",
			want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:2", Why: "it counts MIG instances"}},
		{name: "MIG by type", files: map[string]string{etc: "NodeName=gpu01 Gres=gpu:1g.5gb:56"}, node: "gpu01", want: SlurmGPUs{Pos: "/etc/slurm/slurm.conf:1", Why: "it counts MIG instances"}},
		{name: "other gres, other nodes", files: map[string]string{etc: usual, gres: "Name=shard Count=8\nNodeName=gpu02 Name=gpu File=/dev/dri/x\ninclude gone\n"}, node: "gpu01",
			want: SlurmGPUs{Count: 8, Pos: "/etc/slurm/slurm.conf:2"}},
	} {
		got, err := ReadGPUs(probe.NewHost(probetest.Tree(t, c.files)), c.named, c.node)
		if diff := cmp.Diff(c.want, got); diff != "" || probetest.Message(err) != c.err {
			t.Errorf("%s: %v, want %q (-want +got):\n%s", c.name, err, c.err, diff)
		}
	}
}
