package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
)

// NCCLGPU is a GPU of a test of NCCL: its stream and events, its two buffers, and the kernels that
// write and verify them. The data that ranks send are known, so the data that each has to receive
// are known, too.
type NCCLGPU struct {
	Context     *Context
	Stream      Stream
	Start, Stop Event
	Send, Recv  Memory
	Base        int    // added to ranks, to distinguish the values of one communicator from others'
	Answer      []byte // the result of a verification: struct mismatches of nccl.cu, in pinned memory

	report      Memory // the same in the GPU's memory
	fill, check *Kernel
}

// NCCLMismatchBytes is the size of struct mismatches of nccl.cu.
const NCCLMismatchBytes = 8 + 16*16

// NCCLUnwritten is the initial content of a receive buffer: NaN, so that unwritten elements are
// found.
const NCCLUnwritten = 0x7fc0dead

// Open creates the objects of the test in a context of the GPU, except for the two buffers.
func (g *NCCLGPU) Open(d *GPU) (err error) {
	if g.Context, err = d.Open(); err != nil {
		return err
	}
	c := g.Context
	module, err := c.Module("nccl")
	if err != nil {
		return err
	}
	g.fill, err = module.Kernel("nccl_fill")
	if err == nil {
		g.check, err = module.Kernel("nccl_verify")
	}
	if err == nil {
		g.Stream, err = c.NewStream()
	}
	if err == nil {
		g.Start, err = c.NewEvent()
	}
	if err == nil {
		g.Stop, err = c.NewEvent()
	}
	if err == nil {
		g.report, err = c.Alloc(NCCLMismatchBytes)
	}
	if err == nil {
		g.Answer, err = c.HostAlloc(NCCLMismatchBytes)
	}
	return err
}

// Allocate allocates the two buffers of that many elements.
func (g *NCCLGPU) Allocate(elements int64) (err error) {
	if g.Send, err = g.Context.Alloc(uint64(4 * elements)); err == nil {
		g.Recv, err = g.Context.Alloc(uint64(4 * elements))
	}
	return err
}

// Close frees everything. NCCL must have finished with the GPU.
func (g *NCCLGPU) Close() error {
	return errors.Join(g.Context.HostFree(g.Answer), g.Context.Close())
}

// Work returns the arguments of an operation for the rank of this GPU.
func (g *NCCLGPU) Work(rank int, count int64) NCCLWork {
	return NCCLWork{Rank: rank, Send: uintptr(g.Send), Recv: uintptr(g.Recv), Count: count, Stream: uintptr(g.Stream)}
}

// Prepare queues writing the data that a rank of n sends, and other data where it receives, and
// the verification of the data to send.
func (g *NCCLGPU) Prepare(op *NCCLOp, rank, n int, block int64) error {
	sent, received := op.Sent(block, n), op.Received(block, n)
	if err := g.launch(g.fill, sent, g.Send, uint64(sent), uint64(0), uint32(g.Base+rank)); err != nil {
		return err
	}
	if err := g.Context.Fill32(g.Recv, NCCLUnwritten, uint64(received), g.Stream); err != nil {
		return err
	}
	return g.Verify(g.Send, NCCLPart{Count: sent, From: rank, Ranks: 1})
}

// Verify queues the verification of a part of a buffer. When it is done, Mismatch has the result.
func (g *NCCLGPU) Verify(buffer Memory, p NCCLPart) error {
	c := g.Context
	err := c.Fill32(g.report, 0, NCCLMismatchBytes/4, g.Stream)
	if err == nil {
		at := buffer + Memory(4*p.At)
		err = g.launch(g.check, p.Count, at, uint64(p.Count), uint64(p.First), uint32(g.Base+p.From), uint32(p.Ranks), g.report)
	}
	if err == nil {
		err = c.CopyToHost(g.Answer, g.report, g.Stream)
	}
	return err
}

// launch queues a kernel of nccl.cu for a number of elements.
func (g *NCCLGPU) launch(k *Kernel, elements int64, args ...any) error {
	const block = 256
	blocks := min(int(elements+block-1)/block, 8*max(g.Context.GPU.SMs, 1))
	return g.Context.Launch(k, Dim{X: max(blocks, 1)}, Dim{X: block}, g.Stream, args...)
}

// NCCLMismatch is the result of a verification.
type NCCLMismatch struct {
	Count     uint64 // wrong elements, at most about a million; 0: all are right
	At        uint64 // the position of one of them in the buffer
	Of        uint64 // verified elements
	Want, Got float32
}

// Mismatch returns the result of the verification of a part.
func (g *NCCLGPU) Mismatch(p NCCLPart) NCCLMismatch {
	first := g.Answer[8:]
	return NCCLMismatch{
		Count: binary.LittleEndian.Uint64(g.Answer), Of: uint64(p.Count), At: uint64(p.At) + binary.LittleEndian.Uint64(first),
		Want: math.Float32frombits(binary.LittleEndian.Uint32(first[8:])), Got: math.Float32frombits(binary.LittleEndian.Uint32(first[12:])),
	}
}

// Alive reports whether the GPU does work of its own in another stream, while NCCL may wait for
// other GPUs. The error is that of the work, or of ctx.
func (g *NCCLGPU) Alive(ctx context.Context, s Stream) error {
	if err := g.Context.Fill32(g.report, 0, 1, s); err != nil {
		return err
	}
	return g.Context.Sync(ctx, s)
}
