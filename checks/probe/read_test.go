package probe

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestReadValue(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"one": "4: ACTIVE\n", "empty": "", "long": strings.Repeat("x", 1000), "dir/": ""}))
	for _, c := range []struct{ path, want, err string }{
		{path: "/one", want: "4: ACTIVE"},
		{path: "/empty"},
		{path: "/long", want: strings.Repeat("x", ValueSize)},
		{path: "/dir", err: "read /dir: is a directory"},
		{path: "/none", err: "read /none: no such file or directory"},
	} {
		got, err := h.ReadValue(c.path)
		if got != c.want || probetest.Message(err) != c.err {
			t.Errorf("readValue(%s) = %q, %v; want %q, %q", c.path, got, err, c.want, c.err)
		}
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcdef", 20000)
	h := NewHost(probetest.Tree(t, map[string]string{"large": large, "empty": ""}))
	for path, want := range map[string]string{"/large": large, "/empty": ""} {
		got, err := h.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("readFile(%s) = %d bytes, %v; want %d", path, len(got), err, len(want))
		}
	}
	if _, err := h.ReadFile("/none"); probetest.Message(err) != "read /none: no such file or directory" {
		t.Errorf("readFile(/none): %v", err)
	}
}
