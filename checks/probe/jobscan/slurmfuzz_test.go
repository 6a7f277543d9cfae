package jobscan

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// FuzzSlurmConf reads slurm.conf and gres.conf with arbitrary content.
func FuzzSlurmConf(f *testing.F) {
	f.Add("NodeName=gpu[01-08] Gres=gpu:h100:8(S:0-1),shard:16\n", "AutoDetect=nvml\nNodeName=gpu01 Name=gpu Type=h100 File=/dev/nvidia[0-7]\n", "gpu01")
	f.Add("include include.conf\nNodeName=DEFAULT Gres=gpu:4 \\\n Sockets=2 # x\\\nPrologTimeout=5", "Name=gpu Count=99999999999999999999", "a")
	f.Add("NodeName=a[1-99999999999999999999] Gres=gpu:-1", "Name=gpu File=/dev/nvidia[3-1]", "a1")
	h := probe.NewHost(probetest.Tree(f, nil))
	f.Fuzz(func(t *testing.T, conf, gres, node string) {
		var g SlurmGPUs
		count := 0
		s := &slurmFiles{host: h, dir: "/none", left: 3, visit: func(_ string, line []slurmPair) {
			count++
			for _, p := range line {
				if p.key == "" || strings.ContainsAny(p.key, " =") || p.key != strings.ToLower(p.key) {
					t.Errorf("%+v", p)
				}
				_ = hasHost(p.value, node)
				if n, why := countGPUs(p.value); n < 0 || n > 0 && why != "" {
					t.Errorf("%q: %d, %q", p.value, n, why)
				}
			}
			g.learn(line)
			(&slurmLimits{}).read(line)
		}}
		_ = s.parse("slurm.conf", []byte(conf))
		_ = s.parse("gres.conf", []byte(gres))
		if lines := strings.Count(conf+gres, "\n") + 2; count > lines {
			t.Errorf("%d lines of %d", count, lines)
		}
	})
}
