package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func soon() time.Time { return time.Now().Add(time.Minute) }

// wantDisk fails the test unless err has that kind.
func wantDisk(t *testing.T, err error, kind Kind, text string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != kind || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v (%T), want %s, %q", err, err, kind, text)
	}
}

// The file systems are the tests' own, because those of the machine may be too full to write to.
func TestDiskWriteHere(t *testing.T) {
	t.Parallel()
	need.Root(t, "to mount")
	dir := loopMount(t, "tmpfs", "size=64m", 0)
	var doing []string
	r, err := Write(t.Context(), probe.NewHost("/"), dir, 10<<20, soon(), func(what string) { doing = append(doing, what) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if r.Write <= 0 || r.Read <= 0 || r.Written != 12<<20 || r.Longest <= 0 {
		t.Errorf("rates %+v", r)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("left in the directory: %v, %v", list, err)
	}
	if want := "open " + dir + "|make a file in " + dir + "|write to " + dir + "|fsync in " + dir + "|read from " + dir; strings.Join(doing, "|") != want {
		t.Errorf("doing %q, want %q", doing, want)
	}
}

func TestDiskWriteErrors(t *testing.T) {
	t.Parallel()
	need.Root(t, "to mount")
	h := probe.NewHost("/")
	dir := loopMount(t, "tmpfs", "size=512m", 0)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Write(t.Context(), h, file, 1, soon(), nil)
	wantDisk(t, err, DiskNoDir, "open: not a directory")
	_, err = Write(t.Context(), h, "/nowhere", 1, soon(), nil)
	wantDisk(t, err, DiskNoDir, "open: no such file")
	_, err = Write(t.Context(), h, dir, 1<<60, soon(), nil)
	wantDisk(t, err, DiskFull, "too little to write")
	_, err = Write(t.Context(), h, "/proc", 1, soon(), nil)
	if err == nil {
		t.Error("a file was written to /proc")
	}
	stopped := errors.New("a job came")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(stopped)
	if _, err := Write(ctx, h, dir, 64<<20, soon(), nil); !errors.Is(err, stopped) {
		t.Errorf("stopped: %v", err)
	}
	r, err := Write(t.Context(), h, dir, 256<<20, time.Now(), nil)
	if err != nil || r.Written <= 0 || r.Written > diskWriters*diskChunk {
		t.Errorf("no time to write: %+v, %v", r, err)
	}
}

// badFile is a file in memory with faults.
type badFile struct {
	mu       sync.Mutex
	data     []byte
	writeErr map[int64]error
	readErr  map[int64]error
	syncErr  error
	flip     int64 // a byte that changes on the disk; -1: none
	most     int64 // its length, whatever was written; 0: unlimited
	delay    time.Duration
}

func (f *badFile) WriteAt(b []byte, off int64) (int, error) {
	time.Sleep(f.delay)
	if err := f.writeErr[off]; err != nil {
		return 0, &os.PathError{Op: "write", Path: "/scratch", Err: err}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if need := int(off) + len(b); need > len(f.data) {
		f.data = append(f.data, make([]byte, need-len(f.data))...)
	}
	copy(f.data[off:], b)
	return len(b), nil
}

func (f *badFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.readErr[off]; err != nil {
		return 0, &os.PathError{Op: "read", Path: "/scratch", Err: err}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	data := bytes.Clone(f.data)
	if f.most > 0 {
		data = data[:f.most]
	}
	if f.flip >= 0 {
		data[f.flip] ^= 0x10
	}
	n := copy(b, data[min(off, int64(len(data))):])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *badFile) Sync() error { return f.syncErr }

func TestDiskFaults(t *testing.T) {
	t.Parallel()
	run := func(f *badFile) (Rates, error) {
		d := &diskRun{ctx: t.Context(), file: f, chunks: 6}
		return d.run("/scratch", soon(), func(string) {})
	}
	if r, err := run(&badFile{flip: -1, delay: time.Millisecond}); err != nil || r.Longest < time.Millisecond {
		t.Errorf("a good file: %+v, %v", r, err)
	}
	at := func(chunk int64, err error) map[int64]error { return map[int64]error{chunk * diskChunk: err} }
	for _, c := range []struct {
		file *badFile
		kind Kind
		text string
	}{
		{&badFile{flip: -1, writeErr: at(3, unix.EIO)}, DiskIO, "write at byte 12582912: input/output error"},
		{&badFile{flip: -1, writeErr: at(0, unix.ENOSPC)}, DiskFull, "write at byte 0: no space left"},
		{&badFile{flip: -1, writeErr: at(1, unix.EDQUOT)}, DiskFull, "disk quota exceeded"},
		{&badFile{flip: -1, writeErr: at(1, unix.EROFS)}, DiskReadOnly, "read-only"},
		{&badFile{flip: -1, writeErr: at(1, unix.EPERM)}, DiskOther, "not permitted"},
		{&badFile{flip: -1, syncErr: unix.EIO}, DiskIO, "fsync: input/output error"},
		{&badFile{flip: -1, readErr: at(5, unix.EIO)}, DiskIO, "read at byte 20971520: input/output error"},
		{&badFile{flip: 7}, DiskWrong, "read at byte 7: wrote 0x"},
		{&badFile{flip: 4096*2000 + 4095}, DiskWrong, "read at byte 8196095: wrote 0x"},
		{&badFile{flip: -1, most: 5*diskChunk + 5}, DiskWrong, "read at byte 20971525: the file ends here"},
	} {
		_, err := run(c.file)
		wantDisk(t, err, c.kind, c.text)
	}
	// This block was written to the wrong position.
	d := &diskRun{ctx: t.Context(), file: &badFile{flip: -1}, chunks: 2, block: make([]byte, diskChunk)}
	buf := make([]byte, diskChunk)
	if err := d.write(buf, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.file.WriteAt(buf, diskChunk); err != nil {
		t.Fatal(err)
	}
	wantDisk(t, d.verify(buf, 1), DiskWrong, "read at byte 4194306")
}

// A writer that is delayed beyond the deadline leaves no gap: the first chunks are complete,
// whichever writer notices the deadline first.
func TestDiskChunksHaveNoHole(t *testing.T) {
	t.Parallel()
	for finds := range int64(20) {
		var looks atomic.Int64
		late := func() bool { return looks.Add(1) == finds+1 } // one of them does, the others looked before
		var mu sync.Mutex
		treated := map[int64]bool{}
		d := &diskRun{ctx: t.Context()}
		done, err := d.each(64, late, func(_ []byte, chunk int64) error {
			mu.Lock()
			defer mu.Unlock()
			treated[chunk] = true
			return nil
		})
		if err != nil || done < 1 || int64(len(treated)) != done {
			t.Fatalf("%d done, %d treated, %v", done, len(treated), err)
		}
		for chunk := range done {
			if !treated[chunk] {
				t.Errorf("late at look %d: chunk %d of the first %d is a hole", finds, chunk, done)
			}
		}
	}
}

// loopMount mounts a file system of some MiB.
func loopMount(t *testing.T, kind, options string, mib int64) string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, "at")
	run := func(words ...string) {
		t.Helper()
		need.Program(t, words[0])
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			need.Skip(t, "cannot %s here: %v: %s", words[0], err, out)
		}
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	switch kind {
	case "tmpfs":
		run("mount", "-t", "tmpfs", "-o", options, "nhc-gpu-test", at)
	default:
		image := filepath.Join(dir, "image")
		if err := os.WriteFile(image, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(image, mib<<20); err != nil {
			t.Fatal(err)
		}
		run("mkfs."+kind, "-q", image)
		run("mount", "-o", "loop,"+options, image, at)
	}
	t.Cleanup(func() { _ = exec.Command("umount", at).Run() })
	return at
}

func TestDiskWriteExt4(t *testing.T) {
	t.Parallel()
	need.Root(t, "to mount")
	h := probe.NewHost("/")
	at := loopMount(t, "ext4", "rw", 64)
	r, err := Write(t.Context(), h, at, 16<<20, soon(), nil)
	t.Logf("ext4: %+v, %v", r, err)
	if err != nil || !r.Direct {
		t.Errorf("ext4: %+v, %v", r, err)
	}
	_, err = Write(t.Context(), h, at, 60<<20, soon(), nil)
	wantDisk(t, err, DiskFull, "read the free space")
	if list, err := os.ReadDir(at); err != nil || len(list) > 1 { // lost+found
		t.Errorf("left there: %v, %v", list, err)
	}
	ro := loopMount(t, "ext4", "ro", 64)
	_, err = Write(t.Context(), h, ro, 4<<20, soon(), nil)
	wantDisk(t, err, DiskReadOnly, "write: read-only file system")
}

func TestDiskWriteTmpfs(t *testing.T) {
	t.Parallel()
	need.Root(t, "to mount")
	r, err := Write(t.Context(), probe.NewHost("/"), loopMount(t, "tmpfs", "size=64m", 0), 8<<20, soon(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Memory || r.Direct { // some kernels accept O_DIRECT for it
		t.Errorf("tmpfs: %+v", r)
	}
}

// Some file systems cannot create a file without a name, such as vfat and NFS.
func TestDiskWriteNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	fd, err := createUnlinked(at, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("it has a name: %v, %v", list, err)
	}
	if _, err := unix.Pwrite(fd, []byte("x"), 0); err != nil {
		t.Error(err)
	}
}

func TestRecordedDisk(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	text := `{"/scratch": {"write": 2500.5, "read": 3000, "longest": 4000000, "written": 4194304, "direct": true}, "/bad": {"kind": "io", "text": "input/output error"}}`
	if err := os.WriteFile(filepath.Join(root, "diskwrite"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost(root)
	if r, err := Write(t.Context(), h, "/scratch", 1, soon(), nil); err != nil || r.Write != 2500.5 || r.Longest != 4*time.Millisecond || !r.Direct {
		t.Errorf("%+v, %v", r, err)
	}
	_, err := Write(t.Context(), h, "/bad", 1, soon(), nil)
	wantDisk(t, err, DiskIO, "write at byte 4194304: input/output error")
	_, err = Write(t.Context(), h, "/none", 1, soon(), nil)
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != DiskNoDir {
		t.Errorf("of a directory that is not recorded: %v", err)
	}
}
