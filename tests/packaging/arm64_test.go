package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// arm64 returns the program of the arm64 package, or skips the test. No test has run on an arm64
// machine yet.
func arm64(t *testing.T) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("arm64 programs are tried by qemu on x86-64")
	}
	need.Program(t, "qemu-aarch64-static")
	need.Program(t, "aarch64-linux-gnu-gcc")
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if release := unix.ByteSliceToString(u.Release[:]); newer("6.7", release) {
		t.Skipf("Linux %s has no binfmt_misc of a user namespace, want 6.7", release)
	}
	k := makePackages(t)
	dir := t.TempDir()
	run(t, exec.Command("dpkg-deb", "-x", one(t, filepath.Join(k.dir, "nhc-gpu_*_arm64.deb")), dir))
	return filepath.Join(dir, "usr/sbin/nhc-gpu")
}

// The arm64 program runs with its workers, its bash and its scontrol.
func TestARM64(t *testing.T) {
	tier.All(t)
	t.Parallel()
	binary := arm64(t)
	on := func(args ...string) string {
		t.Helper()
		return run(t, exec.Command("./arm64.sh", append([]string{binary}, args...)...))
	}
	if got := on("version"); got != "nhc-gpu "+newVersion+" (commit abcdef0123)\n" {
		t.Errorf("version prints %q", got)
	}
	for _, line := range []string{"check_file_test -d /proc", "test -d /proc && echo from $BASH_VERSION"} {
		if got := on("--check", "-e", line); !strings.Contains(got, "\n1 ok, 0 skipped") {
			t.Errorf("--check -e %q:\n%s", line, got)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nhc.conf"), []byte("* || check_file_test -d /proc\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	on("lint", dir)
	on("selftest", "check_gpu_count")
}

// All scenarios, and LBNL NHC's recorded cases, on arm64.
func TestARM64InFull(t *testing.T) {
	tier.Long(t)
	binary := arm64(t)
	run(t, exec.Command("./arm64.sh", binary, "selftest"))
	cases := exec.Command("./arm64.sh", "go", "test", "-count=1", "-timeout=30m", "../lbnl")
	cases.Env = append(os.Environ(), "NHC_GPU_BINARY="+binary)
	if out := run(t, cases); !strings.Contains(out, "ok") {
		t.Errorf("recorded cases:\n%s", out)
	}
}
