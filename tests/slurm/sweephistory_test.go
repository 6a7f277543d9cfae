package slurm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/schema"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// TestSweepHistory shows that a suspect node adds the finding to its own history, and no other node does.
func TestSweepHistory(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t)
	const line = `check_cmd_status -r 0 sh -c 'test "$SLURMD_NODENAME" != gpu02'`
	out := c.Exec("sh", "-c", fmt.Sprintf(`%s/nhc-gpu sweep --nodes 'gpu[01-04]' --check "$1"; echo "exit status $?"`, cluster.BinDir), "sh", line)
	if !strings.HasSuffix(out, "exit status 1\n") {
		t.Errorf("want exit status 1\n%s", out)
	}
	written := map[string]string{}
	for _, n := range c.lastSweep().Nodes {
		written[n.Name] = n.History
	}
	for _, n := range c.Nodes {
		out, err := n.Try(cluster.BinDir+"/nhc-gpu", "history", "--json", "--code", "sweep.")
		if n.Name != "gpu02" {
			if err != nil || out != "" || written[n.Name] != "" {
				t.Errorf("%s: the report says %q; history: %s, %v", n.Name, written[n.Name], out, err)
			}
			continue
		}
		if bad := schema.Check([]byte(out)); err != nil || bad != nil || written[n.Name] != sweep.Written {
			t.Errorf("%s: the report says %q; history: %v, %v", n.Name, written[n.Name], err, bad)
		}
		e, err := event.Parse([]byte(out))
		if err != nil || e.Node != "gpu02" || e.Context != "sweep" || e.Job == "" || e.Verdict != checks.Fail || e.Results[0].Code != "sweep.node.check" {
			t.Errorf("%s: event %s, %v", n.Name, out, err)
		}
	}
}
