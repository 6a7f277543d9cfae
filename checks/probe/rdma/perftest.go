package rdma

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file measures RDMA devices by perftest. It runs a program twice, as a server and as the client
// that writes into the server's memory: on this node, or on two nodes (perftest_pair.go).

// Perftest is one such pair of processes.
type Perftest struct {
	Program       string        // ib_write_bw or ib_write_lat, or its path
	Latency       bool          // the program measures a latency
	Server        PerftestEnd   // its memory is written
	Client        PerftestEnd   // it writes
	Size          int64         // of a message, bytes
	Duration      time.Duration // of the writing, whole seconds; a quarter at either end is not measured; not of a latency
	Iterations    int           // of a latency
	Queues        int           // queue pairs
	Bidirectional bool          // both write at the same time, and the rate is the sum
	Timeout       time.Duration // of the whole test
}

// PerftestEnd is one end of a test.
type PerftestEnd struct {
	Device string   // mlx5_0
	Port   string   // 1
	GID    int      // index of the address to use; -1: that of the link layer (LID)
	GPU    []string // arguments that put its memory on a GPU; none: memory of the host
	Env    []string // environment that these arguments need
	CPUs   []int    // it runs on these, near to its memory; none: anywhere
	Bind   string   // address at which a server listens; "": all
}

// PerftestResult is the result of a test.
type PerftestResult struct {
	Rate    float64        // Gb/s (10^9 bits), the average
	Latency float64        // µs, the typical one
	Err     *PerftestError // nil if there is a rate, or a latency
}

// PerftestHelp returns the help text of a perftest program: it has --use_cuda if the program was
// built with CUDA. The error is that of starting it.
func PerftestHelp(ctx context.Context, h *probe.Host, program string) (string, error) {
	x := h.RunOnce(ctx, "perftest "+program, probe.Command{Argv: []string{program, "--help"}, Env: probe.PerftestEnv, Timeout: 10 * time.Second, Output: 64 << 10, Merge: true})
	if e := parseFault(x); e != nil {
		switch e.Kind {
		case PerftestAbsent, PerftestUnloadable, PerftestHung:
			return "", e
		}
	}
	return string(x.Output), nil
}

// Perftests runs tests in parallel and returns a result for each. It ends them, and leaves no
// process behind, when ctx ends.
func Perftests(ctx context.Context, h *probe.Host, tests []Perftest) []PerftestResult {
	results := make([]PerftestResult, len(tests))
	hosts := make([]*probe.Host, len(tests))
	var all sync.WaitGroup
	for i := range tests {
		hosts[i] = h.Apart()
		all.Go(func() { results[i] = runPerftest(ctx, hosts[i], &tests[i]) })
	}
	all.Wait()
	for _, of := range hosts {
		if of.Blocked() {
			h.LeaveBehind()
		}
	}
	return results
}

// runPerftest runs one test. It tries again if another process takes its TCP port in the meantime.
func runPerftest(ctx context.Context, h *probe.Host, t *Perftest) PerftestResult {
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	for range 3 {
		port, err := claimPort()
		if err != nil {
			return PerftestResult{Err: &PerftestError{Kind: PerftestNoPort, Text: err.Error()}}
		}
		r := runPerftestAt(ctx, h, t, port)
		claimedPorts.Delete(port)
		if r.Err == nil || r.Err.Kind != PerftestNoPort {
			return r
		}
	}
	return PerftestResult{Err: &PerftestError{Kind: PerftestNoPort, Text: "no TCP port is free for long enough"}}
}

// claimedPorts has the TCP ports of the running tests. The kernel may return a port twice before
// the server of the first test listens on it: the client of one test would then write to the server
// of the other, and both would fail.
var claimedPorts sync.Map

// claimPort finds a free TCP port that no other test has claimed.
func claimPort() (int, error) {
	for {
		port, err := findFreePort()
		if err != nil {
			return 0, err
		}
		if _, claimed := claimedPorts.LoadOrStore(port, true); !claimed {
			return port, nil
		}
	}
}

// findFreePort finds a TCP port without a listening process.
func findFreePort() (int, error) {
	l, err := net.Listen("tcp4", "0.0.0.0:0") // as the server will
	if err != nil {
		return 0, fmt.Errorf("find a TCP port: %w", err)
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("find a TCP port: got %s", l.Addr())
	}
	return addr.Port, nil
}

// runPerftestAt runs server and client, which connect by that TCP port first.
func runPerftestAt(ctx context.Context, h *probe.Host, t *Perftest, port int) PerftestResult {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	own := h.Apart()
	server := make(chan probe.Exit, 1)
	go func() { server <- own.Run(serving, t.command(&t.Server, port)) }()
	client := make(chan probe.Exit, 1)
	going, cut := context.WithCancel(ctx)
	defer cut()
	go func() { client <- startClient(going, h, t, "127.0.0.1", port) }()

	var x, of probe.Exit
	select {
	case x = <-client:
		select { // the server has printed its parameters
		case of = <-server:
		case <-time.After(time.Second):
			stop()
			of = <-server
			of.TimedOut = of.TimedOut && ctx.Err() != nil
		}
	case of = <-server:
		select {
		case x = <-client:
		case <-time.After(time.Second): // it waits for a server that is gone
			cut()
			x = <-client
			x.TimedOut = x.TimedOut && ctx.Err() != nil
		}
	}
	if own.Blocked() {
		h.LeaveBehind()
	}
	return t.result(x, of)
}

// perftestTry is how long a client may take to connect.
const perftestTry = 2 * time.Second

// startClient starts the client, repeatedly until the server listens.
func startClient(ctx context.Context, h *probe.Host, t *Perftest, server string, port int) probe.Exit {
	argv := t.command(&t.Client, port)
	argv.Argv = append(argv.Argv, server)
	var refused *probe.Exit
	for {
		began := time.Now()
		x := h.Run(ctx, argv)
		if x.TimedOut && refused != nil && len(x.Output) == 0 && time.Since(began) < perftestTry {
			return *refused // this try was too short to find the cause
		}
		if e := parseFault(x); e == nil || e.Kind != PerftestNoServer {
			return x
		}
		refused = &x
		select {
		case <-ctx.Done():
			return x
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// PerftestBind is the option that has a server listen at one address only: perftest 23.07 and later have it, in
// their help text. Earlier ones listen at all addresses of the node.
const PerftestBind = "--bind_source_ip"

// minIterations is the least number that perftest accepts.
const minIterations = 5

// command returns the command of one end.
func (t *Perftest) command(e *PerftestEnd, port int) probe.Command {
	seconds := max(1, int(t.Duration/time.Second))
	argv := []string{t.Program, "-d", e.Device, "-i", cmp.Or(e.Port, "1"), "-p", strconv.Itoa(port), "-s", strconv.FormatInt(t.Size, 10)}
	if t.Latency {
		argv = append(argv, "-n", strconv.Itoa(max(minIterations, t.Iterations)), "-F")
	} else {
		argv = append(argv, "-q", strconv.Itoa(max(1, t.Queues)), "-D", strconv.Itoa(seconds), "-f", strconv.Itoa(seconds/4), "-F", "--report_gbits")
	}
	if t.Bidirectional {
		argv = append(argv, "-b")
	}
	if e.GID >= 0 {
		argv = append(argv, "-x", strconv.Itoa(e.GID))
	}
	if e.Bind != "" {
		argv = append(argv, PerftestBind, e.Bind)
	}
	env := append(slices.Clip(probe.PerftestEnv), e.Env...)
	return probe.Command{Argv: append(argv, e.GPU...), Env: env, CPUs: e.CPUs, Output: 64 << 10, Errors: 16 << 10}
}

// result combines the ends of client and server. An error of a server whose client has left is only
// a consequence, and so is that of a client whose server is gone.
func (t *Perftest) result(client, server probe.Exit) PerftestResult {
	e, of := parseFault(client), parseFault(server)
	switch {
	case of != nil && of.Kind == PerftestNoPort: // the client has met another test's server, if any
		return PerftestResult{Err: of}
	case e == nil:
		r, err := t.parse(client.Output)
		if err == nil {
			return r
		}
		if of != nil && of.isCause() {
			return PerftestResult{Err: of}
		}
		return PerftestResult{Err: &PerftestError{Kind: PerftestGarbled, Text: err.Error()}}
	case of != nil && of.isCause() && !e.isCause():
		return PerftestResult{Err: of}
	case e.Kind == PerftestNoServer && of != nil && of.Kind == PerftestHung:
		return PerftestResult{Err: &PerftestError{Kind: PerftestHung, Text: "its server did not start to listen"}}
	}
	return PerftestResult{Err: e}
}

// parse finds the result in the client's output.
func (t *Perftest) parse(output []byte) (r PerftestResult, err error) {
	if t.Latency {
		r.Latency, err = parseLatency(output, t.Size)
	} else {
		r.Rate, err = parsePerftest(output, t.Size)
	}
	return r, err
}

// isCause reports whether the error is a cause, and not a consequence of the other end's error.
func (e *PerftestError) isCause() bool {
	switch e.Kind {
	case PerftestNoServer, PerftestBroken, PerftestHung, PerftestStopped:
		return false
	}
	return true
}
