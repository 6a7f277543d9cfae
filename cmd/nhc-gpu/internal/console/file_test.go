package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, err := range map[string]error{
		"old": os.WriteFile(at("old"), []byte("a longer text\n"), 0o600), "root's": os.WriteFile(at("root's"), []byte("kept"), 0o600),
		"hard": os.Link(at("old"), at("hard")), "fifo": unix.Mkfifo(at("fifo"), 0o600), "link": os.Symlink(at("root's"), at("link")),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	text := func(s string) func(*os.File) error {
		return func(f *os.File) error { _, err := f.WriteString(s); return err }
	}
	for name, want := range map[string]string{"hard": "a hard link", "fifo": "no such device", "link": "too many levels of symbolic links", "none/x": "no such file"} {
		if err := WriteFile(at(name), 0o600, false, text("x")); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), at(name)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := os.Remove(at("hard")); err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		name, text, want string
		atEnd            bool
	}{{"old", "b\n", "b\n", false}, {"old", "c\n", "b\nc\n", true}, {"new", "d\n", "d\n", true}} {
		if err := WriteFile(at(w.name), 0o600, w.atEnd, text(w.text)); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(at(w.name)); err != nil || string(got) != w.want {
			t.Errorf("%s: %q, %v, want %q", w.name, got, err, w.want)
		}
	}
	if got, err := os.ReadFile(at("root's")); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
}
