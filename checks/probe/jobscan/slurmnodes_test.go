package jobscan

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestSlurmNodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, host, conf string
		want             []string
	}{
		{"the host's own name", "gpu07", "NodeName=gpu[01-16] CPUs=4", []string{"gpu07"}},
		{"with a domain", "gpu07.example.org", "NodeName=gpu[01-16]", []string{"gpu07"}},
		{"NodeHostname", "host3", "NodeName=n[1-4] NodeHostname=host[1-4]", []string{"n3"}},
		{"in another line", "host3", "NodeName=DEFAULT CPUs=4\nNodeName=a\nNodeName=n3 CPUs=2 NodeHostname=host3", []string{"n3"}},
		{"several of one host", "big", "NodeName=n[1-3] NodeHostname=big Port=[7001-7003]", []string{"n1", "n2", "n3"}},
		{"several of one host, each", "big", "NodeName=n1 NodeHostname=big Port=7001\nNodeName=n2 NodeHostname=big Port=7002", []string{"n1", "n2"}},
		{"its own name among them", "n2", "NodeName=n1 NodeHostname=n2\nNodeName=n2 NodeHostname=n2", []string{"n2"}},
		{"NodeAddr", "host3", "NodeName=n[1-4] NodeAddr=host[1-4]", []string{"n3"}},
		{"NodeHostname goes before NodeAddr", "host3", "NodeName=a NodeAddr=host3\nNodeName=b NodeHostname=host3", []string{"b"}},
		{"an address of all hosts", "host3", "NodeName=a NodeAddr=127.0.0.1\nNodeName=b NodeAddr=127.0.0.1", nil},
		{"another host", "login", "NodeName=n[1-4] NodeHostname=host[1-4]", nil},
		{"two brackets", "r2h1", "NodeName=n[1-4] NodeHostname=r[1-2]h[1-2]", []string{"n3"}},
		{"a range without an end", "host", "NodeName=n NodeHostname=h[1-999999999999999999999]", nil},
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "etc/slurm"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "etc/slurm/slurm.conf"), []byte("ClusterName=c\n"+c.conf+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := SlurmNodes(probe.NewHost(dir), "", c.host)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}
