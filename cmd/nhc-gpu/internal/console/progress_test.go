package console

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// A stopped terminal does not delay the run.
func TestProgressOnStoppedTerminal(t *testing.T) {
	t.Parallel()
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil { // without a reader
		t.Fatal(err)
	}
	defer unix.Close(fd[0])
	defer unix.Close(fd[1])
	for err := error(nil); err == nil; { // until its buffer is full
		_, err = unix.Write(fd[1], make([]byte, 4096))
	}
	if err := unix.SetNonblock(fd[1], false); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		p := &Progress{fd: fd[1]}
		p.doing(&plan.Step{Name: "gpu_gemm"}, "gpu3", time.Second, time.Minute)
		p.doing(nil, "", 0, 0)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("it waits for the terminal")
	}
}
