package probe

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// linesOf collects the lines of a file.
func linesOf(h *Host, path string) (lines []string, err error) {
	err = h.Lines(path, func(line []byte) bool {
		lines = append(lines, string(line))
		return true
	})
	return lines, err
}

func TestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxLine-1)
	h := NewHost(probetest.Tree(t, map[string]string{
		"a":    "one\n\n two\r\nthree",
		"e":    "",
		"n":    "\n",
		"long": "a\n" + long + "\nb\n" + long + "\n" + long,
		"d/":   "",
		"over": "a\n" + long + "xx",
	}))
	for path, want := range map[string][]string{
		"/a":    {"one", "", " two\r", "three"},
		"/e":    nil,
		"/n":    {""},
		"/long": {"a", long, "b", long, long},
	} {
		got, err := linesOf(h, path)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d lines %.40q, %v; want %d", path, len(got), got, err, len(want))
		}
	}
	for path, want := range map[string]string{
		"/none": "read /none: no such file or directory",
		"":      "read : no such file or directory",
		"/d":    "read /d: is a directory",
		"/a/b":  "read /a/b: not a directory",
		"/over": "read /over: no lines: a line of more than 1048576 bytes",
	} {
		if _, err := linesOf(h, path); probetest.Message(err) != want {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
	n := 0
	if err := h.Lines("/a", func([]byte) bool { n++; return n < 2 }); err != nil || n != 2 {
		t.Errorf("ended after two: %d lines, %v", n, err)
	}
}

// TestLinesOfPipe checks that a pipe is read to its end, if it has one, and that neither opening
// nor reading one blocks forever.
func TestLinesOfPipe(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"x/": ""}))
	for _, name := range []string{"/idle", "/fed", "/mute"} {
		if err := unix.Mkfifo(h.Path(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := linesOf(h, "/idle"); !errors.Is(err, ErrNoLines) || probetest.Message(err) != "read /idle: no lines: a FIFO without a writer" {
		t.Errorf("no one writes: %v", err)
	}
	fed := func() ([]string, error) {
		f, err := os.OpenFile(h.Path("/fed"), os.O_RDWR, 0) // does not wait for a reader
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString("one\ntw")
		written := make(chan error)
		go func() {
			time.Sleep(20 * time.Millisecond)
			_, err := f.WriteString("o\n")
			written <- errors.Join(err, f.Close())
		}()
		got, err := linesOf(h, "/fed")
		return got, errors.Join(err, <-written)
	}
	got, err := fed()
	for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); { // a busy machine lets the writer wait
		got, err = fed()
	}
	if err != nil || !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("lines of a pipe: %q, %v", got, err)
	}
	mute, err := os.OpenFile(h.Path("/mute"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	if _, err := linesOf(h, "/mute"); probetest.Message(err) != "read /mute: no lines: a FIFO without data for 1s" {
		t.Errorf("a writer that says nothing: %v", err)
	}
	if _, err := linesOf(NewHost("/"), "/dev/zero"); !errors.Is(err, ErrNoLines) {
		t.Errorf("/dev/zero: %v", err)
	}
}

func TestLinesOfSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") // the name of a socket has 108 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, "s")}); err != nil {
		t.Fatal(err)
	}
	if _, err := linesOf(NewHost(dir), "/s"); !errors.Is(err, unix.ENXIO) {
		t.Errorf("socket: %v", err)
	}
}

// FuzzLines checks that the lines joined by newlines are the file.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\n\nb"), uint16(1))
	f.Add([]byte("\n\x00\n"), uint16(40000))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, times uint16) {
		data = bytes.Repeat(data, 1+int(times)%100)
		if len(data) >= MaxLine {
			return
		}
		file, err := os.CreateTemp(dir, "f")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file.Name())
		_, err = file.Write(data)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		var got []byte
		err = NewHost("/").Lines(file.Name(), func(line []byte) bool {
			got = append(append(got, line...), '\n')
			return true
		})
		if len(data) == 0 || data[len(data)-1] != '\n' {
			got = bytes.TrimSuffix(got, []byte("\n"))
		}
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%q: read as %q, %v", data, got, err)
		}
	})
}
