package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"
)

// NCCLID names a communicator for all its ranks: ncclUniqueId. It holds an address of the process
// that made it, which must live until all ranks have joined.
type NCCLID [128]byte

// ncclUniqueID is a structure, as in C, since NCCL takes it by value.
type ncclUniqueID struct{ Internal [128]byte }

// ncclConfig is ncclConfig_t of 2.14, the first release that has it. Later releases use their
// defaults for the fields that it lacks.
type ncclConfig struct {
	size           uint64
	magic, version uint32
	blocking       int32
	_              int32
}

func newNCCLConfig() *ncclConfig {
	return &ncclConfig{size: uint64(unsafe.Sizeof(ncclConfig{})), magic: 0xcafebeef, version: 21400, blocking: 0}
}

// UniqueID makes the name of a new communicator.
func (n *NCCL) UniqueID() (NCCLID, error) {
	if n.getUniqueID == nil || n.commInitRank == nil {
		return NCCLID{}, fmt.Errorf("%s has no communicators of several processes", n.Path)
	}
	var id ncclUniqueID
	if code := n.getUniqueID(&id); code != ncclSuccess {
		return NCCLID{}, n.fail("ncclGetUniqueId", code, 0)
	}
	return id.Internal, nil
}

// NCCLSeats are the ranks of this process in a communicator: from First on, one for each GPU.
type NCCLSeats struct {
	ID    NCCLID
	Size  int // ranks of all processes
	First int
	GPUs  []*Context
}

// Join joins communicators with ranks in other processes, all at once. It returns when all ranks of
// all processes have joined, or when ctx ends. With releases before 2.14 it cannot be interrupted:
// the caller must be ready to end the process. After an error, too, the communicators can be aborted.
func (n *NCCL) Join(ctx context.Context, seats []NCCLSeats) (comms []*NCCLComm, err error) {
	if n.commInitRank == nil {
		return nil, fmt.Errorf("%s has no communicators of several processes", n.Path)
	}
	config := newNCCLConfig()
	err = n.Group(func() error {
		for _, s := range seats {
			c := &NCCLComm{lib: n, comms: make([]uintptr, len(s.GPUs)), size: s.Size, first: s.First}
			comms = append(comms, c)
			for i, g := range s.GPUs {
				if err := g.Use(); err != nil {
					return err
				}
				c.devices = append(c.devices, g.GPU.Ordinal)
				if err := n.joinOne(&c.comms[i], s, s.First+i, config, g.GPU.Ordinal); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil {
		err = SettleNCCL(ctx, comms)
	}
	return comms, err
}

// joinOne queues the join of one rank, whose GPU has the current context.
func (n *NCCL) joinOne(comm *uintptr, s NCCLSeats, rank int, config *ncclConfig, gpu int) error {
	call, code := "ncclCommInitRank", int32(0)
	if n.commInitRankConfig != nil {
		call = "ncclCommInitRankConfig"
		code = n.commInitRankConfig(comm, int32(s.Size), ncclUniqueID{s.ID}, int32(rank), config)
	} else {
		code = n.commInitRank(comm, int32(s.Size), ncclUniqueID{s.ID}, int32(rank))
	}
	foreignCalls.Add(1)
	if code == ncclSuccess || code == ncclInProgress {
		return nil
	}
	e := n.fail(call, code, 0)
	e.GPU = gpu
	return e
}

// settleStep is the interval at which SettleNCCL asks for progress.
const settleStep = time.Millisecond

// SettleNCCL waits until NCCL has done what it does in the background for the communicators: after
// a join, and after each group of operations, before their streams are used. The error is that of
// NCCL, or of ctx.
func SettleNCCL(ctx context.Context, comms []*NCCLComm) error {
	for _, c := range comms {
		for {
			busy, err := c.state()
			if err != nil {
				return err
			}
			if !busy {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for the other ranks: %w", context.Cause(ctx))
			case <-time.After(settleStep):
			}
		}
	}
	return nil
}

// state reports whether NCCL works in the background for a rank of this process.
func (c *NCCLComm) state() (busy bool, err error) {
	if c.lib.asyncError == nil {
		return false, nil
	}
	for _, comm := range c.comms {
		if comm == 0 { // its join has failed
			continue
		}
		var now int32
		if code := c.lib.asyncError(comm, &now); code != ncclSuccess {
			return false, c.lib.fail("ncclCommGetAsyncError", code, comm)
		}
		switch now {
		case ncclSuccess:
		case ncclInProgress:
			busy = true
		default:
			return false, c.lib.fail("a collective", now, comm)
		}
	}
	return busy, nil
}

// First returns the rank of this process's first GPU.
func (c *NCCLComm) First() int { return c.first }

// Local returns the number of this process's ranks.
func (c *NCCLComm) Local() int { return len(c.comms) }

// AgreeNCCL gives every process of a communicator the number of rank 0, from 0 to 2^24: a process
// alone cannot know how often all of them should repeat an operation. The buffers are overwritten.
func AgreeNCCL(ctx context.Context, comms []*NCCLComm, gpus []*NCCLGPU, n int) (int, error) {
	if n < 0 || n > 1<<24 {
		return 0, fmt.Errorf("agree on %d: want at most 2^24", n)
	}
	for _, g := range gpus { // each a float32: exact
		if err := g.Context.Fill32(g.Send, math.Float32bits(float32(n)), 4, g.Stream); err != nil {
			return 0, err
		}
	}
	at := 0
	err := comms[0].lib.Group(func() error {
		for _, c := range comms {
			for i := range c.Local() {
				if err := c.Broadcast(gpus[at].Work(c.First()+i, 4)); err != nil {
					return err
				}
				at++
			}
		}
		return nil
	})
	if err == nil {
		err = SettleNCCL(ctx, comms)
	}
	if err != nil {
		return 0, err
	}
	g := gpus[0]
	if err := errors.Join(g.Context.CopyToHost(g.Answer[:4], g.Recv, g.Stream), g.Context.Sync(ctx, g.Stream)); err != nil {
		return 0, err
	}
	f := math.Float32frombits(uint32(g.Answer[0]) | uint32(g.Answer[1])<<8 | uint32(g.Answer[2])<<16 | uint32(g.Answer[3])<<24)
	if !(f >= 0 && f <= 1<<24) {
		return 0, fmt.Errorf("agree on a number: got %v of rank 0", f)
	}
	return int(f), nil
}

// NoIB reports whether NCCL's log says that it found no RDMA device.
func (l NCCLLog) NoIB() bool { return slices.Contains(l.Facts, ncclNoIB) }

// GDR reports whether NCCL's log says that a network adapter accesses a GPU's memory directly.
func (l NCCLLog) GDR() bool { return slices.Contains(l.Facts, ncclGDR) }

// These parts of lines of the log are Facts, each once: of 2.21 to 2.30.
const (
	ncclNoIB = "NET/IB : No device found"
	ncclGDR  = "/GDRDMA"
)

// NonBlocking reports whether Join and operations return at once: since 2.14.
func (n *NCCL) NonBlocking() bool { return n.commInitRankConfig != nil }

// OfCUDA reports whether the error is one of CUDA on this node, and not of the network or of
// another rank.
func (e *NCCLError) OfCUDA() bool { return e.Code == ncclUnhandledCUDA }
