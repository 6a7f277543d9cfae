package rdma

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// PerftestServer is the server of a test whose client runs on another node.
type PerftestServer struct {
	Port int // of TCP, by which the client finds it

	done chan struct{} // closed when the last run has ended
	err  *PerftestError
}

// listenLimit is how long a server may take until it listens; after that its client tries.
const listenLimit = 5 * time.Second

// ServePerftest starts the server of a test, and starts it again until it has served a number of
// clients. It returns when the server listens. The server ends with ctx. A server that another program has
// met, or that gets no port, is started on another one.
func ServePerftest(ctx context.Context, h *probe.Host, t *Perftest, clients int) (_ *PerftestServer, last *PerftestError) {
	for range 3 {
		port, err := claimPort()
		if err != nil {
			return nil, &PerftestError{Kind: PerftestNoPort, Text: err.Error()}
		}
		s := &PerftestServer{Port: port, done: make(chan struct{})}
		go s.serve(ctx, h.Apart(), t, clients)
		for end := time.Now().Add(listenLimit); time.Now().Before(end) && ctx.Err() == nil && !listens(h, port) && !s.ended(); {
			time.Sleep(20 * time.Millisecond)
		}
		if !s.ended() {
			return s, nil
		}
		if s.err == nil || s.err.Kind != PerftestNoPort && !s.err.IsVague() {
			return nil, s.err
		}
		last = s.err
	}
	if last.Kind == PerftestNoPort {
		last.Text = "no TCP port is free for long enough"
	}
	return nil, last
}

func (s *PerftestServer) serve(ctx context.Context, h *probe.Host, t *Perftest, clients int) {
	defer close(s.done)
	defer claimedPorts.Delete(s.Port)
	for range clients {
		if s.err = parseFault(h.Run(ctx, t.command(&t.Server, s.Port))); s.err != nil {
			return
		}
	}
}

func (s *PerftestServer) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Done is closed when the server has served all clients, or has failed.
func (s *PerftestServer) Done() <-chan struct{} { return s.done }

// Err returns why it failed, after Done.
func (s *PerftestServer) Err() *PerftestError {
	if s.ended() {
		return s.err
	}
	return nil
}

// listens reports whether a process listens at a TCP port. It does not connect: the server serves
// only one client.
func listens(h *probe.Host, port int) bool {
	want := fmt.Appendf(nil, ":%04X ", port)
	for _, name := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		data, _ := h.ReadFile(name)
		for line := range bytes.Lines(data) { // number, local address, remote address, state: 0A is LISTEN
			if fields := bytes.Fields(line); len(fields) > 3 && bytes.Equal(fields[3], []byte("0A")) && bytes.HasSuffix(append(fields[1], ' '), want) {
				return true
			}
		}
	}
	return false
}

// RunPerftestClient writes to the server of a test on another node, and returns the result. A server
// that does not listen yet may still start to, until ctx ends.
func RunPerftestClient(ctx context.Context, h *probe.Host, t *Perftest, server string, port int) PerftestResult {
	x := startClient(ctx, h.Apart(), t, server, port)
	return t.result(x, probe.Exit{})
}

// IsVague reports whether the program has ended without a measured fault. A connection of another program to the
// port of the server has the same effect: the ends of a test are strangers to each other until they have exchanged
// their parameters.
func (e *PerftestError) IsVague() bool {
	return (e.Kind == PerftestNoServer || e.Kind == PerftestBroken) && !e.Killed
}

// IsCause reports whether the error is a cause, and not a consequence of the other end's error.
func (e *PerftestError) IsCause() bool { return e.isCause() || e.Killed }
