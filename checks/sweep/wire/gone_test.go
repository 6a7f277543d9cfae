package wire

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// A rank does not wait for a launcher that was killed before they were connected.
func TestDialOfEndedLauncher(t *testing.T) {
	t.Parallel()
	l, err := Listen(Config{Address: "127.0.0.1:0", Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	ticket := l.Ticket()
	ticket.Addresses = []string{fmt.Sprintf("127.0.0.1:%d", l.Port())}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), &ticket, Hello{Version: "1"}); err == nil || !strings.Contains(err.Error(), "it has ended") {
		t.Error(err)
	}
}

func TestIsGone(t *testing.T) {
	t.Parallel()
	refused, unreachable := fmt.Errorf("dial: %w", syscall.ECONNREFUSED), fmt.Errorf("dial: %w", syscall.EHOSTUNREACH)
	for _, tt := range []struct {
		errs []error
		want bool
	}{
		{[]error{refused}, true},
		{[]error{unreachable, refused}, true},
		{[]error{unreachable}, false},
		{[]error{refused, os.ErrDeadlineExceeded}, false},
		{[]error{refused, errors.New("the certificate is not that of the launcher")}, false},
		{nil, false},
	} {
		if got := isGone(tt.errs); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.errs, got, tt.want)
		}
	}
}
