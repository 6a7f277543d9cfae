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

// Where the memory of the triad lies. A thread that touches its memory first gets it
// from its own NUMA node only while that has some free: before the kernel takes any
// from the page cache of that node, which is full of it after a job that read its data
// there, it goes to another node (vm.zone_reclaim_mode is 0). So the kernel is asked
// where the pages are, and those that lie elsewhere are moved.
//
// They are moved by move_pages(2), and no policy of memory is set (mbind(2) with
// MPOL_BIND): a page that is touched under one and that its node has no memory for
// wakes the OOM killer. A page that is moved is asked for with __GFP_THISNODE, for
// which the kernel takes from the page cache but never kills; nor is it charged to the
// cgroup a second time.

// StreamFar is memory of the threads of a NUMA node that does not lie on it.
type StreamFar struct {
	Node int
	On   int // where it lies; -1: not told, it may lie elsewhere
	MiB  int64
}

// streamFarPart is the part of the memory of a thread that may lie elsewhere without
// being counted, and streamLook the distance of the pages that are asked for: a huge
// page has 32 of them. streamMove is how much is moved by a call.
const (
	streamFarPart = 64
	streamLook    = 64 << 10
	streamMove    = 32 << 20
)

// streamPlaces is where it lies in one run. The threads use what is their own; decide
// is called while all of them wait.
type streamPlaces struct {
	home   []int           // by thread: its NUMA node; -1 if the kernel does not tell
	bytes  int64           // of a thread
	away   []map[int]int64 // by thread: bytes by the node where they lie that is not its own
	untold []bool          // by thread: the kernel does not say where its pages are
	move   map[int]bool    // NUMA nodes that have room for what is theirs

	alone  bool               // the node has one NUMA node, or the kernel does not tell
	before map[int]NUMAMemory // of the nodes, before any was touched
	memory func(node int) (NUMAMemory, error)
	where  func(memory []byte) (map[int]int64, error)
	send   func(memory []byte, node int)
}

func newStreamPlaces(p *StreamPlan, h *probe.Host) *streamPlaces {
	s := &streamPlaces{
		bytes: 3 * p.Array, away: make([]map[int]int64, len(p.Threads)), untold: make([]bool, len(p.Threads)), move: map[int]bool{},
		before: map[int]NUMAMemory{}, memory: func(node int) (NUMAMemory, error) { return ReadNUMAMemory(h, node) }, where: pagesWhere, send: movePages,
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

// look asks where the memory of a thread is.
func (s *streamPlaces) look(i int, memories [][]byte) {
	s.away[i] = nil
	if s.home[i] < 0 {
		return
	}
	away, sum := map[int]int64{}, int64(0)
	for _, memory := range memories {
		at, err := s.where(memory)
		if err != nil { // ENOSYS of a kernel for one node, EPERM of a container
			s.untold[i] = true
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

// decide says to which nodes what is theirs may be moved: those that have twice as
// much free or in the page cache. Others would only swap, and the kernel would log that
// it has no page (page allocation failure).
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

// bring moves the memory of a thread to its node, if that has room, and looks again.
// That it cannot be (a cpuset without that node) is no fault: it stays where it is.
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

// far is what lies elsewhere, the most first; or may, by what was free before, where
// the kernel does not say. A node that never had enough for its threads is none of it:
// it is always so.
func (s *streamPlaces) far() []StreamFar {
	type way struct{ node, on int }
	bytes, need, untold := map[way]int64{}, map[int]int64{}, map[int]bool{}
	for i, node := range s.home {
		need[node] += s.bytes
		untold[node] = untold[node] || s.untold[i]
		for on, n := range s.away[i] {
			bytes[way{node, on}] += n
		}
	}
	for node := range untold {
		if s.alone {
			break // there is no other
		}
		m, known := s.before[node]
		if free := m.Free - min(m.Free, m.Total/100); untold[node] && known && free < uint64(need[node]) { // of which the kernel keeps up to 1 % back
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

// pagesWhere are the bytes of some memory by the NUMA node where they lie, by a sample
// of its pages. What was not touched lies nowhere.
func pagesWhere(memory []byte) (map[int]int64, error) {
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

// movePages moves some memory to a NUMA node, what of it can be moved: see where it is
// then.
func movePages(memory []byte, node int) { _, _ = askPages(memory, os.Getpagesize(), &node) }

// askPages is move_pages(2) for each page at such a distance: where it is, or a
// negative error number; or to is where it shall be. x/sys has no function for it.
func askPages(memory []byte, distance int, to *int) ([]int32, error) {
	if len(memory) == 0 {
		return nil, nil
	}
	const ownOnly = 1 << 1 // MPOL_MF_MOVE: the pages that are this process's alone
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
