package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Connects measures how long it takes to connect to a Listener: count times, in ms. The other end
// must Drain.
func Connects(ctx context.Context, local Local, address string, key Key, count int) ([]float64, error) {
	var values []float64
	for range max(count, 1) {
		conn, took, err := Connect(ctx, local, address, key, 0)
		if err != nil {
			return values, err
		}
		_ = conn.Close()
		values = append(values, Milliseconds(took))
	}
	return values, nil
}

// Drain closes all connections of a Listener until the context ends, and counts them.
func (l *Listener) Drain(ctx context.Context) (n int) {
	for ; ; n++ {
		conn, _, err := l.Accept(ctx)
		if err != nil {
			return n
		}
		_ = conn.Close()
	}
}

// ErrName means that a name has no address, or that of another node.
var ErrName = errors.New("wrong name")

// Resolve measures how long this node takes to resolve a name. The answer must have one of these
// addresses, if there are any.
func Resolve(ctx context.Context, name string, want []netip.Addr) (time.Duration, error) {
	began := time.Now()
	got, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	took := time.Since(began)
	var dns *net.DNSError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return took, ctx.Err()
	case errors.As(err, &dns) && dns.IsNotFound:
		return took, fmt.Errorf("%w: %s is not known", ErrName, name)
	case err != nil:
		return took, failed(ctx, "resolve "+name, err)
	case len(want) == 0:
		return took, nil
	}
	for _, a := range got {
		if slices.ContainsFunc(want, func(w netip.Addr) bool { return w.Unmap() == a.Unmap() }) {
			return took, nil
		}
	}
	return took, fmt.Errorf("%w: %s is %s here, want %s", ErrName, name, join(got), join(want))
}

func join(list []netip.Addr) string {
	var words []string
	for _, a := range list {
		words = append(words, a.Unmap().String())
	}
	return strings.Join(words, " or ")
}
