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

// Writing to a file system, and reading back what was written.

// Rates are what came of it, MB/s (10^6).
type Rates struct {
	Write   float64       `json:"write"`   // until it is on the disk (fsync)
	Read    float64       `json:"read"`    // of the same, back
	Longest time.Duration `json:"longest"` // that a write of 4 MiB took
	Written int64         `json:"written"` // bytes; less than was wanted if the time was up
	Direct  bool          `json:"direct"`  // past the page cache; else the rates are those of memory, too
	Memory  bool          `json:"memory"`  // the file system is one in memory (tmpfs)
}

// Kind tells apart what went wrong.
type Kind string

// The kinds of it.
const (
	DiskNoDir    Kind = "directory" // it is not there, or is none
	DiskReadOnly Kind = "read-only"
	DiskFull     Kind = "full"  // too little is free, or a quota is used up
	DiskIO       Kind = "io"    // the kernel has an I/O error for it
	DiskWrong    Kind = "wrong" // what is read back is not what was written
	DiskOther    Kind = "other"
)

// Error is what went wrong with a file system.
type Error struct {
	Kind Kind
	Op   string // write at 12345, fsync, read at 12345
	Err  error
}

func (e *Error) Error() string { return e.Op + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// diskError tells by the error number what went wrong.
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

// What is written at once, and by how many: enough to keep a fast disk at work. A page
// bears where it belongs and whose it is.
const (
	diskChunk   = 4 << 20
	diskPage    = 4096
	diskWriters = 4
	diskStamp   = 16 // bytes at the head of a page
)

// Size is a size as it is written: whole chunks, one at least.
func Size(size int64) int64 { return max(1, (size+diskChunk-1)/diskChunk) * diskChunk }

// Write writes so many bytes into a file of a directory that has no name, so that
// nothing of it is left however this ends, and reads them back. It writes until writing
// is over, at which a smaller part of them has to do. A tenth of the file system stays
// free. doing may be nil; it hears of each part that may block.
func Write(ctx context.Context, h *probe.Host, dir string, size int64, writing time.Time, doing func(string)) (Rates, error) {
	if doing == nil {
		doing = func(string) {}
	}
	if h.Recorded() {
		if r, found, err := recordedDisk(h, dir); found {
			return r, err
		}
	}
	doing("open " + dir)
	at, err := unix.Open(h.Path(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Rates{}, diskError("open", err)
	}
	defer unix.Close(at)
	memory, err := diskRoom(at, Size(size))
	if err != nil {
		return Rates{}, err
	}
	doing("make a file in " + dir)
	fd, direct, err := namelessFile(at)
	if err != nil {
		return Rates{}, err
	}
	f := os.NewFile(uintptr(fd), dir) // not for polling: reads and writes block
	defer f.Close()
	// Room for all of it, where that can be had: what it costs to find it is not the disk's.
	if err := unix.Fallocate(fd, 0, 0, Size(size)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINTR) {
		return Rates{}, diskError("make room", err)
	}
	d := &diskRun{ctx: ctx, file: f, chunks: Size(size) / diskChunk}
	d.rates.Direct, d.rates.Memory = direct && !memory, memory
	return d.run(dir, writing, doing)
}

// diskRoom asks for what is free before anything is written, and whether the file
// system lies in memory.
func diskRoom(dir int, size int64) (memory bool, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return false, diskError("ask how much is free", err)
	}
	unit := uint64(max(st.Frsize, 1))
	total, free := clampBytes(st.Blocks, unit), clampBytes(st.Bavail, unit)
	if st.Flags&unix.ST_RDONLY != 0 {
		return false, diskError("write", unix.EROFS)
	}
	if total > 0 && free-size < total/10 {
		return false, &Error{Kind: DiskFull, Op: "ask how much is free", Err: fmt.Errorf("%d MiB of %d, too little to write %d and leave a tenth", free>>20, total>>20, size>>20)}
	}
	return int64(st.Type) == unix.TMPFS_MAGIC || int64(st.Type) == unix.RAMFS_MAGIC, nil
}

// clampBytes is a number of blocks in bytes. One with its sign bit set is none: root
// has taken what was kept for it.
func clampBytes(blocks, unit uint64) int64 {
	switch {
	case blocks>>63 != 0:
		return 0
	case blocks > math.MaxInt64/unit:
		return math.MaxInt64
	}
	return int64(blocks * unit)
}

// namelessFile makes a file without a name, written past the page cache if the file
// system can do that. One that cannot make such a file gets one whose name nobody
// guesses, which is taken away at once.
func namelessFile(dir int) (fd int, direct bool, err error) {
	for _, direct := range []int{unix.O_DIRECT, 0} {
		fd, err = unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|direct, 0o600)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) && direct == 0 {
			fd, err = unnamed(dir, direct)
		}
		if err == nil {
			return fd, direct != 0, nil
		}
		if !errors.Is(err, unix.EINVAL) { // which O_DIRECT gives that cannot be had
			break
		}
	}
	return -1, false, diskError("make a file", err)
}

func unnamed(dir, flags int) (int, error) {
	name := make([]byte, 12)
	_, _ = rand.Read(name) // it does not fail
	path := ".nhc-gpu-write-" + hex.EncodeToString(name)
	fd, err := unix.Openat(dir, path, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDWR|unix.O_CLOEXEC|flags, 0o600)
	if errors.Is(err, unix.EINVAL) {
		_ = unix.Unlinkat(dir, path, 0) // O_DIRECT is refused behind the making
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

// diskFile is what a run needs of a file.
type diskFile interface {
	WriteAt(b []byte, off int64) (int, error)
	ReadAt(b []byte, off int64) (int, error)
	Sync() error
}

// diskRun is one run.
type diskRun struct {
	ctx    context.Context
	file   diskFile
	chunks int64
	seed   [8]byte
	block  []byte // what each chunk holds but for the stamps of its pages

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
	d.rates.Write = megabytes(done, time.Since(start))
	if f, ok := d.file.(*os.File); ok {
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	doing("read from " + dir)
	start = time.Now()
	if _, err := d.each(done, func() bool { return false }, d.verify); err != nil {
		return Rates{}, err
	}
	d.rates.Read = megabytes(done, time.Since(start))
	return d.rates, nil
}

func megabytes(chunks int64, in time.Duration) float64 {
	return float64(chunks*diskChunk) / max(in.Seconds(), 1e-9) / 1e6
}

// each has chunks treated side by side, in order as far as that goes, until all are
// or it is late; one is treated at least. It says how many were: the first ones, with
// none left out. So a chunk that is taken is treated, and the clock is looked at before:
// behind it, another one may take the next chunk while this one is held up.
func (d *diskRun) each(chunks int64, late func() bool, do func(buf []byte, chunk int64) error) (int64, error) {
	var next, done atomic.Int64
	var all sync.WaitGroup
	errs := make([]error, diskWriters)
	for i := range errs {
		all.Go(func() {
			buf, err := unix.Mmap(-1, 0, diskChunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // O_DIRECT wants pages
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
	for _, err := range errs { // the first is that of the least writer: any will do
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

// stamp marks a page with where it belongs, and with the run.
func (d *diskRun) stamp(page []byte, at int64) {
	binary.LittleEndian.PutUint64(page, uint64(at))
	copy(page[8:diskStamp], d.seed[:])
}

func (d *diskRun) verify(buf []byte, chunk int64) error {
	clear(buf)
	if n, err := d.file.ReadAt(buf, chunk*diskChunk); errors.Is(err, io.EOF) {
		return &Error{Kind: DiskWrong, Op: fmt.Sprintf("read at byte %d", chunk*diskChunk+int64(n)), Err: errors.New("the file ends there, and was written further")}
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

// recordedDisk answers for a node that is a tree of files: its file /diskwrite is an
// object of directories, each with rates or with the kind of its error and its text.
// found is whether there is such a file.
func recordedDisk(h *probe.Host, dir string) (rates Rates, found bool, err error) {
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
