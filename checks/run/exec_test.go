package run

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

func TestJobs(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	defer p.Close()
	env := []string{"PATH=/usr/bin:/bin"}
	input := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(input, []byte("from the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := p.Run(t.Context(), Job{Argv: []string{"sh", "-c", "cat; echo err >&2; echo $0; exit 3"}, Env: env, Program: "/bin/sh", Input: input, Merge: true})
	if string(o.Stdout) != "from the file\nerr\nsh\n" || o.Status != 3 || err != nil {
		t.Errorf("%q, status %d, %v", o.Stdout, o.Status, err)
	}
	link := input + ".link"
	if err := os.Symlink(input, link); err != nil {
		t.Fatal(err)
	}
	if o, err := p.Run(t.Context(), Job{Argv: []string{"cat"}, Env: env, Input: link}); err == nil {
		t.Errorf("a link as standard input: %q", o.Stdout)
	}
	if o, err := p.Run(t.Context(), Job{Argv: []string{"nosuch-program"}, Env: env}); err == nil || o.Status != 127 {
		t.Errorf("no such program: %+v, %v", o, err)
	}
	if o, err := p.Exec(t.Context(), []string{"nosuch-program"}, env, nil); err == nil || o.Status != 127 {
		t.Errorf("no such program: %+v, %v", o, err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if o, err := p.Exec(late, []string{"true"}, env, nil); err == nil || o.Status != 0 {
		t.Errorf("after the deadline: %+v, %v", o, err)
	}
	o, err = p.Run(t.Context(), Job{Argv: []string{"sh", "-c", "yes | head -c 3000000"}, Env: env, Merge: true})
	if len(o.Stdout) != wire.MaxOutput || !o.Cut || err != nil {
		t.Errorf("much output: %d bytes, cut %v, %v", len(o.Stdout), o.Cut, err)
	}
	// A process that it leaves behind does not delay it, and is not killed.
	mark := filepath.Join(t.TempDir(), "mark")
	o, err = p.Run(t.Context(), Job{Argv: []string{"sh", "-c", "(sleep 2; touch " + mark + ") & echo x"}, Env: env, Merge: true})
	if strings.TrimSpace(string(o.Stdout)) != "x" || err != nil {
		t.Errorf("%q, %v", o.Stdout, err)
	}
	waitFor(t, func() bool { _, err := os.Stat(mark); return err == nil })
}
