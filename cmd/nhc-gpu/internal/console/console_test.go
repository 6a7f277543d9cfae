package console

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A reader that does not read costs a run a quarter of its time, whatever the number of writes.
func TestConsoleReaderGone(t *testing.T) {
	t.Parallel()
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd[0])
	defer unix.Close(fd[1])
	c := &Writer{fd: fd[1], wake: -1}
	began := time.Now()
	c.Until(began.Add(8 * time.Second))
	for range 100 {
		_, _ = c.Write(bytes.Repeat([]byte("x"), 4096))
	}
	if took := time.Since(began); took < 1500*time.Millisecond || took > 6*time.Second {
		t.Errorf("took %s, want about 2s", took)
	}
}
