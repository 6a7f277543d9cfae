package wire

import (
	"os"
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	t.Parallel()
	f, err := NewPage()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := OpenPage(int(f.Fd()))
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
	if got := said(f, 8); len(got) != pageSize-pageHead {
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
