package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// patience bounds the wait for an event that must come, on a machine however busy.
const patience = 5 * time.Minute

func listen(t *testing.T, c Config) (*Listener, Ticket) {
	t.Helper()
	c.Address, c.Version = "127.0.0.1:0", "1.2.3"
	l, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ticket := l.Ticket()
	ticket.Addresses = []string{l.Address()}
	return l, ticket
}

func hello(name string) Hello {
	return Hello{Version: "1.2.3", Node: sweep.Node{Name: name}, PID: 7}
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// connect returns both ends of a connection.
func connect(t *testing.T, l *Listener, ticket Ticket) (launcher, rank *Conn) {
	t.Helper()
	accepted := make(chan *Conn, 1)
	go func() {
		c, err := l.Accept(patient(t))
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	rank, err := Dial(patient(t), &ticket, hello("gpu01"))
	if err != nil {
		t.Fatal(err)
	}
	launcher = <-accepted
	t.Cleanup(func() {
		_ = rank.Close()
		_ = launcher.Close()
	})
	return launcher, rank
}

// A rank that knows the ticket is admitted, and messages pass in both directions, from several
// goroutines at once.
func TestConnection(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{Silence: patience})
	launcher, rank := connect(t, l, ticket)
	if h := launcher.Hello; h.Node.Name != "gpu01" || h.PID != 7 || h.Token != nil {
		t.Errorf("%+v", h)
	}
	for _, ends := range [][2]*Conn{{launcher, rank}, {rank, launcher}} {
		const senders, each = 8, 50
		var all sync.WaitGroup
		for s := range senders {
			all.Go(func() {
				for i := range each {
					m := &Message{Done: &Done{ID: s, Rank: i, Result: sweep.Result{Text: strings.Repeat("<\n\x00>", 2000)}}}
					if err := ends[0].Send(m); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		next := [senders]int{}
		for range senders * each {
			m, err := ends[1].Receive()
			if err != nil {
				t.Fatal(err)
			}
			if m.Done.Rank != next[m.Done.ID] || len(m.Done.Result.Text) != 8000 {
				t.Fatalf("message %d of %d, want %d", m.Done.Rank, m.Done.ID, next[m.Done.ID])
			}
			next[m.Done.ID]++
		}
		all.Wait()
	}
	_ = rank.Close()
	if _, err := launcher.Receive(); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// A rank that must not join gets the reason, and the launcher learns of one that has the token.
func TestRefusals(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{Admit: func(h *Hello) string {
		if h.Node.Name == "gpu99" {
			return "gpu99 is not a node of this sweep"
		}
		return ""
	}})
	for name, tt := range map[string]struct {
		change func(*Ticket, *Hello)
		want   string
		known  bool
	}{
		"version": {func(_ *Ticket, h *Hello) { h.Version = "1.2.4" }, "gpu01 has nhc-gpu 1.2.4, the launcher has 1.2.3: install the same version on both", true},
		"node":    {func(_ *Ticket, h *Hello) { h.Node.Name = "gpu99" }, "gpu99 is not a node of this sweep", true},
		"token":   {func(t *Ticket, _ *Hello) { t.Token = make([]byte, tokenSize) }, "its token is wrong: it belongs to another sweep", false},
	} {
		t.Run(name, func(t *testing.T) {
			ticket, h := ticket, hello("gpu01")
			tt.change(&ticket, &h)
			reported := make(chan error, 1)
			if tt.known {
				go func() {
					_, err := l.Accept(patient(t))
					reported <- err
				}()
			}
			_, err := Dial(patient(t), &ticket, h)
			refused := new(RefusedError)
			if !errors.As(err, &refused) || refused.Why != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if !tt.known {
				return
			}
			if err := <-reported; !errors.As(err, &refused) || refused.Why != tt.want || refused.Hello.Node.Name != h.Node.Name {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	// The Listener still admits others.
	connect(t, l, ticket)
}

// A rank does not send its token to a program with another certificate.
func TestWrongPrint(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{})
	other, _ := listen(t, Config{})
	ticket.Addresses = []string{other.Address()}
	const want = "the certificate is not that of the launcher"
	said := ""
	for wait := time.Second; wait < patience && !strings.Contains(said, want); wait *= 4 { // a busy machine shakes hands late
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := Dial(ctx, &ticket, hello("gpu01"))
		cancel()
		if err == nil {
			t.Fatal("connected")
		}
		said = err.Error()
	}
	if !strings.Contains(said, want) {
		t.Errorf("got %q, want %q", said, want)
	}
	// The next address is tried after that.
	ticket.Addresses = append(ticket.Addresses, l.Address())
	connect(t, l, ticket)
}

// stranger shakes hands with a Listener, without a greeting.
func stranger(t *testing.T, l *Listener) *tls.Conn {
	t.Helper()
	ticket := l.Ticket()
	conn, err := tls.Dial("tcp", l.Address(), clientConfig(ticket.Print))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// wantDropped waits until a connection is closed by the other end.
func wantDropped(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	for {
		if _, err := conn.Read(make([]byte, 1000)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection stays open")
			return
		} else if err != nil {
			return
		}
	}
}

// Whatever a stranger sends, its connection is closed, and ranks are still admitted.
func TestStrangersAreDropped(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{})
	for name, text := range map[string]string{
		"garbage":           "GET / HTTP/1.1\n\n",
		"a beat":            `{"beat":true}` + "\n",
		"empty":             "\n",
		"two parts":         `{"beat":true,"hello":{"version":"1.2.3"}}` + "\n",
		"a long greeting":   `{"hello":{"version":"` + strings.Repeat("x", maxHello) + `"}}` + "\n",
		"a line of no end":  strings.Repeat("x", 2*maxHello),
		"no token":          `{"hello":{"version":"1.2.3"}}` + "\n",
		"a message and eof": `{"hello":{"ver`,
	} {
		t.Run(name, func(t *testing.T) {
			conn := stranger(t, l)
			_, _ = conn.Write([]byte(text))
			_ = conn.CloseWrite()
			wantDropped(t, conn)
		})
	}
	t.Run("no TLS", func(t *testing.T) {
		conn, err := net.Dial("tcp", l.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write(bytes.Repeat([]byte{0}, 10_000))
		wantDropped(t, conn)
	})
	connect(t, l, ticket)
}

// Strangers that say nothing, or very little, are dropped after a few seconds. Until then they do
// not keep a rank of another address out, and after that none at all.
func TestSlowStrangers(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{Strangers: 16})
	var slow []*tls.Conn
	for range 2 { // an eighth of 16
		slow = append(slow, stranger(t, l))
	}
	go func() {
		for range 1000 {
			if _, err := slow[0].Write([]byte{' '}); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	began := time.Now()
	conn, err := net.Dial("tcp", l.Address()) // a third one
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantDropped(t, conn)
	if took := time.Since(began); took >= greetLimit {
		t.Logf("on this machine the third one was dropped after %v", took)
	}
	ticket.Addresses = []string{strings.Replace(l.Address(), "127.0.0.1", "127.0.0.2", 1), l.Address()}
	connect(t, l, ticket) // not before the others are dropped, since it has their address
	for _, c := range slow {
		wantDropped(t, c)
	}
}

// A launcher and a rank notice that the other end is silent, even if it sends a byte now and then.
func TestSilence(t *testing.T) {
	t.Parallel()
	for name, trickle := range map[string]bool{"silent": false, "a byte now and then": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, ticket := listen(t, Config{Silence: minSilence})
			launcher, rank := connect(t, l, ticket)
			if trickle {
				go func() {
					for range 10_000 {
						if _, err := rank.conn.Write([]byte{' '}); err != nil {
							return
						}
						time.Sleep(20 * time.Millisecond)
					}
				}()
			}
			if _, err := launcher.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	// A message that takes longer than the silence is none, as long as it goes on.
	t.Run("a slow network", func(t *testing.T) {
		t.Parallel()
		l, ticket := listen(t, Config{Silence: minSilence})
		launcher, rank := connect(t, l, ticket)
		line, err := encode(&Message{Bye: strings.Repeat("x", 6*part)})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for piece := range slices.Chunk(line, part) {
				if _, err := rank.conn.Write(piece); err != nil {
					return
				}
				time.Sleep(minSilence / 4)
			}
		}()
		if _, err := launcher.Receive(); err != nil {
			t.Error(err)
		}
	})
	// Beats end the silence.
	l, ticket := listen(t, Config{Silence: patience})
	launcher, rank := connect(t, l, ticket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go rank.Beat(ctx)
	for range 2 {
		if m, err := launcher.Receive(); err != nil || !m.Beat {
			t.Error(m, err)
		}
	}
}

// Send does not wait forever for a receiver that takes nothing.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{})
	launcher, _ := connect(t, l, ticket)
	m := &Message{Bye: strings.Repeat("x", MaxMessage/2)}
	began := time.Now()
	for range 1000 {
		err := launcher.Send(m)
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) < SendLimit {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := launcher.Receive(); err == nil {
			t.Error("the connection is still open")
		}
		return
	}
	t.Error("2 GB were sent to no one")
}

func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{Silence: patience})
	launcher, rank := connect(t, l, ticket)
	if err := rank.Send(&Message{Bye: strings.Repeat("x", MaxMessage)}); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
	for _, m := range []*Message{{}, {Beat: true, Bye: "x"}} {
		if err := rank.Send(m); err == nil {
			t.Errorf("%+v was sent", m)
		}
	}
	largest := &Message{Bye: strings.Repeat("x", MaxMessage-len(`{"bye":""}`)-1)}
	go func() {
		if err := rank.Send(largest); err != nil {
			t.Error(err)
		}
	}()
	if m, err := launcher.Receive(); err != nil || m.Bye != largest.Bye {
		t.Error(err)
	}
	go func() { _, _ = rank.conn.Write(bytes.Repeat([]byte("x"), MaxMessage+1<<20)) }()
	if _, err := launcher.Receive(); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}

// Dial tries again until its context ends.
func TestDialWaits(t *testing.T) {
	t.Parallel()
	ticket := &Ticket{Addresses: []string{probetest.ClosedPort(t)}}
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, ticket, hello("gpu01")); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{})
	launcher, rank := connect(t, l, ticket)
	idle := stranger(t, l)
	_ = l.Close()
	wantDropped(t, idle)
	if _, err := l.Accept(patient(t)); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := launcher.Send(&Message{Bye: "the sweep is over"}); err != nil {
		t.Error(err)
	}
	if m, err := rank.Receive(); err != nil || m.Bye == "" {
		t.Error(m, err)
	}
}

// A launcher is gone if its host says so, not if nothing answers.
func TestGone(t *testing.T) {
	t.Parallel()
	l, ticket := listen(t, Config{})
	other, _ := listen(t, Config{})
	closed := probetest.ClosedPort(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	silent := mute.Addr().String()
	for name, tt := range map[string]struct {
		addresses []string
		want      bool
	}{
		"alive":               {[]string{l.Address()}, false},
		"alive at one":        {[]string{closed, l.Address()}, false},
		"refused":             {[]string{closed}, true},
		"refused and silent":  {[]string{silent, closed}, true},
		"silent":              {[]string{silent}, false},
		"another certificate": {[]string{other.Address()}, true},
		"no address":          {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ticket := ticket
			ticket.Addresses = tt.addresses
			if got := Gone(patient(t), &ticket); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestTicket(t *testing.T) {
	t.Parallel()
	_, want := listen(t, Config{Silence: 5 * time.Second})
	want.Limit, want.Job = time.Hour, "77"
	line, err := want.Line()
	if err != nil || bytes.Count(line, []byte("\n")) != 1 {
		t.Fatalf("%q, %v", line, err)
	}
	got, err := ReadTicket(io.MultiReader(bytes.NewReader(line), bytes.NewReader([]byte("more"))))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Error(diff)
	}
	short := want
	short.Token = short.Token[1:]
	cut, _ := short.Line()
	for name, text := range map[string]string{
		"nothing": "", "half": string(line[:40]), "garbage": "hello\n", "empty": "{}\n", "a short token": string(cut), "long": strings.Repeat(" ", maxHello) + "\n",
	} {
		if got, err := ReadTicket(strings.NewReader(text)); err == nil || !strings.HasPrefix(err.Error(), "read the ticket from the standard input: ") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// FuzzDecode feeds the decoder. A message that it accepts is the same after encoding it again.
func FuzzDecode(f *testing.F) {
	for _, m := range []Message{
		{Beat: true}, {Bye: "over"}, {Stop: &Stop{ID: 3}}, {Welcome: &Welcome{}},
		{Hello: &Hello{Version: "1", Node: sweep.Node{Name: "gpu01", Rails: []sweep.Rail{{Name: "mlx5_0:1"}}}}},
		{Prepare: &Prepare{Task: sweep.Task{ID: 1, Kind: sweep.KindRing, Nodes: []string{"a", "b"}}, Key: make([]byte, 16)}},
		{Run: &Run{ID: 1, Ranks: []Ready{{Address: "127.0.0.1:5"}}}},
		{Done: &Done{Result: sweep.Result{Values: []float64{1.5}, Fault: sweep.FaultWrong}}},
	} {
		line, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(line, "\n{\"beat\":true}\n"...))
	}
	f.Add([]byte("\n"))
	f.Add([]byte(`{"beat":true,"bye":"x"}` + "\n"))
	f.Add(bytes.Repeat([]byte("["), 1000))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bufio.NewReaderSize(bytes.NewReader(data), 16)
		const limit = 1000
		for {
			line, err := readLine(in, limit)
			if len(line) > limit {
				t.Fatalf("a line of %d bytes", len(line))
			}
			if err != nil {
				return
			}
			m, err := decode(line)
			if err != nil {
				continue
			}
			again, err := encode(m)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			got, err := decode(bytes.TrimSuffix(again, []byte("\n")))
			if err != nil {
				t.Fatalf("%q: %v", again, err)
			}
			if third, err := encode(got); err != nil || !bytes.Equal(again, third) {
				t.Fatal(fmt.Sprintf("%q, then %q", again, third), err)
			}
		}
	})
}
