package worker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

const nobody = 65534

// A user who controls the directory of a log can make root write only to a new file.
func TestLogInSharedDirectory(t *testing.T) {
	need.Root(t, "the directories belong to other users")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	base := filepath.Join("/", t.TempDir())
	for dir := base; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		must(os.Chmod(dir, 0o755))
	}
	victim := filepath.Join(base, "victim")
	for _, shared := range []struct {
		name  string
		owner int
		mode  os.FileMode
	}{{"of a user", nobody, 0o755}, {"for all", 0, 0o777}, {"sticky", 0, 0o777 | os.ModeSticky}} {
		for _, tc := range []struct {
			name string
			set  func(dir, log string)
			want string // "" opens
		}{
			{"no log yet", func(string, string) {}, ""},
			{"our log", func(_, log string) { must(os.WriteFile(log, nil, 0o600)) }, ""},
			{"root's link to a log", func(dir, log string) {
				must(os.WriteFile(filepath.Join(dir, "today"), nil, 0o600))
				must(os.Symlink("today", log))
			}, ""},
			{"a user's link", func(_, log string) {
				must(os.Symlink(victim, log))
				must(os.Lchown(log, nobody, nobody))
			}, "nhc.log is a symbolic link of uid 65534"},
			{"a user's link to nothing", func(_, log string) {
				must(os.Symlink(victim+".new", log))
				must(os.Lchown(log, nobody, nobody))
			}, "nhc.log is a symbolic link of uid 65534"},
			{"a second name of root's file", func(_, log string) { must(os.Link(victim, log)) }, " names, in a directory that other users control"},
			{"a directory", func(_, log string) { must(os.Mkdir(log, 0o755)) }, "is a directory"},
		} {
			t.Run(shared.name+"/"+tc.name, func(t *testing.T) {
				dir := filepath.Join(base, strings.ReplaceAll(t.Name(), "/", "_"))
				log := filepath.Join(dir, "nhc.log")
				must(os.WriteFile(victim, []byte("root's"), 0o600))
				must(os.Mkdir(dir, 0o755))
				tc.set(dir, log)
				must(os.Chown(dir, shared.owner, shared.owner))
				must(os.Chmod(dir, shared.mode))
				for _, empty := range []bool{false, true} {
					f, err := openLog(log, empty)
					if err == nil {
						_, err = f.WriteString("log\n")
						if !f.shared {
							t.Error("the directory does not count as shared")
						}
						f.Close()
					}
					switch {
					case tc.want == "" && err != nil:
						t.Errorf("empty %v: %v", empty, err)
					case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
						t.Errorf("empty %v: want an error with %q, got %v", empty, tc.want, err)
					}
				}
				if got, _ := os.ReadFile(victim); string(got) != "root's" {
					t.Errorf("the victim holds %q", got)
				}
				if _, err := os.Lstat(victim + ".new"); err == nil {
					t.Error("a user's link created a file")
				}
			})
		}
	}
	t.Run("a user's link on the way", func(t *testing.T) {
		must(os.Mkdir(filepath.Join(base, "open"), 0o777))
		must(os.Chmod(filepath.Join(base, "open"), 0o777))
		must(os.Mkdir(filepath.Join(base, "etc"), 0o755))
		must(os.Symlink(filepath.Join(base, "etc"), filepath.Join(base, "open", "logs")))
		must(os.Lchown(filepath.Join(base, "open", "logs"), nobody, nobody))
		if _, err := openLog(filepath.Join(base, "open", "logs", "nhc.log"), false); err == nil || !strings.Contains(err.Error(), "logs is a symbolic link of uid 65534") {
			t.Errorf("got %v", err)
		}
	})
}

// In directories that only root controls, a log may be any file.
func TestLogOfAdministrator(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	there := filepath.Join(dir, "real.log")
	for name, target := range map[string]string{"absolute.log": there, "relative.log": "real.log", "up.log": "../" + filepath.Base(dir) + "/real.log", "twice.log": "relative.log"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	want := ""
	for _, path := range []string{"real.log", "./real.log", there, dir + "//real.log", "absolute.log", "relative.log", "up.log", "twice.log"} {
		f, err := openLog(path, false)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		_, err = f.WriteString(path + "\n")
		f.Close()
		want += path + "\n"
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if got, _ := os.ReadFile(there); string(got) != want {
		t.Errorf("want %q, got %q", want, got)
	}
	for _, empty := range []bool{false, true} {
		f, err := openLog("/dev/null", empty)
		if err != nil {
			t.Fatalf("empty %v: %v", empty, err)
		}
		f.Close()
	}
	f, err := openLog(there, false)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if f.shared {
		t.Errorf("%s, below a sticky directory, counts as shared", there)
	}
	if err := os.Symlink("loop.log", "loop.log"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"loop.log": "too many levels of symbolic links", "none/nhc.log": "no such file or directory", "real.log/nhc.log": "not a directory", dir + "/": "is a directory", "": "is a directory"} {
		if _, err := openLog(path, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q, got %v", path, want, err)
		}
	}
}
