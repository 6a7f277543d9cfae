package active

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// The kinds of patterns of kernels/memory.cu.
const (
	patternSame    = iota // one word everywhere
	patternAddress        // each word is its own number
	patternRandom         // random data; the value is the seed
)

// pattern describes the content of memory.
type pattern struct {
	name  string
	kind  int32
	value uint32
}

// patterns writes and verifies patterns on one GPU.
type patterns struct {
	l                            *loadedGPU
	writing, verifying, inverted *cuda.Kernel
	report                       cuda.Memory
	seen                         []byte
}

// The result of a verification, see struct report of kernels/memory.cu: a count and the first
// wrong words, 16 bytes each.
const (
	reportKept = 16
	reportSize = 8 + reportKept*16
)

// newPatterns loads the kernels, and clears the report.
func newPatterns(l *loadedGPU) (*patterns, error) {
	k, err := l.loadKernels("pattern_write", "pattern_verify", "pattern_invert")
	if err != nil {
		return nil, err
	}
	p := &patterns{l: l, writing: k[0], verifying: k[1], inverted: k[2]}
	if p.report, err = l.c.Alloc(reportSize); err != nil {
		return nil, err
	}
	if p.seen, err = l.c.HostAlloc(reportSize); err != nil {
		return nil, err
	}
	return p, p.clear()
}

// clear queues the clearing of the report.
func (p *patterns) clear() error { return p.l.c.Fill32(p.report, 0, reportSize/4, p.l.stream) }

// close frees the memory of the report.
func (p *patterns) close() error { return cmp.Or(p.l.c.Free(p.report), p.l.c.HostFree(p.seen)) }

// write queues the writing of a pattern; offset is the distance of the memory from the beginning
// of the tested memory, bytes.
func (p *patterns) write(at cuda.Memory, size, offset uint64, what pattern) error {
	grid, block := p.l.chooseGrid()
	return p.l.c.Launch(p.writing, grid, block, p.l.stream, at, size/16, offset/16, what.kind, what.value)
}

// verify queues the comparison of the memory with a pattern.
func (p *patterns) verify(at cuda.Memory, size, offset uint64, what pattern) error {
	grid, block := p.l.chooseGrid()
	return p.l.c.Launch(p.verifying, grid, block, p.l.stream, at, size/16, offset/16, what.kind, what.value, p.report)
}

// invert queues the comparison of the memory with a pattern and the inversion of all its bits.
func (p *patterns) invert(at cuda.Memory, size, offset uint64, what pattern) error {
	grid, block := p.l.chooseGrid()
	return p.l.c.Launch(p.inverted, grid, block, p.l.stream, at, size/16, offset/16, what.kind, what.value, p.report)
}

// wrongWord is a word of memory that differs from the word written.
type wrongWord struct {
	offset    uint64 // bytes from the beginning of the tested memory
	want, got uint32
}

// wrongWords are the errors since the report was cleared.
type wrongWords struct {
	count uint64
	kept  []wrongWord
}

// String returns the number of wrong words, and the first of them by offset.
func (w wrongWords) String() string {
	if w.count == 0 {
		return "none"
	}
	text := checks.Plural(int(min(w.count, 1<<53)), "wrong word")
	if len(w.kept) == 0 {
		return text
	}
	first := w.kept[0]
	for _, k := range w.kept {
		if k.offset < first.offset {
			first = k
		}
	}
	flipped := first.want ^ first.got
	return fmt.Sprintf("%s: at offset %#x %#08x instead of %#08x, %s", text, first.offset, first.got, first.want, bitsOf(flipped))
}

// bitsOf describes the bits that are set: "bit 5", "3 bits (0x00000007)".
func bitsOf(mask uint32) string {
	if bits.OnesCount32(mask) == 1 {
		return fmt.Sprintf("bit %d", bits.TrailingZeros32(mask))
	}
	return fmt.Sprintf("%d bits (%#08x)", bits.OnesCount32(mask), mask)
}

// wrong waits for the queued work and returns the errors.
func (p *patterns) wrong(ctx context.Context) (w wrongWords, err error) {
	if err := cmp.Or(p.l.c.CopyToHost(p.seen, p.report, p.l.stream), p.l.sync(ctx)); err != nil {
		return w, err
	}
	w.count = binary.LittleEndian.Uint64(p.seen)
	for i := range min(w.count, reportKept) {
		b := p.seen[8+16*i:]
		w.kept = append(w.kept, wrongWord{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])})
	}
	return w, nil
}
