package jobscan

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// shmListed lists the files of a user in /dev/shm; open files have a star.
func shmListed(t *testing.T, h *probe.Host, uid int, below string) (names []string) {
	t.Helper()
	files, _, err := ShmFiles(h, uint32(uid), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name, below) {
			continue
		}
		if f.Opened {
			f.Name += "*"
		}
		names = append(names, strings.TrimPrefix(f.Name, below))
	}
	slices.Sort(names)
	return names
}

// Tests with files in /dev/shm are not parallel: a listing holds each file for a moment.

func TestShmFiles(t *testing.T) {
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"dev/shm/nccl-1": "12345", "dev/shm/sub/deep/psm2": "1", "dev/shm/held": "1", "dev/shm/mapped": "1", "dev/shm/empty/": "",
		"outside/file": "1", "proc/8/maps": "", "proc/self": "",
	}))
	for name, target := range map[string]string{
		"dev/shm/link": h.Path("/outside/file"), "dev/shm/dirlink": h.Path("/outside"), "dev/shm/dangling": "nowhere",
		"proc/7/fd/3": h.Path("/dev/shm/held"), "proc/7/fd/4": "/else/nccl-1", "proc/7/fd/5": "socket:[9]", "proc/8/fd/0": "/dev/null",
	} {
		probetest.Mkdir(t, filepath.Dir(h.Path("/"+name)))
		if err := os.Symlink(target, h.Path("/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(h.Path("/dev/shm/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(h.Path("/dev/shm/mapped"), &st); err != nil {
		t.Fatal(err)
	}
	maps := "7f00-7f01 r-xp 00000000 00:00 0 \nshort\n7f02-7f03 rw-s 00000000 " + devText(st.Dev) + " " + itoa(st.Ino) + "    /dev/shm/mapped (deleted)\n"
	if err := os.WriteFile(h.Path("/proc/7/maps"), []byte(maps), 0o600); err != nil {
		t.Fatal(err)
	}
	uid := os.Geteuid()
	if got, want := shmListed(t, h, uid, ""), []string{"held*", "mapped*", "nccl-1", "sub/deep/psm2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	files, _, _ := ShmFiles(h, uint32(uid), time.Time{})
	for _, f := range files {
		if age := time.Since(f.Made); age < -time.Minute || age > time.Hour || f.Mode != 0o644 || int(f.UID) != uid {
			t.Errorf("%+v", f)
		}
		if err := RemoveShm(h, f); probetest.Message(err) != "a recorded node cannot be changed" {
			t.Errorf("removed: %v", err)
		}
	}
	if got := shmListed(t, h, uid+1, ""); got != nil {
		t.Errorf("of somebody else: %q", got)
	}
	if files, _, err := ShmFiles(probe.NewHost(probetest.Tree(t, nil)), 0, time.Time{}); files != nil || err != nil {
		t.Errorf("no /dev/shm: %v, %v", files, err)
	}
	if _, _, err := ShmFiles(probe.NewHost(probetest.Tree(t, map[string]string{"dev/shm": ""})), 0, time.Time{}); probetest.Message(err) != "read /dev/shm: not a directory" {
		t.Errorf("unreadable: %v", err)
	}
	if _, _, err := ShmFiles(probe.NewHost(probetest.Tree(t, map[string]string{"dev/shm/x": "", "proc/7/fd/": "", "proc/7/maps/": ""})), uint32(uid), time.Time{}); probetest.Message(err) != "read /proc/7/maps: is a directory" {
		t.Errorf("a process that cannot be looked into: %v", err)
	}
}

func devText(dev uint64) string {
	const digits = "0123456789abcdef"
	hex := func(n uint32) string { return string([]byte{digits[n>>4&15], digits[n&15]}) }
	return hex(unix.Major(dev)) + ":" + hex(unix.Minor(dev))
}

func itoa(n uint64) string {
	var b []byte
	for ; n > 0; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(b)
}

// shmDirOf creates a user's directory in this machine's /dev/shm.
func shmDirOf(t *testing.T, uid int) string {
	t.Helper()
	need.Root(t, "files of other users")
	dir, err := os.MkdirTemp("/dev/shm", "nhc-gpu-test-")
	if err != nil {
		need.Skip(t, "/dev/shm cannot be used: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, uid, -1); err != nil {
		t.Fatal(err)
	}
	return dir
}

func shmFile(t *testing.T, path string, uid int) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, -1); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveShm(t *testing.T) {
	h, uid := probe.NewHost("/"), plainUser()
	dir := shmDirOf(t, uid)
	below := filepath.Base(dir) + "/"
	for _, name := range []string{"left", "open", "mapped", "moved", "swapped", "opened later"} {
		shmFile(t, filepath.Join(dir, name), uid)
	}
	hold := func(name string) *os.File {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	hold("open")
	m := hold("mapped")
	data, err := unix.Mmap(int(m.Fd()), 0, 1, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(data) }()
	m.Close()
	if got, want := shmListed(t, h, uid, below), []string{"left", "mapped*", "moved", "open*", "opened later", "swapped"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	files, _, err := ShmFiles(h, uint32(uid), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	hold("opened later")
	target := filepath.Join(dir, "target")
	if err := errors.Join(os.Rename(filepath.Join(dir, "moved"), target), os.Symlink(target, filepath.Join(dir, "moved")),
		os.Remove(filepath.Join(dir, "swapped"))); err != nil {
		t.Fatal(err)
	}
	shmFile(t, filepath.Join(dir, "swapped"), uid)
	want := map[string]error{"left": nil, "open": errOpened, "mapped": errOpened, "moved": unix.ELOOP, "swapped": errChanged, "opened later": errOpened}
	if !leasesReliable() {
		want["open"], want["mapped"], want["opened later"] = nil, nil, nil
	}
	for _, f := range files {
		name, ok := strings.CutPrefix(f.Name, below)
		if !ok {
			continue
		}
		if err := RemoveShm(h, f); !errors.Is(err, want[name]) {
			t.Errorf("%s: %v, want %v", name, err, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not tried: %v", want)
	}
	if _, err := os.Lstat(filepath.Join(dir, "left")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	for _, name := range []string{"target", "swapped", "open"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil && leasesReliable() {
			t.Error(err)
		}
	}
}

// A program that looks at a file for a moment does not keep it from being removed.
func TestRemoveShmSeen(t *testing.T) {
	h, uid := probe.NewHost("/"), plainUser()
	file := filepath.Join(shmDirOf(t, uid), "x")
	shmFile(t, file, uid)
	files, _, err := ShmFiles(h, uint32(uid), time.Time{})
	at := slices.IndexFunc(files, func(f ShmFile) bool { return strings.HasSuffix(file, "/"+f.Name) })
	if err != nil || at < 0 {
		t.Fatalf("%s is not in the list: %v", file, err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(removePause/2, func() { f.Close() })
	if err := RemoveShm(h, files[at]); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// A file that a user could not remove is not removed for that user.
func TestRemoveShmHasNoMoreRights(t *testing.T) {
	need.Root(t, "files of other users")
	h, uid := probe.NewHost("/"), plainUser()
	dir := shmDirOf(t, 0)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	shmFile(t, filepath.Join(dir, "x"), uid)
	files, _, err := ShmFiles(h, uint32(uid), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range files {
		if f.Name == filepath.Base(dir)+"/x" {
			found = true
			if err := RemoveShm(h, f); !errors.Is(err, unix.EACCES) {
				t.Errorf("%v, want %v", err, unix.EACCES)
			}
		}
	}
	if !found {
		t.Error("it is not listed")
	}
	if now, _ := unix.SetfsuidRetUid(-1); now != 0 {
		t.Errorf("this thread has the rights of uid %d", now)
	}
}
