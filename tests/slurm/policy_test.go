package slurm_test

import (
	"strings"
	"testing"
)

// A policy of nhc.toml counts the health checks of slurmd: two of three with the fault drain the node,
// and three without it in a row, for two seconds at least, resume it.
func TestStrikesAndPasses(t *testing.T) {
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
	for _, other := range c.Nodes[1:] {
		other.Must("idle", "")
	}
}
