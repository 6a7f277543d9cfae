package probe

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoLines means that [Host.Lines] gave up on an existing file: it is a silent pipe or device, or
// a line is too long.
var ErrNoLines = errors.New("no lines")

// MaxLine is the longest line that [Host.Lines] reads, in bytes.
const MaxLine = 1 << 20

// quiet is how long Lines waits for data from a pipe or a device.
const quiet = time.Second

// lineReader splits the data of a descriptor into lines.
type lineReader struct {
	fd     int
	kind   uint32 // S_IFREG, S_IFIFO ...
	buf    []byte
	rest   []byte // part of buf that was not returned yet
	looked int    // the start of rest, up to here, has no newline
	heard  bool   // data has arrived
	ended  bool
}

// next returns the next line, nil at the end.
func (r *lineReader) next() ([]byte, error) {
	for {
		if i := bytes.IndexByte(r.rest[r.looked:], '\n'); i >= 0 {
			line := r.rest[:r.looked+i]
			r.rest, r.looked = r.rest[r.looked+i+1:], 0
			return line, nil
		}
		r.looked = len(r.rest)
		if r.ended {
			line := r.rest
			r.rest, r.looked = nil, 0
			if len(line) == 0 {
				return nil, nil
			}
			return line, nil
		}
		if len(r.rest) >= MaxLine {
			return nil, fmt.Errorf("%w: a line of more than %d bytes", ErrNoLines, MaxLine)
		}
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
}

// fill reads once and appends to rest.
func (r *lineReader) fill() error {
	if len(r.rest) == 0 || cap(r.buf)-len(r.rest) < 4<<10 {
		r.grow()
	}
	n := copy(r.buf[:cap(r.buf)], r.rest)
	m, err := r.read(r.buf[n:cap(r.buf)])
	if err != nil {
		return err
	}
	r.rest = r.buf[:n+m]
	r.heard = r.heard || m > 0
	r.ended = m == 0
	if r.ended && !r.heard && r.kind == unix.S_IFIFO {
		return fmt.Errorf("%w: a FIFO without a writer", ErrNoLines)
	}
	return nil
}

// grow enlarges the buffer for a long line: few lines need more than the first buffer.
func (r *lineReader) grow() {
	if r.buf == nil {
		r.buf = make([]byte, 0, 32<<10)
	} else if len(r.rest) > cap(r.buf)/2 {
		r.buf = make([]byte, 0, 2*cap(r.buf))
	}
}

func (r *lineReader) read(buf []byte) (int, error) {
	for {
		n, err := Read(r.fd, buf)
		if !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		ready, err := Retry(func() (int, error) {
			return unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, int(quiet/time.Millisecond))
		})
		if err != nil {
			return 0, err
		}
		if ready == 0 {
			return 0, fmt.Errorf("%w: %s without data for %v", ErrNoLines, r.kindName(), quiet)
		}
	}
}

// kindName names the kind of file, for messages.
func (r *lineReader) kindName() string {
	switch r.kind {
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFCHR:
		return "a character device"
	case unix.S_IFBLK:
		return "a block device"
	default:
		return "a file"
	}
}

// Retry repeats a call that a signal interrupts.
func Retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
