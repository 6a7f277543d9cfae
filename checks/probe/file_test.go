package probe

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestTestFile(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"reg": "x", "empty": "", "exec": "x", "special": "x", "dir/": "", "read": "x"}))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(h.Path("/exec"), 0o755))
	must(unix.Chmod(h.Path("/special"), 0o7644))
	must(os.Symlink("reg", h.Path("/link")))
	must(os.Symlink("nowhere", h.Path("/dangling")))
	must(unix.Mkfifo(h.Path("/fifo"), 0o600))
	now := time.Now()
	must(os.Chtimes(h.Path("/read"), now, now.Add(-time.Hour)))
	must(os.Chtimes(h.Path("/reg"), now.Add(-time.Hour), now))
	// A socket's name may have 108 bytes at most, which a temporary directory can exceed.
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", h.Path("/sock"))
	must(err)
	t.Cleanup(func() { _ = l.Close() })
	for _, c := range []struct{ ops, file, want string }{
		{file: "/reg", want: "aefrswOGN"},
		{file: "/empty", want: "aefrwOGN"},
		{file: "/exec", want: "aefrswxOG"},
		{file: "/special", want: "aefrswguk"},
		{file: "/dir", want: "aderwxsOG"},
		{file: "/link", want: "aefrswOGNhL"},
		{file: "/dangling", want: "hL"},
		{file: "/fifo", want: "aeprwOG"},
		{file: "/sock", want: "aeSrwxOG"},
		{file: "/none"},
		{file: ""},
		{file: "12345"}, // no such descriptor
	} {
		for _, op := range []byte(FileTests) {
			want := false
			for _, w := range []byte(c.want) {
				want = want || w == op
			}
			if ignored(c.file, op) {
				continue
			}
			if got := TestFile(h, op, c.file); got != want {
				t.Errorf("-%c %q: %v, want %v", op, c.file, got, want)
			}
		}
	}
	for file, op := range map[string]byte{"/dev/null": 'c', "/": 'd'} {
		if !TestFile(NewHost("/"), op, file) {
			t.Errorf("-%c %s: false", op, file)
		}
	}
	if TestFile(h, '?', "/reg") {
		t.Error("an unknown operator is true")
	}
}

// ignored removes values that depend on clock and user.
func ignored(file string, op byte) bool {
	switch op {
	case 'N':
		return file != "/reg" && file != "/read"
	case 'O', 'G':
		return file == "/special"
	case 's':
		return file == "/dir"
	}
	return false
}

func TestMakeDir(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"file": ""}))
	if err := MakeDir(h, "/a/b"); err != nil || !TestFile(h, 'd', "/a/b") {
		t.Errorf("MakeDir(/a/b): %v", err)
	}
	for _, path := range []string{"", "/file", "/file/x"} {
		if err := MakeDir(h, path); err == nil {
			t.Errorf("MakeDir(%q) gave no error", path)
		}
	}
	Automount(h, "/a") // only must not fail
}
