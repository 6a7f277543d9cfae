package wire

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A worker announces its next call on a page of memory that it shares with its supervisor. A check
// of sixteen GPUs makes more than a thousand calls. Each of them may hang or kill the process, and
// a message for each would cost more than the calls. The supervisor reads the page only when a
// worker has hung or died.
//
// The page has the number of the request in eight bytes, the number of calls that the worker has
// announced in eight, the length of the text in two, and the text. The number of calls
// distinguishes a library that makes progress from one that hangs, since many consecutive calls
// have the same text.

const (
	pageSize = 4096
	pageHead = 18
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

// Write replaces the text of the page.
func (p Page) Write(request int, what string) {
	if p == nil {
		return
	}
	binary.NativeEndian.PutUint16(p[16:], 0)
	n := copy(p[pageHead:], what)
	binary.NativeEndian.PutUint64(p, uint64(request))
	binary.NativeEndian.PutUint64(p[8:], binary.NativeEndian.Uint64(p[8:])+1)
	binary.NativeEndian.PutUint16(p[16:], uint16(n))
}

// ReadPage returns the call that a worker announced for a request, "" if none, and the number of
// calls that it has announced since its start.
func ReadPage(f *os.File, request int) (doing string, calls uint64) {
	if f == nil {
		return "", 0
	}
	p := make([]byte, pageSize)
	if n, err := f.ReadAt(p, 0); err != nil || n < pageSize {
		return "", 0
	}
	n := int(binary.NativeEndian.Uint16(p[16:]))
	calls = binary.NativeEndian.Uint64(p[8:])
	if binary.NativeEndian.Uint64(p) != uint64(request) || n > pageSize-pageHead { // of an earlier request, or overwritten by a faulty library
		return "", calls
	}
	return oneLine(p[pageHead : pageHead+n]), calls
}

// oneLine keeps the printable characters, because the worker may be broken.
func oneLine(text []byte) string {
	for i, c := range text {
		if c < ' ' || c == 0x7f {
			text[i] = '?'
		}
	}
	return string(text)
}
