package slurm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// A fault has drained the node. At another time, or in another context, it would only warn, but as long as
// it is there it keeps the node drained.
func TestDrainOutsideItsPolicy(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	for n, policies := range map[*Node][2]string{
		c.Nodes[0]: {"hours = \"00:00-24:00\"\n", "hours = \"" + time.Now().AddDate(0, 0, 3).Format("Mon") + " 08:00-18:00\"\n"},
		c.Nodes[1]: {"contexts = [\"healthcheck\"]\n", "contexts = [\"prolog\"]\n"},
	} {
		const table = "[policy.\"file.test\"]\n"
		n.write("nhc.toml", table+policies[0])
		n.Remove("ok")
		n.WaitReason("drain", reason, soon)
		n.write("nhc.toml", table+policies[1])
		n.WaitRounds(3)
		n.Must("drain", strings.TrimSpace(reason))
		if want := "which this run has found, too"; !strings.Contains(n.Log(), want) {
			t.Errorf("%s: the log lacks %q:\n%s", policies[1], want, n.Log())
		}
		n.Create("ok")
		n.WaitState("idle", soon)
		n.Remove("ok") // in service it only warns
		n.WaitRounds(2)
		n.WaitState("idle", soon)
	}
}

// A policy of nhc.toml counts the health checks of slurmd: two of three with the fault drain the node,
// and three without it in a row, for two seconds at least, resume it.
func TestStrikesAndPasses(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := start(t)
	n := c.Nodes[0]
	n.Conf("* || check_file_test -f /etc/nhc/ok")
	n.write("nhc.toml", `[policy.check_file_test]
strikes = "2 of 3"
passes = 3
cooldown = "2s"
`)
	n.WaitRounds(1)
	count := func(text string) int { return strings.Count(n.Log(), text) }

	n.Remove("ok")
	n.WaitReason("drain", reason, soon)
	if got := count("(strike 1 of 2)"); got != 1 {
		t.Errorf("%d first strikes in the log, want 1:\n%s", got, n.Log())
	}
	n.Create("ok")
	n.WaitState("idle", soon)
	for _, text := range []string{"which has passed in 1 of 3 runs", "which has passed in 2 of 3 runs"} {
		if got := count(text); got != 1 {
			t.Errorf("%q is %d times in the log, want once:\n%s", text, got, n.Log())
		}
	}

	// A run in another context drains the node, which has been healthy for longer than that: the health
	// checks before the fault do not count. (In the seconds of the fault a health check can find it, too.)
	n.write("nhc.toml", "[policy.check_file_test]\npasses = 3\n")
	n.WaitRounds(4)
	n.Remove("ok")
	if out, err := n.Try(cluster.BinDir + "/nhc-gpu"); err == nil {
		t.Fatalf("no fault: %s", out)
	}
	n.Create("ok")
	n.WaitReason("drain", reason, soon)
	n.WaitState("idle", soon)
	for _, text := range []string{"which has passed in 1 of 3 runs", "which has passed in 2 of 3 runs"} {
		if got := count(text); got != 2 {
			t.Errorf("%q is %d times in the log, want twice:\n%s", text, got, n.Log())
		}
	}
	for _, other := range c.Nodes[1:] {
		other.Must("idle", "")
	}
}
