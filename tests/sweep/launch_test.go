package sweep_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// accused returns the nodes, planes and codes of the suspects.
func accused(r *sweep.Report) string {
	var list []string
	for _, s := range r.Suspects {
		list = append(list, strings.Join(strings.Fields(strings.Join([]string{s.Node, s.Peer, s.Plane, s.Code}, " ")), " "))
	}
	return strings.Join(list, "; ")
}

// TestLauncherOfDyingNode freezes a node in the middle of a test: it is dead after a while, and the others
// are tested to the end.
func TestLauncherOfDyingNode(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, 4)
	p := c.Daemon("sweep", cluster.BinDir+"/nhc-gpu", "sweep", "--report", "/tmp/report.json", "--check", "check_cmd_status -t 29 -r 0 sleep 28")
	c.WaitFor(3*time.Minute, "check on gpu04", func() (string, bool) {
		c.MustRun(p)
		for _, pid := range c.Node(4).net.processes(t) {
			if strings.HasPrefix(commandLine(pid), "sleep 28") {
				return "", true
			}
		}
		return "it does not run", false
	})
	c.Node(4).Freeze()
	select {
	case <-p.Ended:
	case <-time.After(5 * time.Minute):
		t.Fatal("the launcher has not ended")
	}
	c.Node(4).Thaw()
	r := new(sweep.Report)
	if err := json.Unmarshal([]byte(c.Exec("cat", "/tmp/report.json")), r); err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, n := range r.Nodes {
		states[n.Name] = n.State
	}
	if states["gpu04"] != "dead" || states["gpu01"] != "tested" || states["gpu02"] != "tested" || states["gpu03"] != "tested" {
		t.Errorf("nodes %v, accused: %s", states, accused(r))
	}
	if r.Interrupted != "" || len(r.Stages) != 1 || len(r.Stages[0].Results) != 4 {
		t.Errorf("interrupted %q, stages %+v", r.Interrupted, r.Stages)
	}
}
