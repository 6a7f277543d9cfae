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
	"os"
	"slices"
	"sync"
	"time"
)

// Limits of a connection.
const (
	BeatEvery  = time.Second      // see [Conn.Beat]
	SendLimit  = 15 * time.Second // a receiver that takes no data for that long is lost
	greetLimit = 5 * time.Second  // from the connection to the first message of a rank
	maxHello   = 64 << 10         // bytes, see MaxMessage: what a stranger can have the launcher keep
	minSilence = 2 * time.Second  // a shorter silence is the time between two beats
	tryLimit   = 3 * time.Second  // for one address
	retryAfter = 300 * time.Millisecond
	goneAfter  = 8 * time.Second // see Dial
)

// Conn is a connection between a rank and its launcher. Its methods can be called by several
// goroutines, but only one receives.
type Conn struct {
	Hello *Hello // of the rank, on both ends

	conn    *tls.Conn
	in      *bufio.Reader
	silence time.Duration // 0: none

	receives bool // Receive was called: only the receiver uses these two
	came     int  // bytes of the present part

	mu sync.Mutex // of writing
}

func newConn(conn *tls.Conn, silence time.Duration) *Conn {
	if silence > 0 {
		silence = max(silence, minSilence)
	}
	c := &Conn{conn: conn, silence: silence}
	c.in = bufio.NewReaderSize(reader{c}, 16<<10)
	return c
}

// part is how much of a message must pass within SendLimit, or the silence of the ticket, bytes.
const part = 64 << 10

// reader reads from a connection. A long message on a slow network is no silence.
type reader struct{ *Conn }

func (r reader) Read(p []byte) (n int, err error) {
	n, err = r.conn.Read(p)
	if r.came += n; r.came >= part && r.receives && err == nil {
		err = r.wait()
	}
	return n, err
}

// wait begins the wait for the next part of a message.
func (c *Conn) wait() error {
	c.came = 0
	var end time.Time
	if c.silence > 0 {
		end = time.Now().Add(c.silence)
	}
	return c.conn.SetReadDeadline(end)
}

// Send sends a message. After an error nothing more can be sent, since the receiver may have a part of
// the message. It blocks for at most SendLimit while the receiver takes nothing, and closes the connection
// then. What the other end has sent before it has gone can still be received.
func (c *Conn) Send(m *Message) error {
	line, err := encode(m)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for piece := range slices.Chunk(line, part) {
		if err = c.conn.SetWriteDeadline(time.Now().Add(SendLimit)); err == nil {
			_, err = c.conn.Write(piece)
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = c.conn.NetConn().Close() // not conn.Close, which would write to a peer that reads nothing
		}
		return fmt.Errorf("send to %s: %w", c.conn.RemoteAddr(), err)
	}
	return nil
}

// Receive returns the next message. It fails with [os.ErrDeadlineExceeded] if the other end has
// been silent for the time of the ticket, and with [io.EOF] if it has closed the connection between
// two messages. After an error the connection is useless.
func (c *Conn) Receive() (*Message, error) {
	c.receives = true
	if err := c.wait(); err != nil {
		return nil, c.received(err)
	}
	m, err := c.read(MaxMessage)
	return m, c.received(err)
}

func (c *Conn) received(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("receive from %s: %w", c.conn.RemoteAddr(), err)
}

// read reads a message of at most limit bytes.
func (c *Conn) read(limit int) (*Message, error) {
	line, err := readLine(c.in, limit)
	if err != nil {
		return nil, err
	}
	return decode(line)
}

// Beat sends a beat every BeatEvery until the context ends or the connection fails.
func (c *Conn) Beat(ctx context.Context) {
	tick := time.NewTicker(BeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if c.Send(&Message{Beat: true}) != nil {
				return
			}
		}
	}
}

// Address returns the address of this end, host:port.
func (c *Conn) Address() string { return c.conn.LocalAddr().String() }

// Close closes the connection at once. It does not wait for the receiver.
func (c *Conn) Close() error { return c.conn.NetConn().Close() }

// ErrTooLong means that a message is longer than MaxMessage.
var ErrTooLong = errors.New("the message is too long")

// readLine reads a line of at most limit bytes, and returns it without its end. A line without an
// end is incomplete: [io.ErrUnexpectedEOF].
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, fmt.Errorf("%w: want at most %d bytes", ErrTooLong, limit)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// ErrGarbled means that a line is not a message.
var ErrGarbled = errors.New("not a message of the sweep")

// decode parses a message. It accepts fields that it does not know, so that the greeting of another
// version is understood.
func decode(line []byte) (*Message, error) {
	m := new(Message)
	if err := json.Unmarshal(line, m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGarbled, err)
	}
	if n := m.fields(); n != 1 {
		return nil, fmt.Errorf("%w: it has %d parts, want one", ErrGarbled, n)
	}
	return m, nil
}

func encode(m *Message) ([]byte, error) {
	if n := m.fields(); n != 1 {
		return nil, fmt.Errorf("send a message of %d parts, want one", n)
	}
	line, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	if len(line) >= MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes, want less than %d", ErrTooLong, len(line), MaxMessage)
	}
	return append(line, '\n'), nil
}

// fields counts the fields that are set.
func (m *Message) fields() (n int) {
	for _, set := range []bool{m.Hello != nil, m.Welcome != nil, m.Prepare != nil, m.Ready != nil, m.Run != nil, m.Done != nil, m.Stop != nil, m.Beat, m.Bye != ""} {
		if set {
			n++
		}
	}
	return n
}

// ReadTicket reads the line that a rank gets by its standard input.
func ReadTicket(in io.Reader) (*Ticket, error) {
	line, err := readLine(bufio.NewReader(in), maxHello)
	if err != nil {
		return nil, fmt.Errorf("read the ticket from the standard input: %w", err)
	}
	t := new(Ticket)
	if err := json.Unmarshal(line, t); err != nil {
		return nil, fmt.Errorf("read the ticket from the standard input: %w", err)
	}
	if len(t.Addresses) == 0 || len(t.Print) != printSize || len(t.Token) != tokenSize {
		return nil, errors.New("read the ticket from the standard input: it has no address, print or token")
	}
	return t, nil
}

// Line returns the ticket as the line that a rank reads.
func (t *Ticket) Line() ([]byte, error) {
	line, err := json.Marshal(t)
	return append(line, '\n'), err
}
