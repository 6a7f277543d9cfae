package ask

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/page"
)

// Report writes an HTML page about many runs.
func Report() *cobra.Command {
	var title string
	cmd := &cobra.Command{
		Use:   "report [FILE.html] [EVENTS.jsonl ...]",
		Short: "Write an HTML page about the runs of a node or a fleet",
		Long: `Writes one HTML page, which needs no network and no script: a map of nodes and
checks, the present findings, what changed, flapping nodes and the slowest checks.
The events are those of the files, as [output] jsonl of nhc.toml writes them; - is
standard input. The lines of a node must be in the order of their times. Without
files it is the history of this node, which needs root. Without FILE.html it prints
the page.

Exit status: 0, 10 wrong arguments, or a file cannot be read or written.`,
		Example: `  nhc-gpu report node.html
  cat /shared/events/*.jsonl | nhc-gpu report fleet.html -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, words []string) error { return writeReport(words, title) },
	}
	cmd.Flags().StringVar(&title, "title", "Node health", "title of the page")
	return cmd
}

func writeReport(words []string, title string) error {
	target := ""
	var sources, rest []string
	for _, w := range words {
		switch {
		case filepath.Ext(w) == ".html" && target != "":
			return options.Wrong{Err: fmt.Errorf("surplus argument %q: want one FILE.html", w)}
		case filepath.Ext(w) == ".html":
			target = w
		case w == "-" || filepath.Ext(w) == ".jsonl" || filepath.Ext(w) == ".1":
			sources = append(sources, w)
		default:
			rest = append(rest, w)
		}
	}
	fleet := page.NewFleet()
	if len(sources) == 0 {
		if err := addOwn(fleet, rest); err != nil {
			return err
		}
	} else if len(rest) > 0 {
		return options.Wrong{Err: fmt.Errorf("surplus argument %q: want FILE.html, and files whose names end in .jsonl", rest[0])}
	}
	for _, path := range sources {
		if err := addFile(fleet, path); err != nil {
			return err
		}
	}
	if fleet.Events == 0 {
		return errors.New("report: there is no event")
	}
	if target == "" {
		return fleet.Write(console.Stdout, title, time.Now())
	}
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o640) //nolint:forbidigo // a person names it, and waits for it
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	err = fleet.Write(f, title, time.Now())
	if closing := f.Close(); err == nil && closing != nil {
		err = fmt.Errorf("report: %w", closing)
	}
	if err == nil {
		fmt.Fprintln(console.Screen, "wrote", target)
	}
	return err
}

// addOwn adds the history of this node, and its last runs.
func addOwn(fleet *page.Fleet, words []string) error {
	r, err := openPast("report", words)
	if err != nil {
		return err
	}
	defer r.Close()
	list, err := outputs.History(r.Node, time.Now())
	if err != nil {
		return err
	}
	for _, e := range list {
		fleet.Add(e)
	}
	last, err := outputs.Last(r.Node)
	if err != nil {
		return err
	}
	for i := range last {
		fleet.Add(last[len(last)-1-i])
	}
	return nil
}

// maxEvent bounds one line, bytes.
const maxEvent = 4 << 20

// addFile adds the events of a file, and reports lines that are none.
func addFile(fleet *page.Fleet, path string) error {
	in := io.Reader(os.Stdin)
	if path != "-" {
		f, err := os.Open(path) //nolint:forbidigo // a person names it, and waits for it
		if err != nil {
			return fmt.Errorf("report: %w", err)
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	bad := 0
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		e, err := event.Parse(line)
		if err != nil || e.Schema != event.Schema || e.Node == "" {
			if bad++; bad == 1 {
				fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %s:%d: not an event of nhc-gpu: the line is skipped\n", path, n)
			}
			continue
		}
		fleet.Add(e)
	}
	if bad > 1 {
		fmt.Fprintf(console.Alerts, "nhc-gpu: warning: %s: %d lines were skipped\n", path, bad)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
