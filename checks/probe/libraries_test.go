package probe

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// anELF returns the header of a 64-bit shared library for a processor, without the rest.
func anELF(of elf.Machine) []byte {
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(head[16:], uint16(elf.ET_DYN))
	binary.LittleEndian.PutUint16(head[18:], uint16(of))
	binary.LittleEndian.PutUint32(head[20:], 1)
	return head
}

// sharedLibrary creates a file, and links to it by other names, in a directory.
func sharedLibrary(t *testing.T, dir string, of elf.Machine, name string, links ...string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), anELF(of), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if err := os.Symlink(name, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, name)
}

// otherMachine is a processor other than this one.
func otherMachine() elf.Machine {
	if machine.of == elf.EM_AARCH64 {
		return elf.EM_X86_64
	}
	return elf.EM_AARCH64
}

// The newest library that the driver supports is used; for each of the others there is a reason.
func TestLibrarySearch(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := func(name string) string { return filepath.Join(top, name) }
	old := sharedLibrary(t, dir("10"), machine.of, "libcublasLt.so.10.2.2", "libcublasLt.so.10")
	eleven := sharedLibrary(t, dir("11"), machine.of, "libcublasLt.so.11.11.3", "libcublasLt.so.11", "libcublasLt.so")
	twelve := sharedLibrary(t, dir("12.4"), machine.of, "libcublasLt.so.12.4.5.8", "libcublasLt.so.12")
	ten := sharedLibrary(t, dir("12.10"), machine.of, "libcublasLt.so.12.10.0", "libcublasLt.so.12")
	pip := sharedLibrary(t, dir("pip"), machine.of, "libcublasLt.so.12")
	newer := sharedLibrary(t, dir("13"), machine.of, "libcublasLt.so.13.0.0", "libcublasLt.so.13")
	newest := sharedLibrary(t, dir("14"), machine.of, "libcublasLt.so.14.0.0", "libcublasLt.so.14")
	other := sharedLibrary(t, dir("12.arm"), otherMachine(), "libcublasLt.so.12.9.9", "libcublasLt.so.12")
	text := sharedLibrary(t, dir("12.text"), machine.of, "libcublasLt.so.12.8.8", "libcublasLt.so.12")
	if err := errors.Join(os.WriteFile(text, []byte("INPUT(libcublasLt.so)\n"), 0o644), os.Symlink("gone", dir("11/libcublasLt.so.12"))); err != nil {
		t.Fatal(err)
	}
	h := NewHost("/")
	SetLibraries(h, map[string]string{SettingLibraryDirs: filepath.Join(top, "*") + ":" + dir("12.4") + ":relative:" + dir("none")})
	paths, refused := findNamedLibraries(h, &LibCUBLASLt, 12)
	if want := []string{ten, twelve, pip, eleven}; !slices.Equal(paths, want) {
		t.Errorf("found %q\nwant %q", paths, want)
	}
	for _, want := range []string{
		old + ": version 10.2.2 is too old, want 11 or newer",
		newer + ": it needs a driver of CUDA 13, this one supports CUDA 12",
		newest + ": version 14.0.0 is not supported, want at most 13",
		other + ": built for " + strings.TrimPrefix(otherMachine().String(), "EM_") + ", want " + strings.TrimPrefix(machine.of.String(), "EM_"),
		text + ": not a shared library: ",
		"relative of LIBRARY_DIRS is not an absolute path",
	} {
		if !slices.ContainsFunc(refused, func(got string) bool { return strings.HasPrefix(got, want) }) {
			t.Errorf("nothing says %q:\n%s", want, strings.Join(refused, "\n"))
		}
	}
	if len(refused) != 6 {
		t.Errorf("%d reasons, want 6:\n%s", len(refused), strings.Join(refused, "\n"))
	}
	if paths, _ := findNamedLibraries(h, &LibCUBLASLt, 0); !slices.Equal(paths[:1], []string{newer}) {
		t.Errorf("with an unknown driver %q comes first, want %q", paths[0], newer)
	}
	facts := strings.Split(DescribeLibrary(t.Context(), h, &LibCUBLASLt, 12).Detail, "\n")
	if want := ten + ", version 12.10.0 (LIBRARY_DIRS)"; facts[0] != want {
		t.Errorf("described as %q, want %q", facts[0], want)
	}
}

// A file that users other than root can replace is not loaded, whether it is named or found.
func TestLibraryIsRootsOwn(t *testing.T) {
	t.Parallel()
	need.Root(t, "files of other users")
	const user = 12345
	for name, c := range map[string]struct {
		spoil func(dir, file string) error
		want  string // "" if it is used
		found string // the same if it is found, not named
	}{
		"root's":            {func(string, string) error { return nil }, "", ""},
		"a user's file":     {func(_, file string) error { return os.Chown(file, user, 0) }, "libnccl.so.2.1 is owned by uid 12345, want root", "the same"},
		"a user's folder":   {func(dir, _ string) error { return os.Chown(dir, user, 0) }, "nccl is owned by uid 12345, want root", "the same"},
		"a user's link":     {func(dir, _ string) error { return os.Lchown(filepath.Join(dir, "libnccl.so.2"), user, 0) }, "libnccl.so.2 is owned by uid 12345, want root", "the same"},
		"a user's above it": {func(dir, _ string) error { return os.Chown(filepath.Dir(dir), user, 0) }, "is owned by uid 12345, want root", "the same"},
		"of all":            {func(_, file string) error { return os.Chmod(file, 0o757) }, "is writable by others (mode 0757)", "the same"},
		"of a group":        {func(dir, _ string) error { return errors.Join(os.Chown(dir, 0, user), os.Chmod(dir, 0o775)) }, "", "nccl is writable by group 12345 (mode 0775)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "above", "nccl")
			file := sharedLibrary(t, dir, machine.of, "libnccl.so.2.1", "libnccl.so.2")
			if err := c.spoil(dir, file); err != nil {
				t.Fatal(err)
			}
			if c.found == "the same" {
				c.found = c.want
			}
			h := NewHost("/")
			SetLibraries(h, map[string]string{SettingNCCL: filepath.Join(dir, "libnccl.so.2"), SettingNVML: filepath.Join(dir, "libnccl.so.2"), SettingLibraryDirs: dir})
			opened := ""
			_, err := LoadLibrary(h, &LibNCCL, 0, func(path string) (bool, error) {
				opened = path
				return true, nil
			})
			if c.want == "" && (err != nil || opened != file) || c.want != "" && (err == nil || !strings.Contains(err.Error(), "not used: ") || !strings.Contains(err.Error(), c.want) || opened != "") {
				t.Errorf("named: %v, %q opened, want %q", err, opened, c.want)
			}
			if _, err := LoadLibrary(h, &LibNVML, 0, func(string) (bool, error) { return true, nil }); c.want != "" && (err == nil || !strings.Contains(err.Error(), "NVML_LIBRARY: not used: ") || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("NVML: %v, want %q", err, c.want)
			}
			paths, refused := searchLibrary(h, &LibNCCL, 0, []string{dir}, false)
			if c.found == "" && !slices.Equal(paths, []string{file}) || c.found != "" && (len(paths) > 0 || len(refused) != 1 || !strings.Contains(refused[0], c.found)) {
				t.Errorf("found %q, refused %q, want %q", paths, refused, c.found)
			}
		})
	}
}

// The first library that loads, in the documented order, is used; a broken one is reported if no
// other loads.
func TestLibraryOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	named := sharedLibrary(t, filepath.Join(dir, "named"), machine.of, "libnccl.so.2")
	listed := sharedLibrary(t, filepath.Join(dir, "listed"), machine.of, "libnccl.so.2.20.5", "libnccl.so.2")
	known := sharedLibrary(t, filepath.Join(dir, "known"), machine.of, "libnccl.so.2.18.5", "libnccl.so.2")
	v := LibNCCL
	v.places = []string{filepath.Dir(known)}
	const none, broken = "none", "broken"
	for name, c := range map[string]struct {
		vars map[string]string
		root string
		says map[string]string // the error of opening a file; without one it loads
		want string            // file, or text of the error
	}{
		"the setting":                {vars: map[string]string{SettingNCCL: named, SettingLibraryDirs: filepath.Dir(listed)}, want: named},
		"the setting and no other":   {vars: map[string]string{SettingNCCL: named, SettingLibraryDirs: filepath.Dir(listed)}, says: map[string]string{named: broken}, want: broken},
		"a listed directory":         {vars: map[string]string{SettingLibraryDirs: filepath.Dir(listed)}, want: listed},
		"the loader's":               {vars: map[string]string{SettingLibraryDirs: filepath.Dir(listed)}, says: map[string]string{listed: broken}, want: "libnccl.so.2"},
		"a known place":              {says: map[string]string{"libnccl.so.2": none}, want: known},
		"none":                       {says: map[string]string{"libnccl.so.2": none, known: none}, want: "load libnccl.so.2: not found"},
		"broken":                     {says: map[string]string{"libnccl.so.2": none, known: broken}, want: broken},
		"a recorded node":            {root: dir, want: "not found for a recorded node below " + dir + "; NCCL_LIBRARY names one"},
		"a recorded node with a dir": {root: dir, vars: map[string]string{SettingLibraryDirs: filepath.Dir(listed)}, want: listed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := NewHost(c.root)
			SetLibraries(h, c.vars)
			got, err := LoadLibrary(h, &v, 0, func(path string) (string, error) {
				switch c.says[path] {
				case none:
					return "", ErrNoLibrary
				case broken:
					return "", errors.New(broken)
				}
				return path, nil
			})
			if err != nil {
				got = err.Error()
				if !strings.Contains(got, c.want) {
					t.Errorf("%q, want %q", got, c.want)
				}
			} else if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if isNone := strings.Contains(c.want, "not found"); errors.Is(err, ErrNoLibrary) != isNone {
				t.Errorf("%v is ErrNoLibrary: %v, want %v", err, !isNone, isNone)
			}
		})
	}
}

// The driver's own libraries in a known directory are used only if their version is that of the
// loaded driver. A driver that refuses is not called again.
func TestLibraryOfDriver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := LibNVML
	v.places = []string{dir}
	file := sharedLibrary(t, dir, machine.of, "libnvidia-ml.so.550.54.15", "libnvidia-ml.so.1")
	for driver, want := range map[string]string{"550.54.15": "", "570.124.06": file + ": version 550.54.15, the loaded driver is 570.124.06", "": "nothing"} {
		h := NewHost(probetest.Tree(t, map[string]string{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + driver + "  Sun\n"}))
		paths, refused := findKnownLibraries(h, &v, 0)
		if want == "" && !slices.Equal(paths, []string{file}) || want != "" && (len(paths) > 0 || strings.Join(refused, "") != strings.TrimPrefix(want, "nothing")) {
			t.Errorf("driver %s: found %q, refused %q, want %q", driver, paths, refused, want)
		}
	}
	h := NewHost("/")
	SetLibraries(h, map[string]string{SettingLibraryDirs: dir})
	asked := 0
	if _, err := LoadLibrary(h, &v, 0, func(string) (int, error) {
		asked++
		return 0, errors.New("the driver does not answer")
	}); err == nil || asked != 1 {
		t.Errorf("%v after %d libraries, want the error of the first", err, asked)
	}
}

// A directory that never answers costs a moment, is named in the error, and ends the worker.
func TestLibraryDirHangs(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	v := LibNCCL
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) })
	v.version = func(string) (string, int) { <-hung; return "", 0 }
	dir := t.TempDir()
	sharedLibrary(t, dir, machine.of, "libnccl.so.2")
	paths, refused := searchLibrary(h, &v, 0, []string{dir}, true)
	// Later searches skip it, also those of other workers.
	next := NewHost("/")
	next.SetStuck(h.Unanswered())
	if found, not := searchLibrary(next, &v, 0, []string{dir}, true); len(found) > 0 || !slices.Equal(not, refused) || len(next.Unanswered()) > 0 {
		t.Errorf("another worker: found %q, refused %q, unanswered %q", found, not, next.Unanswered())
	}
	other := t.TempDir()
	sharedLibrary(t, other, machine.of, "libdcgm.so.4")
	begun := time.Now()
	if found, not := searchLibrary(h, &LibDCGM, 0, []string{dir, other}, true); len(found) != 1 || !slices.Equal(not, refused) || time.Since(begun) > searchLimit {
		t.Errorf("beside it: found %q, refused %q, after %v", found, not, time.Since(begun))
	}
	if len(paths) > 0 || len(refused) != 1 || refused[0] != dir+": no answer" || !slices.Equal(h.Unanswered(), []string{"read " + dir}) {
		t.Errorf("found %q, refused %q, unanswered %q", paths, refused, h.Unanswered())
	}
}

// The texts in NCCL's library have its version, and the CUDA version that it was built for.
func TestNCCLVersion(t *testing.T) {
	t.Parallel()
	need.Program(t, "gcc")
	dir := t.TempDir()
	source := filepath.Join(dir, "n.c")
	if err := os.WriteFile(source, []byte(`const char *t(void) { return "NCCL version 2.22.3+cuda13.1 %s"; }`), 0o644); err != nil {
		t.Fatal(err)
	}
	h := NewHost("/")
	x := h.Run(t.Context(), Command{Argv: []string{"gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libnccl.so.2"), source}, Errors: 1 << 10})
	if x.Status != 0 {
		t.Fatalf("gcc: %s", x.Errors)
	}
	if version, cuda := readNCCLVersion(filepath.Join(dir, "libnccl.so.2")); version != "2.22.3" || cuda != 13 {
		t.Errorf("version %q for CUDA %d, want 2.22.3 for 13", version, cuda)
	}
	SetLibraries(h, map[string]string{SettingLibraryDirs: dir})
	if paths, refused := findNamedLibraries(h, &LibNCCL, 12); len(paths) > 0 || len(refused) != 1 || !strings.HasSuffix(refused[0], "it needs a driver of CUDA 13, this one supports CUDA 12") {
		t.Errorf("found %q, refused %q", paths, refused)
	}
}

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	sorted := []string{"", "2", "2.9.9", "2.18.5", "12.4.5.8", "12.10"}
	for i, a := range sorted {
		for j, b := range sorted {
			if got, want := CompareVersions(a, b), cmp.Compare(i, j); got != want {
				t.Errorf("CompareVersions(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}
