package wire

import (
	"net"
	"testing"
)

type peer struct {
	net.Conn
	at string
}

func (p peer) RemoteAddr() net.Addr { a, _ := net.ResolveTCPAddr("tcp", p.at); return a }

// One user of a host cannot take the places of many addresses.
func TestRemote(t *testing.T) {
	t.Parallel()
	for _, same := range [][2]string{{"127.0.0.1:5", "127.9.9.9:6"}, {"[::1]:5", "127.0.0.1:5"}, {"10.0.0.1:5", "[::ffff:10.0.0.1]:6"}} {
		if a, b := remote(peer{at: same[0]}), remote(peer{at: same[1]}); a != b {
			t.Errorf("%v count as %v and %v", same, a, b)
		}
	}
	for _, other := range [][2]string{{"10.0.0.1:5", "10.0.0.2:5"}, {"[fd00::1]:5", "[fd00::2]:5"}} {
		if a, b := remote(peer{at: other[0]}), remote(peer{at: other[1]}); a == b {
			t.Errorf("%v count as %v", other, a)
		}
	}
}
