package packaging_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// A release for this processor starts with the glibc of a system older than EL8, and its package
// requires no newer one.
func TestRelease(t *testing.T) {
	tier.All(t)
	t.Parallel()
	program := release(t, runtime.GOARCH)
	mustBindLazily(t, program)
	mustStart(t, program, "1.2.3")

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
			out, err := exec.Command("unshare", append([]string{"-m", "sh", "-c", script, "sh", root, "/nhc-gpu"}, args...)...).CombinedOutput()
			return string(out), err
		}
		if out, err := inRoot(program, "version"); err != nil || !strings.HasPrefix(out, "nhc-gpu 1.2.3") {
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

	t.Run("Device kit", func(t *testing.T) {
		kit := filepath.Join(t.TempDir(), "kit")
		dir := filepath.Dir(filepath.Dir(program))
		run(t, exec.Command("make", "-C", root, "device-kit", "RELEASE_DIR="+dir, "KIT_DIR="+kit, "VERSION=v1.2.3"))
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

	t.Run("Package", func(t *testing.T) {
		need.Program(t, "rpmbuild")
		top := t.TempDir()
		run(t, exec.Command("make", "-C", root, "rpm", "RPM_TOPDIR="+top, "VERSION=v1.2.3", "PREBUILT="+program))
		pkg := one(t, filepath.Join(top, "RPMS/*/nhc-gpu-1.2.3-*.rpm"))
		requires := run(t, exec.Command("rpm", "-qp", "--requires", pkg))
		found := regexp.MustCompile(`GLIBC_([\d.]+)`).FindAllStringSubmatch(requires, -1)
		if len(found) == 0 {
			t.Errorf("the package asks for no glibc:\n%s", requires)
		}
		for _, m := range found {
			if newer(m[1], newestGLIBC[runtime.GOARCH]) {
				t.Errorf("the package asks for glibc %s, want at most %s", m[1], newestGLIBC[runtime.GOARCH])
			}
		}
	})
}

// The same applies to the other processor, but only its symbols are read.
func TestReleaseOfOtherArch(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	arch, gcc := "arm64", "aarch64-linux-gnu-gcc"
	if runtime.GOARCH == "arm64" {
		arch, gcc = "amd64", "x86_64-linux-gnu-gcc"
	}
	need.Program(t, gcc)
	release(t, arch)
}

// release builds one and reads its symbols.
func release(t *testing.T, arch string) string {
	t.Helper()
	dir := t.TempDir()
	sys := filepath.Join(dir, "sysroot-"+arch)
	unpack(t, filepath.Join(root, "rpm/sysroot", arch+".debs"), sys)
	run(t, exec.Command("make", "-C", root, "release-"+arch, "RELEASE_DIR="+dir, "VERSION=v1.2.3"))
	program := filepath.Join(dir, "linux-"+arch, "nhc-gpu")
	if named := needsNoNewGLIBC(t, program, newestGLIBC[arch]); named < 20 {
		t.Errorf("%s names %d symbols of glibc: is it linked with it at all?", program, named)
	}
	return program
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
		t.Skipf("no network, or the packages are gone:\n%s", out)
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
