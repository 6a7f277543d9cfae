package wire

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// A worker announces its next call on a page of memory that it shares with its supervisor. A check
// of sixteen GPUs makes more than a thousand calls. Each of them may hang or kill the process, and
// a message for each would cost more than the calls. The supervisor reads the page only when a
// worker has hung or died.
//
// The page has the number of calls that the worker has announced in eight bytes, and two slots. A
// slot has the number of the request in eight bytes, the length of the text in two, and the text.
// The number of calls names the slot of the newest call, so that one thread can end the process
// while another announces a call: the other slot is whole. It also distinguishes a library that
// makes progress from one that hangs, since many consecutive calls have the same text.

const (
	pageSize  = 4096
	pageHead  = 8
	slotSize  = (pageSize - pageHead) / 2
	slotHead  = 10
	readTries = 8 // of a page that changes meanwhile
)

// Page is the worker's side; nil if no page was available.
type Page []byte

// NewPage creates a page for a worker that is about to start.
func NewPage() (*os.File, error) {
	fd, err := unix.MemfdCreate("nhc-gpu-doing", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "doing")
	if err := f.Truncate(pageSize); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenPage maps the page that this worker got.
func OpenPage(fd int) Page {
	p, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil
	}
	return p
}

// Write announces a call.
func (p Page) Write(request int, what string) {
	if p == nil {
		return
	}
	calls := (*uint64)(unsafe.Pointer(&p[0])) // aligned: mmap returns whole pages
	next := atomic.LoadUint64(calls) + 1
	s := slot(p, next)
	binary.NativeEndian.PutUint64(s, uint64(request))
	binary.NativeEndian.PutUint16(s[8:], uint16(copy(s[slotHead:], what)))
	atomic.StoreUint64(calls, next)
}

// slot returns the slot of a call.
func slot(p []byte, call uint64) []byte {
	from := pageHead + int(call%2)*slotSize
	return p[from : from+slotSize]
}

// ReadPage returns the call that a worker announced for a request, "" if none, and the number of
// calls that it has announced since its start.
func ReadPage(f *os.File, request int) (doing string, calls uint64) {
	if f == nil {
		return "", 0
	}
	p, now := make([]byte, pageSize), make([]byte, pageHead)
	for range readTries {
		for _, b := range [][]byte{p, now} {
			if n, err := f.ReadAt(b, 0); err != nil || n < len(b) {
				return "", 0
			}
		}
		if string(p[:pageHead]) == string(now) {
			break
		}
	}
	calls = binary.NativeEndian.Uint64(p)
	s := slot(p, calls)
	n := int(binary.NativeEndian.Uint16(s[8:]))
	if binary.NativeEndian.Uint64(s) != uint64(request) || n > slotSize-slotHead { // of an earlier request, or overwritten by a faulty library
		return "", calls
	}
	return probe.OneLine(string(s[slotHead : slotHead+n])), calls // the worker may be broken
}
