package ask

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

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
		if err := readEvents(path, fleet.Add); err != nil {
			return err
		}
	}
	if fleet.Events == 0 {
		return errors.New("report: there is no event")
	}
	if target == "" {
		return fleet.Write(console.Stdout, title, time.Now())
	}
	err := console.WriteFile(target, 0o640, false, func(f *os.File) error { return fleet.Write(f, title, time.Now()) })
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
