package run

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// FuzzShellEvents reads arbitrary events of a shell: the events are the same in any number of
// parts, and none crashes the program.
func FuzzShellEvents(f *testing.F) {
	f.Add([]byte("ready\x000\x00environ\x002\x00A\x001\x00end\x001\x000\x00"), 7)
	f.Add([]byte("native\x004\x00q\x00x\x00y\x00z\x00"), 3)
	f.Add([]byte("dump\x003\x00A\x00x\x001\x00array\x001\x00a\x00array\x000\x00"), 1)
	f.Add([]byte("x\x0099999999999999999999\x00"), 0)
	f.Add([]byte("forked\x002\x00q\x00-5\x00die\x005\x001.2.3\x001\x00m\x000\x000\x00leaving\x002\x00q\x00x\x00"), 2)
	f.Fuzz(func(t *testing.T, data []byte, at int) {
		if at %= len(data) + 1; at < 0 {
			at = -at
		}
		whole, whereWhole := eventsOf(data)
		parts, whereParts := eventsOf(data[:at], data[at:])
		if !slices.Equal(whole, parts) || whereWhole != whereParts {
			t.Errorf("%q %v, in parts %q %v", whole, whereWhole, parts, whereParts)
		}
		from, s := &sender{pending: bytes.Clone(data)}, &Shell{handler: new(script)}
		for i := range s.fds {
			s.fds[i] = -1
		}
		for {
			name, fields, ok, err := from.next()
			if err != nil || !ok {
				return
			}
			if slices.Contains([]string{"died", "forked", "die", "leaving", "native", "match"}, name) {
				continue // an answer would be written to any descriptor of any process
			}
			if end, _, _, err := s.handle(name, fields); end || err != nil {
				return
			}
		}
	})
}

// eventsOf returns the events of parts, and whether they end in an error.
func eventsOf(parts ...[]byte) (list []string, bad bool) {
	from := new(sender)
	for _, part := range parts {
		from.pending = append(from.pending, part...)
		for {
			name, fields, ok, err := from.next()
			if err != nil {
				return list, true
			}
			if !ok {
				break
			}
			list = append(list, fmt.Sprintf("%q %q", name, fields))
		}
	}
	return list, false
}

// FuzzWorkerAnswer reads arbitrary output of a worker instead of an answer.
func FuzzWorkerAnswer(f *testing.F) {
	good, _ := wire.Append(nil, &wire.Response{ID: 1, Text: "x"})
	f.Add(good)
	f.Add(append(good, good...))
	f.Add([]byte("null\n{\"id\":1}\n[]\n\xff\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		go func() {
			_, _ = w.Write(data)
			w.Close()
		}()
		c := &client{out: r}
		c.answers = bufio.NewReaderSize(c, 64)
		for {
			resp, err := c.receive(t.Context(), &wire.Request{ID: 1}, time.Now(), time.Minute)
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errBroken) {
					t.Errorf("%q: %v", data, err)
				}
				return
			}
			_ = answered(resp).Failure()
		}
	})
}

// FuzzProcStat reads stat files of processes with arbitrary names.
func FuzzProcStat(f *testing.F) {
	f.Add("sleep", []byte("1 (a) S 1 1 1"))
	f.Add("a) R 1 2 3 (", []byte(")"))
	f.Add("\n", []byte(nil))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		_, _ = process.ParseStat(data)
		got, err := process.ParseStat(fmt.Appendf(nil, "4711 (%s) D 1 2 345 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 4096 1\n", name))
		if want := (process.ProcStat{State: "D", Session: 345, Start: 98765}); err != nil || got != want {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	})
}

// FuzzLedger reads arbitrary lists of stuck processes: an entry counts only if a process with that
// start time lives.
func FuzzLedger(f *testing.F) {
	f.Add([]byte(`[{"pid":1,"start":0,"lane":"nvml","step":"x","doing":"y"}]`))
	f.Add([]byte(`[{"pid":-1,"start":18446744073709551615},{"pid":0}]`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := new(Ledger)
		err := l.parse(data)
		for _, c := range l.StuckProcesses() {
			if err != nil || c.PID <= 0 || !process.Alive(c.PID, c.Start) {
				t.Errorf("%+v, %v", c, err)
			}
			if !strings.Contains(fmt.Sprint(c.Hung()), fmt.Sprint(c.PID)) {
				t.Errorf("%+v", c.Hung())
			}
		}
		_, _ = l.Find("nvml", "x")
	})
}
