package cpu

import (
	"cmp"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// Location of the triad's memory. The kernel allocates memory that a thread touches first on the
// thread's NUMA node only while that node has free memory. If the page cache fills the node, for
// example after a job that read its data there, the kernel allocates on another node instead of
// taking pages from the cache (vm.zone_reclaim_mode is 0). So this code asks the kernel for the
// location of the pages, and moves those on another node.
//
// It moves them by move_pages(2) and sets no memory policy (mbind(2) with MPOL_BIND): a page
// touched under such a policy wakes the OOM killer if its node has no memory. The kernel allocates
// a moved page with __GFP_THISNODE: it takes memory from the page cache but never kills a process,
// and does not charge the page to the cgroup a second time.

// StreamFar is memory of a NUMA node's threads that lies on another node.
type StreamFar struct {
	Node int
	On   int // the node that has it; -1: unknown, it may be on another node
	MiB  int64
}

// streamFarPart is the part of a thread's memory that may lie on another node without being
// counted. streamLook is the distance of the sampled pages: a huge page has 32 of them. streamMove
// is the size of the memory that one call moves.
const (
	streamFarPart = 64
	streamLook    = 64 << 10
	streamMove    = 32 << 20
)

// streamPlaces has the location of the memory in one run. Each thread uses only its own entries;
// decide runs while all threads wait.
type streamPlaces struct {
	home    []int           // by thread: its NUMA node; -1 if unknown
	bytes   int64           // of a thread
	away    []map[int]int64 // by thread: bytes on each other node
	unknown []bool          // by thread: the kernel does not show where its pages are
	move    map[int]bool    // NUMA nodes that have room for the memory of their threads

	alone  bool               // the machine has one NUMA node, or the number is unknown
	before map[int]NUMAMemory // of the nodes, before any memory was touched
	memory func(node int) (NUMAMemory, error)
	where  func(memory []byte) (map[int]int64, error)
	send   func(memory []byte, node int)
}

func newStreamPlaces(p *StreamPlan, h *probe.Host) *streamPlaces {
	s := &streamPlaces{
		bytes: 3 * p.Array, away: make([]map[int]int64, len(p.Threads)), unknown: make([]bool, len(p.Threads)), move: map[int]bool{},
		before: map[int]NUMAMemory{}, memory: func(node int) (NUMAMemory, error) { return ReadNUMAMemory(h, node) }, where: locatePages, send: movePages,
	}
	of := map[int]int{}
	nodes, _ := pci.ReadNUMANodes(h)
	s.alone = len(nodes) < 2
	for _, n := range nodes {
		for _, cpu := range ParseCPUs(n.CPUs) {
			of[cpu] = n.ID
		}
	}
	for _, t := range p.Threads {
		node, told := of[t.CPU]
		if !told {
			node = -1
		}
		s.home = append(s.home, node)
		if m, err := ReadNUMAMemory(h, node); told && err == nil {
			s.before[node] = m
		}
	}
	return s
}

// look asks the kernel for the location of a thread's memory.
func (s *streamPlaces) look(i int, memories [][]byte) {
	s.away[i] = nil
	if s.home[i] < 0 {
		return
	}
	away, sum := map[int]int64{}, int64(0)
	for _, memory := range memories {
		at, err := s.where(memory)
		if err != nil { // ENOSYS of a kernel for one node, EPERM of a container
			s.unknown[i] = true
			return
		}
		for node, bytes := range at {
			if node != s.home[i] {
				away[node] += bytes
				sum += bytes
			}
		}
	}
	if sum > s.bytes/streamFarPart {
		s.away[i] = away
	}
}

// decide selects the nodes that can receive the memory of their threads: those with twice as much
// free or in the page cache. Other nodes would start to swap, and the kernel would log page
// allocation failures.
func (s *streamPlaces) decide() {
	want := map[int]uint64{}
	for i, away := range s.away {
		for _, bytes := range away {
			want[s.home[i]] += uint64(bytes)
		}
	}
	for node, bytes := range want {
		m, err := s.memory(node)
		s.move[node] = err == nil && m.Free+m.Cache >= 2*bytes+m.Total/100
	}
}

// bring moves the memory of a thread to its node, if that has room, and looks again. A failure is
// not an error (a cpuset may exclude that node): the memory stays where it is.
func (s *streamPlaces) bring(i int, memories [][]byte, stop func() bool) {
	if s.away[i] == nil || !s.move[s.home[i]] {
		return
	}
	for _, memory := range memories {
		for piece := range slices.Chunk(memory, streamMove) {
			if stop() {
				break
			}
			s.send(piece, s.home[i])
		}
	}
	s.look(i, memories)
}

// listFar returns the memory on other nodes, the largest first. If the kernel does not show it, listFar
// estimates it from the free memory before the run. It ignores a node that never had enough memory
// for its threads, because that is not a change.
func (s *streamPlaces) listFar() []StreamFar {
	type way struct{ node, on int }
	bytes, need, unknown := map[way]int64{}, map[int]int64{}, map[int]bool{}
	for i, node := range s.home {
		need[node] += s.bytes
		unknown[node] = unknown[node] || s.unknown[i]
		for on, n := range s.away[i] {
			bytes[way{node, on}] += n
		}
	}
	for node := range unknown {
		if s.alone {
			break // there is no other node
		}
		m, known := s.before[node]
		if free := m.Free - min(m.Free, m.Total/100); unknown[node] && known && free < uint64(need[node]) { // the kernel reserves up to 1 %
			bytes[way{node, -1}] = need[node] - int64(free)
		}
	}
	var list []StreamFar
	for at, n := range bytes {
		if m, known := s.before[at.node]; !known || m.Total >= uint64(need[at.node]) {
			list = append(list, StreamFar{at.node, at.on, n >> 20})
		}
	}
	slices.SortFunc(list, func(a, b StreamFar) int {
		return cmp.Or(cmp.Compare(b.MiB, a.MiB), cmp.Compare(a.Node, b.Node), cmp.Compare(a.On, b.On))
	})
	return list
}

// locatePages returns the bytes of some memory by NUMA node, from a sample of its pages. It does not
// count memory that was not touched.
func locatePages(memory []byte) (map[int]int64, error) {
	status, err := askPages(memory, streamLook, nil)
	if err != nil {
		return nil, err
	}
	at := map[int]int64{}
	for _, node := range status {
		if node >= 0 {
			at[int(node)] += streamLook
		}
	}
	return at, nil
}

// movePages moves memory to a NUMA node as far as possible; look at the result afterwards.
func movePages(memory []byte, node int) { _, _ = askPages(memory, os.Getpagesize(), &node) }

// askPages calls move_pages(2) for each page at such a distance. It returns the node of each page
// or a negative error number; if to is set, it moves the pages to that node. x/sys has no function
// for this call.
func askPages(memory []byte, distance int, to *int) ([]int32, error) {
	if len(memory) == 0 {
		return nil, nil
	}
	const ownOnly = 1 << 1 // MPOL_MF_MOVE: only pages that no other process shares
	var pages []uintptr
	for at := 0; at < len(memory); at += distance {
		pages = append(pages, uintptr(unsafe.Pointer(&memory[at])))
	}
	status := make([]int32, len(pages))
	nodes := []int32(nil)
	if to != nil {
		nodes = slices.Repeat([]int32{int32(*to)}, len(pages))
	}
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, uintptr(len(pages)), uintptr(unsafe.Pointer(unsafe.SliceData(pages))),
		uintptr(unsafe.Pointer(unsafe.SliceData(nodes))), uintptr(unsafe.Pointer(unsafe.SliceData(status))), ownOnly)
	if errno != 0 {
		return nil, errno
	}
	return status, nil
}
