package run

import (
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// HidePrivate marks every descriptor above 2 close-on-exec. The parent of this process may have
// leaked some, and a program that a check starts as an ordinary user must not inherit them. It does
// not close them because some belong to the Go runtime.
func HidePrivate() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	dir, err := os.Open("/proc/self/fd") //nolint:forbidigo // /proc/self; kernels before 5.11
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
