package worker

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// An archive waits for no samples in a state directory that does not answer: those of a failed job are none, which its
// epilog waits for.
func TestEvidenceWithoutState(t *testing.T) {
	t.Parallel()
	w, root := samplesAt(t, map[string]string{"proc/uptime": "1000.00 1.00\n", "past/x": ""})
	w.vars.Past = "/past"
	if err := os.Mkdir(w.vars.State, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(w.vars.State, flight.File(monitor.GPUs)) // who opens it waits for a writer
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	w.vars.Root, w.vars.Stuck = root, []string{"read " + w.vars.State}
	w.setVars(w.vars)
	for _, tt := range []struct {
		q    wire.Request
		want string
	}{
		{wire.Request{Name: "a.tar.gz"}, "/past/evidence/a.tar.gz"},
		{wire.Request{Name: "b.tar.gz", Args: []string{"7"}, Files: []wire.Named{{Name: "job.json", Data: []byte(`{"job":"7"}`)}}}, ""},
	} {
		done := make(chan *wire.Response, 1)
		go func() { done <- keepEvidence(w.env(&tt.q, nil), &tt.q) }()
		select {
		case resp := <-done:
			if resp.Err != "" || resp.Text != tt.want {
				t.Errorf("%s: %q, %s, want %q", tt.q.Name, resp.Text, resp.Err, tt.want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no answer", tt.q.Name)
		}
	}
}
