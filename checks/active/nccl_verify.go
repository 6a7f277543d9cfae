package active

import (
	"encoding/binary"
	"math"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// What ranks send is known, and so is what every one of them has to receive.

// prepare writes what each rank sends, and something else where it receives.
func (t *ncclRun) prepare(op *ncclOp, block int64, doing string) bool {
	doing += ": write the data"
	t.at("%s", doing)
	for _, g := range t.ranks {
		if err := g.prepare(op, block); err != nil {
			t.failed(g.gpu, doing, err)
			return false
		}
	}
	return t.waitOwn(doing) && t.written(op, block, doing)
}

// prepare has the GPU look at what it sends, too.
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

// written says whether every GPU has its own data right before NCCL moves them. If it is
// wrong on all, what is wrong is this program.
func (t *ncclRun) written(op *ncclOp, block int64, doing string) bool {
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
		t.report(checks.Device{}, wrong[0].finding("nccl.alike", checks.Unknown), "%s: they are wrong on all %s", doing, checks.Plural(len(wrong), "GPU"))
		return false
	}
	for _, w := range wrong {
		t.report(checks.GPUDevice(w.receiver.gpu), w.finding("nccl.wrong", checks.Fail), "%s: %s, before NCCL moves them", doing, checks.Plural(int(w.count), "wrong element"))
	}
	return false
}

// verify looks at what every rank has received.
func (t *ncclRun) verify(op *ncclOp, block int64, doing string) bool {
	return t.verifyParts(op, doing, func(g *ncclGPU) []ncclPart { return op.parts(g.rank, g.n, block) })
}

func (t *ncclRun) verifyParts(op *ncclOp, doing string, parts func(*ncclGPU) []ncclPart) bool {
	longest := 0
	for _, g := range t.ranks {
		longest = max(longest, len(parts(g)))
	}
	for i := range longest { // one after the other, to know whose data are wrong
		t.at("%s: verify the data", doing)
		for _, g := range t.ranks {
			if list := parts(g); i < len(list) {
				if err := g.verify(g.recv, list[i]); err != nil {
					t.failed(g.gpu, doing+": verify the data", err)
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

// verify queues a look at a part of a buffer.
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

// note takes what a verification has left.
func (t *ncclRun) note(op *ncclOp, doing string, g *ncclGPU, p ncclPart) {
	w := g.mismatch(p)
	if w.count == 0 {
		return
	}
	w.doing, w.op = doing, op.name
	if p.ranks == 1 {
		w.sender = t.seat(g.comm, p.from)
	}
	t.wrong = append(t.wrong, w)
}

// mismatch is what a verification has left: no count if all is right.
func (g *ncclGPU) mismatch(p ncclPart) ncclWrong {
	first := g.answer[8:]
	return ncclWrong{
		receiver: g, count: binary.LittleEndian.Uint64(g.answer), of: uint64(p.count), at: uint64(p.at) + binary.LittleEndian.Uint64(first),
		want: math.Float32frombits(binary.LittleEndian.Uint32(first[8:])), got: math.Float32frombits(binary.LittleEndian.Uint32(first[12:])),
	}
}

// seat is the GPU that is a rank of a group.
func (t *ncclRun) seat(comm, rank int) *ncclGPU { return t.ranks[comm*t.ranks[0].n+rank] }
