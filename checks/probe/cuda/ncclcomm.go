package cuda

import (
	"slices"
	"unsafe"
)

// NCCLComm is a communicator whose ranks are GPUs of this node, all in this process.
type NCCLComm struct {
	lib     *NCCL
	comms   []uintptr
	devices []int
}

// Comm makes a communicator of GPUs by their numbers in CUDA; rank i is devices[i].
// It blocks until every GPU has joined, and cannot be interrupted.
func (n *NCCL) Comm(devices []int) (*NCCLComm, error) {
	c := &NCCLComm{lib: n, comms: make([]uintptr, len(devices)), devices: slices.Clone(devices)}
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

// Ranks is how many GPUs take part.
func (c *NCCLComm) Ranks() int { return len(c.comms) }

// AsyncError is what a rank has met since it was last given work, nil for nothing.
// It may be called beside other calls.
func (c *NCCLComm) AsyncError() error {
	if c.lib.asyncError == nil {
		return nil
	}
	for _, comm := range c.comms {
		var now int32
		if code := c.lib.asyncError(comm, &now); code != ncclSuccess {
			return c.lib.fail("ncclCommGetAsyncError", code, comm)
		}
		if now != ncclSuccess && now != ncclInProgress {
			return c.lib.fail("a collective", now, comm)
		}
	}
	return nil
}

// Destroy frees the communicator. Its work must have ended.
func (c *NCCLComm) Destroy() error {
	return c.end("ncclCommDestroy", c.lib.commDestroy)
}

// Abort ends what the communicator does on the GPUs and frees it. It may hang: the
// process has to be ended then.
func (c *NCCLComm) Abort() error {
	if c.lib.commAbort == nil {
		return nil
	}
	return c.end("ncclCommAbort", c.lib.commAbort)
}

func (c *NCCLComm) end(call string, do func(uintptr) int32) (err error) {
	defer foreignCalls.Add(1)
	for _, comm := range c.comms {
		if code := do(comm); code != ncclSuccess && err == nil {
			err = c.lib.fail(call, code, 0)
		}
	}
	c.comms = nil
	return err
}

// Group gives NCCL the operations that enqueue asks for as one, which starts when
// they are all known: those of all ranks, and sends with their receives.
func (n *NCCL) Group(enqueue func() error) error {
	defer foreignCalls.Add(1)
	if code := n.groupStart(); code != ncclSuccess {
		return n.fail("ncclGroupStart", code, 0)
	}
	err := enqueue()
	if code := n.groupEnd(); code != ncclSuccess && err == nil {
		return n.fail("ncclGroupEnd", code, 0)
	}
	return err
}

// NCCLWork is one rank's part of an operation: addresses of memory of its GPU, how
// many float32, and a stream of its GPU.
type NCCLWork struct {
	Rank       int
	Send, Recv uintptr
	Count      int64
	Stream     uintptr
}

// AllReduce adds the ranks' Count elements, each rank gets the sums.
func (c *NCCLComm) AllReduce(w NCCLWork) error {
	return c.did("ncclAllReduce", w.Rank, c.lib.allReduce(w.Send, w.Recv, uint64(w.Count), ncclFloat32, ncclSum, c.comms[w.Rank], w.Stream))
}

// AllGather gives each rank the Count elements of every rank, one behind the other.
func (c *NCCLComm) AllGather(w NCCLWork) error {
	return c.did("ncclAllGather", w.Rank, c.lib.allGather(w.Send, w.Recv, uint64(w.Count), ncclFloat32, c.comms[w.Rank], w.Stream))
}

// ReduceScatter adds Count elements for each rank, which gets its own part of the sums.
func (c *NCCLComm) ReduceScatter(w NCCLWork) error {
	return c.did("ncclReduceScatter", w.Rank, c.lib.reduceScatter(w.Send, w.Recv, uint64(w.Count), ncclFloat32, ncclSum, c.comms[w.Rank], w.Stream))
}

// Broadcast gives each rank the Count elements of root.
func (c *NCCLComm) Broadcast(w NCCLWork, root int) error {
	return c.did("ncclBroadcast", w.Rank, c.lib.broadcast(w.Send, w.Recv, uint64(w.Count), ncclFloat32, int32(root), c.comms[w.Rank], w.Stream))
}

// Send sends Count elements to a rank, from Send.
func (c *NCCLComm) Send(w NCCLWork, to int) error {
	return c.did("ncclSend", w.Rank, c.lib.send(w.Send, uint64(w.Count), ncclFloat32, int32(to), c.comms[w.Rank], w.Stream))
}

// Receive receives Count elements from a rank, to Recv.
func (c *NCCLComm) Receive(w NCCLWork, from int) error {
	return c.did("ncclRecv", w.Rank, c.lib.recv(w.Recv, uint64(w.Count), ncclFloat32, int32(from), c.comms[w.Rank], w.Stream))
}

func (c *NCCLComm) did(call string, rank int, code int32) error {
	foreignCalls.Add(1)
	if code == ncclSuccess {
		return nil
	}
	e := c.lib.fail(call, code, c.comms[rank])
	e.GPU = c.devices[rank]
	return e
}
