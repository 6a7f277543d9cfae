package probe

import (
	"os"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestReadTrusted(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{
		"good": "a = 1\n", "open": "a = 1\n", "dir/": "", "large": strings.Repeat("#", maxTrusted+1),
	}))
	for name, mode := range map[string]os.FileMode{"good": 0o664, "open": 0o666} {
		if err := os.Chmod(h.Path("/"+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/good":  "",
		"/none":  "read /none: no such file or directory",
		"/open":  "read /open: writable by others (mode 0666), want at most 0775",
		"/dir":   "read /dir: not a regular file",
		"/large": "read /large: 1048577 bytes, want at most 1048576",
	} {
		data, err := ReadTrusted(h, path)
		if probetest.Message(err) != want || (err == nil) != (string(data) == "a = 1\n") {
			t.Errorf("%s: %q, %v, want %q", path, data, err, want)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(h.Path("/good"), 4711, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadTrusted(h, "/good"); probetest.Message(err) != "read /good: owned by uid 4711, want root" {
		t.Error(err)
	}
}
