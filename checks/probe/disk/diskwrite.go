package disk

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file writes to a file system and reads the data back.

// Rates are the results, MB/s (10^6).
type Rates struct {
	Write   float64       `json:"write"`   // until the data is on the disk (fsync)
	Read    float64       `json:"read"`    // of the same data
	Longest time.Duration `json:"longest"` // time of the slowest write of 4 MiB
	Written int64         `json:"written"` // bytes; fewer than requested if the time was up
	Direct  bool          `json:"direct"`  // bypassed the page cache; else the rates include memory
	Memory  bool          `json:"memory"`  // the file system is in memory (tmpfs)
}

// Kind is the kind of an error.
type Kind string

// These are the kinds.
const (
	DiskNoDir    Kind = "directory" // it is not there, or is none
	DiskReadOnly Kind = "read-only"
	DiskFull     Kind = "full"  // too little is free, or a quota is used up
	DiskIO       Kind = "io"    // the kernel reports an I/O error
	DiskWrong    Kind = "wrong" // the data read back differs from the written data
	DiskOther    Kind = "other"
)

// Error is an error of a file system.
type Error struct {
	Kind Kind
	Op   string // write at 12345, fsync, read at 12345
	Err  error
}

func (e *Error) Error() string { return e.Op + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// diskError returns the error with the kind that its error number indicates.
func diskError(op string, err error) error {
	kind := DiskOther
	switch {
	case errors.Is(err, unix.EIO), errors.Is(err, unix.EUCLEAN), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.ESHUTDOWN):
		kind = DiskIO
	case errors.Is(err, unix.EROFS):
		kind = DiskReadOnly
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		kind = DiskFull
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		kind = DiskNoDir
	}
	return &Error{Kind: kind, Op: op, Err: err}
}

// These are the size of one write and the number of writers, enough to use a fast disk fully. A
// stamp in each page identifies its position and its run.
const (
	diskChunk   = 4 << 20
	diskPage    = 4096
	diskWriters = 4
	diskStamp   = 16 // bytes at the head of a page
)

// Size rounds a size up to whole chunks, at least one.
func Size(size int64) int64 { return max(1, (size+diskChunk-1)/diskChunk) * diskChunk }

// Write writes size bytes to a file without a name in dir, so that nothing remains however this
// process ends, and reads them back. It stops writing at the time writing, with fewer bytes. It
// leaves a tenth of the file system free. It calls doing, which may be nil, before each part that
// may block.
func Write(ctx context.Context, h *probe.Host, dir string, size int64, writing time.Time, doing func(string)) (Rates, error) {
	if doing == nil {
		doing = func(string) {}
	}
	if h.Recorded() {
		if r, found, err := readRecordedDisk(h, dir); found {
			return r, err
		}
	}
	doing("open " + dir)
	at, err := unix.Open(h.Path(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Rates{}, diskError("open", err)
	}
	defer unix.Close(at)
	memory, err := checkRoom(at, Size(size))
	if err != nil {
		return Rates{}, err
	}
	doing("make a file in " + dir)
	fd, direct, err := createNameless(at)
	if err != nil {
		return Rates{}, err
	}
	f := os.NewFile(uintptr(fd), dir) // without polling: reads and writes block
	defer f.Close()
	// If possible, allocate the whole size first, so that the time of finding free blocks does not
	// count.
	if err := unix.Fallocate(fd, 0, 0, Size(size)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINTR) {
		return Rates{}, diskError("make room", err)
	}
	d := &diskRun{ctx: ctx, file: f, chunks: Size(size) / diskChunk}
	d.rates.Direct, d.rates.Memory = direct && !memory, memory
	return d.run(dir, writing, doing)
}

// checkRoom reads the free space before anything is written, and whether the file system is in
// memory.
func checkRoom(dir int, size int64) (memory bool, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return false, diskError("read the free space", err)
	}
	unit := uint64(max(st.Frsize, 1))
	total, free := clampBytes(st.Blocks, unit), clampBytes(st.Bavail, unit)
	if st.Flags&unix.ST_RDONLY != 0 {
		return false, diskError("write", unix.EROFS)
	}
	if total > 0 && free-size < total/10 {
		return false, &Error{Kind: DiskFull, Op: "read the free space", Err: fmt.Errorf("%d MiB of %d MiB free, too little to write %d MiB and keep a tenth free", free>>20, total>>20, size>>20)}
	}
	return int64(st.Type) == unix.TMPFS_MAGIC || int64(st.Type) == unix.RAMFS_MAGIC, nil
}

// clampBytes converts a number of blocks to bytes. A negative number is 0: root has used the
// reserved blocks.
func clampBytes(blocks, unit uint64) int64 {
	switch {
	case blocks>>63 != 0:
		return 0
	case blocks > math.MaxInt64/unit:
		return math.MaxInt64
	}
	return int64(blocks * unit)
}

// createNameless creates a file without a name, opened to bypass the page cache if the file system
// can do that. If the file system cannot create such a file, it creates one with a random name and
// removes the name at once.
func createNameless(dir int) (fd int, direct bool, err error) {
	for _, direct := range []int{unix.O_DIRECT, 0} {
		fd, err = unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|direct, 0o600)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) && direct == 0 {
			fd, err = createUnlinked(dir, direct)
		}
		if err == nil {
			return fd, direct != 0, nil
		}
		if !errors.Is(err, unix.EINVAL) { // EINVAL: no O_DIRECT
			break
		}
	}
	return -1, false, diskError("make a file", err)
}

func createUnlinked(dir, flags int) (int, error) {
	name := make([]byte, 12)
	_, _ = rand.Read(name) // never fails
	path := ".nhc-gpu-write-" + hex.EncodeToString(name)
	fd, err := unix.Openat(dir, path, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDWR|unix.O_CLOEXEC|flags, 0o600)
	if errors.Is(err, unix.EINVAL) {
		_ = unix.Unlinkat(dir, path, 0) // some file systems refuse O_DIRECT only after they create the file
	}
	if err != nil {
		return -1, err
	}
	if err := unix.Unlinkat(dir, path, 0); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// diskFile is the part of a file that a run needs.
type diskFile interface {
	WriteAt(b []byte, off int64) (int, error)
	ReadAt(b []byte, off int64) (int, error)
	Sync() error
}

// diskRun is one run of the test.
type diskRun struct {
	ctx    context.Context
	file   diskFile
	chunks int64
	seed   [8]byte
	block  []byte // content of each chunk except the stamps of its pages

	mu      sync.Mutex
	longest time.Duration
	rates   Rates
}

func (d *diskRun) run(dir string, writing time.Time, doing func(string)) (Rates, error) {
	_, _ = rand.Read(d.seed[:])
	d.block = make([]byte, diskChunk)
	_, _ = rand.Read(d.block)
	doing("write to " + dir)
	start := time.Now()
	done, err := d.each(d.chunks, func() bool { return !time.Now().Before(writing) }, d.write)
	if err != nil {
		return Rates{}, err
	}
	doing("fsync in " + dir)
	if err := d.file.Sync(); err != nil {
		return Rates{}, diskError("fsync", probe.Reason(err))
	}
	d.rates.Written, d.rates.Longest = done*diskChunk, d.longest
	d.rates.Write = computeRate(done, time.Since(start))
	if f, ok := d.file.(*os.File); ok {
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	doing("read from " + dir)
	start = time.Now()
	if _, err := d.each(done, func() bool { return false }, d.verify); err != nil {
		return Rates{}, err
	}
	d.rates.Read = computeRate(done, time.Since(start))
	return d.rates, nil
}

func computeRate(chunks int64, in time.Duration) float64 {
	return float64(chunks*diskChunk) / max(in.Seconds(), 1e-9) / 1e6
}

// each calls do for chunks in parallel, roughly in order, until all are done or late is true; at
// least for one. It returns how many chunks are done: always the first ones, without a gap. So a
// worker checks the clock before it takes a chunk, never after: after that, another worker may take
// the next chunk while this one is delayed.
func (d *diskRun) each(chunks int64, late func() bool, do func(buf []byte, chunk int64) error) (int64, error) {
	var next, done atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, diskWriters)
	for i := range errs {
		all.Go(func() {
			buf, err := unix.Mmap(-1, 0, diskChunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // O_DIRECT needs page-aligned memory
			if err != nil {
				errs[i] = fmt.Errorf("get memory: %w", err)
				return
			}
			defer func() { _ = unix.Munmap(buf) }()
			for {
				if next.Load() > 0 && late() || d.ctx.Err() != nil {
					return
				}
				chunk := next.Add(1) - 1
				if chunk >= chunks {
					return
				}
				if errs[i] = do(buf, chunk); errs[i] != nil {
					next.Store(chunks)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	if err := context.Cause(d.ctx); err != nil {
		return 0, err
	}
	for _, err := range errs { // the first one is as good as any
		if err != nil {
			return 0, err
		}
	}
	return done.Load(), nil
}

func (d *diskRun) write(buf []byte, chunk int64) error {
	copy(buf, d.block)
	for page := int64(0); page < diskChunk; page += diskPage {
		d.stamp(buf[page:], chunk*diskChunk+page)
	}
	start := time.Now()
	if _, err := d.file.WriteAt(buf, chunk*diskChunk); err != nil {
		return diskError(fmt.Sprintf("write at byte %d", chunk*diskChunk), probe.Reason(err))
	}
	d.mu.Lock()
	d.longest = max(d.longest, time.Since(start))
	d.mu.Unlock()
	return nil
}

// stamp writes a page's position and run into the page.
func (d *diskRun) stamp(page []byte, at int64) {
	binary.LittleEndian.PutUint64(page, uint64(at))
	copy(page[8:diskStamp], d.seed[:])
}

func (d *diskRun) verify(buf []byte, chunk int64) error {
	clear(buf)
	if n, err := d.file.ReadAt(buf, chunk*diskChunk); errors.Is(err, io.EOF) {
		return &Error{Kind: DiskWrong, Op: fmt.Sprintf("read at byte %d", chunk*diskChunk+int64(n)), Err: errors.New("the file ends here, but more was written")}
	} else if err != nil {
		return diskError(fmt.Sprintf("read at byte %d", chunk*diskChunk), probe.Reason(err))
	}
	want := make([]byte, diskStamp)
	for page := int64(0); page < diskChunk; page += diskPage {
		at := chunk*diskChunk + page
		d.stamp(want, at)
		got := buf[page : page+diskPage]
		if bytes.Equal(got[:diskStamp], want) && bytes.Equal(got[diskStamp:], d.block[page+diskStamp:page+diskPage]) {
			continue
		}
		for i, b := range append(want, d.block[page+diskStamp:page+diskPage]...) {
			if got[i] != b {
				return &Error{Kind: DiskWrong, Op: fmt.Sprintf("read at byte %d", at+int64(i)), Err: fmt.Errorf("wrote 0x%02x, got 0x%02x", b, got[i])}
			}
		}
	}
	return nil
}

// readRecordedDisk returns the recorded result of a node that is a tree of files. Its file /diskwrite
// is a JSON object: for each directory its rates, or the kind and text of its error. found reports
// whether the file exists.
func readRecordedDisk(h *probe.Host, dir string) (rates Rates, found bool, err error) {
	const path = "/diskwrite"
	data, err := h.ReadFile(path)
	if err != nil {
		return Rates{}, false, nil
	}
	var all map[string]struct {
		Rates

		Kind Kind   `json:"kind"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return Rates{}, true, &fs.PathError{Op: "parse", Path: path, Err: err}
	}
	of, ok := all[dir]
	switch {
	case !ok:
		return Rates{}, true, &Error{Kind: DiskNoDir, Op: "open", Err: unix.ENOENT}
	case of.Kind != "":
		return Rates{}, true, &Error{Kind: of.Kind, Op: "write at byte 4194304", Err: errors.New(of.Text)}
	}
	return of.Rates, true, nil
}
