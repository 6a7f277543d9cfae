package active

import (
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// ncclOp is an operation. Counts are of float32 elements, as of nccl-tests: block is
// what NCCL is told, n the number of ranks. The definitions of sizes, algorithm
// bandwidth (size by time) and bus bandwidth are those of doc/PERFORMANCE.md of
// nccl-tests: what a link would have to carry if the operation went over a ring.
type ncclOp struct {
	name    string
	program string                  // of nccl-tests
	factor  func(n float64) float64 // bus bandwidth by algorithm bandwidth
	split   bool                    // the size is that of n blocks
	gathers bool                    // a rank receives n blocks
	deals   bool                    // a rank sends n blocks
	sends   bool                    // by send and receive, which 2.7 brought
	enqueue func(c *cuda.NCCLComm, w cuda.NCCLWork) error
	parts   func(rank, n int, block int64) []ncclPart // of what a rank has received
}

// ncclPart is a part of what a rank has to have received: count elements from at on,
// sums of the values of some ranks, counted from first on.
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

// ncclOpOf finds an operation by its name, nil if there is none. multi_all_reduce
// is all_reduce in groups; alltoall is what nccl-tests calls all_to_all.
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

// block is what NCCL is told for a size in bytes: nccl-tests rounds the parts of a
// buffer down to 16 bytes.
func (o *ncclOp) block(size int64, n int) int64 {
	if o.split {
		return size / 4 / int64(n) &^ 3
	}
	return size / 4
}

// sends and receives are how many elements the buffers of a rank have.
func (o *ncclOp) sent(block int64, n int) int64 { return times(block, n, o.deals) }

func (o *ncclOp) received(block int64, n int) int64 { return times(block, n, o.gathers) }

func times(block int64, n int, all bool) int64 {
	if all {
		return block * int64(n)
	}
	return block
}

// bytes is the size of the larger buffer, which bandwidths are about.
func (o *ncclOp) bytes(block int64, n int) int64 { return 4 * times(block, n, o.split) }

// busbw is the bus bandwidth in GB/s of so many bytes in so many seconds.
func (o *ncclOp) busbw(bytes int64, n int, seconds float64) float64 {
	return float64(bytes) / seconds / 1e9 * o.factor(float64(n))
}
