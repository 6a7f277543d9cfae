package cuda

import (
	"slices"
	"unsafe"
)

// NCCLComm is a communicator. Its ranks are GPUs of this node, all in this process, or some of them:
// see Join.
type NCCLComm struct {
	lib     *NCCL
	comms   []uintptr // of the ranks of this process
	devices []int     // their GPUs
	first   int       // the first of these ranks
	size    int       // ranks of all processes
}

// Comm creates a communicator of GPUs by their CUDA indexes; rank i is devices[i]. It blocks until
// every GPU has joined, and cannot be interrupted.
func (n *NCCL) Comm(devices []int) (*NCCLComm, error) {
	c := &NCCLComm{lib: n, comms: make([]uintptr, len(devices)), devices: slices.Clone(devices), size: len(devices)}
	list := make([]int32, len(devices))
	for i, d := range devices {
		list[i] = int32(d)
	}
	defer foreignCalls.Add(1)
	if code := n.commInitAll(unsafe.SliceData(c.comms), int32(len(list)), unsafe.SliceData(list)); code != ncclSuccess {
		return nil, n.fail("ncclCommInitAll", code, 0)
	}
	return c, nil
}

// Ranks returns the number of ranks, of all processes.
func (c *NCCLComm) Ranks() int { return c.size }

// AsyncError returns the error of a rank since it last got work, nil if there is none. It is safe
// to call during other calls.
func (c *NCCLComm) AsyncError() error {
	_, err := c.state()
	return err
}

// Destroy frees the communicator. Its work must have ended.
func (c *NCCLComm) Destroy() error {
	return c.end("ncclCommDestroy", c.lib.commDestroy)
}

// Abort ends the communicator's work on the GPUs and frees it. If it hangs, end the process.
func (c *NCCLComm) Abort() error {
	if c.lib.commAbort == nil {
		return nil
	}
	return c.end("ncclCommAbort", c.lib.commAbort)
}

func (c *NCCLComm) end(call string, do func(uintptr) int32) (err error) {
	defer foreignCalls.Add(1)
	for _, comm := range c.comms {
		if comm == 0 {
			continue
		}
		if code := do(comm); code != ncclSuccess && code != ncclInProgress && err == nil {
			err = c.lib.fail(call, code, 0)
		}
	}
	c.comms = nil
	return err
}

// Group combines the operations that enqueue queues to one, which starts when all are known: those
// of all ranks, and sends with their receives. After it, [SettleNCCL] must be called if ranks are in
// other processes.
func (n *NCCL) Group(enqueue func() error) error {
	defer foreignCalls.Add(1)
	if code := n.groupStart(); code != ncclSuccess {
		return n.fail("ncclGroupStart", code, 0)
	}
	err := enqueue()
	if code := n.groupEnd(); code != ncclSuccess && code != ncclInProgress && err == nil {
		return n.fail("ncclGroupEnd", code, 0)
	}
	return err
}

// NCCLWork is one rank's part of an operation: addresses in the memory of its GPU, the number of
// float32 elements, and a stream of its GPU.
type NCCLWork struct {
	Rank       int // in the communicator, one of this process
	Send, Recv uintptr
	Count      int64
	Stream     uintptr
}

// AllReduce adds the Count elements of all ranks; each rank gets the sums.
func (c *NCCLComm) AllReduce(w NCCLWork) error {
	return c.finishCall("ncclAllReduce", w.Rank, c.lib.allReduce(w.Send, w.Recv, uint64(w.Count), ncclFloat32, ncclSum, c.comms[w.Rank-c.first], w.Stream))
}

// AllGather gives each rank the Count elements of every rank, in rank order.
func (c *NCCLComm) AllGather(w NCCLWork) error {
	return c.finishCall("ncclAllGather", w.Rank, c.lib.allGather(w.Send, w.Recv, uint64(w.Count), ncclFloat32, c.comms[w.Rank-c.first], w.Stream))
}

// ReduceScatter adds Count elements for each rank; each rank gets its own part of the sums.
func (c *NCCLComm) ReduceScatter(w NCCLWork) error {
	return c.finishCall("ncclReduceScatter", w.Rank, c.lib.reduceScatter(w.Send, w.Recv, uint64(w.Count), ncclFloat32, ncclSum, c.comms[w.Rank-c.first], w.Stream))
}

// Broadcast gives each rank the Count elements of the first one.
func (c *NCCLComm) Broadcast(w NCCLWork) error {
	return c.finishCall("ncclBroadcast", w.Rank, c.lib.broadcast(w.Send, w.Recv, uint64(w.Count), ncclFloat32, 0, c.comms[w.Rank-c.first], w.Stream))
}

// Send sends Count elements to a rank, from Send.
func (c *NCCLComm) Send(w NCCLWork, to int) error {
	return c.finishCall("ncclSend", w.Rank, c.lib.send(w.Send, uint64(w.Count), ncclFloat32, int32(to), c.comms[w.Rank-c.first], w.Stream))
}

// Receive receives Count elements from a rank, to Recv.
func (c *NCCLComm) Receive(w NCCLWork, from int) error {
	return c.finishCall("ncclRecv", w.Rank, c.lib.recv(w.Recv, uint64(w.Count), ncclFloat32, int32(from), c.comms[w.Rank-c.first], w.Stream))
}

func (c *NCCLComm) finishCall(call string, rank int, code int32) error {
	foreignCalls.Add(1)
	if code == ncclSuccess || code == ncclInProgress {
		return nil
	}
	e := c.lib.fail(call, code, c.comms[rank-c.first])
	e.GPU = c.devices[rank-c.first]
	return e
}

// Exchange sends Count elements to one rank and receives as many from another.
func (c *NCCLComm) Exchange(w NCCLWork, to, from int) error {
	if err := c.Send(w, to); err != nil {
		return err
	}
	return c.Receive(w, from)
}
