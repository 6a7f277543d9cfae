package active

import (
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// ncclOp is an operation. Counts are in float32 elements, as in nccl-tests: block is the count
// passed to NCCL, n the number of ranks. Sizes, algorithm bandwidth (size by time) and bus
// bandwidth are defined as in doc/PERFORMANCE.md of nccl-tests: bus bandwidth is the load of a
// link if the operation ran over a ring.
type ncclOp struct {
	name    string
	program string                  // name in nccl-tests
	factor  func(n float64) float64 // bus bandwidth by algorithm bandwidth
	split   bool                    // the size is that of n blocks
	gathers bool                    // a rank receives n blocks
	deals   bool                    // a rank sends n blocks
	sends   bool                    // by send and receive, since NCCL 2.7
	enqueue func(c *cuda.NCCLComm, w cuda.NCCLWork) error
	parts   func(rank, n int, block int64) []ncclPart // expected parts of a rank's received data
}

// ncclPart is an expected part of the data that a rank receives: count elements from at on, sums
// of the values of some ranks, starting with value first.
type ncclPart struct {
	at, count, first int64
	from, ranks      int
}

const ncclMulti = "multi_all_reduce"

func bothWays(n float64) float64 { return 2 * (n - 1) / n }
func others(n float64) float64   { return (n - 1) / n }
func oneWay(float64) float64     { return 1 }

var ncclOps = []ncclOp{
	{
		name: "all_reduce", program: "all_reduce_perf", factor: bothWays,
		enqueue: func(c *cuda.NCCLComm, w cuda.NCCLWork) error { return c.AllReduce(w) },
		parts:   func(_, n int, block int64) []ncclPart { return []ncclPart{{count: block, ranks: n}} },
	},
	{
		name: "all_gather", program: "all_gather_perf", factor: others, split: true, gathers: true,
		enqueue: func(c *cuda.NCCLComm, w cuda.NCCLWork) error { return c.AllGather(w) },
		parts: func(_, n int, block int64) []ncclPart {
			return eachRank(n, func(k int) ncclPart { return ncclPart{at: int64(k) * block, count: block, from: k, ranks: 1} })
		},
	},
	{
		name: "reduce_scatter", program: "reduce_scatter_perf", factor: others, split: true, deals: true,
		enqueue: func(c *cuda.NCCLComm, w cuda.NCCLWork) error { return c.ReduceScatter(w) },
		parts: func(rank, n int, block int64) []ncclPart {
			return []ncclPart{{count: block, first: int64(rank) * block, ranks: n}}
		},
	},
	{
		name: "all_to_all", program: "alltoall_perf", factor: others, split: true, gathers: true, deals: true, sends: true,
		enqueue: func(c *cuda.NCCLComm, w cuda.NCCLWork) error {
			for k := range c.Ranks() {
				part := w
				part.Send += uintptr(int64(k) * w.Count * 4)
				part.Recv += uintptr(int64(k) * w.Count * 4)
				if err := exchange(c, part, k, k); err != nil {
					return err
				}
			}
			return nil
		},
		parts: func(rank, n int, block int64) []ncclPart {
			return eachRank(n, func(k int) ncclPart {
				return ncclPart{at: int64(k) * block, count: block, first: int64(rank) * block, from: k, ranks: 1}
			})
		},
	},
	{
		name: "broadcast", program: "broadcast_perf", factor: oneWay,
		enqueue: func(c *cuda.NCCLComm, w cuda.NCCLWork) error { return c.Broadcast(w, 0) },
		parts:   func(_, _ int, block int64) []ncclPart { return []ncclPart{{count: block, ranks: 1}} },
	},
	{
		name: "sendrecv", program: "sendrecv_perf", factor: oneWay, sends: true,
		enqueue: func(c *cuda.NCCLComm, w cuda.NCCLWork) error {
			n := c.Ranks()
			return exchange(c, w, (w.Rank+1)%n, (w.Rank+n-1)%n)
		},
		parts: func(rank, n int, block int64) []ncclPart {
			return []ncclPart{{count: block, from: (rank + n - 1) % n, ranks: 1}}
		},
	},
}

func eachRank(n int, part func(k int) ncclPart) (parts []ncclPart) {
	for k := range n {
		parts = append(parts, part(k))
	}
	return parts
}

func exchange(c *cuda.NCCLComm, w cuda.NCCLWork, to, from int) error {
	if err := c.Send(w, to); err != nil {
		return err
	}
	return c.Receive(w, from)
}

// ncclOpOf returns an operation by its name, nil if there is none. multi_all_reduce is all_reduce
// in groups; alltoall is the name of all_to_all in nccl-tests.
func ncclOpOf(name string) *ncclOp {
	switch name {
	case ncclMulti:
		name = "all_reduce"
	case "alltoall":
		name = "all_to_all"
	}
	i := slices.IndexFunc(ncclOps, func(o ncclOp) bool { return o.name == name })
	if i < 0 {
		return nil
	}
	op := ncclOps[i]
	return &op
}

func ncclOpNames() (names []string) {
	for _, o := range ncclOps {
		names = append(names, o.name)
	}
	return append(names, ncclMulti)
}

// block returns the count for NCCL for a size in bytes: nccl-tests rounds the parts of a buffer
// down to 16 bytes.
func (o *ncclOp) block(size int64, n int) int64 {
	if o.split {
		return size / 4 / int64(n) &^ 3
	}
	return size / 4
}

// sent and received return the number of elements in the buffers of a rank.
func (o *ncclOp) sent(block int64, n int) int64 { return times(block, n, o.deals) }

func (o *ncclOp) received(block int64, n int) int64 { return times(block, n, o.gathers) }

func times(block int64, n int, all bool) int64 {
	if all {
		return block * int64(n)
	}
	return block
}

// bytes returns the size of the larger buffer, which defines the bandwidth.
func (o *ncclOp) bytes(block int64, n int) int64 { return 4 * times(block, n, o.split) }

// busbw returns the bus bandwidth in GB/s.
func (o *ncclOp) busbw(bytes int64, n int, seconds float64) float64 {
	return float64(bytes) / seconds / 1e9 * o.factor(float64(n))
}
