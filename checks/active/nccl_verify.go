package active

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// prepare writes the data that each rank sends, and other data where it receives.
func (t *ncclRun) prepare(op *cuda.NCCLOp, block int64, doing string) bool {
	doing += ": write the data"
	t.at("%s", doing)
	for _, g := range t.ranks {
		if err := g.Prepare(op, g.rank, g.n, block); err != nil {
			t.reportFailure(g.gpu, doing, err)
			return false
		}
	}
	return t.waitOwn(doing) && t.verifyWritten(op, block, doing)
}

// verifyWritten reports whether every GPU has its own data right before NCCL moves them. If they are
// wrong on all, nhc-gpu is the cause.
func (t *ncclRun) verifyWritten(op *cuda.NCCLOp, block int64, doing string) bool {
	var wrong []ncclWrong
	for _, g := range t.ranks {
		if w := g.mismatch(cuda.NCCLPart{Count: op.Sent(block, g.n), Ranks: 1}); w.count > 0 {
			wrong = append(wrong, w)
		}
	}
	if len(wrong) == 0 {
		return true
	}
	t.broken, t.failures = true, true
	if len(wrong) == len(t.ranks) {
		t.report(checks.Device{}, wrong[0].finding("nccl.alike", checks.Unknown), "%s: wrong on all %s", doing, checks.Plural(len(wrong), "GPU"))
		return false
	}
	for _, w := range wrong {
		t.report(checks.GPUDevice(w.receiver.gpu), w.finding("nccl.wrong", checks.Fail), "%s: %s, before NCCL moves them", doing, checks.Plural(int(w.count), "wrong element"))
	}
	return false
}

// verify verifies the data that every rank received.
func (t *ncclRun) verify(op *cuda.NCCLOp, block int64, doing string) bool {
	return t.verifyParts(op, doing, func(g *ncclGPU) []cuda.NCCLPart { return op.Parts(g.rank, g.n, block) })
}

func (t *ncclRun) verifyParts(op *cuda.NCCLOp, doing string, parts func(*ncclGPU) []cuda.NCCLPart) bool {
	longest := 0
	for _, g := range t.ranks {
		longest = max(longest, len(parts(g)))
	}
	for i := range longest { // one after another, to know which sender's data are wrong
		t.at("%s: verify the data", doing)
		for _, g := range t.ranks {
			if list := parts(g); i < len(list) {
				if err := g.Verify(g.Recv, list[i]); err != nil {
					t.reportFailure(g.gpu, doing+": verify the data", err)
					return false
				}
			}
		}
		if !t.waitOwn(doing + ": verify the data") {
			return false
		}
		for _, g := range t.ranks {
			if list := parts(g); i < len(list) {
				t.note(op, doing, g, list[i])
			}
		}
	}
	return true
}

// note records the result of a verification.
func (t *ncclRun) note(op *cuda.NCCLOp, doing string, g *ncclGPU, p cuda.NCCLPart) {
	w := g.mismatch(p)
	if w.count == 0 {
		return
	}
	w.doing, w.op = doing, op.Name
	if p.Ranks == 1 {
		w.sender = t.rankOf(g.comm, p.From)
	}
	t.wrong = append(t.wrong, w)
}

// mismatch returns the result of a verification: count is 0 if all is right.
func (g *ncclGPU) mismatch(p cuda.NCCLPart) ncclWrong {
	m := g.Mismatch(p)
	return ncclWrong{receiver: g, count: m.Count, of: m.Of, at: m.At, want: m.Want, got: m.Got}
}

// rankOf returns the GPU of a rank of a group.
func (t *ncclRun) rankOf(comm, rank int) *ncclGPU { return t.ranks[comm*t.ranks[0].n+rank] }
