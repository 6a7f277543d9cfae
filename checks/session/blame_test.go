package session

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

var (
	ownGPU   = checks.Device{Kind: "gpu", Name: "gpu0", PCI: "0000:01:00.0"}
	otherGPU = checks.Device{Kind: "gpu", Name: "gpu1", PCI: "0000:02:00.0"}
	aDisk    = checks.Device{Kind: "nvme", Name: "nvme0"}
	aUnit    = checks.Device{Kind: "process", Name: "secret"}

	halfTheNode = slurm.Scope{Known: true, Own: []slurm.GPU{{PCI: ownGPU.PCI}}, Other: []slurm.GPU{{PCI: otherGPU.PCI}}}
	noGPUs      = slurm.Scope{Known: true, Other: []slurm.GPU{{PCI: ownGPU.PCI}, {PCI: otherGPU.PCI}}}
)

func TestBlame(t *testing.T) {
	t.Parallel()
	slow := func(d checks.Device) checks.Finding { return checks.Finding{Code: "gpu.slow", Device: d} }
	reset := func(d checks.Device) checks.Finding {
		return checks.Finding{Code: "gpu.broken", Device: d, Remedy: checks.ResetGPU}
	}
	hung := func(d checks.Device) checks.Finding { return checks.Finding{Code: "probe.hung", Device: d} }
	type list = []checks.Finding
	for _, tt := range []struct {
		name     string
		scope    slurm.Scope
		actions  []conf.Action // one a failure; none: fail-job
		failures list
		job      int
		node     int
	}{
		{name: "nothing has failed", scope: halfTheNode, job: -1, node: -1},
		{name: "the job's GPU", scope: halfTheNode, failures: list{slow(ownGPU)}},
		{name: "another job's GPU drains the node and lets the job run", scope: halfTheNode, failures: list{slow(otherGPU)}, job: -1},
		{name: "the job's own goes first", scope: halfTheNode, failures: list{reset(otherGPU), slow(ownGPU)}, job: 1, node: 1},
		{name: "the worst of the job's", scope: halfTheNode, failures: list{slow(ownGPU), reset(ownGPU)}, job: 1, node: 1},
		{name: "the worst of others", scope: noGPUs, failures: list{slow(otherGPU), reset(ownGPU)}, job: -1, node: 1},
		{name: "what is no GPU is the job's, too", scope: halfTheNode, failures: list{slow(aDisk)}},
		{name: "also of a job without a GPU", scope: noGPUs, failures: list{slow(aDisk)}},
		{name: "a GPU is not that of a job without one", scope: noGPUs, failures: list{slow(ownGPU)}, job: -1},
		{name: "the GPUs of the job are unknown", failures: list{slow(otherGPU)}},
		{name: "a driver that hangs for another GPU", scope: halfTheNode, failures: list{hung(otherGPU)}},
		{name: "policy drain lets the job run", scope: halfTheNode, actions: []conf.Action{conf.Drain}, failures: list{reset(ownGPU)}, job: -1},
		{name: "policy drain of one of two", scope: halfTheNode, actions: []conf.Action{conf.Drain, conf.FailJob}, failures: list{reset(ownGPU), slow(ownGPU)}, job: 1, node: 1},
		{name: "policy drain spares a hang, too", scope: halfTheNode, actions: []conf.Action{conf.Drain}, failures: list{hung(ownGPU)}, job: -1},
	} {
		b := Blame{Scope: tt.scope}
		for i, action := range tt.actions {
			if action == conf.Drain {
				b.Spare(i)
			}
		}
		if job, node := b.OfJob(tt.failures), b.OfNode(tt.failures); job != tt.job || node != tt.node {
			t.Errorf("%s: the job's is %d, the node's %d; want %d and %d", tt.name, job, node, tt.job, tt.node)
		}
	}
}

func TestCauseForUser(t *testing.T) {
	t.Parallel()
	native := &plan.Step{Kind: plan.Native, Name: "check_gpu_ecc", Text: "check_gpu_ecc"}
	for _, tt := range []struct {
		name string
		step *plan.Step
		of   checks.Finding
		want string
	}{
		{"a GPU", native, checks.Finding{Code: "gpu.ecc", Device: ownGPU, Message: "of alice"}, "check_gpu_ecc, " + ownGPU.String() + " [gpu.ecc]"},
		{"a process", native, checks.Finding{Code: "ps.found", Device: aUnit, Message: "of alice"}, "check_gpu_ecc [ps.found]"},
		{"a line of bash", &plan.Step{Kind: plan.ShellLine, Text: "check_secret alice"}, checks.Finding{Message: "alice"}, "a check"},
		{"no step", nil, checks.Finding{Code: "gpu.recovery.lost", Device: ownGPU}, "a check, " + ownGPU.String() + " [gpu.recovery.lost]"},
	} {
		if got := CauseForUser(tt.step, tt.of); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestEndJob(t *testing.T) {
	t.Parallel()
	ours, others := checks.Finding{Code: "gpu.slow", Device: ownGPU}, checks.Finding{Code: "gpu.slow", Device: otherGPU}
	for _, tt := range []struct {
		name     string
		failures []checks.Finding
		drain    bool // the policy of the first failure
		role     slurm.Role
		job      string
		observes bool
		want     JobEnd
	}{
		{name: "nothing has failed", role: slurm.Prolog, job: "7", want: JobEnd{Blamed: -1}},
		{name: "the job's GPU", failures: []checks.Finding{others, ours}, role: slurm.Prolog, job: "7", want: JobEnd{Refuses: true, Blamed: 1}},
		{name: "another job's GPU", failures: []checks.Finding{others}, role: slurm.Prolog, job: "7", want: JobEnd{}},
		{name: "policy drain", failures: []checks.Finding{ours}, drain: true, role: slurm.Prolog, job: "7", want: JobEnd{}},
		{name: "a prolog observes", failures: []checks.Finding{ours}, role: slurm.Prolog, job: "7", observes: true, want: JobEnd{Would: "end the prolog of job 7 with status 1"}},
		{name: "an epilog of a person observes", failures: []checks.Finding{ours}, role: slurm.Epilog, observes: true, want: JobEnd{Would: "end the epilog with status 1"}},
		{name: "another job's GPU, observed", failures: []checks.Finding{others}, role: slurm.Prolog, job: "7", observes: true, want: JobEnd{}},
	} {
		b := &Blame{Scope: halfTheNode}
		if tt.drain {
			b.Spare(0)
		}
		if got := EndJob(b, tt.failures, tt.role, tt.job, tt.observes); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
