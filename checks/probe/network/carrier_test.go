package network

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestCarrier(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		files map[string]string
		want  Carrier
		fails bool
	}{
		{map[string]string{"ifindex": "13\n", "carrier_down_count": "3\n", "carrier_changes": "7\n"}, Carrier{Downs: 3, Known: true, Index: 13}, false},
		{map[string]string{"ifindex": "13\n", "carrier_changes": "7\n"}, Carrier{Downs: 3, Known: true, Index: 13}, false},
		{map[string]string{"ifindex": "13\n"}, Carrier{Index: 13}, false},
		{map[string]string{"ifindex": "13\n", "carrier_down_count": "-3\n"}, Carrier{Index: 13}, true},
		{map[string]string{"carrier_down_count": "3\n"}, Carrier{}, true},
	} {
		root := t.TempDir()
		for name, content := range c.files {
			p := filepath.Join(root, "sys/class/net/ib0", name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadCarrier(probe.NewHost(root), "ib0")
		if (err != nil) != c.fails || got != c.want {
			t.Errorf("%v: %+v, %v", c.files, got, err)
		}
	}
	if _, err := ReadCarrier(probe.NewHost(t.TempDir()), "ib0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an interface that is gone: %v", err)
	}
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "log"), []byte("one\ntwo\nthree\nfour"), 0o644); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int64]string{100: "one two three four", 18: "one two three four", 17: "two three four", 11: "three four", 6: "four", 4: "", 0: "one two three four"} {
		var got []string
		err := probe.NewHost(root).LastLines("/log", most, func(line []byte) bool { got = append(got, string(line)); return true })
		if text := strings.Join(got, " "); err != nil || text != want {
			t.Errorf("the last %d bytes: %q, %v, want %q", most, text, err, want)
		}
	}
}
