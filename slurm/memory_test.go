package slurm

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestMemoryKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nhc-gpu", "gpu01")
	d, err := OpenStateDir(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Memory{
		Version: memoryFormat, BootID: "boot-1", Told: ToldDrained, Reason: "NHC: x", Unsettled: true,
		Pending: Pending{Message: "x", Since: time.Now().UTC().Truncate(time.Second)},
	}
	if err := d.Save(want); err != nil {
		t.Fatal(err)
	}
	d, err = OpenStateDir(path) // the next run
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Load()
	if err != nil || !reflect.DeepEqual(got, want) { // which is what Act compares by
		t.Errorf("error %v (-want +got):\n%s", err, cmp.Diff(want, got))
	}
	for name, mode := range map[string]os.FileMode{path: 0o700, filepath.Dir(path): 0o700, filepath.Join(path, memoryFile): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, mode)
		}
	}
	if files, _ := os.ReadDir(path); len(files) != 1 {
		t.Errorf("files %v, want %s alone", files, memoryFile)
	}
}

// spoil puts something else in the place of the memory.
var spoil = map[string]func(path string) error{
	"garbage": func(p string) error { return os.WriteFile(p, []byte("\x00\xff{"), 0o600) },
	"empty":   func(p string) error { return os.WriteFile(p, nil, 0o600) },
	"half": func(p string) error {
		return os.WriteFile(p, []byte(`{"version":1,"boot_id":"boot-1","told":"o`), 0o600)
	},
	"another": func(p string) error {
		return os.WriteFile(p, []byte(`{"version":2,"boot_id":"boot-1","told":"ok"}`), 0o600)
	},
	"wrong types": func(p string) error { return os.WriteFile(p, []byte(`{"version":1,"told":[1]}`), 0o600) },
	"huge":        func(p string) error { return os.WriteFile(p, []byte(strings.Repeat(" ", memoryMost)+"{}"), 0o600) },
	"open to all": func(p string) error {
		if err := os.WriteFile(p, []byte(`{"version":1,"boot_id":"boot-1","told":"ok"}`), 0o600); err != nil {
			return err
		}
		return os.Chmod(p, 0o666)
	},
	"link":      func(p string) error { return os.Symlink("/etc/passwd", p) },
	"pipe":      func(p string) error { return unix.Mkfifo(p, 0o600) },
	"directory": func(p string) error { return os.Mkdir(p, 0o700) },
}

// Whatever stands in the memory's place: one warning, and the run goes on as
// if there were no memory.
func TestActSpoiltMemory(t *testing.T) {
	t.Parallel()
	for name, put := range spoil {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{state: "IDLE"}
			c := controller(t, f)
			path := filepath.Join(c.Dir.path, memoryFile)
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			o := act(t, c, healthy, "show")
			if o.Warning == nil || !strings.Contains(o.Warning.Error(), "memory") || strings.Contains(o.Warning.Error(), "\n") {
				t.Errorf("warning %v, want one line about the memory", o.Warning)
			}
			if name == "directory" { // cannot be replaced either
				act(t, c, failing, "show", "DRAIN "+ourReason)
				return
			}
			if o = act(t, c, healthy); o.Warning != nil {
				t.Errorf("warning %v after the memory was written anew", o.Warning)
			}
		})
	}
}

// A state directory that cannot be used: every run asks, and acts.
func TestActWithoutMemory(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	c.Dir = nil
	for range 2 {
		if o := act(t, c, healthy, "show"); o.Warning != nil {
			t.Errorf("warning %v", o.Warning)
		}
	}
	act(t, c, failing, "show", "DRAIN "+ourReason)

	c = controller(t, f)
	if err := os.RemoveAll(c.Dir.path); err != nil { // as a directory that may not be written to, but for root too
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Dir.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if o := act(t, c, healthy, "show", "RESUME"); o.Warning == nil {
		t.Error("no warning")
	}
	if o := act(t, c, healthy, "show"); o.Warning == nil {
		t.Error("no warning")
	}
	f.on = always(timeout, "show")
	if o := undelivered(t, c, failing, "show"); o.Warning == nil {
		t.Error("no warning")
	}
}

func TestActFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	path := filepath.Join(t.TempDir(), "gpu01")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=4k,mode=0700"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(path, "fill"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	c.Dir = &StateDir{path: path}
	if o := act(t, c, failing, "show", "DRAIN "+ourReason); o.Warning == nil {
		t.Error("no warning")
	}
	if files, _ := filepath.Glob(filepath.Join(path, memoryFile+"*")); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestOpenStateDirRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link, open := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "open")
	for _, err := range []error{
		os.WriteFile(file, nil, 0o600), os.Symlink(dir, link), os.Mkdir(open, 0o700), os.Chmod(open, 0o777),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{file, link, open, filepath.Join(file, "below")} {
		if _, err := OpenStateDir(path); err == nil {
			t.Errorf("OpenStateDir(%s): want an error", filepath.Base(path))
		}
	}
}

// Two runs acted at once, one of them without the lock: neither's word counts.
func TestActSideBySide(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	other := *c
	f.on = func(f *fake, call string) (Output, error, bool) {
		if call == "show" { // while a health check reads, a prolog drains
			f.on = nil
			out := f.serve(call)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			o, err := other.Act(ctx, failing, Prolog)
			if err != nil || o.Action != Drain {
				t.Errorf("prolog: %+v, %v", o, err)
			}
			return out, nil, true
		}
		return Output{}, nil, false
	}
	if _, err := c.Act(t.Context(), healthy, HealthCheck); err != nil {
		t.Error(err)
	}
	f.is(t, "IDLE+DRAIN", ourReason)
	f.calls = nil
	act(t, c, healthy, "show", "RESUME") // seen, where "ok" would have hidden it
}

func TestBootID(t *testing.T) {
	t.Parallel()
	if id := BootID(); len(id) != 36 || id != BootID() {
		t.Errorf("BootID() = %q", id)
	}
}
