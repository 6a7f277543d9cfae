package monitor

import "testing"

// A changed nhc.conf and a changed nhc.toml hold from the next event on.
func TestReload(t *testing.T) {
	t.Parallel()
	n := newNode(t, "check_file_test -f /etc/passwd")
	n.gpus("3 field 230 = 1")
	n.start(0)
	run := func(line, want string) {
		t.Helper()
		before := n.ledger().Runs
		n.kernel(line)
		n.await("run", func() bool { return n.ledger().Runs > before && n.ledger().Mark.Next == n.seq })
		if got := n.slurm(); got != want {
			t.Errorf("after %q the node is %q, want %q\n%s", line, got, want, n.out.String())
		}
	}
	const xid, aer = "NVRM: Xid (PCI:0000:13:00): 31, pid=1, name=python, MMU Fault", "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:13:00.0"
	run(xid, "IDLE") // no line is about GPUs
	n.conf("check_gpu_recovery")
	n.write("nhc.toml", "[policy.check_gpu_recovery]\naction = \"observe\"\n")
	run(aer, "IDLE") // another kind, which does not wait
	n.write("nhc.toml", "")
	run(xid, drained)
}
