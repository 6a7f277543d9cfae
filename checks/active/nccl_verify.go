package active

import (
	"encoding/binary"
	"math"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// The data that ranks send are known, so the data that each has to receive are known, too.

// prepare writes the data that each rank sends, and other data where it receives.
func (t *ncclRun) prepare(op *ncclOp, block int64, doing string) bool {
	doing += ": write the data"
	t.at("%s", doing)
	for _, g := range t.ranks {
		if err := g.prepare(op, block); err != nil {
			t.reportFailure(g.gpu, doing, err)
			return false
		}
	}
	return t.waitOwn(doing) && t.verifyWritten(op, block, doing)
}

// prepare also verifies the data to send.
func (g *ncclGPU) prepare(op *ncclOp, block int64) error {
	sent, received := op.sent(block, g.n), op.received(block, g.n)
	if err := g.launch(g.fill, sent, g.send, uint64(sent), uint64(0), uint32(g.base+g.rank)); err != nil {
		return err
	}
	if err := g.cuda.Fill32(g.recv, ncclUnwritten, uint64(received), g.stream); err != nil {
		return err
	}
	return g.verify(g.send, ncclPart{count: sent, from: g.rank, ranks: 1})
}

// verifyWritten reports whether every GPU has its own data right before NCCL moves them. If they are
// wrong on all, nhc-gpu is the cause.
func (t *ncclRun) verifyWritten(op *ncclOp, block int64, doing string) bool {
	var wrong []ncclWrong
	for _, g := range t.ranks {
		if w := g.mismatch(ncclPart{count: op.sent(block, g.n), ranks: 1}); w.count > 0 {
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
func (t *ncclRun) verify(op *ncclOp, block int64, doing string) bool {
	return t.verifyParts(op, doing, func(g *ncclGPU) []ncclPart { return op.parts(g.rank, g.n, block) })
}

func (t *ncclRun) verifyParts(op *ncclOp, doing string, parts func(*ncclGPU) []ncclPart) bool {
	longest := 0
	for _, g := range t.ranks {
		longest = max(longest, len(parts(g)))
	}
	for i := range longest { // one after another, to know which sender's data are wrong
		t.at("%s: verify the data", doing)
		for _, g := range t.ranks {
			if list := parts(g); i < len(list) {
				if err := g.verify(g.recv, list[i]); err != nil {
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

// verify queues the verification of a part of a buffer.
func (g *ncclGPU) verify(buffer cuda.Memory, p ncclPart) error {
	c := g.cuda
	err := c.Fill32(g.report, 0, mismatchBytes/4, g.stream)
	if err == nil {
		at := buffer + cuda.Memory(4*p.at)
		err = g.launch(g.check, p.count, at, uint64(p.count), uint64(p.first), uint32(g.base+p.from), uint32(p.ranks), g.report)
	}
	if err == nil {
		err = c.CopyToHost(g.answer, g.report, g.stream)
	}
	return err
}

// note records the result of a verification.
func (t *ncclRun) note(op *ncclOp, doing string, g *ncclGPU, p ncclPart) {
	w := g.mismatch(p)
	if w.count == 0 {
		return
	}
	w.doing, w.op = doing, op.name
	if p.ranks == 1 {
		w.sender = t.rankOf(g.comm, p.from)
	}
	t.wrong = append(t.wrong, w)
}

// mismatch returns the result of a verification: count is 0 if all is right.
func (g *ncclGPU) mismatch(p ncclPart) ncclWrong {
	first := g.answer[8:]
	return ncclWrong{
		receiver: g, count: binary.LittleEndian.Uint64(g.answer), of: uint64(p.count), at: uint64(p.at) + binary.LittleEndian.Uint64(first),
		want: math.Float32frombits(binary.LittleEndian.Uint32(first[8:])), got: math.Float32frombits(binary.LittleEndian.Uint32(first[12:])),
	}
}

// rankOf returns the GPU of a rank of a group.
func (t *ncclRun) rankOf(comm, rank int) *ncclGPU { return t.ranks[comm*t.ranks[0].n+rank] }
