package cuda

import "slices"

// NCCLOp is an operation of NCCL. Counts are in float32 elements, as in nccl-tests: block is the
// count passed to NCCL, n the number of ranks. Sizes, algorithm bandwidth (size by time) and bus
// bandwidth are defined as in doc/PERFORMANCE.md of nccl-tests: bus bandwidth is the load of a link
// if the operation ran over a ring.
type NCCLOp struct {
	Name    string
	Program string                              // name in nccl-tests
	Sends   bool                                // by send and receive, since NCCL 2.7
	Enqueue func(c *NCCLComm, w NCCLWork) error // queues one rank's part
	Parts   func(rank, n int, block int64) []NCCLPart

	factor  func(n float64) float64 // bus bandwidth by algorithm bandwidth
	split   bool                    // the size is that of n blocks
	gathers bool                    // a rank receives n blocks
	deals   bool                    // a rank sends n blocks
}

// NCCLPart is an expected part of the data that a rank receives: Count elements from At on, sums of
// the values of Ranks ranks, starting with the value First. From is the first of these ranks.
type NCCLPart struct {
	At, Count, First int64
	From, Ranks      int
}

// NCCLMulti is all_reduce of several communicators at once.
const NCCLMulti = "multi_all_reduce"

func bothWays(n float64) float64 { return 2 * (n - 1) / n }
func others(n float64) float64   { return (n - 1) / n }
func oneWay(float64) float64     { return 1 }

var ncclOps = []NCCLOp{
	{
		Name: "all_reduce", Program: "all_reduce_perf", factor: bothWays,
		Enqueue: func(c *NCCLComm, w NCCLWork) error { return c.AllReduce(w) },
		Parts:   func(_, n int, block int64) []NCCLPart { return []NCCLPart{{Count: block, Ranks: n}} },
	},
	{
		Name: "all_gather", Program: "all_gather_perf", factor: others, split: true, gathers: true,
		Enqueue: func(c *NCCLComm, w NCCLWork) error { return c.AllGather(w) },
		Parts: func(_, n int, block int64) []NCCLPart {
			return eachRank(n, func(k int) NCCLPart { return NCCLPart{At: int64(k) * block, Count: block, From: k, Ranks: 1} })
		},
	},
	{
		Name: "reduce_scatter", Program: "reduce_scatter_perf", factor: others, split: true, deals: true,
		Enqueue: func(c *NCCLComm, w NCCLWork) error { return c.ReduceScatter(w) },
		Parts: func(rank, n int, block int64) []NCCLPart {
			return []NCCLPart{{Count: block, First: int64(rank) * block, Ranks: n}}
		},
	},
	{
		Name: "all_to_all", Program: "alltoall_perf", factor: others, split: true, gathers: true, deals: true, Sends: true,
		Enqueue: func(c *NCCLComm, w NCCLWork) error {
			for k := range c.Ranks() {
				part := w
				part.Send += uintptr(int64(k) * w.Count * 4)
				part.Recv += uintptr(int64(k) * w.Count * 4)
				if err := c.Exchange(part, k, k); err != nil {
					return err
				}
			}
			return nil
		},
		Parts: func(rank, n int, block int64) []NCCLPart {
			return eachRank(n, func(k int) NCCLPart {
				return NCCLPart{At: int64(k) * block, Count: block, First: int64(rank) * block, From: k, Ranks: 1}
			})
		},
	},
	{
		Name: "broadcast", Program: "broadcast_perf", factor: oneWay,
		Enqueue: (*NCCLComm).Broadcast,
		Parts:   func(_, _ int, block int64) []NCCLPart { return []NCCLPart{{Count: block, Ranks: 1}} },
	},
	{
		Name: "sendrecv", Program: "sendrecv_perf", factor: oneWay, Sends: true,
		Enqueue: func(c *NCCLComm, w NCCLWork) error {
			n := c.Ranks()
			return c.Exchange(w, (w.Rank+1)%n, (w.Rank+n-1)%n)
		},
		Parts: func(rank, n int, block int64) []NCCLPart {
			return []NCCLPart{{Count: block, From: (rank + n - 1) % n, Ranks: 1}}
		},
	},
}

func eachRank(n int, part func(k int) NCCLPart) (parts []NCCLPart) {
	for k := range n {
		parts = append(parts, part(k))
	}
	return parts
}

// NCCLOpOf returns an operation by its name, nil if there is none. multi_all_reduce is all_reduce
// in groups; alltoall is the name of all_to_all in nccl-tests.
func NCCLOpOf(name string) *NCCLOp {
	switch name {
	case NCCLMulti:
		name = "all_reduce"
	case "alltoall":
		name = "all_to_all"
	}
	i := slices.IndexFunc(ncclOps, func(o NCCLOp) bool { return o.Name == name })
	if i < 0 {
		return nil
	}
	op := ncclOps[i]
	return &op
}

// NCCLOpNames returns the names of all operations.
func NCCLOpNames() (names []string) {
	for _, o := range ncclOps {
		names = append(names, o.Name)
	}
	return append(names, NCCLMulti)
}

// Block returns the count for NCCL for a size in bytes: nccl-tests rounds the parts of a buffer
// down to 16 bytes.
func (o *NCCLOp) Block(size int64, n int) int64 {
	if o.split {
		return size / 4 / int64(n) &^ 3
	}
	return size / 4
}

// Sent returns the number of elements in the send buffer of a rank.
func (o *NCCLOp) Sent(block int64, n int) int64 { return times(block, n, o.deals) }

// Received returns the number of elements in the receive buffer of a rank.
func (o *NCCLOp) Received(block int64, n int) int64 { return times(block, n, o.gathers) }

func times(block int64, n int, all bool) int64 {
	if all {
		return block * int64(n)
	}
	return block
}

// Bytes returns the size of the larger buffer, which defines the bandwidth.
func (o *NCCLOp) Bytes(block int64, n int) int64 { return 4 * times(block, n, o.split) }

// BusBW returns the bus bandwidth in GB/s.
func (o *NCCLOp) BusBW(bytes int64, n int, seconds float64) float64 {
	return float64(bytes) / seconds / 1e9 * o.factor(float64(n))
}
