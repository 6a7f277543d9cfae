package wire

import (
	"os"
	"strings"
	"testing"
	"time"
)

// newPage returns both sides of a page.
func newPage(t *testing.T) (*os.File, Page) {
	t.Helper()
	f, err := NewPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, OpenPage(int(f.Fd()))
}

func TestPage(t *testing.T) {
	t.Parallel()
	f, p := newPage(t)
	said := func(f *os.File, request int) string {
		doing, _ := ReadPage(f, request)
		return doing
	}
	if got := said(f, 0); got != "" {
		t.Errorf("a new page says %q", got)
	}
	p.Write(7, "nvmlInit")
	p.Write(7, "stat /home\n")
	if got := said(f, 7); got != "stat /home?" {
		t.Errorf("%q", got)
	}
	if got := said(f, 8); got != "" {
		t.Errorf("what was done for an earlier request: %q", got)
	}
	if _, calls := ReadPage(f, 8); calls != 2 {
		t.Errorf("%d calls, want 2", calls)
	}
	p.Write(7, "stat /home\n") // another call with the same text
	if doing, calls := ReadPage(f, 7); doing != "stat /home?" || calls != 3 {
		t.Errorf("%q, %d calls, want 3", doing, calls)
	}
	p.Write(8, strings.Repeat("x", 2*pageSize))
	if got := said(f, 8); len(got) != slotSize-slotHead {
		t.Errorf("%d bytes of a long text", len(got))
	}
	copy(p, strings.Repeat("\xff", pageSize)) // a library that writes anywhere
	if got := said(f, -1); got != "" {
		t.Errorf("garbage: %.20q", got)
	}
	Page(nil).Write(1, "x")
	if said(nil, 1) != "" || OpenPage(-1) != nil {
		t.Error("a page that is not there says something")
	}
	short, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	if got := said(short, 0); got != "" {
		t.Errorf("a short file: %q", got)
	}
}

// A process can end while one of its threads announces a call.
func TestPageThatChanges(t *testing.T) {
	t.Parallel()
	f, p := newPage(t)
	texts := []string{strings.Repeat("a", 1500), strings.Repeat("b", 20)}
	p.Write(1, texts[0])
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				p.Write(1, texts[i%2])
			}
			time.Sleep(time.Microsecond)
		}
	}()
	for range 20000 {
		if doing, calls := ReadPage(f, 1); doing != texts[(calls-1)%2] {
			t.Fatalf("call %d: %d bytes, %.20q", calls, len(doing), doing)
		}
	}
	close(stop)
	<-stopped

	// The writer has filled half of a slot when the process ends.
	_, calls := ReadPage(f, 1)
	copy(slot(p, calls+1), "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00half")
	if doing, _ := ReadPage(f, 1); doing != texts[(calls-1)%2] {
		t.Errorf("the call before: %.20q", doing)
	}
}
