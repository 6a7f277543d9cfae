package packaging_test

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

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
	need.Root(t, "a user namespace with all users")
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

// byQemu returns a command that can start arm64 programs. In its user namespace every user and group
// has its usual number.
func byQemu(argv ...string) *exec.Cmd {
	cmd := exec.Command("./arm64.sh", argv...)
	all := []syscall.SysProcIDMap{{Size: math.MaxUint32}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true,
	}
	return cmd
}

// The arm64 program runs with its workers, its bash and its scontrol.
func TestARM64(t *testing.T) {
	tier.All(t)
	t.Parallel()
	binary := arm64(t)
	on := func(args ...string) string {
		t.Helper()
		return run(t, byQemu(append([]string{binary}, args...)...))
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

// All scenarios, and LBNL NHC's recorded cases of checks, on arm64. The other recorded cases, of the
// program itself, have limits of time that a program under qemu exceeds.
func TestARM64InFull(t *testing.T) {
	tier.Long(t)
	binary := arm64(t)
	run(t, byQemu(binary, "selftest"))
	cases := byQemu("go", "test", "-count=1", "-timeout=30m", "-v", "-run=TestRecorded/^(check|nhc)_",
		"-skip=TestRecorded/check_ps_cpu/-1[45]$", // a lower nice value needs a privilege outside the user namespace
		"../lbnl")
	cases.Env = append(os.Environ(), "NHC_GPU_BINARY="+binary, "NHC_GPU_DEVICES="+caseDevices(t))
	began := time.Now()
	out := run(t, cases)
	passed := strings.Count(out, "--- PASS: TestRecorded/")
	if passed < 280 {
		t.Errorf("%d recorded cases passed, want at least 280:\n%s", passed, out)
	}
	t.Logf("%d recorded cases in %v", passed, time.Since(began).Round(time.Second))
}

// caseDevices makes the device files of the recorded cases, which no user namespace can make.
func caseDevices(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []struct{ mode, major, minor uint32 }{
		{unix.S_IFCHR | 0o666, 1, 3}, {unix.S_IFCHR | 0o666, 1, 5}, {unix.S_IFCHR | 0o666, 1, 7}, {unix.S_IFCHR | 0o666, 1, 8},
		{unix.S_IFCHR | 0o666, 1, 9}, {unix.S_IFCHR | 0o666, 5, 0}, {unix.S_IFCHR | 0o666, 5, 1},
		{unix.S_IFCHR | 0o600, 1, 3}, {unix.S_IFBLK | 0o600, 7, 200},
	} {
		path := filepath.Join(dir, fmt.Sprintf("%o-%d-%d", d.mode, d.major, d.minor))
		if err := unix.Mknod(path, d.mode, int(unix.Mkdev(d.major, d.minor))); err != nil {
			t.Fatalf("make %s: %v", path, err)
		}
		if err := unix.Chmod(path, d.mode&0o777); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
