// Package need skips a test on a machine that lacks what the test needs. In CI such a test fails:
// there tests/install-deps.sh has run as root, so a missing program is a defect of CI, and a skip
// would hide it.
package need

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// InCI reports whether the tests run in CI, which sets CI=true.
func InCI() bool { return os.Getenv("CI") == "true" }

// Skip skips a test that lacks root, something that tests/install-deps.sh installs, or a feature of
// the kernel that CI's machine has.
func Skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if InCI() {
		t.Fatalf("CI must not skip this test: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Has reports whether a program is in PATH.
func Has(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// Program returns the path of a program.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Skip(t, "no %s: tests/install-deps.sh installs it", name)
	}
	return path
}

// Root skips a test without root; why says what the test needs root for.
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root: %s", why)
	}
}

// Exit returns the exit status of a package without tests that can run, and prints why.
func Exit(why string) int {
	if InCI() {
		fmt.Fprintln(os.Stderr, "CI must not skip these tests:", why)
		return 1
	}
	fmt.Fprintln(os.Stderr, "skip:", why)
	return 0
}
