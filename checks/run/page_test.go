package run

import (
	"os"
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	t.Parallel()
	f, err := newPage()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := openPage(int(f.Fd()))
	said := func(f *os.File, request int) string {
		doing, _ := readPage(f, request)
		return doing
	}
	if got := said(f, 0); got != "" {
		t.Errorf("a new page says %q", got)
	}
	p.write(7, "nvmlInit")
	p.write(7, "stat /home\n")
	if got := said(f, 7); got != "stat /home?" {
		t.Errorf("%q", got)
	}
	if got := said(f, 8); got != "" {
		t.Errorf("what was done for an earlier request: %q", got)
	}
	if _, calls := readPage(f, 8); calls != 2 {
		t.Errorf("%d calls, want 2", calls)
	}
	p.write(7, "stat /home\n") // another call with the same text
	if doing, calls := readPage(f, 7); doing != "stat /home?" || calls != 3 {
		t.Errorf("%q, %d calls, want 3", doing, calls)
	}
	p.write(8, strings.Repeat("x", 2*pageSize))
	if got := said(f, 8); len(got) != pageSize-pageHead {
		t.Errorf("%d bytes of a long text", len(got))
	}
	copy(p, strings.Repeat("\xff", pageSize)) // a library that writes anywhere
	if got := said(f, -1); got != "" {
		t.Errorf("garbage: %.20q", got)
	}
	page(nil).write(1, "x")
	if said(nil, 1) != "" || openPage(-1) != nil {
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
