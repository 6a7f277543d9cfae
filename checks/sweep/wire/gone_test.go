package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
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

// A bridge has the same address on every host: that nothing listens there says nothing of the launcher.
func TestForeign(t *testing.T) {
	t.Parallel()
	var own []net.Addr
	for _, a := range []string{"127.0.0.1/8", "10.0.0.7/24", "172.17.0.1/16", "fd00::7/64"} {
		ip, n, err := net.ParseCIDR(a)
		if err != nil {
			t.Fatal(err)
		}
		own = append(own, &net.IPNet{IP: ip, Mask: n.Mask})
	}
	for _, tt := range []struct{ addresses, want []string }{
		{[]string{"10.0.0.1:99", "172.17.0.1:99"}, []string{"10.0.0.1:99"}},
		{[]string{"[fd00::1]:99", "172.17.0.1:99", "[fd00::7]:99"}, []string{"[fd00::1]:99"}},
		{[]string{"10.0.0.7:99", "172.17.0.1:99"}, []string{"10.0.0.7:99", "172.17.0.1:99"}}, // the launcher is on this host
		{[]string{"login:99", "127.0.0.1:99"}, []string{"login:99"}},
		{nil, nil},
	} {
		if got := foreign(tt.addresses, own); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.addresses, got, tt.want)
		}
	}
}
