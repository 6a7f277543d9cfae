// Package deadfs mounts a file system that can stop answering, like a dead file server: each
// process that uses it then sleeps and does not react to signals.
package deadfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FS is a FUSE file system that shows a directory. Its mount ends with the mount namespace, which
// should belong to the test.
type FS struct {
	// The file system stops answering at the first of these requests, and then closes Dead.
	DiesAfter []Op

	dev  int
	dead atomic.Bool
	last atomic.Uint32 // an errno, see Fail
	kept atomic.Bool   // see Keep
	Dead chan struct{}
	once sync.Once

	mu    sync.Mutex
	paths map[uint64]string
	nodes map[string]uint64
	files map[uint64]int
	next  uint64
}

// Op is a request of FUSE, see include/uapi/linux/fuse.h.
type Op uint32

// These are the supported requests.
const (
	opLookup  Op = 1
	opForget  Op = 2
	opGetattr Op = 3
	opSetattr Op = 4
	opMkdir   Op = 9
	opUnlink  Op = 10
	opRmdir   Op = 11
	opRename  Op = 12
	Open      Op = 14
	Read      Op = 15
	Write     Op = 16
	opStatfs  Op = 17
	Release   Op = 18
	opFsync   Op = 20
	opInit    Op = 26
	opOpendir Op = 27
	Readdir   Op = 28
	opReldir  Op = 29
	Create    Op = 35
	opForgets Op = 42
	opRename2 Op = 45
)

// Mount shows the directory backing at dir.
func Mount(backing, dir string, diesAfter ...Op) (*FS, error) {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev)
	if err := unix.Mount("dead", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		unix.Close(dev)
		return nil, fmt.Errorf("mount fuse on %s: %w", dir, err)
	}
	fs := &FS{DiesAfter: diesAfter, dev: dev, Dead: make(chan struct{}), next: 2,
		paths: map[uint64]string{1: backing}, nodes: map[string]uint64{backing: 1}, files: map[uint64]int{}}
	go fs.serve()
	return fs, nil
}

// Die makes the file system stop answering.
func (fs *FS) Die() {
	fs.dead.Store(true)
	fs.once.Do(func() { close(fs.Dead) })
}

// Fail makes the file system answer each request with an error.
func (fs *FS) Fail(errno unix.Errno) { fs.last.Store(uint32(errno)) }

// Keep makes the kernel cache what it learns from now on, for an hour.
func (fs *FS) Keep() { fs.kept.Store(true) }

var le = binary.LittleEndian

func (fs *FS) serve() {
	buf := make([]byte, 1<<20)
	for {
		n, err := unix.Read(fs.dev, buf)
		if err == unix.EINTR || err == unix.EAGAIN || err == unix.ENOENT {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		op, node := Op(le.Uint32(buf[4:])), le.Uint64(buf[16:])
		if op == opForget || op == opForgets || fs.dead.Load() && op != opInit {
			continue
		}
		body, errno := fs.answer(op, node, buf[40:n])
		if last := unix.Errno(fs.last.Load()); last != 0 && op != opInit {
			body, errno = nil, last
		}
		reply := make([]byte, 16, 16+len(body))
		le.PutUint32(reply, uint32(16+len(body)))
		le.PutUint32(reply[4:], uint32(-int32(errno)))
		copy(reply[8:16], buf[8:16])
		_, _ = unix.Write(fs.dev, append(reply, body...))
		for _, last := range fs.DiesAfter {
			if op == last && errno == 0 {
				fs.Die()
			}
		}
	}
}

// answer carries out a request on the backing directory. The kernel copes without unsupported
// requests.
func (fs *FS) answer(op Op, node uint64, in []byte) (body []byte, errno unix.Errno) {
	path := fs.path(node)
	switch op {
	case opInit:
		body = make([]byte, 64)
		le.PutUint32(body, 7)
		le.PutUint32(body[4:], 31)
		le.PutUint32(body[20:], 128<<10) // max_write
		return body, 0
	case opLookup:
		return fs.entry(filepath.Join(path, name(in)))
	case opGetattr:
		return fs.attr(path)
	case opSetattr:
		return fs.setattr(path, in)
	case opMkdir:
		path = filepath.Join(path, name(in[8:]))
		if err := unix.Mkdir(path, le.Uint32(in)); err != nil {
			return nil, code(err)
		}
		return fs.entry(path)
	case opUnlink:
		return nil, code(unix.Unlink(filepath.Join(path, name(in))))
	case opRmdir:
		return nil, code(unix.Rmdir(filepath.Join(path, name(in))))
	case opRename, opRename2:
		return nil, fs.rename(op, path, in)
	case Open:
		return fs.open(path, int(le.Uint32(in))&^(unix.O_CREAT|unix.O_EXCL), 0)
	case Create:
		path = filepath.Join(path, name(in[16:]))
		handle, errno := fs.open(path, int(le.Uint32(in))|unix.O_CREAT, le.Uint32(in[4:]))
		if errno != 0 {
			return nil, errno
		}
		entry, errno := fs.entry(path)
		return append(entry, handle...), errno
	case Read:
		data := make([]byte, le.Uint32(in[16:]))
		n, err := unix.Pread(fs.file(le.Uint64(in)), data, int64(le.Uint64(in[8:])))
		return data[:max(n, 0)], code(err)
	case Write:
		n, err := unix.Pwrite(fs.file(le.Uint64(in)), in[40:40+le.Uint32(in[16:])], int64(le.Uint64(in[8:])))
		return le.AppendUint64(nil, uint64(max(n, 0))), code(err)
	case opStatfs:
		body = make([]byte, 80)
		le.PutUint64(body, 1<<20)
		le.PutUint64(body[8:], 1<<19)
		le.PutUint64(body[16:], 1<<19)
		le.PutUint32(body[40:], 4096)
		le.PutUint32(body[44:], 255)
		return body, 0
	case Release:
		fs.mu.Lock()
		defer fs.mu.Unlock()
		unix.Close(fs.files[le.Uint64(in)])
		delete(fs.files, le.Uint64(in))
		return nil, 0
	case opFsync, opReldir:
		return nil, 0
	case opOpendir:
		return make([]byte, 16), 0
	case Readdir:
		return fs.readdir(path, le.Uint64(in[8:]))
	}
	return nil, unix.ENOSYS // includes flush and access, as with a file server
}

func name(in []byte) string {
	text, _, _ := bytes.Cut(in, []byte{0})
	return string(text)
}

func code(err error) unix.Errno {
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return unix.EIO
	}
	return errno
}

func (fs *FS) path(node uint64) string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.paths[node]
}

func (fs *FS) file(handle uint64) int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.files[handle]
}

// attributes are struct fuse_attr.
func attributes(st *unix.Stat_t) []byte {
	b := make([]byte, 88)
	for i, v := range []uint64{st.Ino, uint64(st.Size), uint64(st.Blocks), uint64(st.Atim.Sec), uint64(st.Mtim.Sec), uint64(st.Ctim.Sec)} {
		le.PutUint64(b[8*i:], v)
	}
	for i, v := range []uint32{0, 0, 0, st.Mode, uint32(st.Nlink), st.Uid, st.Gid, 0, 4096, 0} {
		le.PutUint32(b[48+4*i:], v)
	}
	return b
}

// valid is how long the kernel may cache an answer, seconds. It normally sends every request.
func (fs *FS) valid() uint64 {
	if fs.kept.Load() {
		return 3600
	}
	return 0
}

// attr returns struct fuse_attr_out.
func (fs *FS) attr(path string) ([]byte, unix.Errno) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, code(err)
	}
	return slices.Concat(le.AppendUint64(nil, fs.valid()), make([]byte, 8), attributes(&st)), 0
}

// entry returns struct fuse_entry_out.
func (fs *FS) entry(path string) ([]byte, unix.Errno) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, code(err)
	}
	fs.mu.Lock()
	node := fs.nodes[path]
	if node == 0 {
		node = fs.next
		fs.next++
		fs.nodes[path], fs.paths[node] = node, path
	}
	fs.mu.Unlock()
	b := make([]byte, 40)
	le.PutUint64(b, node)
	le.PutUint64(b[16:], fs.valid())
	le.PutUint64(b[24:], fs.valid())
	return append(b, attributes(&st)...), 0
}

func (fs *FS) setattr(path string, in []byte) ([]byte, unix.Errno) {
	valid := le.Uint32(in)
	var err error
	if valid&1 != 0 {
		err = unix.Chmod(path, le.Uint32(in[68:])&0o7777)
	}
	if valid&8 != 0 {
		err = errors.Join(err, unix.Truncate(path, int64(le.Uint64(in[16:]))))
	}
	if err != nil {
		return nil, code(err)
	}
	return fs.attr(path)
}

func (fs *FS) rename(op Op, dir string, in []byte) unix.Errno {
	head := 8
	if op == opRename2 {
		head = 16
	}
	from := name(in[head:])
	to := filepath.Join(fs.path(le.Uint64(in)), name(in[head+len(from)+1:]))
	from = filepath.Join(dir, from)
	if err := unix.Rename(from, to); err != nil {
		return code(err)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if node := fs.nodes[from]; node != 0 {
		delete(fs.nodes, from)
		fs.nodes[to], fs.paths[node] = node, to
	}
	return 0
}

func (fs *FS) open(path string, flags int, mode uint32) ([]byte, unix.Errno) {
	fd, err := unix.Open(path, flags&^unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, code(err)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	handle := fs.next
	fs.next++
	fs.files[handle] = fd
	return append(le.AppendUint64(nil, handle), make([]byte, 8)...), 0
}

// readdir returns a list of struct fuse_dirent, complete in one answer.
func (fs *FS) readdir(path string, offset uint64) (body []byte, errno unix.Errno) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, code(err)
	}
	for i, e := range entries {
		if uint64(i) < offset {
			continue
		}
		body = le.AppendUint64(body, uint64(i)+100)
		body = le.AppendUint64(body, uint64(i)+1)
		body = le.AppendUint32(body, uint32(len(e.Name())))
		body = le.AppendUint32(body, 0) // DT_UNKNOWN
		body = append(body, e.Name()...)
		body = append(body, make([]byte, (8-len(body)%8)%8)...)
	}
	return body, 0
}
