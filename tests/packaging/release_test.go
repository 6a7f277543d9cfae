package packaging_test

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// newestGLIBC has the newest versions of glibc's symbols that a release may need: those that it
// needs today. The tools of the device kit may need those of EL8.
var newestGLIBC = map[string]string{"amd64": "2.3.3", "arm64": "2.17"}

const el8GLIBC = "2.28"

// The program of the packages for this processor starts with the glibc of a system older than EL8.
func TestRelease(t *testing.T) {
	tier.All(t)
	t.Parallel()
	k := makePackages(t)
	program := filepath.Join(k.tree, "dist/release/linux-"+runtime.GOARCH, program)

	t.Run("On glibc 2.27", func(t *testing.T) {
		need.Root(t, "to change the root directory")
		if runtime.GOARCH != "amd64" {
			t.Skip("the packages are for x86-64")
		}
		root := filepath.Join(t.TempDir(), "root")
		unpack(t, "testdata/glibc-2.27.debs", root)
		inRoot := func(file string, args ...string) (string, error) {
			t.Helper()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := built.WriteProgram(filepath.Join(root, "nhc-gpu"), text); err != nil {
				t.Fatal(err)
			}
			const script = `mkdir -p "$1/proc" "$1/dev" "$1/tmp" && mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && exec chroot "$@"`
			cmd := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, "sh", root, "/nhc-gpu"}, args...)...)
			cmd.Env = append(os.Environ(), "TMPDIR=") // the root has none of this machine's directories
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := inRoot(program, "version"); err != nil || !strings.HasPrefix(out, "nhc-gpu "+newVersion) {
			t.Errorf("version: %v\n%s", err, out)
		}
		if out, err := inRoot(program, "--check", "-e", "check_file_test -d /proc"); err != nil || !strings.Contains(out, "\n1 ok, 0 skipped") {
			t.Errorf("a check in a worker: %v\n%s", err, out)
		}
		if out, err := inRoot(program, "--check", "-e", "test -d /proc && echo from $BASH_VERSION"); err != nil || !strings.Contains(out, "\n1 ok, 0 skipped") {
			t.Errorf("a line in bash: %v\n%s", err, out)
		}
		if out, err := inRoot(program, "selftest", "check_gpu_count"); err != nil {
			t.Errorf("selftest: %v\n%s", err, out)
		}
	})

	// Without /proc no worker starts: that is an error, and no crash.
	t.Run("Lint without workers", func(t *testing.T) {
		need.Root(t, "to unmount /proc")
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "nhc.conf"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("unshare", "-m", "sh", "-c", `while umount -l /proc 2>/dev/null; do :; done; exec "$@"`, "sh", program, "lint", "-D", dir).CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 1 || !strings.Contains(string(out), "start local worker") || strings.Contains(string(out), "internal error") {
			t.Errorf("%v\n%s", err, out)
		}
	})

	t.Run("Device kit", func(t *testing.T) {
		kit := filepath.Join(t.TempDir(), "kit")
		if err := offline(k.tree, "device-kit", "", "RELEASE_DIR="+t.TempDir(), "KIT_DIR="+kit); err != nil {
			t.Fatal(err)
		}
		size := int64(0)
		for _, name := range []string{"nhc-gpu", "readings", "yardstick", "acceptance.sh"} {
			info, err := os.Stat(filepath.Join(kit, name))
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Fatalf("%s: %v, %v", name, info, err)
			}
			size += info.Size()
			if name != "acceptance.sh" {
				needsNoNewGLIBC(t, filepath.Join(kit, name), el8GLIBC)
			}
		}
		if size > 60<<20 {
			t.Errorf("the kit has %d bytes, want at most 60 MiB", size)
		}
		out, err := exec.Command(filepath.Join(kit, "acceptance.sh"), filepath.Join(kit, "out")).CombinedOutput()
		if _, none := os.Stat("/dev/nvidiactl"); none != nil && (!strings.Contains(string(out), "no GPU") || err == nil) {
			t.Errorf("on a machine without a GPU: %v\n%s", err, out)
		}
	})
}

// needsNoNewGLIBC reads and counts the versions of the symbols that a program needs.
func needsNoNewGLIBC(t *testing.T, program, newest string) (versions int) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if version, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok {
			if versions++; newer(version, newest) {
				t.Errorf("%s needs %s of glibc %s, want at most %s", program, s.Name, version, newest)
			}
		}
	}
	return versions
}

// unpack downloads the packages of a list, or skips the test without network.
func unpack(t *testing.T, list, dir string) {
	t.Helper()
	for _, tool := range []string{"curl", "ar", "xz", "gcc", "make"} {
		need.Program(t, tool)
	}
	out, err := exec.Command(filepath.Join(root, "rpm/sysroot/unpack.sh"), list, dir).CombinedOutput()
	if strings.Contains(string(out), "cannot download") {
		need.Skip(t, "no network, or the packages are gone:\n%s", out)
	}
	if err != nil {
		t.Fatalf("unpack.sh %s: %v\n%s", list, err, out)
	}
}

func newer(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return m > n
		}
	}
	return len(x) > len(y)
}

// A package with another checksum is not unpacked; links of an unpacked one stay below its root.
func TestUnpack(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"curl", "ar", "xz", "sha256sum"} {
		need.Program(t, tool)
	}
	dir := t.TempDir()
	const script = `cd "$1" && mkdir -p tree/lib tree/usr/lib && echo so >tree/lib/libm.so.6 && ln -s /lib/libm.so.6 tree/usr/lib/libm.so &&
tar -C tree -cJf data.tar.xz . && ar rc a.deb data.tar.xz &&
echo "$(sha256sum a.deb | cut -d' ' -f1) file://$1/a.deb" >right.debs && echo "$(echo x | sha256sum | cut -d' ' -f1) file://$1/a.deb" >wrong.debs`
	run(t, exec.Command("sh", "-c", script, "sh", dir))
	unpack := func(list string) (string, error) {
		out, err := exec.Command(filepath.Join(root, "rpm/sysroot/unpack.sh"), filepath.Join(dir, list), filepath.Join(dir, "sys")).CombinedOutput()
		return string(out), err
	}
	if out, err := unpack("wrong.debs"); err == nil || !strings.Contains(out, "has another checksum") {
		t.Errorf("a wrong checksum: %v\n%s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "sys*")); len(left) > 0 {
		t.Errorf("it leaves %s", left)
	}
	for range 2 { // the second finds everything done
		if out, err := unpack("right.debs"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "sys/usr/lib/libm.so")); err != nil || target != "../../lib/libm.so.6" {
		t.Errorf("the link leads to %q (%v), want a path below the root", target, err)
	}
}
