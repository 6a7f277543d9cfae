package ask

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// maxEvent bounds one line, bytes.
const maxEvent = 4 << 20

// batch is a number of lines, which one goroutine parses.
type batch struct {
	first  int // the number of the first line
	lines  [][]byte
	events []*event.Event // nil for a line that is not an event
	parsed chan struct{}
}

const batchSize = 256

// readEvents passes the events of a file, or of standard input for "-", to add, in their order. It
// reports lines that are not events, and skips them.
func readEvents(path string, add func(*event.Event)) error {
	in := io.Reader(os.Stdin)
	if path != "-" {
		f, err := os.Open(path) //nolint:forbidigo // a person names it, and waits for it
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		defer f.Close()
		in = f
	}
	// The lines are parsed side by side, and used in their order. The channels bound the memory.
	todo, inOrder := make(chan *batch, 2), make(chan *batch, 2*runtime.NumCPU())
	for range runtime.GOMAXPROCS(0) {
		run.Go(func() {
			for b := range todo {
				for i, line := range b.lines {
					if e, err := event.Parse(line); err == nil && e.Schema == event.Schema && e.Node != "" {
						b.events[i] = e
					}
				}
				close(b.parsed)
			}
		})
	}
	var reading error
	run.Go(func() {
		defer close(inOrder)
		defer close(todo)
		reading = splitLines(in, func(b *batch) {
			inOrder <- b
			todo <- b
		})
	})
	bad := 0
	for b := range inOrder {
		<-b.parsed
		for i, e := range b.events {
			if e != nil {
				add(e)
				continue
			}
			if bad++; bad == 1 {
				fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %s:%d: not an event of nhc-gpu: the line is skipped\n", path, b.first+i)
			}
		}
	}
	if bad > 1 {
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %s: %d lines were skipped\n", path, bad)
	}
	if reading != nil {
		return fmt.Errorf("read %s: %w", path, reading)
	}
	return nil
}

// splitLines passes the lines of a file in batches. A batch has consecutive lines, without empty ones.
func splitLines(in io.Reader, pass func(*batch)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	b := &batch{}
	flush := func() {
		if len(b.lines) > 0 {
			b.events, b.parsed = make([]*event.Event, len(b.lines)), make(chan struct{})
			pass(b)
		}
		b = &batch{}
	}
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			flush()
			continue
		}
		if len(b.lines) == 0 {
			b.first = n
		}
		if b.lines = append(b.lines, bytes.Clone(line)); len(b.lines) == batchSize {
			flush()
		}
	}
	flush()
	return lines.Err()
}
